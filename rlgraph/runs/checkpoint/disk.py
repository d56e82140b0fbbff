"""Folders that are complete or absent, whenever the process or the machine stops.

A folder is written under another name, its files are given to the disk (fsync), and only then it gets its name. A file
`latest` says which is the newest one; it is replaced in the same way. What a process left half-written has a name with
a dot, and is removed by the next one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LATEST = "latest"
_PREFIX = "step-"


@contextmanager
def draft(folder: Path, step: int) -> Iterator[Path]:
    """An empty folder, which is the checkpoint of a step when the context ends. Raises OSError; then, or if the context
    is left otherwise, nothing of it is left, and those before it are as they were."""
    final, draft = folder / name(step), folder / f".{name(step)}"
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        yield draft
        for path in (*draft.rglob("*"), draft):
            _to_disk(path)
        if final.exists():
            remove(final)
        draft.rename(final)
        _to_disk(folder)
        if made:
            _to_disk(folder.parent)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    replace_text(folder / LATEST, f"{final.name}\n")


def replace_text(path: Path, text: str) -> None:
    """Writes a file anew, whole or not at all."""
    draft = path.with_name(f".{path.name}")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        _to_disk(path.parent)
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def prune(folder: Path, keep: int, best: Path | None = None) -> None:
    """Removes all checkpoints but the newest and the best one, and what was left half-written."""
    for old in complete(folder)[:-keep]:
        if old != best:
            remove(old)
    for left in folder.glob(f".{_PREFIX}*"):
        shutil.rmtree(left, ignore_errors=True)


def remove(path: Path) -> None:
    """So that a half of it never has its name."""
    gone = path.with_name(f".{path.name}.gone")
    shutil.rmtree(gone, ignore_errors=True)
    path.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def complete(folder: Path) -> list[Path]:
    """All checkpoints, the newest last."""
    return sorted(folder.glob(f"{_PREFIX}*"))


def newest(folder: Path) -> Path | None:
    """The one that `latest` names; where that is not there, the newest that is."""
    with suppress(OSError):
        found = folder / (folder / LATEST).read_text("utf-8").strip()
        if found.name.startswith(_PREFIX) and found.is_dir():
            return found
    return next(reversed(complete(folder)), None)


def name(step: int) -> str:
    return f"{_PREFIX}{step:09d}"


def step_of(path: Path) -> int:
    return int(path.name.removeprefix(_PREFIX))


def _to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
