"""A comparison of the ways in which engines could work: what each takes, with the same devices and the same cache."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from rlgraph.catalog.clusters.units import show, shown_seconds
from rlgraph.passes.cost.deployment import Deployment
from rlgraph.passes.placement.choose import Choice
from rlgraph.passes.placement.search.components import Component
from rlgraph.passes.placement.search.option import Option


def show_ways(choice: Choice) -> Iterator[str]:
    """Yield a line for each part of a model with adapters for which there was a choice; then one for each training
    whose parameters are sharded by an engine that has several ways."""
    placed = [
        (number, *part)
        for number, option in enumerate(choice.found.options)
        for part in choice.problem.parts(number, option)
    ]
    for each in placed:
        yield from _adapted(choice, *each)
    for each in placed:
        yield from _gathered(choice, *each)


def _adapted(choice: Choice, number: int, component: Component, own: Option) -> Iterator[str]:
    if taken := own.deployment.adapters:
        config, spec, kind = component.config, own.deployment.spec, own.deployment.island.device.kind
        ways = _first(taken, spec.adapts(config.shape, config.dtype, kind))
        told = [
            f"{way} {_taken(choice, number, component, own, replace(own.deployment, adapters=way), True)}"
            for way in ways
        ]
        told += [
            f"not {way}: {spec.name} {'; '.join(spec.unheld(way, config.shape, config.dtype, kind))}"
            for way in spec.adapters
            if way not in ways
        ]
        said = ", as the schedule says" if component.pin and component.pin.adapters else ""
        yield f"adapters of {component.name}: {'; '.join(told)}{said}"


def _gathered(choice: Choice, number: int, component: Component, own: Option) -> Iterator[str]:
    ways = own.deployment.spec.gather
    if component.work == "train" and own.deployment.fsdp > 1 and len(ways) > 1:
        told = [
            f"by {way} {_taken(choice, number, component, own, replace(own.deployment, gather=way))}"
            for way in _first(own.deployment.gather or ways[0], ways)
        ]
        said = ", as the schedule says" if component.pin and component.pin.gather else ""
        yield f"parameters of {component.name} are gathered: {'; '.join(told)}{said}"


def _first(taken: str, ways: Iterable[str]) -> list[str]:
    """Return the ways, with the one that was taken first."""
    return sorted(ways, key=lambda way: way != taken)


def _taken(
    choice: Choice, number: int, component: Component, own: Option, deployment: Deployment, comes: bool = False
) -> str:
    """Describe one way: the seconds of its work, those in which what is trained elsewhere `comes`, and the bytes of
    each device."""
    problem = choice.problem
    strategy = problem.options.strategy(component, deployment)
    staying = problem.options.options(component, strategy, own.copies)[0]
    said = f"works for {shown_seconds(sum(staying.seconds))} a step"
    for source, target in problem.syncs if comes else ():
        if target == number:
            [trainer, trained], *_ = problem.parts(source, choice.found.options[source])
            pools = {choice.plan.role(each.model, each.operations[0]).pool for each in (trainer, component)}
            brought = problem.transfer(source, trained, staying, len(pools) == 1).seconds
            said += f", gets new ones in {shown_seconds(brought)}"
    resident, more = strategy.needs(own.copies)
    return f"{said}, and needs {show(resident + max(more, default=0.0), 'bytes')} of each device"
