"""Experts in one call, and layers in which the host waits for nothing."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from rlgraph.backends.engines import grouped
from rlgraph.backends.engines.grouped import grouped_product, sort_by_expert
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.engines.sources import ModelSpec
from rlgraph.backends.engines.transformers.engine import TransformersEngine
from rlgraph.backends.engines.transformers.packing import pack_separately
from tests.backends.engines.models import engine, source

CHOSEN = torch.tensor([3, 0, 3, 5, 0, 0, 2, 3, 5, 5, 0])
"""Of six experts, two of which have no token."""
LOOPED: dict[str, Any] = {"experts_implementation": "eager"}


def product(dtype: torch.dtype, inputs: int, outputs: int, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The product, and the gradients of rows and matrices."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(len(tokens), inputs, dtype=torch.float64, generator=generator)
    weight = torch.randn(6, outputs, inputs, dtype=torch.float64, generator=generator)
    to_product = torch.randn(len(tokens), outputs, dtype=torch.float64, generator=generator)
    x, weight = x.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_()
    order, ends = sort_by_expert(tokens, 6)
    made = grouped_product(x.index_select(0, order), weight, ends)
    made.backward(to_product.to(dtype)[order])
    assert x.grad is not None and weight.grad is not None
    return made.detach(), x.grad, weight.grad


def test_tokens_are_sorted_by_their_expert() -> None:
    order, ends = sort_by_expert(CHOSEN, 6)
    assert CHOSEN[order].equal(CHOSEN.sort()[0]) and order[:4].tolist() == [1, 4, 5, 10]
    assert ends.dtype == torch.int32 and ends.tolist() == [4, 4, 5, 8, 8, 11]


def test_the_product_by_hand() -> None:
    made, to_x, to_weight = product(torch.float64, 16, 24, CHOSEN)
    generator = torch.Generator().manual_seed(0)
    x, weight, to_product = (
        torch.randn(shape, dtype=torch.float64, generator=generator) for shape in ((11, 16), (6, 24, 16), (11, 24))
    )
    order = CHOSEN.argsort(stable=True)
    torch.testing.assert_close(made, torch.einsum("ni,noi->no", x, weight[CHOSEN])[order], rtol=0, atol=1e-12)
    torch.testing.assert_close(to_x, torch.einsum("no,noi->ni", to_product, weight[CHOSEN]), rtol=0, atol=1e-12)
    for expert in range(6):
        own = CHOSEN.eq(expert)
        torch.testing.assert_close(to_weight[expert], to_product[own].t() @ x[own], rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sizes", [(16, 24), (16, 10), (6, 16)])
@pytest.mark.parametrize("tokens", [CHOSEN, CHOSEN[:0]], ids=["tokens", "none"])
def test_one_call_is_to_the_bit_the_loop(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, sizes: tuple[int, int], tokens: Tensor
) -> None:
    """Also where rows do not begin where torch wants them: there it is the loop."""
    calls = []
    call = grouped._GROUPED
    if call is not None:
        monkeypatch.setattr(grouped, "_GROUPED", lambda *args, **more: calls.append(1) or call(*args, **more))
    made = product(dtype, *sizes, tokens)
    assert len(calls) == (call is not None and len(tokens) > 0 and sizes == (16, 24))
    monkeypatch.setattr(grouped, "_GROUPED", None)
    assert all(mine.equal(theirs) for mine, theirs in zip(made, product(dtype, *sizes, tokens), strict=True))


@pytest.mark.parametrize(
    "dtype, asked, expected",
    [
        ("float32", {}, "grouped_mm"),
        ("bfloat16", {}, "grouped_mm"),
        ("float64", {}, "eager"),
        ("bfloat16", {"moe_intermediate_size": 12}, "eager"),
        ("float32", {"moe_intermediate_size": 12}, "grouped_mm"),
        ("float32", LOOPED, "eager"),
        ("float64", {"experts_implementation": "batched_mm"}, "batched_mm"),
    ],
)
def test_which_way_a_model_takes(dtype: str, asked: dict[str, Any], expected: str) -> None:
    random = source("qwen3_moe")
    spec = ModelSpec("causal_lm", replace(random, config={**random.config, **asked}), dtype)
    model = TransformersEngine.open(spec)
    assert model.model.config._experts_implementation == (expected if grouped._GROUPED else "eager")
    assert engine("qwen2").model.config._experts_implementation == "eager"


@pytest.mark.parametrize("family", ["mixtral", "qwen2_moe", "deepseek_v3"])
def test_both_ways_give_the_same(family: str) -> None:
    """Log-probabilities and gradients in float32, whose experts are grouped, beside those in float64."""
    found = []
    rows = Sequences.from_pairs([[5, 6, 7], [8]], [[9, 10, 11, 12], [13, 14]])
    for dtype in ("float32", "float64"):
        model = engine(family, dtype=dtype)
        with torch.enable_grad():
            logprobs = model.logprobs(rows)
        weights = [weight for name, weight in model.model.named_parameters() if "experts" in name]
        found.append([logprobs.detach(), *torch.autograd.grad(logprobs.sum(), weights)])
    for narrow, wide in zip(*found, strict=True):
        torch.testing.assert_close(narrow.double(), wide.double(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "family, recompute",
    [("qwen2", False), ("gemma2", True), ("mixtral", False), ("qwen2_moe", True), ("deepseek_v3", False)],
)
@pytest.mark.parametrize("replayed", [False, True])
def test_a_layer_reads_no_number(monkeypatch: pytest.MonkeyPatch, family: str, recompute: bool, replayed: bool) -> None:
    """On `meta` there are none: what asks for one, or for a copy on the host, fails."""
    from transformers import masking_utils

    # These two, once a pass, know no `meta`.
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: False)
    monkeypatch.setattr(masking_utils, "find_packed_sequence_indices", lambda positions: None)
    network = engine(family, dtype="bfloat16", recompute=recompute)._network
    network.model.to("meta")
    network.device = torch.device("meta")
    rows = Sequences.from_lists([[5, 6, 7], [8], [9, 10, 11, 12, 13, 14, 15], [16, 17, 18]])
    recording = nullcontext() if network.routing is None else network.routing.recording()
    if replayed and network.routing is not None:
        layers = len(network.routing._gates)
        rows = replace(rows, routes=torch.tensor([0, 1], dtype=torch.int16).expand(len(rows.tokens), layers, 2))
    packing = pack_separately(rows)
    with network._replaying(rows.routes):
        with torch.enable_grad():
            network.packed_hidden_states(rows, packing).sum().backward()
        with torch.no_grad(), recording:
            network.packed_hidden_states(rows, packing)
    assert all(weight.grad is not None for weight in network.model.base_model.layers.parameters())
    with pytest.raises((RuntimeError, NotImplementedError)):
        rows.tokens.to("meta").tolist()
