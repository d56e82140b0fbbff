"""Which files a program means by a path, a glob, a folder or a list of these, in the order in which they are read."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlgraph.errors import Diagnostic, ProgramError, count_phrase, quoted_list
from rlgraph.user_code.files import NO_FILE, SearchFolders, find_file
from rlgraph.user_code.spec import BAD_ARGUMENT, CallSpec

NO_FORMAT = "E0762"
SEVERAL_SPLITS = "E0763"
FORMATS: Mapping[str, str] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".txt": "text",
}
"""The format of a file by its ending."""
PACKED = (".gz", ".zst", ".bz2", ".xz")
"""Endings of compressed files, after that of their format."""
SPLITS: Mapping[str, str] = {
    "train": "train",
    "training": "train",
    "test": "test",
    "testing": "test",
    "eval": "test",
    "evaluation": "test",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
}
"""Words in the names of files that say of which split they are."""
_ABOUT = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")
"""Files that say something about a data set."""


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file with rows."""

    shown: str
    """What messages call it."""
    file: Path

    @property
    def compression(self) -> str:
        """The ending that says how the file is compressed; empty if it is not."""
        ending = self.file.suffix.lower()
        return ending if ending in PACKED else ""

    @property
    def format(self) -> str:
        """The format by the file's ending; empty if that says none."""
        name = self.file.name[: len(self.file.name) - len(self.compression)]
        kind = FORMATS.get(Path(name).suffix.lower(), "")
        # These compress their columns, and are read from the end.
        return "" if self.compression and kind in ("parquet", "arrow") else kind


def names_of(listed: Sequence[ListedFile]) -> str:
    """Return what messages call all the files."""
    more = f" and {count_phrase(len(listed) - 1, 'more file')}" if len(listed) > 1 else ""
    return f"'{listed[0].shown}'{more}"


def list_files(spec: CallSpec, folders: SearchFolders, split: str | None) -> list[ListedFile]:
    """Return the files in the order of the list, those of a folder or a glob in the order of their names. Raises
    ProgramError where there are none, or where they are of several formats or splits."""
    paths = spec.args[0]
    listed = [
        file
        for path in (paths if isinstance(paths, list) else [paths])
        for file in _of_path(spec, path, folders, split)
    ]
    formats: dict[str, str] = {}
    for file in listed:
        formats.setdefault(file.format, file.shown)
    if "" in formats:
        message = f"the ending of '{formats['']}' does not say what it holds"
        hint = f"there are {quoted_list([*FORMATS], 'and')}, those of texts also with .gz, .zst, .bz2 or .xz behind"
        if formats[""].lower().endswith((".xlsx", ".xls", ".ods")):
            hint = "save the sheet as csv"
        raise ProgramError(Diagnostic(NO_FORMAT, message, spec.argument_span(0), hint))
    if len(formats) > 1:
        (one, first), (other, second) = list(formats.items())[:2]
        message = f"these files are of several formats: '{first}' is {one}, '{second}' is {other}"
        hint = f'name those of one: `files("{_folder(spec)}*{Path(first).suffix}")`; or read both, and mix them'
        raise ProgramError(Diagnostic(NO_FORMAT, message, spec.argument_span(0), hint))
    return listed


def _folder(spec: CallSpec) -> str:
    path = spec.args[0]
    return f"{path.rstrip('/')}/" if isinstance(path, str) and not _is_glob(path) else ""


def _of_path(spec: CallSpec, path: str, folders: SearchFolders, split: str | None) -> list[ListedFile]:
    place = folders.find_path(path)
    if _is_glob(path) and not place.exists():
        names = next(filter(None, (_matches(folder, path) for folder in folders.all_folders())), [])
        if not names:
            where = " or in ".join(f"'{folder.absolute()}'" for folder in folders.all_folders())
            raise ProgramError(Diagnostic(NO_FILE, f"no file matches '{path}' in {where}", spec.argument_span(0)))
        return _of_split(spec, path, [ListedFile(name, folders.find_path(name)) for name in names], split)
    if place.is_dir():
        inside = [ListedFile(f"{path.rstrip('/')}/{name}", place / name) for name in sorted(_inside(place))]
        tables = [file for file in inside if file.format not in ("", "text")]
        chosen = tables or [file for file in inside if file.format]
        if not chosen:
            message = f"the folder '{path}' has no file with rows"
            raise ProgramError(
                Diagnostic(
                    NO_FILE, message, spec.argument_span(0), f"their names end in {quoted_list([*FORMATS], 'or')}"
                )
            )
        return _of_split(spec, path, chosen, split)
    return [ListedFile(path, find_file(path, folders, spec.argument_span(0), "data file"))]


def _is_glob(path: str) -> bool:
    return any(sign in path for sign in "*?[")


def _matches(folder: Path, path: str) -> list[str]:
    """Return the files that a glob names, in the order of their names."""
    path = os.path.expanduser(path)
    names = glob.glob(path, root_dir=folder, recursive=True)
    return sorted(name for name in names if (folder / name).is_file() and os.path.basename(name) not in _ABOUT)


def _inside(folder: Path) -> Iterator[str]:
    """Yield the files in a folder and in those in it, by their paths from there; hidden ones are left out."""
    for path in folder.rglob("*"):
        name = path.relative_to(folder)
        if path.is_file() and path.name not in _ABOUT and not any(part[0] in "._" for part in name.parts):
            yield name.as_posix()


def _of_split(spec: CallSpec, path: str, listed: Sequence[ListedFile], split: str | None) -> list[ListedFile]:
    """Return the files of a split. Where none is named, there has to be one only: nobody means to train on the test
    set."""
    splits = [_split(file.shown.removeprefix(path)) for file in listed]
    named = [*dict.fromkeys(filter(None, splits))]
    if split is None:
        if len(named) < 2:
            return list(listed)
        examples = [file.shown for file, of in zip(listed, splits, strict=True) if of in named[:2]][:2]
        message = f"'{path}' has files of several splits, {quoted_list(named, 'and')}: {', '.join(examples)}"
        raise ProgramError(
            Diagnostic(SEVERAL_SPLITS, message, spec.argument_span(0), f'say which: `split="{named[0]}"`')
        )
    wanted = [file for file, of in zip(listed, splits, strict=True) if of == SPLITS.get(split, split)]
    if not wanted:
        has = (
            f"it has {quoted_list(named, 'and')}"
            if named
            else "the names of its files say nothing of splits: leave it out"
        )
        raise ProgramError(
            Diagnostic(BAD_ARGUMENT, f"'{path}' has no files of the split '{split}'", spec.argument_span("split"), has)
        )
    return wanted


def _split(name: str) -> str:
    """Return the split that a file's path names, the name before the folders; empty if it names none."""
    words = re.split(r"[^a-z]+", name.lower())
    return next((SPLITS[word] for word in reversed(words) if word in SPLITS), "")
