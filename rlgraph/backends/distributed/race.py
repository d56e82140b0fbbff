"""Of the rows that an order asks those whose answers end first: beyond how many tokens nobody need go on.

A row of the data has ended when the longest of its answers has. Once as many have as are wanted, the longest of these
is as long as any that is taken: an answer that has as many tokens, and has not ended, is of a row that is not.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence


class Race:
    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self._ends: list[int] = []
        """The wanted ones of those that have ended: tokens of the longest answer of each, ascending."""

    @property
    def limit(self) -> int | None:
        """An answer that has not ended with so many tokens is not needed; None: any may be."""
        return self._ends[-1] if len(self._ends) == self.wanted else None

    def ended(self, longest: Sequence[int]) -> bool:
        """Rows have, with so many tokens in their longest answers; 0: it was given up. Whether the limit is another
        one now."""
        before = self.limit
        for tokens in longest:
            if tokens:
                insort(self._ends, tokens)
        del self._ends[self.wanted :]
        return self.limit != before
