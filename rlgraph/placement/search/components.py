"""What is placed as one: all work of a model that is done with the same copy of its weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rlgraph.cost.deployment import ModelConfig
from rlgraph.cost.tasks import Task
from rlgraph.cost.time import Batch
from rlgraph.errors import NO_SPAN, Diagnostic, ProgramError
from rlgraph.ir.graph import Program
from rlgraph.ir.schedule import Placement, Schedule
from rlgraph.models.shape import Shape
from rlgraph.ops.nodes import MODEL_OPERATIONS, NODES
from rlgraph.ops.work import operations
from rlgraph.placement.place import Shapes, config_of


@dataclass(frozen=True, slots=True)
class Component:
    """A model's training and reading, or its generating."""

    config: ModelConfig
    work: Literal["train", "read", "generate"]
    operations: tuple[str, ...]
    tasks: tuple[int, ...]
    """Those of the main step that it does."""
    trained: bool
    """The model is trained: where it generates, its weights are brought."""
    pin: Placement | None
    """What the schedule says of it."""
    generates: bool = False
    """The model generates."""

    @property
    def model(self) -> str:
        return self.config.name

    @property
    def name(self) -> str:
        """`actor.generate`, or `actor` for a model with one component."""
        return f"{self.model}.generate" if self.work == "generate" and self.trained else self.model

    @property
    def kind(self) -> str:
        """The operation that says what it holds."""
        return "train" if self.work == "train" else self.operations[0]

    def batches(self, tasks: Sequence[Task]) -> Iterator[tuple[str, tuple[Batch, ...]]]:
        """The operations that it does and the rows of each."""
        for number in self.tasks:
            yield tasks[number].op, tasks[number].batches


def components(program: Program, schedule: Schedule, shapes: Shapes, tasks: Sequence[Task]) -> list[Component]:
    """Of all models that anything is computed with; their shapes have to be known. Raises ProgramError where a schedule
    takes a component apart."""
    pins = {(s.model, s.operation): placement for placement in schedule.placements for s in placement.work}
    found, wrong = [], []
    for model in program.models:
        done = sorted(operations(program)[model.name], key=MODEL_OPERATIONS.index)
        shape = shapes.get(model.name)
        assert isinstance(shape, Shape) or not done
        for generating in (False, True):
            own = tuple(operation for operation in done if NODES[operation].generates == generating)
            if not own or not isinstance(shape, Shape):
                continue
            config = config_of(model, shape, program)
            numbers = tuple(at for at, task in enumerate(tasks) if task.model == model.name and task.op in own)
            said = {each: pins.get((model.name, each)) or pins.get((model.name, None)) for each in own}
            pin = next((each for each in said.values() if each), None)
            wrong += [_apart(model.name, own[0], each, other) for each, other in said.items() if not _alike(other, pin)]
            kind: Literal["train", "read", "generate"] = (
                "generate" if generating else "train" if "train" in own else "read"
            )
            generates = any(NODES[operation].generates for operation in done)
            found.append(Component(config, kind, own, numbers, "train" in done, pin, generates))
    if wrong:
        raise ProgramError(wrong)
    return found


def _alike(placement: Placement | None, pin: Placement | None) -> bool:
    """Whether two lines say the same of their works, or one says nothing."""
    return placement is None or pin is None or replace(placement, work=()) == replace(pin, work=())


def _apart(model: str, first: str, second: str, pin: Placement | None) -> Diagnostic:
    message = f"`{model}.{first}` and `{model}.{second}` are placed apart, but for a cluster they stay together"
    hint = f"place `{model}` as a whole; only what it generates can be elsewhere"
    return Diagnostic("E0937", message, pin.span if pin else NO_SPAN, hint)
