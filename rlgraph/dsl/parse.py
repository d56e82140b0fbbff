"""Parses text to a syntax tree, and reports every mistake of the text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Literal

from lark import Token, Tree, UnexpectedToken

from rlgraph.dsl import tree
from rlgraph.dsl.depth import MAX_DEPTH, depth_errors
from rlgraph.dsl.lark_parser import parser
from rlgraph.dsl.logical_lines import LogicalLine, LogicalLines, read_logical_lines
from rlgraph.dsl.syntax_errors import explain_token
from rlgraph.dsl.tree_builder import TreeBuilder
from rlgraph.dsl.words import SOFT
from rlgraph.errors import Diagnostic, ProgramError, Source, Span

MAX_DIAGNOSTICS = 20

Session = Any
"""The type `InteractiveParser` of lark, whose methods have no types."""

_VALUE = 'write a value behind the `=`: `n=8`, `lr=1e-6`, `base="models/small"`'
_HEADERS = (("EVERY", "NUMBER", "COLON"), ("STEP", "COLON"))
_LINES = (("NAME", "EQUAL", "NAME"), ("STREAM", "NAME"))
_OWN_HEADERS = {"def": ("DEF", "NAME", "LPAR", "RPAR", "COLON"), "schedule": ("SCHEDULE", "COLON")}


def parse(source: Source) -> tree.File:
    """Return the syntax tree of a whole file. Raises ProgramError with all its mistakes."""
    logical = read_logical_lines(source)
    file = _parse(logical, "file")
    assert isinstance(file, tree.File)
    return replace(file, comments=tuple(logical.comments))


def parse_expression(source: Source) -> tree.Expr:
    """Return the syntax tree of one expression, as in `--set NAME=EXPRESSION`."""
    logical = read_logical_lines(source, indented=False)
    if not logical.lines and not logical.diagnostics:
        logical.add_mistake("E0101", "an expression is missing", Span(source, 1, 1, 1, 2), _VALUE)
    elif len(logical.lines) > 1:
        extra = logical.lines[1].tokens
        logical.add_mistake("E0101", "only one expression can stand here", logical.span(extra[0], extra[-1]))
    if logical.diagnostics:
        raise ProgramError(_in_order(logical.diagnostics))
    return _parse(logical, "expression")  # type: ignore[return-value]


def _parse(logical: LogicalLines, start: Literal["file", "expression"]) -> tree.File | tree.Expr:
    parsed = _feed(logical, start)
    if parsed is None:
        raise ProgramError(_in_order(logical.diagnostics))
    builder = TreeBuilder(logical)
    built: tree.File | tree.Expr = builder.build(parsed)
    # A `return` may be missing only because its line was left out.
    mistakes = [d for d in builder.diagnostics if not logical.diagnostics or d.code != "E0123"]
    mistakes += logical.diagnostics
    if not mistakes and any(len(line.tokens) > MAX_DEPTH for line in logical.lines):
        mistakes += depth_errors(built)
    if mistakes:
        raise ProgramError(_in_order(mistakes))
    return built


def _in_order(mistakes: list[Diagnostic]) -> list[Diagnostic]:
    unique = {(d.span.line, d.span.column, d.code): d for d in mistakes}
    return [unique[key] for key in sorted(unique)][:MAX_DIAGNOSTICS]


def _feed(logical: LogicalLines, start: str) -> Tree[Token] | None:
    """Feed the lines to the parser; a line that it refuses is explained, and replaced by one that it takes.

    Returns None if there are too many mistakes to go on.
    """
    session: Session = parser().parse_interactive(start=start)
    level = 0
    skipped: int | None = None  # the level of a line whose block is left out
    for line, after in zip(logical.lines, [*logical.lines[1:], None], strict=False):
        if skipped is not None and line.level > skipped:
            continue
        skipped = None
        for kind in _indentation(level, line.level):
            session.feed_token(Token(kind, ""))
        level = line.level
        before = session.copy(deepcopy_values=False)
        mistake = None if line.bad else _feed_line(session, logical, line, start == "file")
        if mistake is None and not line.bad:
            continue
        if mistake is not None:
            logical.diagnostics.append(mistake)
        if len(logical.diagnostics) >= MAX_DIAGNOSTICS or start == "expression":
            return None
        has_block = after is not None and after.level > line.level
        header = _replace(before, _headers(line)) if has_block else None
        if has_block and header is None:
            skipped = level
        session = header or _replace(before, _LINES) or before
    for kind in _indentation(level, 0):
        session.feed_token(Token(kind, ""))
    return session.feed_token(Token("$END", ""))  # type: ignore[no-any-return]


def _indentation(before: int, now: int) -> list[str]:
    return ["INDENT"] * (now - before) or ["DEDENT"] * (before - now)


def _feed_line(session: Session, logical: LogicalLines, line: LogicalLine, statement: bool) -> Diagnostic | None:
    for at, token in enumerate([*line.tokens, Token("NEWLINE", "")]):
        if token in SOFT and _only_a_name_fits(session, line, at):
            token = line.tokens[at] = token.update(type="NAME")
        try:
            session.feed_token(token)
        except UnexpectedToken:
            return explain_token(logical, line, at, session.accepts(), statement)
    return None


def _only_a_name_fits(session: Session, line: LogicalLine, at: int) -> bool:
    """Return whether a soft word is a name at this place: no line there begins with it, and a name may stand there."""
    if at == 0 and line.tokens[1:2] not in (["="], [":="], ["["]):
        return False  # A line of another block, which is told so.
    # A copy that is fed shares lists with the session, and would add to them: `accepts` builds nothing.
    return "NAME" in session.accepts()


def _replace(session: Session, lines: Iterable[tuple[str, ...]]) -> Session | None:
    """Return the session after the first of these harmless lines that it takes, so that the lines around make sense."""
    for kinds in lines:
        trial = session.copy(deepcopy_values=False)
        try:
            for kind in (*kinds, "NEWLINE"):
                trial.feed_token(Token(kind, "0", line=1, column=1))
        except UnexpectedToken:
            continue
        return trial
    return None


def _headers(line: LogicalLine) -> Iterator[tuple[str, ...]]:
    if line.tokens[0] in _OWN_HEADERS:
        yield _OWN_HEADERS[line.tokens[0]]
    yield from _HEADERS
