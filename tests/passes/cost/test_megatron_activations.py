"""The bytes that training with Megatron-core keeps, on one rank and on several that share each layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, product

import pytest
import torch

pytest.importorskip("megatron.core")

from rlgraph.backends.engines.base import MicroBatch
from rlgraph.backends.enginespec.layout_checks import layout_problems
from rlgraph.ir.mesh import Mesh, make_mesh
from rlgraph.passes.cost.activations import activation_bytes
from tests.backends.engines.ranks import Ranks
from tests.passes.cost.live import Live
from tests.passes.cost.trained import LATENT, WIDE_VALUES, Case
from tests.suites import few

CASES = [
    Case("qwen2"),
    Case("qwen2", scored=64),
    Case("qwen2", scored=64, entropy=True),
    Case("qwen3", rows=2, length=300),
    Case("qwen2", rows=1, length=1025, scored=800),
    Case("llama", "value_lm", scored=64),
    Case("llama", fields=(("num_key_value_heads", 4),)),
    Case("mistral", rows=2, length=300, fields=(("sliding_window", 100),)),
    Case("granite", scored=64, fields=(("residual_multiplier", 0.5), ("logits_scaling", 2.0))),
    Case("gemma2", scored=64),
    Case("mixtral", fields=(("num_local_experts", 4),)),
    Case("deepseek_v3", fields=LATENT),
    Case("deepseek_v3", rows=2, length=300, fields=WIDE_VALUES),
    Case("gemma3_text", fields=(("sliding_window", 32), ("sliding_window_pattern", 2))),
]
WIDE = ("hidden_size", 256)
"""So wide that places of tokens, which routers keep, are little beside them."""
ROUTED = [
    Case("mixtral", rows=4, length=129, fields=(("num_local_experts", 4), WIDE)),
    Case("deepseek_v3", rows=2, length=301, fields=(*LATENT, WIDE)),
]
"""Without experts that all tokens take, and with them; of the tokens that are fed as many go to each expert."""
KEPT = [
    (Case("qwen2"), make_mesh()),
    (Case("qwen2", scored=64, entropy=True), make_mesh()),
    (Case("llama", "value_lm", scored=64), make_mesh()),
    (Case("qwen3", rows=2, length=300), make_mesh(tp=2)),
    (Case("deepseek_v3", rows=2, length=300, fields=WIDE_VALUES), make_mesh()),
    (Case("qwen2", rows=1, length=1025, scored=800), make_mesh(cp=2)),
    (ROUTED[0], make_mesh(ep=2, tp=2)),
]
"""Heads of each kind, and models without and with experts, on ranks that share columns or tokens."""


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    started = Ranks(4)
    yield started
    started.close()


def evenly_routed(case: Case, layers: int) -> MicroBatch:
    """One whose tokens replay all experts in turn."""
    micro, shape = case.micro(), case.shape()
    [call] = micro.calls
    chosen = torch.arange(len(call.sequences.tokens) * shape.experts_per_token) % shape.experts
    routes = chosen.view(-1, 1, shape.experts_per_token).expand(-1, layers, -1).short().contiguous()
    return replace(micro, calls=(replace(call, sequences=replace(call.sequences, routes=routes)),))


def measured(over: Mesh, case: Case) -> list[int]:
    """On this rank the peaks with two and with four layers; gradients, and the buffers that they are added up in, are
    there."""
    from rlgraph.backends.engines.megatron.engine import MegatronEngine

    found = []
    for layers in (2, 4):
        engine = MegatronEngine.open(case.spec(layers), over)
        micro = evenly_routed(case, layers) if over.axis_size("ep") > 1 else case.micro()
        engine.clear_gradients()
        each = [micro] * over.axis_size("ep")
        engine.add_gradients(each, lambda given: given)
        assert engine._trainer
        # gloo lets go of what it sent a moment later, at times: the least of several is what is needed.
        peaks = []
        for _ in range(3 if over.rank_count > 1 else 1):
            chunk = engine._trainer.chunk
            gradients = (buffer.grad_data for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers))
            with Live(chain(engine.model.parameters(), gradients)) as live:
                engine.add_gradients(each, lambda given: given)
            peaks.append(live.peak)
        found.append(min(peaks))
    return found


@pytest.mark.parametrize(
    "case, over",
    few(
        [
            *product(CASES, [make_mesh(), make_mesh(tp=2), make_mesh(cp=2)]),
            *product(ROUTED, [make_mesh(ep=2), make_mesh(ep=2, tp=2)]),
        ],
        *KEPT,
    ),
    ids=str,
)
def test_what_megatron_keeps(ranks: Ranks, case: Case, over: Mesh) -> None:
    cp = over.axis_size("cp")
    if layout_problems(case.shape(), "megatron", over):
        pytest.skip("it does not split this model so")
    found = activation_bytes(
        case.shape(),
        case.kind,
        case.tokens().part_of_fullest_rank(cp),
        itemsize=4,
        tp=over.axis_size("tp"),
        ep=over.axis_size("ep"),
        cp=cp,
        masked=True,
        network=3,
        packed=True,
        splits_tokens=True,
        split_head=True,
        wide_norms=4,
    )
    measures = ranks.run(over, measured, case)
    # Of a single row one of the ranks that share tokens out has more to score: the fullest counts.
    for two, four in [max(measures)] if cp > 1 else measures:
        # What routers keep is left out.
        assert found.layer == pytest.approx((four - two) / 2, rel=0.015 if case.shape().experts else 0.001)
        assert found.peak_bytes(2) == pytest.approx(two, rel=0.1)
        assert found.peak_bytes(4) == pytest.approx(four, rel=0.1)
