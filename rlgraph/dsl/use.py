"""Resolves `use "grpo.rlf"`: an algorithm as a difference from another one.

The used file's declarations come first; those of the same name here take their place. A `change:` block replaces
statements of the used steps that have the same target, and adds others before or after one of them; `change NAME:`
does so in a def or a phase.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import TypeGuard

from rlgraph.dsl import tree
from rlgraph.dsl.parse import parse
from rlgraph.dsl.scope import Reporter
from rlgraph.errors import ProgramError, Related, Source, Span, did_you_mean, quoted_list
from rlgraph.files import PROGRAMS, failure_reason, read_bytes

Read = Callable[[str], str]
"""Returns the text of a file by the path that `use` gives; raises OSError."""

LARGEST_BYTES = 1 << 17
"""The most bytes of a program, and of all that it uses: a hundred times what one takes, and read in seconds."""
MOST_FILES = 32


def resolve_uses(file: tree.File, source: Source, reporter: Reporter, read: Read | None = None) -> tree.File:
    """Return the file with the files it uses written out; what cannot be read or changed is reported."""
    uses = [item for item in file.declarations if isinstance(item, tree.Use)]
    changes = [item for item in file.declarations if isinstance(item, tree.Change)]
    own_items = [item for item in file.declarations if not isinstance(item, (tree.Use, tree.Change))]
    base: list[tree.Decl] = []
    budget = [MOST_FILES, LARGEST_BYTES]
    for use in uses:
        base += _load(use, source, reporter, read, (_normal(source.path),), budget)
    if changes and not uses:
        reporter.report(
            "E0803",
            "`change:` changes a used program, and none is used here",
            changes[0].span,
            'write `use "grpo.rlf"` above it',
        )
        changes = []
    for change in changes:
        base = _apply_change(base, change, reporter)
    return replace(file, declarations=tuple(_override(base, own_items)))


def _load(
    use: tree.Use, source: Source, reporter: Reporter, read: Read | None, trail: tuple[str, ...], budget: list[int]
) -> list[tree.Decl]:
    path = use.path.value
    budget[0] -= 1
    if budget[0] < 0:
        reporter.report("E0802", f"more than {MOST_FILES} files are used", use.path.span)
        return []
    try:
        used = Source(*_open(path, source, read))
    except (OSError, ValueError) as error:
        reporter.report(
            "E0801", f'"{path}" cannot be used: {failure_reason(error)}', use.path.span, _suggestion(path, source)
        )
        return []
    budget[1] -= len(used.text)
    if budget[1] < 0:
        reporter.report("E0802", f"the files that are used have more than {LARGEST_BYTES >> 10} KiB", use.path.span)
        return []
    if _normal(used.path) in trail:
        reporter.report("E0802", f'"{path}" uses itself', use.path.span, "leave this line out")
        return []
    try:
        file = parse(used)
    except ProgramError as error:
        reporter.diagnostics += error.diagnostics
        return []
    base: list[tree.Decl] = []
    for inner in file.declarations:
        if isinstance(inner, tree.Use):
            base += _load(inner, used, reporter, read, (*trail, _normal(used.path)), budget)
    for change in file.declarations:
        if isinstance(change, tree.Change):
            base = _apply_change(base, change, reporter)
    own_items = [item for item in file.declarations if not isinstance(item, (tree.Use, tree.Change))]
    return _override(base, own_items)


def _normal(path: str) -> str:
    return os.path.normpath(path)


def _open(path: str, source: Source, read: Read | None) -> tuple[str, str]:
    """Return path and text of a file: beside the file that uses it, else among the algorithms that ship."""
    if read is not None:
        return path, read(path)
    candidate = _beside(source, path)
    if not candidate.exists() and "/" not in path:
        shipped = files("rlgraph") / "algorithms" / path
        if shipped.is_file():
            return str(shipped), shipped.read_text("utf-8")
    if candidate.suffix not in PROGRAMS:
        raise ValueError("it is no .rlf file")
    try:
        return str(candidate), read_bytes(candidate, LARGEST_BYTES, PROGRAMS).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("it is no UTF-8 text") from None


def _beside(source: Source, path: str) -> Path:
    """Return a path that is given in a file, from the folder of that file."""
    return (Path() if source.path.startswith("<") else Path(source.path).parent) / path


def _suggestion(path: str, source: Source) -> str:
    names = [entry.name for entry in files("rlgraph").joinpath("algorithms").iterdir()]
    with suppress(OSError, ValueError):
        names += [entry.name for entry in _beside(source, path).parent.iterdir() if entry.suffix == ".rlf"]
    stems = {Path(name).stem for name in names if name.endswith(".rlf")} - {Path(source.path).stem}
    return did_you_mean(Path(path).stem, sorted(stems), "{}.rlf")


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


def _override(base: Sequence[tree.Decl], new_items: Sequence[tree.Decl]) -> list[tree.Decl]:
    """Return the base with new declarations in the place of those of the same name, and the others after it."""
    new_by_key = {_key(item): item for item in new_items if _key(item)}
    base_keys = {_key(item) for item in base}
    merged = [new_by_key.get(_key(item), item) if _key(item) else item for item in base]
    return merged + [item for item in new_items if _key(item) is None or _key(item) not in base_keys]


def _target(statement: tree.Stmt) -> str | None:
    """Return what a statement is known by: statements with the same target replace each other."""
    match statement:
        case tree.Assign(target=name):
            return f"{name} ="
        case tree.Store(target=tree.Name(id=name)):
            return f"{name} :="
        case tree.Minimize():
            return "minimize"
        case tree.Keep(table=table):
            return f"keep {table.id}"
        case tree.Resample(table=table):
            return f"resample {table.id}"
        case tree.Update(target=target):
            return f"update {target.id}"
        case tree.Return():
            return "return"
        case _:
            return None


def _anchor(statement: tree.Stmt) -> str | None:
    """Return what `after` and `before` call a statement."""
    match statement:
        case tree.Assign(target=name) | tree.Store(target=tree.Name(id=name)):
            return name
        case tree.Push(buffer=table):
            return f"push {table.id}"
        case tree.Train(model=table):
            return f"train {table.id}"
        case tree.Minibatch(table=table):
            return f"minibatch {table.id}"
        case tree.Collect(table=table):
            return f"collect {table.id}"
        case tree.Run(func=func):
            return func.id
        case _:
            return _target(statement)


def _apply_change(base: list[tree.Decl], change: tree.Change, reporter: Reporter) -> list[tree.Decl]:
    changed = [item for item in base if _is_changed(item, change)]
    if not changed:
        known = [item.name for item in base if isinstance(item, tree.Phase | tree.Def) and item.name != "step"]
        hint = did_you_mean(change.name, known) or (f"it has {quoted_list(known, 'and')}" if known else "")
        message = f"the used program has no def and no phase `{change.name}` to change"
        reporter.report("E0803", message, change.span, hint)
        return base
    for item in change.body:
        if isinstance(item, tree.Report):
            base = [
                replace(old, body=_with_metrics(old.body, item))
                if _is_changed(old, change) and (change.name or old.name == "step")
                else old
                for old in base
            ]
        elif isinstance(item, tree.Addition):
            base = _add(base, change, item, reporter)
        else:
            base = _replace(base, change, item, reporter)
    return base


def _is_changed(item: tree.Decl, change: tree.Change) -> TypeGuard[tree.Phase | tree.Def]:
    """Return whether a change is of this declaration: without a name of all steps."""
    if change.name:
        return isinstance(item, tree.Phase | tree.Def) and item.name == change.name
    return isinstance(item, tree.Phase)


def _replace(base: list[tree.Decl], change: tree.Change, statement: tree.Stmt, reporter: Reporter) -> list[tree.Decl]:
    """Return the declarations with a statement in the place of the one that has its target."""
    wanted = _target(statement)
    if wanted is None or (isinstance(statement, tree.Return) and not change.name):
        reporter.report(
            "E0803",
            "this statement cannot stand in `change:`",
            statement.span,
            "`change:` replaces assignments, `minimize`, `keep`, `resample`, `update` and `report`, and `change NAME:` "
            "the `return` of a def; write others in a block `after NAME:` or `before NAME:`",
        )
        return base
    places = [place for place in _statements(base, change) if _target(place) == wanted]
    if len(places) != 1:
        hint = "write the whole `step:` instead" if places else "add it in a block, as `after NAME:` or `before NAME:`"
        shown = "return" if isinstance(statement, tree.Return) else f"{wanted} ..."
        hint = _hint_of_def(base, change, lambda place: _target(place) == wanted, places) or hint
        _report_places(f"`{shown}` to replace", change, places, statement.span, hint, reporter)
        return base
    return _with_bodies(base, change, lambda body: _swap(body, places[0], (statement,)))


def _add(base: list[tree.Decl], change: tree.Change, addition: tree.Addition, reporter: Reporter) -> list[tree.Decl]:
    """Return the declarations with the statements of an addition beside the one that it names."""
    statements = _statements(base, change)
    places = [place for place in statements if _anchor(place) == addition.anchor]
    if len(places) != 1:
        known = dict.fromkeys(filter(None, map(_anchor, statements)))
        hint = "name another statement beside it, or write the whole `step:`"
        if not places:
            hint = did_you_mean(addition.anchor, list(known)) or f"it has {quoted_list(list(known), 'and')}"
        hint = _hint_of_def(base, change, lambda place: _anchor(place) == addition.anchor, places) or hint
        _report_places(f"`{addition.anchor}` to stand beside", change, places, addition.anchor_span, hint, reporter)
        return base
    [place] = places
    if isinstance(place, tree.Return) and addition.word == "after":
        message = "nothing is done behind `return`"
        reporter.report("E0803", message, addition.anchor_span, "`before return:` stands above it")
        return base
    new = (place, *addition.body) if addition.word == "after" else (*addition.body, place)
    return _with_bodies(base, change, lambda body: _swap(body, place, new))


def _hint_of_def(
    base: Sequence[tree.Decl], change: tree.Change, wanted: Callable[[tree.Stmt], bool], places: Sequence[tree.Stmt]
) -> str:
    """Return where a statement is that the steps do not have; "" where no def has it."""
    defs = [item for item in base if isinstance(item, tree.Def) and not places and not change.name]
    found = [item.name for item in defs if any(map(wanted, tree.all_statements(item.body)))]
    return f"the def `{found[0]}` has it: write it under `change {found[0]}:`" if found else ""


def _statements(base: Sequence[tree.Decl], change: tree.Change) -> list[tree.Stmt]:
    """Return all statements of the steps, or of the def or phase, that a change is of."""
    changed = [item for item in base if _is_changed(item, change)]
    return [place for item in changed for place in tree.all_statements(item.body)]


def _with_bodies(
    base: Sequence[tree.Decl], change: tree.Change, new: Callable[[tuple[tree.Stmt, ...]], tuple[tree.Stmt, ...]]
) -> list[tree.Decl]:
    """Return the declarations with the bodies changed that a change is of."""
    return [replace(item, body=new(item.body)) if _is_changed(item, change) else item for item in base]


def _report_places(
    what: str, change: tree.Change, places: Sequence[tree.Stmt], span: Span, hint: str, reporter: Reporter
) -> None:
    shown = "no statement" if not places else f"{len(places)} statements"
    related = tuple(Related(place.span, "one of them") for place in places)
    reporter.report(
        "E0803", f"{f'`{change.name}`' if change.name else 'the used program'} has {shown} {what}", span, hint, related
    )


def _swap(body: Sequence[tree.Stmt], old: tree.Stmt, new: Sequence[tree.Stmt]) -> tuple[tree.Stmt, ...]:
    """Return a body with statements in the place of one."""
    swapped: list[tree.Stmt] = []
    for statement in body:
        if statement is old:
            swapped += new
        elif isinstance(statement, tree.Loop):
            swapped.append(replace(statement, body=_swap(statement.body, old, new)))
        else:
            swapped.append(statement)
    return tuple(swapped)


def _with_metrics(body: tuple[tree.Stmt, ...], report: tree.Report) -> tuple[tree.Stmt, ...]:
    """Return a body with these metrics in the place of those of the same name, and new ones at its end."""
    names = {item.name for item in report.items}

    def without_metrics(body: Sequence[tree.Stmt]) -> tuple[tree.Stmt, ...]:
        statements: list[tree.Stmt] = []
        for statement in body:
            if isinstance(statement, tree.Report):
                items = tuple(item for item in statement.items if item.name not in names)
                statements += [replace(statement, items=items)] if items else []
            elif isinstance(statement, tree.Loop):
                statements.append(replace(statement, body=without_metrics(statement.body)))
            else:
                statements.append(statement)
        return tuple(statements)

    rest = without_metrics(body)
    end = len(rest) - 1 if rest and isinstance(rest[-1], tree.Return) else len(rest)
    return (*rest[:end], report, *rest[end:])
