"""The errors for a problem that no plan fits: what is too large, where, when, by how much, and what would help."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from rlgraph.backends.enginespec.layout_checks import layout_problems
from rlgraph.backends.enginespec.registry import splitting_axes
from rlgraph.catalog.clusters.cluster import Cluster, NodeGroup
from rlgraph.catalog.clusters.units import format_quantity
from rlgraph.errors import NO_SPAN, Diagnostic, count_phrase, quoted_list
from rlgraph.ir.mesh import make_mesh
from rlgraph.ir.schedule import PoolLine, Schedule
from rlgraph.ops.program_work import SharedWork
from rlgraph.passes.cost.peak_memory import usable_device_bytes
from rlgraph.passes.placement.search.components import Component
from rlgraph.passes.placement.search.option import Option
from rlgraph.passes.placement.search.options import Options
from rlgraph.passes.placement.search.partitions import fit_across_node_groups, fit_in_node_groups
from rlgraph.passes.placement.search.problem import PlacementProblem
from rlgraph.passes.placement.search.progress import OutOfTime

MOST_NODES = 4096
"""The largest number of nodes of a cluster that is proposed as a way out."""


Change = tuple[str, Callable[[], bool]]
"""What could be changed, as in `it fits here with adapters`, and a function that returns whether a plan fits then, and
raises OutOfTime where it cannot tell."""


@dataclass(frozen=True, slots=True)
class _Smallest:
    """The option of a component that needs the least memory on a device."""

    component: Component
    island: NodeGroup
    option: Option


def no_plan_diagnostics(
    problem: PlacementProblem,
    schedule: Schedule,
    fits: Callable[[Cluster], bool],
    free: Callable[[], bool],
    changes: Sequence[Change] = (),
    others: Sequence[PlacementProblem] = (),
    apart: Callable[[], bool] = bool,
) -> list[Diagnostic]:
    """Return the errors for each component that no device holds even alone; else one for the whole. `fits` returns
    whether a plan fits on a cluster, and `free` whether one does where no pool has a size; both raise OutOfTime where
    they cannot tell. changes: what else may help on the same devices, the smallest first. others: the same problem with
    other engines. apart: returns whether a plan fits where models that something needs at once may have processes of
    their own, and raises OutOfTime where it cannot tell."""
    wanted = sum(pool.devices for pool in schedule.pools)
    if wanted > problem.cluster.device_count:
        return [_too_many(wanted, problem.cluster, schedule)]
    sized = sorted((pool for pool in schedule.pools if pool.devices), key=lambda pool: -pool.devices)
    rooms = [island.device_count for island in problem.cluster.islands]
    sizes = [pool.devices for pool in sized]
    if not fit_in_node_groups(sizes, rooms) and not fit_across_node_groups(sizes, problem.cluster):
        return [_astride(sized, problem.cluster)]
    try:
        hint = _way_out(problem, schedule, fits, free)
        if smallest := next((said for said, fitting in changes if fitting()), None):
            hint = f"it fits here {smallest}; without, {hint}"
    except OutOfTime:
        hint = "the time was over before it was known what it fits on: give the search more with `--search-seconds`"
    except KeyboardInterrupt:
        hint = "it was interrupted before it was known what it fits on"
    errors = []
    for component in problem.components:
        pool = next((pool for pool in schedule.pools if component.pin and pool.name == component.pin.pool), None)
        devices = pool.devices if pool else problem.cluster.device_count
        by_engine = [*_smallest_by_engine(component, devices, [problem, *others])]
        if not by_engine:
            errors.append(_impossible(component, problem.cluster))
        elif all(least.option.peak > usable_device_bytes(least.island, problem.constants) for least in by_engine):
            errors.append(_too_large(by_engine, problem, hint))
    return errors or [_together(problem, schedule, hint, apart)]


def _smallest_by_engine(
    component: Component, devices: int, problems: Sequence[PlacementProblem]
) -> Iterator[_Smallest]:
    """Yield the smallest option of a component with each engine that these problems let do its work."""
    seen = set[str]()
    for problem in problems:
        same = [twin for twin in problem.components if twin.name == component.name]
        least = _smallest(problem, same[0], devices) if same else None
        if least is not None and least.option.deployment.engine not in seen:
            seen.add(least.option.deployment.engine)
            yield least


def _smallest(problem: PlacementProblem, component: Component, devices: int) -> _Smallest | None:
    """Return the smallest option with all devices of the component's pool, or of the node group that suits it best."""
    boundless = replace(problem.constants, reserved=-(1 << 60), spare=-(1 << 60))
    settings = replace(problem.options.settings, apart=False, streams=False, fuses=())
    loose = Options(problem.tasks, boundless, settings)
    options = [
        _Smallest(component, island, option)
        for island in problem.cluster.islands
        for option in loose.all_options(component, island, min(devices, island.device_count))
    ]
    return min(options, key=lambda smallest: smallest.option.peak - smallest.island.device.memory, default=None)


def _too_large(by_engine: Sequence[_Smallest], problem: PlacementProblem, hint: str) -> Diagnostic:
    least, *others = sorted(by_engine, key=lambda smallest: smallest.option.peak - smallest.island.device.memory)
    component, option = least.component, least.option
    at = max(range(len(option.active)), key=option.active.__getitem__, default=None)
    moment = (
        f"during `{problem.tasks[component.tasks[at]].name}`" if at is not None and component.tasks else "in every step"
    )
    room = usable_device_bytes(least.island, problem.constants)
    deployment = option.deployment
    state = f", the optimizer on the {deployment.optimizer}" if deployment.optimizer else ""
    more = "".join(
        f" ({format_quantity(other.option.peak, 'bytes')} with {other.option.deployment.engine} on "
        f"{other.option.deployment.mesh})"
        for other in others
    )
    message = (
        f"`{component.name}` needs at least {format_quantity(option.peak, 'bytes')} on each "
        f"{least.island.device.name} {moment}, "
        f"with {deployment.engine} on {deployment.mesh}{state}{more}, and "
        f"{format_quantity(max(0.0, room), 'bytes')} can be used"
    )
    return Diagnostic("E0930", message, component.pin.span if component.pin else NO_SPAN, hint)


def _impossible(component: Component, cluster: Cluster) -> Diagnostic:
    message = f"no split of `{component.name}` is possible on {cluster.text}"
    pin = component.pin
    if pin:
        config = component.config
        faults = (
            layout_problems(config.shape, pin.engine, make_mesh(**dict(pin.sizes)), config.kind) if pin.engine else []
        )
        why = f": {faults[0]}" if faults else ""
        return Diagnostic(
            "E0931",
            f"{message} as the schedule wants it{why}",
            pin.span,
            f"leave out {quoted_list(splitting_axes(), 'or')}, or give the pool more devices",
        )
    return Diagnostic(
        "E0931", message, NO_SPAN, "no engine can split this model over these devices: take more, or others"
    )


def _too_many(wanted: int, cluster: Cluster, schedule: Schedule) -> Diagnostic:
    message = f"the pools of the schedule have {wanted} devices, and {cluster.text} has {cluster.device_count}"
    return Diagnostic("E0932", message, schedule.span, "make the pools smaller, or the cluster larger")


def _astride(pools: Sequence[PoolLine], cluster: Cluster) -> Diagnostic:
    sizes = ", ".join(f"`{pool.name}` has {pool.devices}" for pool in pools)
    message = f"pools have no room in the groups of {cluster.text}: {sizes} devices"
    hint = (
        "a pool lies in one group, or has all devices of groups that stand beside each other, gpus or cpus, and some "
        "of the next one"
    )
    return Diagnostic("E0932", message, pools[0].span, hint)


def _together(problem: PlacementProblem, schedule: Schedule, hint: str, apart: Callable[[], bool]) -> Diagnostic:
    names = ", ".join(dict.fromkeys(f"`{component.name}`" for component in problem.components))
    message, span = (
        f"{names} do not fit together on {problem.cluster.text}, however they share its memory",
        schedule.span,
    )
    shared = list(dict.fromkeys(component.shared for component in problem.components if component.shared))
    try:
        if shared and apart():
            message += "".join(f": {_why_together(work)}" for work in shared) + "; in processes of their own they would"
            span = span if span.line else shared[0].node.span
    except (OutOfTime, KeyboardInterrupt):
        pass
    return Diagnostic("E0933", message, span, hint)


def _why_together(shared: SharedWork) -> str:
    """Return why models have to be in the same processes."""
    models = quoted_list(shared.models, "and")
    if not shared.sums:
        return f"{models} are in the same processes, since they play in the same episodes"
    what = "rows are sampled from a mixture of them" if shared.mixes else "a sum over the vocabulary reads both"
    return f"{models} are in the same processes, since {what}"


def _way_out(
    problem: PlacementProblem, schedule: Schedule, fits: Callable[[Cluster], bool], free: Callable[[], bool]
) -> str:
    """Return the hint with the fewest nodes of the first kind that a plan fits on: what fits on some nodes fits on
    more."""
    sized = [pool for pool in schedule.pools if pool.devices]
    if sized and free():
        names = ", ".join(f"`{pool.name}`" for pool in sized)
        return f"it fits without what the schedule says of {names}: make pools larger there, or pin less"
    cluster = problem.cluster
    least, most = cluster.islands[0].nodes, cluster.islands[0].nodes
    while most < MOST_NODES:
        least, most = most, min(MOST_NODES, 2 * most)
        if fits(_with_nodes(cluster, most)):
            break
    else:
        return "more nodes of this kind do not help: take devices with more memory, a smaller model, or shorter rows"
    while least + 1 < most:
        middle = (least + most) // 2
        least, most = (least, middle) if fits(_with_nodes(cluster, middle)) else (middle, most)
    return f"it fits on {count_phrase(most, 'node')}: `--cluster '{_with_nodes(cluster, most).text}'`"


def _with_nodes(cluster: Cluster, nodes: int) -> Cluster:
    """Return the cluster with so many nodes of the first kind."""
    first, *others = cluster.islands
    head, _, rest = cluster.text.partition("x")
    text = f"{nodes}x{rest}" if head.isdigit() else cluster.text
    return replace(cluster, islands=(replace(first, nodes=nodes), *others), text=text)
