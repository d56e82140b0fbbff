"""Reads the batches of a run from a data source.

The position in the data is a `Cursor`, a plain value: the batch after a cursor is a function of the program's
seed, the name of the data and the cursor, so a run that is restarted from a stored cursor sees the same rows.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from rlgraph.data.base import NO_ROWS, DataSource, Row, RowId, Rows, too_few_rows_error
from rlgraph.data.mixture import Mixture, Turns
from rlgraph.data.streamed_mixture import StreamedMixture
from rlgraph.errors import Diagnostic, RunError


@dataclass(frozen=True, slots=True)
class Cursor:
    """The position at which the next batch begins."""

    epoch: int = 0
    position: int = 0
    """The number of rows of this epoch that have been read; these are not the first rows of the data where it is
    shuffled."""


@dataclass(slots=True)
class BatchReader:
    """Reads the batches of one data source in their order."""

    source: DataSource
    name: str
    """The name of the declaration. Two sources of a program are shuffled differently."""
    seed: int
    """The program's seed."""
    _orders: dict[int, list[int]] = field(default_factory=dict, init=False, repr=False)
    _turns: Turns | None = field(default=None, init=False, repr=False)
    _part_orders: dict[int, tuple[int, list[int]]] = field(default_factory=dict, init=False, repr=False)
    """For each source of a mixture the epoch that is read, and its order."""

    def read_batch(self, cursor: Cursor, count: int | None = None) -> tuple[list[Row], list[RowId], Cursor]:
        """Return the batch at `cursor` (or `count` rows), the id of each row, and the cursor of the next batch.

        An epoch that ends within a batch continues with the next one: no row is dropped, and a row comes a second time
        only after all others have come. Raises `RunError`.
        """
        wanted = count or self.source.batch or self.source.row_count
        assert wanted is not None
        if isinstance(self.source.rows, StreamedMixture):
            rows = self.source.rows.read_turns(cursor.position, wanted, self._order_of_part)
            following = replace(cursor, position=cursor.position + wanted)
            return rows, [RowId(0, place) for place in range(cursor.position, following.position)], following
        if self.source.mixture is not None:
            return self._mixed(self.source.mixture, cursor, wanted)
        if isinstance(self.source.rows, Rows):
            return self._take(self.source.rows, cursor, wanted)
        return self._read(cursor, wanted)

    def _mixed(self, mixture: Mixture, cursor: Cursor, wanted: int) -> tuple[list[Row], list[RowId], Cursor]:
        """Return rows of several sources, which take turns. The mixture has no epochs: each source has its own."""
        assert isinstance(self.source.rows, Rows) and self.source.row_numbers is not None
        self._turns = self._turns or Turns(mixture.weights)
        numbers = mixture.rows_by_source(self.source.row_numbers)
        counts, ids = self._turns.counts_before(cursor.position), []
        for place in range(cursor.position, cursor.position + wanted):
            part = self._turns.source_at(place)
            epoch, position = divmod(counts[part], len(numbers[part]))
            shuffled = self.source.shuffle and mixture.shuffled[part]
            ids.append(RowId(epoch, self._order_of_part(part, epoch, numbers[part], shuffled)[position]))
            counts[part] += 1
        rows = [self.source.rows[row_id.row] for row_id in ids]
        return rows, ids, replace(cursor, position=cursor.position + wanted)

    def _order_of_part(self, part: int, epoch: int, numbers: list[int], shuffled: bool) -> list[int]:
        """Return the numbers of the rows of one source of a mixture in the order in which this epoch reads them."""
        if self._part_orders.get(part, (-1, []))[0] != epoch:
            order = list(numbers)
            if shuffled:
                random.Random(f"{self.seed}/{self.name}/{part}/{epoch}").shuffle(order)
            self._part_orders[part] = epoch, order
        return self._part_orders[part][1]

    def _take(self, data: Rows, cursor: Cursor, wanted: int) -> tuple[list[Row], list[RowId], Cursor]:
        ids: list[RowId] = []
        while len(ids) < wanted:
            order = self._order(cursor.epoch)
            taken = order[cursor.position : cursor.position + wanted - len(ids)]
            ids += [RowId(cursor.epoch, index) for index in taken]
            cursor = replace(cursor, position=cursor.position + len(taken))
            if cursor.position >= len(order):
                cursor = Cursor(cursor.epoch + 1, 0)
        return [data[row_id.row] for row_id in ids], ids, cursor

    def _read(self, cursor: Cursor, wanted: int) -> tuple[list[Row], list[RowId], Cursor]:
        assert not isinstance(self.source.rows, Rows)
        rows: list[Row] = []
        ids: list[RowId] = []
        limit = self.source.limit
        while len(rows) < wanted:
            left = wanted - len(rows)
            most = left if limit is None else min(left, limit - cursor.position)
            more = self.source.rows.read_rows(cursor.position, most) if most > 0 else []
            ids += [RowId(cursor.epoch, cursor.position + index) for index in range(len(more))]
            rows += more
            cursor = replace(cursor, position=cursor.position + len(more))
            if len(more) < left:
                self._check_epoch(cursor.position, wanted)
                cursor = Cursor(cursor.epoch + 1, 0)
        return rows, ids, cursor

    def _check_epoch(self, count: int, wanted: int) -> None:
        """Raise an error where a stream has ended after `count` rows, too few for a batch."""
        spec = self.source.spec
        if count == 0:
            raise RunError(Diagnostic(NO_ROWS, f"`{spec.args[0]}` has no rows", spec.argument_span(0)))
        if count < wanted:
            raise RunError(too_few_rows_error(spec, count, wanted, f"`{spec.args[0]}`"))

    def _order(self, epoch: int) -> list[int]:
        """Return the indexes of the rows in the order in which this epoch reads them."""
        if epoch not in self._orders:
            assert self.source.row_numbers is not None
            order = list(self.source.row_numbers)
            if self.source.shuffle:
                # A seed that is a text is hashed alike in every process and every version of Python.
                random.Random(f"{self.seed}/{self.name}/{epoch}").shuffle(order)
            self._orders.clear()
            self._orders[epoch] = order
        return self._orders[epoch]
