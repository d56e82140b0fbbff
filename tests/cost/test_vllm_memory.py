"""What the cost model says of memory, beside the tensors of vLLM while it generates."""

from __future__ import annotations

import pytest

pytest.importorskip("vllm")

from tests.cost.allocated import Work, vllm
from tests.cost.trained import Case

FEW = (("hidden_size", 128), ("head_dim", 32))
MANY = (("hidden_size", 256), ("head_dim", 32), ("num_attention_heads", 8), ("intermediate_size", 1024))
CASES = [
    Work("generate", Case("llama", rows=16, length=64, fields=FEW), micros=4, response=60),
    Work("generate", Case("llama", rows=16, length=64, fields=MANY), 4, 4, response=20),
]


@pytest.mark.parametrize("work", CASES, ids=str)
def test_what_stays_and_what_work_needs(work: Work) -> None:
    stays, needs = vllm(work)
    found = work.predicted("vllm")
    # Nobody brings it new weights here.
    held = sum(size for what, size in found.resident.parts if what != "messages")
    assert held == pytest.approx(stays, rel=0.03)
    assert found.active.total == pytest.approx(needs, rel=0.1)


def test_experts_stay_twice() -> None:
    """Its kernel's own scratch is not among the tensors."""
    work = Work(
        "generate", Case("mixtral", rows=16, length=64, fields=(*FEW, ("num_local_experts", 4))), 4, response=20
    )
    stays, _ = vllm(work)
    held = sum(size for what, size in work.predicted("vllm").resident.parts if what != "messages")
    assert held == pytest.approx(stays, rel=0.03)
