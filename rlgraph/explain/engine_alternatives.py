"""A comparison of the ways in which engines could work: what each takes, with the same devices and the same cache."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from rlgraph.catalog.clusters.units import format_quantity, format_seconds
from rlgraph.passes.cost.deployment import Deployment
from rlgraph.passes.placement.choose import PlacementChoice
from rlgraph.passes.placement.search.components import Component
from rlgraph.passes.placement.search.option import Option


def adapter_and_gather_lines(choice: PlacementChoice) -> Iterator[str]:
    """Yield a line for each part of a model with adapters for which there was a choice; then one for each training
    whose parameters are sharded by an engine that has several ways."""
    parts = [
        (number, *part)
        for number, option in enumerate(choice.search_result.options)
        for part in choice.problem.split_component(number, option)
    ]
    for numbered in parts:
        yield from _adapted(choice, *numbered)
    for numbered in parts:
        yield from _gathered(choice, *numbered)


def _adapted(choice: PlacementChoice, number: int, component: Component, option: Option) -> Iterator[str]:
    """Yield a line for a part whose adapters could be held in several ways."""
    if chosen := option.deployment.adapters:
        config, spec, kind = component.config, option.deployment.engine_spec, option.deployment.island.device.kind
        ways = _first(chosen, spec.adapter_ways(config.shape, config.dtype, kind))
        texts = [
            f"{way} {_way_text(choice, number, component, option, replace(option.deployment, adapters=way), True)}"
            for way in ways
        ]
        texts += [
            f"not {way}: {spec.name} {'; '.join(spec.adapter_problems(way, config.shape, config.dtype, kind))}"
            for way in spec.adapters
            if way not in ways
        ]
        because = ", as the schedule says" if component.pin and component.pin.adapters else ""
        yield f"adapters of {component.name}: {'; '.join(texts)}{because}"


def _gathered(choice: PlacementChoice, number: int, component: Component, option: Option) -> Iterator[str]:
    """Yield a line for a training whose parameters could be gathered in several ways."""
    ways = option.deployment.engine_spec.gather
    if component.work == "train" and option.deployment.fsdp > 1 and len(ways) > 1:
        texts = [
            f"by {way} {_way_text(choice, number, component, option, replace(option.deployment, gather=way))}"
            for way in _first(option.deployment.gather or ways[0], ways)
        ]
        because = ", as the schedule says" if component.pin and component.pin.gather else ""
        yield f"parameters of {component.name} are gathered: {'; '.join(texts)}{because}"


def _first(chosen: str, ways: Iterable[str]) -> list[str]:
    """Return the ways, with the chosen one first."""
    return sorted(ways, key=lambda way: way != chosen)


def _way_text(
    choice: PlacementChoice,
    number: int,
    component: Component,
    option: Option,
    deployment: Deployment,
    comes: bool = False,
) -> str:
    """Describe one way: the seconds of its work, those of receiving what is trained elsewhere if it `comes`, and the
    bytes of each device."""
    problem = choice.problem
    strategy = problem.options.make_strategy(component, deployment)
    alternative = problem.options.make_options(component, strategy, option.copies)[0]
    words = f"works for {format_seconds(sum(alternative.seconds))} a step"
    for source, target in problem.sync_pairs if comes else ():
        if target == number:
            [trainer, trained], *_ = problem.split_component(source, choice.search_result.options[source])
            pools = {
                choice.plan.group_of_role(part.model_name, part.operations[0]).pool for part in (trainer, component)
            }
            brought = problem.weight_transfer_cost(source, trained, alternative, len(pools) == 1).seconds
            words += f", gets new ones in {format_seconds(brought)}"
    resident, more = strategy.needed_bytes(option.copies)
    return f"{words}, and needs {format_quantity(resident + max(more, default=0.0), 'bytes')} of each device"
