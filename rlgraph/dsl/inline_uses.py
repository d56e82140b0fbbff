"""Writes a program that uses others as one text, with nothing to look up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rlgraph.dsl import tree
from rlgraph.dsl.format import format_source
from rlgraph.dsl.names import names_in
from rlgraph.dsl.parse import parse
from rlgraph.dsl.scope import Reporter
from rlgraph.dsl.use import resolve_uses
from rlgraph.errors import ProgramError, Source, Span

_INDENT = "    "


def inline_used_programs(source: Source) -> Source:
    """Return the program with all that it uses written out, its comments kept; itself where it uses nothing.

    Raises ProgramError where a file cannot be used.
    """
    file = parse(source)
    if not any(isinstance(item, tree.Use) for item in file.declarations):
        return source
    reporter = Reporter()
    resolved = resolve_uses(file, source, reporter)
    if reporter.diagnostics:
        raise ProgramError(reporter.diagnostics)
    lines = _first_comment(source)
    before: tree.Decl | None = None
    for item in sorted(_needed(resolved.declarations, source), key=_shelf):
        if before is not None and (_shelf(item) != _shelf(before) or _stands_apart(item, before)):
            lines.append("")
        lines += _written(item, 0)
        before = item
    return Source(source.path, format_source(Source(source.path, "\n".join(lines) + "\n")))


def _needed(items: Sequence[tree.Decl], source: Source) -> list[tree.Decl]:
    """Return the declarations without those of used files that nothing names any more."""
    kept = list(items)
    while True:
        named = {name.id for item in kept for name in names_in(item)}
        rest = [
            item
            for item in kept
            if not isinstance(item, tree.Declaration | tree.State | tree.Def)
            or item.name in named
            or item.span.source.path == source.path
        ]
        if len(rest) == len(kept):
            return rest
        kept = rest


def _first_comment(source: Source) -> list[str]:
    """Return the comment that a file begins with."""
    lines = source.text.splitlines()
    return lines[: next((at for at, line in enumerate(lines) if not line.startswith("#")), len(lines))]


def _shelf(item: tree.Decl) -> int:
    """Return the place of a declaration among others; within one place the order stays."""
    match item:
        case tree.Algorithm():
            return 0
        case tree.Declaration(kind="param"):
            return 1
        case tree.Def():
            return 3
        case tree.Phase():
            return 4
        case tree.Schedule():
            return 5
    return 2


def _stands_apart(item: tree.Decl, before: tree.Decl) -> bool:
    """Return whether a blank line is above, in the file of both of them."""
    return item.span.source.path == before.span.source.path and _below_blank(item.span)


def _below_blank(span: Span) -> bool:
    return span.line > 1 and not span.source.line_text(span.line - 1).strip()


def _written(item: tree.Decl | tree.Stmt | tree.ScheduleLine, depth: int) -> Iterator[str]:
    """Yield the lines of a declaration or statement and of its body."""
    if depth and _below_blank(item.span):
        yield ""
    if isinstance(item, tree.Report):
        shown = ", ".join(f"{metric.name} = {metric.value.span.covered_text}" for metric in item.items)
        yield f"{_INDENT * depth}report {shown}"
        return
    yield from _lines_of(item.span, depth)
    body: Sequence[tree.Stmt | tree.ScheduleLine] = getattr(item, "body", ())
    for inner in body:
        yield from _written(inner, depth + 1)


def _lines_of(span: Span, depth: int) -> Iterator[str]:
    """Yield the lines that a span stands in, with what is beside it, moved to a depth."""
    first = span.source.line_text(span.line)
    margin = len(first) - len(first.lstrip())
    for number in range(span.line, span.end_line + 1):
        line = span.source.line_text(number)
        yield _INDENT * depth + line[min(margin, len(line) - len(line.lstrip())) :]
