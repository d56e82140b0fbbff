"""Checks for another installed project called `rlgraph`, whose files would lie among ours."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress

from rlgraph.errors import DISTRIBUTION, NO_SPAN, Diagnostic

_NAME = "rlgraph"
_INFO = re.compile(rf"{_NAME}(-[^-]*)?(-py[\d.]+)?\.(dist|egg)-info")
_OURS = "rlgraph.cli:main"
"""The entry point of this project, which was once installed under the package's name."""


def namesake_warning(places: Iterable[str]) -> Diagnostic | None:
    """Return a warning if one of these package folders has another project of our package's name."""
    # Reading the metadata of packages is slow to import: if there is no such file name, as nearly always, there is no
    # such project.
    if not any(_INFO.fullmatch(name) for place in places for name in _names(place)):
        return None
    from importlib.metadata import distributions

    for distribution in distributions(name=_NAME, path=list(places)):
        if all(entry.value != _OURS for entry in distribution.entry_points):
            which = f"another project called `{_NAME}` ({distribution.version})"
            message = f"{which} is installed here, and its files are among ours"
            hint = f"`pip uninstall {_NAME}`, then `pip install --force-reinstall {DISTRIBUTION}`"
            return Diagnostic("W0801", message, NO_SPAN, hint)
    return None


def _names(place: str) -> list[str]:
    with suppress(OSError):
        return os.listdir(place or os.curdir)
    return []
