"""This module limits a request to those of its rows whose answers end first: beyond how many tokens none need go on.

A row of the data has ended when the longest of its answers has. Once as many have as are wanted, the longest of these
is as long as any that is taken: an answer that has as many tokens, and has not ended, is of a row that is not.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence


class LengthLimit:
    """The rows of a request of which a number is wanted, those that end first."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self._ends: list[int] = []
        """Of those that have ended the wanted ones: tokens of the longest answer of each, ascending."""

    @property
    def token_limit(self) -> int | None:
        """How many tokens an answer can have without an end before it is not needed; None: any may be needed."""
        return self._ends[-1] if len(self._ends) == self.wanted else None

    def note_ended_rows(self, longest: Sequence[int]) -> bool:
        """Note rows that have ended, with so many tokens in their longest answers; 0: the row was given up. Returns
        whether the limit has changed."""
        before = self.token_limit
        for tokens in longest:
            if tokens:
                insort(self._ends, tokens)
        del self._ends[self.wanted :]
        return self.token_limit != before
