"""The placement that uses a cluster best. Class: exact; it makes a plan, not a graph.

What a schedule pins is kept, and the rest is searched for: pools, devices, splits, micro-batches, caches,
recomputation, off-loading. `rlgraph.passes.placement.search` says how; what is minimized is the time of a step, or its
price.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, combinations
from math import inf
from time import monotonic

from rlgraph.backends.enginespec.registry import engine as spec_of
from rlgraph.catalog.clusters.cluster import Cluster, NodeGroup
from rlgraph.errors import Diagnostic, ProgramError, quoted_list
from rlgraph.ir.graph import Program
from rlgraph.ir.plan import Group, Holding, Plan
from rlgraph.ir.schedule import Placement, Pool, Schedule, Work
from rlgraph.ops.nodes import NODES
from rlgraph.passes.cost.constants import Constants
from rlgraph.passes.cost.deployment import ModelConfig
from rlgraph.passes.cost.tasks import Task, Workload, main_step, tasks
from rlgraph.passes.placement.fusing import fused_of_plan, fusible, on_same_stages
from rlgraph.passes.placement.place import Machine, Shapes, adapter_problems, place
from rlgraph.passes.placement.search.components import Component, make_components, separable_models
from rlgraph.passes.placement.search.decompositions import Decompositions
from rlgraph.passes.placement.search.fill import fill_caches
from rlgraph.passes.placement.search.fusing import Pieces
from rlgraph.passes.placement.search.incumbent import SearchResult
from rlgraph.passes.placement.search.offload import partitions_worth_offloading
from rlgraph.passes.placement.search.option import Option
from rlgraph.passes.placement.search.options import Options
from rlgraph.passes.placement.search.partitions import distinct_partitions, partitions, pool_locations
from rlgraph.passes.placement.search.problem import Block, Blocks, Goal, Problem
from rlgraph.passes.placement.search.progress import OutOfTime
from rlgraph.passes.placement.search.refuse import refusal_diagnostics
from rlgraph.passes.placement.search.search import PATIENCE, Fuse, Search

SLEEPERS = 128
"""Devices up to which plans that offload models are searched although something fits without: on 1,024 that search
takes as long again as the one without."""
ASLEEP = 0.01
"""The share of a step by which a plan that offloads models has to be faster than one that does not."""

SMALL = (64, 5)
"""Devices and components up to which the best plan is found; beyond, one that is within `NEAR` of it."""

NEAR = 0.01

JOINED = 3
"""Components of a `SMALL` problem up to which pools over several node groups are searched: PPO's five take six times as
long with them."""

SPARE = 0.01
"""The share of its seconds, or price, by which a plan has to be better to be accepted with less memory left than the
estimate may be off."""


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
    in_turn: bool = False
    """Plan as if each step had to end before the next one begins."""
    apart: tuple[str, ...] = ()
    """Models that are read elsewhere than they are trained."""
    fuse: bool = True
    """Whether trainings that can may share a pipeline."""
    streamed: tuple[str, ...] = ()
    """Plan as if what takes the rows of these tables one by one began with the first of them."""
    moved: tuple[tuple[str, int], ...] = ()
    """Tables whose last rows may move to so many replicas: the groups that sample them have more than these."""


@dataclass(frozen=True)
class PlacementChoice:
    """A plan, and what it was chosen from."""

    plan: Plan
    found: SearchResult
    problem: Problem
    question: PlacementQuery
    simulated: float | None = None
    """The seconds of a step by the simulator, if it was run already."""

    @property
    def configs(self) -> dict[str, ModelConfig]:
        """The models that something is computed with."""
        return {component.model: component.config for component in self.problem.components}


def choose(question: PlacementQuery) -> PlacementChoice | None:
    """Return the best plan; None where nothing fits. Raises ProgramError where the time is over before there is a
    plan."""
    return _choose(question, question.search_seconds, Search.run)


def choose_with_offload(question: PlacementQuery, awake: PlacementChoice) -> PlacementChoice:
    """Return the best plan where models may be offloaded: another one than `awake`, in which none are, only if it is
    faster by `ASLEEP`. The bound holds for both. Of a large problem only those partitions are searched in which bounds
    leave a chance of that."""
    seconds, only, problem = question.search_seconds, None, awake.problem
    if not is_small(problem, question):
        ends = monotonic() + seconds
        fuse = fuse_mode(problem, question)
        try:
            only, bound = partitions_worth_offloading(
                problem, candidate_partitions(problem, question), awake.found, ASLEEP, seconds, fuse
            )
        except OutOfTime:
            # Nothing is proven of them.
            only, bound = [], 0.0
        awake = replace(awake, found=replace(awake.found, bound=min(awake.found.bound, bound)))
        seconds = ends - monotonic()
        if not only or seconds <= 0:
            return awake
    offloaded = _choose(question, seconds, Search.run, awake, only)
    if offloaded is not None and offloaded.found.value < (1 - ASLEEP) * awake.found.value:
        return offloaded
    bound = offloaded.found.bound if offloaded is not None else awake.found.bound
    return replace(awake, found=replace(awake.found, bound=min(awake.found.bound, bound)))


def choose_until(ends: float, question: PlacementQuery) -> PlacementChoice | None:
    """Return the best plan as one of several searches that end together; raise OutOfTime where that is too early for a
    plan."""
    return _choose(question, ends - monotonic(), Search.best)


def _choose(
    question: PlacementQuery,
    seconds: float,
    how: Callable[[Search], SearchResult | None],
    incumbent: PlacementChoice | None = None,
    only: Sequence[Blocks] | None = None,
) -> PlacementChoice | None:
    """Return the best plan that `how` finds.

    incumbent: a plan for another question that has to be beaten; it is returned with the bound of both if it is not.
    only: the partitions to search, if not all.
    """
    questions, problems = decomposed_problems(question)
    first, gap, spare = problems[0], _gap(problems[0], question), _spare(question)
    together = Decompositions(problems) if len(problems) > 1 else None
    searched = only or candidate_partitions(problems[-1], question, together.readers if together else ())
    to_beat = None if incumbent is None else incumbent.found
    fuse, patience = fuse_mode(first, question), _patience(question)
    search = Search(first, searched, gap, seconds, spare, together, fuse, to_beat, patience)
    result = how(search)
    if result is None:
        return None
    if incumbent is not None and result.options is incumbent.found.options:
        return replace(incumbent, found=replace(incumbent.found, bound=min(incumbent.found.bound, result.bound)))
    problem, chosen = problems[result.way], questions[result.way]
    result = replace(_settled(problem, result), way=0)
    return PlacementChoice(make_plan(chosen, problem, result), result, problem, chosen)


def decomposed_problems(question: PlacementQuery) -> tuple[list[PlacementQuery], list[Problem]]:
    """Return the questions and problems to be searched together: the one given and, if it is small, one for each set of
    models that are read in other pools than those that train them, of the models of which the schedule says nothing."""
    undivided = make_problem(replace(question, apart=()))
    questions, problems = [replace(question, apart=())], [undivided]
    pinned = {component.model for component in undivided.components if component.pin}
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
            questions.append(replace(question, apart=apart))
            # What is the same is worked out once.
            divided = _components(question, undivided.tasks, apart)
            reused = [known_components[known_components.index(component)] for component in divided]
            problems.append(Problem(reused, *undivided.given[1:]))
    return questions, problems


def no_plan_error(question: PlacementQuery) -> ProgramError:
    """Return the error that says why nothing fits, and what would, as far as that is found within `search_seconds`.
    What is proposed needs no offloading."""
    plain, ends = replace(question, offload=False), monotonic() + question.search_seconds

    def fit(tried: PlacementQuery) -> bool:
        return any(any_plan_fits(variant, ends) for variant in (tried, *with_other_engines(tried)))

    return ProgramError(
        refusal_diagnostics(
            make_problem(plain),
            question.schedule,
            lambda cluster: fit(replace(plain, cluster=cluster)),
            lambda: fit(replace(plain, schedule=without_sizes(question.schedule))),
        )
    )


def with_other_engines(question: PlacementQuery) -> Iterator[PlacementQuery]:
    """For a question for which nothing fits, yield it without an engine that the search would train a model with, so
    that another one does, which may split what the first one does not."""
    problem = make_problem(question)
    trained = [
        component
        for component in problem.components
        if component.work == "train" and not (component.pin and component.pin.engine)
    ]
    for name in dict.fromkeys(name for component in trained for name in problem.options.able(component)):
        if name in question.engines:
            yield replace(question, engines=tuple(engine for engine in question.engines if engine != name))


def without_sizes(schedule: Schedule) -> Schedule:
    """Return the schedule without the sizes of its pools, and so without what is placed there."""
    cpus = [pool for pool in schedule.pools if pool.cpus]
    names = {pool.name for pool in cpus}
    lines = tuple(line for line in schedule.placements if line.pool in names)
    return replace(schedule, pools=tuple(cpus), placements=lines)


def make_problem(question: PlacementQuery) -> Problem:
    """Return the problem of a question: the step's work and the components of its models."""
    cpus = [pool for pool in question.schedule.pools if pool.cpus]
    placed = {
        work.model: (number, pool.cpus)
        for number, pool in enumerate(cpus)
        for line in question.schedule.placements
        for work in line.work
        if line.pool == pool.name
    }
    phase = main_step(question.program)
    step = tuple(tasks(question.program, phase, question.workload, placed, question.streamed))
    parts = _components(question, step, question.apart)
    problems = list(_elsewhere(parts, question.cluster))
    for component in parts:
        if component.pin and component.pin.engine:
            for kind in dict.fromkeys(island.device.kind for island in question.cluster.islands):
                problems += adapter_problems(
                    component.model,
                    component.pin.engine,
                    component.config.shape,
                    component.config.dtype,
                    kind,
                    component.pin,
                )
    if problems:
        raise ProgramError(problems)
    several = len(question.cluster.islands) > 1
    pairs = fusible(question.program, question.schedule, question.fuse)
    options = Options(
        step,
        question.constants,
        question.engines,
        offload=question.offload,
        apart=several,
        streams=bool(question.schedule.streams),
        parts=_parts(question, parts, step),
        fuses=frozenset().union(*pairs),
    )
    older = 0 if question.in_turn else phase.staleness.steps
    return Problem(parts, question.cluster, options, question.goal, placed, pairs, older)


def _components(question: PlacementQuery, step: Sequence[Task], apart: Collection[str]) -> list[Component]:
    """Return the components of a question. apart: models that are read elsewhere than they are trained."""
    moved = dict(question.moved)
    fewest = {
        number: moved.get(task.name.split(".")[0], 0) + 1
        for number, task in enumerate(step)
        if task.model and NODES[task.op].generates
    }
    divided = make_components(question.program, question.schedule, question.shapes, step, apart)
    return [
        replace(component, fewest=max((fewest.get(number, 1) for number in component.tasks), default=1))
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
        (component.model, component.work): component
        for component in make_components(program, schedule, shapes, step, separate)
    }
    return [
        (component, divided[component.model, "train"], divided[component.model, "read"])
        for component in joint
        if component.model in separate and component.work == "train" and not component.apart
    ]


def _elsewhere(parts: Sequence[Component], cluster: Cluster) -> Iterator[Diagnostic]:
    """Yield the errors for ways to compute attention that need other devices than there are."""
    kinds = {island.device.kind for island in cluster.islands}
    for pin in dict.fromkeys(component.pin for component in parts):
        if pin and pin.attention and pin.engine:
            needed = spec_of(pin.engine).attention[pin.attention].devices
            if not needed & kinds:
                message = f"`attention={pin.attention}` needs a {' or '.join(sorted(needed))}, and the cluster has none"
                others = [name for name, way in spec_of(pin.engine).attention.items() if way.devices & kinds]
                yield Diagnostic("E0908", message, pin.at("attention"), f"there is {quoted_list(others, 'or')}")


def search_until(
    ends: float, problem: Problem, question: PlacementQuery, only: Sequence[Blocks]
) -> SearchResult | None:
    """Return the best plan of some partitions, by one of several searches that end together; raise OutOfTime where that
    is too early for a plan."""
    gap, spare, fuse = _gap(problem, question), _spare(question), fuse_mode(problem, question)
    search = Search(problem, only, gap, ends - monotonic(), spare, fuse=fuse, patience=_patience(question))
    result = search.best()
    return result and _settled(problem, result)


def _settled(problem: Problem, result: SearchResult) -> SearchResult:
    """Return the plan with caches that fill the memory left, and with the seconds of the final lists where trainings
    share a pipeline."""
    result = fill_caches(problem, result)
    return with_shared_pipelines(problem, result, result.pieces) if result.pieces else result


def with_shared_pipelines(problem: Problem, found: SearchResult, pieces: Pieces) -> SearchResult:
    """Return the plan with these trainings sharing pipelines."""
    seconds = problem.whole(found.blocks, found.options, pieces)
    value = problem.value(seconds, found.blocks, found.devices)
    bound = found.bound if found.before else min(found.bound, value)
    return replace(found, seconds=seconds, value=value, bound=bound, pieces=pieces)


def choose_unfused(choice: PlacementChoice, ends: float) -> PlacementChoice | None:
    """Return the best plan in which no trainings share a pipeline, which may be known; of one whose fused trainings
    have heterogeneous meshes, the one before these were tried."""
    if choice.found.before is None:
        return choose(replace(choice.question, fuse=False, search_seconds=ends - monotonic()))
    result = fill_caches(choice.problem, choice.found.before)
    return replace(choice, plan=make_plan(choice.question, choice.problem, result), found=result)


def _gap(problem: Problem, question: PlacementQuery) -> float:
    """Return how far from the best plan is near enough, as a share."""
    if question.search_gap is not None:
        return question.search_gap
    return 0.0 if is_small(problem, question) else NEAR


def _patience(question: PlacementQuery) -> float:
    """Return the patience of a search: a user who sets `search_gap` waits for it."""
    return PATIENCE if question.search_gap is None else inf


def is_small(problem: Problem, question: PlacementQuery) -> bool:
    """Return whether the problem is small enough to find the best plan."""
    parts = {(component.model, component.work == "generate") for component in problem.components}
    return question.cluster.devices <= SMALL[0] and len(parts) <= SMALL[1]


def fuse_mode(problem: Problem, question: PlacementQuery) -> Fuse:
    """Return in which plans trainings may share pipelines."""
    return "all" if is_small(problem, question) else "last"


def _spare(question: PlacementQuery) -> float:
    """Return the share by which a plan with little memory left has to be better: a user who asks for the very best gets
    it, however full it is."""
    return SPARE if question.search_gap is None else min(SPARE, question.search_gap)


def candidate_partitions(problem: Problem, question: PlacementQuery, unplaced: Collection[int] = ()) -> list[Blocks]:
    """Return every partition that the schedule allows. unplaced: components that get no pool yet."""
    fixed = [(pool.name, pool.devices) for pool in question.schedule.pools if pool.devices]
    over = is_small(problem, question) and len(problem.components) <= JOINED
    every = partitions(problem.components, question.cluster, fixed, unplaced, over)
    return list(distinct_partitions(every, problem.tasks, problem.components))


def any_plan_fits(question: PlacementQuery, ends: float) -> bool:
    """Return whether any plan fits. Raises OutOfTime where that is not known by then."""
    problem = make_problem(question)
    return Search(problem, candidate_partitions(problem, question), 1.0, ends - monotonic(), fuse="none").fits()


# The plan


def make_plan(question: PlacementQuery, problem: Problem, found: SearchResult) -> Plan:
    """Return the result of a search as a plan."""
    names = [block.name or _name([problem.components[number] for number in block.components]) for block in found.blocks]
    lines = tuple(
        _placement(component, name, option)
        for name, block in zip(names, found.blocks, strict=True)
        for number in block.components
        for component, option in problem.parts(number, found.options[number])
    )
    # Where functions run is what the schedule says.
    cpus = tuple(pool for pool in question.schedule.pools if pool.cpus)
    lines += tuple(line for line in question.schedule.placements if line.pool in {pool.name for pool in cpus})
    pools = (*(Pool(name, devices) for name, devices in zip(names, found.devices, strict=True)), *cpus)
    completed = replace(question.schedule, pools=pools, placements=lines)
    cpus_alone = all(island.device.kind == "cpu" for island in question.cluster.islands)
    machine = Machine(kind="cpu" if cpus_alone else "gpu")
    plan = place(question.program, completed, machine, question.shapes, question.engines)
    first = _firsts(question.cluster, found)
    located = tuple(
        replace(pool, first=first[names.index(pool.name)]) if pool.name in names else pool for pool in plan.pools
    )
    islands = {
        name: (problem.island(block), _turned(question.cluster, block, devices))
        for name, block, devices in zip(names, found.blocks, found.devices, strict=True)
    }
    groups = tuple(_on_nodes(group, *islands[group.pool]) if group.models else group for group in plan.groups)
    holdings: dict[tuple[str, str], Holding] = {}
    for component, option in problem.every_part(found.options):
        group = plan.role(component.model, component.operations[0]).name
        holding = replace(
            plan.holding(component.model, group),
            micro_tokens=option.deployment.micro_tokens,
            recompute=option.deployment.recompute,
            attention=option.deployment.attention,
            adapters=option.deployment.adapters,
            gather=option.deployment.gather,
            offload=option.offload,
            kv_bytes=option.deployment.kv_bytes,
        )
        # Of two that turn out to be the same processes the first one counts: that which trains.
        holdings.setdefault((component.model, group), holding)
    plan = replace(plan, holdings=tuple(holdings.values()))
    fused = fused_of_plan(plan, [[problem.components[number].model for number in piece] for piece in found.pieces])
    return on_same_stages(replace(plan, pools=located, groups=groups, cluster=question.cluster.text, fused=fused))


def _on_nodes(group: Group, island: NodeGroup, turned: int) -> Group:
    """Return the group with its ranks moved so that no tensor-parallel ranks are on two nodes where one has room for
    them, and no replica is on two node groups. turned: the devices of the last of several node groups, if those come
    first."""
    tp, size = spec_of(group.engine).width(group.mesh), group.mesh.copy_size

    def ranks(order: Sequence[int]) -> list[int]:
        return [island.rank(tp, size, number) for number in order]

    devices = ranks(group.devices)
    if island.inner:
        first_islands = island.inner.devices
        copies = [devices[at : at + size] for at in range(0, len(devices), size)]
        if any(_astride(island, copy) for copy in copies):
            # Who has to move the least would lie on two of them.
            devices = ranks(range(len(devices)))
        devices = [
            device + turned if device < first_islands else device - first_islands * (turned > 0) for device in devices
        ]
    return replace(group, devices=tuple(devices))


def _astride(island: NodeGroup, devices: Sequence[int]) -> bool:
    """Return whether devices lie on more than one of a node group's parts."""
    ends = [*accumulate(part.devices for part in island.parts)]
    return len({bisect(ends, device) for device in devices}) > 1


def _turned(cluster: Cluster, block: Block, devices: int) -> int:
    """Return the devices of the last node group of a pool over several, if that one comes first in the cluster; else
    0."""
    before = block.others and block.island < block.others[0]
    return devices - sum(cluster.islands[number].devices for number in block.others) if before else 0


def _placement(component: Component, pool: str, option: Option) -> Placement:
    """Return the line of a schedule that places a component as an option says."""
    deployment = option.deployment
    work = tuple(Work(component.model, operation) for operation in component.operations)
    return Placement(work, pool, deployment.engine, deployment.mesh.axes)


def _name(placed: Sequence[Component]) -> str:
    """Return a pool's name from what is there, `actor_generate`, `actor_critic_ref`, and of many components from the
    first one."""
    names = list(dict.fromkeys(component.name.replace(".", "_") for component in placed))
    models = list(dict.fromkeys(component.model for component in placed))
    shown = names if len(names) == 1 else models
    return "_".join(shown) if len(shown) < 4 else f"{shown[0]}_and_{len(shown) - 1}_more"


def _firsts(cluster: Cluster, result: SearchResult) -> list[int]:
    """Return the first device of each pool."""
    offsets = [*accumulate((island.devices for island in cluster.islands), initial=0)]
    pieces = pool_locations(cluster.islands, result.blocks, result.devices)
    return [offsets[number] + first for (number, first, _), *_ in pieces]
