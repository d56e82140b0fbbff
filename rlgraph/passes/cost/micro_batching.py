"""Cuts rows into the micro-batches in which they are fed, at most as large as memory has to have room for."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

from rlgraph.backends.enginespec.spec import PrefixSharing
from rlgraph.passes.cost.activations import QUERIES
from rlgraph.passes.cost.batch import Batch
from rlgraph.passes.cost.work import Tokens
from rlgraph.passes.pipelines.published_schedules import micro_batches_in_flight


class MicroBatching:
    """The micro-batches in which rows are fed, whatever model reads them: many splits feed the same."""

    def __init__(
        self, batches: tuple[Batch, ...], budget: int, side: int, ranks: int, shares: PrefixSharing | None = None
    ) -> None:
        """budget: padded tokens of a micro-batch. side: in-flight micro-batches. ranks: the ranks that shard the rows
        of a replica. shares: how rows with a common prefix are read together."""
        self.batches, self.budget, self.side, self.ranks, self.shares = batches, budget, side, ranks, shares
        self.widths = [batch.mean_row_tokens.longest for batch in batches] or [1.0]
        self.uneven = any(
            batch.mean_row_tokens.longest > batch.mean_row_tokens.tokens * (1 + 1e-9) for batch in batches
        )
        """Whether rows of a table are of different lengths."""
        self._loads: dict[int, tuple[float, float, float]] = {}
        self._under_way: dict[tuple[int, int], tuple[float, float]] = {}
        self._micros: dict[tuple[float, float], Tokens] = {}

    def largest_micro_batch_of_replica(self, copies: int) -> tuple[float, float, float]:
        """Return the rows of the largest micro-batch of one of so many replicas, how many micro-batches this has, and
        how many prefixes its rows have. As in the engines, micro-batches are of about the same size, and here of the
        longest rows; where rows are uneven, one may fill its budget."""
        if copies not in self._loads:
            available, longest = self._available(copies), sum(self.widths)
            rows, blocks = _block(available, self.budget, longest, self.side)
            # A replica with one row less may have one micro-batch less, of more rows.
            least = max((batch.rows_of_emptiest_replica(copies) for batch in self.batches), default=1.0) // self.ranks
            if 0 < least < available:
                rows = max(rows, _block(least, self.budget, longest, self.side)[0])
            if self.uneven:
                # The real lengths of rows decide how they are cut: a micro-batch may fill its budget.
                rows = max(rows, min(self.budget / longest, math.ceil(available / self.side)))
            # Of the micro-batches that are done only the gradients of the last one are left.
            self._loads[copies] = rows, min(blocks, self.side + 2.0), self._prefixes(rows, available, copies)
        return self._loads[copies]

    def _available(self, copies: int) -> float:
        """Return the rows of the rank that has most of them."""
        available = max((batch.rows_of_fullest_replica(copies) for batch in self.batches), default=1.0) or 1.0
        return math.ceil(available / self.ranks) if self.ranks > 1 else available

    def in_flight_micro_batches(self, copies: int, chunks: int) -> tuple[float, float]:
        """Return the in-flight micro-batches of the first and of the last of `side` stages in interleaved lists. There
        are most where groups are largest. Uneven rows may make fewer micro-batches than the longest would, so that for
        these the count with the fewest possible groups is taken."""
        if (copies, chunks) not in self._under_way:
            # A replica with one row less may also have fewer groups.
            least = max((batch.rows_of_emptiest_replica(copies) for batch in self.batches), default=1.0) // self.ranks
            counts = [self._most_at_a_time(rows) for rows in {self._available(copies), least} if rows > 0]
            first, last = (
                max(micro_batches_in_flight(self.side, count, chunks, stage) for count in counts)
                for stage in (0, self.side - 1)
            )
            self._under_way[copies, chunks] = first, last
        return self._under_way[copies, chunks]

    def _most_at_a_time(self, rows: float) -> int:
        """Return how many micro-batches so many rows may make, at the count for which most of them are in flight."""
        stages, count = self.side, math.ceil(_block(rows, self.budget, sum(self.widths), self.side)[1])
        if not self.uneven:
            return count
        few = int(rows * sum(batch.mean_row_tokens.tokens for batch in self.batches) / self.budget)
        return min(count, (max(1, few // stages) + 1) * stages - 1)

    def _prefixes(self, rows: float, available: float, copies: int) -> float:
        """Return how many prefixes `rows` consecutive rows of a replica have: as many as rows, where each is read by
        itself. Micro-batches are aligned with prompts if they and the replicas have all rows of some prompts. Of uneven
        rows it is not known which ones a micro-batch has."""
        if self.shares is None or self.uneven or len(self.batches) != 1:
            return rows
        batch, fed = self.batches[0], max(1.0, self.widths[0] - 1)
        group, prompt = batch.together, batch.prompt.longest
        aligned = rows == batch.rows or (
            rows % group == 0 and available % group == 0 and available * copies == batch.rows
        )
        prefixes = rows / group if aligned else math.floor((rows - 2) / group) + 2
        prefixes = min(rows, math.ceil(prefixes))
        worth = (
            rows - prefixes
        ) * prompt >= self.shares.min_saved_share * rows * fed and fed - prompt <= self.shares.max_suffix_tokens
        return prefixes if worth else rows

    def micro_batch_tokens(self, rows: float, prefixes: float) -> Tokens:
        """Return the tokens of a micro-batch with so many rows of each table, each as it is fed: without its last
        token."""
        if (rows, prefixes) not in self._micros:
            fed = [max(1.0, width - 1) for width in self.widths]
            scored = sum(batch.response.longest for batch in self.batches) or 1.0
            tokens_read = Tokens(
                math.ceil(rows * len(fed)),
                math.ceil(rows * sum(fed)),
                math.ceil(rows * sum(width * width for width in fed)),
                math.ceil(rows * scored),
                max(fed),
            )
            if prefixes < rows:
                prompt = self.batches[0].prompt.longest
                suffix = fed[0] - prompt
                tokens_read = replace(
                    tokens_read,
                    tokens=math.ceil(prefixes * prompt + rows * suffix),
                    copied=math.ceil(rows * prompt),
                    masks=min(suffix, QUERIES) * fed[0],
                )
            self._micros[rows, prefixes] = tokens_read
        return self._micros[rows, prefixes]


@lru_cache(1024)
def micro_batching(
    batches: tuple[Batch, ...], budget: int, side: int, ranks: int, shares: PrefixSharing | None = None
) -> MicroBatching:
    """Return the micro-batches of these rows, which many splits have in common."""
    return MicroBatching(batches, budget, side, ranks, shares)


def _block(available: float, budget: float, width: float, side: int) -> tuple[float, float]:
    """Return the rows of a micro-batch, and how many micro-batches there are, `side` of them at a time."""
    fit = max(1.0, budget // max(1.0, width))
    blocks = min(math.ceil(math.ceil(available / fit) / side) * side, max(1.0, available))
    return math.ceil(available / blocks), blocks
