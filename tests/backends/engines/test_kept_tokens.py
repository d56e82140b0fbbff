"""The tokens that each one was sampled from, as a sampler gives them and as they are stored. All of it takes a tenth of a
second."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rlgraph.backends.engines.likeliest import NO_LOG, KeptTokens, put_numbers
from rlgraph.backends.engines.records import Sampling
from rlgraph.backends.engines.sampling import sample
from rlgraph.backends.ray.piece_store import from_sendable, to_sendable, wire_bytes
from rlgraph.runs.checkpoint.values import decode_value, encode_value

THREE = KeptTokens(
    torch.tensor([2, 0, 1]), torch.tensor([5, 7, 9], dtype=torch.int32), torch.tensor([-1.0, -2.0, -0.5])
)


def lists(tokens: KeptTokens) -> list[tuple[int, list[int], list[float]]]:
    parts = zip(tokens.ids.split(tokens.counts.tolist()), tokens.logs.split(tokens.counts.tolist()), strict=True)
    return [(len(ids), ids.tolist(), logs.tolist()) for ids, logs in parts]


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"top_k": 2}, [0, 3]),
        ({"top_p": 0.75}, [0, 1, 3]),
        ({"min_p": 0.3, "top_p": 0.5}, [0, 3]),
        ({"top_k": 4, "banned": [0]}, [1, 2, 3, 4]),
    ],
)
def test_what_a_token_is_sampled_from(options: dict[str, Any], kept: list[int]) -> None:
    """With the probabilities that they have in the whole distribution."""
    banned = torch.tensor(options.pop("banned")) if "banned" in options else None
    p = torch.tensor([0.4, 0.15, 0.1, 0.3, 0.05], dtype=torch.float64)
    support: list[KeptTokens] = []
    keys = np.arange(64, dtype=np.uint64)
    token, _ = sample(p.log().repeat(64, 1), keys, 0, Sampling(1, keeps_support=True, **options), banned, support)
    [found] = support
    assert {*token.tolist()} == {*kept}
    for count, ids, logs in lists(found):
        assert (count, ids) == (len(kept), kept)
        assert logs == pytest.approx(p[kept].log().tolist(), abs=1e-12)
    torch.testing.assert_close(found.shares(), p[kept].sum().expand(64), rtol=0, atol=1e-12)
    support.clear()
    sample(p.log().repeat(64, 1), keys, 0, Sampling(1, **options), banned, support)
    assert not support


def test_places_are_picked_joined_and_filled_up() -> None:
    assert lists(THREE.pick(np.array([2, 1, 0, 2]))) == [
        (1, [9], [-0.5]),
        (0, [], []),
        (2, [5, 7], [-1.0, -2.0]),
        (1, [9], [-0.5]),
    ]
    assert lists(THREE.concat([THREE.pick(np.array([1])), THREE])) == [*lists(THREE), (0, [], []), *lists(THREE)]
    filled = [[5, 7, -1, -2], [-1, -1, NO_LOG, NO_LOG], [9, -1, -0.5, NO_LOG]]
    torch.testing.assert_close(THREE.numbers(torch.float64), torch.tensor(filled, dtype=torch.float64))
    spread = THREE.spread(torch.tensor([3, 0, 1]), 4, put_numbers)
    assert lists(spread) == [(0, [], []), (1, [9], [-0.5]), (0, [], []), (2, [5, 7], [-1.0, -2.0])]
    assert lists(THREE[1:]) == lists(THREE)[1:]
    assert len(KeptTokens.nothing()) == 0 and KeptTokens.nothing().numbers(torch.float32).shape == (0, 2)


def test_they_are_sent_and_stored_bit_for_bit() -> None:
    sent = to_sendable(THREE)
    assert wire_bytes(sent) == 3 * 4 + 3 * (4 + 4), "four bytes a place, eight for each token that is kept"
    program: Any = None
    tensors: dict[str, torch.Tensor] = {}
    stored = encode_value({"support": THREE}, "rows", tensors)
    for back in (from_sendable(sent), decode_value(stored, tensors, program)["support"]):
        assert isinstance(back, KeptTokens) and lists(back) == lists(THREE)
        assert (back.counts.dtype, back.ids.dtype, back.logs.dtype) == (torch.int64, torch.int32, torch.float32)
