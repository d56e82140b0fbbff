"""This module has fake rows: how many there are, how long each is, and which group has them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from rlgraph.backends.distributed.transport import RemoteRows
from rlgraph.backends.rows import RemoteEntries
from rlgraph.ir.types import Table, Tensor, Type
from rlgraph.passes.cost.batch import Batch
from rlgraph.passes.cost.lengths import Lengths


def no_row_numbers() -> np.ndarray:
    """Return the numbers of no row, int64 [0]."""
    return np.zeros(0, dtype=np.int64)


_FIELDS = ("numbers", "prompt", "response", "expected", "version", "given_up", "turns")
"""Fields with an entry for each row."""


@dataclass(frozen=True)
class FakeRows(RemoteRows):
    """Fake rows of a value; a single value has none."""

    name: str
    """The name of the value that a node made: rows of it that a group was sent once are there."""
    where: str
    """The group that has it."""
    numbers: np.ndarray = field(default_factory=no_row_numbers)
    """int64 [rows]: which row of the run each is, whatever block or slice it came in."""
    prompt: np.ndarray = field(default_factory=no_row_numbers)
    """int64 [rows]: tokens of its prompt."""
    response: np.ndarray = field(default_factory=no_row_numbers)
    """int64 [rows]: tokens that carry loss."""
    expected: np.ndarray = field(default_factory=no_row_numbers)
    """float64 [rows]: tokens that it was expected to have when it was sampled; 0 where this was not known."""
    version: np.ndarray = field(default_factory=no_row_numbers)
    """int64 [rows]: version of the weights which sampled it, or began to; 0 where none did."""
    period: int = 1
    """Rows of a whole batch: numbers of one batch begin with a multiple of it."""
    column: int | None = None
    """The number of the node that asks for only one column of this table, which lies where the table lies; None: all of
    it."""
    given_up: np.ndarray = field(default_factory=no_row_numbers)
    """int64 [rows]: tokens with which it was given up, after which it has none; 0 where it was not."""

    turns: np.ndarray = field(default_factory=no_row_numbers)
    """int64 [rows]: how often the model acts in an episode; 0 for what is none."""

    @property
    def row_count(self) -> int:
        """The number of rows."""
        return int(self.numbers.shape[0])

    @property
    def token_counts(self) -> np.ndarray:
        counts: np.ndarray = self.prompt + self.response
        return counts

    def pick(self, places: np.ndarray) -> FakeRows:
        return replace(self, **{name: getattr(self, name)[places] for name in _FIELDS})

    def select_column(self, column: int) -> FakeRows:
        return replace(self, column=column)

    def concat(self, others: Sequence[RemoteEntries]) -> FakeRows:
        parts = [self, *(rows for rows in others if isinstance(rows, FakeRows))]
        return replace(self, **{name: np.concatenate([getattr(part, name) for part in parts]) for name in _FIELDS})

    def shortest_rows_of_groups(self, count: int, of: int) -> FakeRows:
        """Return of each `of` rows in turn the `count` shortest, the earlier among equals."""
        order = np.sort(self.response.reshape(-1, of).argsort(1, kind="stable")[:, :count])
        return self.pick((order + np.arange(len(order))[:, None] * of).reshape(-1))

    def longest_tokens_of_groups(self, kept: int) -> np.ndarray:
        """Return the tokens of the longest of each so many rows in turn, int64."""
        longest: np.ndarray = self.response.reshape(-1, kept).max(axis=1, initial=0)
        return longest

    def give_up_longer(self, tokens: int) -> FakeRows:
        """Return the rows, where those with more tokens are given up when they have so many."""
        over = self.response > tokens
        return replace(self, response=np.where(over, 0, self.response), given_up=np.where(over, tokens, 0))

    def to_cost_batch(self) -> Batch:
        """Return the rows as the cost model sees them."""
        return Batch(
            float(self.row_count),
            Lengths.from_array(self.prompt),
            Lengths.from_array(self.response),
        )

    def lengths_with_given_up(self, kept: int, samples: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens of prompt and answer of all rows that were begun, int64 [prompts, samples]: of each
        prompt's samples these `kept` come first, and the others were given up when the longest of these ended."""
        left = np.maximum(self.response, self.given_up).reshape(-1, kept)
        others = np.repeat(left.max(axis=1, initial=0)[:, None], samples - kept, axis=1)
        return np.repeat(self.prompt[::kept, None], samples, axis=1), np.concatenate([left, others], axis=1)

    def prompt_begin_order(self, kept: int) -> np.ndarray:
        """Return the prompts, of which so many rows each are kept, in the order in which these begin, int64: those
        first that are expected to be longer."""
        return np.argsort(-self.expected[::kept], kind="stable")

    def sampling_cost_batch(self, kept: int, samples: int) -> Batch:
        """Return the work of sampling these rows, of which `kept` of so many samples are left."""
        prompt, response = (
            Lengths.from_array(tokens.reshape(-1)) for tokens in self.lengths_with_given_up(kept, samples)
        )
        return Batch(float(self.row_count // kept * samples), prompt, response, samples)

    def sent_token_count(self, kind: Type) -> float:
        """Return how many tokens are sent with a value of this type; a value for each row counts as one for each."""
        if isinstance(kind, Table):
            return float(self.prompt.sum() + self.response.sum())
        inner = isinstance(kind, Tensor) and kind.axis is not None and kind.axis.inner
        return float(self.response.sum()) if inner else float(self.row_count)

    def uniform_quantiles(self, key: str, samples: int = 1, alike: float = 0.0, together: str = "") -> np.ndarray:
        """Return for each row a share between 0 and 1: those of a whole batch are evenly spread, in an order that `key`
        shuffles. alike: how much those of each so many rows in turn correlate; what they have in common follows from
        `together`, so that with another key it is the same.

        What a row gets depends on its number alone, not on the slice or block that it comes in.
        """
        values = np.zeros(self.row_count)
        batches = self.numbers // self.period
        for batch in np.unique(batches).tolist():
            common = f"{together}/{batch}"
            order = _order(f"{key}/{batch}", self.period, samples, alike if samples > 1 else 0.0, common)
            in_batch = batches == batch
            values[in_batch] = (order[self.numbers[in_batch] % self.period] + 0.5) / self.period
        return values

    def sample_lengths(
        self, lengths: Lengths, key: str, samples: int = 1, alike: float = 0.0, together: str = ""
    ) -> np.ndarray:
        """Return a length for each row, int64."""
        shares = self.uniform_quantiles(key, samples, alike, together)
        tokens: np.ndarray = np.maximum(1, np.rint(length_at_quantiles(lengths, shares))).astype(np.int64)
        return tokens


def length_at_quantiles(lengths: Lengths, shares: np.ndarray) -> np.ndarray:
    """Return for each share of the rows the length that it does not exceed, float64."""
    values = np.asarray(lengths.values)
    result: np.ndarray = np.interp(shares * len(values) - 0.5, np.arange(len(values)), values)
    return result


def quantiles_to_z_scores(shares: np.ndarray) -> np.ndarray:
    """Return how many standard deviations from the mean of a normal distribution each share lies, float64."""
    return np.array([_NORMAL.inv_cdf(share) for share in shares.tolist()])


def z_scores_to_quantiles(scores: np.ndarray) -> np.ndarray:
    """Return the share of each score, the inverse of `quantiles_to_z_scores`."""
    return np.array([_NORMAL.cdf(score) for score in scores.tolist()])


_NORMAL = NormalDist()


@lru_cache(64)
def _order(key: str, count: int, samples: int, alike: float, common: str) -> np.ndarray:
    """Return a permutation; it is cached, since each block of a batch asks for the whole batch's. alike: how much so
    many neighbours correlate, by what `common` draws for them."""
    random_numbers = _generator(key)
    if not alike:
        return random_numbers.permutation(count)
    single, shared = random_numbers.standard_normal(count), _generator(common).standard_normal(-(-count // samples))
    scores = np.sqrt(alike) * np.repeat(shared, samples)[:count] + np.sqrt(1 - alike) * single
    order: np.ndarray = scores.argsort(kind="stable").argsort(kind="stable")
    return order


def _generator(key: str) -> np.random.Generator:
    return np.random.default_rng(random.Random(key).getrandbits(64))
