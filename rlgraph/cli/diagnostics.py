"""Shows diagnostics: as text, coloured on a terminal, or as lines of JSON."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import IO, Literal, TextIO

import click

from rlgraph.errors import Diagnostic, count_phrase, escape_controls
from rlgraph.runs.jsonlines import print_record

Format = Literal["human", "json"]


@contextmanager
def stdout_for_records(form: Format) -> Iterator[None]:
    """Keep stdout for the records of a command that runs the user's code: what that and other processes print goes to
    stderr."""
    if form != "json" or not _is_stdout(sys.stdout):
        yield
        return
    sys.stdout.flush()
    with open(os.dup(1), "w") as records, redirect_stdout(records):
        os.dup2(2, 1)
        try:
            yield
        finally:
            os.dup2(records.fileno(), 1)


def _is_stdout(stream: TextIO) -> bool:
    try:
        return stream.fileno() == 1
    except (OSError, ValueError):  # a test or a notebook has put another one in its place
        return False


_COLOURS = {"error": "1;31", "warning": "1;33", "note": "1;36", "help": "1;32"}
_HEAD = re.compile(r"^(error|warning|note|help)(\[\w+\])?: ")
_GUTTER = re.compile(r"^( *)(-->|\d+ \||\|)")


def show_diagnostics(diagnostics: Iterable[Diagnostic], form: Format) -> None:
    """Show each diagnostic as text on stderr, or as a line of JSON on stdout."""
    for diagnostic in diagnostics:
        if form == "json":
            print_record({"type": "diagnostic", **diagnostic.to_json()})
        else:
            text = diagnostic.render()
            print(f"{add_colours(text) if wants_colours(sys.stderr) else text}\n", file=sys.stderr)


def echo_text(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text that may contain names of files or texts of others, with their control characters made visible."""
    click.echo(escape_controls(text), err=err, nl=nl)


def wants_colours(stream: IO[str]) -> bool:
    """Return whether the stream is a terminal that wants colours (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def add_colours(text: str) -> str:
    """Return a rendered diagnostic with a terminal's escape sequences."""
    return "\n".join(map(_line, text.split("\n")))


def _line(line: str) -> str:
    if head := _HEAD.match(line):
        shown = f"\x1b[{_COLOURS[head[1]]}m{head[0].rstrip(': ')}\x1b[0m"
        return f"{shown}: {line[head.end() :]}"
    if gutter := _GUTTER.match(line):
        rest = line[gutter.end() :]
        if rest.strip() and not rest.strip(" ^"):
            rest = f"\x1b[1;31m{rest}\x1b[0m"
        return f"\x1b[1;34m{gutter[0]}\x1b[0m{rest}"
    return line


def count_summary(diagnostics: Iterable[Diagnostic]) -> str:
    """Return e.g. `2 errors, 1 warning`."""
    all_diagnostics = list(diagnostics)
    parts = []
    for severity in ("error", "warning"):
        count = sum(diagnostic.severity == severity for diagnostic in all_diagnostics)
        if count:
            parts.append(count_phrase(count, severity))
    return ", ".join(parts) or "no errors"
