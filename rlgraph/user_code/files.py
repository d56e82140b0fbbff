"""Where what a program names by a relative path is, and where a module is; nothing is opened or imported for it."""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from rlgraph.errors import Diagnostic, ProgramError, Span, nearest
from rlgraph.user_code.spec import UNREADABLE

NO_FILE = "E0703"


@dataclass(frozen=True, slots=True)
class Folders:
    """Where the relative paths of a program begin: first beside it, then in the folder in which the command runs.

    So a program that ships is used where it lies, with the data and the rewards of who runs it.
    """

    program: Path
    here: Path = field(default_factory=Path.cwd)

    def find(self, path: str) -> Path:
        """What `path` names; beside the program where it is in neither folder."""
        places = [folder / os.path.expanduser(path) for folder in self.all()]
        return next((place for place in places if os.path.exists(place)), places[0])

    def all(self) -> list[Path]:
        """In their order, each once."""
        same = self.program.absolute() == self.here.absolute()
        return [self.program] if same else [self.program, self.here]


def find_file(path: str, folders: Folders, span: Span, what: str) -> Path:
    """The file that a program names `path`; it is there, is a regular file, and may be read.

    `what` is the user's word for it: `data file`. Raises ProgramError.
    """
    file = folders.find(path)
    if os.path.isdir(file):
        hint = _nearby(file, "")
        raise ProgramError(Diagnostic(NO_FILE, f"'{path}' is a folder, not a {what}", span, hint))
    if not os.path.exists(file):
        message = f"there is no {what} '{path}'{_where(path, folders)}"
        raise ProgramError(Diagnostic(NO_FILE, message, span, _missing_hint(path, folders)))
    if not file.is_file():
        raise ProgramError(Diagnostic(NO_FILE, f"'{path}' is not a regular file", span))
    if not os.access(file, os.R_OK):
        hint = "the user who runs this needs the right to read it"
        raise ProgramError(Diagnostic(UNREADABLE, f"'{path}' cannot be read: permission denied", span, hint))
    return file


def _where(path: str, folders: Folders) -> str:
    """The folders in which it was looked for."""
    if os.path.isabs(os.path.expanduser(path)):
        return ""
    return " in " + " or in ".join(f"'{folder.absolute()}'" for folder in folders.all())


def _missing_hint(path: str, folders: Folders) -> str:
    """What may have been meant: of the files of the same kind, one with a name that is near, or all of them."""
    wanted = [folder / os.path.expanduser(path) for folder in folders.all()]
    if not any(os.path.isdir(file.parent) for file in wanted):
        return f"there is no folder '{wanted[0].parent}' either"
    near = nearest(wanted[0].name, [name for file in wanted for name in _names(file.parent, file.suffix)])
    return near or next(filter(None, (_nearby(file.parent, file.suffix) for file in wanted)), "")


def _nearby(folder: Path, suffix: str) -> str:
    """The files with `suffix` that lie in `folder`."""
    names = _names(folder, suffix)
    shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    return f"in '{folder}' there is: {shown}" if names else ""


def _names(folder: Path, suffix: str) -> list[str]:
    try:
        return [name for name in sorted(os.listdir(folder)) if name.endswith(suffix) and name[0] != "."]
    except OSError:
        return []


# Modules


def is_module(place: str) -> bool:
    """Whether `place` names a module, as in `math_verify` and `rlgraph.rewards`, and not a file."""
    return not place.endswith(".py") and all(part.isidentifier() for part in place.split("."))


def find_module(name: str, folders: Folders) -> Path | None:
    """The file of the module `name`, which may lie in one of `folders`; None where there is no such module.

    Packages on the way are not imported either, as `importlib.util.find_spec` would do.
    """
    first, *rest = name.split(".")
    found = _top(first, folders)
    for part in rest:
        inside = found and found.submodule_search_locations
        # By its last part alone: with a full name, packages without `__init__.py` ask the imported ones above.
        found = PathFinder.find_spec(part, list(inside)) if inside else None
    return Path(found.origin or name) if found is not None else None


def search_path(folders: Folders) -> list[str]:
    """Where the process that imports a user's module looks for it."""
    return [*(str(folder.absolute()) for folder in folders.all()), *sys.path]


def _top(name: str, folders: Folders) -> ModuleSpec | None:
    try:
        # The second is for packages that are installed in an editable form, which is by a finder of their own.
        return PathFinder.find_spec(name, search_path(folders)) or importlib.util.find_spec(name)
    except ValueError:  # `__main__` has none
        return None
