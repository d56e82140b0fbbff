"""What is said where no plan fits: what is too large, where, when, by how much, and what would help."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from rlgraph.clusters.cluster import Cluster, Island
from rlgraph.clusters.units import show
from rlgraph.cost.peak import usable
from rlgraph.enginespec.registry import axes
from rlgraph.errors import NO_SPAN, Diagnostic, counted, listed
from rlgraph.ir.schedule import Schedule
from rlgraph.placement.search.components import Component
from rlgraph.placement.search.options import Option, Options
from rlgraph.placement.search.problem import Problem

MOST_NODES = 4096
"""Nodes of a cluster that is still worth to be named as a way out."""


@dataclass(frozen=True, slots=True)
class _Smallest:
    """The option of a component that needs the least memory on a device."""

    component: Component
    island: Island
    option: Option

    @property
    def lacking(self) -> float:
        return self.option.peak


def refuse(problem: Problem, schedule: Schedule, fits: Callable[[Cluster], bool]) -> list[Diagnostic]:
    """Of each component that no device holds even alone; else of the whole. `fits` tells whether a plan fits on a
    cluster."""
    hint = _way_out(problem.cluster, fits)
    found = []
    for number, component in enumerate(problem.components):
        least = _smallest(problem, number, component)
        if least is None:
            found.append(_impossible(component, problem.cluster))
        elif least.option.peak > usable(least.island, problem.constants):
            found.append(_too_large(least, problem, hint))
    return found or [_together(problem, schedule, hint)]


def _smallest(problem: Problem, number: int, component: Component) -> _Smallest | None:
    """With all devices of the island that suits it best."""
    old = problem.options
    loose = Options(problem.tasks, replace(problem.constants, reserved=-(1 << 60)), old.engines, offload=old.offload)
    found = [
        _Smallest(component, island, option)
        for island in problem.cluster.islands
        for option in loose.all(number, component, island, island.devices)
    ]
    return min(found, key=lambda each: each.option.peak - each.island.device.memory, default=None)


def _too_large(least: _Smallest, problem: Problem, hint: str) -> Diagnostic:
    component, option = least.component, least.option
    at = max(range(len(option.active)), key=option.active.__getitem__, default=None)
    moment = (
        f"during `{problem.tasks[component.tasks[at]].name}`" if at is not None and component.tasks else "in every step"
    )
    room = usable(least.island, problem.constants)
    message = (
        f"`{component.name}` needs {show(option.peak, 'bytes')} on each {least.island.device.name} {moment}, "
        f"split as far as it can be on {least.island.devices} of them, and {show(max(0.0, room), 'bytes')} can be used"
    )
    return Diagnostic("E0930", message, component.pin.span if component.pin else NO_SPAN, hint)


def _impossible(component: Component, cluster: Cluster) -> Diagnostic:
    message = f"no split of `{component.name}` is possible on {cluster.text}"
    if component.pin:
        return Diagnostic(
            "E0931",
            f"{message} as the schedule wants it",
            component.pin.span,
            f"leave out {listed(axes(), 'or')}, or give the pool more devices",
        )
    return Diagnostic(
        "E0931", message, NO_SPAN, "no engine can split this model over these devices: take more, or others"
    )


def _together(problem: Problem, schedule: Schedule, hint: str) -> Diagnostic:
    names = ", ".join(f"`{component.name}`" for component in problem.components)
    wanted = sum(pool.devices for pool in schedule.pools)
    if wanted > problem.cluster.devices:
        message = (
            f"the pools of the schedule have {wanted} devices, and {problem.cluster.text} has {problem.cluster.devices}"
        )
        return Diagnostic("E0932", message, schedule.span, "make the pools smaller, or the cluster larger")
    message = f"{names} do not fit together on {problem.cluster.text}, however they share its memory"
    return Diagnostic("E0933", message, schedule.span, hint)


def _way_out(cluster: Cluster, fits: Callable[[Cluster], bool]) -> str:
    """The smallest of a few larger clusters that something fits on."""
    for nodes, larger in _larger(cluster):
        if fits(larger):
            return f"it fits on {counted(nodes, 'node')}: `--cluster '{larger.text}'`"
    return "more nodes of this kind do not help: take devices with more memory, a smaller model, or shorter rows"


def _larger(cluster: Cluster) -> Iterator[tuple[int, Cluster]]:
    first, *others = cluster.islands
    nodes = first.nodes
    while nodes < MOST_NODES:
        nodes = nodes + max(1, nodes // 2)
        island = replace(first, nodes=nodes)
        head, _, rest = cluster.text.partition("x")
        yield (
            nodes,
            replace(cluster, islands=(island, *others), text=f"{nodes}x{rest}" if head.isdigit() else cluster.text),
        )
