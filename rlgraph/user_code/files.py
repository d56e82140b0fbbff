"""Finds the files that a program names by relative paths, and the files of modules; it opens and imports none of
them."""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from rlgraph.errors import Diagnostic, ProgramError, Span, did_you_mean
from rlgraph.user_code.spec import UNREADABLE

NO_FILE = "E0703"


@dataclass(frozen=True, slots=True)
class SearchFolders:
    """The folders in which the relative paths of a program begin: first its own, then the one in which the command
    runs.

    So a program that ships is used where it lies, with the data and the rewards of the user who runs it.
    """

    program: Path
    here: Path = field(default_factory=Path.cwd)

    def find_path(self, path: str) -> Path:
        """Return what `path` names; a path in the folder of the program if it is in neither folder."""
        places = [folder / os.path.expanduser(path) for folder in self.all_folders()]
        return next((place for place in places if os.path.exists(place)), places[0])

    def resolve_model_source(self, source: str) -> str:
        """Return the folder that the source of a model or a tokenizer names, if there is one; else the source, a name
        of the hub."""
        local = self.find_path(source)
        return str(local) if local.is_dir() else source

    def all_folders(self) -> list[Path]:
        """Return the folders in their order, each once."""
        same = self.program.absolute() == self.here.absolute()
        return [self.program] if same else [self.program, self.here]


def find_file(path: str, folders: SearchFolders, span: Span, what: str) -> Path:
    """Return the file that a program names `path`; it exists, is a regular file, and may be read.

    `what` is the user's word for it: `data file`. Raises ProgramError.
    """
    file = folders.find_path(path)
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


def _where(path: str, folders: SearchFolders) -> str:
    """Return the folders that were searched, as words."""
    if os.path.isabs(os.path.expanduser(path)):
        return ""
    return " in " + " or in ".join(f"'{folder.absolute()}'" for folder in folders.all_folders())


def _missing_hint(path: str, folders: SearchFolders) -> str:
    """Return a hint on what may have been meant: among the files of the same kind one with a similar name, or all of
    them; of an address, how it becomes a file."""
    scheme, _, rest = path.partition("://")
    if rest and scheme.isalnum():
        return _address_hint(path, scheme, rest)
    wanted = [folder / os.path.expanduser(path) for folder in folders.all_folders()]
    if not any(os.path.isdir(file.parent) for file in wanted):
        return f"there is no folder '{wanted[0].parent}' either"
    # All have the same ending, which would make short names look alike.
    stems = [name.removesuffix(file.suffix) for file in wanted for name in _names(file.parent, file.suffix)]
    near = did_you_mean(wanted[0].stem, stems, "{}" + wanted[0].suffix)
    return near or next(filter(None, (_nearby(file.parent, file.suffix) for file in wanted)), "")


def _address_hint(path: str, scheme: str, rest: str) -> str:
    """Return how the file of an address is had."""
    if scheme == "hf":
        repository = "/".join(rest.removeprefix("datasets/").split("/")[:2])
        return f'a data set of the hub is `hub("{repository}", batch=64)`'
    fetched = f"`curl -LO {path}` first" if scheme in ("http", "https") else "copy it here first"
    return f"files are read from disk: {fetched}"


def _nearby(folder: Path, suffix: str) -> str:
    """Return a list of the files with `suffix` in `folder`, as words."""
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
    """Return whether `place` names a module, as in `math_verify` and `rlgraph.rewards`, and not a file."""
    return not place.endswith(".py") and all(part.isidentifier() for part in place.split("."))


def find_module_file(name: str, folders: SearchFolders) -> Path | None:
    """Return the file of the module `name`, which may lie in one of `folders`; None if there is no such module.

    Parent packages are not imported either, as `importlib.util.find_spec` would do.
    """
    first, *rest = name.split(".")
    spec = _top(first, folders)
    for part in rest:
        locations = spec and spec.submodule_search_locations
        # Only the last part is given: with a full name, packages without `__init__.py` ask their imported parents.
        spec = PathFinder.find_spec(part, list(locations)) if locations else None
    return Path(spec.origin or name) if spec is not None else None


def module_search_path(folders: SearchFolders) -> list[str]:
    """Return where the process that imports a user's module looks for it."""
    return [*(str(folder.absolute()) for folder in folders.all_folders()), *sys.path]


def _top(name: str, folders: SearchFolders) -> ModuleSpec | None:
    try:
        # The second lookup is for editable installs, which have their own finder.
        return PathFinder.find_spec(name, module_search_path(folders)) or importlib.util.find_spec(name)
    except ValueError:  # `__main__` has none
        return None
