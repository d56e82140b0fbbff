"""Describes the rows that a model works on, and the micro-batches that they make."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from rlgraph.backends.enginespec.spec import PrefixSharing
from rlgraph.passes.cost.decoding_steps import decoding_steps
from rlgraph.passes.cost.episodes import Episodes
from rlgraph.passes.cost.lengths import Lengths
from rlgraph.passes.cost.work import Tokens
from rlgraph.passes.memo import get_or_compute

ROW_BYTES = 20
"""The bytes that travel for each token of a row: the token itself, log-probabilities, and what is computed for it."""
POINTS = 24
"""The number of lengths that represent all rows which are decoded together."""


@dataclass(frozen=True)
class Batch:
    """The rows of one table that a node works on."""

    rows: float
    prompt: Lengths
    response: Lengths
    """Lengths of what carries loss: a sampled or an encoded answer."""
    samples: int = 1
    """Rows for each prompt, where the node samples them."""
    episodes: Episodes | None = None
    """How an environment answers the rows, where the node samples them; None: none does."""
    together: float = 1.0
    """How many adjacent rows begin with the same prompt, on average, where the node reads their tokens."""
    kept_bytes: float = 0.0
    """Bytes of kept tokens that come with each token that carries loss."""
    ranks: bool = False
    """Whether tokens are sampled from the likeliest alone, which takes their order."""
    requests: int = 1
    """How many steps' rows a replica samples without a break in between, where newer weights come to rows that go
    on."""

    @property
    def ended_row_tokens(self) -> float:
        """Return the tokens of a row that has ended, on average."""
        return self.prompt.mean + self.response.mean + (self.episodes.observed_tokens if self.episodes else 0.0)

    @cached_property
    def decoded(self) -> Lengths:
        """Return in how many decoding steps rows take part that are sampled."""
        return Lengths(tuple(map(decoding_steps, self.response.values)))

    @cached_property
    def mean_row_tokens(self) -> Tokens:
        """Return what a model reads of one row, on average."""
        length = self.prompt.mean + self.response.mean
        spread = self.prompt.mean_square + 2 * self.prompt.mean * self.response.mean + self.response.mean_square
        return Tokens(1.0, length, spread, self.response.mean, self.prompt.longest + self.response.longest)

    @property
    def sent_bytes(self) -> float:
        """Return the bytes of all rows on their way to who reads them."""
        read = self.tokens()
        return read.tokens * ROW_BYTES + read.scored * self.kept_bytes

    def tokens(self) -> Tokens:
        """Return what a model reads of all rows."""
        row = self.mean_row_tokens
        return Tokens(self.rows, self.rows * row.tokens, self.rows * row.squares, self.rows * row.scored, row.longest)

    def rows_of_fullest_replica(self, parts: int) -> float:
        """Return the rows of the replica that gets most of them; samples of one prompt stay together."""
        shares = self._shares
        if parts not in shares:
            shares[parts] = min(self.rows, math.ceil(self.rows / parts / self.samples) * self.samples)
        return shares[parts]

    def rows_of_emptiest_replica(self, parts: int) -> float:
        """Return the rows of the replica that gets fewest of them."""
        return self.rows / self.samples // parts * self.samples

    def micro_batches_per_row(
        self, budget: float, packed: bool = False, shares: PrefixSharing | None = None
    ) -> tuple[float, Tokens]:
        """Return how many micro-batches of at most so many padded tokens a row makes, and the tokens of a row with its
        padding: the longest rows come first, and the rows of a micro-batch are padded to its longest. packed: rows have
        no padding, and a row longer than the budget is a micro-batch by itself. shares: how packed rows with a common
        prefix are read together."""
        if packed:
            return self._packed(budget), self.tokens_read_per_row(shares)
        return get_or_compute(self._blocks, budget, lambda: self._cut(budget))

    def tokens_read_per_row(self, shares: PrefixSharing | None) -> Tokens:
        """Return what a model reads of one row, on average, where neighbours that begin with the same prompt may share
        it."""
        if shares is None or self.together <= 1:
            return self.mean_row_tokens
        short = sum(length <= shares.max_suffix_tokens for length in self.response.values) / len(self.response.values)
        left_out = short * (1 - 1 / self.together)
        if left_out * self.prompt.mean < shares.min_saved_share * self.mean_row_tokens.tokens:
            return self.mean_row_tokens
        # The tokens behind a prompt attend to all of it.
        tokens = self.mean_row_tokens.tokens - left_out * self.prompt.mean
        return replace(
            self.mean_row_tokens,
            tokens=tokens,
            squares=self.mean_row_tokens.squares - left_out * self.prompt.mean_square,
        )

    def unshared_prompt_tokens(self, block: int) -> tuple[float, float]:
        """Return the tokens of a prompt, and the pairs of them in attention, that each sample after the first reads,
        on average: those behind the last full block, and always the last token."""
        if block not in self._unshared:
            prompts = [(length, block * math.floor(max(length - 1, 0) / block)) for length in self.prompt.values]
            tokens, pairs = (
                sum(length - cached for length, cached in prompts),
                sum(length * (length - cached) for length, cached in prompts),
            )
            self._unshared[block] = tokens / len(prompts), pairs / len(prompts)
        return self._unshared[block]

    @cached_property
    def _unshared(self) -> dict[int, tuple[float, float]]:
        """Cache `unshared_prompt_tokens` by the block."""
        return {}

    @cached_property
    def _blocks(self) -> dict[float, tuple[float, Tokens]]:
        """Cache `blocks` by the budget: a search asks for the same few with every split."""
        return {}

    def _packed(self, budget: float) -> float:
        """Return how many packed micro-batches a row makes."""
        if self.mean_row_tokens.longest <= budget:
            return max(1 / max(self.rows, 1.0), self.mean_row_tokens.tokens / budget)
        if budget not in self._parts:
            prompt, values = self.prompt.mean, self.response.values
            self._parts[budget] = sum(min(1.0, (prompt + length) / budget) for length in values) / len(values)
        return max(1 / max(self.rows, 1.0), self._parts[budget])

    @cached_property
    def _parts(self) -> dict[float, float]:
        """Cache how many packed micro-batches a row makes, by the budget."""
        return {}

    @cached_property
    def _shares(self) -> dict[int, float]:
        """Cache `rows_of_fullest_replica` by the parts."""
        return {}

    def _cut(self, budget: float) -> tuple[float, Tokens]:
        """Return `blocks` of rows that are padded."""
        blocks, padded, done = (
            0.0,
            Tokens(0.0, 0.0, 0.0, self.mean_row_tokens.scored, self.mean_row_tokens.longest),
            0.0,
        )
        while done < 1 - 1e-9:
            longest = max(1.0, self.prompt.mean + self.response.quantile(1 - done))
            together = max(1.0, budget // longest)
            part = min(1 - done, max(together / max(self.rows, 1.0), 1 / POINTS))
            if part * self.rows > together:
                # These are several micro-batches, and this is the mean length of their longest rows.
                longest = max(1.0, self.prompt.mean + self.response.quantile(1 - done - part / 2))
                blocks += part / max(1.0, budget // longest)
            else:
                blocks += 1 / max(self.rows, 1.0)
            padded = replace(
                padded,
                rows=1.0,
                tokens=padded.tokens + part * longest,
                squares=padded.squares + part * longest * longest,
            )
            done += part
        return blocks, padded


def total_rows(batches: Iterable[Batch]) -> float:
    """Return the rows of all batches."""
    return sum(batch.rows for batch in batches)
