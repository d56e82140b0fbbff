"""Why adapters are held as they are: what each way takes, for the same devices and the same cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rlgraph.clusters.units import show, shown_seconds
from rlgraph.placement.choose import Choice
from rlgraph.placement.search.components import Component
from rlgraph.placement.search.option import Option


def show_adapted(choice: Choice) -> Iterator[str]:
    """A line for each part of a model with adapters for which there was a choice."""
    problem = choice.problem
    for number, option in enumerate(choice.found.options):
        for component, own in problem.parts(number, option):
            if own.deployment.adapters:
                ways = own.deployment.spec.adapts(component.config.shape)
                pinned = component.pin.adapters if component.pin else None
                told = [
                    _taken(choice, number, component, own, way)
                    for way in sorted(ways, key=lambda way: way != own.deployment.adapters)
                ]
                yield f"adapters of {component.name}: {'; '.join(told)}{', as the schedule says' if pinned else ''}"


def _taken(choice: Choice, number: int, component: Component, own: Option, way: str) -> str:
    """Of one way: the seconds of its work, those in which its adapters come, and the bytes of each device."""
    problem = choice.problem
    strategy = problem.options.strategy(component, replace(own.deployment, adapters=way))
    staying = problem.options.options(component, strategy, own.copies)[0]
    said = f"{way} works for {shown_seconds(sum(staying.seconds))} a step"
    for source, target in problem.syncs:
        if target == number:
            [trainer, trained], *_ = problem.parts(source, choice.found.options[source])
            pools = {choice.plan.role(each.model, each.operations[0]).pool for each in (trainer, component)}
            brought = problem.transfer(source, trained, staying, len(pools) == 1).seconds
            said += f", gets new ones in {shown_seconds(brought)}"
    resident, more = strategy.needs(own.copies)
    return f"{said}, and needs {show(resident + max(more, default=0.0), 'bytes')} of each device"
