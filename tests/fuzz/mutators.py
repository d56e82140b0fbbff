"""Texts made of other texts by accidents: of one, in its tokens and bytes, or of two, a piece of one in the other.

Everything is drawn from the generator that is given: the same seed makes the same text.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence

from tests.dsl.mutants import disturb

_TOKEN = re.compile(rb'"[^"\n]*"|\d[\w.]*|[^\W\d]\w*|[ \t]+|\n|.', re.DOTALL)

ODD = tuple(
    each.encode("utf-8", "surrogatepass")
    for each in (
        *("0", "1", "-1", "2", "0.5", "1e-6", "1e308", "1e400", "-0.0", "NaN", "Infinity", "9" * 18, "1" + "0" * 400),
        "9" * 5000,
        *("true", "false", "null", "none", "''", '""', "[]", "{}", "()", "[[]]", "{}{}", "\\", "\\u0000", "\\ud800"),
        *("\x00", "\x1b[2J", "\u202e", "\u2028", "\x85", "\ufeff", "\uffff", "\ud800", "é", "𝟙", "٣", "\r", "\t", "\f"),
        *("**", "//", ":=", "==", "=", ":", ",", ".", "@", "#", "'", '"', "+" * 40, "(" * 300, "[" * 3000, "-" * 300),
        *(
            "x" * 2000,
            "1_0",
            "0x10",
            "1.",
            ".5",
            "1e",
            "10GB/s",
            "TiB",
            "mean=1",
            "p99=1e9",
            "/",
            "~nobody/x",
            "/dev/null",
        ),
    )
)
"""Pieces at which readers stumble."""
NUMBERS = 14
"""So many of them, the first ones, are numbers: the last is longer than Python reads one."""


def tokens(text: bytes, rng: random.Random) -> bytes:
    """One to four tokens, lines or bytes are lost, doubled, exchanged, or become something odd."""
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        text = rng.choice(ACCIDENTS)(text, rng)
    return text


def splice(text: bytes, other: bytes, rng: random.Random) -> bytes:
    """A piece of `other` in `text`: of documents in JSON a value in the place of another one, else lines."""
    first, second = _document(text), _document(other)
    if first is not None and second is not None and rng.random() < 0.9:
        return _grafted(first, second, rng)
    mine, theirs = text.splitlines(keepends=True) or [b""], other.splitlines(keepends=True) or [b""]
    kind = rng.randrange(4)
    if kind == 0:  # the beginning of one, the end of the other
        return b"".join(mine[: rng.randrange(len(mine) + 1)] + theirs[rng.randrange(len(theirs) + 1) :])
    if kind == 1:  # the same in one line
        return text[: rng.randrange(len(text) + 1)] + other[rng.randrange(len(other) + 1) :]
    begin, place = rng.randrange(len(theirs)), rng.randrange(len(mine))
    piece = theirs[begin : begin + rng.choice((1, 1, 2, 4, 8))]
    if kind == 2:
        # At the indentation of the place, as who copies it would write it.
        piece = [_blanks(mine[place]) + line.lstrip() for line in piece]
    return b"".join(mine[:place] + piece + mine[place + rng.choice((0, 0, len(piece))) :])


def _blanks(line: bytes) -> bytes:
    return line[: len(line) - len(line.lstrip())]


def _document(text: bytes) -> object | None:
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, (dict, list)) else None


def _grafted(first: object, second: object, rng: random.Random) -> bytes:
    places, pieces = list(_places(first)), [holder[key] for holder, key in _places(second)]
    if places and pieces:
        for _ in range(rng.choice((1, 1, 2))):
            holder, key = rng.choice(places)
            piece = rng.choice(pieces)
            kind = rng.randrange(4)
            if kind == 0 and isinstance(holder, list):
                holder.insert(key, piece)
            elif kind == 1 and isinstance(holder[key], (int, float)):
                holder[key] = rng.choice((0, -1, 1, 2, 3, 1e308, 2**63, 10**30, 0.5, True, holder[key] + 1))
            else:
                holder[key] = json.loads(json.dumps(piece))
    return json.dumps(first, indent=1, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _places(value: object) -> list[tuple[object, object]]:
    """Whatever holds something, and where in it."""
    found: list[tuple[object, object]] = []
    level = [value]
    while level:
        inner = level.pop()
        keys = list(inner) if isinstance(inner, dict) else range(len(inner)) if isinstance(inner, list) else ()
        for key in keys:
            found.append((inner, key))
            level.append(inner[key])
    return found


def _pieces(text: bytes) -> list[bytes]:
    return _TOKEN.findall(text) or [b""]


def _token(text: bytes, rng: random.Random) -> bytes:
    found = _pieces(text)
    solid = [at for at, token in enumerate(found) if token.strip()] or [0]
    one, two = rng.choice(solid), rng.choice(solid)
    kind = rng.randrange(5)
    if kind == 0:
        found[one] = b""
    elif kind == 1:
        found[one], found[two] = found[two], found[one]
    elif kind == 2:
        found[one] = found[two]
    elif kind == 3:
        found[one] += b" " + found[one]
    else:
        found[one] = rng.choice(ODD)
    return b"".join(found)


def _number(text: bytes, rng: random.Random) -> bytes:
    found = list(re.finditer(rb"-?\d[\w.+-]*", text))
    if not found:
        return _token(text, rng)
    match = rng.choice(found)
    new = rng.choice((*ODD[:NUMBERS], rng.choice(found)[0]))
    return text[: match.start()] + new + text[match.end() :]


def _byte(text: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(text) + 1)
    kind = rng.randrange(4)
    if kind == 0:
        return text[:at] + bytes([rng.randrange(256)]) + text[at + 1 :]
    if kind == 1:
        return text[:at] + rng.choice(ODD) + text[at:]
    if kind == 2:
        return text[:at] + text[at + rng.choice((1, 2, 10)) :]
    return text[:at]


def _line(text: bytes, rng: random.Random) -> bytes:
    lines = text.splitlines(keepends=True) or [b""]

    def repeat(at: int, to: int) -> None:
        lines[at:at] = lines[at : at + 1] * rng.choice((2, 50))

    disturb(lines, rng, b"    ", repeat)
    return b"".join(lines)


ACCIDENTS = (_token, _token, _token, _number, _number, _line, _line, _byte)


def smaller(text: bytes) -> Sequence[bytes]:
    """The pieces of which some may be left out: lines, and of few lines tokens."""
    lines = text.splitlines(keepends=True)
    return lines if len(lines) > 12 else _pieces(text)
