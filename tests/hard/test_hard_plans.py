"""A few of the random plans of `benchmarks/hard_plans.py`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.hard_plans import ALGORITHMS, drawn, outcome
from tests.suites import few


@pytest.mark.parametrize("seed", few([1, 24, 37, 40, 41], 24))
def test_a_random_plan_is_as_full_as_planned_and_computes_what_one_process_does(seed: int, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    found = outcome(drawn(seed, False), tmp_path, False)
    assert not found.wrong


def test_the_same_seed_draws_the_same_plan() -> None:
    plans = [drawn(seed, True) for seed in range(200)]
    assert plans == [drawn(seed, True) for seed in range(200)]
    assert {plan.name for plan in plans} == {*ALGORITHMS}
    layouts = " ".join(plan.layout for plan in plans)
    for word in ("apart", "shared", "asleep", "three", "fused", "chunks=2", "vllm", "tp=2", "fsdp=2", "adapters"):
        assert word in layouts, word
