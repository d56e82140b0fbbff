"""Checkpoint folders that are either complete or absent, whenever the process or the machine stops.

A folder is written under another name, its files are flushed to the disk (fsync), and only then is it renamed. A file
`latest` names the newest folder; it is replaced in the same way. What a process left half-written has a name that
begins with a dot, and the next process removes it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rlgraph.files import read_bytes

LATEST = "latest"
_PREFIX = "step-"
_NAME = re.compile(rf"{_PREFIX}[0-9]{{9,18}}")
_LONGEST = 1 << 10
"""The most bytes that are read of a file that names a checkpoint."""


@contextmanager
def draft_checkpoint(folder: Path, step: int) -> Iterator[Path]:
    """Yield an empty folder, which becomes the checkpoint of a step when the context ends. Raise OSError; then, or if
    an exception leaves the context, nothing of the folder is left, and earlier checkpoints are as they were."""
    final, unfinished = folder / checkpoint_name(step), folder / f".{checkpoint_name(step)}"
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        yield unfinished
        flush_folder(unfinished)
        if final.exists():
            remove_folder(final)
        unfinished.rename(final)
        _synced(folder)
        if made:
            _synced(folder.parent)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    write_text_atomically(folder / LATEST, f"{final.name}\n")


def write_text_atomically(path: Path, text: str) -> None:
    """Replace a file's text atomically: whole or not at all."""
    draft = path.with_name(f".{path.name}")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        _synced(path.parent)
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def prune_checkpoints(folder: Path, keep: int, best: Path | None = None) -> None:
    """Remove all checkpoints but the newest `keep` and the best one, and what was left half-written."""
    for old in complete_checkpoints(folder)[:-keep]:
        if old != best:
            remove_folder(old)
    for leftover in folder.glob(f".{_PREFIX}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def remove_folder(path: Path) -> None:
    """Remove a folder, renaming it first so that a half-removed one never has its name."""
    gone = path.with_name(f".{path.name}.gone")
    shutil.rmtree(gone, ignore_errors=True)
    path.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def complete_checkpoints(folder: Path) -> list[Path]:
    """Return all complete checkpoints, the newest last."""
    folders = [path for path in folder.glob(f"{_PREFIX}*") if _NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(folders, key=step_of)


def newest_checkpoint(folder: Path) -> Path | None:
    """Return the checkpoint that `latest` names, or else the newest that exists; None if there is none."""
    checkpoints = {path.name: path for path in complete_checkpoints(folder)}
    try:
        named = checkpoints.get(read_bytes(folder / LATEST, _LONGEST).decode().strip())
    except (OSError, ValueError):
        named = None
    return named or next(reversed(checkpoints.values()), None)


def checkpoint_name(step: int) -> str:
    """Return the folder name of a step's checkpoint."""
    return f"{_PREFIX}{step:09d}"


def step_of(path: Path) -> int:
    """Return the step of a checkpoint's folder."""
    return int(path.name.removeprefix(_PREFIX))


def flush_folder(folder: Path) -> None:
    """Flush a folder and all that is in it to the disk, so that it survives a power failure. Raise OSError."""
    for path in (*folder.rglob("*"), folder):
        _synced(path)


def _synced(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
