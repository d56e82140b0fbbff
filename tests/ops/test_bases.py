"""Models that never change, and have one copy of their weights."""

from __future__ import annotations

import pytest

import rlgraph
from rlgraph.ops.shared_base_models import models_by_shared_base

PROGRAM = """algorithm t
model actor  = causal_lm("m")
model first  = frozen(causal_lm("r", dtype="float32"))
model second = frozen(causal_lm("r", dtype="DTYPE"))
data prompts = jsonl("prompts.jsonl")
step:
    rollout = actor.generate(prompts, max_tokens=4)
    report gap = mean(first.logprobs(rollout) - second.logprobs(rollout))
"""


@pytest.mark.parametrize(("dtype", "bases"), [("float32", {"first": ("first", "second")}), ("bfloat16", {})])
def test_one_copy_has_one_dtype(dtype: str, bases: dict[str, tuple[str, ...]]) -> None:
    assert models_by_shared_base(rlgraph.compile(PROGRAM.replace("DTYPE", dtype)).program) == bases
