"""The errors and diagnostics of rlgraph: where in a program a mistake is, what it is, and how it is shown to the user.

    RlgraphError
    ├── ProgramError    the program, its options or its files are wrong (exit code 1)
    │   └── UsageMistake    the folder for a run cannot be used (exit code 2)
    └── RunError        a run failed: a data row, a reward function, an environment (exit code 4)

Every error carries `Diagnostic`s. A diagnostic knows its source text, so that it can be printed anywhere with a caret
under the exact expression.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Literal

Severity = Literal["error", "warning"]

DISTRIBUTION = "rlgraph-compiler"
"""The name under which pip installs this project: on PyPI, `rlgraph` is another one."""


def install_command(extra: str) -> str:
    """Return the command that installs what an extra needs."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


@dataclass(frozen=True, slots=True)
class Source:
    """A text that programs are read from."""

    path: str
    """The path as the user wrote it, or `<name>` for a text that has no file."""
    text: str = field(repr=False)

    def line_text(self, number: int) -> str:
        """Return line `number`, counted from 1, without its line end; empty past the end."""
        lines = _lines(self.text)
        return lines[number - 1] if 0 < number <= len(lines) else ""


@lru_cache(maxsize=8)
def _lines(text: str) -> list[str]:
    """Return the lines of a text. Cached, because each diagnostic shows one of them, and there may be many."""
    return text.splitlines()


NOWHERE = Source("<none>", "")


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of a source: lines and columns are counted from 1, and the end column is exclusive."""

    source: Source = field(repr=False, compare=False)
    line: int
    column: int
    end_line: int
    end_column: int

    def span_to(self, other: Span) -> Span:
        """Return the span from the start of this one to the end of `other`."""
        return Span(self.source, self.line, self.column, other.end_line, other.end_column)

    @property
    def covered_text(self) -> str:
        """The characters that the span covers, on its first line only."""
        line = self.source.line_text(self.line)
        return line[self.column - 1 : self.end_column - 1 if self.end_line == self.line else len(line)]

    def __str__(self) -> str:
        return f"{self.source.path}:{self.line}:{self.column}"


NO_SPAN = Span(NOWHERE, 0, 0, 0, 0)
"""The span of a diagnostic about a whole file, or about none: line 0 does not exist, so no excerpt is shown."""


@dataclass(frozen=True, slots=True)
class Related:
    """A second place that helps to understand a diagnostic."""

    span: Span
    message: str


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One error or warning: what is wrong, where, and what to do about it."""

    code: str
    """A stable code, `E0201` for an error and `W0201` for a warning; `rlgraph explain E0201` says more."""
    message: str
    """What is wrong, in the user's words, without a full stop."""
    span: Span
    hint: str = ""
    """What the user can do about it."""
    related: tuple[Related, ...] = ()

    @property
    def severity(self) -> Severity:
        """Whether it is an error or a warning, by the first letter of the code."""
        return "warning" if self.code.startswith("W") else "error"

    def render(self) -> str:
        """Return the text: the message, the place, the source line with a caret under the expression, the hint."""
        parts = [f"{self.severity}[{self.code}]: {_shortened(self.message)}", *_excerpt(self.span)]
        for related in self.related:
            parts += [f"note: {_shortened(related.message)}", *_excerpt(related.span)]
        if self.hint:
            parts.append(f"help: {_shortened(self.hint)}")
        return "\n".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Return the diagnostic as plain data, for editors and other tools."""
        return {
            "severity": self.severity,
            "code": self.code,
            "message": self.message,
            "hint": self.hint,
            **_place(self.span),
            "related": [{"message": related.message, **_place(related.span)} for related in self.related],
        }


_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Characters that a terminal would obey, or that turn the direction of a text, so that it reads as something else."""


def escape_controls(text: str) -> str:
    """Return any text made safe for a terminal: characters that it would obey are written out, as `\\x1b`."""
    return _UNSEEN.sub(lambda match: ascii(match[0])[1:-1], text)


def sorted_diagnostics(found: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Return the diagnostics without repeats, in the order in which they stand in their files."""
    unique = {(d.span.source.path, d.span, d.code, d.message): d for d in reversed(list(found))}
    return sorted(unique.values(), key=lambda d: (d.span.source.path, d.span.line, d.span.column, d.code))


def quoted_list(names: Sequence[str], word: str) -> str:
    """Return names as a message lists them: "`a`, `b` and `c`"."""
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
"""How many characters of a line are shown: of a longer line those around the place, of a longer quotation the first."""
_LONGEST = 4000
"""How many characters of a message are shown."""
_QUOTED = re.compile(f"(`[^`]{{{_WIDEST}}})[^`]{{{_WIDEST},}}`")


def _shortened(message: str) -> str:
    """Return a message cut for a terminal: it may quote a text of any length."""
    short = _QUOTED.sub(r"\1…`", message)
    return escape_controls(short if len(short) <= _LONGEST else f"{short[:_LONGEST]}…")


def _excerpt(span: Span) -> list[str]:
    if not span.line:
        return []
    number = str(span.line)
    pad = " " * len(number)
    text = span.source.line_text(span.line)
    end = span.end_column if span.end_line == span.line else len(text) + 1
    first, last = span.column - 1, max(span.column, end - 1)
    # A tab is one column to the lexer, and so is what cannot be shown: each is drawn as one, so that the caret stays
    # under its character.
    visible_line, offset = _UNSEEN.sub("\ufffd", text.replace("\t", " ")), 0
    if len(text) > _WIDEST:
        offset = max(0, min(first - _WIDEST // 4, len(text) - _WIDEST))
        visible_line = (
            f"{'…' * (offset > 0)}{visible_line[offset : offset + _WIDEST]}{'…' * (offset + _WIDEST < len(text))}"
        )
        last, offset = min(last, offset + _WIDEST), offset - (offset > 0)
    return [
        f"{pad}--> {escape_controls(str(span))}",
        f"{pad} |",
        f"{number} | {visible_line}".rstrip(),
        f"{pad} | {' ' * (first - offset)}{'^' * (last - first)}",
    ]


LEFT_BEHIND = "metrics and models are in `sys.last_value.run` (`import sys`)"
"""What notebooks show below the error of a run that has done steps."""


class RlgraphError(Exception):
    """An error to tell the user about, never a bug of rlgraph's own. Its `diagnostics` say what is wrong, and where."""

    def __init__(self, diagnostics: Diagnostic | Iterable[Diagnostic]) -> None:
        collected = (diagnostics,) if isinstance(diagnostics, Diagnostic) else tuple(diagnostics)
        self.diagnostics: tuple[Diagnostic, ...] = collected
        super().__init__("\n\n".join(d.render() for d in collected))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the diagnostics for other processes: otherwise an exception is made again from its text."""
        return type(self), (self.diagnostics,)

    def _render_traceback_(self) -> list[str]:
        """Return the lines that notebooks show in place of a traceback."""
        return str(self).splitlines()


class ProgramError(RlgraphError):
    """The error for a program, its options or its files that are wrong: all that is wrong is in `diagnostics`."""


class UsageMistake(ProgramError):
    """The program is right, but the way to run it is not."""


class RunError(RlgraphError):
    """The error for a run that failed for a reason outside rlgraph: data, a function of the user's, an environment. Its
    `run` has what was done until then; None before its first step was over."""

    run: Any = None
    """A `rlgraph.Run`."""

    def _render_traceback_(self) -> list[str]:
        return [*super()._render_traceback_(), *([LEFT_BEHIND] if self.run else [])]


def count_phrase(number: int, word: str) -> str:
    """Return a number with its noun: `1 device`, `1,024 devices`."""
    return f"{number:,} {word}{'s' * (number != 1)}"


def did_you_mean(word: str, known: Iterable[str], shown: str = "{}", alike: float = 0.6) -> str:
    """Return a hint with the known word that looks most like `word`, put into `shown`; empty if none does."""
    match = closest_match(word, known, alike)
    return f"did you mean `{shown.replace('{}', match)}`?" if match else ""


def known_names_hint(word: str, known: Collection[str], it_has: str) -> str:
    """Return a hint with the known words, and before them the one that looks most like `word`, if one does."""
    names = f"{it_has} {quoted_list([*known], 'and') or 'nothing'}"
    return " ".join(filter(None, [did_you_mean(word, known), names]))


def closest_match(word: str, known: Iterable[str], alike: float = 0.6) -> str:
    """Return the known word that looks most like `word`; empty if none reaches the similarity `alike`, from 0 to 1."""
    return next(iter(get_close_matches(word, list(known), n=1, cutoff=alike)), "")
