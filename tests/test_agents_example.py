"""The example of a chat model with a calculator, with a tiny model in the place of the real one."""

from __future__ import annotations

import importlib.util
import runpy
import shutil
from pathlib import Path

import pytest

import rlgraph

EXAMPLE = Path(__file__).parent.parent / "examples" / "agents"
TINY = (
    'random("qwen2", hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2, '
    "num_key_value_heads=1, max_position_embeddings=2048, tokenizer=bytes())"
)


def test_the_programs_are_right() -> None:
    """But for the model, which `make demo` fetches."""
    found = [rlgraph.check(path) for path in sorted(EXAMPLE.glob("*.rlf"))]
    assert [[problem for problem in problems if problem.code != "W0790"] for problems in found] == [[], [], [], []]


def test_the_calculator_calculates_and_runs_nothing_else() -> None:
    calculate = runpy.run_path(str(EXAMPLE / "tools.py"))["calculate"]
    assert [calculate("2+3*4"), calculate("-(1-3)/4"), calculate("431 - 206")] == ["14", "0.5", "225"]
    for wrong in ("open('x')", "a", "2**9", "1+"):
        with pytest.raises((ValueError, SyntaxError)):
            calculate(wrong)


def test_a_sum_is_right_where_the_last_message_ends_with_it() -> None:
    tasks = runpy.run_path(str(EXAMPLE / "tasks.py"))
    says, calls = {"role": "assistant", "content": "It is 5."}, [{"result": "5", "failed": False}]
    called = [{**says, "tool_calls": []}]
    assert tasks["right"](
        [[says], called, called, called], ["5"] * 4, [[], calls, calls[:0], [{"result": "", "failed": True}]]
    ) == [1.0, 0.4, 0.0, 0.0]
    trained, unseen = ({row["prompt"][-1]["content"] for row in tasks["sums"](*how)} for how in ((64,), (32, 1)))
    assert not trained & unseen


def test_who_halves_what_is_left_finds_each_number() -> None:
    game = runpy.run_path(str(EXAMPLE / "guess.py"))
    for row in game["secrets"]():
        env, low, high, said, over = game["Guess"](), 1, game["MOST"], "", False
        assert env.reset(row) == ""
        for _ in range(3):
            if not over:
                guess = (low + high) // 2
                said, reward, over = env.step(f" {guess}.")
                low, high = (guess + 1, high) if said == "More." else (low, guess - 1)
        assert (said, reward, over) == ("Yes!", 1.0, True)
    for wrong in ("", "8", "0", "It is 4", "44"):
        assert env.step(wrong) == ("A number!", -0.1, False)


def test_the_game_is_played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a model of random bytes, which finds nothing."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(EXAMPLE, tmp_path / "agents")
    changes = {"base": TINY, "n": "2", "actor": 'causal_lm(base, chat=chat(template="tools.jinja"))'}
    [step] = rlgraph.compile("agents/guess.rlf", set=changes).run(1, progress=False).metrics
    assert step["found"] == 0.0 and step["reward"] == pytest.approx(-0.1 * step["turns"])


def test_it_trains_and_is_graded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of random bytes calls nothing, and all else is as it is with the real one."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(EXAMPLE, tmp_path / "agents")
    few = 'python("tasks.py:sums", count=2, batch=2)'
    for name, metric, changes in (
        ("calculator", "reward", {"prompts": few, "n": "2"}),
        ("evaluate", "accuracy", {"unseen": few}),
    ):
        run = rlgraph.compile(f"agents/{name}.rlf", set={"base": TINY, **changes}).run(1, progress=False)
        assert run.metrics[0][metric] == 0.0 == run.metrics[0]["calls"]


@pytest.mark.skipif(importlib.util.find_spec("openai") is None, reason="the package `openai` is not installed")
def test_the_agent_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the client of OpenAI, on what the model of random bytes answers."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(EXAMPLE, tmp_path / "agents")
    few = 'python("tasks.py:sums", count=2, batch=2)'
    changes = {"base": TINY, "tasks": few, "unseen": few, "shell": 'agent("bot.py:solve", workers=2)'}
    program = rlgraph.compile("agents/agent.rlf", set=changes)
    [step] = program.run(1, progress=False).metrics
    assert (step["reward"], step["turns"], step["died"]) == (0.0, 1.0, 0.0)


@pytest.mark.skipif(importlib.util.find_spec("openai") is None, reason="the package `openai` is not installed")
def test_the_program_that_ships_trains_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command of the page: an agent in the place of the environment, and nothing else is changed but sizes."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(EXAMPLE, tmp_path / "agents")
    monkeypatch.chdir(tmp_path / "agents")
    few = 'python("tasks.py:sums", count=4, batch=4)'
    changes = {"base": TINY, "tasks": few, "unseen": few, "shell": 'agent("bot.py:solve", workers=2)'}
    changes["actor"] = 'causal_lm(base, chat=chat(template="tools.jinja"))'
    program = rlgraph.compile("agent", set=changes)
    [step] = program.run(1, progress=False).metrics
    assert (step["reward"], step["turns"]) == (0.0, 1.0)
