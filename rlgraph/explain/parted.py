"""The lines about models whose stages have several parts of the layers."""

from __future__ import annotations

from collections.abc import Iterator

from rlgraph.catalog.clusters.units import format_seconds
from rlgraph.passes.placement.choose import PlacementChoice


def show_chunked(choice: PlacementChoice) -> Iterator[str]:
    """Yield a line for each such model, with what it saves."""
    for component, option in choice.problem.all_components(choice.found.options):
        deployment = option.deployment
        if deployment.chunks > 1 and deployment.pp > 1:
            chunked = [task.seconds(option.copies) for task in option.strategy.tasks]
            unchunked = [task.chunked_seconds(option.copies, 1) for task in option.strategy.tasks]
            several, single = (
                sum(seconds * often for seconds, often in zip(tasks, option.often, strict=True))
                for tasks in (chunked, unchunked)
            )
            where = f"{deployment.chunks} parts of the layers on each of {deployment.pp} stages"
            gain = f"{format_seconds(several)} in place of {format_seconds(single)} with one"
            yield f"{component.name} has {where}: {gain}"
