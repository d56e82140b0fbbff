"""Where in a program something is, what is wrong with it, and how that is shown to the person who wrote it.

    RlgraphError
    ├── ProgramError    the program, its options or its files are wrong (exit code 1)
    │   └── UsageMistake    the folder for a run cannot be used (exit code 2)
    └── RunError        a run failed: a data row, a reward function, an environment (exit code 4)

Both carry `Diagnostic`s. A diagnostic knows its source text, so that it can be printed anywhere with a caret under the
exact expression.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Literal

Severity = Literal["error", "warning"]

DISTRIBUTION = "rlgraph-compiler"
"""What pip calls this project: there, `rlgraph` is another one."""


def install(extra: str) -> str:
    """The command that brings what an extra needs."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


@dataclass(frozen=True, slots=True)
class Source:
    """A text that programs are read from."""

    path: str
    """As the user wrote it, or `<name>` for a text that has no file."""
    text: str = field(repr=False)

    def line(self, number: int) -> str:
        """Line `number`, counted from 1, without its end; empty past the end."""
        lines = _lines(self.text)
        return lines[number - 1] if 0 < number <= len(lines) else ""


@lru_cache(maxsize=8)
def _lines(text: str) -> list[str]:
    """Kept: each diagnostic shows one of them, and there may be many."""
    return text.splitlines()


NOWHERE = Source("<none>", "")


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of a source: lines and columns counted from 1, the end column exclusive."""

    source: Source = field(repr=False, compare=False)
    line: int
    column: int
    end_line: int
    end_column: int

    def to(self, other: Span) -> Span:
        """From the start of this span to the end of `other`."""
        return Span(self.source, self.line, self.column, other.end_line, other.end_column)

    @property
    def text(self) -> str:
        """The characters the span covers, its first line only."""
        line = self.source.line(self.line)
        return line[self.column - 1 : self.end_column - 1 if self.end_line == self.line else len(line)]

    def __str__(self) -> str:
        return f"{self.source.path}:{self.line}:{self.column}"


NO_SPAN = Span(NOWHERE, 0, 0, 0, 0)
"""Line 0 is no line: a diagnostic with it is about a whole file, or about none, and has no excerpt."""


@dataclass(frozen=True, slots=True)
class Related:
    """A second place that helps to understand a diagnostic."""

    span: Span
    message: str


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One thing to tell the user."""

    code: str
    """Stable, `E0201` of an error and `W0201` of a warning; `rlgraph explain E0201` says more."""
    message: str
    """What is wrong, in the user's words, without a full stop."""
    span: Span
    hint: str = ""
    """What to do about it."""
    related: tuple[Related, ...] = ()

    @property
    def severity(self) -> Severity:
        return "warning" if self.code.startswith("W") else "error"

    def render(self) -> str:
        """As text: the message, the place, the source line with a caret under the expression, the hint."""
        parts = [f"{self.severity}[{self.code}]: {_told(self.message)}", *_excerpt(self.span)]
        for other in self.related:
            parts += [f"note: {_told(other.message)}", *_excerpt(other.span)]
        if self.hint:
            parts.append(f"help: {_told(self.hint)}")
        return "\n".join(parts)

    def to_json(self) -> dict[str, Any]:
        """As plain data, for editors and other tools."""
        return {
            "severity": self.severity,
            "code": self.code,
            "message": self.message,
            "hint": self.hint,
            **_place(self.span),
            "related": [{"message": other.message, **_place(other.span)} for other in self.related],
        }


_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""What a terminal would obey, and what turns the direction of a text, so that it reads as something else."""


def visible(text: str) -> str:
    """A text that may hold anything, for a terminal: what it would obey is written out, as `\\x1b`."""
    return _UNSEEN.sub(lambda found: ascii(found[0])[1:-1], text)


def ordered(found: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Each once, as they stand in their files."""
    unique = {(d.span.source.path, d.span, d.code, d.message): d for d in reversed(list(found))}
    return sorted(unique.values(), key=lambda d: (d.span.source.path, d.span.line, d.span.column, d.code))


def listed(names: Sequence[str], word: str) -> str:
    """Names as a message lists them: "`a`, `b` and `c`"."""
    quoted = [f"`{name}`" for name in names]
    return f" {word} ".join([", ".join(quoted[:-1]), quoted[-1]]) if len(quoted) > 1 else "".join(quoted)


def _place(span: Span) -> dict[str, Any]:
    return {
        "file": span.source.path,
        "line": span.line,
        "column": span.column,
        "end_line": span.end_line,
        "end_column": span.end_column,
    }


_WIDEST = 200
"""Characters of a line that are shown; of a longer one those around the place, of a longer quotation the first."""
_LONGEST = 4000
"""Characters of a message."""
_QUOTED = re.compile(f"(`[^`]{{{_WIDEST}}})[^`]{{{_WIDEST},}}`")


def _told(message: str) -> str:
    """What a message says, for a terminal: it may quote a text of any length."""
    short = _QUOTED.sub(r"\1…`", message)
    return visible(short if len(short) <= _LONGEST else f"{short[:_LONGEST]}…")


def _excerpt(span: Span) -> list[str]:
    if not span.line:
        return []
    number = str(span.line)
    pad = " " * len(number)
    text = span.source.line(span.line)
    end = span.end_column if span.end_line == span.line else len(text) + 1
    first, last = span.column - 1, max(span.column, end - 1)
    # A tab is one column to the lexer, and so is what cannot be shown: each is drawn as one, so that the caret stays
    # under its character.
    shown, cut = _UNSEEN.sub("\ufffd", text.replace("\t", " ")), 0
    if len(text) > _WIDEST:
        cut = max(0, min(first - _WIDEST // 4, len(text) - _WIDEST))
        shown = f"{'…' * (cut > 0)}{shown[cut : cut + _WIDEST]}{'…' * (cut + _WIDEST < len(text))}"
        last, cut = min(last, cut + _WIDEST), cut - (cut > 0)
    return [
        f"{pad}--> {visible(str(span))}",
        f"{pad} |",
        f"{number} | {shown}".rstrip(),
        f"{pad} | {' ' * (first - cut)}{'^' * (last - first)}",
    ]


class RlgraphError(Exception):
    """Something to tell the user; never a bug of ours."""

    def __init__(self, diagnostics: Diagnostic | Iterable[Diagnostic]) -> None:
        found = (diagnostics,) if isinstance(diagnostics, Diagnostic) else tuple(diagnostics)
        self.diagnostics: tuple[Diagnostic, ...] = found
        super().__init__("\n\n".join(d.render() for d in found))

    def __reduce__(self) -> tuple[Any, ...]:
        """For processes that tell each other: an exception is made again from its text otherwise."""
        return type(self), (self.diagnostics,)

    def _render_traceback_(self) -> list[str]:
        """What notebooks show in place of a traceback."""
        return str(self).splitlines()


class ProgramError(RlgraphError):
    """The program, its options or its files are wrong."""


class UsageMistake(ProgramError):
    """The program is fine; how it is to be run is not."""


class RunError(RlgraphError):
    """A run failed for a reason that lies outside rlgraph: data, a function of the user's, an environment."""


def counted(number: int, word: str) -> str:
    """`1 device`, `1,024 devices`."""
    return f"{number:,} {word}{'s' * (number != 1)}"


def nearest(word: str, known: Iterable[str], shown: str = "{}", alike: float = 0.6) -> str:
    """A hint with the known word that looks most like this one, as it is `shown`; empty if none does."""
    found = closest(word, known, alike)
    return f"did you mean `{shown.replace('{}', found)}`?" if found else ""


def closest(word: str, known: Iterable[str], alike: float = 0.6) -> str:
    """The known word that looks most like this one; empty if none is so much `alike`, from 0 to 1."""
    return next(iter(get_close_matches(word, list(known), n=1, cutoff=alike)), "")
