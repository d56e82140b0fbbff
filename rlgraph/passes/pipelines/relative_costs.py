"""Models whose seconds and memory are counted, not measured, so that all stages compute the same lists without asking
each other."""

from __future__ import annotations

from dataclasses import replace

from rlgraph.catalog.models.families import ModelKind, parameter_count
from rlgraph.catalog.models.shape import Shape
from rlgraph.passes.pipelines.problem import PipelineModel


def relative_pipeline_model(
    shape: Shape, kind: ModelKind, stages: int, micro_batches: int, *, recompute: bool = False, turned: bool = False
) -> PipelineModel:
    """Return a model of which only the ratios to other models' counts mean something. Seconds are proportional to the
    parameters; a backward takes twice as many as a forward, three times with recomputation. Memory is proportional to
    the hidden states of the layers. Models of one pipeline are trained on the same rows, so that a model with more
    micro-batches has smaller ones."""
    work = float(parameter_count(shape, kind))
    model = PipelineModel(
        "",
        stages,
        1,
        forward=work,
        backward=(3 if recompute else 2) * work,
        memory=float(shape.layers * shape.hidden),
        reverse=turned,
    )
    return split_into_micro_batches(model, micro_batches)


def split_into_micro_batches(whole: PipelineModel, micro_batches: int) -> PipelineModel:
    """Return `whole`, which is counted with one micro-batch of all rows, split into `micro_batches`. That holds for
    heterogeneous meshes, too: models of one pipeline lie on the same devices, and a model with more replicas has fewer
    rows in each."""
    return replace(
        whole,
        micro_batches=micro_batches,
        forward=whole.forward / micro_batches,
        backward=whole.backward / micro_batches,
        memory=whole.memory / micro_batches,
    )
