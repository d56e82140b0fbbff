"""Puts the statements of a `def` where it is called: before anything else reads the bodies of the steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from itertools import chain, count
from typing import Any

from rlgraph.dsl import tree
from rlgraph.dsl.context import Context
from rlgraph.dsl.expand_def import MOST_CALLS
from rlgraph.dsl.names import names_in
from rlgraph.dsl.scope import InvalidName, StatementError
from rlgraph.errors import Diagnostic, Related, Span, did_you_mean

CALLED_HERE = "its def is called here"
WRONG = ""
"""A name that no program has, for the value of a wrong call."""


def write_out_statements(file: tree.File, context: Context) -> tree.File:
    """Return the file with the statements of each def that holds some in the place of its calls. Calls that cannot be
    are reported and left out."""
    defs = {item.name: item for item in file.declarations if isinstance(item, tree.Def)}
    declared = {name for item in file.declarations if isinstance(name := getattr(item, "name", None), str)}
    written = [
        replace(item, body=_Writer(context, defs, declared, item).body(item.body, ()))
        if isinstance(item, tree.Phase)
        else item
        for item in file.declarations
    ]
    return replace(file, declarations=tuple(written))


def merge_repeated(diagnostics: Sequence[Diagnostic]) -> list[Diagnostic]:
    """Return diagnostics with one in the place of those that a def has at each of its calls, with a note of each."""
    merged: dict[tuple[str, str, Span], Diagnostic] = {}
    for said in diagnostics:
        key = (said.code, said.message, said.span)
        first = merged.setdefault(key, said)
        calls = (note for note in said.related if note.message == CALLED_HERE and note not in first.related)
        merged[key] = replace(first, related=(*first.related, *calls))
    return [*merged.values()]


class _Writer:
    """Writes the body of one step; names inside a def get others where the step has them, too."""

    def __init__(self, context: Context, defs: Mapping[str, tree.Def], declared: set[str], phase: tree.Phase) -> None:
        self.context = context
        self.defs = defs
        self.calls = 0
        self.taken = {*declared, *(name.id for name in names_in(phase.body)), *_assigned(phase.body)}

    def body(self, body: Sequence[tree.Stmt], stack: tuple[tuple[str, Span], ...]) -> tuple[tree.Stmt, ...]:
        """Return statements with those of defs in the place of calls; stack: the defs around them, with their
        calls, the outermost first."""
        written: list[tree.Stmt] = []
        for statement in body:
            try:
                written += self.statement(statement, stack)
            except StatementError:
                if isinstance(statement, tree.Assign):
                    self.context.scope[WRONG] = InvalidName()
                    written.append(replace(statement, value=tree.Name(WRONG, statement.span)))
        return tuple(written)

    def statement(self, statement: tree.Stmt, stack: tuple[tuple[str, Span], ...]) -> Iterator[tree.Stmt]:
        """Yield what stands in the place of a statement."""
        if isinstance(statement, tree.Run):
            called = self.defs.get(statement.func.id)
            if called is None or not called.holds_statements:
                raise self.context.statement_error("E0124", *_unused(statement, called, self.defs))
            yield from self.call(statement.func, statement.args, statement.options, statement.span, stack, None)
            return
        value = statement.value if isinstance(statement, tree.Assign) else None
        if isinstance(statement, tree.Assign) and isinstance(value, tree.Call) and isinstance(value.func, tree.Name):
            called = self.defs.get(value.func.id)
            if called is not None and called.holds_statements:
                yield from self.call(value.func, value.args, value.options, value.span, stack, statement)
                return
        if isinstance(statement, tree.Loop):
            statement = replace(statement, body=self.body(statement.body, stack))
        if stack:
            # The statement is kept with its calls: another one could have its identity once it is gone.
            self.context.calls[id(statement)] = (statement, tuple(span for _, span in reversed(stack)))
        yield statement

    def call(
        self,
        func: tree.Name,
        args: tuple[tree.Expr, ...],
        options: tuple[tree.Option, ...],
        span: Span,
        stack: tuple[tuple[str, Span], ...],
        target: tree.Assign | None,
    ) -> Iterator[tree.Stmt]:
        """Yield the statements of a def, and what names its value."""
        called = self.defs[func.id]
        self.refuse_wrong_call(called, args, options, span, stack)
        result = called.body[-1].value if isinstance(called.body[-1], tree.Return) else None
        if target is not None and result is None:
            where = Related(called.span, "it ends without `return`")
            message, hint = f"`{called.name}` returns nothing", "call it on a line of its own, or end it with `return`"
            raise self.context.statement_error("E0226", message, span, hint, (where,))
        meanings: dict[str, tree.Expr] = {}
        local_names = dict.fromkeys(_assigned(called.body))
        for parameter, arg in zip(called.parameters, args, strict=True):
            is_constant = not any(names_in(arg))
            if (is_constant or isinstance(arg, tree.Name)) and parameter.id not in local_names:
                meanings[parameter.id] = arg
                continue
            name = self.new_name(called.name, parameter.id)
            meanings[parameter.id] = tree.Name(name, parameter.span)
            yield tree.Assign(name, arg, arg.span, arg.span)
        given = {name.id for name in names_in(tuple(meanings.values()))}
        for name in local_names:
            # The table that a def returns has the caller's name for it: its axis is called so.
            is_result = target is not None and isinstance(result, tree.Name) and result.id == name
            if is_result and target is not None and name not in meanings and target.target not in given:
                meanings[name] = tree.Name(target.target, target.target_span)
            elif name not in meanings:
                meanings[name] = tree.Name(self.new_name(called.name, name), called.name_span)
        inner = [_renamed(item, meanings) for item in called.body if not isinstance(item, tree.Return)]
        yield from self.body(inner, (*stack, (called.name, span)))
        if result is None:
            return
        value = _renamed(result, meanings)
        if target is None:
            target = tree.Assign(f"_{self.new_name(called.name, 'result')}", value, span, span)
        if not (isinstance(value, tree.Name) and value.id == target.target):
            yield replace(target, value=value)

    def refuse_wrong_call(
        self,
        called: tree.Def,
        args: tuple[tree.Expr, ...],
        options: tuple[tree.Option, ...],
        span: Span,
        stack: tuple[tuple[str, Span], ...],
    ) -> None:
        """Raise StatementError for a call that cannot be written out."""
        self.calls += 1
        notes = tuple(Related(place, CALLED_HERE) for _, place in reversed(stack))
        if options:
            message = f"`{called.name}` takes its values by place"
            raise self.context.statement_error("E0401", message, options[0].name_span, related=notes)
        if len(args) != len(called.parameters):
            names = ", ".join(parameter.id for parameter in called.parameters)
            message = f"`{called.name}({names})` takes {len(called.parameters)} values, not {len(args)}"
            raise self.context.statement_error("E0405", message, span, related=notes)
        if called.name in [name for name, _ in stack]:
            message, hint = f"`{called.name}` calls itself", "a def cannot be recursive"
            raise self.context.statement_error("E0206", message, span, hint, notes)
        if self.calls > MOST_CALLS:
            message = f"defs are written out where they are called, and these make more than {MOST_CALLS} calls"
            hint = "a def that calls another twice, level over level, doubles at each"
            raise self.context.statement_error("E0210", message, span, hint)

    def new_name(self, called: str, name: str) -> str:
        """Return a name that means nothing else in the step: its own, or one with that of the def before it."""
        numbered = (f"{called}_{name}_{number}" for number in count(2))
        candidates = chain((name, f"{called}_{name}"), numbered)
        chosen = next(one for one in candidates if one not in self.taken)
        self.taken.add(chosen)
        return chosen


def _assigned(body: Sequence[tree.Stmt]) -> list[str]:
    """Return the names that statements assign, those in loops too."""
    return [statement.target for statement in tree.all_statements(body) if isinstance(statement, tree.Assign)]


def _unused(statement: tree.Run, called: tree.Def | None, defs: Mapping[str, tree.Def]) -> tuple[str, Span, str]:
    """Return message, place and hint for a line that only computes."""
    message = "this computes something that is not used"
    hint = "give it a name, `x = ...`, or show it, `report x = ...`"
    if called is None:
        hint = did_you_mean(statement.func.id, [name for name, item in defs.items() if item.holds_statements]) or hint
    return message, statement.span, hint


def _renamed(node: Any, meanings: Mapping[str, tree.Expr]) -> Any:
    """Return a piece of syntax of a def with what its names mean where it is called.

    A place where only a name can stand, as behind `keep`, keeps a parameter's name where its argument is none.
    """
    if isinstance(node, tree.Name):
        meaning = meanings.get(node.id)
        return replace(meaning, span=node.span) if isinstance(meaning, tree.Name) else meaning or node
    if isinstance(node, tuple):
        return tuple(_renamed(item, meanings) for item in node)
    if not is_dataclass(node) or isinstance(node, Span):
        return node
    changed: dict[str, Any] = {}
    for field in fields(node):
        value = getattr(node, field.name)
        if "span" in field.name:
            continue
        if isinstance(node, tree.Assign) and field.name == "target":
            meaning = meanings[value]
            assert isinstance(meaning, tree.Name)
            changed["target"] = meaning.id
        elif isinstance(value, tree.Name) and not _takes_expression(node, field.name):
            new = _renamed(value, meanings)
            changed[field.name] = new if isinstance(new, tree.Name) else value
        else:
            changed[field.name] = _renamed(value, meanings)
    return replace(node, **changed)


_ONLY_NAMES = {"table", "model", "buffer", "target", "source"}
"""Fields of statements that hold a name and no expression."""


def _takes_expression(node: Any, field: str) -> bool:
    return not isinstance(node, tree.Stmt) or field not in _ONLY_NAMES
