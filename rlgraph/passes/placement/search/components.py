"""Components, which are placed as one: all work of a model that is done with the same replica of its weights."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rlgraph.backends.enginespec.registry import engine
from rlgraph.catalog.models.shape import Shape
from rlgraph.ir.graph import Program
from rlgraph.ir.schedule import PlacementLine, Schedule
from rlgraph.ops.nodes import MODEL_OPERATIONS, NODES
from rlgraph.ops.program_work import SharedWork, model_operations, replayed_models, shared_work
from rlgraph.passes.cost.batch import Batch
from rlgraph.passes.cost.deployment import ModelConfig
from rlgraph.passes.cost.task import Task, device_takeovers
from rlgraph.passes.placement.model_configs import model_config
from rlgraph.passes.placement.place import Shapes

Kind = Literal["train", "read", "generate"]

Said = Mapping[str, PlacementLine | None]
"""For each operation of a model what the schedule says of it."""


@dataclass(frozen=True, slots=True)
class Component:
    """A model's training and reading, or its generating; where it reads separately from its training, each of the
    two."""

    config: ModelConfig
    work: Kind
    operations: tuple[str, ...]
    tasks: tuple[int, ...]
    """The tasks of the main step that it does."""
    trained: bool
    """Whether the model is trained: anything else that is done with it then needs its weights brought."""
    pin: PlacementLine | None
    """What the schedule says of it."""
    generates: bool = False
    """Whether the model generates."""
    separated_by: Literal["", "chosen", "said"] = ""
    """Set where the model is read in one place and trained, or read for something else, in another: "chosen" since a
    search tries it, "said" since the schedule says so."""
    extra_tasks: tuple[int, ...] = ()
    """Tasks that are done elsewhere, but for which micro-batches and replicas are tried all the same, so that a model
    that is read separately from its training has every option that it has where the two are done together."""
    shared: SharedWork | None = None
    """Components with the same are done by the same processes; None: any may do it."""
    replays_routes: bool = False
    """Whether the experts of its tokens are recorded or replayed."""
    fewest_replicas: int = 1
    """The fewest data-parallel replicas that it may have."""

    @property
    def model_name(self) -> str:
        return self.config.name

    @property
    def name(self) -> str:
        """Its name: `actor.generate`, `critic.values`, or `actor` for a model with one component."""
        if self.work == "generate":
            return f"{self.model_name}.generate" if self.trained else self.model_name
        return f"{self.model_name}.{self.main_operation}" if self.separated_by else self.model_name

    @property
    def main_operation(self) -> str:
        """The operation that decides what it holds."""
        return "train" if self.work == "train" else self.operations[0]

    @property
    def sums_jointly(self) -> bool:
        """Whether its distributions are read together with those of others."""
        return self.shared is not None and self.shared.sums

    @property
    def mixes(self) -> bool:
        """Whether rows are sampled from a mixture of it and others."""
        return self.shared is not None and self.shared.mixes

    @property
    def receives_weights(self) -> bool:
        """Whether its weights come from the component that trains them."""
        return self.trained and self.work != "train"

    @property
    def syncs_weights(self) -> bool:
        """Whether weights travel between it and another component."""
        return self.trained and (self.generates or bool(self.separated_by))

    def batches_to_try(self, tasks: Sequence[Task]) -> Iterator[Batch]:
        """Yield the rows for which micro-batches and replicas are tried."""
        for number in (*self.tasks, *self.extra_tasks):
            yield from tasks[number].batches

    def work_on_rows(self, tasks: Sequence[Task]) -> object:
        """Return what its options depend on: components of which that is equal have the same ones."""
        anonymous = replace(self, config=replace(self.config, name=""), tasks=(), extra_tasks=())
        done = [
            [
                (tasks[at].op, tasks[at].batches, tasks[at].repetitions, device_takeovers(tasks, at, self.tasks))
                for at in own
            ]
            for own in (self.tasks, self.extra_tasks)
        ]
        return anonymous, done

    def operation_batches(self, tasks: Sequence[Task]) -> Iterator[tuple[str, tuple[Batch, ...]]]:
        """Yield the operations that it does and the rows of each."""
        for number in self.tasks:
            yield tasks[number].op, tasks[number].batches


def make_components(
    program: Program, schedule: Schedule, shapes: Shapes, tasks: Sequence[Task], apart: Collection[str] = ()
) -> list[Component]:
    """Return the components of all models that anything is computed with, whose shapes have to be known. apart: models
    that are read elsewhere than they are trained, besides those of which a schedule says so."""
    pins_of, result = schedule_lines_by_model(program, schedule), []
    shared_of = {work: shared for shared in shared_work(program) for work in shared.work}
    for model in program.models:
        shape = shapes.get(model.name)
        assert isinstance(shape, Shape) or not pins_of[model.name]
        if not isinstance(shape, Shape):
            continue
        config, pins = model_config(model, shape, program), pins_of[model.name]
        parts = _parts(pins, model.name in apart)
        readers_apart = sum(_kind(part_operations) != "generate" for part_operations in parts) > 1
        reason: Literal["chosen", "said"] = "chosen" if model.name in apart else "said"
        tasks_of = [
            [index for index, task in enumerate(tasks) if task.model == model.name and task.op in part_operations]
            for part_operations in parts
        ]
        for part_operations, numbers in zip(parts, tasks_of, strict=True):
            others = [
                index
                for part, indexes in zip(parts, tasks_of, strict=True)
                if _kind(part) != "generate"
                for index in indexes
            ]
            works = [(model.name, operation) for operation in part_operations]
            separate = readers_apart and _kind(part_operations) != "generate"
            result.append(
                Component(
                    config,
                    _kind(part_operations),
                    part_operations,
                    tuple(numbers),
                    "train" in pins,
                    next((pins[operation] for operation in part_operations if pins[operation]), None),
                    any(NODES[operation].generates for operation in pins),
                    reason if separate else "",
                    tuple(index for index in others if index not in numbers) if separate and reason == "chosen" else (),
                    next((shared_of[work] for work in works if work in shared_of), None),
                    model.name in replayed_models(program),
                )
            )
    return result


def separable_models(program: Program, schedule: Schedule, tasks: Sequence[Task]) -> list[str]:
    """Return the models that a step reads and trains, and of which the schedule says the same of both, or nothing."""
    read = {task.model for task in tasks if task.model and NODES[task.op].scores}
    trained = {task.model for task in tasks if task.model and NODES[task.op].trains}
    models = []
    for model, pins in schedule_lines_by_model(program, schedule).items():
        settings = {pin and replace(pin, work=()) for operation, pin in pins.items() if not NODES[operation].generates}
        if model in read & trained and len(settings) == 1:
            models.append(model)
    return models


def schedule_lines_by_model(program: Program, schedule: Schedule) -> dict[str, Said]:
    """Return for each model what is done with it, and what the schedule says of that."""
    pins = {(s.model, s.operation): placement for placement in schedule.placements for s in placement.work}
    result: dict[str, Said] = {}
    for model, done in model_operations(program).items():
        order = sorted(done, key=MODEL_OPERATIONS.index)
        result[model] = {operation: pins.get((model, operation)) or pins.get((model, None)) for operation in order}
    return result


def _parts(pins: Said, apart: bool) -> list[tuple[str, ...]]:
    """Return the operations of a model in parts that are done with the same replica of its weights, training first: no
    two operations of a part are said to be done in different ways. apart: what is read is not read where the model is
    trained.

    What generates has a replica of its own, with which others read if the schedule says the same of both, and that
    their engine does both.
    """
    parts: list[list[str]] = []
    for operation in sorted(pins, key=lambda other: (NODES[other].generates, not NODES[other].trains)):
        for part in parts:
            agree = all(_alike(pins[operation], pins[other]) for other in part)
            if agree and _shared(operation, part, pins[operation]) and not (apart and NODES[part[0]].trains):
                part.append(operation)
                break
        else:
            parts.append([operation])
    return [tuple(sorted(part, key=MODEL_OPERATIONS.index)) for part in parts]


def _shared(operation: str, part: Sequence[str], pin: PlacementLine | None) -> bool:
    """Return whether an operation is done with the weights of some others, of which the schedule says the same."""
    generates = {NODES[other].generates for other in (operation, *part)}
    if len(generates) == 1:
        return True
    trains = any(NODES[other].trains for other in (operation, *part))
    if trains or pin is None or pin.engine is None:
        return False
    return {operation, *part} <= engine(pin.engine).operations


def _alike(placement: PlacementLine | None, pin: PlacementLine | None) -> bool:
    """Return whether two lines say the same of their works, or one says nothing."""
    return placement is None or pin is None or replace(placement, work=()) == replace(pin, work=())


def _kind(operations: Sequence[str]) -> Kind:
    if any(NODES[operation].generates for operation in operations):
        return "generate"
    return "train" if any(NODES[operation].trains for operation in operations) else "read"
