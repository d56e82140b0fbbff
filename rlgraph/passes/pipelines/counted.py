"""Models whose seconds and memory are counted, not measured: what every stage knows, so that all come to the same."""

from __future__ import annotations

from dataclasses import replace

from rlgraph.catalog.models.families import ModelKind, count
from rlgraph.catalog.models.shape import Shape
from rlgraph.passes.pipelines.problem import Model


def counted(
    shape: Shape, kind: ModelKind, stages: int, micro_batches: int, *, recompute: bool = False, turned: bool = False
) -> Model:
    """Of seconds and memory only the ratio to other models' counts. Seconds go with the parameters, those backward with
    twice as many, or as all that is computed again; memory with the hidden states of the layers. Models of one pipeline
    are trained on the same rows, so that a micro-batch of one that has more of them is smaller."""
    work = float(count(shape, kind))
    whole = Model(
        "",
        stages,
        1,
        forward=work,
        backward=(3 if recompute else 2) * work,
        memory=float(shape.layers * shape.hidden),
        reverse=turned,
    )
    return batched(whole, micro_batches)


def batched(whole: Model, micro_batches: int) -> Model:
    """A model that is counted with one micro-batch, which has all rows, with as many as there are. That holds for
    models that are split unlike, too: those of one pipeline lie on the same devices, and a model with more copies has
    fewer rows in each."""
    return replace(
        whole,
        micro_batches=micro_batches,
        forward=whole.forward / micro_batches,
        backward=whole.backward / micro_batches,
        memory=whole.memory / micro_batches,
    )
