"""Plans reward models that are not here yet: as large as the largest model that the program trains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import cast

from rlgraph.catalog.models.families import ModelKind, parameter_count
from rlgraph.catalog.models.shape import Shape
from rlgraph.errors import Diagnostic
from rlgraph.ir.graph import Program
from rlgraph.ops.program_work import model_operations
from rlgraph.ops.shared_base_models import has_changing_weights
from rlgraph.passes.placement.place import Shapes

ASSUMED_SHAPE = "W0965"
_JUDGE = "reward_lm"
"""The kind that is often trained only after its use was planned, by a program of its own from the same base."""


def assumed_shapes(program: Program, shapes: Shapes) -> dict[str, tuple[Shape, str]]:
    """Return, for each reward model that nothing trains and whose configuration is not here, the shape of the largest
    trained model and its name; empty where no trained model's shape is known."""
    work = model_operations(program)
    trained: dict[str, Shape] = {}
    for model in program.models:
        shape = shapes.get(model.name)
        if isinstance(shape, Shape) and "train" in work[model.name]:
            trained[model.name] = shape
    if not trained:
        return {}
    kinds = {model.name: cast(ModelKind, model.kind) for model in program.models}
    largest = max(trained, key=lambda name: parameter_count(trained[name], kinds[name]))
    return {
        model.name: (replace(trained[largest], adapters=None), largest)
        for model in program.models
        if model.kind == _JUDGE
        and model.name not in shapes
        and work[model.name]
        and not has_changing_weights(program, program.original_model(model))
    }


def assumed_shape_warnings(program: Program, assumed: Iterable[tuple[str, str]]) -> Iterator[Diagnostic]:
    """Yield a warning for each model that is planned as large as another one. assumed: the names of both."""
    for name, other in assumed:
        yield Diagnostic(
            ASSUMED_SHAPE,
            f"the configuration of `{name}` is not here: it is planned as large as `{other}`",
            program.model(name).span,
            "a run needs the model itself: name a folder with its `config.json`, or a model of the hub",
        )
