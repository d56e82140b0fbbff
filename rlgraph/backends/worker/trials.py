"""This module calls the functions of a program on made-up answers before the first step, so that what is wrong with one
is said at once, and not after the first answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

from rlgraph.columns import value_kind
from rlgraph.data import BatchReader, Row
from rlgraph.data.base import Rows
from rlgraph.dsl.columns import FunctionUse, find_function_uses
from rlgraph.errors import Diagnostic, RunError
from rlgraph.ir.graph import Program
from rlgraph.user_code import RewardFunction

Note = Callable[[str], None]

_ALTERNATIVE = "if no model would ever answer with its prompt, `trial=false` in the declaration"
_MADE_UP = {"float": 0.5, "int": 1, "bool": True, "number": 1, "text": "a"}
"""What columns hold that the program computes, by their type."""


def try_functions(
    program: Program, readers: Mapping[str, BatchReader], functions: Mapping[str, RewardFunction], note: Note
) -> tuple[list[Diagnostic], list[str]]:
    """Call each function once, as the program does, on answers to the first prompt of the data which repeat it. Returns
    what is wrong, and sentences on what failed where the program goes on.

    A function is passed over whose rows come from a stream, which cannot be read ahead, or from an environment.
    """
    known = {name: reader.source.columns for name, reader in readers.items()}
    problems: list[Diagnostic] = []
    sentences: list[str] = []
    tried: set[str] = set()
    for use in find_function_uses(program, known):
        function, reader = functions.get(use.function), readers.get(use.source)
        if function is None or not function.trial or reader is None or use.function in tried:
            continue
        row = first_row(reader)
        columns = None if row is None else _columns(use, function, row[1])
        if row is None or columns is None:
            continue
        note(f"trying {use.function} on a made-up answer")
        tried.add(use.function)
        try:
            sentences += _failures(use, function, row, columns)
        except RunError as error:
            hints = [[*filter(None, (found.hint, _ALTERNATIVE))] for found in error.diagnostics]
            problems += [
                replace(found, hint="; ".join(hint)) for found, hint in zip(error.diagnostics, hints, strict=True)
            ]
    return problems, sentences


def first_row(reader: BatchReader) -> tuple[int, Row] | None:
    """Return the first row of the data that the run may read, with its number; None for a stream."""
    source = reader.source
    if not isinstance(source.rows, Rows):
        return None
    number = next(islice(source.row_numbers or (), 1), None)
    return None if number is None else (number, source.rows[number])


def _columns(use: FunctionUse, function: RewardFunction, row: Row) -> dict[str, Any] | None:
    """Return the columns of an answer to the prompt of a row; None where nothing can be made up for one of them."""
    columns = {name: value for name, value in row.items() if function.accepts_column(name)}
    for name, column in use.columns.items():
        if column.data and column.data in row:
            columns[name] = row[column.data]
        elif column.dtype in _MADE_UP:
            columns[name] = _MADE_UP[column.dtype]
        else:
            return None
    return columns


def _failures(
    use: FunctionUse, function: RewardFunction, row: tuple[int, Row], columns: Mapping[str, Any]
) -> list[str]:
    """Call a function, and return a sentence if it fails. Raises RunError where that ends the run."""
    prompt: Any = row[1].get(use.prompt)
    if value_kind(prompt) not in ("text", "messages"):
        return []  # Who asks it says what is wrong with it.
    count = 1 if function.over == "row" else use.siblings
    answer = prompt if isinstance(prompt, str) else str(prompt[-1].get("content") or "")
    judged = function.judge(
        [prompt] * count,
        [answer] * count,
        [list(range(len(answer)))] * count,
        {name: [value] * count for name, value in columns.items()},
        [f"a made-up answer to {use.source} row {row[0]}"] * count,
        [0] * count,
    )
    return [f"`{use.function}` failed {failure}" for failure in judged.failures[:1]]
