"""Ctrl-C while plans are searched for: there is an answer, with what was found by then."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rlgraph
from rlgraph.cli import run_command
from rlgraph.explain import evaluated_change, whatif
from rlgraph.explain import explain as explaining
from rlgraph.explain.placement_strategies import OVER
from rlgraph.passes.placement.search.search import Search
from tests.interrupting import ctrl_c

PROGRAM = """\
algorithm alone
model actor  = causal_lm(random("qwen2", hidden_size=1024, intermediate_size=4096, num_hidden_layers=8,
    num_attention_heads=8, num_key_value_heads=8, tokenizer=bytes()))
data prompts = jsonl("prompts.jsonl", batch=64)
step:
    rollout = actor.generate(prompts, max_tokens=128)
    train actor(lr=1e-6):
        minimize -mean(actor.logprobs(rollout))
    report length = mean(rollout.length)
"""
CLUSTER = "1x2:a100-80gb"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "alone.rlf"
    path.write_text(PROGRAM)
    return path


def test_compile_takes_the_best_plan_and_says_by_its_exit_code_that_it_was_interrupted(
    program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # It is called as soon as a search has a plan, and before it is over.
    monkeypatch.setattr(Search, "search_shared_pipelines", lambda search: ctrl_c())
    out = program.parent / "out"
    assert run_command(["compile", str(program), "--cluster", CLUSTER, "--emit", "plan", "-o", str(out)]) == 130
    [plan] = out.glob("*.json")
    assert json.loads(plan.read_text())["predicted"]["seconds"] > 0
    said = capsys.readouterr().err
    assert said.count("interrupted: after") == 1 and "of searching this plan is taken" in said


def test_an_explanation_leaves_out_what_was_not_searched(
    program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled = rlgraph.compile(program, cluster=CLUSTER)
    whole, make_problem, calls = explaining.explain(compiled), evaluated_change.make_problem, 0

    def third(*arguments: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 3:
            ctrl_c()
        return make_problem(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(evaluated_change, "make_problem", third)
    shown = explaining.explain(compiled)
    searched = [change for change in shown.changes if not change.over]
    assert len(searched) == 2 < len(whole.changes) and set(searched) <= set(whole.changes)
    assert "interrupted: what was not searched by now is left out" in capsys.readouterr().err
    assert f"{OVER} before these were searched: " in str(shown)
    # The next explanation is whole again.
    monkeypatch.undo()
    assert explaining.explain(compiled).changes == whole.changes


def test_a_sweep_has_the_values_that_were_searched(
    program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled = rlgraph.compile(program, cluster=CLUSTER)
    choose_until, calls = whatif.choose_before_deadline, 0

    def second(*arguments: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 2:
            ctrl_c()
        return choose_until(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(whatif, "choose_before_deadline", second)
    points = compiled.what_if("response_tokens=32,64,96").points
    assert [point.over for point in points] == [False, True, True]
    assert "interrupted: " in capsys.readouterr().err
