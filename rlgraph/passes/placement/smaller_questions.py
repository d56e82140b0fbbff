"""What could be changed in a program, or in what is asked, so that a plan fits on the same devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from rlgraph.catalog.models.adapters import Adapters
from rlgraph.catalog.models.shape import Shape
from rlgraph.errors import quoted_list
from rlgraph.ops.program_work import model_operations
from rlgraph.passes.placement.query import PlacementQuery

ADAPTER_RANK = 16
"""The rank of adapters that are proposed."""

NARROW = "bfloat16"
"""The dtype that is proposed where weights are wider."""


def smaller_questions(question: PlacementQuery) -> Iterator[tuple[str, PlacementQuery]]:
    """Yield questions that need less memory of a device, the smallest change first, each with what was changed, as in
    `it fits here with adapters`. What is kept of one is what the others have, too: models sleep in all but the
    first."""
    if not question.offload:
        question = replace(question, offload=True)
        yield "with models that sleep in the host's memory: leave `--no-offload` out", question
        question = replace(question, host_optimizer=True)
        yield "with optimizers in the host's memory: leave `--no-offload` out", question
    whole = models_without_adapters(question)
    adapters = f"with adapters, `lora=lora(rank={ADAPTER_RANK})` of {quoted_list(whole, 'and')}"
    wide, narrow = wide_models(question), ""
    if wide:
        narrow = f'with fewer bytes a weight, `dtype="{NARROW}"` of {quoted_list(wide, "and")}'
        yield narrow, with_dtype(question, wide, NARROW)
    if whole:
        question = with_adapters(question, whole, ADAPTER_RANK)
        yield adapters, question
    if whole and wide:
        yield f"{narrow}, and {adapters}", with_dtype(question, wide, NARROW)


def models_without_adapters(question: PlacementQuery) -> list[str]:
    """Return the models that are trained as a whole."""
    work = model_operations(question.program)
    shapes = {model.name: question.shapes.get(model.name) for model in question.program.models}
    return [
        name
        for name, shape in shapes.items()
        if "train" in work[name] and isinstance(shape, Shape) and shape.adapters is None
    ]


def with_adapters(question: PlacementQuery, models: Sequence[str], rank: int) -> PlacementQuery:
    """Return the question with these models training adapters of all linear layers."""
    adapters = Adapters(rank, float(rank))
    shapes = {
        name: replace(shape, adapters=adapters) if name in models and isinstance(shape, Shape) else shape
        for name, shape in question.shapes.items()
    }
    return replace(question, shapes=shapes)


def wide_models(question: PlacementQuery) -> list[str]:
    """Return the models that have weights of four bytes or more, but for copies, which have what their original has."""
    program, work = question.program, model_operations(question.program)
    return [
        model.name
        for model in program.models
        if not model.copy_of and work[model.name] and program.dtype_of_model(model) in ("float32", "float64")
    ]


def with_dtype(question: PlacementQuery, models: Sequence[str], dtype: str) -> PlacementQuery:
    """Return the question with these models in another dtype, in which products are computed, too."""
    program = question.program
    changed = tuple(
        replace(
            model,
            options=(
                *((name, value) for name, value in model.options if name not in ("dtype", "autocast")),
                ("dtype", dtype),
            ),
        )
        if model.name in models
        else model
        for model in program.models
    )
    return replace(question, program=replace(program, models=changed))
