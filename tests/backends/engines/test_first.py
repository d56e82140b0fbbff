"""The samples that end first: which they are, and that giving the others up early changes none of them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlgraph.backends.engines.base import Generation, Sampling
from rlgraph.backends.engines.first_done import is_decided, select_first_finished, take_rows
from rlgraph.backends.engines.sequences import Sequences
from tests.backends.engines.models import engine
from tests.suites import few

PROMPTS = Sequences.from_lists([[5, 6, 7], [8], [9, 10, 11, 12, 13, 14, 15], [16, 17, 18], [4, 4]])
ENDS = tuple(range(20, 28))
"""Many: rows of all lengths."""


def chosen(lengths: list[int], first: int) -> list[int]:
    """By the words: fewest tokens first, of equals the smaller number first."""
    return sorted(sorted(range(len(lengths)), key=lambda sample: (lengths[sample], sample))[:first])


def generation(lengths: list[int], most: int) -> Generation:
    sequences = Sequences.from_pairs([[1]] * len(lengths), [[2] * length for length in lengths])
    finished = torch.tensor([length < most for length in lengths])
    return Generation(sequences, torch.arange(float(sum(lengths))), finished)


@given(st.integers(1, 6).flatmap(lambda n: st.tuples(*[st.lists(st.integers(0, 4), min_size=n, max_size=n)] * 2)))
def test_which_are_kept(groups: tuple[list[int], list[int]]) -> None:
    one, two = groups
    made, n = generation(one + two, 4), len(one)
    for first in range(1, n + 1):
        rows = select_first_finished(made, n, Sampling(4, samples_wanted=first)).tolist()
        assert rows == chosen(one, first) + [n + sample for sample in chosen(two, first)]
    assert select_first_finished(made, n, Sampling(4)).tolist() == list(range(2 * n))


@given(st.data())
def test_none_is_given_up_too_early(data: st.DataObject) -> None:
    """Rows go on in any order, as in an engine in which some wait for others."""
    lengths = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=6))
    first = data.draw(st.integers(1, len(lengths)))
    tokens = [0] * len(lengths)
    while not is_decided(
        [length for length, done in zip(lengths, tokens, strict=True) if done == length],
        [done for length, done in zip(lengths, tokens, strict=True) if done < length],
        first,
    ):
        running = [row for row, length in enumerate(lengths) if tokens[row] < length]
        tokens[data.draw(st.sampled_from(running))] += 1
    ended = [length if done == length else 99 for length, done in zip(lengths, tokens, strict=True)]
    assert chosen(ended, first) == chosen(lengths, first)


@pytest.mark.parametrize(
    "first, limits",
    few(
        itertools.product([1, 5, 7], [{}, {"threads": 2}, {"cache_tokens": 60}, {"cache_tokens": 1}]),
        (1, {"threads": 2}),
        (1, {"cache_tokens": 1}),
        (5, {}),
        (5, {"cache_tokens": 60}),
    ),
    ids=str,
)
def test_rows_that_are_kept_are_those_of_generating_all(first: int, limits: dict[str, int]) -> None:
    keys = np.arange(40, dtype=np.uint64)
    whole = engine().generate(PROMPTS, 8, Sampling(16, stop_ids=ENDS), keys)
    sampling = Sampling(16, stop_ids=ENDS, samples_wanted=first)
    made = engine(**limits).generate(PROMPTS, 8, sampling, keys)
    kept = select_first_finished(whole, 8, sampling)
    assert select_first_finished(made, 8, sampling).equal(kept)
    found, expected = take_rows(made, kept), take_rows(whole, kept)
    assert found.sequences.rows() == expected.sequences.rows() and found.finished.equal(expected.finished)
    torch.testing.assert_close(found.logprobs, expected.logprobs, rtol=0, atol=1e-10)
    # Rows side by side are given up with as many tokens as the last one that is kept.
    if limits != {"cache_tokens": 1}:
        longest = expected.sequences.scored_counts().view(5, first).max(1).values
        most = torch.minimum(whole.sequences.scored_counts().view(5, 8), longest[:, None])
        assert made.sequences.scored_counts().view(5, 8).equal(most)
        assert int(made.sequences.scored_counts().sum()) < int(whole.sequences.scored_counts().sum())
