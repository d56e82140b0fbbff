"""What a recording has of work that is done again: each row once.

Rows are written when they are sampled, and not when their step is over, so that a run that has failed can be replayed
up to where it did. What a step that begins again has written is taken out before it does.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rlgraph.backends.finish_order import FILE as ENDED
from rlgraph.backends.frame import Surplus
from rlgraph.backends.in_flight import Things
from rlgraph.backends.step import Ended
from rlgraph.errors import NO_SPAN, Diagnostic, RunError

_ENDING = ".surplus"


def begin_again(folder: Path, done: int, things: Things, attempt: int) -> None:
    """Whatever begins behind a step has not been recorded yet: the steps after it, and batches that it left at work on
    what another attempt has lost. things: as that step left them. Raises RunError."""
    try:
        cut(folder, done)
        for data, batches in _lost(things, attempt).items():
            _without(folder, data, batches)
    except OSError as error:
        raise RunError(unwritable(folder, error)) from None
    except (ValueError, LookupError) as error:
        raise RunError(damaged(folder, error)) from None


def once(folder: Path, step: int, lost: Collection[str]) -> None:
    """Of the rows of a step that others have sampled, too, those that processes which are gone have written are taken
    out, and what one of these was writing when it ended. lost: their names. Raises RunError."""
    try:
        paths = list(folder.glob(f"{stem(step)}.*.jsonl"))
        gone = [path for path in paths if _writer(path) in lost]
        there = {_key(line) for path in paths if path not in gone for _, line in _whole(path)} if gone else set()
        for path in gone:
            _keep(path, lambda line: _key(line) not in there)
    except OSError as error:
        raise RunError(unwritable(folder, error)) from None
    except (ValueError, LookupError) as error:
        raise RunError(damaged(folder, error)) from None


def cut(folder: Path, step: int) -> None:
    """The steps after this one have not been. Raises OSError; ValueError or LookupError for what no recorder wrote."""
    for path in folder.glob("step-*.jsonl"):
        if step_of(path) > step:
            path.unlink()
    ended = folder / ENDED
    if ended.exists():
        lines = ended.read_text("utf-8").splitlines(keepends=True)
        kept = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= step]
        if kept != lines:
            ended.write_text("".join(kept), "utf-8")


def stem(step: int) -> str:
    """What the names of a step's files begin with."""
    return f"step-{step:06d}"


def unwritable(folder: Path, error: OSError) -> Diagnostic:
    said = error.strerror or str(error)
    return Diagnostic(
        "E0814",
        f"`{folder}` cannot hold a recording: {said[:1].lower()}{said[1:]}",
        NO_SPAN,
        "take another folder with `--record`",
    )


def damaged(folder: Path, error: Exception) -> Diagnostic:
    return Diagnostic("E0817", f"`{folder}` is damaged: {error}", NO_SPAN, "record again")


def _lost(things: Things, attempt: int) -> dict[str, set[Ended]]:
    """Of each source of data the batches of a `collect` that went on, and begin again."""
    return {
        name.removesuffix(_ENDING): {(batch.step, batch.number) for batch in each.going if _of(batch) != attempt}
        for name, each in things.items()
        if isinstance(each, Surplus)
    }


def _without(folder: Path, data: str, batches: Collection[Ended]) -> None:
    for step in {step for step, _ in batches}:
        numbers = {number for began, number in batches if began == step}
        for path in folder.glob(f"{stem(step)}.*.jsonl"):
            _keep(path, partial(_of_others, data, numbers))


def _of_others(data: str, numbers: Collection[int], line: Mapping[str, Any]) -> bool:
    """Whether a row is of none of these batches."""
    return line["row"][0] != data or line.get("batch") not in numbers


def _writer(path: Path) -> str:
    """Who wrote a file: behind the name there is a number of its own."""
    return path.name.partition(".")[2].removesuffix(".jsonl").rpartition("-")[0]


def step_of(path: Path) -> int:
    """The step of which a file has rows."""
    return int(path.name.partition(".")[0].removeprefix("step-"))


def _of(batch: Any) -> int:
    attempt: int = batch.given.step.attempt
    return attempt


def _key(line: Mapping[str, Any]) -> tuple[Any, ...]:
    return line["node"], line["turn"], *line["row"]


def _whole(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for line in path.read_text("utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            yield line, json.loads(line)


def _keep(path: Path, wanted: Callable[[dict[str, Any]], bool]) -> None:
    """The lines of a file that are wanted, in place of the file."""
    kept = "".join(line for line, read in _whole(path) if wanted(read))
    if not kept:
        path.unlink()
    elif len(kept.encode()) != path.stat().st_size:
        beside = path.with_name(f".{path.name}")
        beside.write_text(kept, "utf-8")
        os.replace(beside, path)
