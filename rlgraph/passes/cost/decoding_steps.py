"""Counts the decoding steps that rows take part in: every engine samples a row's first token from the pass over its
prompt, and one more in each step."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heapreplace


def decoding_steps(tokens: float) -> float:
    """Return the decoding steps of a row, or of a turn of an episode, that gets so many tokens after it was read."""
    return max(0.0, tokens - 1)


def decoding_ends(answers: Sequence[float], most: int) -> list[float]:
    """Return after how many steps each row ends, where at most so many are decoded together."""
    steps = [decoding_steps(tokens) for tokens in answers]
    if len(steps) <= most:
        return steps
    ends = steps[:most]
    busy = list(ends)
    heapify(busy)
    for count in steps[most:]:
        ends.append(busy[0] + count)
        heapreplace(busy, ends[-1])
    return ends
