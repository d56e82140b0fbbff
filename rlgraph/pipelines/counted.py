"""Models whose seconds and memory are counted, not measured: what every stage knows, so that all come to the same."""

from __future__ import annotations

from rlgraph.models.families import ModelKind, count
from rlgraph.models.shape import Shape
from rlgraph.pipelines.problem import Model


def counted(
    shape: Shape, kind: ModelKind, stages: int, micro_batches: int, *, recompute: bool = False, turned: bool = False
) -> Model:
    """Of seconds and memory only the ratio to other models' counts. Seconds go with the parameters, those backward with
    twice as many, or as all that is computed again; memory with the hidden states of the layers."""
    work = float(count(shape, kind))
    return Model(
        "",
        stages,
        micro_batches,
        forward=work,
        backward=(3 if recompute else 2) * work,
        memory=float(shape.layers * shape.hidden),
        reverse=turned,
    )
