"""Rows of several files, one file after the other."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from rlgraph.columns import Column, ColumnInspector
from rlgraph.data.base import Row, Rows, ScannableRows


@dataclass(frozen=True, slots=True)
class ConcatenatedRows:
    """The rows of several sequences, in their order."""

    parts: Sequence[Rows]
    ends: Sequence[int] = field(repr=False)
    """For each part how many rows it and those before have."""

    def __len__(self) -> int:
        return self.ends[-1]

    def __getitem__(self, index: int) -> Row:
        part = bisect_right(self.ends, index)
        return self.parts[part][index - (self.ends[part - 1] if part else 0)]

    def iterate_rows(self) -> Iterator[Row]:
        """Yield all rows, each part as fast as it can."""
        for rows in self.parts:
            yield from rows.iterate_rows() if isinstance(rows, ScannableRows) else (rows[at] for at in range(len(rows)))


def concatenate_rows(parts: Sequence[Rows]) -> Rows:
    """Return the rows of all parts; at least one is needed."""
    return parts[0] if len(parts) == 1 else ConcatenatedRows(parts, [*accumulate(map(len, parts))])


@dataclass(slots=True)
class FileInspector:
    """Collects what columns hold over several files; messages name the file and the line, or the row."""

    template: str = "{1}:{0}"
    """What messages call a row, by its number and the name of its file."""
    _looked: ColumnInspector = field(init=False)
    _files: list[tuple[int, str]] = field(default_factory=list)
    """For each file the number that its row 0 would have, and its name."""
    _last: int = 0

    def __post_init__(self) -> None:
        self._looked = ColumnInspector(self._name)

    def begin_file(self, name: str) -> None:
        """Begin with the next file."""
        self._last += 1
        self._files.append((self._last, name))

    def add_row(self, row: Mapping[str, Any], number: int) -> None:
        """Take in the row with this number, or on this line, of the file."""
        self._last = self._files[-1][0] + number
        self._looked.add_row(row, self._last)

    def columns(self) -> dict[str, Column]:
        """Return the columns by name."""
        return self._looked.columns()

    def _name(self, number: int) -> str:
        first, name = self._files[bisect_right(self._files, number, key=lambda file: file[0]) - 1]
        return self.template.format(number - first, name)
