"""This module takes rows out of a recording when their work is done again, so that each row is there once.

Rows are written when they are sampled, and not when their step is over, so that a run that has failed can be replayed
up to that point. What a step that begins again has written is taken out before it does.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rlgraph.backends.collect_batches import Surplus
from rlgraph.backends.finish_order import FILE as ENDED
from rlgraph.backends.in_flight import Things
from rlgraph.backends.recording_errors import damaged_recording_diagnostic, unwritable_recording_diagnostic
from rlgraph.backends.step import Ended
from rlgraph.errors import RunError

_SUFFIX = ".surplus"


def drop_unfinished_steps(folder: Path, done: int, things: Things, attempt: int) -> None:
    """Take out all that begins after a step: the steps after it, and batches that it left under way on work that
    another attempt has lost. things: as that step left them. Raises RunError."""
    with _reporting(folder):
        drop_later_steps(folder, done)
        for data, batches in _lost_batches(things, attempt).items():
            _drop_batches(folder, data, batches)


@contextmanager
def _reporting(folder: Path) -> Iterator[None]:
    """Raise RunError where a recording cannot be written, or no recorder wrote it."""
    try:
        yield
    except OSError as error:
        raise RunError(unwritable_recording_diagnostic(folder, error)) from None
    except (ValueError, LookupError) as error:
        raise RunError(damaged_recording_diagnostic(folder, error)) from None


def drop_resampled_rows(folder: Path, step: int, lost: Collection[str]) -> None:
    """Take out rows of a step that processes which are gone have written, where others have sampled the same rows, and
    lines that a gone process was writing when it ended. lost: the names of these processes. Raises RunError."""
    with _reporting(folder):
        paths = list(folder.glob(f"{step_file_stem(step)}.*.jsonl"))
        gone = [path for path in paths if _writer(path) in lost]
        present = {_key(line) for path in paths if path not in gone for _, line in _full_lines(path)} if gone else set()
        for path in gone:
            _filter_file(path, lambda line: _key(line) not in present)


def drop_later_steps(folder: Path, step: int) -> None:
    """Take out the steps after this one. Raises OSError; ValueError or LookupError for what no recorder wrote."""
    for path in folder.glob("step-*.jsonl"):
        if step_of_file(path) > step:
            path.unlink()
    ended = folder / ENDED
    if ended.exists():
        lines = ended.read_text("utf-8").splitlines(keepends=True)
        lines_left = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= step]
        if lines_left != lines:
            ended.write_text("".join(lines_left), "utf-8")


def step_file_stem(step: int) -> str:
    """Return the beginning of the names of a step's files."""
    return f"step-{step:06d}"


def _lost_batches(things: Things, attempt: int) -> dict[str, set[Ended]]:
    """Return for each source of data the batches of a `collect` that went on, and begin again."""
    return {
        name.removesuffix(_SUFFIX): {
            (batch.step_number, batch.number) for batch in thing.unfinished_batches if _attempt_of(batch) != attempt
        }
        for name, thing in things.items()
        if isinstance(thing, Surplus)
    }


def _drop_batches(folder: Path, data: str, batches: Collection[Ended]) -> None:
    """Take the rows of some batches out of the files of their steps."""
    for step in {step for step, _ in batches}:
        numbers = {number for began, number in batches if began == step}
        for path in folder.glob(f"{step_file_stem(step)}.*.jsonl"):
            _filter_file(path, partial(_is_other_batch, data, numbers))


def _is_other_batch(data: str, numbers: Collection[int], line: Mapping[str, Any]) -> bool:
    """Whether a row is of none of these batches."""
    return line["row"][0] != data or line.get("batch") not in numbers


def _writer(path: Path) -> str:
    """Return who wrote a file: in its name a number of its own follows."""
    return path.name.partition(".")[2].removesuffix(".jsonl").rpartition("-")[0]


def step_of_file(path: Path) -> int:
    """Return the step of which a file has rows."""
    return int(path.name.partition(".")[0].removeprefix("step-"))


def _attempt_of(batch: Any) -> int:
    attempt: int = batch.inputs.step.attempt
    return attempt


def _key(line: Mapping[str, Any]) -> tuple[Any, ...]:
    return line["node"], line["turn"], *line["row"]


def _full_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the lines of a file that were written to their end, each with its record."""
    for line in path.read_text("utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            yield line, json.loads(line)


def _filter_file(path: Path, wanted: Callable[[dict[str, Any]], bool]) -> None:
    """Replace a file by its lines that are wanted."""
    text = "".join(line for line, record in _full_lines(path) if wanted(record))
    if not text:
        path.unlink()
    elif len(text.encode()) != path.stat().st_size:
        new_path = path.with_name(f".{path.name}")
        new_path.write_text(text, "utf-8")
        os.replace(new_path, path)
