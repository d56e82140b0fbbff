"""Attention of all rows in one call, as GPUs have it; its kernel is played by plain products."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlgraph.backends.engines import varlen
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.engines.transformers import network
from rlgraph.backends.engines.varlen import AttentionOptions, attend, row_bounds, takes_one_call
from tests.backends.engines import one_call
from tests.backends.engines.models import engine
from tests.backends.engines.one_call import OneCall

LENGTHS = [7, 1, 4, 4, 9]
ROWS = Sequences.from_lists(
    [[3 + (5 * row + place) % 36 for place in range(length)] for row, length in enumerate(LENGTHS)],
    [[False] + [True] * (length - 1) for length in LENGTHS],
)


@pytest.mark.parametrize("how", [AttentionOptions(), AttentionOptions(0.3, window=3), AttentionOptions(window=20)])
def test_it_is_what_a_call_for_each_row_gives(how: AttentionOptions) -> None:
    generator = torch.Generator().manual_seed(0)
    heads = [torch.randn(25, count, 8, dtype=torch.float64, generator=generator) for count in (4, 2, 2)]
    bounds = row_bounds(LENGTHS, torch.device("cpu"))
    assert bounds.tolist() == [0, 7, 8, 12, 16, 25] and bounds.dtype == torch.int32
    expected = attend(*heads, LENGTHS, how, bounds)
    with OneCall() as one:
        torch.testing.assert_close(attend(*heads, LENGTHS, how, bounds), expected, rtol=0, atol=1e-12)
        assert one.calls == 1
        attend(*(states[:7] for states in heads), LENGTHS[:1], how, row_bounds(LENGTHS[:1], torch.device("cpu")))
        assert one.calls == 1, "one row is one call already"


@pytest.mark.parametrize(
    "family, calls", [("qwen2", 2), ("mistral", 2), ("gemma3_text", 2), ("deepseek_v3", 2), ("gemma2", 0)]
)
def test_a_model_reads_and_learns_the_same(monkeypatch: pytest.MonkeyPatch, family: str, calls: int) -> None:
    """In one call for each of two layers, none of which caps its scores, forward and for the gradient."""
    monkeypatch.setattr(network, "_PADDED", 0.0)
    model = engine(family)
    # GPUs share no beginnings.
    model._network.can_share_prefixes = False
    weights = [weight for weight in model.model.base_model.layers.parameters() if weight.requires_grad]

    def work() -> list[torch.Tensor]:
        with torch.enable_grad():
            logprobs = model.logprobs(ROWS)
        found = torch.autograd.grad(logprobs.square().sum(), weights, allow_unused=True)
        return [logprobs.detach(), *(gradient for gradient in found if gradient is not None)]

    expected = work()
    with OneCall() as one:
        found = work()
    assert one.calls == calls
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.skipif(varlen._VARLEN is None, reason="this torch has no such attention")
def test_where_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    plain: dict[str, Any] = {"is_cuda": True, "dtype": torch.bfloat16, "shape": (9, 4, 64), "device": "cuda"}

    def taken(rows: int = 2, how: AttentionOptions = AttentionOptions(), **changed: Any) -> bool:  # noqa: B008
        return takes_one_call(SimpleNamespace(**plain | changed), rows, how)  # type: ignore[arg-type]

    assert taken() and taken(how=AttentionOptions(0.2, 5)) and taken(dtype=torch.float16)
    assert not taken(rows=1) and not taken(how=AttentionOptions(score_cap=5.0)) and not taken(is_cuda=False)
    assert not taken(dtype=torch.float32) and not taken(shape=(9, 4, 60)) and not taken(shape=(9, 4, 264))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert not taken()


@pytest.mark.skipif(varlen._VARLEN is None, reason="this torch has no such attention")
def test_what_plays_it_takes_what_torch_takes() -> None:
    assert varlen._VARLEN is not None
    theirs, mine = (inspect.signature(call).parameters for call in (varlen._VARLEN, one_call.varlen_attn))
    assert all(theirs[name].kind == of_mine.kind for name, of_mine in mine.items())
    assert all(theirs[name].default == mine[name].default for name in ("scale", "window_size", "enable_gqa"))
