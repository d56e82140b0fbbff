"""Plans on fewer nodes than the best one by the timetable, which the simulator may prefer where work overlaps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rlgraph.passes.compilation.finalists import (
    adapt_to_first_query,
    simulate_choice,
    simulated_objective_value,
    with_simulated_seconds,
)
from rlgraph.passes.compilation.overlap_simulation import ChoiceInterrupted
from rlgraph.passes.placement.choose import PlacementChoice, choose_before_deadline
from rlgraph.passes.placement.search.progress import OutOfTime

SLOWER = 0.1
"""The share by which the best plan on fewer nodes may be slower by the timetable to be looked at."""

PARTS = (16, 4)
"""Where steps overlap, the shares of the nodes on which plans are looked for, until one is no slower than that: on many
nodes a plan has more replicas than keep up with each other, and to try every number takes seconds."""

BEHIND = 0.15
"""The share by which such a plan may be slower by the timetable to be simulated."""

FEW_NODES = 16
"""The nodes from which on that is done."""

SIZES = 4
"""How many numbers of nodes are simulated: the fewest on which a plan is no slower than that, and the next ones."""


def no_slower_than_on_fewer_nodes(choice: PlacementChoice, ends: float) -> PlacementChoice:
    """Return a choice with its simulated seconds, or the best plan on fewer nodes, if the simulator says that it is
    better: the timetable, by which plans are searched for, lays out in sequence what overlaps. ends: the monotonic time
    at which to stop searching."""
    best = choice = with_simulated_seconds(choice)
    least = simulated_objective_value(choice)
    if least is None or len(choice.question.cluster.islands) > 1:
        return best
    try:
        for other in [*_on_fewer_nodes(choice, ends)][-SIZES:]:
            tried = simulate_choice(other, least)
            value = simulated_objective_value(tried)
            if value is not None and value < least:
                best, least = adapt_to_first_query(tried, choice), value
    except (OutOfTime, ChoiceInterrupted):
        pass
    return best


def fewer_nodes_in_flight(choice: PlacementChoice, ends: float, may_stream: bool) -> PlacementChoice:
    """Return a choice of a plan whose steps overlap, or the best plan on a share of the nodes, or on a share of these,
    if the simulator says that it is better. ends: the monotonic time at which to stop searching. may_stream: whether
    tables may stream that no line names."""
    best, least, others = choice, simulated_objective_value(choice), choice.question.cluster.islands[1:]
    if least is None or others:
        return choice
    try:
        for other in _on_shares_of_nodes(choice, ends):
            tried = simulate_choice(other, least)
            # To look at streams takes seconds: only where they have paid on all nodes.
            if may_stream and choice.plan.blocks:
                from rlgraph.passes.compilation.streaming import with_best_streamed_tables

                tried = with_best_streamed_tables(tried, ends)
            value = simulated_objective_value(tried)
            if value is not None and value < least:
                best, least = adapt_to_first_query(tried, choice), value
    except (OutOfTime, ChoiceInterrupted):
        pass
    return best


def _on_shares_of_nodes(choice: PlacementChoice, ends: float) -> Iterator[PlacementChoice]:
    """Yield the best plan on a share of the nodes, then that on a share of these, and so on, until all are slower than
    the last one by `BEHIND`: so a cluster looks at all that a smaller one looks at. Raises OutOfTime."""
    nodes, last = choice.question.cluster.islands[0].nodes, choice.search_result.value
    while nodes >= FEW_NODES:
        for parts in PARTS:
            other = choose_before_deadline(ends, replace(choice.question, most_nodes=nodes // parts))
            if other is not None and other.search_result.value <= (1 + BEHIND) * last:
                yield other
                nodes, last = nodes // parts, other.search_result.value
                break
        else:
            return


def _on_fewer_nodes(choice: PlacementChoice, ends: float) -> Iterator[PlacementChoice]:
    """Yield the best plans on fewer and fewer nodes than a choice uses, until one is slower by `SLOWER`. Raises
    OutOfTime."""
    result, island = choice.search_result, choice.question.cluster.islands[0]
    # Of a large cluster a plan may use a part, whatever its pools have.
    used = sum(max(result.options[number].device_span for number in block.components) for block in result.blocks)
    # Powers of two, so that larger and smaller clusters look at the same plans.
    for halved in reversed(range((-(-used // island.per_node) - 1).bit_length())):
        other = choose_before_deadline(ends, replace(choice.question, most_nodes=1 << halved))
        if other is None or other.search_result.value > (1 + SLOWER) * result.value:
            return
        yield other
