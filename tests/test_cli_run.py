"""`rlgraph run`: what it says and leaves, however it ends."""

from __future__ import annotations

import contextlib
import json
import re
import signal
from pathlib import Path

import pytest
from click import IntRange
from programs_on_disk import FAILS_AT_THIRD, start, write_tiny

import rlgraph
from rlgraph.cli import run_command
from rlgraph.cli.running import run
from rlgraph.errors import UsageMistake
from rlgraph.runs.options import LEAST
from tests.suites import few
from tests.waits import NEVER


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test works in a folder of its own, where `tiny.rlf` is."""
    monkeypatch.chdir(tmp_path)
    write_tiny(tmp_path)
    return tmp_path


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    code = run_command(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


def test_the_ranges_of_options_are_those_of_python() -> None:
    ranges = {found.name: found.type.min for found in run.params if isinstance(found.type, IntRange)}
    # A run of no step, which loads the models and runs the phases, is for Python alone.
    known = {name: least for name, least in LEAST.items() if least is not None}
    assert {name: ranges.get(name) for name in known} == {**known, "steps": 1}


def test_a_model_that_has_diverged_is_no_success(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = told(capsys, "run", "tiny.rlf", "--steps", "1", "--threads", "1", "--set", "lr=1e30", "--out", "a")
    assert code and err.count("error[E0831]: `actor` has diverged") == 1
    assert "help: it is not saved; lower `lr`" in err and "saved a/" not in err
    assert not list((folder / "a/models").iterdir()) and (folder / "a/metrics.jsonl").read_text()


def test_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = told(capsys, "run", "tiny.rlf", "--steps", "2", "--threads", "1")
    *lines, wrote, saved = err.splitlines()
    assert (code, out) == (0, "")
    assert (wrote, saved) == ("wrote runs/tiny-1/metrics.jsonl", "saved runs/tiny-1/models/actor")
    assert lines[:3] == ["opening prompts", "opening score", "trying score on a made-up answer"]
    assert lines[3] == "loading actor on cpu in float32"
    assert [line.split("  ")[0] for line in lines[4:]] == ["step 1/2", "step 2/2"]
    assert all(" tok/s" in line and "  reward " in line for line in lines[4:])
    records = [json.loads(line) for line in (folder / "runs/tiny-1/metrics.jsonl").read_text().splitlines()]
    assert [list(record) for record in records] == [["step", "seconds", "reward", "mismatch/kl", "mismatch/max"]] * 2
    assert (
        told(capsys, "run", "tiny.rlf", "--steps", "1", "--seed", "7")[2]
        .splitlines()[-2]
        .startswith("wrote runs/tiny-2/")
    )


def test_run_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = told(capsys, "run", "tiny.rlf", "--steps", "1", "--out", "here", "--message-format", "json")
    records = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert [record["type"] for record in records] == ["step", "end"]
    assert records[1] == {"type": "end", "folder": "here", "models": ["here/models/actor"]}


def test_what_a_function_prints_is_no_record(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "rewards.py").write_text(
        "def score(completions, **rest):\n    print('seen')\n    return [1] * len(completions)\n"
    )
    with open(1, "w", closefd=False) as stdout:
        monkeypatch.setattr("sys.stdout", stdout)
        assert run_command(["run", "tiny.rlf", "--steps", "1", "--out", "here", "--message-format", "json"]) == 0
        print("the command is over")
    out, err = capfd.readouterr()
    *records, last = out.splitlines()
    assert [json.loads(record)["type"] for record in records] == ["step", "end"]
    assert (set(err.splitlines()), last) == ({"seen"}, "the command is over")


def test_metrics_that_are_called_as_fields_of_a_record(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (folder / "tiny.rlf").read_text()
    (folder / "tiny.rlf").write_text(f"{text}    report type = 1.5\n    report phase = 2.5\n")
    code, out, _ = told(capsys, "run", "tiny.rlf", "--steps", "1", "--out", "here", "--message-format", "json")
    *warnings, step, _ = (json.loads(line) for line in out.splitlines())
    assert code == 0
    assert [warning["code"] for warning in warnings] == ["W0203", "W0203"]
    assert list(step) == ["type", "step", "phase", "seconds", "reward", "report.type", "report.phase"]
    assert (step["type"], step["step"], step["phase"]) == ("step", 1, "step")
    assert (step["report.type"], step["report.phase"]) == (1.5, 2.5)
    [line] = (folder / "here/metrics.jsonl").read_text().splitlines()
    assert list(json.loads(line)) == ["step", "seconds", "reward", "type", "phase", "mismatch/kl", "mismatch/max"]


def test_a_run_that_fails_saves_its_models(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tiny(folder, rewards=FAILS_AT_THIRD)
    code, out, err = told(capsys, "run", "tiny.rlf", "--steps", "9", "--out", "here")
    assert (code, out) == (4, "")
    assert "saved here/models/actor\nerror[E0726]: " in err
    assert "the judge is asleep" in err and "Traceback" not in err
    assert len((folder / "here/metrics.jsonl").read_text().splitlines()) == 2
    assert sorted(path.name for path in (folder / "here/models").iterdir()) == ["actor"]


def test_a_run_that_cannot_begin_leaves_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "prompts.jsonl").unlink()
    code, _, err = told(capsys, "run", "tiny.rlf")
    assert code == 1 and "error[E0703]" in err
    assert not (folder / "runs").exists()


@pytest.mark.parametrize("number", few([signal.SIGINT, signal.SIGTERM, signal.SIGHUP], signal.SIGINT))
def test_an_interrupted_run_saves_its_models(number: signal.Signals, folder: Path) -> None:
    with start(["run", "tiny.rlf", "--steps", "1000000", "--out", "here", "--threads", "1"], folder) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("step 3/"):
                break
        process.send_signal(number)
        try:
            out, err = process.communicate(timeout=NEVER)
        finally:
            process.kill()
    assert (process.returncode, out) == (128 + number, "")
    assert (
        re.search(r"saved here/models/actor\ninterrupted after (?:1 step|\d+ steps)\n$", err) and "Traceback" not in err
    )
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder / "here/models/actor")
    assert model.config.hidden_size == 16
    assert AutoTokenizer.from_pretrained(folder / "here/models/actor")("ab")["input_ids"]
    assert len((folder / "here/metrics.jsonl").read_text().splitlines()) >= 3


def test_a_program_that_lies_elsewhere(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its data, rewards and models are looked for in the folder of the command too, whatever the command is."""
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "tiny.rlf"
    (folder / "tiny.rlf").rename(elsewhere)
    program = str(elsewhere)
    assert told(capsys, "run", program, "--steps", "1", "--out", "first")[0] == 0
    trained = ("--set", 'actor=causal_lm("first/models/actor")')
    code, _, err = told(capsys, "run", program, "--steps", "1", "--out", "second", *trained)
    assert code == 0, err
    assert told(capsys, "compile", program, *trained, "--emit", "plan", "-o", "plans")[0] == 0
    assert told(capsys, "run", "plans/tiny.plan.json", "--steps", "1")[0] == 0
    assert told(capsys, "simulate", program, *trained, "--cluster", "1x2:cpu")[0] == 0
    elsewhere.write_text(elsewhere.read_text().replace("mean(reward)", "mean(rollout.level)"))
    assert "E0204" in told(capsys, "check", program)[2]
    # What is beside the program comes first.
    write_tiny(elsewhere.parent, rewards="def score(completions, **columns):\n    raise RuntimeError('elsewhere')\n")
    code, _, err = told(capsys, "run", program, "--steps", "1")
    assert code == 1 and "RuntimeError: elsewhere, on a made-up answer to prompts row 0" in err


def metrics(folder: Path) -> list[float]:
    return [json.loads(line)["reward"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_recorded_run_is_replayed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ("run", "tiny.rlf", "--steps", "3", "--threads", "1")
    code, _, err = told(capsys, *run, "--out", "a", "--record", "rec", "--trace", "t.json")
    assert (code, err.splitlines()[-4:-1]) == (0, ["wrote a/metrics.jsonl", "wrote rec", "wrote t.json"])
    # Other weights would sample other rows; that the same rows are rewarded shows where they come from.
    other = (
        "--set",
        'actor=causal_lm(random("qwen2", hidden_size=16, intermediate_size=16, num_hidden_layers=2, '
        'num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64, tokenizer=chars("abcd>")))',
    )
    assert told(capsys, *run, "--out", "b", "--replay", "rec", "--block", "1", *other)[0] == 0
    assert told(capsys, *run, "--out", "c", *other)[0] == 0
    assert metrics(folder / "a") == metrics(folder / "b") != metrics(folder / "c")
    assert json.loads((folder / "b/run.json").read_text())["replay"] == "rec"
    # A run's folder is as good as its recording's; one that was not recorded says what to do.
    assert told(capsys, *run, "--out", "d", "--replay", "a", *other)[0] == 0
    assert metrics(folder / "d") == metrics(folder / "a")
    # Plans of runs are compared from anywhere, as they were run.
    (folder / "tiny.rlf").write_text("no program any more")
    (folder / "elsewhere").mkdir()
    with contextlib.chdir("elsewhere"):
        assert told(capsys, "diff", "../a", "../a") == (0, "", "")
        code, out, _ = told(capsys, "diff", "../a", "../c")
        assert code == 1 and out.startswith("all work as before") and "  + --set actor\n" in out
        code, _, err = told(capsys, "diff", "../a", "..", "--devices", "2")
        assert code == 2 and "`--devices` does not go with `../a`: its plan is fixed" in err
        code, _, err = told(capsys, "diff", "../a", "..")
        assert code == 2 and "error[E0829]: `..` is not the folder of a run" in err
    write_tiny(folder)
    code, _, err = told(capsys, *run, "--out", "e", "--replay", "c")
    assert code == 2 and "E0815]: the run in `c` was not recorded\nhelp: run it again with `--record DIR`" in err
    code, _, err = told(capsys, *run, "--out", "e", "--record", "rec")
    assert code == 2 and "error[E0814]: the folder `rec` is not empty" in err
    assert not (folder / "e").exists()
    code, _, err = told(capsys, *run, "--out", "e", "--replay", "rec", "--set", "n=5")
    assert code == 4 and "the recording has no `rollout` for prompts row" in err


def test_what_cannot_be_used_comes_out_before_the_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for option, path, code in (
        ("--replay", "nothing", "E0815"),
        ("--trace", "no/t.json", "E0818"),
        ("--record", "tiny.rlf", "E0814"),
    ):
        failed, _, err = told(capsys, "run", "tiny.rlf", option, path)
        assert failed == 2 and f"error[{code}]" in err and "opening" not in err
    (folder / "prompts.jsonl").unlink()
    assert told(capsys, "run", "tiny.rlf", "--record", "rec")[0] == 1
    assert not (folder / "rec").exists() and not (folder / "runs").exists()


def test_a_device_that_is_not_there(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for device in ("cuda:99", "gpu", "cpu:1"):
        code, _, err = told(capsys, "run", "tiny.rlf", "--device", device)
        assert code == 2 and f"error[E0821]: there is no device `{device}`: there " in err
    code, _, err = told(capsys, "run", "tiny.rlf", "--device", "cpu", "--backend", "ray", "--debug")
    assert code == 2 and "error[E0821]: the models of a plan are not all on `cpu`" in err
    assert not (folder / "runs").exists()
    assert told(capsys, "run", "tiny.rlf", "--device", "cpu", "--steps", "1")[0] == 0


def test_options_of_another_backend(capsys: pytest.CaptureFixture[str]) -> None:
    for option in (["--debug"], ["--address", "auto"], ["--devices", "2"]):
        code, _, err = told(capsys, "run", "tiny.rlf", *option)
        assert code == 2 and f"`{option[0]}` goes with `--backend ray`" in err


def test_a_backend_that_there_is_not(folder: Path) -> None:
    with pytest.raises(UsageMistake, match="there is no backend `rey`") as wrong:
        rlgraph.compile(folder / "tiny.rlf").run(1, backend="rey", out=folder / "out", progress=False)
    assert "there are `local`, `ray`" in str(wrong.value)
    assert not (folder / "out").exists()
