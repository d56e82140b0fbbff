"""Models whose seconds and memory are counted, not measured: what every stage knows, so that all come to the same."""

from __future__ import annotations

from rlgraph.models.families import ModelKind, count
from rlgraph.models.shape import Shape
from rlgraph.pipelines.problem import Model


def counted(
    shape: Shape, kind: ModelKind, stages: int, micro_batches: int, *, recompute: bool = False, turned: bool = False
) -> Model:
    """Of seconds and memory only the ratio to other models' counts. Seconds go with the parameters, those backward with
    twice as many, or as all that is computed again; memory with the hidden states of the layers. Models of one pipeline
    are trained on the same rows, so that a micro-batch of one that has more of them is smaller."""
    work = count(shape, kind) / micro_batches
    return Model(
        "",
        stages,
        micro_batches,
        forward=work,
        backward=(3 if recompute else 2) * work,
        memory=shape.layers * shape.hidden / micro_batches,
        reverse=turned,
    )
