"""Folders of runs that were damaged, or written by somebody else: what is whole is gone on with, what is not is told."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from programs_on_disk import write_tiny

import rlgraph
from rlgraph.backends.engines.tensor_files import StoredTensors
from rlgraph.backends.saved_models import checking_damage
from rlgraph.cli import run_command
from rlgraph.errors import UsageMistake, escape_controls
from rlgraph.runs.checkpoint import disk, document
from rlgraph.runs.checkpoint.interval import parse_interval
from rlgraph.runs.folder import RunFolder
from rlgraph.runs.folder_lock import HOW

NEWEST, BEFORE = "checkpoints/step-000000002", "checkpoints/step-000000001"
LATEST, DOCUMENT = "checkpoints/latest", f"{NEWEST}/checkpoint.json"
DEEP = b"[" * 100_000


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a program, and a run of two steps of it, which are saved."""
    found, before = tmp_path_factory.mktemp("whole"), Path.cwd()
    write_tiny(found)
    os.chdir(found)
    try:
        rlgraph.compile(Path("tiny.rlf")).run(2, out="run", save_every=1, threads=1, progress=False)
    finally:
        os.chdir(before)
    return found


@pytest.fixture
def run(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(whole, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    how = Path("run/run.json")
    how.write_text(json.dumps(json.loads(how.read_text()) | {"folder": str(Path.cwd())}))
    return Path("run")


def written(path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)
    path.write_bytes(data)


def linked(path: Path, to: str) -> None:
    path.unlink()
    path.symlink_to(to)


def piped(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def changed(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def signed(path: Path, **fields: Any) -> None:
    """A document that somebody has changed who knows how it is written."""
    path.write_text(document.text_with_digest(document.read_document(path.parent) | fields))


def flipped(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def half(path: Path, size: int | None = None) -> None:
    path.write_bytes(path.read_bytes()[: size or path.stat().st_size // 2])


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: written(path, b""),
        lambda path: written(path, b"step-999999999\n"),
        lambda path: written(path, b"\xff\xfe\n"),
        lambda path: written(path, b"x" * 100_000),
        lambda path: written(path, b"../../elsewhere/step-000000001\n"),
        lambda path: linked(path, "/dev/zero"),
        piped,
        as_folder,
        Path.unlink,
    ],
)
def test_the_newest_is_taken_where_latest_names_none(damage: Callable[[Path], None], run: Path) -> None:
    (run / "checkpoints/step-none").mkdir()
    (run / "checkpoints/step-000000009").write_text("no folder")
    elsewhere = run.parent / "elsewhere/step-000000001"
    shutil.copytree(run / BEFORE, elsewhere)
    damage(run / LATEST)
    assert disk.newest_checkpoint(run / "checkpoints") == run / NEWEST


def test_latest_chooses(run: Path) -> None:
    (run / LATEST).write_text("step-000000001\n")
    assert disk.newest_checkpoint(run / "checkpoints") == run / BEFORE


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda run: written(run / DOCUMENT, b""), "is damaged: `checkpoint.json` is no JSON: Expecting value"),
        (lambda run: written(run / DOCUMENT, b"\xff"), "is damaged"),
        (lambda run: written(run / DOCUMENT, DEEP), "is damaged"),
        (lambda run: written(run / DOCUMENT, b"[]"), "is damaged"),
        (lambda run: piped(run / DOCUMENT), "it is no regular file"),
        (lambda run: signed(run / DOCUMENT, step=7), "`checkpoint.json` is of another step"),
        (lambda run: changed(run / DOCUMENT, seed=1e400), "is damaged"),
        (lambda run: changed(run / DOCUMENT, seed=8), "`checkpoint.json` is not as it was written"),
        (lambda run: signed(run / DOCUMENT, rows=[]), "in `checkpoint.json` `rows` is no record"),
        (lambda run: signed(run / DOCUMENT, models=None), "in `checkpoint.json` `models` is no record"),
        (lambda run: changed(run / DOCUMENT, format="\x1b[2J"), "has format \\x1b[2J"),
        (lambda run: half(run / NEWEST / "models/actor/weights.safetensors"), "has"),
        (lambda run: (run / NEWEST / "models/actor/moments.safetensors").unlink(), "No such file"),
        (lambda run: written(run / NEWEST / "program.rlf", b""), "`program.rlf` has 0 bytes"),
    ],
)
def test_a_damaged_checkpoint_is_told(
    damage: Callable[[Path], None], told: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(run)
    assert run_command(["resume", "run", "--steps", "3"]) == 2
    said = capsys.readouterr().err
    assert "error[E0827]" in said and told in said and said == escape_controls(said)


def read_all(checkpoint: Path) -> None:
    found = document.read_checkpoint(checkpoint)
    for name in found.models:
        saved = document.saved_model_of(found, name)
        with checking_damage(saved):
            stored = StoredTensors(saved.files_of_kind("weights") | saved.files_of_kind("moments"))
            for tensor in stored.names:
                stored.read(tensor, stored.full_box(tensor))


def test_a_bit_that_has_changed_is_told_wherever_it_is(run: Path) -> None:
    files = sorted(file for file in (run / NEWEST).rglob("*") if file.is_file())
    assert {file.name for file in files} >= {"weights.safetensors", "moments.safetensors", "things.safetensors"}
    read_all(run / NEWEST)
    for file in files:
        good = file.read_bytes()
        for bit in (3, 4 * len(good) + 1, 8 * len(good) - 12):
            flipped(file, bit)
            with pytest.raises(UsageMistake, match="E0827") as told:
                read_all(run / NEWEST)
            assert (
                file.suffix == ".json"
                or f"is damaged: `{file.relative_to(run / NEWEST)}` is not as it was written" in str(told.value)
            )
            file.write_bytes(good)


def test_a_run_does_not_go_on_with_a_bit_that_has_changed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It was another model, and nobody said so."""
    file = run / NEWEST / "models/actor/weights.safetensors"
    flipped(file, 8 * file.stat().st_size - 12)
    ranks = ["run", "tiny.rlf", "--resume", "run", "--backend", "ray", "--debug"]
    for command in (["resume", "run"], ranks):
        assert run_command([*command, "--steps", "3"]) == 2
        said = capsys.readouterr().err
        assert "error[E0827]" in said and "`models/actor/weights.safetensors` is not as it was written" in said
        assert "remove `step-000000002`, and the run goes on from the checkpoint before it" in said
    shutil.rmtree(run / NEWEST)
    assert run_command(["resume", "run", "--steps", "3"]) == 0


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: written(path, b""),
        lambda path: written(path, DEEP),
        lambda path: written(path, b"{}"),
        lambda path: changed(path, backend=7),
        lambda path: changed(path, steps="many"),
        lambda path: changed(path, set=["n"]),
        lambda path: changed(path, timeout=None),
        lambda path: changed(path, program=None),
        lambda path: changed(path, threads="\x1b[2J"),
        piped,
        lambda path: linked(path, "/dev/zero"),
        Path.unlink,
    ],
)
def test_how_it_was_run_has_to_be_there(
    damage: Callable[[Path], None], run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(run / "run.json")
    assert run_command(["resume", "run", "--steps", "3"]) == 2
    said = capsys.readouterr().err
    assert "error[E0829]" in said and said == escape_controls(said)


@pytest.mark.parametrize(
    "tail",
    [
        b'{"step": 3, "re',
        b'{"step": 2}',
        b"\xff\xfe\n",
        b"\0" * 4096,
        DEEP + b"\n",
        b'{"step": ' + b"9" * 5000 + b"}\n",
        b"[]\n",
    ],
)
def test_what_stands_behind_the_last_whole_line_is_cut_off(tail: bytes, run: Path) -> None:
    metrics = run / "metrics.jsonl"
    good = metrics.read_bytes()
    metrics.write_bytes(good + tail)
    folder = RunFolder.open_for_resume(run)
    assert [line["step"] for line in folder.cut_after_step(2)] == [1, 2]
    folder.close()
    assert metrics.read_bytes() == good


def test_a_full_disk_leaves_what_says_how_it_was_run(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written anew when a run is gone on with, and nobody could go on with it without."""
    before, plain = (run / "run.json").read_bytes(), Path.open

    class Full:
        def __init__(self, file: Any) -> None:
            self.file = file

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def write(self, text: str) -> None:
            raise OSError(28, "No space left on device")

    def opened(path: Path, mode: str = "r", *more: Any, **named: Any) -> Any:
        file = plain(path, mode, *more, **named)
        return Full(file) if "w" in mode and HOW in path.name else file

    folder = RunFolder.open_for_resume(run)
    monkeypatch.setattr(Path, "open", opened)
    with pytest.raises(UsageMistake, match="no space left on device"):
        folder.write_run_inputs("program", "graph", {})
    folder.close()
    assert (run / "run.json").read_bytes() == before
    assert not list(run.glob(".*"))


def test_a_number_of_5000_digits_does_not_say_how_often() -> None:
    for text in ("9" * 5000, "9" * 5000 + "h", "1." + "9" * 5000):
        with pytest.raises(UsageMistake, match="E0825"):
            parse_interval(text)
