"""What became of a simulated step's time: for each pool, and along the longest chain of works."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rlgraph.backends.sim.works import Work


@dataclass(frozen=True, slots=True)
class PoolTime:
    pool: str
    busy: float
    """Seconds, as all times."""
    idle: float
    waited: tuple[tuple[str, float], ...]
    """What it waited for while it was idle: works by name, the longest wait first."""


def pool_time(pool: str, works: Iterable[Work], began: float, ended: float) -> PoolTime:
    """Of one pool from one moment to another. Before each of its works it waits for what that work waits for."""
    at, busy = began, 0.0
    waited: dict[str, float] = {}
    ordered = sorted(works, key=lambda work: work.end)
    for work in (work for work in ordered if pool in work.pools):
        if work.start > at:
            name = work.after.name if work.after else "the first step"
            waited[name] = waited.get(name, 0.0) + work.start - at
        busy, at = busy + work.within(began, ended), work.end
    if at < ended:
        last = ordered[-1].name
        waited[last] = waited.get(last, 0.0) + ended - at
    found = sorted(waited.items(), key=lambda item: -item[1])
    return PoolTime(pool, busy, ended - began - busy, tuple(found))


def critical_path(works: Sequence[Work], began: float) -> tuple[Work, ...]:
    """The chain that ends last: each work began when the one before it had ended. Nothing else would make the step
    shorter. Where steps overlap, the first one may have begun before the step."""
    chain: list[Work] = []
    work = max(works, key=lambda work: work.end, default=None)
    while work is not None and (work.start >= began or work.end > began):
        chain.append(work)
        work = work.after
    return tuple(reversed(chain))
