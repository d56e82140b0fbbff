"""Texts that nobody wrote, for whatever reads texts: is each a result or a diagnostic, in time?

    python -m tests.fuzz
    python -m tests.fuzz --minutes 10 --seed 7 --kind plans --kind programs
    python -m tests.fuzz --kind plans --case 123456

Cases are numbered from `--seed` on, and a number is always the same text. They run in a process of their own with a
limit on its memory; one that ends it, or that computes without end where no signal is heard, is a failure, too, and
another process goes on behind it. What fails is made small and written to `--out`, beside how it failed.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.fuzz.cases import SECONDS, Failure, made, minimized, outcome
from tests.fuzz.targets import TARGETS, Target

MEMORY = 4 << 30
"""Bytes of addresses that a process may have."""


def main() -> int:
    options = _options()
    kinds = [target for target in TARGETS if not options.kind or target.name in options.kind]
    if options.case is not None:
        return _one(kinds[0], options.case)
    if options.work:
        return _work(kinds, options)
    return _supervise(options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Texts that nobody wrote.")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--cases", type=int, default=sys.maxsize, help="of each kind, at most")
    parser.add_argument("--seed", type=int, default=None, help="the first number; drawn if it is not said")
    parser.add_argument("--kind", action="append", choices=[target.name for target in TARGETS])
    parser.add_argument("--out", type=Path, default=Path("build/fuzz"))
    parser.add_argument("--case", type=int, help="one case, shown and read")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _one(target: Target, number: int) -> int:
    text = made(target, number)
    sys.stdout.buffer.write(text + b"\n")
    with tempfile.TemporaryDirectory() as folder:
        found = outcome(target, text, Path(folder))
    said = found.told if isinstance(found, Failure) else "accepted" if found else "refused"
    print("-" * 20, said, sep="\n", file=sys.stderr)
    return isinstance(found, Failure)


def _supervise(options: argparse.Namespace) -> int:
    """Processes that work, one after the other, until the time is over."""
    options.out.mkdir(parents=True, exist_ok=True)
    seed = int.from_bytes(os.urandom(4)) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    end, tried, good, ways = time.monotonic() + 60 * options.minutes, Counter[str](), Counter[str](), set[str]()
    number, last = seed, seed + options.cases
    while number < last and time.monotonic() < end:
        left = (end - time.monotonic()) / 60
        command = [sys.executable, "-m", "tests.fuzz", "--work", f"--seed={number}", f"--minutes={left}"]
        command += [f"--cases={last - number}", f"--out={options.out}"]
        command += [f"--kind={kind}" for kind in options.kind or ()]
        begun = ("", number)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                event, kind, at, what = json.loads(line)
                if event == "begin":
                    begun = kind, at
                    tried[kind] += 1
                elif event == "good":
                    good[kind] += 1
                elif event == "failed" and what not in ways:
                    ways.add(what)
                    print(f"{kind} {at}: {what}", flush=True)
        number = begun[1] + 1
        if process.returncode and not begun[0]:
            return process.returncode
        if process.returncode:
            target = next(target for target in TARGETS if target.name == begun[0])
            text = made(target, begun[1])
            (options.out / f"{begun[0]}-{begun[1]}{target.ending}").write_bytes(text)
            ways.add(f"ended {begun}")
            print(f"{begun[0]} {begun[1]}: the process ended ({process.returncode})", flush=True)
    for kind, count in tried.items():
        print(f"{kind:14} {count:8,} texts, {good[kind]:7,} of them right")
    print(f"{sum(tried.values()):,} texts, {len(ways)} ways to fail, from seed {seed}")
    return bool(ways)


def _work(kinds: list[Target], options: argparse.Namespace) -> int:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    end, seen = time.monotonic() + 60 * options.minutes, set[str]()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for target in kinds:
            target.good()
        for number in range(options.seed, options.seed + options.cases):
            for target in kinds:
                _tell("begin", target.name, number)
                text = made(target, number)
                # For what no signal ends: the process goes, and where it was is on the screen.
                faulthandler.dump_traceback_later(12 * SECONDS, exit=True)
                found = outcome(target, text, folder)
                if found is True:
                    _tell("good", target.name, number)
                if isinstance(found, Failure) and found.where not in seen:
                    seen.add(found.where)
                    faulthandler.dump_traceback_later(30 * SECONDS, exit=True)
                    small = minimized(target, text, found, folder)
                    name = f"{target.name}-{number}"
                    (options.out / f"{name}{target.ending}").write_bytes(small)
                    (options.out / f"{name}.error.txt").write_text(found.told, "utf-8", "backslashreplace")
                    _tell("failed", target.name, number, found.where)
                faulthandler.cancel_dump_traceback_later()
            if time.monotonic() > end:
                break
    return 0


def _tell(event: str, kind: str, number: int, what: str = "") -> None:
    print(json.dumps([event, kind, number, what]), flush=True)


if __name__ == "__main__":
    sys.exit(main())
