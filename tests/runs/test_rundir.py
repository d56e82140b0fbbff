"""The folder of a run: whose it is, what is in it, and what happens when the disk is full."""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from rlgraph.errors import RunError, UsageMistake
from rlgraph.runs.folder import RunFolder
from rlgraph.runs.jsonlines import with_metrics
from rlgraph.runs.options import RunOptions


class Weights:
    """A model that is saved as one file; `fails` after having written a part."""

    def __init__(self, fails: BaseException | None = None) -> None:
        self.fails = fails

    def save(self, folder: str | Path) -> None:
        save_file({"w": torch.ones(1)}, Path(folder) / "model.safetensors")
        if self.fails:
            raise self.fails


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    yield tmp_path


def inside(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_what_a_run_leaves(here: Path) -> None:
    folder = RunFolder.claim_folder(Path("a/b"))
    folder.write_run_inputs("algorithm a\n", "program a\n", {"seed": 1})
    folder.append_step({"step": 1, "seconds": 0.5, "reward": 0.25})
    folder.append_step({"step": 2, "seconds": 0.5, "reward": math.nan, "best": math.inf})
    assert folder.save({"actor": Weights()}) == [Path("a/b/models/actor")]
    folder.close()
    lines = (here / "a/b/metrics.jsonl").read_text().splitlines()
    assert lines == [
        '{"step": 1, "seconds": 0.5, "reward": 0.25}',
        '{"step": 2, "seconds": 0.5, "reward": "NaN", "best": "Infinity"}',
    ]
    assert json.loads((here / "a/b/run.json").read_text()) == {"seed": 1}
    assert inside(here / "a/b") == [
        "graph.txt",
        "metrics.jsonl",
        "models",
        "models/actor",
        "models/actor/model.safetensors",
        "program.rlf",
        "run.json",
    ]


def test_a_step_is_on_the_disk_at_once(here: Path) -> None:
    folder = RunFolder.claim_folder(Path("a"))
    folder.append_step({"step": 1})
    assert (here / "a/metrics.jsonl").read_text() == '{"step": 1}\n'


def test_every_run_has_a_folder_of_its_own(here: Path) -> None:
    (here / "runs/grpo-7").mkdir(parents=True)
    (here / "runs/grpo-old").mkdir()
    assert [RunFolder.make_numbered("grpo").path for _ in range(2)] == [Path("runs/grpo-8"), Path("runs/grpo-9")]
    assert RunFolder.make_numbered("ppo").path == Path("runs/ppo-1")


def test_two_runs_that_begin_at_once_have_two_folders(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The second has looked before the first made its folder.
    first = RunFolder.make_numbered("grpo")
    monkeypatch.setattr(Path, "glob", lambda self, pattern: iter(()))
    second = RunFolder.make_numbered("grpo")
    assert [first.path, second.path] == [Path("runs/grpo-1"), Path("runs/grpo-2")]


def test_a_folder_with_content_is_left_alone(here: Path) -> None:
    (here / "mine").mkdir()
    (here / "mine/thesis.tex").write_text("years of work")
    for overwrite, why in ((False, ""), (True, ", and has no run that `--overwrite` could replace")):
        with pytest.raises(UsageMistake) as refused:
            RunFolder.claim_folder(Path("mine"), overwrite)
        assert str(refused.value) == (
            f"error[E0810]: the folder `mine` is not empty{why}\nhelp: take another folder with `--out`"
        )
    assert inside(here) == ["mine", "mine/thesis.tex"]


def test_an_earlier_run_is_replaced_if_that_is_wanted(here: Path) -> None:
    first = RunFolder.claim_folder(Path("a"))
    first.append_step({"step": 1})
    first.save({"actor": Weights()})
    first.close()
    (here / "a/notes.txt").write_text("it was good")
    with pytest.raises(UsageMistake) as refused:
        RunFolder.claim_folder(Path("a"))
    assert str(refused.value) == (
        "error[E0810]: the folder `a` is not empty\n"
        "help: take another folder with `--out`, or replace the run in it with `--overwrite` (`overwrite=True` in Python)"
    )
    RunFolder.claim_folder(Path("a"), overwrite=True).close()
    assert inside(here / "a") == ["metrics.jsonl", "notes.txt"]


def test_a_link_in_an_earlier_run_is_not_followed(here: Path) -> None:
    (here / "precious").mkdir()
    (here / "precious/weights").write_text("weights")
    RunFolder.claim_folder(Path("a")).close()
    (here / "a/models").symlink_to(here / "precious")
    RunFolder.claim_folder(Path("a"), overwrite=True).close()
    assert (here / "precious/weights").read_text() == "weights"


def test_one_of_two_runs_in_a_folder_is_refused(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The second has looked before the first made its file.
    first = RunFolder.claim_folder(Path("a"))
    monkeypatch.setattr(Path, "iterdir", lambda self: iter(()))
    with pytest.raises(UsageMistake) as refused:
        RunFolder.claim_folder(Path("a"))
    assert str(refused.value) == (
        "error[E0811]: `a` cannot hold a run: another run has just begun in it\nhelp: take another folder with `--out`"
    )
    first.append_step({"step": 1})
    assert (here / "a/metrics.jsonl").read_text() == '{"step": 1}\n'


@pytest.mark.parametrize(
    ("path", "reason"), [("file", "it is a file"), ("file/a", "not a directory"), ("readonly/a", "permission denied")]
)
def test_a_folder_that_cannot_be_made(path: str, reason: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "file").write_text("")
    if path.startswith("readonly"):
        # Whoever tests may be root, whom no mode keeps out.
        def refuse(*_: object, **__: object) -> None:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(UsageMistake) as refused:
        RunFolder.claim_folder(Path(path))
    assert str(refused.value) == (
        f"error[E0811]: `{path}` cannot hold a run: {reason}\nhelp: take another folder with `--out`"
    )


def test_runs_is_a_file(here: Path) -> None:
    (here / "runs").write_text("")
    with pytest.raises(UsageMistake, match="`runs` cannot hold a run: it is a file"):
        RunFolder.make_numbered("grpo")


def test_a_full_disk(here: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    folder = RunFolder.claim_folder(Path("a"))
    folder._metrics.close()
    (here / "a/metrics.jsonl").unlink()
    (here / "a/metrics.jsonl").symlink_to(full)
    folder._metrics = full.open("w", encoding="utf-8")
    with pytest.raises(RunError) as failed:
        folder.append_step({"step": 1})
    assert str(failed.value) == (
        "error[E0812]: the metrics cannot be written to `a`: No space left on device\n"
        "help: make room, or take a folder on another disk with `--out`"
    )
    assert folder.save({"actor": Weights()})
    folder.close()


def test_a_model_is_saved_whole_or_not_at_all(here: Path) -> None:
    folder = RunFolder.claim_folder(Path("a"))
    with pytest.raises(RunError) as failed:
        folder.save({"good": Weights(), "bad": Weights(OSError(28, "No space left on device"))})
    message = "error[E0813]: `bad` cannot be saved in `a/models/bad`: No space left on device\nhelp: make room, or take"
    assert str(failed.value).startswith(message)
    with pytest.raises(KeyboardInterrupt):
        folder.save({"late": Weights(KeyboardInterrupt())})
    assert inside(here / "a/models") == ["good", "good/model.safetensors"]


def test_a_run_that_does_nothing_replaces_none(here: Path) -> None:
    """As one whose data cannot be opened; one that is killed before it does anything replaces none either."""
    folder, _ = begun("a")
    folder.save({"actor": Weights()})
    folder.close()
    before = inside(here / "a")
    RunFolder.claim_folder(Path("a"), overwrite=True).discard_run()
    assert inside(here / "a") == before and lines(here / "a") == [1]
    killed = RunFolder.claim_folder(Path("a"), overwrite=True)
    killed._metrics.close()
    RunFolder.claim_folder(Path("a"), overwrite=True).discard_run()
    assert inside(here / "a") == before
    again = RunFolder.claim_folder(Path("a"), overwrite=True)
    again.append_step({"step": 7})
    assert inside(here / "a") == ["metrics.jsonl"] and lines(here / "a") == [7]


def test_a_folder_of_the_user_s(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a shell leaves as it is behind `--out=`."""
    monkeypatch.setenv("HOME", str(here / "home"))
    assert RunFolder.claim_folder(Path("~/a")).path == here / "home/a"
    assert RunOptions(record=Path("~/r")).record == here / "home/r"


@dataclass
class Tensors:
    """A model with two tensors in a file each."""

    last: float

    def save(self, folder: str | Path) -> None:
        for at, value in enumerate((1.0, self.last)):
            save_file({f"w{at}": torch.tensor([0.5, value])}, Path(folder) / f"model-{at}.safetensors")


@pytest.mark.parametrize("last", [float("nan"), float("-inf"), 2e19])
def test_a_model_that_has_diverged_is_not_saved(last: float, here: Path) -> None:
    folder = RunFolder.claim_folder(Path("a"))
    assert folder.save({"actor": Tensors(2.0), "large": Tensors(1e19)})
    for name, kept in (("actor", "`a/models/actor` stays as it was saved before"), ("lost", "it is not saved")):
        with pytest.raises(RunError) as failed:
            folder.save({name: Tensors(last)})
        assert str(failed.value) == (
            f"error[E0831]: `{name}` has diverged: w1 has weights that are NaN, infinite, or so large that their squares "
            f"are\nhelp: {kept}; lower `lr`, or set `clip_norm`"
        )
    assert load_file("a/models/actor/model-1.safetensors")["w1"].tolist() == [0.5, 2.0]
    assert {path.name for path in (here / "a/models").iterdir()} == {"actor", "large"}
    assert folder.save({"actor": Tensors(3.0)})
    assert load_file("a/models/actor/model-1.safetensors")["w1"].tolist() == [0.5, 3.0]


def lines(folder: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def begun(path: str) -> tuple[RunFolder, list[str]]:
    """A folder with a step in it, and what will be noted."""
    folder, notes = RunFolder.claim_folder(Path(path)), list[str]()
    folder.note = notes.append
    folder.write_run_inputs("algorithm a\n", "program a\n", {"seed": 1})
    folder.append_step({"step": 1}, {"step": 1})
    return folder, notes


@pytest.mark.parametrize(
    "gone", [shutil.rmtree, lambda path: path.rename("moved"), lambda path: (path / "metrics.jsonl").unlink()]
)
def test_a_folder_that_is_taken_away_is_made_again(gone: Callable[[Path], object], here: Path) -> None:
    folder, notes = begun("runs/a")
    before = {*inside(here / "runs/a")}
    gone(here / "runs/a")
    folder.append_step({"step": 2}, {"step": 2})
    folder.append_step({"step": 3}, {"step": 3})
    assert lines(here / "runs/a") == [1, 2, 3]
    assert len((here / "runs/a/trace.jsonl").read_text().splitlines()) == 3
    assert {*inside(here / "runs/a")} == before
    assert len(notes) == 1 and notes[0].startswith("`runs/a` is not there any more: it was removed or moved")
    shutil.rmtree(here / "runs")
    assert folder.save({"actor": Weights()}) == [Path("runs/a/models/actor")]
    assert lines(here / "runs/a") == [1, 2, 3] and len(notes) == 2
    for overwrite in (True, False):
        with pytest.raises(UsageMistake, match="a run is at work in `runs/a`"):
            RunFolder.claim_folder(Path("runs/a"), overwrite)
    folder.close()


def test_a_folder_that_is_taken_away_while_models_are_saved_gets_all_of_them(here: Path) -> None:
    folder, _ = begun("a")

    class Takes(Tensors):
        def save(self, where: str | Path) -> None:
            place = Path(where)
            if folder.losses == 0:
                shutil.rmtree(here / "a")
                place.mkdir(parents=True)
            super().save(place)

    assert folder.save({"first": Tensors(1.0), "second": Takes(1.0)}) == [
        Path("a/models/first"),
        Path("a/models/second"),
    ]
    assert {path.name for path in (here / "a/models").iterdir()} == {"first", "second"}
    folder.close()


def test_a_folder_whose_place_is_taken_is_made_beside_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of another run is touched; where no place is left the folder for temporary files has one."""
    folder, notes = begun("runs/a")
    shutil.rmtree(here / "runs/a")
    other = RunFolder.claim_folder(Path("runs/a"))
    folder.append_step({"step": 2})
    assert lines(here / "runs/a-again") == [1, 2] and lines(here / "runs/a") == []
    assert "`runs/a-again` has the metrics of all steps again" in notes[0]
    other.close()
    shutil.rmtree(here / "runs")
    (here / "runs").write_text("a file")
    (here / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(here / "temporary"))
    folder.append_step({"step": 3})
    assert lines(here / "temporary/a-again-again") == [1, 2, 3]
    monkeypatch.setattr(tempfile, "tempdir", "/dev/null")
    shutil.rmtree(here / "temporary")
    (here / "temporary").write_text("a file")
    with pytest.raises(RunError, match="E0812"):
        folder.append_step({"step": 4})
    folder.close()


def test_what_was_never_run_is_taken_back(here: Path) -> None:
    new = RunFolder.make_numbered("grpo")
    new.write_run_inputs("", "", {})
    new.discard_run()
    assert inside(here) == []
    (here / "mine").mkdir()
    RunFolder.claim_folder(Path("mine")).discard_run()
    assert inside(here) == ["mine"]


def test_metrics_do_not_take_the_place_of_fields() -> None:
    """The checker refuses some of these names; a plan file that was changed by hand may still have them."""
    fields = {"type": "step", "step": 3, "seconds": 0.5}
    told = with_metrics(fields, {"type": 1.0, "reward": 2.0, "step": 4.0, "seconds": 5.0, "sync/seconds": 6.0})
    assert told == fields | {
        "report.type": 1.0,
        "reward": 2.0,
        "report.step": 4.0,
        "report.seconds": 5.0,
        "sync/seconds": 6.0,
    }
