"""This module simulates when rows end that other replicas of a model go on with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rlgraph.backends.sim.batching import Ends, ReplicaRows
from rlgraph.passes.cost.sampling import ContinuousBatch, SamplingPace, SamplingResult

Sampling = Callable[[int, Sequence[float], Sequence[float]], SamplingResult]
"""What a replica takes to sample rows: tokens of their prompts and of their answers."""


def ends_after_move(
    copies: Sequence[ReplicaRows], ends: Ends, now: float, to: Mapping[tuple[int, int], int], sampling: Sampling
) -> list[list[float]]:
    """Return the seconds after which each row of each replica has ended, where some move to other replicas at a moment,
    and their tokens so far are read again there. copies: their rows; ends: when these would have ended; to: by
    replica and row the replica that it goes to."""
    followed = [_followed(rows) for rows in copies]
    left = {copy: _left(followed[copy], copies[copy], now) for copy in {copy for copy, _ in to}}
    new_ends = [list(row_ends) for row_ends in ends]
    for receiver in sorted(set(to.values())):
        prompts, answers, places = list[float](), list[float](), list[tuple[int, int]]()
        for (copy, row), target in to.items():
            if target == receiver:
                places.append((copy, row))
                prompts.append(copies[copy].prompts[row] + copies[copy].answers[row] - left[copy][row])
                answers.append(left[copy][row])
        replica, pace = followed[receiver], sampling(receiver, prompts, answers).pace
        assert pace is not None
        number = replica.add_call(now, pace, answers, more=True)
        after = replica.row_end_times()
        # Rows that have ended stay so, and none ends sooner because of others.
        new_ends[receiver] = [
            old if old <= now else max(old, new) for old, new in zip(new_ends[receiver], after[0], strict=True)
        ]
        for (copy, row), end in zip(places, after[number], strict=True):
            new_ends[copy][row] = end
    return new_ends


def _followed(rows: ReplicaRows) -> ContinuousBatch:
    """Return a replica that is followed from the beginning of its rows on."""
    copy = ContinuousBatch()
    copy.add_call(0.0, rows.result_alone.pace or SamplingPace(0.0, 0.0, 1, lambda count: 0.0), rows.answers)
    return copy


def _left(copy: ContinuousBatch, rows: ReplicaRows, now: float) -> list[float]:
    """Return for each row the tokens that are still to come, at least one."""
    going = {row: left for _, row, left in copy.unfinished_rows(now)}
    # Rows that have not begun are the last ones.
    last = max(going, default=-1)
    return [max(1.0, going.get(row, answer if row > last else 1.0)) for row, answer in enumerate(rows.answers)]
