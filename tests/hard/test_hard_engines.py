"""Megatron trains and vLLM samples on hard devices, in processes of Ray's: as full as planned, and as one process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.hard_plans import FULL, Drawn, drawn, outcome

pytest.importorskip("megatron.core")
pytest.importorskip("vllm")

SCHEDULES = {
    "apart": """
schedule grpo
pool learn = 2 devices
pool play = 1 devices
place actor.train, ref on learn(engine=megatron, tp=2)
place actor.generate on play(engine=vllm, cache=1e6, max_len=64)
""",
    "shared": """
schedule grpo
pool all = 2 devices
place actor.train, ref on all(engine=megatron, tp=2, sleep=true)
place actor.generate on all(engine=vllm, sleep=true, cache=1e6, max_len=64)
""",
}


def case(layout: str) -> Drawn:
    """GRPO with a model without adapters, laid out so."""
    plain = (plan for seed in range(200) for plan in [drawn(seed, True)] if plan.name == "grpo")
    given = next(plan for plan in plain if "actor" not in plan.settings)
    return replace(given, schedule=SCHEDULES[layout], nodes=1, per_node=3, layout=layout)


@pytest.mark.long
@pytest.mark.parametrize("layout", SCHEDULES)
def test_three_steps_with_both_engines(layout: str, tmp_path: Path) -> None:
    """Two to three minutes on two busy cores."""
    torch.set_num_threads(1)
    given = case(layout)
    found = outcome(given, tmp_path, True)
    assert not [text for text in found.wrong if not text.startswith("the fullest device has")]
    # Ranks of one copy of the trainer have as much, where nobody sleeps as much as is planned.
    first, second, *samples = (found.measured[device] for device in sorted(found.measured))
    assert first == pytest.approx(second, rel=0.01)
    assert first == pytest.approx(found.planned["all" if layout == "shared" else "learn"], rel=FULL)
    # A plan has room for as many prompt tokens as vLLM reads at a time, and there are fewer.
    assert all(peak <= found.planned["play"] for peak in samples)
