"""What is placed as one: all work of a model that is done with the same copy of its weights."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rlgraph.backends.enginespec.registry import engine
from rlgraph.catalog.models.shape import Shape
from rlgraph.ir.graph import Program
from rlgraph.ir.schedule import Placement, Schedule
from rlgraph.ops.nodes import MODEL_OPERATIONS, NODES
from rlgraph.ops.work import operations
from rlgraph.passes.cost.deployment import ModelConfig
from rlgraph.passes.cost.tasks import Task
from rlgraph.passes.cost.time import Batch
from rlgraph.passes.placement.place import Shapes, config_of

Kind = Literal["train", "read", "generate"]

Said = Mapping[str, Placement | None]
"""For each operation of a model what the schedule says of it."""


@dataclass(frozen=True, slots=True)
class Component:
    """A model's training and reading, or its generating; where it reads apart from its training, each by itself."""

    config: ModelConfig
    work: Kind
    operations: tuple[str, ...]
    tasks: tuple[int, ...]
    """Those of the main step that it does."""
    trained: bool
    """The model is trained: where anything else is done with it, its weights are brought."""
    pin: Placement | None
    """What the schedule says of it."""
    generates: bool = False
    """The model generates."""
    apart: Literal["", "chosen", "said"] = ""
    """The model is read in one place and trained, or read for something else, in another: since a search tries it, or
    since the schedule says so."""
    beside: tuple[int, ...] = ()
    """Tasks that are done elsewhere, and that micro-batches and copies are tried for all the same: so that who reads
    apart from training has all that there is where the two are done together."""
    fewest: int = 1
    """Data-parallel copies that it has at least."""

    @property
    def model(self) -> str:
        return self.config.name

    @property
    def name(self) -> str:
        """`actor.generate`, `critic.values`, or `actor` for a model with one component."""
        if self.work == "generate":
            return f"{self.model}.generate" if self.trained else self.model
        return f"{self.model}.{self.kind}" if self.apart else self.model

    @property
    def kind(self) -> str:
        """The operation that says what it holds."""
        return "train" if self.work == "train" else self.operations[0]

    @property
    def brought(self) -> bool:
        """Its weights come from the component that trains them."""
        return self.trained and self.work != "train"

    @property
    def linked(self) -> bool:
        """Weights travel between it and another component."""
        return self.trained and (self.generates or bool(self.apart))

    def tried(self, tasks: Sequence[Task]) -> Iterator[Batch]:
        """Rows for which micro-batches and copies are tried."""
        for number in (*self.tasks, *self.beside):
            yield from tasks[number].batches

    def batches(self, tasks: Sequence[Task]) -> Iterator[tuple[str, tuple[Batch, ...]]]:
        """The operations that it does and the rows of each."""
        for number in self.tasks:
            yield tasks[number].op, tasks[number].batches


def components(
    program: Program, schedule: Schedule, shapes: Shapes, tasks: Sequence[Task], apart: Collection[str] = ()
) -> list[Component]:
    """Of all models that anything is computed with; their shapes have to be known. apart: models that are read
    elsewhere than they are trained, beside those of which a schedule says so."""
    said, found = said_of(program, schedule), []
    for model in program.models:
        shape = shapes.get(model.name)
        assert isinstance(shape, Shape) or not said[model.name]
        if not isinstance(shape, Shape):
            continue
        config, pins = config_of(model, shape, program), said[model.name]
        parts = _parts(pins, model.name in apart)
        several = sum(_kind(own) != "generate" for own in parts) > 1
        how: Literal["chosen", "said"] = "chosen" if model.name in apart else "said"
        done = [[at for at, task in enumerate(tasks) if task.model == model.name and task.op in own] for own in parts]
        for own, numbers in zip(parts, done, strict=True):
            others = [at for part, each in zip(parts, done, strict=True) if _kind(part) != "generate" for at in each]
            divided = several and _kind(own) != "generate"
            found.append(
                Component(
                    config,
                    _kind(own),
                    own,
                    tuple(numbers),
                    "train" in pins,
                    next((pins[each] for each in own if pins[each]), None),
                    any(NODES[each].generates for each in pins),
                    how if divided else "",
                    tuple(at for at in others if at not in numbers) if divided and how == "chosen" else (),
                )
            )
    return found


def separable(program: Program, schedule: Schedule, tasks: Sequence[Task]) -> list[str]:
    """Models that a step reads and trains, and of which the schedule says the same of both, or nothing."""
    read = {task.model for task in tasks if task.model and NODES[task.op].scores}
    trained = {task.model for task in tasks if task.model and NODES[task.op].trains}
    found = []
    for model, pins in said_of(program, schedule).items():
        said = {pin and replace(pin, work=()) for each, pin in pins.items() if not NODES[each].generates}
        if model in read & trained and len(said) == 1:
            found.append(model)
    return found


def said_of(program: Program, schedule: Schedule) -> dict[str, Said]:
    """For each model what is done with it, and what the schedule says of that."""
    pins = {(s.model, s.operation): placement for placement in schedule.placements for s in placement.work}
    found: dict[str, Said] = {}
    for model, done in operations(program).items():
        order = sorted(done, key=MODEL_OPERATIONS.index)
        found[model] = {each: pins.get((model, each)) or pins.get((model, None)) for each in order}
    return found


def _parts(pins: Said, apart: bool) -> list[tuple[str, ...]]:
    """The operations of a model that are done with the same copy of its weights, training first: all of which no two
    are said to be done in different ways. apart: what is read is not read where the model is trained.

    What generates has a copy of its own, with which others read if the schedule says the same of both, and that their
    engine does both."""
    found: list[list[str]] = []
    for own in sorted(pins, key=lambda each: (NODES[each].generates, not NODES[each].trains)):
        for part in found:
            alike = all(_alike(pins[own], pins[each]) for each in part)
            if alike and _shared(own, part, pins[own]) and not (apart and NODES[part[0]].trains):
                part.append(own)
                break
        else:
            found.append([own])
    return [tuple(sorted(part, key=MODEL_OPERATIONS.index)) for part in found]


def _shared(operation: str, part: Sequence[str], pin: Placement | None) -> bool:
    """Whether an operation is done with the weights of some others, of which the schedule says the same."""
    both = {NODES[each].generates for each in (operation, *part)}
    if len(both) == 1:
        return True
    trains = any(NODES[each].trains for each in (operation, *part))
    if trains or pin is None or pin.engine is None:
        return False
    return {operation, *part} <= engine(pin.engine).operations


def _alike(placement: Placement | None, pin: Placement | None) -> bool:
    """Whether two lines say the same of their works, or one says nothing."""
    return placement is None or pin is None or replace(placement, work=()) == replace(pin, work=())


def _kind(operations: Sequence[str]) -> Kind:
    if any(NODES[each].generates for each in operations):
        return "generate"
    return "train" if any(NODES[each].trains for each in operations) else "read"
