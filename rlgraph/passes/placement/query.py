"""The question that a search for a plan answers, and the problem that it poses."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import inf
from weakref import WeakSet

from rlgraph.backends.enginespec.registry import engine as spec_of
from rlgraph.catalog.clusters.cluster import Cluster
from rlgraph.errors import Diagnostic, ProgramError, quoted_list
from rlgraph.ir.graph import Program
from rlgraph.ir.plan import HOST
from rlgraph.ir.schedule import Schedule
from rlgraph.ops.nodes import NODES
from rlgraph.passes.cost.constants import Constants
from rlgraph.passes.cost.task import Task
from rlgraph.passes.cost.tasks import main_phase, phase_tasks
from rlgraph.passes.cost.workload import Workload
from rlgraph.passes.placement.adapter_errors import adapter_errors
from rlgraph.passes.placement.fused_pipelines import fusible_pairs
from rlgraph.passes.placement.place import Shapes
from rlgraph.passes.placement.search.components import Component, make_components, separable_models
from rlgraph.passes.placement.search.options import Options
from rlgraph.passes.placement.search.problem import Goal, PlacementProblem
from rlgraph.passes.placement.search.progress import SearchControl
from rlgraph.passes.placement.search.search_settings import SearchSettings

SMALL = (64, 5)
"""Devices and components up to which the best plan is found; beyond, one that is within `choose.NEAR` of it."""


@dataclass(frozen=True)
class PlacementQuery:
    """Everything that a search for a plan depends on."""

    program: Program
    schedule: Schedule
    shapes: Shapes
    cluster: Cluster
    workload: Workload
    constants: Constants
    engines: tuple[str, ...]
    """Engines that may be chosen where the schedule names none, besides the embedded one."""
    goal: Goal = "time"
    offload: bool = True
    """Whether models may be in the host's memory while they are not at work."""
    search_seconds: float = inf
    """After so many seconds a search ends with the best plan that it has."""
    search_gap: float | None = None
    """How far from the best plan is near enough, as a share; None: 0 where the problem is `SMALL`, else `NEAR`."""
    sequential_steps: bool = False
    """Plan as if each step had to end before the next one begins."""
    read_separately: tuple[str, ...] = ()
    """Models that are read elsewhere than they are trained."""
    shares_processes: bool = True
    """Whether models that something needs at once are in the same processes, as they have to be."""
    reads_apart: bool = True
    """Whether a model may be read with another split than it is trained with, in the same pool."""
    fuse: bool = True
    """Whether trainings that can may share a pipeline."""
    streamed_tables: tuple[str, ...] = ()
    """Plan as if what takes the rows of these tables one by one began with the first of them."""
    tail_replicas: tuple[tuple[str, int], ...] = ()
    """Tables whose last rows may move to so many replicas: the groups that sample them have more than these."""
    most_nodes: int = 0
    """Plan on so many nodes of the first node group at most; 0: on all."""
    assumed_shapes: tuple[tuple[str, str], ...] = ()
    """Models whose shape nobody knows, with the model whose shape they are planned with."""
    host_optimizer: bool = False
    """Whether optimizers may keep their state in the host's memory where the schedule does not say so."""
    control: SearchControl = field(default_factory=SearchControl, compare=False, repr=False)
    """Ends all searches for this question, and for others that are made of it, together."""
    known: WeakSet[PlacementProblem] = field(default_factory=WeakSet, compare=False, repr=False)
    """The problems of these questions, as long as a choice has them: those of equal work share their options."""


def decomposed_problems(question: PlacementQuery) -> tuple[list[PlacementQuery], list[PlacementProblem]]:
    """Return the questions and problems to be searched together: the one given and, if it is small, one for each set of
    models that are read in other pools than those that train them, of the models of which the schedule says nothing."""
    undivided = make_problem(replace(question, read_separately=()))
    questions, problems = [replace(question, read_separately=())], [undivided]
    pinned = {component.model_name for component in undivided.components if component.pin}
    separate = (
        separable_models(question.program, question.schedule, undivided.tasks) if is_small(undivided, question) else []
    )
    separate = [model for model in separate if model not in pinned]
    known_components = [
        *undivided.components,
        *(part for _, *parts in undivided.options.parts.values() for part in parts),
    ]
    for size in range(1, len(separate) + 1):
        for apart in combinations(separate, size):
            questions.append(replace(question, read_separately=apart))
            # What is the same is worked out once.
            divided = _components(question, undivided.tasks, apart)
            reused = [known_components[known_components.index(component)] for component in divided]
            problems.append(PlacementProblem(reused, *undivided.constructor_arguments[1:]))
    return questions, problems


def queries_with_other_engines(question: PlacementQuery) -> Iterator[PlacementQuery]:
    """For a question for which nothing fits, yield it without an engine that the search would train a model with, so
    that another one does, which may split what the first one does not."""
    problem = make_problem(question)
    trained = [
        component
        for component in problem.components
        if component.work == "train" and not (component.pin and component.pin.engine)
    ]
    for name in dict.fromkeys(name for component in trained for name in problem.options.preferred_engines(component)):
        if name in question.engines:
            yield replace(question, engines=tuple(engine for engine in question.engines if engine != name))


def can_keep_optimizer_on_host(question: PlacementQuery) -> bool:
    """Return whether an engine that the search would train a model with keeps an optimizer's state in the host's
    memory, and the host's is another one than the device's."""
    problem = make_problem(question)
    return any(island.device.kind != "cpu" for island in question.cluster.islands) and any(
        "host" in spec_of(name).optimizer_choices((component.pin and component.pin.optimizer) or "", True)
        for component in problem.components
        if component.work == "train"
        for name in (
            [component.pin.engine]
            if component.pin and component.pin.engine
            else problem.options.preferred_engines(component)
        )
    )


def without_device_pools(schedule: Schedule) -> Schedule:
    """Return the schedule without the sizes of its pools, and so without what is placed there."""
    cpus = [pool for pool in schedule.pools if pool.cpus]
    names = {pool.name for pool in cpus}
    lines = tuple(line for line in schedule.placements if line.pool in names)
    return replace(schedule, pools=tuple(cpus), placements=lines)


def make_problem(question: PlacementQuery) -> PlacementProblem:
    """Return the problem of a question: the step's work and the components of its models."""
    cpus = [pool for pool in question.schedule.pools if pool.cpus and pool.name != HOST]
    placed = {
        work.model: (number, pool.cpus)
        for number, pool in enumerate(cpus)
        for line in question.schedule.placements
        for work in line.work
        if line.pool == pool.name
    }
    phase = main_phase(question.program)
    elsewhere = {code: count for code, (_, count) in placed.items()}
    step = tuple(phase_tasks(question.program, phase, question.workload, elsewhere, question.streamed_tables))
    processes = question.schedule.host_processes
    step = tuple(replace(task, workers=processes) if task.shared else task for task in step)
    older = phase.staleness.steps
    if older and phase.staleness.span == "token":
        refreshed = {line.model for line in question.schedule.refreshes if line.by != "drain"}
        step = tuple(_without_breaks(task, older + 1) if task.model in refreshed else task for task in step)
    parts: Sequence[Component] = _components(question, step, question.read_separately)
    problems = list(_elsewhere(parts, question.cluster))
    for component in parts:
        if component.pin and component.pin.engine:
            for kind in dict.fromkeys(island.device.kind for island in question.cluster.islands):
                problems += adapter_errors(
                    component.model_name,
                    component.pin.engine,
                    component.config.shape,
                    component.config.dtype,
                    kind,
                    component.pin,
                )
    if problems:
        raise ProgramError(problems)
    pairs = fusible_pairs(question.program, question.schedule, question.fuse)
    settings = SearchSettings(
        question.engines,
        # What the schedule says of sleeping is kept, whatever else is tried.
        offload=question.offload or any(line.sleep for line in question.schedule.placements),
        apart=len(question.cluster.islands) > 1,
        streams=bool(question.schedule.streams),
        # Whether pipelines are shared or not, the options are the same.
        fuses=frozenset().union(*fusible_pairs(question.program, question.schedule, True)),
        host_optimizer=question.host_optimizer,
        said_host_optimizer=any(line.optimizer == "host" for line in question.schedule.placements),
    )
    divided = _parts(question, parts, step) if question.reads_apart else []
    options = Options(step, question.constants, settings, divided)
    # Options are known by the identity of components and node groups.
    alike = [known for known in question.known if known.cluster is question.cluster]
    if same := next((known for known in alike if known.options.is_like(options)), None):
        parts = same.options.adopt(parts, options, same.components)
        options = same.options
    elif like := next((known for known in alike if known.options.has_like_strategies(options)), None):
        parts = options.share_strategies(parts, like.options)
    elif kin := next((known for known in question.known if known.options.has_like_strategies(options)), None):
        # Of a sweep's questions the first one stays, and not each one's predecessor.
        options.kin = kin.options.kin or kin.options
    ahead = 0 if question.sequential_steps else older
    problem = PlacementProblem(parts, question.cluster, options, question.goal, placed, pairs, ahead)
    if not ahead and not question.sequential_steps and _samples_beside_training(problem):
        problem = PlacementProblem(*problem.constructor_arguments[:-1], 1)
    question.known.add(problem)
    return problem


def _samples_beside_training(problem: PlacementProblem) -> bool:
    """Return whether nothing that is sampled waits for weights that the step before trained, so that a step samples
    while that one trains, where they have pools of their own."""
    renewed = {target for _, target in problem.sync_pairs}
    sampling = [number for number, component in enumerate(problem.components) if component.work == "generate"]
    return bool(sampling) and renewed.isdisjoint(sampling)


def _without_breaks(task: Task, requests: int) -> Task:
    """Return a task; if it samples, with rows that those of so many requests follow without a break."""
    if not NODES[task.op].generates:
        return task
    return replace(task, batches=tuple(replace(batch, requests=requests) for batch in task.batches))


def _components(question: PlacementQuery, step: Sequence[Task], apart: Collection[str]) -> list[Component]:
    """Return the components of a question. apart: models that are read elsewhere than they are trained."""
    moved = dict(question.tail_replicas)
    fewest = {
        number: moved.get(task.name.split(".")[0], 0) + 1
        for number, task in enumerate(step)
        if task.model and NODES[task.op].generates
    }
    divided = make_components(question.program, question.schedule, question.shapes, step, apart)
    return [
        replace(
            component,
            fewest_replicas=max((fewest.get(number, 1) for number in component.tasks), default=1),
            shared=component.shared if question.shares_processes else None,
        )
        for component in divided
    ]


def _parts(
    question: PlacementQuery, joint: Sequence[Component], step: Sequence[Task]
) -> list[tuple[Component, Component, Component]]:
    """Return the components that train and read, of which the schedule does not say that they do both with one split,
    each with its training part and its reading part."""
    program, schedule, shapes = question.program, question.schedule, question.shapes
    fused = {model for line in schedule.fuses for model in line.models}
    separate = [model for model in separable_models(program, schedule, step) if model not in fused]
    divided = {
        (component.model_name, component.work): component
        for component in make_components(program, schedule, shapes, step, separate)
    }
    return [
        (component, divided[component.model_name, "train"], divided[component.model_name, "read"])
        for component in joint
        if component.model_name in separate and component.work == "train" and not component.separated_by
    ]


def _elsewhere(parts: Sequence[Component], cluster: Cluster) -> Iterator[Diagnostic]:
    """Yield the errors for what is said in vain where there is a cluster: ways to compute attention that need other
    devices than there are, and shares of a device."""
    kinds = {island.device.kind for island in cluster.islands}
    for pin in dict.fromkeys(component.pin for component in parts):
        if pin and pin.share:
            message = "`share` is for a plan without a cluster: this one counts the bytes of a device"
            yield Diagnostic("E0889", message, pin.option_span("share"), "say how large the cache is: `cache=8e9`")
        if pin and pin.attention and pin.engine:
            needed = spec_of(pin.engine).attention[pin.attention].devices
            if not needed & kinds:
                message = f"`attention={pin.attention}` needs a {' or '.join(sorted(needed))}, and the cluster has none"
                others = [name for name, way in spec_of(pin.engine).attention.items() if way.devices & kinds]
                yield Diagnostic(
                    "E0908", message, pin.option_span("attention"), f"there is {quoted_list(others, 'or')}"
                )


def is_small(problem: PlacementProblem, question: PlacementQuery) -> bool:
    """Return whether the problem is small enough to find the best plan."""
    parts = {(component.model_name, component.work == "generate") for component in problem.components}
    islands, most = question.cluster.islands, question.most_nodes
    devices = question.cluster.device_count if len(islands) > 1 or not most else most * islands[0].per_node
    return devices <= SMALL[0] and len(parts) <= SMALL[1]
