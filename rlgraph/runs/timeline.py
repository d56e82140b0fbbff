"""The timeline of a run, in the trace-event format that Perfetto (ui.perfetto.dev) and Chrome open.

Pools are processes, their ranks are tracks, pieces of work are slices, and transfers are arrows. "Trace Event Format"
(https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU) explains the letters.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rlgraph.errors import NO_SPAN, Diagnostic, RunError, UsageMistake
from rlgraph.files import failure_reason

Track = tuple[str, int | str]
"""A pool and a rank, or a name for a track that is not of a rank."""


class _Slice(NamedTuple):
    """A piece of work on a track."""

    track: Track
    name: str
    category: str
    start: int
    """In nanoseconds, as all times here: their sums are exact, so that slices nest as the work did."""
    end: int
    args: Mapping[str, object]


class _Flow(NamedTuple):
    """An arrow between two slices."""

    source: int
    target: int
    name: str
    sent_bytes: int


class Timeline:
    """Collects what happens in a run, and writes it when the run is over."""

    def __init__(self) -> None:
        self._slices: list[_Slice] = []
        self._flows: list[_Flow] = []

    def __len__(self) -> int:
        return len(self._slices)

    def add_span(
        self, pool: str, rank: int | str, name: str, category: str, start: float, end: float, **args: object
    ) -> int:
        """Add a piece of work on a rank and return its id. Times are those of `time.time()`, of any process, in
        seconds."""
        self._slices.append(
            _Slice((pool, rank), name, category, round(start * 1e9), round(max(start, end) * 1e9), args)
        )
        return len(self._slices) - 1

    def add_flow(self, source: int, target: int, name: str, sent_bytes: int) -> None:
        """Record that something was sent from one piece of work to another."""
        self._flows.append(_Flow(source, target, name, sent_bytes))

    def write_file(self, path: Path) -> None:
        """Write the file atomically. Raise RunError where that is impossible."""
        draft = _draft(path)
        try:
            with draft.open("w", encoding="utf-8") as file:
                file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
                for index, event in enumerate(self._events()):
                    file.write(f"{',' if index else ''}{json.dumps(event)}\n")
                file.write("]}\n")
            draft.replace(path)
        except OSError as error:
            raise RunError(_unwritable(path, error)) from None
        finally:
            draft.unlink(missing_ok=True)

    def _events(self) -> Iterator[dict[str, Any]]:
        """Yield names first, then everything in the order of time; outer slices come before inner ones, and arrows
        after their slices."""
        slices = _in_lanes(self._slices)
        pools = {pool: number for number, pool in enumerate(dict.fromkeys(work.track[0] for work in slices), 1)}
        tracks = {track: number for number, track in enumerate(dict.fromkeys(work.track for work in slices), 1)}
        for pool, pid in pools.items():
            yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": pool}}
        for (pool, rank), tid in tracks.items():
            named = f"rank {rank}" if isinstance(rank, int) else rank
            yield {"ph": "M", "name": "thread_name", "pid": pools[pool], "tid": tid, "args": {"name": named}}
        first = min((work.start for work in slices), default=0)
        for time, _, event in sorted(self._timed(slices), key=lambda timed: timed[:2]):
            track = event.pop("track")
            yield {"pid": pools[track[0]], "tid": tracks[track], "ts": (time - first) / 1e3, **event}

    def _timed(self, slices: Sequence[_Slice]) -> Iterator[tuple[int, int, dict[str, Any]]]:
        """Yield events with their time and their order among those of the same time."""
        for work in slices:
            length = work.end - work.start
            yield (
                work.start,
                -length - 1,
                {
                    "ph": "X",
                    "track": work.track,
                    "name": work.name,
                    "cat": work.category,
                    "dur": length / 1e3,
                    "args": dict(work.args),
                },
            )
            yield from _rates(work)
        for number, flow in enumerate(self._flows, 1):
            source, target = slices[flow.source], slices[flow.target]
            # Viewers attach an arrow to the slice that is open at its time. It must not go back in time, although the
            # clocks of machines differ.
            leaves = max(source.start, min(source.end - 1, target.start))
            lands = max(target.start, min(leaves, target.end - 1))
            if lands < leaves:
                continue
            sent = {"name": flow.name, "cat": "transfer", "id": number, "args": {"bytes": flow.sent_bytes}}
            yield leaves, 1, {"ph": "s", "track": source.track, **sent}
            yield lands, 2, {"ph": "f", "bp": "e", "track": target.track, **sent}


def _in_lanes(slices: Sequence[_Slice]) -> list[_Slice]:
    """Return each slice on its track, or, if it overlaps another one there without nesting, on an extra track: viewers
    show only nested slices of a track."""
    placed, lanes_of_track = list(slices), dict[Track, list[list[int]]]()
    for number, work in sorted(enumerate(slices), key=lambda item: (item[1].start, -item[1].end)):
        lanes = lanes_of_track.setdefault(work.track, [])
        for ends in lanes:
            while ends and ends[-1] <= work.start:
                ends.pop()
        lane = next((index for index, ends in enumerate(lanes) if not ends or work.end <= ends[-1]), len(lanes))
        if lane == len(lanes):
            lanes.append([])
        lanes[lane].append(work.end)
        if lane:
            pool, rank = work.track
            named = f"rank {rank}" if isinstance(rank, int) else rank
            placed[number] = work._replace(track=(pool, f"{named}, beside {lane}"))
    return placed


def _rates(work: _Slice) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Yield the curve of tokens generated per second."""
    tokens = work.args.get("tokens", 0)
    if isinstance(tokens, int) and tokens and work.end > work.start:
        rate = tokens / (work.end - work.start) * 1e9
        counter = {"ph": "C", "track": work.track, "name": f"tokens/s {work.track[1]}"}
        yield work.start, 0, {**counter, "args": {"tokens/s": round(rate, 1)}}
        yield work.end, 0, {**counter, "args": {"tokens/s": 0}}


def check_writable(path: Path) -> None:
    """Raise UsageMistake if no trace can be written, before the run instead of after it."""
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        draft = _draft(path)
        draft.touch()
        draft.unlink()
    except OSError as error:
        raise UsageMistake(_unwritable(path, error)) from None


def _draft(path: Path) -> Path:
    """Return the path of a draft beside the wanted file."""
    return path.with_name(f".{path.name}.{os.getpid()}")


def _unwritable(path: Path, error: OSError) -> Diagnostic:
    message = f"the trace `{path}` cannot be written: {failure_reason(error)}"
    return Diagnostic("E0818", message, NO_SPAN, "give another file with `--trace`")
