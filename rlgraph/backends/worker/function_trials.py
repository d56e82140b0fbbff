"""This module calls the functions of a program on made-up answers before the first step, so that what is wrong with one
is said at once, and not after the first answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from rlgraph.columns import value_kind, value_or_none
from rlgraph.data import BatchReader, Row
from rlgraph.data.base import Rows
from rlgraph.dsl.columns import find_function_uses
from rlgraph.dsl.data_uses import FunctionUse, Known
from rlgraph.errors import Diagnostic, RunError
from rlgraph.ir.graph import Program
from rlgraph.user_code import RewardFunction
from rlgraph.user_code.outcomes import Judgement

Note = Callable[[str], None]
Encode = Callable[[str], Sequence[int]]
FirstRow = Callable[[str], tuple[str, Row] | None]

_ALTERNATIVE = "if no model would ever answer with its prompt, `trial=false` in the declaration"
_SERVER = "it is asked before the first step, unless `trial=false` in the declaration says otherwise"
_MADE_UP = {"float": 0.5, "int": 1, "bool": True, "number": 1, "text": "a"}
"""What columns hold that the program computes, by their type."""


@dataclass(frozen=True)
class FunctionTrial:
    """A function of the program, and the first row of the data that the program would call it with answers to."""

    use: FunctionUse
    function: RewardFunction
    row: str
    """How a message names the row."""
    prompt: Any
    """What a model would answer: a text or messages."""
    columns: Mapping[str, Any]
    """What else the function is given for each answer."""

    def call_function(self, answers: Sequence[str], who: Sequence[str], tokens: Encode | None = None) -> Judgement:
        """Call the function on answers to the prompt. who: their names; tokens: encodes an answer, if a tokenizer is
        there. Raises RunError."""
        count = len(answers)
        return self.function.judge(
            [self.prompt] * count,
            answers,
            [tokens(answer) if tokens else [*range(len(answer))] for answer in answers],
            {name: [value] * count for name, value in self.columns.items()},
            who,
            None if self.use.siblings == 1 else [0] * count,
        )

    @property
    def answer_count(self) -> int:
        """How many answers the function is tried with: as many as it has to see together, and no fewer than two, since
        one that returns a number too few is right for a single answer."""
        return 2 if self.function.over == "row" else max(self.use.siblings, 2)


def find_function_trials(
    program: Program, columns: Known, functions: Mapping[str, RewardFunction], first_row: FirstRow
) -> dict[str, FunctionTrial]:
    """Return a trial for each function that can be tried, by its name. first_row: returns the name of the first row of
    a data source, and the row; None where there is none.

    A function is passed over that says `trial=false`, or whose rows are of an environment.
    """
    trials: dict[str, FunctionTrial] = {}
    for use in find_function_uses(program, columns):
        function = functions.get(use.function)
        first = None if function is None or not function.trial or use.function in trials else first_row(use.source)
        if function is None or first is None:
            continue
        name, row = first
        prompt = value_or_none(row, use.prompt)
        given = _columns(use, {**row, "prompt": prompt} if prompt is not None else row)
        # Who asks a prompt that is none says what is wrong with it.
        if given is not None and value_kind(prompt) in ("text", "messages"):
            trials[use.function] = FunctionTrial(use, function, name, prompt, given)
    return trials


def try_functions(
    program: Program, readers: Mapping[str, BatchReader], functions: Mapping[str, RewardFunction], note: Note
) -> tuple[list[Diagnostic], list[str]]:
    """Call each function once, as the program does, on answers to the first prompt of the data which repeat it. Returns
    what is wrong, and sentences on what failed where the program goes on.

    A stream cannot be read ahead, so that functions of its rows are passed over, too.
    """
    known = {name: reader.source.columns for name, reader in readers.items()}
    problems: list[Diagnostic] = []
    sentences: list[str] = []
    for name, trial in find_function_trials(
        program, known, functions, lambda source: first_row(readers, source)
    ).items():
        note(f"trying {name} on a made-up answer")
        prompt, count = trial.prompt, trial.answer_count
        answer = prompt if isinstance(prompt, str) else str(prompt[-1].get("content") or "")
        try:
            judged = trial.call_function([answer] * count, [f"a made-up answer to {trial.row}"] * count)
        except RunError as error:
            other = _SERVER if trial.function.together else _ALTERNATIVE
            hints = [[*filter(None, (found.hint, other))] for found in error.diagnostics]
            problems += [
                replace(found, hint="; ".join(hint)) for found, hint in zip(error.diagnostics, hints, strict=True)
            ]
            continue
        sentences += [f"`{name}` failed {failure}" for failure in judged.failures[:1]]
    return problems, sentences


def first_row(readers: Mapping[str, BatchReader], name: str) -> tuple[str, Row] | None:
    """Return the first row of a data source that the run may read; None for a stream."""
    source = readers[name].source if name in readers else None
    if source is None or not isinstance(source.rows, Rows):
        return None
    number = next(islice(source.row_numbers or (), 1), None)
    return None if number is None else (f"{name} row {number}", source.rows[number])


def _columns(use: FunctionUse, row: Row) -> dict[str, Any] | None:
    """Return the columns of an answer to the prompt of a row, also those that the function does not ask for: it may
    have meant one of them. None where nothing can be made up for one of them."""
    columns = dict(row)
    for name, column in use.columns.items():
        if column.data:
            columns[name] = value_or_none(row, column.data)
        elif column.dtype in _MADE_UP:
            columns[name] = _MADE_UP[column.dtype]
        else:
            return None
    return columns
