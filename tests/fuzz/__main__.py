"""Texts that nobody wrote, for whatever reads texts: is each a result or a diagnostic, in time?

    python -m tests.fuzz
    python -m tests.fuzz --minutes 10 --seed 7 --kind plans --kind programs
    python -m tests.fuzz --share plans=100 --share rows=0
    python -m tests.fuzz --kind plans --case 123456

Cases are numbered from `--seed` on, and a number is always the same text. A round has of each kind as many as its share
is: a hundred programs, ten schedules. Each some rounds are read in a process of its own, forked from one that has all
loaded, with a limit on its memory. One that ends it, or that computes without end where no signal is heard, is a
failure, too, and another process goes on behind it. What fails is made small and written to `--out`, beside how it
failed; `counts.json` there says how many were read so far, by this run and those before.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import itertools
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from mmap import mmap
from pathlib import Path

from tests.fuzz import counts
from tests.fuzz.cases import SECONDS, Failure, made, minimized, outcome
from tests.fuzz.targets import TARGETS, Target

MEMORY = 4 << 30
"""Bytes of addresses that a process may have."""
ROUNDS = 10
"""Of one process."""
STUCK = 12 * SECONDS
"""After these a text is given up in which no signal is heard."""


def main() -> int:
    options = _options()
    shares = {name: int(share) for name, _, share in (each.partition("=") for each in options.share)}
    kinds = [target for target in TARGETS if not options.kind or target.name in options.kind]
    kinds = [replace(target, share=shares.get(target.name, target.share)) for target in kinds]
    if options.case is not None:
        return _one(kinds[0], options.case)
    return _supervise([target for target in kinds if target.share], options)


def _options() -> argparse.Namespace:
    names = [target.name for target in TARGETS]
    shares = ", ".join(f"{target.name}={target.share}" for target in TARGETS)
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Texts that nobody wrote.")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=sys.maxsize, help="at most")
    parser.add_argument("--seed", type=int, default=None, help="the first number; drawn if it is not said")
    parser.add_argument("--kind", action="append", choices=names)
    parser.add_argument("--share", action="append", default=[], help=f"of a kind in a round ({shares})")
    parser.add_argument("--out", type=Path, default=Path("build/fuzz"))
    parser.add_argument("--case", type=int, help="one case, shown and read")
    return parser.parse_args()


def _one(target: Target, number: int) -> int:
    text = made(target, number)
    sys.stdout.buffer.write(text + b"\n")
    with tempfile.TemporaryDirectory() as folder:
        found = outcome(target, text, Path(folder))
    said = found.told if isinstance(found, Failure) else "accepted" if found else "refused"
    print("-" * 20, said, sep="\n", file=sys.stderr)
    return isinstance(found, Failure)


class Board:
    """What a process that reads and the one that watches it both see: how far it is."""

    def __init__(self, kinds: int) -> None:
        self._numbers = memoryview(mmap(-1, 8 * (3 + 2 * kinds))).cast("q")

    def begin(self, kind: int, number: int, seconds: float) -> None:
        """A text is being read, and will be for so long at most."""
        self._numbers[0], self._numbers[1] = kind, number
        self._numbers[2] = int(1000 * (time.monotonic() + seconds))

    def read(self, kind: int, right: bool) -> None:
        self._numbers[3 + 2 * kind] += 1
        self._numbers[4 + 2 * kind] += right

    def clear(self) -> None:
        for at in range(len(self._numbers)):
            self._numbers[at] = 0

    @property
    def now(self) -> tuple[int, int]:
        """The kind and the number of the text that is being read."""
        return self._numbers[0], self._numbers[1]

    @property
    def begun(self) -> bool:
        return self._numbers[2] > 0

    @property
    def late(self) -> bool:
        return 0 < self._numbers[2] < 1000 * time.monotonic()

    def count(self, kind: int) -> tuple[int, int]:
        """How many texts of a kind were read, and how many of them were right."""
        return self._numbers[3 + 2 * kind], self._numbers[4 + 2 * kind]


def _supervise(kinds: Sequence[Target], options: argparse.Namespace) -> int:
    """Processes that work, one after the other, until the time is over."""
    options.out.mkdir(parents=True, exist_ok=True)
    seed = int.from_bytes(os.urandom(4)) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    for target in kinds:
        target.good()
    # What is there now no process has to look through for garbage.
    gc.collect()
    gc.freeze()
    end, ways, board = time.monotonic() + 60 * options.minutes, set[str](), Board(len(kinds))
    tried, good = [0] * len(kinds), [0] * len(kinds)
    path, known = options.out / "counts.json", counts.Counts()
    rounds = 0
    while rounds < options.rounds and time.monotonic() < end:
        last = min(rounds + ROUNDS, options.rounds)
        # Where one has ended its process, the others of the round are still to be read.
        ranges = [range(seed + done, seed + last * target.share) for target, done in zip(kinds, tried, strict=True)]
        _forked(kinds, ranges, board, options.out, ways, end)
        for at, (target, numbers) in enumerate(zip(kinds, ranges, strict=True)):
            done, right = board.count(at)
            read = counts.Read(numbers.start, numbers.start + done, right)
            known = counts.add(path, {target.name: read})
            tried[at], good[at] = tried[at] + done, good[at] + right
        if all(done >= last * target.share for target, done in zip(kinds, tried, strict=True)):
            rounds = last
    for target, done, right in zip(kinds, tried, good, strict=True):
        so_far = counts.texts(known.get(target.name, []))
        print(f"{target.name:14} {done:9,} texts, {right:8,} of them right; {so_far:9,} in {path}")
    print(f"{sum(tried):,} texts, {len(ways)} ways to fail, from seed {seed}")
    return bool(ways)


def _forked(
    kinds: Sequence[Target], ranges: Sequence[range], board: Board, out: Path, ways: set[str], end: float
) -> None:
    """Reads the texts of these numbers, or those until the time is over, in a process of its own; adds to `ways`."""
    board.clear()
    with tempfile.TemporaryDirectory() as place:
        folder, failed = Path(place), Path(place) / "failed.txt"
        child = os.fork()
        if child == 0:
            try:
                _work(kinds, ranges, board, out, folder, frozenset(ways), end)
                sys.stdout.flush()
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
            time.sleep(0.02)
            if board.late:
                # It says where it was, and goes.
                os.kill(child, signal.SIGABRT)
                ended = os.waitpid(child, 0)
                break
        ways.update(failed.read_text().splitlines() if failed.exists() else ())
    if ended[1]:
        kind, number = board.now
        assert board.begun, "it ended before its first text"
        board.read(kind, right=False)
        name = f"{kinds[kind].name}-{number}"
        (out / f"{name}{kinds[kind].ending}").write_bytes(made(kinds[kind], number))
        ways.add(f"ended {name}")
        print(f"{name}: the process ended ({os.waitstatus_to_exitcode(ended[1])})", flush=True)


def _work(
    kinds: Sequence[Target],
    ranges: Sequence[range],
    board: Board,
    out: Path,
    folder: Path,
    known: frozenset[str],
    end: float,
) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    faulthandler.enable()
    seen = set(known)
    for kind, number in _turns(kinds, ranges):
        target = kinds[kind]
        board.begin(kind, number, STUCK)
        text = made(target, number)
        found = outcome(target, text, folder)
        if isinstance(found, Failure) and found.where not in seen:
            seen.add(found.where)
            board.begin(kind, number, 3 * STUCK)
            name = f"{target.name}-{number}"
            (out / f"{name}.error.txt").write_text(found.told, "utf-8", "backslashreplace")
            (out / f"{name}{target.ending}").write_bytes(minimized(target, text, found, folder))
            print(f"{name}: {found.where}", flush=True)
            with (folder / "failed.txt").open("a") as file:
                file.write(f"{found.where}\n")
        board.read(kind, found is True)
        if time.monotonic() > end:
            return


def _turns(kinds: Sequence[Target], ranges: Sequence[range]) -> Iterator[tuple[int, int]]:
    """The kinds take turns as often as their shares say, so that of all there is something in a short time."""
    left = [iter(numbers) for numbers in ranges]
    for turn in itertools.count():
        if turn and not any(numbers.__length_hint__() for numbers in left):
            return
        for kind, numbers in enumerate(left):
            if turn % max(1, max(target.share for target in kinds) // kinds[kind].share) == 0:
                for number in numbers:
                    yield kind, number
                    break


if __name__ == "__main__":
    sys.exit(main())
