"""The rows of several sources in turns, where one of them or more are streams.

Which row comes next follows from how many have been read, as with lists of rows. Nobody knows how many rows a stream
has before it ends: then it begins again, as a list does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from rlgraph.data.base import NO_ROWS, DataSource, Row, Rows, Stream
from rlgraph.data.mixture import Turns
from rlgraph.errors import Diagnostic, RunError, Span

OTHER_ROWS = "E0718"
_ROWS_AT_A_TIME = 1024

PartOrder = Callable[[int, int, list[int], bool], list[int]]
"""Takes the number of a source, its epoch, the numbers of its rows, and whether they are shuffled; returns the numbers
in the order in which this epoch reads them."""


@dataclass(slots=True)
class RepeatedStream:
    """A stream that begins again where it ends."""

    rows: Stream = field(repr=False)
    limit: int | None
    """The most rows of a pass."""
    name: str
    """What messages call it."""
    span: Span
    _length: int | None = field(default=None, init=False)
    """The rows of a pass, once one has ended."""
    _reached: int = field(default=0, init=False)
    """Rows that are known to be there."""

    def read_rows(self, start: int, count: int) -> list[Row]:
        """Return `count` rows; `start` counts those of all passes before. Raises RunError."""
        rows: list[Row] = []
        while len(rows) < count:
            place, most = start + len(rows), count - len(rows)
            end = self.limit if self._length is None else self._length
            if self._length is not None:
                place %= self._length
            most = most if end is None else min(most, end - place)
            more = self.rows.read_rows(place, most) if most > 0 else []
            rows += more
            self._reached = max(self._reached, place + len(more) if more else 0)
            if self._length is None and len(rows) < count:
                self._length = self._count_rows(place + len(more))
            elif len(more) < most:
                message = f"{self.name} ended after {place + len(more)} rows, and after {self._length} the first time"
                hint = "it has to have the same rows each time, as runs that are resumed read it from its beginning"
                raise RunError(Diagnostic(OTHER_ROWS, message, self.span, hint))
        return rows

    def _count_rows(self, place: int) -> int:
        """Return the rows of a pass; none was there at `place`. A run that is resumed has to read them all to know."""
        known, more = (place, 0) if place == self._reached else (0, _ROWS_AT_A_TIME)
        while more == _ROWS_AT_A_TIME:
            most = _ROWS_AT_A_TIME if self.limit is None else min(_ROWS_AT_A_TIME, self.limit - known)
            more = len(self.rows.read_rows(known, most)) if most > 0 else 0
            known += more
        if not known:
            raise RunError(Diagnostic(NO_ROWS, f"{self.name} has no rows", self.span))
        return known


@dataclass(slots=True)
class StreamedMixture:
    """The rows of sources that take turns."""

    parts: Sequence[DataSource]
    turns: Turns
    shuffle: bool
    """Whether rows of sources that have lists of them are shuffled."""
    _streams: dict[int, RepeatedStream] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        for number, part in enumerate(self.parts):
            if not isinstance(part.rows, Rows):
                name = f"`{part.spec.args[0]}`" if part.spec.args else f"`{part.spec.kind}`"
                self._streams[number] = RepeatedStream(part.rows, part.limit, name, part.spec.span)

    def read_rows(self, start: int, count: int) -> list[Row]:
        """Return `count` rows from `start` on, each source's in the order of the data."""
        return self.read_turns(start, count, lambda part, epoch, numbers, shuffled: numbers)

    def read_turns(self, start: int, count: int, order: PartOrder) -> list[Row]:
        """Return `count` rows from `start` on. Raises RunError."""
        counts = self.turns.counts_before(start)
        asked = [self.turns.source_at(place) for place in range(start, start + count)]
        taken = [
            iter(self._streams[part].read_rows(counts[part], asked.count(part)))
            if part in self._streams
            else self._listed(part, counts[part], order)
            for part in range(len(self.parts))
        ]
        return [next(taken[part]) for part in asked]

    def _listed(self, part: int, start: int, order: PartOrder) -> Iterator[Row]:
        """Yield rows of a source that has a list of them, epoch after epoch."""
        source = self.parts[part]
        assert isinstance(source.rows, Rows) and source.row_numbers is not None
        numbers, place = [*source.row_numbers], start
        while True:
            epoch, position = divmod(place, len(numbers))
            yield source.rows[order(part, epoch, numbers, self.shuffle and source.shuffle)[position]]
            place += 1
