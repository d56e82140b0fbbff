"""`--data` and `--reward` in the place of whole settings: 3 s, most of it for one run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from programs_on_disk import write_tiny

import rlgraph
from rlgraph.cli import run_command
from rlgraph.passes.compilation.short_forms import DATA, REWARD, with_short_forms

AGENT = "agent"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test works in a folder of its own, where `tiny.rlf` is."""
    monkeypatch.chdir(tmp_path)
    write_tiny(tmp_path)
    return tmp_path


def setting(program: str, data: str = "", reward: str = "") -> dict[str, str]:
    return with_short_forms({}, program, {DATA: [data] if data else [], REWARD: [reward] if reward else []})


@pytest.mark.parametrize(
    ("program", "data", "settings"),
    [
        ("grpo", "mine.jsonl", {"prompts": 'jsonl("mine.jsonl", batch=512)'}),
        ("grpo", "mine.jsonl, batch=8, limit=9", {"prompts": 'jsonl("mine.jsonl", batch=8, limit=9)'}),
        ("grpo", "rows.parquet", {"prompts": 'parquet("rows.parquet", batch=512)'}),
        ("grpo", "more/*.jsonl", {"prompts": 'files("more/*.jsonl", batch=512)'}),
        ("grpo", "openai/gsm8k", {"prompts": 'hub("openai/gsm8k", batch=512)'}),
        ("grpo", "tasks.py:sums", {"prompts": 'python("tasks.py:sums", batch=512)'}),
        ("grpo", 'a "b".jsonl', {"prompts": 'jsonl("a \\"b\\".jsonl", batch=512)'}),
        ("agent", "unseen=a=b.jsonl", {"unseen": 'jsonl("a=b.jsonl", batch=128)'}),
        ("sft", "date=1.jsonl", {"pairs": 'jsonl("date=1.jsonl", batch=256)'}),
    ],
)
def test_data(program: str, data: str, settings: dict[str, str]) -> None:
    assert setting(program, data) == settings


def test_a_reward() -> None:
    assert setting("grpo", reward="mine.py:score") == {"correct": 'python("mine.py:score", over=row)'}
    assert setting("grpo", reward="judges:score, over=group") == {"correct": 'python("judges:score", over=group)'}
    assert setting("grpo", "a.jsonl", "b.py:c").keys() == {"prompts", "correct"}


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["agent", "--data", "a.jsonl"], "the program declares several `data`: `tasks` and `unseen`", "--data tasks=a.jsonl"),
        (["ppo", "--reward", "a.py:b"], "the program declares no `func`", "its reward is a model's"),
        (["grpo", "--reward", "a/b"], "`a/b` is no function", '`model taste = frozen(reward_lm("a/b"))`'),
        (["grpo", "--reward", "score"], "`score` is no function of a file or a module", "--reward rewards.py:score"),
        (["grpo", "--data", ",batch=4"], "`` is no source of data", "--data mine.jsonl"),
        (["grpo", "--set", "prompts=1", "--data", "a.jsonl"], "`prompts` is set twice", "not by both"),
        (["grpo", "--data", "a.jsonl", "--data", "b.jsonl"], "`prompts` is set twice", ""),
    ],
)  # fmt: skip
def test_what_stands_for_no_setting(
    arguments: list[str], message: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["check", *arguments]) == 2
    err = capsys.readouterr().err
    assert f"error[E0791]: {message}" in err and hint in err and "^" in err


@pytest.mark.parametrize("command", ["check", "compile", "simulate", "doctor", "run"])
def test_every_command_that_takes_a_program_has_them(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command([command, AGENT, "--data", "a.jsonl"]) == 2
    assert "E0791" in capsys.readouterr().err


def test_what_is_wrong_with_the_program_is_told_first(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "wrong.rlf").write_text("algorithm a\nstep\n")
    assert run_command(["check", "wrong.rlf", "--data", "a.jsonl"]) == 1
    assert "wrong.rlf:2:" in capsys.readouterr().err
    assert run_command(["run", "plan.json", "--data", "a.jsonl"]) == 2
    assert "`--data` does not go with a plan file" in capsys.readouterr().err


def test_a_run_with_them_resumes_with_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "mine.jsonl").write_text('{"prompt": "a>"}\n' * 3)
    (folder / "mine.py").write_text("def fixed(completions, **columns):\n    return [2.0 for _ in completions]\n")
    arguments = [
        "--data",
        "mine.jsonl",
        "--reward",
        "mine.py:fixed",
        "--steps",
        "1",
        "--out",
        "run",
        "--save-every",
        "1",
    ]
    assert run_command(["run", "tiny.rlf", *arguments]) == 0
    assert run_command(["resume", "run", "--steps", "2"]) == 0
    rows = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["reward"] for row in rows] == [2.0, 2.0]


def test_a_text_without_quotes_is_a_model_where_a_file_was(folder: Path) -> None:
    program = (
        'algorithm a\nparam base = gguf("m.gguf")\nmodel m = causal_lm(base)\ndata d = jsonl("d.jsonl", batch=1)\n'
    )
    program += "step:\n    r = m.generate(d, max_tokens=1)\n    report n = mean(r.length)\n"
    (folder / "other.gguf").write_bytes(b"")
    (folder / "runs/a-1/models/m").mkdir(parents=True)
    for value in ("Qwen/Qwen2.5-0.5B", "runs/a-1/models/m", '"quoted"', 'gguf("other.gguf")'):
        assert rlgraph.check(program, {"base": value}) == [], value
    assert [problem.code for problem in rlgraph.check(program, {"base": "other.gguf"})] == ["W0790"]


def test_a_model_that_is_not_here(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for value, message in {
        'gguf("m.gguf")': "the file 'm.gguf', which `actor` is made of, is not here",
        '"/models/m"': "the folder '/models/m', from which `actor` is loaded, is not here",
        '"runs/sft-1/models/actor"': "the folder 'runs/sft-1/models/actor'",
        '"m.gguf"': "'m.gguf' is no folder, and no name of the hub",
    }.items():
        assert run_command(["check", "tiny.rlf", "--set", f"actor=causal_lm({value})"]) == 0
        err = capsys.readouterr().err
        assert f"warning[W0790]: {message}" in err and "^" in err and "1 warning" in err
    two = 'algorithm a\nparam base = "./m"\nmodel m = causal_lm(base)\nmodel v = value_lm(base)\n'
    two += 'data d = jsonl("d.jsonl", batch=1)\nstep:\n    r = m.generate(d, max_tokens=1)\n'
    two += "    report n = mean(v.values(r))\n"
    assert [problem.code for problem in rlgraph.check(two)] == ["W0790"], "once for all that are made of it"
    (folder / "runs/sft-1/models/actor").mkdir(parents=True)
    for value in ('"runs/sft-1/models/actor"', '"owner/name"', '"name"'):
        assert rlgraph.check(folder / "tiny.rlf", {"actor": f"causal_lm({value})"}) == []


def test_an_algorithm_by_its_name_in_python() -> None:
    assert rlgraph.check("grpo") == [] and rlgraph.compile("grpo").name == "grpo"
    assert "did you mean `grpo`?" in rlgraph.check("grop")[0].hint
