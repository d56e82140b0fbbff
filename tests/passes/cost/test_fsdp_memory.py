"""What the cost model says of memory, beside the tensors of ranks that share a model out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from rlgraph.ir.mesh import make_mesh
from tests.backends.engines.ranks import Ranks
from tests.passes.cost.allocated import Work, shared_out
from tests.passes.cost.test_adapters_memory import Tuned
from tests.passes.cost.trained import Case
from tests.suites import few

WIDE = (("hidden_size", 256), ("intermediate_size", 512))
EXPERTS = (("num_experts", 8), ("num_experts_per_tok", 2), ("moe_intermediate_size", 64))
TIED = (*WIDE, ("tie_word_embeddings", True))
SMALL = Case("llama", rows=2, length=32, scored=8, fields=WIDE)
TWO, BOTH = make_mesh(fsdp=2), make_mesh(fsdp=2, tp=2)
CASES = [
    Work("train", Case("qwen2"), split=TWO),
    Work("train", Case("qwen2", scored=64), micros=3, split=TWO),
    Work("train", SMALL, 4, 3, split=TWO),
    Work("train", replace(SMALL, dtype="bfloat16"), 4, 2, split=TWO),
    Work("train", Case("qwen2", rows=2, length=16, fields=TIED), 6, split=make_mesh(fsdp=4)),
    Work("train", SMALL, 4, split=make_mesh(dp=2, fsdp=2)),
    Work("train", Case("qwen3_moe", rows=2, length=32, fields=EXPERTS), 4, split=TWO),
    Work("train", Case("qwen2", scored=8), 4, split=TWO, recompute=True),
    Work("logprobs", Case("qwen2", scored=64), split=TWO),
    Work("logprobs", SMALL, 4, 2, split=TWO),
    *(Work("train", case, 4, 3, split=make_mesh(tp=2)) for case in (Case("llama", scored=8), SMALL)),
    Work("train", Case("qwen3_moe", rows=2, length=32, fields=EXPERTS), 4, 3, split=make_mesh(tp=2)),
    Work("logprobs", Case("llama", scored=64), 4, split=make_mesh(tp=2)),
    Work("generate", replace(SMALL, rows=4), 4, 2, split=make_mesh(tp=2), response=32),
    Work("train", SMALL, 4, 3, split=BOTH),
    Work("train", replace(SMALL, dtype="bfloat16"), 4, 2, split=BOTH),
    Work("train", Case("qwen2", rows=2, length=32, scored=8, fields=TIED), 4, split=BOTH, recompute=True),
    Work("logprobs", SMALL, 4, 2, split=BOTH),
    *(Tuned("train", SMALL, 4, 2, split=split) for split in (TWO, make_mesh(tp=2), BOTH)),
    Tuned("train", replace(SMALL, dtype="bfloat16"), 4, 2, split=TWO),
    *(
        Work("train", SMALL, layers, micros, split=split, gather="update")
        for layers, micros, split in ((4, 3, TWO), (6, 2, make_mesh(dp=2, fsdp=2)), (4, 3, BOTH))
    ),
    Work("train", replace(SMALL, dtype="bfloat16"), 4, 2, split=TWO, gather="update"),
    Work("train", Case("qwen2", scored=8), 4, split=TWO, recompute=True, gather="update"),
    Tuned("train", SMALL, 4, 2, split=TWO, gather="update"),
    Work("logprobs", SMALL, 4, 2, split=TWO, gather="update"),
]


KEPT = [
    Work("train", Case("qwen2", scored=64), micros=3, split=TWO),
    Work("train", SMALL, 4, split=make_mesh(dp=2, fsdp=2)),
    Work("train", Case("qwen3_moe", rows=2, length=32, fields=EXPERTS), 4, split=TWO),
    Work("train", Case("qwen2", scored=8), 4, split=TWO, recompute=True),
    Work("logprobs", Case("qwen2", scored=64), split=TWO),
    Work("train", SMALL, 4, 3, split=make_mesh(tp=2)),
    Work("logprobs", Case("llama", scored=64), 4, split=make_mesh(tp=2)),
    Work("train", replace(SMALL, dtype="bfloat16"), 4, 2, split=TWO, gather="update"),
]


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    started = Ranks(4)
    yield started
    started.close()


@pytest.mark.parametrize("work", few(CASES, *KEPT), ids=str)
def test_what_stays_and_what_work_needs(ranks: Ranks, work: Work) -> None:
    stays, needs = max(ranks.run(work.split, shared_out, work), key=sum)
    found = work.predicted("transformers")
    held = found.resident.total
    assert held == pytest.approx(stays, rel=0.03)
    assert held + found.active.total == pytest.approx(stays + needs, rel=0.1)
    assert found.active.total == pytest.approx(needs, rel=0.15)
