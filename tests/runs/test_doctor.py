"""What the doctor says of machines and of programs: 6 s together, most of it for processes of reward functions."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from programs_on_disk import PROGRAM, write_tiny

from rlgraph import hub
from rlgraph.cli import run_command
from rlgraph.errors import NO_SPAN, Diagnostic
from rlgraph.runs.doctor import machine
from rlgraph.runs.doctor.finding import Finding, finding_of
from rlgraph.runs.doctor.machine import disk_finding, hub_findings, shared_memory_findings
from rlgraph.runs.doctor.packages import installed_version, package_findings
from tests.gguf_file import write

CHAT = """\
algorithm chat
model actor  = causal_lm(gguf("tiny.gguf"))
data prompts = jsonl("chat.jsonl", batch=1)
func score   = python("rewards.py:score")
step:
    rollout = actor.generate(prompts, max_tokens=4)
    reward  = score(rollout)
    train actor(lr=1e-3):
        minimize -mean(actor.logprobs(rollout) * reward)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test works in a folder of its own, where `tiny.rlf` is, and asks no hub."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hub, "hub_failure", lambda: "no hub is asked")
    write_tiny(tmp_path)
    return tmp_path


def checks(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, list[dict[str, str]]]]:
    """Exit code, and the checks by their subject."""
    code = run_command(["doctor", *arguments, "--message-format", "json"])
    found: dict[str, list[dict[str, str]]] = {}
    for line in capsys.readouterr().out.splitlines():
        record = json.loads(line)
        found.setdefault(record.get("subject", record["type"]), []).append(record)
    return code, found


# Programs


def test_a_program_that_would_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["doctor", "tiny.rlf"]) == 0
    machine_part, _, program = capsys.readouterr().out.partition("\n\ntiny.rlf\n")
    assert machine_part.startswith("this machine\n  ok       python ")
    assert (
        """\
  ok       program       algorithm tiny
  ok       prompts       jsonl("prompts.jsonl", batch=2): 4 rows, 2 a step
                         prompt: a text
  ok       actor         random("qwen2", hidden_size=16, """
        in program
    )
    assert "  ok       prompts.prompt  the first prompt as `actor` reads it, 2 tokens:\n" in program
    assert '7:">"' in program and "| " in program
    made_up = "called on made-up answers to the first row of `prompts`: 'This is a made-up answer: 42.': 3.0, '': 0.0"
    assert f"  ok       score         {made_up}\n\nnothing is wrong\n" in program


def test_nothing_is_wrong_with_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = checks(capsys)
    assert code == (1 if any(check["state"] == "fails" for rows in found.values() for check in rows) else 0)
    assert {"python", "rlgraph", "cores", "runs", "temporary", "models", "hub"} <= found.keys()


def test_everything_that_is_missing_is_told_at_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "prompts.jsonl").unlink()
    (folder / "rewards.py").write_text("import nothing_like_that\n\ndef score(completions): ...\n")
    code, found = checks(capsys, "tiny.rlf", "--set", 'actor=causal_lm("models/actor")')
    assert code == 1
    assert "there is no data file 'prompts.jsonl'" in found["prompts"][0]["message"]
    assert found["prompts"][0]["place"] == "tiny.rlf:8:22"
    assert "models/actor" in found["actor"][0]["message"] and found["actor"][0]["hint"]
    assert [rows[0]["state"] for name, rows in found.items() if name in ("prompts", "actor", "score")] == ["fails"] * 3


def test_a_program_that_is_wrong_is_shown_as_check_shows_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "wrong.rlf").write_text(PROGRAM.replace("score(rollout)", "score(rolout)"))
    assert run_command(["doctor", "wrong.rlf"]) == 1
    out, err = capsys.readouterr()
    assert "E0201" in err and "^^^^^^" in err
    assert "1 error, as said above\n" in out and "1 check would end a run" in out


def test_a_reward_that_fails_on_an_empty_answer(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "rewards.py").write_text(
        "def score(completions, **columns):\n    return [float(len(answer.split()[-1])) for answer in completions]\n"
    )
    code, found = checks(capsys, "tiny.rlf")
    assert code == 1
    assert "IndexError: list index out of range, on an empty answer to the first row" in found["score"][0]["message"]
    assert "completion = ''" in found["score"][0]["hint"]


def test_a_prompt_that_is_too_long(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "prompts.jsonl").write_text(f'{{"prompt": "{"a" * 80}"}}\n' * 2)
    code, found = checks(capsys, "tiny.rlf")
    assert code == 1 and "80 tokens" in found["prompts"][1]["message"]


def test_a_chat_model_from_a_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("gguf")
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_ASSETS_CACHE", str(folder / "assets"))
    (folder / "chat.rlf").write_text(CHAT)
    (folder / "chat.jsonl").write_text('{"prompt": [{"role": "user", "content": "ab?"}]}\n')
    (folder / "rewards.py").write_text(
        "def score(completions, **columns):\n    return [float(len(answer[0]['content'])) for answer in completions]\n"
    )
    code, found = checks(capsys, "chat.rlf")
    assert (code, found["actor"][0]["state"]) == (1, "fails") and "tiny.gguf" in found["actor"][0]["message"]
    write(folder / "tiny.gguf")
    code, found = checks(capsys, "chat.rlf")
    assert code == 0
    assert found["prompts.prompt"][0]["shown"][:4] == [
        "| <|im_start|>user",
        "| ab?<|im_end|>",
        "| <|im_start|>assistant",
        "| ",
    ]
    assert '256:"ab"' in found["prompts.prompt"][0]["shown"][4]
    assert "29.0, '': 0.0" in found["score"][0]["message"]
    (folder / "chat.jsonl").write_text('{"prompt": "ab?"}\n')
    (folder / "rewards.py").write_text("def score(completions, **columns):\n    return [0.0 for _ in completions]\n")
    code, found = checks(capsys, "chat.rlf")
    _, warned = found["prompts"]
    assert (code, warned["state"]) == (0, "warning") and "its chat template is not used [W0520]" in warned["message"]
    assert warned["hint"].startswith('write messages, {"prompt": [{"role": "user", "content": "ab?"}]}')


def test_a_judge_that_cannot_read_chats(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its tokenizer is another one, without a chat template."""
    pytest.importorskip("gguf")
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_ASSETS_CACHE", str(folder / "assets"))
    judge = PROGRAM.partition("causal_lm(")[2].partition(")\ndata")[0].replace('chars("abcd>")', "bytes()")
    program = CHAT.replace('func score   = python("rewards.py:score")', f"model judge  = frozen(reward_lm({judge}))")
    (folder / "judged.rlf").write_text(program.replace("score(rollout)", "judge.score(rollout)"))
    (folder / "chat.jsonl").write_text('{"prompt": [{"role": "user", "content": "ab?"}]}\n')
    write(folder / "tiny.gguf")
    code, found = checks(capsys, "judged.rlf")
    assert code == 1 and [check["state"] for check in found["judge"]] == ["ok", "fails"]
    assert "`judge` cannot read the first prompt of `prompts`" in found["judge"][1]["message"]
    (folder / "chat.jsonl").write_text('{"prompt": "ab?"}\n')
    assert checks(capsys, "judged.rlf")[0] == 0


def test_a_folder_without_weights(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import rlgraph

    run = rlgraph.compile("tiny.rlf").run(1, out=folder / "run", progress=False)
    assert run.saved
    setting = ("--set", 'actor=causal_lm("run/models/actor")')
    assert checks(capsys, "tiny.rlf", *setting)[0] == 0
    for file in run.saved[0].glob("*.safetensors"):
        file.unlink()
    code, found = checks(capsys, "tiny.rlf", *setting)
    assert code == 1 and "has no weights (*.safetensors)" in found["actor"][0]["message"]


def test_settings_need_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["doctor", "--set", "n=4"]) == 2
    assert "`--set` goes with a program" in capsys.readouterr().err


# Machines


def test_a_build_for_a_device_is_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "sampler_of_rows_cpu-3.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sampler-of-rows-cpu\nVersion: 3.1\n")
    assert installed_version("sampler-of-rows") is None
    monkeypatch.syspath_prepend(tmp_path)
    assert installed_version("sampler-of-rows") == "3.1"


def test_packages_by_extra() -> None:
    wanted = [
        "numpy>=1.26",
        'torch>=2.8; extra == "run"',
        'gguf>=0.10; extra == "gguf"',
        'rlgraph-compiler[run]; extra == "ray"',
        'ray<3,>=2.60; extra == "ray"',
        'vllm==0.32.*; extra == "vllm"',
    ]
    versions = {"numpy": "1.20", "torch": "2.9.1+cpu", "ray": "3.0.0"}
    found = [(finding.state, finding.subject, finding.message) for finding in package_findings(wanted, versions.get)]
    assert found == [
        ("fails", "packages", "numpy 1.20, and >=1.26 is asked for"),
        ("warning", "ray", "ray 3.0.0, and <3,>=2.60 is asked for"),
        ("ok", "run", "torch 2.9.1+cpu"),
        ("note", "extras", "not installed: gguf (gguf), vllm (vllm)"),
    ]


def test_disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda place: SimpleNamespace(total=64e6, free=5e9))
    assert disk_finding("runs", tmp_path / "not" / "yet").message == f"{tmp_path}/not/yet: 5.0 GB of the disk are free"
    (shared,) = shared_memory_findings(tmp_path)
    assert (shared.state, shared.hint) == ("warning", "start the container with more: `docker run --shm-size=8g ...`")
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda place: SimpleNamespace(total=5e12, free=30e6))
    full = disk_finding("models", tmp_path)
    assert (full.state, full.hint) == ("warning", "make room, or set `HF_HOME` to another folder")
    monkeypatch.setattr(machine.os, "access", lambda place, mode: False)
    assert disk_finding("runs", tmp_path).state == "fails"


def test_a_hub_that_does_not_answer() -> None:
    (found,) = hub_findings()
    assert found.state == "note" and found.message.startswith("no hub is asked; ") and "`HF_HOME`" in found.hint


def test_how_a_check_is_shown() -> None:
    found = finding_of(Diagnostic("W0703", "it is odd", NO_SPAN, "write it"), "reward")
    assert [*found.lines(8)] == ["  warning  reward    it is odd [W0703]", "                     to do: write it"]
    assert Finding("ok", "a", "b", "", "x.rlf:1:2").to_json()["place"] == "x.rlf:1:2"
