"""Plans on fewer nodes than the best one by the timetable, which the simulator may prefer where work overlaps."""

from __future__ import annotations

from dataclasses import replace

from rlgraph.passes.compilation.finalists import adapt_to_first_query, simulate_choice, simulated_objective_value
from rlgraph.passes.compilation.overlap_simulation import ChoiceInterrupted, simulate_step_seconds
from rlgraph.passes.placement.choose import PlacementChoice, choose_before_deadline
from rlgraph.passes.placement.search.progress import OutOfTime

OVERLAP = 0.35
"""The share by which a step may be shorter than by the timetable, where the work of one pool overlaps."""

HALVINGS = 2
"""How many smaller numbers of nodes are tried."""


def no_slower_than_on_fewer_nodes(choice: PlacementChoice, ends: float) -> PlacementChoice:
    """Return a choice with its simulated seconds, or the best plan on fewer nodes, if the simulator says that it is
    better: the timetable, by which plans are searched for, lays out in sequence what overlaps. ends: the monotonic time
    at which to stop searching."""
    if choice.simulated_step_s is None:
        choice = replace(choice, simulated_step_s=simulate_step_seconds(choice))
    best, least = choice, simulated_objective_value(choice)
    result, island = choice.search_result, choice.question.cluster.islands[0]
    # Of a large cluster a plan may use a part, whatever its pools have.
    used = sum(max(result.options[number].device_span for number in block.components) for block in result.blocks)
    nodes = -(-used // island.per_node)
    for _ in range(HALVINGS):
        if nodes == 1 or least is None or len(choice.question.cluster.islands) > 1:
            break
        # A power of two, so that larger and smaller clusters look at the same plans.
        nodes = 1 << (nodes - 1).bit_length() - 1
        try:
            other = choose_before_deadline(ends, replace(choice.question, most_nodes=nodes))
            if other is None or (1 - OVERLAP) * other.search_result.value >= least:
                break
            tried = simulate_choice(other, least)
        except (OutOfTime, ChoiceInterrupted):
            break
        value = simulated_objective_value(tried)
        if value is not None and value < least:
            best, least = adapt_to_first_query(tried, choice), value
    return best
