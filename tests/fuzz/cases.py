"""One case of a kind: made from a number, read within limits, and made small where it fails."""

from __future__ import annotations

import random
import signal
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rlgraph.errors import RlgraphError, escape_controls
from tests.fuzz.mutators import smaller, splice, tokens
from tests.fuzz.targets import Target

SECONDS = 10
"""Of a core that a case may take; it may wait six times as long."""
LONGEST = 30_000
"""Characters of what is told of one text."""


class TooSlow(BaseException):
    """No `Exception`: what is under test must not take it for a mistake in the text."""


@dataclass(frozen=True)
class Failure:
    """What happened in place of a result or a diagnostic."""

    where: str
    """The kind of exception, and the line of rlgraph that it came from: the same for the same bug."""
    told: str
    """The traceback."""


def made(target: Target, number: int) -> bytes:
    """Case `number`: of the even ones a good text with accidents in it, of the odd ones two that were spliced;
    or what the kind itself makes of it."""
    rng = random.Random(f"{target.name}/{number}")
    if target.make:
        return target.make(rng)
    good = target.good()
    text = rng.choice(good)
    if number % 2 == 0:
        return tokens(text, rng)
    other = splice(text, rng.choice(good), rng)
    return tokens(other, rng) if rng.random() < 0.3 else other


def outcome(target: Target, text: bytes, folder: Path, seconds: float = SECONDS) -> Failure | bool:
    """Whether a text is accepted, or what happened in place of that."""
    try:
        with limited(seconds):
            return _accepted(target, text, folder)
    except TooSlow as error:
        return Failure("TooSlow", traceback.format_exc(limit=-12) + str(error))
    except Exception as error:
        return Failure(_where(error), traceback.format_exc())


def _accepted(target: Target, text: bytes, folder: Path) -> bool:
    try:
        target.read(text, folder)
    except RlgraphError as error:
        assert error.diagnostics, "an error that says nothing"
        for found in error.diagnostics:
            told = found.render()
            assert found.message and found.code, "a diagnostic that says nothing"
            assert told == escape_controls(told), "a diagnostic that a terminal obeys"
            assert len(told) < LONGEST, "a diagnostic without an end"
        return False
    return True


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raises TooSlow when it has taken so long, each second anew, since what is raised while garbage is collected is
    lost. What computes in C without end is the caller's to see."""
    over = False

    def alarm(*_: object) -> None:
        if not over:
            raise TooSlow(f"more than {seconds:g} s")

    timers = ((signal.SIGPROF, signal.ITIMER_PROF, seconds), (signal.SIGALRM, signal.ITIMER_REAL, 6 * seconds))
    before = [signal.signal(heard, alarm) for heard, _, _ in timers]
    for _, timer, limit in timers:
        signal.setitimer(timer, limit, 1.0)
    try:
        yield
    finally:
        over = True
        for (heard, timer, _), handler in zip(timers, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(heard, handler)


def _where(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/rlgraph/" in frame.filename] or frames
    place = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}"
    return f"{type(error).__name__} at {place} ({frames[-1].name})"


def minimized(target: Target, text: bytes, failed: Failure, folder: Path, seconds: float = 20) -> bytes:
    """A shorter text that fails in the same way: pieces are left out as long as it still does, for so many seconds."""
    end = time.monotonic() + seconds
    limit = 2.0 if failed.where == "TooSlow" else SECONDS

    def fails(pieces: Sequence[bytes]) -> bool:
        found = outcome(target, b"".join(pieces), folder, limit)
        return isinstance(found, Failure) and found.where == failed.where

    for _ in range(3):
        pieces, size = list(smaller(text)), 0
        size = len(pieces) // 2
        while size and time.monotonic() < end:
            at = 0
            while at < len(pieces) and time.monotonic() < end:
                fewer = pieces[:at] + pieces[at + size :]
                if fewer and fails(fewer):
                    pieces = fewer
                else:
                    at += size
            size //= 2
        if b"".join(pieces) == text:
            break
        text = b"".join(pieces)
    return text
