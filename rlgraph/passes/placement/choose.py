"""The placement that a cluster is best used with. Class: exact; it makes a plan, not a graph.

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
from rlgraph.catalog.clusters.cluster import Cluster, Island
from rlgraph.errors import Diagnostic, ProgramError, listed
from rlgraph.ir.graph import Program
from rlgraph.ir.plan import Group, Holding, Plan
from rlgraph.ir.schedule import Placement, Pool, Schedule, Work
from rlgraph.ops.nodes import NODES
from rlgraph.passes.cost.constants import Constants
from rlgraph.passes.cost.deployment import ModelConfig
from rlgraph.passes.cost.tasks import Task, Workload, main_step, tasks
from rlgraph.passes.placement.fusing import fused_in, fusible, on_same_stages
from rlgraph.passes.placement.place import Machine, Shapes, place, unheld
from rlgraph.passes.placement.search.components import Component, components, separable
from rlgraph.passes.placement.search.decompositions import Ways
from rlgraph.passes.placement.search.fill import filled
from rlgraph.passes.placement.search.fusing import Pieces
from rlgraph.passes.placement.search.incumbent import Found
from rlgraph.passes.placement.search.offload import could_sleep
from rlgraph.passes.placement.search.option import Option
from rlgraph.passes.placement.search.options import Options
from rlgraph.passes.placement.search.partitions import distinct, laid, partitions
from rlgraph.passes.placement.search.problem import Block, Blocks, Goal, Problem
from rlgraph.passes.placement.search.progress import OutOfTime
from rlgraph.passes.placement.search.refuse import refuse
from rlgraph.passes.placement.search.search import PATIENCE, Fuse, Search

SLEEPERS = 128
"""Devices up to which plans in which models sleep are looked for although something fits without: on 1,024 the search
for them takes as long again as that without."""
ASLEEP = 0.01
"""By how much of a step a plan in which models sleep has to be faster than one in which none do."""

SMALL = (64, 5)
"""Devices and components up to which the best plan is found; beyond, one that is within `NEAR` of it."""

NEAR = 0.01

JOINED = 3
"""Components of a `SMALL` problem up to which pools over several groups of a cluster are searched: PPO's five take six
times as long with them."""

SPARE = 0.01
"""By which share of its seconds, or price, a plan has to be better to leave less memory than its count may be off."""


@dataclass(frozen=True)
class Question:
    """What a plan is searched for."""

    program: Program
    schedule: Schedule
    shapes: Shapes
    cluster: Cluster
    workload: Workload
    constants: Constants
    engines: tuple[str, ...]
    """Those that may be chosen where the schedule names none, beside the embedded one."""
    goal: Goal = "time"
    offload: bool = True
    """Models may be in the host's memory while they are not at work."""
    search_seconds: float = inf
    """After which a search ends with the best plan that it has."""
    search_gap: float | None = None
    """How far from the best plan is near enough, as a share; None: 0 where the problem is `SMALL`, else `NEAR`."""
    in_turn: bool = False
    """As if each step had to end before the next one begins."""
    apart: tuple[str, ...] = ()
    """Models that are read elsewhere than they are trained."""
    fuse: bool = True
    """Trainings that can may share a pipeline."""
    streamed: tuple[str, ...] = ()
    """As if what takes the rows of these tables one by one began with the first of them."""
    moved: tuple[tuple[str, int], ...] = ()
    """Tables whose last rows may move to so many copies: who samples them has more."""


@dataclass(frozen=True)
class Choice:
    """The plan, and what it was chosen from."""

    plan: Plan
    found: Found
    problem: Problem
    question: Question
    simulated: float | None = None
    """Seconds of a step by the simulator, if it was asked already."""

    @property
    def configs(self) -> dict[str, ModelConfig]:
        """The models that something is computed with."""
        return {component.model: component.config for component in self.problem.components}


def choose(question: Question) -> Choice | None:
    """The best plan; None where nothing fits. Raises ProgramError where the time is over before there is a plan."""
    return _choose(question, question.search_seconds, Search.run)


def choose_asleep(question: Question, awake: Choice) -> Choice:
    """The best plan, where models may sleep in the host's memory: another one than that in which none do only if it is
    faster by `ASLEEP`. What is proven is proven of both. Of a large problem only those partitions are searched in which
    bounds leave a chance of that."""
    seconds, only, problem = question.search_seconds, None, awake.problem
    if not is_small(problem, question):
        ends = monotonic() + seconds
        fuse = how_fused(problem, question)
        try:
            only, bound = could_sleep(problem, _candidates(problem, question, ()), awake.found, ASLEEP, seconds, fuse)
        except OutOfTime:
            # Nothing is known of them.
            only, bound = [], 0.0
        awake = replace(awake, found=replace(awake.found, bound=min(awake.found.bound, bound)))
        seconds = ends - monotonic()
        if not only or seconds <= 0:
            return awake
    found = _choose(question, seconds, Search.run, awake, only)
    if found is not None and found.found.value < (1 - ASLEEP) * awake.found.value:
        return found
    bound = found.found.bound if found is not None else awake.found.bound
    return replace(awake, found=replace(awake.found, bound=min(awake.found.bound, bound)))


def choose_until(ends: float, question: Question) -> Choice | None:
    """The same by one of several searches that end together; raises OutOfTime where that is too early for a plan."""
    return _choose(question, ends - monotonic(), Search.best)


def _choose(
    question: Question,
    seconds: float,
    how: Callable[[Search], Found | None],
    known: Choice | None = None,
    only: Sequence[Blocks] | None = None,
) -> Choice | None:
    """known: a plan for another question that it has to beat; given back with what is proven of both if none does.
    only: partitions that are looked at, if not all."""
    asked, problems = ways(question)
    first, gap, spare = problems[0], _gap(problems[0], question), _spare(question)
    several = Ways(problems) if len(problems) > 1 else None
    among = only or _candidates(problems[-1], question, several.readers if several else ())
    kept = None if known is None else known.found
    fuse, patience = how_fused(first, question), _patience(question)
    search = Search(first, among, gap, seconds, spare, several, fuse, kept, patience)
    found = how(search)
    if found is None:
        return None
    if known is not None and found.options is known.found.options:
        return replace(known, found=replace(known.found, bound=min(known.found.bound, found.bound)))
    problem, own = problems[found.way], asked[found.way]
    found = replace(_settled(problem, found), way=0)
    return Choice(planned(own, problem, found), found, problem, own)


def ways(question: Question) -> tuple[list[Question], list[Problem]]:
    """The problem; of a small one also what it is if some models are read in other pools than those that train them:
    each set of the models of which the schedule says nothing."""
    whole = problem_of(replace(question, apart=()))
    asked, problems = [replace(question, apart=())], [whole]
    pinned = {each.model for each in whole.components if each.pin}
    free = separable(question.program, question.schedule, whole.tasks) if is_small(whole, question) else []
    free = [model for model in free if model not in pinned]
    known = [*whole.components, *(part for _, *parts in whole.options.parts.values() for part in parts)]
    for size in range(1, len(free) + 1):
        for apart in combinations(free, size):
            asked.append(replace(question, apart=apart))
            # What is the same is worked out once.
            own = _components(question, whole.tasks, apart)
            same = [known[known.index(each)] for each in own]
            problems.append(Problem(same, *whole.given[1:]))
    return asked, problems


def refused(question: Question) -> ProgramError:
    """Why nothing fits, and what would, as far as that is found within `search_seconds`. What is proposed needs no
    off-loading."""
    plain, ends = replace(question, offload=False), monotonic() + question.search_seconds

    def fit(asked: Question) -> bool:
        return any(fits(each, ends) for each in (asked, *with_other_engines(asked)))

    return ProgramError(
        refuse(
            problem_of(plain),
            question.schedule,
            lambda other: fit(replace(plain, cluster=other)),
            lambda: fit(replace(plain, schedule=without_sizes(question.schedule))),
        )
    )


def with_other_engines(question: Question) -> Iterator[Question]:
    """For where nothing fits: the same without an engine that the search would train a model with, so that another one
    does, which may split what the first one does not."""
    problem = problem_of(question)
    trained = [each for each in problem.components if each.work == "train" and not (each.pin and each.pin.engine)]
    for name in dict.fromkeys(name for each in trained for name in problem.options.able(each)):
        if name in question.engines:
            yield replace(question, engines=tuple(each for each in question.engines if each != name))


def without_sizes(schedule: Schedule) -> Schedule:
    """A schedule that does not say how many devices a pool has, and so not what is placed there."""
    cpus = [pool for pool in schedule.pools if pool.cpus]
    names = {pool.name for pool in cpus}
    lines = tuple(line for line in schedule.placements if line.pool in names)
    return replace(schedule, pools=tuple(cpus), placements=lines)


def problem_of(question: Question) -> Problem:
    """The step's work and the components of its models."""
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
    own = _components(question, step, question.apart)
    wrong = list(_elsewhere(own, question.cluster))
    for each in own:
        if each.pin and each.pin.engine:
            for kind in dict.fromkeys(island.device.kind for island in question.cluster.islands):
                wrong += unheld(each.model, each.pin.engine, each.config.shape, each.config.dtype, kind, each.pin)
    if wrong:
        raise ProgramError(wrong)
    apart = len(question.cluster.islands) > 1
    pairs = fusible(question.program, question.schedule, question.fuse)
    options = Options(
        step,
        question.constants,
        question.engines,
        offload=question.offload,
        apart=apart,
        streams=bool(question.schedule.streams),
        parts=_parts(question, own, step),
        fuses=frozenset().union(*pairs),
    )
    older = 0 if question.in_turn else phase.staleness.steps
    return Problem(own, question.cluster, options, question.goal, placed, pairs, older)


def _components(question: Question, step: Sequence[Task], apart: Collection[str]) -> list[Component]:
    """apart: models that are read elsewhere than they are trained."""
    moved = dict(question.moved)
    fewest = {
        number: moved.get(task.name.split(".")[0], 0) + 1
        for number, task in enumerate(step)
        if task.model and NODES[task.op].generates
    }
    own = components(question.program, question.schedule, question.shapes, step, apart)
    return [replace(each, fewest=max((fewest.get(number, 1) for number in each.tasks), default=1)) for each in own]


def _parts(
    question: Question, own: Sequence[Component], step: Sequence[Task]
) -> list[tuple[Component, Component, Component]]:
    """Components that train and read of which the schedule does not say that they do both with one split; what trains
    of each, and what reads."""
    program, schedule, shapes = question.program, question.schedule, question.shapes
    fused = {model for line in schedule.fuses for model in line.models}
    free = [model for model in separable(program, schedule, step) if model not in fused]
    parted = {(each.model, each.work): each for each in components(program, schedule, shapes, step, free)}
    return [
        (each, parted[each.model, "train"], parted[each.model, "read"])
        for each in own
        if each.model in free and each.work == "train" and not each.apart
    ]


def _elsewhere(own: Sequence[Component], cluster: Cluster) -> Iterator[Diagnostic]:
    """Ways to compute attention that need other devices than there are."""
    kinds = {island.device.kind for island in cluster.islands}
    for pin in dict.fromkeys(each.pin for each in own):
        if pin and pin.attention and pin.engine:
            needed = spec_of(pin.engine).attention[pin.attention].devices
            if not needed & kinds:
                message = f"`attention={pin.attention}` needs a {' or '.join(sorted(needed))}, and the cluster has none"
                others = [name for name, each in spec_of(pin.engine).attention.items() if each.devices & kinds]
                yield Diagnostic("E0908", message, pin.at("attention"), f"there is {listed(others, 'or')}")


def search_until(ends: float, problem: Problem, question: Question, only: Sequence[Blocks]) -> Found | None:
    """The best of some partitions, by one of several searches that end together; raises OutOfTime where that is too
    early for a plan."""
    gap, spare, fuse = _gap(problem, question), _spare(question), how_fused(problem, question)
    search = Search(problem, only, gap, ends - monotonic(), spare, fuse=fuse, patience=_patience(question))
    found = search.best()
    return found and _settled(problem, found)


def _settled(problem: Problem, found: Found) -> Found:
    """With caches that fill what is left, and with the seconds of the lists where trainings share a pipeline."""
    found = filled(problem, found)
    return with_pieces(problem, found, found.pieces) if found.pieces else found


def with_pieces(problem: Problem, found: Found, pieces: Pieces) -> Found:
    """The same where these trainings share a pipeline."""
    seconds = problem.whole(found.blocks, found.options, pieces)
    value = problem.value(seconds, found.blocks, found.devices)
    bound = found.bound if found.before else min(found.bound, value)
    return replace(found, seconds=seconds, value=value, bound=bound, pieces=pieces)


def choose_unfused(choice: Choice, ends: float) -> Choice | None:
    """The best plan in which no trainings share a pipeline, which may be known; of one whose trainings are split unlike
    that in which they are not."""
    if choice.found.before is None:
        return choose(replace(choice.question, fuse=False, search_seconds=ends - monotonic()))
    found = filled(choice.problem, choice.found.before)
    return replace(choice, plan=planned(choice.question, choice.problem, found), found=found)


def _gap(problem: Problem, question: Question) -> float:
    """How near is near enough."""
    if question.search_gap is not None:
        return question.search_gap
    return 0.0 if is_small(problem, question) else NEAR


def _patience(question: Question) -> float:
    """Who says how near is near enough waits for it."""
    return PATIENCE if question.search_gap is None else inf


def is_small(problem: Problem, question: Question) -> bool:
    """Whether the best plan is found."""
    parts = {(each.model, each.work == "generate") for each in problem.components}
    return question.cluster.devices <= SMALL[0] and len(parts) <= SMALL[1]


def how_fused(problem: Problem, question: Question) -> Fuse:
    """In which plans trainings may share pipelines."""
    return "all" if is_small(problem, question) else "last"


def _spare(question: Question) -> float:
    """Who asks for the very best gets it, however full it is."""
    return SPARE if question.search_gap is None else min(SPARE, question.search_gap)


def candidates(problem: Problem, question: Question) -> list[Blocks]:
    """Every way to share pools that the schedule allows."""
    return _candidates(problem, question, ())


def _candidates(problem: Problem, question: Question, unplaced: Collection[int]) -> list[Blocks]:
    fixed = [(pool.name, pool.devices) for pool in question.schedule.pools if pool.devices]
    over = is_small(problem, question) and len(problem.components) <= JOINED
    found = partitions(problem.components, question.cluster, fixed, unplaced, over)
    return list(distinct(found, problem.tasks, problem.components))


def fits(question: Question, ends: float) -> bool:
    """Whether any plan fits. Raises OutOfTime where that is not known by then."""
    problem = problem_of(question)
    return Search(problem, candidates(problem, question), 1.0, ends - monotonic(), fuse="none").fits()


# The plan


def planned(question: Question, problem: Problem, found: Found) -> Plan:
    """What was found, as a plan."""
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
    whole = replace(question.schedule, pools=pools, placements=lines)
    cpus_alone = all(island.device.kind == "cpu" for island in question.cluster.islands)
    machine = Machine(kind="cpu" if cpus_alone else "gpu")
    plan = place(question.program, whole, machine, question.shapes, question.engines)
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
        own = replace(
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
        holdings.setdefault((component.model, group), own)
    plan = replace(plan, holdings=tuple(holdings.values()))
    fused = fused_in(plan, [[problem.components[number].model for number in piece] for piece in found.pieces])
    return on_same_stages(replace(plan, pools=located, groups=groups, cluster=question.cluster.text, fused=fused))


def _on_nodes(group: Group, island: Island, turned: int) -> Group:
    """Without tensor-parallel ranks on two nodes where one has room for them, and without a copy on two islands.
    turned: devices of the last of several islands, if those come first."""
    tp, size = spec_of(group.engine).width(group.mesh), group.mesh.copy_size

    def ranks(order: Sequence[int]) -> list[int]:
        return [island.rank(tp, size, number) for number in order]

    found = ranks(group.devices)
    if island.inner:
        whole = island.inner.devices
        copies = [found[at : at + size] for at in range(0, len(found), size)]
        if any(_astride(island, copy) for copy in copies):
            # Who has to move the least would lie on two of them.
            found = ranks(range(len(found)))
        found = [device + turned if device < whole else device - whole * (turned > 0) for device in found]
    return replace(group, devices=tuple(found))


def _astride(island: Island, devices: Sequence[int]) -> bool:
    """Whether devices lie on more than one of its parts."""
    ends = [*accumulate(part.devices for part in island.parts)]
    return len({bisect(ends, device) for device in devices}) > 1


def _turned(cluster: Cluster, block: Block, devices: int) -> int:
    """Of a pool over several islands the devices of the last one, if that comes first in the cluster; else 0."""
    before = block.others and block.island < block.others[0]
    return devices - sum(cluster.islands[number].devices for number in block.others) if before else 0


def _placement(component: Component, pool: str, option: Option) -> Placement:
    deployment = option.deployment
    work = tuple(Work(component.model, operation) for operation in component.operations)
    return Placement(work, pool, deployment.engine, deployment.mesh.axes)


def _name(held: Sequence[Component]) -> str:
    """`actor_generate`, `actor_critic_ref`: what is there, and of many the first one."""
    names = list(dict.fromkeys(component.name.replace(".", "_") for component in held))
    models = list(dict.fromkeys(component.model for component in held))
    shown = names if len(names) == 1 else models
    return "_".join(shown) if len(shown) < 4 else f"{shown[0]}_and_{len(shown) - 1}_more"


def _firsts(cluster: Cluster, found: Found) -> list[int]:
    """Where each pool begins."""
    before = [*accumulate((island.devices for island in cluster.islands), initial=0)]
    pieces = laid(cluster.islands, found.blocks, found.devices)
    return [before[number] + first for (number, first, _), *_ in pieces]
