"""A run as a timeline, in the trace-event format that Perfetto (ui.perfetto.dev) and Chrome open.

A process for each pool, a track for each of its ranks, a slice for each piece of work, arrows for what was sent. See
"Trace Event Format" (https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU) for what the
letters mean.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rlgraph.errors import NO_SPAN, Diagnostic, RunError, UsageMistake

Track = tuple[str, int | str]
"""A pool and a rank, or a name for what is no rank."""


class _Slice(NamedTuple):
    track: Track
    name: str
    category: str
    start: int
    """Nanoseconds, as all times here: sums of them are exact, so that slices nest as the work did."""
    end: int
    args: Mapping[str, object]


class _Flow(NamedTuple):
    source: int
    target: int
    name: str
    sent_bytes: int


class Timeline:
    """A collection of what happened in a run, which is written when the run is over."""

    def __init__(self) -> None:
        self._slices: list[_Slice] = []
        self._flows: list[_Flow] = []

    def __len__(self) -> int:
        return len(self._slices)

    def span(
        self, pool: str, rank: int | str, name: str, category: str, start: float, end: float, **args: object
    ) -> int:
        """Add a piece of work on a rank and return its id. Times are those of `time.time()`, of any process, in
        seconds."""
        self._slices.append(
            _Slice((pool, rank), name, category, round(start * 1e9), round(max(start, end) * 1e9), args)
        )
        return len(self._slices) - 1

    def flow(self, source: int, target: int, name: str, sent_bytes: int) -> None:
        """Record that something was sent from one piece of work to another."""
        self._flows.append(_Flow(source, target, name, sent_bytes))

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all. Raise RunError where that is impossible."""
        draft = _draft(path)
        try:
            with draft.open("w", encoding="utf-8") as file:
                file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
                for place, event in enumerate(self._events()):
                    file.write(f"{',' if place else ''}{json.dumps(event)}\n")
                file.write("]}\n")
            draft.replace(path)
        except OSError as error:
            raise RunError(_unwritable(path, error)) from None
        finally:
            draft.unlink(missing_ok=True)

    def _events(self) -> Iterator[dict[str, Any]]:
        """Names first, then everything in the order of time; outer slices before inner ones, arrows behind their
        slices."""
        slices = _laid(self._slices)
        pools = {pool: place for place, pool in enumerate(dict.fromkeys(s.track[0] for s in slices), 1)}
        tracks = {track: place for place, track in enumerate(dict.fromkeys(s.track for s in slices), 1)}
        for pool, pid in pools.items():
            yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": pool}}
        for (pool, rank), tid in tracks.items():
            named = f"rank {rank}" if isinstance(rank, int) else rank
            yield {"ph": "M", "name": "thread_name", "pid": pools[pool], "tid": tid, "args": {"name": named}}
        first = min((s.start for s in slices), default=0)
        for at, _, event in sorted(self._timed(slices), key=lambda found: found[:2]):
            track = event.pop("track")
            yield {"pid": pools[track[0]], "tid": tracks[track], "ts": (at - first) / 1e3, **event}

    def _timed(self, slices: Sequence[_Slice]) -> Iterator[tuple[int, int, dict[str, Any]]]:
        """Events with their time and their order among those of the same time."""
        for found in slices:
            length = found.end - found.start
            yield (
                found.start,
                -length - 1,
                {
                    "ph": "X",
                    "track": found.track,
                    "name": found.name,
                    "cat": found.category,
                    "dur": length / 1e3,
                    "args": dict(found.args),
                },
            )
            yield from _rates(found)
        for number, flow in enumerate(self._flows, 1):
            source, target = slices[flow.source], slices[flow.target]
            # An arrow belongs to the slice that is there at its time, and does not fly back, though clocks of machines
            # differ.
            leaves = max(source.start, min(source.end - 1, target.start))
            lands = max(target.start, min(leaves, target.end - 1))
            if lands < leaves:
                continue
            sent = {"name": flow.name, "cat": "transfer", "id": number, "args": {"bytes": flow.sent_bytes}}
            yield leaves, 1, {"ph": "s", "track": source.track, **sent}
            yield lands, 2, {"ph": "f", "bp": "e", "track": target.track, **sent}


def _laid(slices: Sequence[_Slice]) -> list[_Slice]:
    """Each on its track, or on another one beside it where it began before the one that is there had ended: a viewer
    shows only those of a track that nest."""
    found, open_ = list(slices), dict[Track, list[list[int]]]()
    for number, each in sorted(enumerate(slices), key=lambda item: (item[1].start, -item[1].end)):
        lanes = open_.setdefault(each.track, [])
        for ends in lanes:
            while ends and ends[-1] <= each.start:
                ends.pop()
        lane = next((at for at, ends in enumerate(lanes) if not ends or each.end <= ends[-1]), len(lanes))
        if lane == len(lanes):
            lanes.append([])
        lanes[lane].append(each.end)
        if lane:
            pool, rank = each.track
            named = f"rank {rank}" if isinstance(rank, int) else rank
            found[number] = each._replace(track=(pool, f"{named}, beside {lane}"))
    return found


def _rates(found: _Slice) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Return the curve of tokens generated a second."""
    tokens = found.args.get("tokens", 0)
    if isinstance(tokens, int) and tokens and found.end > found.start:
        rate = tokens / (found.end - found.start) * 1e9
        counter = {"ph": "C", "track": found.track, "name": f"tokens/s {found.track[1]}"}
        yield found.start, 0, {**counter, "args": {"tokens/s": round(rate, 1)}}
        yield found.end, 0, {**counter, "args": {"tokens/s": 0}}


def check_writable(path: Path) -> None:
    """Raise UsageMistake if no trace can be written: that must not be found out after the run."""
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
    said = error.strerror or str(error)
    return Diagnostic(
        "E0818",
        f"the trace `{path}` cannot be written: {said[:1].lower()}{said[1:]}",
        NO_SPAN,
        "give another file with `--trace`",
    )
