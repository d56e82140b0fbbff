"""How long the answers to a prompt were in the steps before: what later ones are expected to be.

A prompt is known by its place in the data, whatever the pass. Nothing that a step computes depends on it: it says in
what order rows begin.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlgraph.backends.rows import RowId

Known = dict[str, dict[RowId, tuple[int, int]]]
"""By table and prompt how many rows there were, and how many tokens they had together."""


class History:
    """Of one run."""

    def __init__(self) -> None:
        self.known: Known = {}

    def expected(self, table: str, prompts: Sequence[RowId]) -> list[float]:
        """Tokens of an answer to each of these: the mean of those that there were. One that was never asked is as all
        others; 0 where none was."""
        known = self.known.get(table, {})
        rows, tokens = (sum(each[at] for each in known.values()) for at in (0, 1))
        usual = rows, tokens
        found = (known.get(_prompt(row), usual) for row in prompts)
        return [tokens / rows if rows else 0.0 for rows, tokens in found]

    def learn(self, table: str, rows: Sequence[RowId], lengths: Sequence[int], samples: bool) -> None:
        """Rows have had so many tokens. samples: the last of what a row is called is which of its prompt's it is."""
        known = self.known.setdefault(table, {})
        for row, length in zip(rows, lengths, strict=True):
            prompt = _prompt(row[:-1] if samples else row)
            before = known.get(prompt, (0, 0))
            known[prompt] = before[0] + 1, before[1] + int(length)

    def kept(self) -> Known:
        """As it is now."""
        return {table: dict(known) for table, known in self.known.items()}


def _prompt(row: RowId) -> RowId:
    """Without the pass over the data."""
    data, _, *place = row
    return (data, *place)
