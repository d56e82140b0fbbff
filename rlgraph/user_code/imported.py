"""Which files a user's function is made of: its own, and those beside it that it imports; none of them is run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from rlgraph.errors import ProgramError, Span
from rlgraph.user_code.files import Folders, find_module
from rlgraph.user_code.report import parse_target

_OURS = Path(__file__).resolve().parents[1]


def code_files(reference: str, folders: Folders, span: Span) -> list[Path]:
    """Of `rewards.py:exact_match` the file, and the modules that it imports, and these import, as far as they lie in
    one of the folders: what is installed has a version. Empty where there is no such file."""
    try:
        first = Path(parse_target(reference, folders, span, "python").code.file)
    except ProgramError:
        return []
    found, waiting = dict.fromkeys([first]), [first]
    while waiting:
        for name in _imported(waiting.pop()):
            file = find_module(name, folders)
            if file is not None and file not in found and _theirs(file, folders):
                found[file] = None
                waiting.append(file)
    return [file for file in found if file.is_file()]


def _imported(file: Path) -> Iterator[str]:
    """The modules that a file may import, wherever in it. Of `from a import b` that is `a.b`, too."""
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


def _theirs(file: Path, folders: Folders) -> bool:
    place = file.resolve()
    inside = any(place.is_relative_to(folder.resolve()) for folder in folders.all())
    return inside and "site-packages" not in place.parts and not place.is_relative_to(_OURS)
