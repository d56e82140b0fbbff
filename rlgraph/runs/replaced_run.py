"""The earlier run in a folder that `--overwrite` replaces: it is set aside, and comes back where the new run ends
before it has done anything, as one does whose data or reward cannot be opened."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

REPLACED = ".replaced"
"""The folder in that of the run."""


def set_aside(folder: Path, names: Iterable[str]) -> None:
    """Move what a run has written, files and folders of these names, aside. What a process that was killed has left
    there is the run that last did something, and stays in its place. Raise OSError."""
    place = folder / REPLACED
    if place.exists():
        remove_run(folder, names)
        return
    place.mkdir()
    _move(folder, place, names)


def bring_back(folder: Path, names: Iterable[str]) -> None:
    """Move it back, in the place of what the new run has written. Raise OSError."""
    remove_run(folder, names)
    _move(folder / REPLACED, folder, names)
    (folder / REPLACED).rmdir()


def forget(folder: Path) -> None:
    """Remove it: the new run has done something."""
    shutil.rmtree(folder / REPLACED, ignore_errors=True)


def remove_run(folder: Path, names: Iterable[str]) -> None:
    """Remove what a run has written, and nothing that a link refers to. Raise OSError."""
    for name in names:
        entry = folder / name
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink(missing_ok=True)


def _move(source: Path, target: Path, names: Iterable[str]) -> None:
    for name in names:
        if (source / name).exists() or (source / name).is_symlink():
            (source / name).rename(target / name)
