"""What the cost model says of memory, beside the tensors of Megatron-core's ranks that work."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("megatron.core")

from rlgraph.ir.mesh import make_mesh
from tests.backends.engines.ranks import Ranks
from tests.passes.cost.allocated import Work, on_rank
from tests.passes.cost.test_adapters_memory import Tuned
from tests.passes.cost.trained import Case
from tests.suites import few

WIDE = (("hidden_size", 256), ("intermediate_size", 512))
CASES = [
    Work("train", Case("qwen2")),
    Work("train", Case("qwen2", dtype="bfloat16", scored=64), micros=3),
    Work("train", Case("llama", rows=1, length=32, scored=8, fields=WIDE), 4),
    Work("train", Case("qwen2"), micros=2, split=make_mesh(tp=2)),
    Work("train", Case("qwen2", scored=64), 4, 4, split=make_mesh(pp=2)),
    Work("train", Case("qwen2", scored=64), 5, 4, split=make_mesh(pp=2)),
    # gloo keeps the gradients that chunks have sent until the end.
    Work("train", Case("qwen2", scored=64), 8, 4, split=make_mesh(pp=2, chunks=2)),
    Work("train", Case("llama", dtype="bfloat16", rows=4, length=100, fields=WIDE), 4, 2, split=make_mesh(dp=2)),
    Work("train", Case("qwen2", scored=64), micros=2, split=make_mesh(cp=2)),
    Work(
        "train", Case("llama", dtype="bfloat16", rows=3, length=200, scored=32, fields=WIDE), 4, split=make_mesh(cp=2)
    ),
    Work("logprobs", Case("qwen2", scored=64)),
    Work("logprobs", Case("llama", dtype="bfloat16", rows=64, length=9, scored=8)),
    # gloo lets go of what it added up or gathered a moment later: a wide network outweighs that.
    Work("logprobs", Case("qwen3", rows=2, length=400, scored=64, fields=WIDE), split=make_mesh(cp=2)),
    Work("logprobs", Case("llama", rows=2, fields=(*WIDE, ("intermediate_size", 2048))), 4, 4, split=make_mesh(tp=2)),
    Tuned("train", Case("qwen2")),
    Tuned("train", Case("llama", rows=1, length=32), layers=4),
    Tuned("train", Case("qwen2", dtype="bfloat16", scored=64), micros=3),
    Tuned("train", Case("llama", kind="value_lm"), micros=2, split=make_mesh(tp=2)),
    Tuned("train", Case("qwen2", scored=64), 4, 4, split=make_mesh(pp=2)),
    Tuned("train", Case("qwen2", scored=64), 3, 4, split=make_mesh(pp=2)),
    Tuned("train", Case("llama", dtype="bfloat16", rows=4, length=100, fields=WIDE), 4, 2, split=make_mesh(dp=2)),
    Tuned("train", Case("qwen3", scored=64), micros=2, split=make_mesh(cp=2)),
    Tuned("logprobs", Case("qwen2", scored=64)),
]


KEPT = [
    Work("train", Case("llama", rows=1, length=32, scored=8, fields=WIDE), 4),
    Work("train", Case("qwen2"), micros=2, split=make_mesh(tp=2)),
    Work("train", Case("qwen2", scored=64), 8, 4, split=make_mesh(pp=2, chunks=2)),
    Work("train", Case("qwen2", scored=64), micros=2, split=make_mesh(cp=2)),
    Work("logprobs", Case("qwen2", scored=64)),
    Work("logprobs", Case("llama", dtype="bfloat16", rows=64, length=9, scored=8)),
    Work("logprobs", Case("qwen3", rows=2, length=400, scored=64, fields=WIDE), split=make_mesh(cp=2)),
    Tuned("train", Case("llama", kind="value_lm"), micros=2, split=make_mesh(tp=2)),
    Tuned("train", Case("llama", dtype="bfloat16", rows=4, length=100, fields=WIDE), 4, 2, split=make_mesh(dp=2)),
    Tuned("logprobs", Case("qwen2", scored=64)),
]


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    started = Ranks(2)
    yield started
    started.close()


@pytest.mark.parametrize("work", few(CASES, *KEPT), ids=str)
def test_what_stays_and_what_work_needs(ranks: Ranks, work: Work) -> None:
    stays, needs = max(ranks.run(work.split, on_rank, work), key=sum)
    found = work.predicted("megatron")
    held = found.resident.total
    assert held == pytest.approx(stays, rel=0.03)
    assert held + found.active.total == pytest.approx(stays + needs, rel=0.1)
    assert found.active.total == pytest.approx(needs, rel=0.1)
