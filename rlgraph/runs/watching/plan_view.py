"""What the page shows of a run's plan: its picture with what was measured, who waited for whom, and memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from rlgraph.runs.plan_picture import Measured, PlanPicture

RECENT = 50
"""How many of the last steps are averaged: the first ones warm up."""
SHOWN_PROCESSES = 16
"""How many processes of a pool are listed by themselves, the fullest ones."""


@dataclass(frozen=True)
class RecentMeans:
    """Means of the last steps."""

    measured: Measured = field(default_factory=Measured)
    waits: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """For each pool the seconds of a step for which it was idle, by what it waited for."""


@dataclass(frozen=True)
class StepNumbers:
    """What the event of a step says of its work."""

    seconds: float
    work_s: Mapping[str, float]
    received_bytes: Mapping[str, float]
    weights_sent: Mapping[str, tuple[float, float]]
    waits_s: Mapping[str, Mapping[str, float]]


def step_numbers(event: Mapping[str, Any]) -> StepNumbers:
    """Read the numbers of a step's event. Raise LookupError, TypeError, ValueError or AttributeError for what no run
    writes."""
    sent = {str(way): (float(seconds), float(size)) for way, (seconds, size) in event.get("weights_sent", {}).items()}
    waits = {str(pool): _floats(waited) for pool, waited in event.get("waits_s", {}).items()}
    seconds, work_s = float(event["seconds"]), _floats(event["work_s"])
    return StepNumbers(seconds, work_s, _floats(event.get("received_bytes", {})), sent, waits)


def _floats(numbers: Mapping[str, Any]) -> dict[str, float]:
    return {str(name): float(value) for name, value in numbers.items()}


def recent_means(steps: Collection[StepNumbers]) -> RecentMeans:
    """Return the means over steps."""
    if not steps:
        return RecentMeans()
    seconds = _means([{way: sent[0] for way, sent in step.weights_sent.items()} for step in steps])
    sizes = _means([{way: sent[1] for way, sent in step.weights_sent.items()} for step in steps])
    pools = dict.fromkeys(pool for step in steps for pool in step.waits_s)
    measured = Measured(
        fmean(step.seconds for step in steps),
        _means([step.work_s for step in steps]),
        _means([step.received_bytes for step in steps]),
        {way: (seconds[way], sizes[way]) for way in seconds},
    )
    return RecentMeans(measured, {pool: _means([step.waits_s.get(pool, {}) for step in steps]) for pool in pools})


def _means(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each number over the steps; 0 counts where a step has none."""
    sums: dict[str, float] = {}
    for step in steps:
        for name, value in step.items():
            sums[name] = sums.get(name, 0.0) + value
    return {name: total / len(steps) for name, total in sums.items()}


def plan_svg(
    text: str, means: RecentMeans, memory: Mapping[str, Mapping[str, int]]
) -> tuple[str, Mapping[str, Mapping[str, float]]]:
    """Return the picture of a plan with what was measured, and the predicted memory of its pools; nothing for a file
    that no run wrote."""
    measured = means.measured
    try:
        picture = PlanPicture.from_json(text)
        shown = Measured(measured.step_s, measured.work_s, measured.received_bytes, measured.weights_sent, memory)
        return picture.to_svg(shown, ""), picture.memory
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
        return "", {}


def memory_view(
    memory: Mapping[str, Mapping[str, int]], predicted: Mapping[str, Mapping[str, float]]
) -> list[dict[str, Any]]:
    """Return for each pool the peaks of its fullest processes, how many others there are, and what was predicted."""
    listed = []
    for pool, peaks in memory.items():
        ranked = sorted(peaks.items(), key=lambda item: -item[1])
        others = ranked[SHOWN_PROCESSES:]
        listed.append(
            {
                "pool": pool,
                "processes": ranked[:SHOWN_PROCESSES],
                "others": len(others),
                "least": others[-1][1] if others else None,
                "predicted": predicted.get(pool, {}).get("bytes"),
                "capacity": predicted.get(pool, {}).get("capacity"),
            }
        )
    return listed
