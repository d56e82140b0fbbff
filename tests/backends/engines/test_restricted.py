"""Sampling from the likeliest tokens alone: which these are, and the bytes that it takes."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from rlgraph.backends.engines import likeliest, sampling
from rlgraph.backends.engines.likeliest import LikeliestTokens, likeliest_tokens
from rlgraph.backends.engines.records import Sampling
from rlgraph.backends.engines.sampling import choose_tokens, draw_uniforms
from rlgraph.backends.enginespec.memory import RANKING
from tests.passes.cost.live import Live

WAYS = [{"top_k": 3}, {"top_p": 0.7}, {"top_k": 40, "top_p": 0.5}, {"min_p": 0.2}, {"min_p": 0.1, "top_p": 0.6}]


def weights_of(rows: int, vocab: int, width: float) -> Tensor:
    """Weights of logits as bfloat16 has them, many of which are equal; the largest of a row is 1."""
    logits = (width * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(rows))).bfloat16().float()
    return (logits - logits.amax(1, keepdim=True)).exp()


def kept_of(row: list[float], way: Sampling) -> set[int]:
    """Which tokens of a row are left, one after the other in their order; of equal ones the first is before."""
    order = sorted((token for token in range(len(row)) if row[token] >= way.min_p), key=lambda token: -row[token])
    order = order[: way.top_k or len(order)]
    total, before, kept = sum(row[token] for token in order), 0.0, set[int]()
    for token in order:
        if way.top_p < 1 and before >= way.top_p * total:
            break
        kept.add(token)
        before += row[token]
    return kept


@pytest.mark.parametrize("first", [8, 1 << 20], ids=["looked at first", "sorted"])
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_the_likeliest_are_kept(way: dict[str, float], first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(likeliest, "LIKELIEST", first)
    monkeypatch.setattr(sampling, "RANKING", dataclasses.replace(RANKING, logits=3 * 300))
    chosen = Sampling(max_tokens=1, **way)  # type: ignore[arg-type]
    # Of the wide ones a few tokens have all the weight, of the narrow ones none has much: 8 are not enough.
    weights = torch.cat([weights_of(7, 300, 4.0), weights_of(7, 300, 0.1)])
    expected = [kept_of(row, chosen) for row in weights.double().tolist()]
    left = weights.clone()
    sampling._restrict(left, chosen)
    assert [set(row.nonzero()[:, 0].tolist()) for row in left] == expected
    assert bool(((left == 0) | (left == weights)).all())


@pytest.mark.parametrize("way", [way for way in WAYS if "top_k" not in way], ids=str)
def test_scored_tokens_are_those_of_a_sort(way: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the places, also where some of them are sorted; the places that are not are read once."""
    logits = torch.cat([weights_of(7, 300, width) for width in (0.1, 4.0, 0.1, 4.0)]).log()
    asked, sorts = LikeliestTokens(0, way.get("top_p", 1.0), way.get("min_p", 0.0)), list[int]()

    def counted(numbers: Tensor) -> tuple[Tensor, Tensor]:
        sorts.append(numbers.numel())
        return torch.sort(numbers, dim=1, descending=True, stable=True)

    monkeypatch.setattr(likeliest, "_sorted", counted)
    monkeypatch.setattr(likeliest, "LIKELIEST", 1 << 20)
    expected = likeliest_tokens(logits.clone(), asked, first=50)
    monkeypatch.setattr(likeliest, "LIKELIEST", 8)
    found = likeliest_tokens(logits.clone(), asked, first=50)
    assert sorts[:2] == [28 * 300, 28 * 8] and sum(sorts[2:]) < 28 * 300
    assert all(map(torch.equal, (found.counts, found.ids, found.logs), (expected.counts, expected.ids, expected.logs)))


@pytest.mark.parametrize("way", [{}, *WAYS], ids=str)
def test_bytes_of_sampling_are_those_that_plans_count(way: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(likeliest, "LIKELIEST", 1 << 20)
    ranking = dataclasses.replace(RANKING, logits=40 * 500)
    monkeypatch.setattr(sampling, "RANKING", ranking)
    rows, vocab = 400, 500
    logits, uniforms = torch.randn(rows, vocab), draw_uniforms(torch.arange(rows), torch.zeros(1, dtype=torch.long))
    with Live([]) as live:
        choose_tokens(logits.clone(), uniforms, Sampling(max_tokens=1, **way), None)  # type: ignore[arg-type]
    more = ranking.most_bytes(rows, vocab) if way else 0.0
    assert 12 * rows * vocab <= live.peak <= 12 * rows * vocab + more + 64 * rows
