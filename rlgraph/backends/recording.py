"""This module keeps recordings: everything that was sampled in a run, in a folder, to be given to another run in place
of sampling.

A recorded row is known by the node that sampled it, the step, the turn of its episode and its own identity, and by
nothing else. So a run with any other plan, backend, block size or number of processes finds its rows.

    recording.json                 format, program, seed, versions
    step-000001.WHO-ID.jsonl       what one process sampled in step 1, a line for each row

A line, broken here:

    {"node": "rollout", "turn": null, "row": ["prompts", 0, 17, 2], "prompt": "d2a8...", "prompt_tokens": 61,
     "tokens": [5, 9, 1], "logprobs": [-0.25, -1.5, -0.125], "versions": [[4, 3]], "finished": true}

WHO is HOST-PID, or the group and rank of a process of a plan. `row` is the data's name, the pass over it, the row in
it, and the sample. `turn` is null but in an episode. `prompt` is a hash of the tokens before the response: a row that
is asked something else is not answered from the recording. `prompt_tokens` says how many these are. Where nothing was
asked, `start` has the tokens that the engine began with instead. `versions` says which weights made the tokens: the
first 3 of them version 4 here. `batch`, where there is one, is the batch of a `collect` that takes them as they end.
Numbers are written so that reading them gives the same bits. Each row is there once: what is sampled again replaces
what was there (`rlgraph.backends.recording_cleanup`).
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import secrets
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import torch

from rlgraph.backends.engines.likeliest import KeptTokens
from rlgraph.backends.engines.records import Generation
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.recording_cleanup import drop_later_steps, step_file_stem, step_of_file
from rlgraph.backends.recording_errors import damaged_recording_diagnostic, unwritable_recording_diagnostic
from rlgraph.backends.rows import RowId, row_label
from rlgraph.backends.step import Step
from rlgraph.backends.weight_versions import Runs
from rlgraph.errors import NO_SPAN, Diagnostic, RunError, UsageMistake
from rlgraph.ir.graph import Node

FORMAT = 2
HEADER = "recording.json"


@contextmanager
def claim_folder(folder: Path, program: str, seed: int, after: int | None = None) -> Iterator[None]:
    """Claim a folder, new or empty, for a run whose processes then write into it. after: for a run that goes on, the
    step up to which its folder keeps what it has. Raises UsageMistake."""
    if after is None:
        _write_header(folder, program, seed)
    else:
        read_header(folder, program)
        _cut(folder, after)
    try:
        yield
    except BaseException:
        if not any(folder.glob("step-*")):
            # The run did not begin: give the folder free. One that ends samples nothing where its program does not.
            with suppress(OSError):
                (folder / HEADER).unlink()
                folder.rmdir()
        raise


def has_recording(folder: Path) -> bool:
    """Whether a run has begun to record in a folder."""
    return (folder / HEADER).exists()


def _write_header(folder: Path, program: str, seed: int) -> None:
    """Make the folder and write its header. Raises UsageMistake."""
    from importlib.metadata import version

    from rlgraph import __version__

    versions = {"rlgraph": __version__, "torch": version("torch"), "transformers": version("transformers")}
    header = {"format": FORMAT, "program": program, "seed": seed, "versions": versions}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageMistake(
                Diagnostic(
                    "E0814", f"the folder `{folder}` is not empty", NO_SPAN, "a recording goes into a folder of its own"
                )
            )
        # Mode x: of two runs that saw an empty folder at once, one gets it.
        with (folder / HEADER).open("x", encoding="utf-8") as file:
            file.write(json.dumps(header, indent=2) + "\n")
    except OSError as error:
        raise UsageMistake(unwritable_recording_diagnostic(folder, error)) from None


def _cut(folder: Path, step: int) -> None:
    try:
        drop_later_steps(folder, step)
    except (OSError, ValueError, LookupError) as error:
        raise UsageMistake(damaged_recording_diagnostic(folder, error)) from None


def read_header(folder: Path, program: str | None) -> dict[str, Any]:
    """Return the header of a recording. Raises UsageMistake where it cannot be replayed by this program, or, for None,
    where it is no recording."""
    try:
        header = json.loads((folder / HEADER).read_text("utf-8"))
        version, recorded, _ = header["format"], header["program"], header["seed"]
    except (OSError, ValueError, KeyError, TypeError):
        raise _cannot_replay(f"`{folder}` is no recording", "give a folder that `--record` wrote") from None
    if version != FORMAT:
        raise _cannot_replay(
            f"`{folder}` has format {version}, and this version of rlgraph reads {FORMAT}", "record it again"
        )
    if program is not None and recorded != program:
        raise _cannot_replay(
            f"`{folder}` was recorded by `{recorded}`, and this program is `{program}`",
            "replay it with the program that recorded it",
        )
    return dict(header)


class Recorder:
    """Writes what this process samples into a folder that `claim_folder` has claimed."""

    def __init__(self, folder: Path, who: str = "") -> None:
        """who: the name of this process, if it has one."""
        self.folder = folder
        # Two recorders in one process have different files, too.
        self._writer = f"{who or f'{socket.gethostname()}-{os.getpid()}'}-{secrets.token_hex(3)}"
        self._lock = Lock()
        """Rows of several requests may come at the same time."""
        self._attempt = 0

    def begin_retry(self, attempt: int) -> None:
        """Keep nothing more of what is sampled in steps that were begun before this attempt."""
        with self._lock:
            self._attempt = attempt

    def write_rows(
        self,
        node: Node,
        step: Step,
        turn: Turns,
        ids: Sequence[RowId],
        prompts: Sequence[Sequence[int]],
        made: Generation,
        versions: Sequence[Runs],
    ) -> None:
        """Keep the responses to `prompts`, a list of tokens for each row. Raises RunError where the disk is full."""
        chances, sequences = iter(made.logprobs.tolist()), made.sequences
        responses = zip(
            sequences.rows(),
            sequences.scored_tokens_by_row(),
            made.finished.tolist(),
            versions,
            sequences.routes_by_row(),
            strict=True,
        )
        lines = []
        turns = turns_of_rows(turn, len(ids))
        starts = (sequences.scored_counts().cumsum(0) - sequences.scored_counts()).tolist()
        for row, of_turn, prompt, start, (tokens, response, finished, runs, routes) in zip(
            ids, turns, prompts, starts, responses, strict=True
        ):
            support = None if made.support is None else made.support.pick(np.arange(start, start + len(response)))
            record = {
                "node": node.attr("key"),
                "turn": of_turn,
                "row": row,
                "prompt": _hash(prompt),
                "prompt_tokens": len(prompt),
                "tokens": response,
                "logprobs": list(islice(chances, len(response))),
                "versions": runs,
                "finished": finished,
            }
            if routes is not None:
                record["routes"] = [*routes.shape[1:], base64.b64encode(routes.numpy().tobytes()).decode()]
            if support is not None:
                record["support"] = [
                    base64.b64encode(part.numpy().tobytes()).decode()
                    for part in (support.counts.to(torch.int32), support.ids, support.logs.double())
                ]
            if step.batch is not None:
                record["batch"] = step.batch
            if not prompt:
                record["start"] = tokens[: len(tokens) - len(response)]
            lines.append(json.dumps(record) + "\n")
        try:
            path = self.folder / f"{step_file_stem(step.number)}.{self._writer}.jsonl"
            with self._lock:
                if step.attempt < self._attempt:
                    return
                with path.open("a", encoding="utf-8") as file:
                    file.write("".join(lines))
        except OSError as error:
            raise RunError(unwritable_recording_diagnostic(self.folder, error)) from None


Turns = int | None | Sequence[int]
"""The turn of the episodes that rows are of, or that of each row; None: they are of none."""


def turns_of_rows(turn: Turns, count: int) -> Sequence[int | None]:
    """Return the turn of each row."""
    return turn if isinstance(turn, Sequence) else [turn] * count


_Key = tuple[str, int | None, RowId]
"""The node, the turn and the row of a response."""


class Replay:
    """Reads a recording; the rows of a step are kept in memory until it is over."""

    def __init__(self, folder: Path, program: str, seed: int) -> None:
        """Raises UsageMistake where the folder is no recording of this program."""
        self.folder = folder
        recorded = read_header(folder, program)["seed"]
        self._hint = "replay with the data, the seed and the `n` (and `first`) that were recorded: "
        self._hint += f"its seed was {recorded}"
        self._hint += f", this run's is {seed}" if recorded != seed else ""
        self._rows: dict[int, dict[_Key, dict[str, Any]]] = {}
        """The recorded rows, by step."""
        self._lock = Lock()

    def read_rows(
        self, node: Node, step: int, turn: Turns, ids: Sequence[RowId], prompts: Sequence[Sequence[int]]
    ) -> tuple[Generation, list[Runs]]:
        """Return the recorded responses to `prompts`, a list of tokens for each row, and the versions that made their
        tokens; log-probabilities as float64.

        Raises RunError for a row that was not recorded, or was asked something else, and where a file is damaged.
        """
        rows = self._rows_of(step)
        asked_rows = zip(turns_of_rows(turn, len(ids)), ids, prompts, strict=True)
        records = [self._row(rows, node, step, of_turn, row, prompt) for of_turn, row, prompt in asked_rows]
        asked = [list(prompt) or record["start"] for prompt, record in zip(prompts, records, strict=True)]
        sequences = Sequences.from_pairs(asked, [record["tokens"] for record in records])
        if records and all(record["routes"] is not None for record in records):
            sequences = replace(sequences, routes=torch.cat([record["routes"] for record in records]))
        made = Generation(
            sequences,
            torch.tensor([chance for record in records for chance in record["logprobs"]], dtype=torch.float64),
            torch.tensor([record["finished"] for record in records], dtype=torch.bool),
        )
        if records and all(record["support"] is not None for record in records):
            first, *others = (record["support"] for record in records)
            made = replace(made, support=first.concat(others))
        return made, [record["versions"] for record in records]

    def has_row(self, node: Node, step: int, turn: int | None, row: RowId) -> bool:
        """Whether a row was recorded."""
        return (node.attr("key"), turn, row) in self._rows_of(step)

    def forget_steps(self, step: Step) -> None:
        """Forget the rows of this step and those before, which are over."""
        with self._lock:
            self._rows = {number: rows for number, rows in self._rows.items() if number > step.number}

    def _row(
        self,
        rows: dict[_Key, dict[str, Any]],
        node: Node,
        step: int,
        turn: int | None,
        row: RowId,
        prompt: Sequence[int],
    ) -> dict[str, Any]:
        """Return the record of a row. Raises RunError where there is none, or it has another prompt."""
        shown = row_label(row) + (f", turn {turn + 1}" if turn is not None else "")
        record = rows.get((node.attr("key"), turn, row))
        if not rows:
            raise RunError(
                Diagnostic(
                    "E0816",
                    f"the recording has no step {step}",
                    node.span,
                    f"it ends after step {self._last()}: run as many with `--steps`",
                )
            )
        if record is None:
            message = f"the recording has no `{node.attr('key')}` for {shown} in step {step}"
            raise RunError(Diagnostic("E0816", message, node.span, self._hint))
        if record["prompt"] != _hash(prompt):
            message = f"{shown} of step {step} was recorded with another prompt"
            raise RunError(
                Diagnostic("E0816", message, node.span, "replay with the data and the tokenizer that were recorded")
            )
        return record

    def _rows_of(self, step: int) -> dict[_Key, dict[str, Any]]:
        with self._lock:
            if step not in self._rows:
                self._rows[step] = dict(_lines(self.folder, step))
            return self._rows[step]

    def _last(self) -> int:
        return max(_steps(self.folder), default=0)


class RecordedLength(NamedTuple):
    """The length of a row of a recording; of an episode, that of all its turns."""

    prompt_hash: str
    """A hash of what the row was asked."""
    prompt: int | None
    """Tokens before the response, where the recording says so."""
    response: int
    finished: bool
    """Whether the last of its responses came to its end, and was not cut."""


def recorded_lengths(folder: Path) -> Iterator[RecordedLength]:
    """Yield every row of a recording. Raises UsageMistake where it is none, RunError where it is damaged."""
    read_header(folder, None)
    for step in sorted(_steps(folder)):
        episodes: dict[tuple[str, RowId], list[tuple[int, dict[str, Any]]]] = {}
        for (node, turn, row), record in _lines(folder, step):
            episodes.setdefault((node, row), []).append((turn or 0, record))
        for turns in episodes.values():
            turns.sort(key=lambda turn: turn[0])
            first, last = turns[0][1], turns[-1][1]
            tokens = sum(len(record["tokens"]) for _, record in turns)
            yield RecordedLength(first["prompt"], first["prompt_tokens"], tokens, last["finished"])


def _steps(folder: Path) -> set[int]:
    return {step_of_file(file) for file in folder.glob("step-*.jsonl")}


def _lines(folder: Path, step: int) -> Iterator[tuple[_Key, dict[str, Any]]]:
    for file in sorted(folder.glob(f"{step_file_stem(step)}.*.jsonl")):
        for number, line in enumerate(file.read_text("utf-8", errors="replace").splitlines(), 1):
            try:
                yield _record(line)
            except (ValueError, KeyError, TypeError):
                hint = f"take the steps before step {step}, or record again"
                raise RunError(Diagnostic("E0817", f"line {number} of `{file}` is damaged", NO_SPAN, hint)) from None


def _record(line: str) -> tuple[_Key, dict[str, Any]]:
    """Return the record of a line, and its key. Raises ValueError, KeyError or TypeError for a line that no recorder
    wrote."""
    record = json.loads(line)
    if len(record["tokens"]) != len(record["logprobs"]):
        raise ValueError("a log-probability for each token")
    versions = tuple((version, tokens) for version, tokens in record["versions"])
    if not versions or sum(tokens for _, tokens in versions) != len(record["tokens"]):
        raise ValueError("a version for each token")
    main_fields = {name: record[name] for name in ("prompt", "tokens", "logprobs", "finished")}
    start = record.get("start", [])
    asked = len(start) or record.get("prompt_tokens")
    if not isinstance(asked, int | None):
        raise ValueError("how many tokens the prompt has")
    routes = None
    if record.get("routes"):
        layers, experts, text = record["routes"]
        routes = torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.int16).view(-1, layers, experts)
    support = None
    if record.get("support"):
        kinds = zip(record["support"], (np.int32, np.int32, np.float64), strict=True)
        counts, ids, logs = (
            torch.from_numpy(np.frombuffer(base64.b64decode(text), kind).copy()) for text, kind in kinds
        )
        support = KeptTokens(counts.long(), ids, logs)
        if len(support) != len(record["tokens"]) or int(support.counts.sum()) != len(ids) or len(ids) != len(logs):
            raise ValueError("the support of each token")
    extra_fields = {"routes": routes, "support": support, "versions": versions, "start": start, "prompt_tokens": asked}
    return (record["node"], record["turn"], tuple(record["row"])), main_fields | extra_fields


def _hash(tokens: Sequence[int]) -> str:
    return hashlib.blake2b(np.asarray(tokens, dtype="<i8").tobytes(), digest_size=8).hexdigest()


def _cannot_replay(message: str, hint: str) -> UsageMistake:
    return UsageMistake(Diagnostic("E0815", message, NO_SPAN, hint))
