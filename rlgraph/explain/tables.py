"""Tables as people read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rlgraph.errors import counted
from rlgraph.ir.plan import Pool


def table(sides: str, rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A line for each row. sides: of each column `<` where its texts begin in one place, `>` where they end in one."""
    cells = list(rows)
    widths = [max(len(row[column]) for row in cells) for column in range(len(sides))] if cells else []
    for row in cells:
        yield "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)).rstrip()


def sized(pool: Pool) -> str:
    """`8 devices`, `64 cpus`."""
    return counted(pool.cpus, "cpu") if pool.cpus else counted(pool.devices, "device")
