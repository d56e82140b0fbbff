"""How many lines each algorithm that ships has: those that are neither blank nor only a comment.

    python benchmarks/lines.py
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

ALGORITHMS = Path(__file__).parent.parent / "rlgraph" / "algorithms"


class Count(NamedTuple):
    path: Path
    title: str
    """The comment that it begins with."""
    lines: int


def counts(paths: Iterable[Path] | None = None) -> list[Count]:
    """One for each program, by name."""
    return [_count(path) for path in sorted(ALGORITHMS.glob("*.rlf") if paths is None else paths)]


def _count(path: Path) -> Count:
    lines = path.read_text("utf-8").splitlines()
    title = " ".join(line.lstrip("# ") for line in takewhile(lambda line: line.startswith("#"), lines))
    said = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return Count(path, title, len(said))


if __name__ == "__main__":
    for found in counts(map(Path, sys.argv[1:]) if sys.argv[1:] else None):
        print(f"{found.lines:4}  {found.path.stem:14}  {found.title}")
