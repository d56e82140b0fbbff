"""The points of a sweep, from what the user gives: `--sweep lr=1e-6,3e-6 --sweep seed=0,1`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import product
from math import prod

from rlgraph.errors import Diagnostic, ProgramError, Related, Source, Span, UsageMistake

BAD_SWEEP = "E0882"
OPTION = "--sweep"
SEED = "seed"
"""The name whose values are seeds of the run, and no settings of the program."""
MOST_POINTS = 1000
"""A sweep with more of them is a typing error."""
_UNKNOWN_SETTING = "E0804"
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_LONGEST_VALUE = 40
"""The most characters of a value in the name of a folder."""


@dataclass(frozen=True)
class SweptName:
    """A name that is swept, with its values as expressions of the language."""

    name: str
    values: tuple[str, ...]
    name_span: Span
    value_spans: tuple[Span, ...]


@dataclass(frozen=True)
class Point:
    """One combination of the values of a sweep."""

    values: tuple[tuple[str, str], ...]
    """The value of every swept name."""

    @property
    def settings(self) -> dict[str, str]:
        """The settings of the program."""
        return {name: value for name, value in self.values if name != SEED}

    @property
    def seed(self) -> int | None:
        """The seed of the run, where seeds are swept."""
        values = dict(self.values)
        return int(values[SEED]) if SEED in values else None

    @property
    def folder_name(self) -> str:
        """The name of its folder: `lr=1e-6,beta=0.1`."""
        return ",".join(f"{name}={_in_file_name(value)}" for name, value in self.values)

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.values)


def _in_file_name(value: str) -> str:
    """Return a value as a part of a file's name. What a file's name should not have is left out, and a digest added, so
    that other values have other names."""
    plain = re.sub(r"[^A-Za-z0-9.+_-]+", "_", value).strip("_")[:_LONGEST_VALUE]
    return plain if plain == value else f"{plain}-{sha256(value.encode()).hexdigest()[:6]}"


def parse_sweep(text: str) -> SweptName:
    """Parse `lr=1e-6,3e-6`; commas within brackets and quotes separate nothing. Raise UsageMistake with a caret."""
    source = Source(OPTION, " ".join(text.splitlines()))
    name, sign, _ = source.text.partition("=")
    begin = len(name) - len(name.lstrip())
    name_span = _span(source, begin, len(name.rstrip()))
    if not sign or not name.strip().isidentifier():
        message = f"`{text}` is not NAME=VALUE,VALUE"
        raise _mistake(message, _span(source, 0, len(source.text)), "as in `--sweep lr=1e-6,3e-6`")
    pieces = _pieces(source.text, len(name) + 1)
    values = tuple(source.text[start:end] for start, end in pieces)
    return make_swept_name(name.strip(), values, name_span, [_span(source, *piece) for piece in pieces])


def make_swept_name(name: str, values: Sequence[str], name_span: Span, value_spans: Sequence[Span]) -> SweptName:
    """Return a swept name. Raise UsageMistake if a value is missing, or stands there twice, or a seed is no number."""
    if not values:
        raise _mistake(f"`{name}` has no values", name_span, f"as in `--sweep {name}=1,2`")
    for number, (value, span) in enumerate(zip(values, value_spans, strict=True)):
        if not value:
            raise _mistake(f"a value of `{name}` is missing", span, "values are separated by one comma")
        if value in values[:number]:
            raise _mistake(f"`{value}` stands there twice", span, "keep one of them")
        if name == SEED and not re.fullmatch(r"-?\d{1,18}", value):
            raise _mistake(f"`{value}` is no seed", span, "a seed is a whole number: `--sweep seed=0,1,2`")
    return SweptName(name, tuple(values), name_span, tuple(value_spans))


def _pieces(text: str, begin: int) -> list[tuple[int, int]]:
    """Return the places of the values in a text, without the spaces around them."""
    cuts, closing, quote, at = [begin - 1], list[str](), "", begin
    while at < len(text):
        character = text[at]
        if quote:
            at += character == "\\"
            quote = "" if character == quote else quote
        elif character == '"':
            quote = character
        elif character in _CLOSING:
            closing.append(_CLOSING[character])
        elif closing and character == closing[-1]:
            closing.pop()
        elif character == "," and not closing:
            cuts.append(at)
        at += 1
    cuts.append(len(text))
    pieces = []
    for start, end in zip(cuts, cuts[1:], strict=False):
        piece = text[start + 1 : end]
        first = start + 1 + len(piece) - len(piece.lstrip())
        pieces.append((first, max(first, start + 1 + len(piece.rstrip()))))
    return pieces


def sweep_points(swept: Sequence[SweptName], settings: Mapping[str, str]) -> list[Point]:
    """Return all combinations; the values of the last name change first. settings: those of all points. Raise
    UsageMistake for a name that is swept twice, or also set, and for too many points."""
    for number, entry in enumerate(swept):
        if entry.name in [earlier.name for earlier in swept[:number]]:
            hint = "give all of its values at once: `--sweep lr=1e-6,3e-6`"
            raise _mistake(f"`{entry.name}` is swept twice", entry.name_span, hint)
        if entry.name in settings:
            raise _mistake(f"`{entry.name}` is set, and swept", entry.name_span, "leave out one of the two")
    count = prod(len(entry.values) for entry in swept)
    if count > MOST_POINTS:
        message = f"these are {count:,} runs"
        raise _mistake(message, swept[-1].name_span, f"a sweep has at most {MOST_POINTS:,}: leave some values out")
    names = [entry.name for entry in swept]
    return [Point(tuple(zip(names, values, strict=True))) for values in product(*(entry.values for entry in swept))]


def refuse_settings(swept: Iterable[SweptName]) -> None:
    """Raise UsageMistake for a name that is a setting, where only seeds can be swept."""
    for entry in swept:
        if entry.name != SEED:
            message = f"`{entry.name}` cannot be swept: a plan file has one program and one plan"
            raise _mistake(message, entry.name_span, "sweep the program (.rlf) itself; of a plan file, `seed` alone")


def placed_in_sweep(error: ProgramError, swept: Iterable[SweptName], point: Point) -> ProgramError:
    """Return the error of a point with carets under the values of the sweep, not under the settings that were made of
    them; what is said of a place in the program has a note with the point's values."""
    places, notes = dict[tuple[str, str], tuple[Span, Span]](), list[Related]()
    for entry in swept:
        value = dict(point.values)[entry.name]
        span = entry.value_spans[entry.values.index(value)]
        places[f"--set {entry.name}", value] = entry.name_span, span
        notes.append(Related(span, "with this value"))
    return ProgramError([_placed(diagnostic, places, notes) for diagnostic in error.diagnostics])


def _placed(
    diagnostic: Diagnostic, places: Mapping[tuple[str, str], tuple[Span, Span]], notes: Sequence[Related]
) -> Diagnostic:
    span = diagnostic.span
    if (spans := places.get((span.source.path, span.source.text))) is None:
        return replace(diagnostic, related=(*diagnostic.related, *notes))
    name_span, value_span = spans
    if diagnostic.code == _UNKNOWN_SETTING:
        return replace(diagnostic, span=name_span)
    if value_span.source.path != OPTION or span.line != 1 or span.end_line != 1:
        return replace(diagnostic, span=value_span)
    before = value_span.column - 1
    return replace(diagnostic, span=Span(value_span.source, 1, before + span.column, 1, before + span.end_column))


def _span(source: Source, begin: int, end: int) -> Span:
    return Span(source, 1, begin + 1, 1, max(begin + 2, end + 1))


def _mistake(message: str, span: Span, hint: str) -> UsageMistake:
    return UsageMistake(Diagnostic(BAD_SWEEP, message, span, hint))
