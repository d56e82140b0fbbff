"""What tests cost: the seconds of each folder, beside those of `times.json`, and of each test in `build/`.

Machines differ, and so does what else they do, so a folder is compared with what the others take: all times of before
are scaled by the folder in the middle, and a folder that takes half as long again as its scaled time is named.

    pytest --update-times     # keeps what was measured as that of before
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).parent.parent
BEFORE = Path(__file__).parent / "times.json"
LEAST = 5.0
"""Seconds: a folder that takes less may grow."""

_seconds: dict[str, float] = defaultdict(float)
"""Of each test, with what was set up for it."""


def folder(test: str) -> str:
    """Where a test lies: its package, or `tests`; those that start Ray are a folder of their own."""
    parts = test.split("::")[0].split("/")[1:-1]
    return "/".join(["tests", *parts])


def by_folder(seconds: dict[str, float]) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for test, taken in seconds.items():
        sums[folder(test)] += taken
    return dict(sorted(sums.items()))


def grown(now: dict[str, float], before: dict[str, float]) -> dict[str, float]:
    """The folders that take half as long again as before, and how many times as long, on a machine as fast as before."""
    ratios = {name: now[name] / before[name] for name in now if before.get(name, 0) > 0}
    # Of folders that take little the ratio says little.
    large = [ratio for name, ratio in ratios.items() if before[name] >= LEAST]
    if not large:
        return {}
    speed = median(large)
    return {name: ratio / speed for name, ratio in ratios.items() if ratio > 1.5 * speed and now[name] >= LEAST}


def note(report: pytest.TestReport) -> None:
    _seconds[report.nodeid] += report.duration


def tell(terminal: pytest.TerminalReporter, suite: str, keep: bool, whole: bool) -> None:
    """Prints the table of what was run; `suite` is what the times of before are kept under. whole: folders ran with all
    of their tests, so that what they took may be compared."""
    if not _seconds:
        return
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    path = build / f"times-{suite}.json"
    every = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(every | {test: round(taken, 3) for test, taken in _seconds.items()}, indent=0))
    now = by_folder(_seconds)
    kept = json.loads(BEFORE.read_text()) if BEFORE.is_file() else {}
    before = kept.get(suite, {})
    if keep:
        kept[suite] = dict(sorted((before | {name: round(taken, 1) for name, taken in now.items()}).items()))
        BEFORE.write_text(json.dumps(kept, indent=2) + "\n")
        before = kept[suite]
    if sum(now.values()) < LEAST:
        return
    terminal.section("seconds by folder")
    for name, taken in sorted(now.items(), key=lambda item: -item[1]):
        was = f"{before[name]:8.1f} before" if name in before else "  new"
        terminal.write_line(f"{taken:8.1f}  {name:28}{was}")
    for name, times in (grown(now, before) if whole else {}).items():
        terminal.write_line(
            f"{name} HAS GROWN: {times:.1f} times as long as before, measured by the other folders; what was added "
            "there, and can it be said by a smaller test? (`pytest --update-times` keeps the new times)",
            yellow=True,
        )
