"""This module remembers how long the answers to a prompt were in earlier steps, which is how long later ones are
expected to be.

A prompt is known by its place in the data, whatever the pass. No number that a step computes depends on it: it decides
in what order rows begin.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlgraph.backends.rows import RowId

Known = dict[str, dict[RowId, tuple[int, int]]]
"""By table and prompt, the number of rows, and of their tokens together."""


class LengthHistory:
    """The lengths of the answers in one run."""

    def __init__(self) -> None:
        self.known: Known = {}

    def expected_lengths(self, table: str, prompts: Sequence[RowId]) -> list[float]:
        """Return for each prompt the expected tokens of an answer: the mean of those it had. A prompt that was never
        asked counts as all others do; 0 where none was."""
        by_prompt = self.known.get(table, {})
        rows, tokens = (sum(totals[part] for totals in by_prompt.values()) for part in (0, 1))
        usual = rows, tokens
        counts = (by_prompt.get(_prompt(row), usual) for row in prompts)
        return [tokens / rows if rows else 0.0 for rows, tokens in counts]

    def add_lengths(self, table: str, rows: Sequence[RowId], lengths: Sequence[int], samples: bool) -> None:
        """Add rows with so many tokens. samples: whether the last part of a row's identity is the number of the
        sample."""
        counts = self.known.setdefault(table, {})
        for row, length in zip(rows, lengths, strict=True):
            prompt = _prompt(row[:-1] if samples else row)
            earlier = counts.get(prompt, (0, 0))
            counts[prompt] = earlier[0] + 1, earlier[1] + int(length)

    def copy_lengths(self) -> Known:
        """Return a copy of all lengths as they are now."""
        return {table: dict(counts) for table, counts in self.known.items()}


def _prompt(row: RowId) -> RowId:
    """Return the identity of a row without the pass over the data."""
    data, _, *place = row
    return (data, *place)
