"""Reads the trace of a run from its folder; `rlgraph.backends.trace_notes` says what a trace contains.

A run writes the line of a step when the step is over. So a run that was killed leaves complete lines, and perhaps a
part of one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from rlgraph.backends.step import Ended
from rlgraph.backends.weight_versions import Runs
from rlgraph.errors import NO_SPAN, Diagnostic, ProgramError
from rlgraph.files import failure_reason
from rlgraph.ir.graph import Program
from rlgraph.ir.step_edges import trains_on_stale_rows
from rlgraph.ir.text.parse import parse_program
from rlgraph.runs.folder import GRAPH, TRACE

Row = tuple[Any, ...]
"""A row's key: the data, the pass, the row, the sample."""

Batch = tuple[str, int, int]
"""A batch of a `collect`: the data, the step that began it, its number there."""


@dataclass(frozen=True)
class TracedStep:
    """The record of what was done with rows in a step."""

    phase: str
    changed: Mapping[str, int]
    """The models that have new weights after the step, and how often each was updated."""
    read: tuple[Row, ...]
    begun: Mapping[Batch, tuple[Row, ...]]
    """The rows of `read` in each batch that a `collect` takes when it ends."""
    ended: tuple[Batch, ...]
    """The batches that ended, in their order."""
    sampled: Mapping[str, tuple[tuple[Row, Runs, Ended | None], ...]]
    """The sampled rows by the key of the node that sampled them; each with its batch."""
    dropped: Mapping[str, frozenset[Row]]
    """The dropped rows by the name of the node that dropped them."""
    trained: Mapping[tuple[str, str], tuple[Row, ...]]
    """The trained rows by the weights that the body of a `train` is given, and the table: a row as often as it was
    trained on."""


@dataclass(frozen=True)
class Trace:
    """The trace of a run, with the program that it is of."""

    program: Program
    steps: tuple[TracedStep, ...]
    """All steps, from the first one on."""
    cut: bool
    """Whether the last line is incomplete, because the run was killed."""


def read_trace(folder: Path) -> Trace:
    """Return the trace of a run. Raise ProgramError where there is none, or it is damaged."""
    try:
        program = parse_program((folder / GRAPH).read_text("utf-8"))
    except (OSError, ValueError):
        raise _none(f"`{folder}` is no folder of a run", "give the folder that `rlgraph run` wrote") from None
    if not trains_on_stale_rows(program):
        hint = "its program has no `step async`: all rows are of the present weights"
        raise _none(f"the run in `{folder}` keeps no trace", hint)
    path = folder / TRACE
    try:
        *lines, rest = path.read_text("utf-8", errors="replace").split("\n")
    except OSError as error:
        raise _none(
            f"`{path}` cannot be read: {failure_reason(error)}", "a run writes it with its first step"
        ) from None
    keys = {phase.name: {node.attr("key") for node in phase.graph.walk()} for phase in program.phases}
    steps = []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            if record["step"] != number:
                raise _damaged(path, number, f"it is of step {record['step']}, and that of step {number} is missing")
            steps.append(_step(record))
            if not keys[steps[-1].phase].issuperset(steps[-1].sampled):
                raise KeyError("no such rows")
        except (ValueError, KeyError, TypeError, AttributeError):
            raise _damaged(path, number, "no run wrote it so") from None
    if not steps:
        raise _damaged(path, 1, "no step is whole")
    return Trace(program, tuple(steps), bool(rest))


def _step(record: Mapping[str, Any]) -> TracedStep:
    """Return a step's record. Raise ValueError, KeyError, TypeError or AttributeError for what no run wrote."""
    return TracedStep(
        str(record["phase"]),
        {str(model): int(times) for model, times in record["changed"].items()},
        tuple(row for entry in record["read"] for row in _rows(entry["rows"])),
        {
            (rows[0][0], *batch): rows
            for entry in record["read"]
            if (batch := _batch(entry)) is not None and (rows := _rows(entry["rows"]))
        },
        tuple((str(data), int(step), int(number)) for data, step, number in record.get("ended", ())),
        {
            node: tuple(
                (row, _runs(runs), _batch(entry))
                for entry in entries
                for row, runs in zip(_rows(entry["rows"]), entry["versions"], strict=True)
            )
            for node, entries in _by_node(record["sampled"])
        },
        {
            node: frozenset(row for entry in entries for row in _rows(entry["rows"]))
            for node, entries in _by_node(record["dropped"])
        },
        {(entry["node"], entry["table"]): _rows(entry["rows"]) for entry in record["trained"]},
    )


def _by_node(entries: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, Iterator[Mapping[str, Any]]]]:
    return groupby(sorted(entries, key=lambda entry: entry["node"]), key=lambda entry: entry["node"])


def _batch(entry: Mapping[str, Any]) -> Ended | None:
    if "batch" not in entry:
        return None
    step, number = entry["batch"]
    return int(step), int(number)


def _rows(keys: Iterable[Any]) -> tuple[Row, ...]:
    rows = []
    for data, *numbers in keys:
        if not isinstance(data, str) or len(numbers) < 2 or not all(isinstance(number, int) for number in numbers):
            raise ValueError("a row is its data, its pass and its place there")
        rows.append((data, *numbers))
    return tuple(rows)


def _runs(pairs: Iterable[Any]) -> Runs:
    runs = tuple((int(version), int(tokens)) for version, tokens in pairs)
    if not runs:
        raise ValueError("some version made every row")
    return runs


def _none(message: str, hint: str) -> ProgramError:
    return ProgramError(Diagnostic("E0822", message, NO_SPAN, hint))


def _damaged(path: Path, number: int, why: str) -> ProgramError:
    message = f"line {number} of `{path}` is damaged: {why}"
    return ProgramError(Diagnostic("E0823", message, NO_SPAN, "what is behind it cannot be checked"))
