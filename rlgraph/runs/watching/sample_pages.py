"""Pages of a run's samples, out of a file that may have a million of them: steps are looked up by bisection, since
lines are in their order, and texts are searched from the newest backwards, so much of the file at a time."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from rlgraph.backends.samples import Sample, ranking
from rlgraph.runs.jsonlines import encode_nonfinite
from rlgraph.runs.samples import SAMPLES, from_json
from rlgraph.runs.shown_samples import format_row_id, prompt_text

PAGE = 30
"""Samples of a page."""
CHARACTERS = 20_000
"""The most characters of a text that are sent."""
SEARCHED_BYTES = 64_000_000
"""How much of the file one request searches."""
_CHUNK = 4_000_000
_BLOCK = 1 << 14
_STEP = re.compile(rb'\{"step": (\d+), ')


@dataclass(frozen=True)
class Page:
    """Some samples, and where the next ones are."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    step: int = 0
    """Their step; of a search, the one that it has come to."""
    steps: tuple[int, int] = (0, 0)
    """The first and the last step that have samples."""
    next: int | None = None
    """What to ask for the next page with; None after the last one."""
    total: int | None = None
    """Samples of the step; None for a search."""

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("rows", "step", "steps", "next", "total")}


def step_page(run: Path, step: int | None = None, order: str = "", begin: int = 0) -> Page:
    """Return a page of a step's samples, or of the last step's. order: "best", "worst", or as they are kept."""
    with _opened(run) as lines:
        if lines is None:
            return Page()
        wanted = lines.last_step if step is None else min(max(step, lines.first_step), lines.last_step)
        start = lines.bisect(wanted)
        # A step that has none, as one of another phase: the next one that has some.
        wanted = lines.step_at(start)
        samples = [sample for line in lines.between(start, lines.bisect(wanted + 1)) if (sample := _sample(line))]
    chosen = _ordered(samples, order)
    end = begin + PAGE
    rows = [sample_for_page(wanted, sample) for sample in chosen[begin:end]]
    return Page(rows, wanted, (lines.first_step, lines.last_step), end if end < len(chosen) else None, len(chosen))


def search(run: Path, text: str, before: int | None = None) -> Page:
    """Return samples whose prompt or answer has a text, whatever its case, the newest first. before: the `next` of the
    page before. A page may have none and a next one: so much was searched."""
    with _opened(run) as lines:
        if lines is None:
            return Page()
        end = lines.end if before is None else min(max(before, 0), lines.end)
        rows: list[dict[str, Any]] = []
        stop = max(0, end - SEARCHED_BYTES)
        needle = json.dumps(text)[1:-1].encode().lower()
        while end > stop and len(rows) < PAGE:
            start = lines.line_start(max(0, end - _CHUNK))
            for at, line in lines.matches(needle, start, end):
                sample = _sample(line)
                if sample and text.lower() in f"{prompt_text(sample.prompt)}\0{sample.answer}".lower():
                    rows.append(sample_for_page(lines.step_at(at), sample))
                    if len(rows) == PAGE:
                        start = at
                        break
            end = start
        here = lines.step_at(end) if end < lines.end else lines.last_step
        return Page(rows, here, (lines.first_step, lines.last_step), end or None)


def count_samples(run: Path) -> int:
    """Return how many samples a run has kept."""
    try:
        with (run / SAMPLES).open("rb") as file:
            return sum(part.count(b"\n") for part in iter(lambda: file.read(_CHUNK), b""))
    except OSError:
        return 0


def sample_for_page(step: int, sample: Sample) -> dict[str, Any]:
    """Return a sample as the page has it: long texts are cut."""
    return {
        "step": step,
        "table": sample.table,
        "row": format_row_id(sample.row),
        "prompt": _cut(prompt_text(sample.prompt)),
        "answer": _cut(sample.answer),
        **encode_nonfinite({"reward": sample.reward}),
        "scores": encode_nonfinite(sample.scores),
        "length": sample.length,
        "version": sample.version,
    }


def _cut(text: str) -> str:
    more = len(text) - CHARACTERS
    return text if more <= 0 else f"{text[:CHARACTERS]}\n... ({more:,} more characters)"


def _ordered(samples: Sequence[Sample], order: str) -> list[Sample]:
    if order not in ("best", "worst"):
        return list(samples)
    ranked = [samples[place] for place in ranking([sample.reward for sample in samples])]
    return ranked if order == "best" else ranked[::-1]


def _sample(line: bytes) -> Sample | None:
    try:
        return from_json(json.loads(line))
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
        return None


class _Lines:
    """The whole lines of a file of samples, by where they start. It is read by pieces, and not mapped: a run that goes
    on may cut it meanwhile."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file.fileno()
        self.end = os.fstat(self._file).st_size
        """Where the last whole line ends."""
        self.end = self.line_start(self.end)
        self.first_step = self.step_at(0)
        self.last_step = self.step_at(self.line_start(self.end - 1)) if self.end else 0

    def line_start(self, place: int) -> int:
        """Return where the line starts that has a byte."""
        while place > 0:
            begin = max(0, place - _BLOCK)
            at = os.pread(self._file, place - begin, begin).rfind(b"\n")
            if at >= 0:
                return begin + at + 1
            place = begin
        return 0

    def line_end(self, place: int) -> int:
        """Return where the line ends that has a byte, after its newline."""
        while place < self.end:
            part = os.pread(self._file, _BLOCK, place)
            at = part.find(b"\n")
            if at >= 0:
                return place + at + 1
            if not part:
                break
            place += len(part)
        return self.end

    def step_at(self, start: int) -> int:
        """Return the step of the line that starts there; of a damaged one that of the next one that has some."""
        while start < self.end:
            if head := _STEP.match(os.pread(self._file, 40, start)):
                return int(head[1])
            start = self.line_end(start)
        return 0

    def bisect(self, step: int) -> int:
        """Return where the first line of a step starts, or of one after it."""
        low, high = 0, self.end
        while low < high:
            place = (low + high) // 2
            middle = self.line_start(place)
            if (self.step_at(middle) or step) < step:
                low = self.line_end(place)
            else:
                high = middle
        return low

    def between(self, start: int, end: int) -> list[bytes]:
        """Return the lines from one place to another."""
        return os.pread(self._file, end - start, start).splitlines()

    def matches(self, needle: bytes, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Yield the lines of a part that have a text in lower case, each with where it starts, the last one first."""
        part = os.pread(self._file, end - start, start)
        lowered, stop = part.lower(), len(part)
        while (at := lowered.rfind(needle, 0, stop)) >= 0:
            begin = part.rfind(b"\n", 0, at) + 1
            finish = part.find(b"\n", at) + 1 or len(part)
            yield start + begin, part[begin:finish]
            stop = begin


@contextmanager
def _opened(run: Path) -> Iterator[_Lines | None]:
    """Yield the lines of a run's samples; None where there are none."""
    try:
        file = (run / SAMPLES).open("rb")
    except OSError:
        yield None
        return
    with file:
        lines = _Lines(file)
        yield lines if lines.last_step else None
