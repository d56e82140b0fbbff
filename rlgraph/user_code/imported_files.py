"""Lists the files that a user's function is made of: its own, and those near it that it imports; none of them is
run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from rlgraph.errors import ProgramError, Span
from rlgraph.user_code.code_diagnostics import parse_target
from rlgraph.user_code.files import SearchFolders, find_module_file

_OURS = Path(__file__).resolve().parents[1]


def imported_files(reference: str, folders: SearchFolders, span: Span) -> list[Path]:
    """Return the file of `rewards.py:exact_match`, and the modules that it imports directly or indirectly, as far as
    they lie in one of the folders: installed packages have versions. Empty if there is no such file."""
    try:
        first = Path(parse_target(reference, folders, span, "python").code.file)
    except ProgramError:
        return []
    files, waiting = dict.fromkeys([first]), [first]
    while waiting:
        for name in _imported_names(waiting.pop()):
            file = find_module_file(name, folders)
            if file is not None and file not in files and _is_users(file, folders):
                files[file] = None
                waiting.append(file)
    return [file for file in files if file.is_file()]


def _imported_names(file: Path) -> Iterator[str]:
    """Yield the modules that a file may import, anywhere in it. `from a import b` also yields `a.b`."""
    try:
        nodes = list(ast.walk(ast.parse(file.read_bytes())))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names if alias.name != "*")


def _is_users(file: Path, folders: SearchFolders) -> bool:
    """Return whether a file lies in one of the folders, and is neither installed nor part of rlgraph."""
    place = file.resolve()
    inside = any(place.is_relative_to(folder.resolve()) for folder in folders.all_folders())
    return inside and "site-packages" not in place.parts and not place.is_relative_to(_OURS)
