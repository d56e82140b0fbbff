"""The placement that a cluster is best used with. Class: exact; it makes a plan, not a graph.

What a schedule pins is kept, and the rest is searched for: pools, devices, splits, micro-batches, caches,
recomputation, off-loading. `rlgraph.placement.search` says how; what is minimized is the time of a step, or its price.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from time import monotonic

from rlgraph.clusters.cluster import Cluster, Island
from rlgraph.cost.constants import Constants
from rlgraph.cost.deployment import ModelConfig
from rlgraph.cost.tasks import Workload, main_step, tasks
from rlgraph.enginespec.registry import engine as spec_of
from rlgraph.errors import Diagnostic, ProgramError, listed
from rlgraph.ir.graph import Program
from rlgraph.ir.plan import Group, Plan
from rlgraph.ir.schedule import Placement, Pool, Schedule, Work
from rlgraph.placement.place import Machine, Shapes, place
from rlgraph.placement.search.components import Component, components
from rlgraph.placement.search.fill import filled
from rlgraph.placement.search.incumbent import Found
from rlgraph.placement.search.option import Option
from rlgraph.placement.search.options import Options
from rlgraph.placement.search.partitions import distinct, located, partitions
from rlgraph.placement.search.problem import Blocks, Goal, Problem
from rlgraph.placement.search.refuse import refuse
from rlgraph.placement.search.search import Search

SMALL = (64, 5)
"""Devices and components up to which the best plan is found; beyond, one that is within `NEAR` of it."""

NEAR = 0.01

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


def choose(question: Question, only: Sequence[Blocks] | None = None) -> Choice | None:
    """The best plan, of all or of some partitions; None where nothing fits. Raises ProgramError where the time is over
    before there is a plan."""
    problem = problem_of(question)
    found = search(problem, question, only)
    return None if found is None else Choice(planned(question, problem, found), found, problem, question)


def refused(question: Question) -> ProgramError:
    """Why nothing fits, and what would, as far as that is found within `search_seconds`. What is proposed needs no
    off-loading."""
    plain, ends = replace(question, offload=False), monotonic() + question.search_seconds
    return ProgramError(
        refuse(
            problem_of(plain),
            question.schedule,
            lambda other: fits(replace(plain, cluster=other), ends),
            lambda: fits(replace(plain, schedule=without_sizes(question.schedule)), ends),
        )
    )


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
    step = tuple(tasks(question.program, phase, question.workload, placed))
    own = components(question.program, question.schedule, question.shapes, step)
    wrong = list(_elsewhere(own, question.cluster))
    if wrong:
        raise ProgramError(wrong)
    apart = len(question.cluster.islands) > 1
    options = Options(
        step,
        question.constants,
        question.engines,
        offload=question.offload,
        apart=apart,
        streams=bool(question.schedule.streams),
    )
    return Problem(
        own, question.cluster, options, question.goal, placed, 0 if question.in_turn else phase.staleness.steps
    )


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


def search(problem: Problem, question: Question, only: Sequence[Blocks] | None = None) -> Found | None:
    """The best of some partitions, or of all. Raises ProgramError where the time is over before there is a plan."""
    among = candidates(problem, question) if only is None else only
    found = Search(problem, among, _gap(problem, question), question.search_seconds, _spare(question)).run()
    return found and filled(problem, found)


def search_until(
    ends: float, problem: Problem, question: Question, only: Sequence[Blocks] | None = None
) -> Found | None:
    """The same, one of several searches that end together; raises OutOfTime where that is too early for a plan."""
    among = candidates(problem, question) if only is None else only
    found = Search(problem, among, _gap(problem, question), ends - monotonic(), _spare(question)).best()
    return found and filled(problem, found)


def _gap(problem: Problem, question: Question) -> float:
    """How near is near enough."""
    if question.search_gap is not None:
        return question.search_gap
    small = question.cluster.devices <= SMALL[0] and len(problem.components) <= SMALL[1]
    return 0.0 if small else NEAR


def _spare(question: Question) -> float:
    """Who asks for the very best gets it, however full it is."""
    return SPARE if question.search_gap is None else min(SPARE, question.search_gap)


def candidates(problem: Problem, question: Question) -> list[Blocks]:
    """Every way to share pools that the schedule allows."""
    fixed = [(pool.name, pool.devices) for pool in question.schedule.pools if pool.devices]
    found = partitions(problem.components, question.cluster, fixed)
    return list(distinct(found, problem.tasks, problem.components))


def fits(question: Question, ends: float) -> bool:
    """Whether any plan fits. Raises OutOfTime where that is not known by then."""
    problem = problem_of(question)
    return Search(problem, candidates(problem, question), 1.0, ends - monotonic()).fits()


# The plan


def planned(question: Question, problem: Problem, found: Found) -> Plan:
    """What was found, as a plan."""
    names = [block.name or _name([problem.components[number] for number in block.components]) for block in found.blocks]
    lines = tuple(
        _placement(problem.components[number], name, found.options[number])
        for name, block in zip(names, found.blocks, strict=True)
        for number in block.components
    )
    # Where functions run is what the schedule says.
    cpus = tuple(pool for pool in question.schedule.pools if pool.cpus)
    lines += tuple(line for line in question.schedule.placements if line.pool in {pool.name for pool in cpus})
    pools = (*(Pool(name, devices) for name, devices in zip(names, found.devices, strict=True)), *cpus)
    whole = replace(question.schedule, pools=pools, placements=lines)
    plan = place(question.program, whole, Machine(), question.shapes, question.engines)
    first = _firsts(question.cluster, found)
    located = tuple(
        replace(pool, first=first[names.index(pool.name)]) if pool.name in names else pool for pool in plan.pools
    )
    islands = {name: problem.island(block) for name, block in zip(names, found.blocks, strict=True)}
    groups = tuple(_on_nodes(group, islands[group.pool]) if group.models else group for group in plan.groups)
    holdings = tuple(
        replace(
            plan.holding(component.model, plan.role(component.model, component.operations[0]).name),
            micro_tokens=option.deployment.micro_tokens,
            recompute=option.deployment.recompute,
            attention=option.deployment.attention,
            offload=option.offload,
            kv_bytes=option.deployment.kv_bytes,
        )
        for component, option in zip(problem.components, found.options, strict=True)
    )
    return replace(plan, pools=located, groups=groups, holdings=holdings, cluster=question.cluster.text)


def _on_nodes(group: Group, island: Island) -> Group:
    """Without tensor-parallel ranks on two nodes where one has room for them."""
    tp = spec_of(group.engine).width(group.mesh)
    return replace(group, devices=tuple(island.member(tp, device) for device in group.devices))


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
    firsts = [0] * len(found.blocks)
    at = 0
    for number, island in enumerate(cluster.islands):
        own = [pool for pool, block in enumerate(found.blocks) if block.island == number]
        for pool, first in zip(own, located(island, [found.devices[pool] for pool in own]), strict=True):
            firsts[pool] = at + first
        at += island.devices
    return firsts
