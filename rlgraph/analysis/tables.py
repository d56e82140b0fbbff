"""Tables, times and counts as people read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence


def table(sides: str, rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A line for each row. sides: of each column `<` where its texts begin in one place, `>` where they end in one."""
    cells = list(rows)
    widths = [max(len(row[column]) for row in cells) for column in range(len(sides))] if cells else []
    for row in cells:
        yield "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)).rstrip()


def shown_seconds(seconds: float) -> str:
    """Three digits that count: `18.7 s`, `430 ms`."""
    if seconds >= 100:
        return f"{seconds:,.0f} s"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms" if seconds else "0 s"


def counted(number: int, word: str) -> str:
    """`1 device`, `1,024 devices`."""
    return f"{number:,} {word}{'s' * (number != 1)}"
