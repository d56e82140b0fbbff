"""The work of a model, from its shape alone: FLOPs, and the bytes that it keeps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tokens:
    """Rows that a model reads together, by what its work depends on. Sums, so that those of parts add up."""

    rows: float
    tokens: float
    """Of all rows together, prompts included, padding not."""
    squares: float
    """Of the rows' lengths, added up."""
    scored: float
    """Tokens for which the head is computed."""
    longest: float = 0.0
    """Tokens of the longest row."""

    def share(self, parts: float) -> Tokens:
        """One of so many equal parts."""
        return Tokens(self.rows / parts, self.tokens / parts, self.squares / parts, self.scored / parts, self.longest)
