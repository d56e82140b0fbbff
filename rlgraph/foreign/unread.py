"""What can be seen of a user's Python while none of it is run or imported: whether what a program names is there."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from rlgraph.errors import Diagnostic, ProgramError
from rlgraph.foreign.files import NO_FILE, Folders, is_module
from rlgraph.foreign.report import not_there, parse_target
from rlgraph.foreign.spec import Spec, one_text

NO_MODULE_HERE = "W0703"
LARGEST_BYTES = 1 << 20
_DYNAMIC = {"exec", "globals", "locals", "setattr", "vars"}
"""Where one of them is used, a module may have names that its text does not show."""


def faults(spec: Spec, folders: Folders) -> list[Diagnostic]:
    """What is wrong with `python("FILE_OR_MODULE:NAME")`; a file that is not here may be where the run will be."""
    try:
        reference = one_text(spec, "a file or a module and a name in it", 'python("rewards.py:exact_match")')
        target = parse_target(reference, folders, spec.at(0), spec.kind)
    except ProgramError as error:
        [found] = error.diagnostics
        if found.code != NO_FILE:
            return [found]
        return [Diagnostic(NO_MODULE_HERE, found.message, found.span, found.hint)] * is_module(
            reference.rpartition(":")[0]
        )
    names = _names(target.code.file)
    if names is None or target.name in names:
        return []
    return [not_there(target, "missing", [name for name in names if name[0] != "_"])]


def _names(file: Path) -> set[str] | None:
    """What a module's text defines; None where that cannot be told from it."""
    try:
        if file.suffix != ".py" or file.stat().st_size > LARGEST_BYTES:
            return None
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # The run says what is wrong with it.
    if any(isinstance(node, ast.Name) and node.id in _DYNAMIC for node in ast.walk(tree)):
        return None
    found = set(_defined(tree.body))
    return None if found & {"*", "__getattr__"} else found


def _defined(body: Sequence[ast.stmt]) -> Iterator[str]:
    """The names that statements of a module give, those in its `if`s, `try`s and loops too."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield statement.name
            continue
        if isinstance(statement, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name).partition(".")[0] for alias in statement.names)
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id
        blocks = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
        blocks += [handler.body for handler in getattr(statement, "handlers", [])]
        blocks += [case.body for case in getattr(statement, "cases", [])]
        for block in blocks:
            yield from _defined(block)
