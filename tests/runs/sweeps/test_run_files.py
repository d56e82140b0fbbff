"""Run files: a program and its options in TOML, that a person writes or a run has written."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest
from programs_on_disk import write_tiny

import rlgraph
from rlgraph.cli import run_command
from rlgraph.cli.base import rlgraph as commands
from rlgraph.cli.run_files import options_of_run_files
from rlgraph.runs.options import RunOptions
from rlgraph.runs.run_file import options_as_written


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test works in a folder of its own, where `tiny.rlf` is."""
    monkeypatch.chdir(tmp_path)
    write_tiny(tmp_path)
    return tmp_path


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr of `rlgraph run`."""
    code = run_command(["run", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def metrics(folder: Path) -> list[float]:
    return [json.loads(line)["reward"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def how(folder: Path) -> dict[str, object]:
    content: dict[str, object] = json.loads((folder / "run.json").read_text())
    return content


FILE = """\
program = "tiny.rlf"       # beside this file
steps = 1
seed = 3
threads = 1
out = "one"
save-every = 5

[set]
lr = 1e-2
n = "2"
"""


def test_a_run_file_stands_for_the_command_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "run.toml").write_text(FILE)
    assert told(capsys, "run.toml")[0] == 0
    given = {"steps": 1, "seed": 3, "threads": 1, "save_every": "5", "set": {"lr": "1e-2", "n": "2"}}
    assert {name: how(folder / "one")[name] for name in given} == given
    # What the command line says wins.
    assert told(capsys, "run.toml", "--seed", "4", "--set", "n=3", "--out", "two", "--steps", "2")[0] == 0
    given |= {"seed": 4, "steps": 2, "set": {"n": "3", "lr": "1e-2"}}
    assert {name: how(folder / "two")[name] for name in given} == given


def test_paths_begin_in_the_folder_of_the_file(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "run.toml").write_text(FILE)
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine.jsonl").write_text('{"prompt": "c>"}\n{"prompt": "d>"}\n')
    monkeypatch.chdir(elsewhere)
    code, _, err = told(capsys, "../run.toml")
    assert code == 0 and f"paths of the run file begin in {folder}" in err
    assert (folder / "one/metrics.jsonl").exists()
    # Those of the command line begin where it is typed.
    assert told(capsys, "../run.toml", "--out", "two", "--data", "mine.jsonl")[0] == 0
    assert f'"{elsewhere / "mine.jsonl"}"' in str(how(elsewhere / "two")["set"])
    assert Path.cwd() == elsewhere


def test_a_sweep_in_a_run_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = FILE.replace("lr = 1e-2\n", "").replace("save-every = 5\n", "")
    (folder / "run.toml").write_text(f"{text}\n[sweep]\nlr = [1e-3, 1e-2]\nseed = [0, 1]\n")
    code, out, _ = told(capsys, "run.toml", "--seed", "7", "--sweep", "n=3")
    # A seed and a value of the command line take the place of what the file sweeps and sets.
    assert code == 0 and [line.split()[:2] for line in out.splitlines()[1:3]] == [["1e-3", "3"], ["1e-2", "3"]]
    assert how(folder / "one/lr=1e-3,n=3")["seed"] == 7
    # The folder of the sweep has a run file that goes on with it.
    code, again, err = told(capsys, "one/run.toml")
    assert (code, again) == (0, out) and err.count("finished before") == 2


@pytest.mark.parametrize(
    ("line", "place", "expected"),
    [
        ("step = 3", 2, "E0881]: there is no field `step`"),
        ('steps = "many"', 2, "E0881]: `steps` cannot be that: 'many' is not a valid integer range"),
        ("steps = 0", 2, "E0881]: `steps` cannot be that: 0 is not in the range x>=1"),
        ("steps = [1, 2]", 2, "E0881]: `steps` has one value, and not a list"),
        ("debug = 1", 2, "E0881]: `debug` is yes or no"),
        ("steps = true", 2, "E0881]: `steps` is a text or a number"),
        ("resume = 'one'", 2, "E0881]: there is no field `resume`"),
        ("schedule = 3", 2, "E0881]: `schedule` is no text"),
        ("folder = 'nowhere'", 2, "E0881]: there is no folder `nowhere`"),
        ("set = 3", 2, "E0881]: `set` is no table"),
        ("steps = ", 2, "E0880]: this is no TOML"),
        ("[set]\nlr = []", 3, "E0881]: `lr` has no value of the language"),
        ("[sweep]\nlr = 1e-3", 3, "E0881]: `lr` has no list of values"),
        ("[sweep]\nlr = [1, 1]", 3, "E0882]: `1` stands there twice"),
        ("[sweep]\nlrr = [1, 2]", 3, "E0804]: the program declares nothing called `lrr`"),
    ],
)
def test_mistakes_have_the_line_and_a_hint(
    line: str, place: int, expected: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "run.toml").write_text(f'program = "tiny.rlf"\n{line}\n')
    code, out, err = told(capsys, "run.toml")
    assert code in (1, 2) and out == ""
    assert f"error[{expected}" in err and f" --> run.toml:{place}:" in err and "help: " in err


def test_files_that_are_none(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = told(capsys, "none.toml")
    assert code == 1 and "error[E0880]: there is no file `none.toml`" in err
    (folder / "none.toml").write_bytes(b"\xff")
    assert "error[E0880]: `none.toml` is no text in UTF-8" in told(capsys, "none.toml")[2]
    (folder / "none.toml").write_text("")
    assert "error[E0881]: the file names no program" in told(capsys, "none.toml")[2]


def test_every_run_writes_a_file_that_repeats_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--steps", "2", "--seed", "5", "--set", "lr=1e-2", "--set", 'score=python("rewards.py:score")']
    assert told(capsys, "tiny.rlf", *given, "--threads", "1", "--keep-samples", "3")[0] == 0
    assert told(capsys, "runs/tiny-1/run.toml")[0] == 0
    first, again = folder / "runs/tiny-1", folder / "runs/tiny-2"
    assert metrics(again) == metrics(first)
    assert {**how(again), "trace": None} == {**how(first), "trace": None}
    assert (again / "run.toml").read_text() == (first / "run.toml").read_text()
    # It says so where the program is another one by now.
    (folder / "tiny.rlf").write_text((folder / "tiny.rlf").read_text().replace("n      = 4", "n = 2"))
    code, _, err = told(capsys, "runs/tiny-1/run.toml")
    assert code == 1 and "error[E0883]: `tiny.rlf` has changed since the run that wrote this file" in err
    assert re.search(r"--> runs/tiny-1/run.toml:\d+:1\n", err)


def test_a_run_of_python_can_be_repeated(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A program without a file is taken from the folder of the run."""
    text = (folder / "tiny.rlf").read_text()
    rlgraph.compile(text, {"n": 2}).run(1, seed=4, threads=1, out="one", progress=False)
    assert told(capsys, "one/run.toml", "--out", "two")[0] == 0
    assert metrics(folder / "two") == metrics(folder / "one")


def test_every_option_of_a_run_can_be_written_and_read() -> None:
    others = {field.name: "other" for field in fields(RunOptions)}
    names = set(options_as_written(RunOptions(**others)))  # type: ignore[arg-type]
    assert names <= set(options_of_run_files(commands.commands["run"]))
    assert {"max-restarts", "token-budget", "replay", "steps"} <= names
    assert options_as_written(RunOptions()) == {"steps": 100, "seed": 0}


def test_the_help_has_every_option_in_one_group(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = told(capsys, "--help")
    options = [parameter.opts[0] for parameter in commands.commands["run"].params if parameter.opts[0][0] == "-"]
    shown = re.findall(r"^  (?:-h, )?(--[a-z-]+)", out, re.MULTILINE)
    assert code == 0 and sorted(shown) == sorted([*options, "--help"]) and "FILE\n" not in out.partition("shown:")[2]
