"""Why ranks that share parameters out have what they gather for as long as they do: what each way takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rlgraph.clusters.units import show, shown_seconds
from rlgraph.placement.choose import Choice


def show_gathered(choice: Choice) -> Iterator[str]:
    """A line for each training whose parameters are shared out by an engine that has several ways."""
    problem = choice.problem
    for number, option in enumerate(choice.found.options):
        for component, own in problem.parts(number, option):
            ways, told = own.deployment.spec.gather, []
            if component.work != "train" or own.deployment.fsdp == 1 or len(ways) < 2:
                continue
            taken = own.deployment.gather or ways[0]
            for way in sorted(ways, key=lambda way: way != taken):
                strategy = problem.options.strategy(component, replace(own.deployment, gather=way))
                seconds = sum(problem.options.options(component, strategy, own.copies)[0].seconds)
                resident, more = strategy.needs(own.copies)
                needed = show(resident + max(more, default=0.0), "bytes")
                told.append(f"by {way} works for {shown_seconds(seconds)} a step, and needs {needed} of each device")
            said = ", as the schedule says" if component.pin and component.pin.gather else ""
            yield f"parameters of {component.name} are gathered: {'; '.join(told)}{said}"
