"""Lets tables stream without a line in the schedule, where the simulator predicts a gain."""

from __future__ import annotations

import sys
from dataclasses import replace

from rlgraph.errors import ProgramError
from rlgraph.ir.schedule import StreamLine
from rlgraph.passes.compilation.finalists import (
    STREAMED,
    adapt_to_first_query,
    simulate_choice,
    simulated_objective_value,
)
from rlgraph.passes.compilation.overlap_simulation import ChoiceInterrupted, SimulationCache, steady_step_count
from rlgraph.passes.compilation.stream_blocks import STEPS, block_sizes_to_try
from rlgraph.passes.compilation.streamable import question_with_streams
from rlgraph.passes.placement.choose import PlacementChoice, choose_before_deadline
from rlgraph.passes.placement.known_answer import answer_with_less_room
from rlgraph.passes.placement.next_best_plans import ideal_streaming_objective_value
from rlgraph.passes.placement.search.progress import OutOfTime

PAYS = 0.01
"""The share of a step, or of its price, that streaming must save if the schedule does not ask for it."""


def with_best_streamed_tables(choice: PlacementChoice, ends: float) -> PlacementChoice:
    """Return a choice by whole batches, or, if it is better by `PAYS`, the best one among plans with memory for
    streaming rows, with the best blocks. ends: the monotonic time at which to stop searching. After Ctrl-C, which is
    printed, the given choice is returned."""
    question = question_with_streams(choice)
    if question is None:
        return choice
    try:
        # What the simulator has chosen where steps overlap need not be the best by whole batches.
        known = None if choice.problem.staleness_steps else answer_with_less_room(choice.awake or choice, question)
        other = known or choose_before_deadline(ends, question)
        if other is None or _hopeless(choice, other):
            return choice
        # Steps that overlap end in bursts, of which few steps tell little.
        timed = SimulationCache(steady_step_count(choice) if choice.problem.staleness_steps else STEPS)
        if not _promising(choice, other, timed):
            return choice
        streaming = simulate_choice(other, timed=timed)
    except (OutOfTime, ChoiceInterrupted, ProgramError):
        # It cannot be simulated (`simulate` says why), or there is no time for it.
        return choice
    # The best blocks are no worse than those of `_promising`, but a longer simulation may tell otherwise.
    least, value = simulated_objective_value(choice), simulated_objective_value(streaming)
    if value is None or least is not None and value > (1 - PAYS) * least:
        return choice
    return adapt_to_first_query(streaming, choice)


def _hopeless(choice: PlacementChoice, other: PlacementChoice) -> bool:
    """Return whether the plan `other` is too slow by whole batches to be better than a choice by streaming, as where
    the choice gains by offloading models; false where steps overlap, when it is unknown."""
    if choice.problem.staleness_steps:
        return False
    return (1 - STREAMED) * ideal_streaming_objective_value(other) >= (1 - PAYS) * choice.search_result.value


def _promising(choice: PlacementChoice, other: PlacementChoice, timed: SimulationCache) -> bool:
    """Return whether the plan `other` with blocks of a medium size is better than a choice; where steps overlap, or of
    the smallest size: what comes in pieces then may be late for the next step. timed: that of `other`. Raises
    Interrupted after Ctrl-C."""
    try:
        if choice.simulated_step_s is None:
            choice = replace(choice, simulated_step_s=SimulationCache(timed.steps).simulate_once(choice))
        least = simulated_objective_value(choice)
        for place in (1, 0) if choice.problem.staleness_steps else (1,):
            streamed = _with_blocks(other, place)
            value = simulated_objective_value(replace(streamed, simulated_step_s=timed.simulate_once(streamed)))
            if least is not None and value is not None and value <= (1 - PAYS) * least:
                return True
    except KeyboardInterrupt:
        print("interrupted: no table streams that the schedule does not name", file=sys.stderr)
        raise ChoiceInterrupted(choice) from None
    return False


def _with_blocks(choice: PlacementChoice, place: int) -> PlacementChoice:
    """Return a choice with blocks of the size at this place among those that are tried, the smallest first."""

    def block_size(line: StreamLine) -> int:
        return line.block or [*block_sizes_to_try(choice, line)][: place + 1][-1]

    blocks = tuple((line.table, block_size(line)) for line in choice.question.schedule.streams)
    return replace(choice, plan=replace(choice.plan, blocks=blocks))
