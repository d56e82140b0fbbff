"""What the cost model says of memory, beside the tensors of vLLM while it generates."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

pytest.importorskip("vllm")

from rlgraph.backends.engines.sources import ModelSpec
from rlgraph.catalog.models.adapters import Adapters
from rlgraph.passes.cost.deployment import ModelConfig
from tests.passes.cost.allocated import Work, vllm
from tests.passes.cost.trained import Case
from tests.suites import few

FEW = (("hidden_size", 128), ("head_dim", 32))
MANY = (("hidden_size", 256), ("head_dim", 32), ("num_attention_heads", 8), ("intermediate_size", 1024))
KERNELS = (
    ("hidden_size", 128),
    ("num_key_value_heads", 4),
    ("n_routed_experts", 8),
    ("num_experts_per_tok", 2),
    ("moe_intermediate_size", 96),
    ("n_group", 4),
    ("topk_group", 2),
    ("first_k_dense_replace", 1),
    ("q_lora_rank", 48),
    ("kv_lora_rank", 512),
    ("qk_rope_head_dim", 64),
    ("qk_nope_head_dim", 32),
    ("v_head_dim", 32),
    ("head_dim", 64),
)
"""Numbers for which vLLM has a kernel on a CPU that attends to what keys and values are made of."""
SMALL_EXPERTS = (("moe_intermediate_size", 32), ("intermediate_size", 64))
"""What their kernel needs on a CPU is not among the tensors: attention needs more."""
WIDE = (
    *(("qk_nope_head_dim", 128), ("v_head_dim", 128), ("num_attention_heads", 8), ("num_key_value_heads", 8)),
    ("max_position_embeddings", 4096),
)
CASES = [
    Work("generate", Case("llama", rows=16, length=64, fields=FEW), micros=4, response=60),
    Work("generate", Case("llama", rows=16, length=64, fields=MANY), 4, 4, response=20),
    Work("generate", Case("deepseek_v3", rows=16, length=64, fields=(*KERNELS, *SMALL_EXPERTS)), 2, 4, response=20),
    Work(
        "generate", Case("deepseek_v3", rows=16, length=64, fields=(*KERNELS, *SMALL_EXPERTS, *WIDE)), 2, 4, response=1
    ),
    Work("generate", Case("llama", rows=16, length=64, fields=MANY), 2, 4, response=4),
]
KEPT = CASES[-2:]
"""Attention of both kinds, and few tokens."""


@dataclass(frozen=True)
class Adapted(Work):
    """The same of a model with adapters on all matrices."""

    rank: int = 8

    @property
    def spec(self) -> ModelSpec:
        return replace(self.case.spec(self.layers), adapters=Adapters(self.rank, 16.0))

    def model(self) -> ModelConfig:
        found = super().model()
        return replace(found, shape=replace(found.shape, adapters=Adapters(self.rank, 16.0)))


@pytest.mark.parametrize("work", few(CASES, *KEPT), ids=str)
def test_what_stays_and_what_work_needs(work: Work) -> None:
    stays, needs = vllm(work)
    found = work.predicted("vllm")
    # Nobody brings it new weights here.
    held = sum(size for what, size in found.resident.parts if what != "messages")
    assert held == pytest.approx(stays, rel=0.03)
    assert found.active.total == pytest.approx(needs, rel=0.1)


@pytest.mark.parametrize(
    "rank, adapters, layers, response",
    few(
        [
            *((rank, adapters, 4, 20) for rank in (8, 12) for adapters in ("merged", "apart")),
            (8, "merged", 2, 4),
            (12, "apart", 2, 4),
        ],
        (12, "apart", 2, 4),
    ),
)
def test_adapters(adapters: str, rank: int, layers: int, response: int) -> None:
    """As copies of the matrices that have some, or in places beside these."""
    case = Case("llama", rows=16, length=64, fields=MANY)
    work = Adapted("generate", case, layers, 4, response=response, adapters=adapters, rank=rank)
    stays, needs = vllm(work, adapters=adapters)
    found = work.predicted("vllm")
    held = sum(size for what, size in found.resident.parts if what != "messages")
    assert held == pytest.approx(stays, rel=0.03)
    assert found.active.total == pytest.approx(needs, rel=0.1)


@pytest.mark.long
@pytest.mark.parametrize(
    "case",
    [
        Case("mixtral", rows=16, length=64, fields=(*FEW, ("num_local_experts", 4))),
        Case("deepseek_v3", rows=16, length=64, fields=KERNELS),
    ],
    ids=str,
)
def test_experts_stay_twice(case: Case) -> None:
    """Its kernel's own scratch is not among the tensors."""
    work = Work("generate", case, 4, response=20)
    stays, _ = vllm(work)
    held = sum(size for what, size in work.predicted("vllm").resident.parts if what != "messages")
    assert held == pytest.approx(stays, rel=0.03)
