"""Lays out tables for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rlgraph.errors import count_phrase
from rlgraph.ir.plan import HOST, Pool


def align_columns(sides: str, rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a line for each row. sides: `<` for each column whose texts are aligned left, `>` for each that is aligned
    right."""
    cells = list(rows)
    widths = [max(len(row[column]) for row in cells) for column in range(len(sides))] if cells else []
    for row in cells:
        yield "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)).rstrip()


def process_count_text(count: int) -> str:
    """Return a number of processes in words."""
    return f"{count:,} process{'es' * (count != 1)}"


def pool_size_text(pool: Pool) -> str:
    """Return the size of a pool in words: `8 devices`, `64 cpus`; of the host `1 process`."""
    if pool.name == HOST:
        return process_count_text(pool.cpus or 1)
    return count_phrase(pool.cpus, "cpu") if pool.cpus else count_phrase(pool.devices, "device")


def percent_text(part: float, total: float) -> str:
    """Return a share in percent; of nothing it is 0%."""
    return f"{part / total:.0%}" if total else "0%"
