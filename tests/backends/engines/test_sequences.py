"""Ragged rows and how they are cut into blocks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlgraph.backends.engines.micro_batches import plan_micro_batches
from rlgraph.backends.engines.sequences import Sequences

ROWS = [[5, 6, 7], [], [8], [9, 10]]
FLAGS = [[False, True, True], [], [False], [False, True]]
BATCH = Sequences.from_lists(ROWS, FLAGS)


def test_take_follows_the_index_and_may_repeat() -> None:
    taken = BATCH.take(torch.tensor([3, 1, 0, 3]))
    assert taken.rows() == [[9, 10], [], [5, 6, 7], [9, 10]]
    assert taken.scored_tokens_by_row() == [[10], [], [6, 7], [10]]


def test_counts_are_the_scored_tokens() -> None:
    assert BATCH.scored_counts().tolist() == [2, 0, 0, 1]


def test_concat_joins_rows() -> None:
    joined = Sequences.concat([BATCH, BATCH.take(torch.tensor([2]))])
    assert joined.rows() == [*ROWS, [8]]
    assert len(Sequences.concat([])) == 0


def test_padded_fills_up_on_the_right() -> None:
    ids, mask = BATCH.padded(0)
    assert ids.tolist() == [[5, 6, 7], [0, 0, 0], [8, 0, 0], [9, 10, 0]]
    assert mask.sum(1).tolist() == [3, 0, 1, 2]


def test_pairs_score_the_response() -> None:
    pairs = Sequences.from_pairs([[5, 6], [7]], [[8], [9, 10]])
    assert pairs.rows() == [[5, 6, 8], [7, 9, 10]]
    assert pairs.scored_tokens_by_row() == [[8], [9, 10]]


def test_places_of_tokens() -> None:
    assert BATCH.row_of_token.tolist() == [0, 0, 0, 2, 3, 3]
    assert BATCH.token_positions.tolist() == [0, 1, 2, 0, 0, 1]


@given(st.lists(st.integers(0, 30), max_size=40), st.integers(1, 90), st.integers(1, 4))
def test_blocks_hold_each_row_once_within_the_budget(sizes: list[int], budget: int, threads: int) -> None:
    lengths = torch.tensor(sizes, dtype=torch.long)
    blocks = plan_micro_batches(lengths, budget, threads)
    assert sorted(row for block in blocks for row in block.tolist()) == list(range(len(sizes)))
    assert all(len(block) for block in blocks)
    assert all(len(block) == 1 or len(block) * int(lengths[block].max()) <= budget for block in blocks)
    assert len(blocks) >= min(threads, len(sizes))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_equal_rows_make_equal_blocks_for_the_threads(threads: int) -> None:
    blocks = plan_micro_batches(torch.full((256,), 40), 2048, threads)
    sizes = [len(block) for block in blocks]
    assert len(blocks) % threads == 0 and max(sizes) - min(sizes) <= 1 + max(sizes) // 10
