"""`rlgraph new`: each algorithm that ships becomes a folder that is right, and runs. 12 s: four of them run a step."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import pytest

import rlgraph
from rlgraph.api.starter.folder import write_starter
from rlgraph.cli import run_command
from rlgraph.cli.listing import shipped_algorithms
from rlgraph.runs.events import Event, Note
from tests.gguf_file import write
from tests.suites import few

NAMES = [*shipped_algorithms()]
# Adapters on a model of random weights: no prompt has both right and wrong answers, of which `collect` would wait for 8.
# And VAPO has fifty steps of a phase before its first one.
RUN = [name for name in NAMES if name not in ("dapo", "vapo")]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny chat model as a file."""
    pytest.importorskip("gguf")
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write(path)
    return path


@pytest.mark.parametrize("name", NAMES)
def test_what_it_writes_is_right(name: str, tmp_path: Path) -> None:
    written = write_starter(name, tmp_path / "my")
    assert {*written} == {*(tmp_path / "my").iterdir()}
    # The README says how the model's file is fetched.
    assert {problem.code for problem in rlgraph.check(tmp_path / "my" / f"{name}.rlf")} == {"W0790"}
    text = (tmp_path / "my" / f"{name}.rlf").read_text()
    assert "Qwen" not in text and "rlgraph list " in text
    assert all(int(most) <= 16 for most in re.findall(r"max_tokens=(\d+)", text))
    assert all(int(most) <= 4 for most in re.findall(r"^phase .*steps=(\d+)", text, re.MULTILINE))
    rates = re.findall(r"lr=([^,)]+)", text)
    assert {re.findall(rf"param {rate} *= (\S+)", text)[0] if rate.isidentifier() else rate for rate in rates} <= {
        "2e-4"
    }
    # Two judges that are the same would give a gain and a cost that are one.
    judges = re.findall(r"random\((?:[^()]|\(\))*\)", text)
    assert len({*judges}) == len(judges) == {"safe_rlhf": 2}.get(name, len(judges))
    for data in (tmp_path / "my").glob("*.jsonl"):
        rows = [json.loads(line) for line in data.read_text().splitlines()]
        assert len(rows) == 64 and all(isinstance(row["prompt"], list) for row in rows)


@pytest.mark.parametrize("name", few(RUN, "grpo", "ppo", "agent", "spiral"))
def test_what_it_writes_runs(name: str, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_ASSETS_CACHE", str(model.parent / "assets"))
    write_starter(name, tmp_path / "my", str(model))
    monkeypatch.chdir(tmp_path / "my")
    seen: list[Event] = []
    run = rlgraph.compile(f"{name}.rlf").run(1, out="run", progress=False, on_event=seen.append)
    assert len(run.metrics) == 1 and run.saved
    assert [event.text for event in seen if isinstance(event, Note) and "warning" in event.text] == []


def test_what_each_needs_follows_from_the_program(tmp_path: Path) -> None:
    made = {name: {path.name for path in write_starter(name, tmp_path / name)} for name in NAMES}
    assert made["grpo"] == {"README.md", "grpo.rlf", "prompts.jsonl", "rewards.py"}
    assert made["sft"] == {"README.md", "sft.rlf", "pairs.jsonl"}
    assert made["agent"] == {"README.md", "agent.rlf", "tasks.jsonl", "unseen.jsonl", "envs.py"}
    columns = {
        name: {*json.loads((tmp_path / name / data).read_text().splitlines()[0])}
        for name, data in {"grpo": "prompts.jsonl", "sft": "pairs.jsonl", "ppo": "prompts.jsonl"}.items()
    }
    assert columns == {"grpo": {"prompt", "answer"}, "sft": {"prompt", "completion"}, "ppo": {"prompt"}}
    pair = json.loads((tmp_path / "reward_model" / "pairs.jsonl").read_text().splitlines()[0])
    assert [pair[name][0]["content"] for name in ("chosen", "rejected")] == ["4", "5"]
    trained, held = (
        {row["prompt"][0]["content"] for row in map(json.loads, (tmp_path / "agent" / file).read_text().splitlines())}
        for file in ("tasks.jsonl", "unseen.jsonl")
    )
    assert not trained & held
    assert "`reward` of random weights" in (tmp_path / "ppo" / "README.md").read_text()
    assert "random weights" not in (tmp_path / "grpo" / "README.md").read_text()


def test_the_reward_takes_answers_that_are_numbers(tmp_path: Path) -> None:
    write_starter("grpo", tmp_path / "my")
    reward = runpy.run_path(str(tmp_path / "my" / "rewards.py"))["correct"]
    assert reward(["2+2 is 4.", "5", "12.5", [{"role": "assistant", "content": "-3"}]], [4, "4", 12.5, "-3"]) == [
        1,
        0,
        1,
        1,
    ]


def test_a_program_of_ones_own(tmp_path: Path) -> None:
    """Sizes, columns and arguments that no published program has."""
    (tmp_path / "mine.rlf").write_text(
        """\
algorithm mine
param base = "Qwen/Qwen2.5-7B"
param most = 2048   # at most 2048 tokens
param soft = 512
model actor = causal_lm(base, lora=lora(rank=4, alpha=8))
data tasks  = parquet("tasks.parquet", batch=64, shuffle=false)
func judge  = python("judges.py:judge", over=group)
step:
    rollout = actor.generate(tasks.question, n=2, max_tokens=most)
    late    = clip((most - soft - rollout.length) / soft, -1, 0)
    score   = judge(rollout, level=tasks.level) + late + 0.1 * tasks.level
    train actor(lr=1e-6):
        minimize -mean(actor.logprobs(rollout) * score)
"""
    )
    write_starter(str(tmp_path / "mine.rlf"), tmp_path / "my", 'a "model"')
    text = (tmp_path / "my" / "mine.rlf").read_text()
    assert rlgraph.check(tmp_path / "my" / "mine.rlf") == []
    assert "few and short answers: `" in text and "mine.rlf` is as it was.\n" in text
    assert 'param base  = "a \\"model\\""' in text
    assert "param most  = 16  # at most 16 tokens\n" in text and "param soft  = 4\n" in text
    assert "lora=lora(rank=4, alpha=8))\n" in text and "train actor(lr=2e-4):" in text
    assert 'jsonl("tasks.jsonl", batch=8, shuffle=false)' in text and 'python("rewards.py:judge", over=group)' in text
    row = json.loads((tmp_path / "my" / "tasks.jsonl").read_text().splitlines()[0])
    assert row.keys() == {"question", "level", "answer"} and isinstance(row["level"], int)
    assert "def judge(completions, answer, level, **columns):" in (tmp_path / "my" / "rewards.py").read_text()


def test_nothing_is_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my").mkdir()
    assert run_command(["new", "grpo", "my"]) == 0
    assert "rlgraph doctor grpo.rlf" in capsys.readouterr().out
    before = {path: path.read_text() for path in (tmp_path / "my").iterdir()}
    assert run_command(["new", "sft", "my"]) == 2
    assert "error[E0790]: the folder `my` is not empty: it has `README.md`" in capsys.readouterr().err
    assert run_command(["new", "sft", "my/grpo.rlf"]) == 2
    assert "`my/grpo.rlf` is a file" in capsys.readouterr().err
    assert {path: path.read_text() for path in (tmp_path / "my").iterdir()} == before
    assert run_command(["new", "sft", "my/grpo.rlf/deeper"]) == 2


def test_an_algorithm_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command(["new", "gropo", "my"]) == 1
    assert "did you mean `grpo`?" in capsys.readouterr().err and not (tmp_path / "my").exists()


def test_a_row_says_whether_its_answer_is_good(tmp_path: Path) -> None:
    write_starter("kto", tmp_path / "my")
    rows = [json.loads(line) for line in (tmp_path / "my" / "rows.jsonl").read_text().splitlines()]
    for row in rows:
        left, right = (int(number) for number in row["prompt"][0]["content"].split()[2].rstrip("?").split("+"))
        assert row["label"] == (row["completion"][0]["content"] == str(left + right))
    assert {row["label"] for row in rows} == {True, False}
