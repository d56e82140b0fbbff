"""`rlgraph run --sweep`: a run for every combination, gone on with after whatever ended it, and a table."""

from __future__ import annotations

import csv
import json
import os
import signal
from pathlib import Path

import pytest
from programs_on_disk import start, write_tiny

from rlgraph.cli import run_command
from rlgraph.errors import ProgramError
from rlgraph.runs.sweeps.points import MOST_POINTS, Point, parse_sweep, sweep_points
from rlgraph.runs.sweeps.results import mean_and_spread
from rlgraph.runs.watching.run_reader import runs_of
from tests.runs.written_runs import written_run
from tests.suites import few
from tests.waits import NEVER

FAILS_FOR_LONG_ANSWERS = """\
def score(completions, **columns):
    if len(completions) == 6:
        raise RuntimeError("the judge is asleep")
    return [float(answer.count("a")) for answer in completions]
"""
"""A reward that fails where a batch of two prompts has three answers for each."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test works in a folder of its own, where `tiny.rlf` is."""
    monkeypatch.chdir(tmp_path)
    write_tiny(tmp_path)
    return tmp_path


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr of `rlgraph run`."""
    code = run_command(["run", *arguments, "--threads", "1"])
    out, err = capsys.readouterr()
    return code, out, err


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "sweep.csv").open() as file:
        return list(csv.DictReader(file))


def metrics(folder: Path) -> list[float]:
    return [json.loads(line)["reward"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


# What is given


def test_values_are_separated_by_commas_outside_of_brackets_and_quotes() -> None:
    assert parse_sweep("lr=1e-6, 3e-6").values == ("1e-6", "3e-6")
    assert parse_sweep('data=jsonl("a,b.jsonl", batch=8),jsonl("c\\",.jsonl")').values == (
        'jsonl("a,b.jsonl", batch=8)',
        'jsonl("c\\",.jsonl")',
    )
    assert parse_sweep("stop=[1, 2],[3]").values == ("[1, 2]", "[3]")


@pytest.mark.parametrize(
    ("text", "message", "covered"),
    [
        ("lr", "is not NAME=VALUE,VALUE", "lr"),
        ("lr=1,,2", "a value of `lr` is missing", ","),
        ("lr=", "a value of `lr` is missing", ""),
        ("lr=1, 2 ,1", "`1` stands there twice", "1"),
        ("seed=0,x", "`x` is no seed", "x"),
    ],
)
def test_what_is_no_sweep(text: str, message: str, covered: str) -> None:
    with pytest.raises(ProgramError) as raised:
        parse_sweep(text)
    [diagnostic] = raised.value.diagnostics
    assert diagnostic.code == "E0882" and message in diagnostic.message
    assert diagnostic.span.covered_text == covered


def test_all_combinations_and_their_folders() -> None:
    points = sweep_points([parse_sweep("lr=1e-6,3e-6"), parse_sweep("seed=0,1")], {})
    names = ["lr=1e-6,seed=0", "lr=1e-6,seed=1", "lr=3e-6,seed=0", "lr=3e-6,seed=1"]
    assert [point.folder_name for point in points] == names
    assert (points[1].settings, points[1].seed) == ({"lr": "1e-6"}, 1)
    # What a folder cannot be called is told apart by a digest.
    odd = [Point((("data", f'jsonl("{name}.jsonl")'),)).folder_name for name in ("a/b", "a b")]
    assert odd[0] != odd[1] and all("/" not in name and name.startswith("data=jsonl_a_b.jsonl-") for name in odd)


def test_too_many_points() -> None:
    swept = [parse_sweep(f"{name}={','.join(map(str, range(40)))}") for name in "ab"]
    with pytest.raises(ProgramError, match="1,600 runs"):
        sweep_points(swept, {})
    assert MOST_POINTS == 1000


def test_the_spread_over_seeds() -> None:
    assert mean_and_spread([1.0, 3.0]) == (2.0, 2.0**0.5)
    assert mean_and_spread([1.0]) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--sweep", "lrr=1,2"], "E0804]: the program declares nothing called `lrr`\n --> --sweep:1:1"),
        (["--sweep", "lr=1e-3,oops("], "E0102]: this `(` is never closed\n --> --sweep:1:13"),
        (["--sweep", "n=2", "--set", "n=4"], "E0882]: `n` is set, and swept"),
        (["--sweep", "n=2", "--sweep", "n=4"], "E0882]: `n` is swept twice"),
        (["--sweep", 'lr=1e-3,"a"'], 'note: with this value\n --> --sweep:1:9\n  |\n1 | lr=1e-3,"a"'),
        (["--sweep", "n=2", "--compare", "rewards"], "E0833]: the program does not report `rewards`"),
        (["--sweep", "n=2", "--trace", "x.json"], "`--trace` is for one run"),
        (["--compare", "reward"], "`--compare` goes with `--sweep`"),
    ],
)
def test_mistakes_are_told_before_the_first_run(
    given: list[str], expected: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = told(capsys, "tiny.rlf", *given)
    assert code in (1, 2) and out == "" and expected in err
    assert not (folder / "runs").exists()


def test_of_a_plan_file_only_seeds_are_swept(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["compile", "tiny.rlf", "--emit", "plan"]) == 0
    (folder / "tiny.json").write_text(capsys.readouterr().out)
    code, _, err = told(capsys, "tiny.json", "--sweep", "lr=1e-3,1e-2")
    assert code == 2 and "error[E0882]: `lr` cannot be swept: a plan file has one program" in err
    code, out, _ = told(capsys, "tiny.json", "--steps", "1", "--sweep", "seed=0,1")
    assert code == 0 and out.splitlines()[-1].split()[:2] == ["all", "2"]


def test_a_program_that_is_wrong_without_the_sweep(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "tiny.rlf").write_text((folder / "tiny.rlf").read_text().replace("adv     =", "advs ="))
    code, _, err = told(capsys, "tiny.rlf", "--sweep", "lr=1,2")
    assert code == 1 and "error[E0201]" in err and "--sweep" not in err


# What is run


def test_a_sweep_that_is_tracked_has_finished(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["tiny.rlf", "--steps", "1", "--sweep", "lr=1e-3,1e-2", "--track", "tensorboard"]
    assert told(capsys, *given)[0] == 0
    assert [row["outcome"] for row in table(folder / "runs/tiny-sweep")] == ["finished"] * 2


def test_a_sweep(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["tiny.rlf", "--steps", "2", "--sweep", "lr=1e-3,1e-2", "--sweep", "seed=0,1"]
    code, out, err = told(capsys, *given)
    lines = out.splitlines()
    assert code == 0
    assert [line.split("  ")[0] for line in err.splitlines() if " of 4  " in line] == [f"{i} of 4" for i in range(1, 5)]
    assert lines[0].split() == ["lr", "seed", "reward", "reward", "best", "steps", "time", "folder"]
    assert [line.split()[:2] for line in lines[1:5]] == [[lr, seed] for lr in ("1e-3", "1e-2") for seed in "01"]
    assert lines[6].split() == ["over", "seeds", "finished", "reward"] and lines[7].split()[:2] == ["lr=1e-3", "2"]
    there = folder / "runs/tiny-sweep"
    assert sorted(path.name for path in there.iterdir() if path.is_dir()) == [
        f"lr=1e-{lr},seed={seed}" for lr in (2, 3) for seed in (0, 1)
    ]
    rows = table(there)
    assert [row["outcome"] for row in rows] == ["finished"] * 4
    for row in rows:
        values = metrics(folder / row["folder"])
        assert [float(row["reward.last"]), float(row["reward.best"])] == [values[-1], max(values)]
    # A point is the run that it would be by itself.
    assert told(capsys, "tiny.rlf", "--steps", "2", "--set", "lr=1e-2", "--seed", "1", "--out", "alone")[0] == 0
    assert metrics(folder / "alone") == metrics(there / "lr=1e-2,seed=1")
    # Again nothing is run, and a value more is one run.
    before = {path: path.stat().st_mtime_ns for path in there.rglob("metrics.jsonl")}
    code, again, err = told(capsys, *given)
    assert (code, again) == (0, out) and err.count("  finished before") == 4 and "loading" not in err
    code, out, err = told(capsys, "tiny.rlf", "--steps", "2", "--sweep", "lr=1e-3,1e-2,3", "--sweep", "seed=0")
    assert code == 0 and err.count("  finished before") == 2 and err.count("loading") == 1
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_a_point_that_fails_does_not_end_a_sweep(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tiny(folder, rewards=FAILS_FOR_LONG_ANSWERS)
    given = ["tiny.rlf", "--steps", "1", "--sweep", "n=2,3,4", "--out", "here"]
    code, out, err = told(capsys, *given)
    assert code == 4 and "the judge is asleep" in err
    assert [row["outcome"] for row in table(folder / "here")] == ["finished", "failed", "finished"]
    assert "the judge is asleep" in table(folder / "here")[1]["error"]
    assert out.splitlines()[-1].startswith("n=3 failed: ")
    # Again, only what failed is run.
    write_tiny(folder)
    code, out, err = told(capsys, *given)
    assert code == 0 and err.count("  finished before") == 2 and err.count("loading") == 1
    assert [row["outcome"] for row in table(folder / "here")] == ["finished"] * 3


def test_a_sweep_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = told(
        capsys, "tiny.rlf", "--steps", "1", "--sweep", "n=2,4", "--out", "here", "--message-format", "json"
    )
    records = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert [record["type"] for record in records] == ["point", "step", "point", "step", "sweep"]
    assert records[2]["values"] == {"n": "4"} and records[2]["folder"] == "here/n=4"
    assert [point["outcome"] for point in records[-1]["points"]] == ["finished"] * 2
    assert records[-1]["points"][0]["last"] == {"reward": records[1]["reward"]}


def test_a_folder_that_has_other_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["tiny.rlf", "--steps", "1", "--out", "here"]
    assert told(capsys, *given, "--sweep", "n=2")[0] == 0
    code, _, err = told(capsys, "tiny.rlf", "--steps", "2", "--out", "here", "--sweep", "n=4,2")
    assert code == 2 and "error[E0883]: `here/n=2` has a run with another `--steps`" in err
    assert not (folder / "here/n=4").exists()
    (folder / "tiny.rlf").write_text((folder / "tiny.rlf").read_text() + "    report one = 1\n")
    code, _, err = told(capsys, *given, "--sweep", "n=2")
    assert code == 2 and "error[E0883]: `here/n=2` has a run with another `program`" in err
    assert told(capsys, *given, "--sweep", "n=2", "--overwrite")[0] == 0
    assert "one" in json.loads((folder / "here/n=2/metrics.jsonl").read_text())
    code, _, err = told(capsys, "tiny.rlf", "--steps", "1", "--sweep", "n=2", "--out", "here/n=2")
    assert code == 2 and "error[E0882]: `here/n=2` is the folder of one run" in err


@pytest.mark.parametrize("saved", few([True, False], True))
def test_a_sweep_that_is_interrupted_goes_on(
    saved: bool, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A point that was saved on the way goes on where it was, and one that was not begins anew: both have in the end
    the metrics of a run that nobody interrupted."""
    given = ["tiny.rlf", "--steps", "6", "--sweep", "lr=1e-3,1e-2", "--out", "here", "--threads", "1"]
    given += ["--save-every", "1"] * saved
    with start(["run", *given], folder) as process:
        assert process.stderr is not None
        points = 0
        for line in process.stderr:
            points += " of 2  " in line
            if points == 2 and line.startswith("step 3/"):
                break
        process.send_signal(signal.SIGINT)
        try:
            out, err = process.communicate(timeout=NEVER)
        finally:
            process.kill()
    if process.returncode == 0:
        pytest.skip("the run was over before the signal came")
    assert process.returncode == 130 and "Traceback" not in err
    assert "go on with the 1 run left with `rlgraph run here/run.toml`" in err
    assert "1e-2" in out and "interrupted" in out
    assert [row["outcome"] for row in table(folder / "here")] == ["finished", "interrupted"]
    done = len(metrics(folder / "here/lr=1e-2"))
    code, _, err = told(capsys, "here/run.toml")
    assert code == 0 and err.count("  finished before") == 1
    assert err.count("step 1/6") == (not saved) and (f"step {done + 1}/6" in err or done == 6)
    assert [row["outcome"] for row in table(folder / "here")] == ["finished"] * 2
    assert told(capsys, "tiny.rlf", "--steps", "6", "--set", "lr=1e-2", "--out", "alone")[0] == 0
    assert metrics(folder / "here/lr=1e-2") == metrics(folder / "alone")


def test_a_sweep_is_watched_as_its_runs(folder: Path) -> None:
    for number, name in enumerate(["b", "a"]):
        written_run(folder / "sweep" / name, steps=1)
        # In the order in which they began.
        (folder / "sweep" / name / "run.json").write_text("{}")
        os.utime(folder / "sweep" / name / "run.json", (number, number))
    assert runs_of(folder / "sweep") == [folder / "sweep"]
    (folder / "sweep/run.toml").write_text('program = "tiny.rlf"\n')
    (folder / "sweep/lr=1").mkdir()
    assert runs_of(folder / "sweep") == [folder / "sweep/b", folder / "sweep/a"]
    (folder / "sweep/a/run.toml").write_text('program = "tiny.rlf"\n')
    assert runs_of(folder / "sweep/a") == [folder / "sweep/a"]
