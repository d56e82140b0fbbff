"""The lines about models whose stages have several parts of the layers."""

from __future__ import annotations

from collections.abc import Iterator

from rlgraph.catalog.clusters.units import format_seconds
from rlgraph.passes.placement.choose import PlacementChoice


def chunked_stage_lines(choice: PlacementChoice) -> Iterator[str]:
    """Yield a line for each such model, with what it saves."""
    for component, option in choice.problem.components_with_options(choice.search_result.options):
        deployment = option.deployment
        if deployment.chunks_per_stage > 1 and deployment.pp > 1:
            chunked = [task.seconds(option.copies) for task in option.strategy.tasks]
            unchunked = [task.seconds_with_chunks(option.copies, 1) for task in option.strategy.tasks]
            several, single = (
                sum(seconds * often for seconds, often in zip(tasks, option.often, strict=True))
                for tasks in (chunked, unchunked)
            )
            where = f"{deployment.chunks_per_stage} parts of the layers on each of {deployment.pp} stages"
            gain = f"{format_seconds(several)} in place of {format_seconds(single)} with one"
            yield f"{component.name} has {where}: {gain}"
