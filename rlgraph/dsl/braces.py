"""Reads the names in braces of a text in quotes: `"Question: {prompts.prompt}"`.

Whether a text is meant that way is known where it is used: a regular expression and a file name are taken as written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from rlgraph.dsl import tree
from rlgraph.errors import Span

_PATH = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*")

Sign = tuple[str, int, int, bool]
"""A character of a text, where it begins and ends in the literal, and whether it is written as itself, without a
backslash."""


def split_braced_text(signs: Sequence[Sign], span_at: Callable[[int, int], Span]) -> tuple[str | tree.BracedName, ...]:
    """Return what a text with braces is made of, in its order; nothing for a text without a name in braces and without
    a lone brace. span_at: the place of a part of the literal."""
    pieces: list[str | tree.BracedName] = []
    plain = ""
    place = 0
    while place < len(signs):
        brace = _brace(signs, place)
        if not brace:
            plain += signs[place][0]
            place += 1
            continue
        if _brace(signs, place + 1) == brace:
            plain += brace
            place += 2
            continue
        end = place + 1
        while brace == "{" and end < len(signs) and not _brace(signs, end):
            end += 1
        closed = brace == "{" and end < len(signs) and _brace(signs, end) == "}"
        end = end + 1 if closed else place + 1
        if plain:
            pieces.append(plain)
        plain = ""
        pieces.append(_slot(signs[place:end], closed, span_at))
        place = end
    if plain:
        pieces.append(plain)
    return tuple(pieces) if any(isinstance(piece, tree.BracedName) for piece in pieces) else ()


def _brace(signs: Sequence[Sign], place: int) -> str:
    """Return the brace at a place; an empty text where there is none."""
    if place >= len(signs):
        return ""
    character, _, _, itself = signs[place]
    return character if itself and character in "{}" else ""


def _slot(signs: Sequence[Sign], closed: bool, span_at: Callable[[int, int], Span]) -> tree.BracedName:
    """Return what stands between two braces, with these; or a brace without the other one."""
    span = span_at(signs[0][1], signs[-1][2])
    if not closed:
        other = "}" if signs[0][0] == "{" else "{"
        return tree.BracedName(None, "", f"this brace has no `{other}`", span)
    inside = "".join(sign[0] for sign in signs[1:-1])
    named, _, how = inside.partition(":")
    path = named.strip()
    if not _PATH.fullmatch(path):
        wrong = f"`{path}` in braces is no name" if path else "there is no name in these braces"
        return tree.BracedName(None, "", wrong, span)
    start = 1 + named.index(path)
    value: tree.Expr | None = None
    for part in re.finditer(r"[^.]+", path):
        first, last = signs[start + part.start()], signs[start + part.end() - 1]
        at = span_at(first[1], last[2])
        value = tree.Name(part[0], at) if value is None else tree.Attribute(value, part[0], at, value.span.span_to(at))
    return tree.BracedName(value, how, "", span)
