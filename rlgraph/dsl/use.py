"""`use "grpo.rlf"`: an algorithm as a difference from another one.

The used file's declarations come first; those of the same name here take their place. A `change:` block replaces
statements of the used steps that have the same target.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

from rlgraph.dsl import tree
from rlgraph.dsl.parse import parse
from rlgraph.dsl.scope import Reporter
from rlgraph.errors import ProgramError, Related, Source, Span, nearest
from rlgraph.files import PROGRAMS, read_bytes, reason

Read = Callable[[str], str]
"""Text of a file by the path that `use` gives; raises OSError."""

LARGEST_BYTES = 1 << 17
"""Of a program, and of all that it uses: a hundred times what one takes, and read in seconds."""
MOST_FILES = 32


def assemble(file: tree.File, source: Source, reporter: Reporter, read: Read | None = None) -> tree.File:
    """The file with those it uses written out; what cannot be read or changed is reported."""
    uses = [item for item in file.declarations if isinstance(item, tree.Use)]
    changes = [item for item in file.declarations if isinstance(item, tree.Change)]
    own = [item for item in file.declarations if not isinstance(item, (tree.Use, tree.Change))]
    base: list[tree.Decl] = []
    budget = [MOST_FILES, LARGEST_BYTES]
    for use in uses:
        base += _load(use, source, reporter, read, (_normal(source.path),), budget)
    if changes and not uses:
        reporter.say(
            "E0803",
            "`change:` changes a used program, and none is used here",
            changes[0].span,
            'write `use "grpo.rlf"` above it',
        )
        changes = []
    for change in changes:
        base = _changed(base, change, reporter)
    return replace(file, declarations=tuple(_merged(base, own)))


def _load(
    use: tree.Use, source: Source, reporter: Reporter, read: Read | None, trail: tuple[str, ...], budget: list[int]
) -> list[tree.Decl]:
    path = use.path.value
    budget[0] -= 1
    if budget[0] < 0:
        reporter.say("E0802", f"more than {MOST_FILES} files are used", use.path.span)
        return []
    try:
        found = Source(*_open(path, source, read))
    except (OSError, ValueError) as error:
        reporter.say("E0801", f'"{path}" cannot be used: {reason(error)}', use.path.span, _near(path, source))
        return []
    budget[1] -= len(found.text)
    if budget[1] < 0:
        reporter.say("E0802", f"the files that are used have more than {LARGEST_BYTES >> 10} KiB", use.path.span)
        return []
    if _normal(found.path) in trail:
        reporter.say("E0802", f'"{path}" uses itself', use.path.span, "leave this line out")
        return []
    try:
        file = parse(found)
    except ProgramError as error:
        reporter.diagnostics += error.diagnostics
        return []
    base: list[tree.Decl] = []
    for inner in file.declarations:
        if isinstance(inner, tree.Use):
            base += _load(inner, found, reporter, read, (*trail, _normal(found.path)), budget)
    for change in file.declarations:
        if isinstance(change, tree.Change):
            base = _changed(base, change, reporter)
    own = [item for item in file.declarations if not isinstance(item, (tree.Use, tree.Change))]
    return _merged(base, own)


def _normal(path: str) -> str:
    return os.path.normpath(path)


def _open(path: str, source: Source, read: Read | None) -> tuple[str, str]:
    """Path and text: beside the file that uses it, else among the algorithms that ship."""
    if read is not None:
        return path, read(path)
    folder = Path(source.path).parent if not source.path.startswith("<") else Path()
    beside = folder / path
    if not beside.exists() and "/" not in path:
        shipped = files("rlgraph") / "algorithms" / path
        if shipped.is_file():
            return str(shipped), shipped.read_text("utf-8")
    if beside.suffix not in PROGRAMS:
        raise ValueError("it is no .rlf file")
    try:
        return str(beside), read_bytes(beside, LARGEST_BYTES, PROGRAMS).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("it is no UTF-8 text") from None


def _near(path: str, source: Source) -> str:
    folder = Path(source.path).parent if not source.path.startswith("<") else Path()
    known = [entry.name for entry in files("rlgraph").joinpath("algorithms").iterdir()]
    with suppress(OSError, ValueError):
        known += [entry.name for entry in (folder / path).parent.iterdir() if entry.suffix == ".rlf"]
    stems = {Path(name).stem for name in known if name.endswith(".rlf")} - {Path(source.path).stem}
    return nearest(Path(path).stem, sorted(stems), "{}.rlf")


def _key(item: tree.Decl) -> tuple[str, str] | None:
    match item:
        case tree.Declaration(name=name) | tree.State(name=name) | tree.Def(name=name):
            return "name", name
        case tree.Phase(name=name):
            return "phase", name
        case tree.Algorithm():
            return "algorithm", ""
        case tree.Schedule():
            return "schedule", ""
        case _:
            return None


def _merged(base: Sequence[tree.Decl], own: Sequence[tree.Decl]) -> list[tree.Decl]:
    """The base with own declarations in the place of those they replace, and the others after it."""
    mine = {_key(item): item for item in own if _key(item)}
    based = {_key(item) for item in base}
    found = [mine.get(_key(item), item) if _key(item) else item for item in base]
    return found + [item for item in own if _key(item) is None or _key(item) not in based]


def _target(statement: tree.Stmt) -> str | None:
    """What a statement is known by: statements with the same target replace each other."""
    match statement:
        case tree.Assign(target=name):
            return f"{name} ="
        case tree.Store(target=tree.Name(id=name)):
            return f"{name} :="
        case tree.Minimize():
            return "minimize"
        case tree.Keep(table=table):
            return f"keep {table.id}"
        case tree.Update(target=target):
            return f"update {target.id}"
        case _:
            return None


def _changed(base: list[tree.Decl], change: tree.Change, reporter: Reporter) -> list[tree.Decl]:
    for statement in change.body:
        if isinstance(statement, tree.Report):
            base = [_reported(item, statement) if isinstance(item, tree.Phase) else item for item in base]
            continue
        wanted = _target(statement)
        places = [s for item in base if isinstance(item, tree.Phase) for s in _all(item.body) if _target(s) == wanted]
        if wanted is None or len(places) != 1:
            _refuse(statement, wanted, [s.span for s in places], reporter)
            continue
        base = [
            replace(item, body=_swap(item.body, places[0], statement)) if isinstance(item, tree.Phase) else item
            for item in base
        ]
    return base


def _refuse(statement: tree.Stmt, wanted: str | None, places: list[Span], reporter: Reporter) -> None:
    if wanted is None:
        reporter.say(
            "E0803",
            "this statement cannot stand in `change:`",
            statement.span,
            "`change:` replaces assignments, `minimize`, `keep`, `update` and `report`",
        )
        return
    shown = "no statement" if not places else f"{len(places)} statements"
    related = tuple(Related(span, "one of them") for span in places)
    reporter.say(
        "E0803",
        f"the used program has {shown} `{wanted} ...` to replace",
        statement.span,
        "write the whole `step:` instead",
        related=related,
    )


def _all(body: Sequence[tree.Stmt]) -> Iterator[tree.Stmt]:
    for statement in body:
        yield statement
        if isinstance(statement, tree.Loop):
            yield from _all(statement.body)


def _swap(body: Sequence[tree.Stmt], old: tree.Stmt, new: tree.Stmt) -> tuple[tree.Stmt, ...]:
    return tuple(
        new
        if statement is old
        else replace(statement, body=_swap(statement.body, old, new))
        if isinstance(statement, tree.Loop)
        else statement
        for statement in body
    )


def _reported(phase: tree.Phase, report: tree.Report) -> tree.Phase:
    """The main step with these metrics in the place of those of the same name, new ones at its end."""
    if phase.name != "step":
        return phase
    new = {item.name for item in report.items}

    def without(body: Sequence[tree.Stmt]) -> tuple[tree.Stmt, ...]:
        found: list[tree.Stmt] = []
        for statement in body:
            if isinstance(statement, tree.Report):
                kept = tuple(item for item in statement.items if item.name not in new)
                found += [replace(statement, items=kept)] if kept else []
            elif isinstance(statement, tree.Loop):
                found.append(replace(statement, body=without(statement.body)))
            else:
                found.append(statement)
        return tuple(found)

    return replace(phase, body=(*without(phase.body), report))
