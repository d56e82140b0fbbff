"""This module accounts for the time of a simulated step: of each pool, and along the longest chain of works."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rlgraph.backends.sim.works import Work
from rlgraph.ir.plan import HOST
from rlgraph.ops import NODES


@dataclass(frozen=True, slots=True)
class PoolWait:
    """What a pool waited for while it was idle."""

    kind: Literal["rows", "weights", "turn", "order", "credit", "start", "copies"]
    """rows: what a work makes; weights: an update of a model; turn: another pool, which takes part in its next work;
    order: the end of the step before, since models are changed in the order of the steps; credit: the end of a step,
    since only so many may be in flight; start: the first step; copies: other replicas of the same model, whose rows
    are longer."""
    work: str = ""
    """The work that had to end."""
    pool: str = ""
    """The pool where that was done."""
    steps: int = 0
    """How many steps before its own the work was done for."""

    def __str__(self) -> str:
        if self.kind == "rows":
            return f"{self.work} from {self.pool}" + (f" of step t-{self.steps}" if self.steps else "")
        return {
            "weights": f"weights of step t-{self.steps}",
            "turn": f"its turn on {self.pool}",
            "order": f"the end of step t-{self.steps}",
            "credit": f"credit (end of step t-{self.steps})",
            "start": "the first step",
            "copies": f"the slowest copy of {self.work}",
        }[self.kind]


@dataclass(frozen=True, slots=True)
class PoolTime:
    """The time that a pool was busy and idle."""

    pool: str
    busy: float
    """Seconds, as all times."""
    idle: float
    waited: tuple[tuple[PoolWait, float], ...]
    """What it waited for while it was idle, the longest wait first."""


def worker_pool_time(
    pool: str, workers: Mapping[str, Collection[int]], works: Sequence[Work], began: float, ended: float
) -> PoolTime:
    """Return the time of a pool whose cpus, or devices, take work each by itself: of one of them, on average. workers:
    for each name under which work is done, which of them do it."""
    works_by_place: dict[int, list[Work]] = {place: [] for places in workers.values() for place in places}
    for work in works:
        for name in workers.keys() & set(work.groups):
            for place in workers[name]:
                works_by_place[place].append(work)
    waited: dict[PoolWait, float] = {}
    busy, all_works = 0.0, _AllWorks.from_works(works, ended)
    # Many places have done the same works, as all that answer an agent side by side.
    for place_works, count in Counter(map(tuple, works_by_place.values())).items():
        part, share = _time(pool, place_works, all_works, began, ended), count / len(works_by_place)
        busy += part.busy * share
        for wait, seconds in part.waited:
            waited[wait] = waited.get(wait, 0.0) + seconds * share
    return PoolTime(
        pool, busy, max(0.0, ended - began - busy), tuple(sorted(waited.items(), key=lambda item: -item[1]))
    )


def pool_time(pool: str, works: Sequence[Work], began: float, ended: float) -> PoolTime:
    """Return the time of one pool, between two moments. Before each of its works it waits for what that work waits for.
    Works from before and after tell what the first and the last wait was for."""
    return _time(pool, [work for work in works if pool in work.pools], _AllWorks.from_works(works, ended), began, ended)


@dataclass(frozen=True, slots=True)
class _AllWorks:
    """What has to be known of all works, whoever did them."""

    ends: dict[int, float]
    """The end of each step."""
    last: Work | None
    """The last work that was over at the end."""

    @classmethod
    def from_works(cls, works: Sequence[Work], ended: float) -> _AllWorks:
        """Return this for works, and a moment at which they end."""
        over = (work for work in works if work.end <= ended)
        return cls(step_end_times(works), max(over, key=lambda work: work.end, default=None))


def _time(pool: str, works: Sequence[Work], all_works: _AllWorks, began: float, ended: float) -> PoolTime:
    """Return the time of one pool, or of one of its workers, that did these works."""
    moment, busy = began, 0.0
    waited: dict[PoolWait, float] = {}
    works = sorted(works, key=lambda work: work.end)
    for number, work in enumerate(works):
        if work.end > began and moment < ended:
            if work.start > moment:
                for wait, seconds in _waits(
                    _wanted(works[number:]), pool, moment, min(work.start, ended), all_works.ends
                ):
                    waited[wait] = waited.get(wait, 0.0) + seconds
            # Rows of several works may be sampled together: it counts from the end of the one before.
            since = max(began, moment)
            idle = work.replica_idle_seconds_within(since, ended)
            if idle:
                wait = PoolWait("copies", work.name, pool)
                waited[wait] = waited.get(wait, 0.0) + idle
            busy, moment = busy + work.seconds_within(since, ended) - idle, work.end
    if moment < ended:
        assert all_works.last is not None
        wait = PoolWait("rows", all_works.last.name, all_works.last.pools[0])
        waited[wait] = waited.get(wait, 0.0) + ended - moment
    longest_first = sorted(waited.items(), key=lambda item: -item[1])
    return PoolTime(pool, busy, max(0.0, ended - began - busy), tuple(longest_first))


def _wanted(coming: Sequence[Work]) -> Work:
    """Return the next work of a pool; if it sends weights that had been there before, the next thing that the pool
    itself has to do."""
    first = coming[0]
    if first.op == "sync" and not _updates(first.last_input):
        return next((work for work in coming if work.op != "sync" and work.fired <= first.start), first)
    return first


def _updates(work: Work | None) -> bool:
    """Whether a work updates a model."""
    return work is not None and work.op in NODES and NODES[work.op].updates


def _waits(
    work: Work, pool: str, since: float, until: float, ends: dict[int, float]
) -> Iterator[tuple[PoolWait, float]]:
    """Yield what kept a work of a pool that was idle: first its last input, then another pool that it needs."""
    ready = min(max(work.fired, since), until)
    if ready > since:
        yield _input(work, since, ends), ready - since
    if until > ready:
        assert work.waited_for is not None
        busy = next(
            (other_pool for other_pool in work.pools if other_pool != pool and other_pool in work.waited_for.pools),
            work.waited_for.pools[0],
        )
        yield PoolWait("turn", work.waited_for.name, busy), until - ready


def _input(work: Work, since: float, ends: dict[int, float]) -> PoolWait:
    """Return the source of the last input of a work. Mathematics in between counts as nobody's wait, unless nothing
    else went on meanwhile."""
    cause = work.last_input
    while cause is not None and set(cause.pools) == {HOST} and cause.step == work.step and cause.start > since:
        if cause.last_input is None or cause.last_input.end <= since:
            return PoolWait("rows", cause.name, HOST)
        work, cause = cause, cause.last_input
    if cause is None:
        return PoolWait("start")
    steps_back, pool = work.step - cause.step, cause.pools[0]
    if work.op == "sync" and _updates(cause):
        return PoolWait("weights", cause.name, pool, steps_back)
    if steps_back and cause.end == ends[cause.step]:
        return PoolWait("order" if _updates(work) else "credit", cause.name, pool, steps_back)
    if work.op == "sync":
        return PoolWait("turn", cause.name, pool, steps_back)
    return PoolWait("rows", cause.name, pool, steps_back)


def step_end_times(works: Iterable[Work]) -> dict[int, float]:
    """Return when the last work of each step ended."""
    ends: dict[int, float] = {}
    for work in works:
        ends[work.step] = max(work.end, ends.get(work.step, 0.0))
    return ends


def mean_steps_in_flight(works: Iterable[Work], began: float, ended: float) -> float:
    """Return how many steps were in flight, on average: from the beginning of their first work on a pool to the end of
    their last. Data that are read early do not count."""
    spans: dict[int, tuple[float, float]] = {}
    for work in works:
        if set(work.pools) == {HOST}:
            continue
        first, last = spans.get(work.step, (work.start, work.end))
        spans[work.step] = min(first, work.start), max(last, work.end)
    return sum(max(0.0, min(last, ended) - max(first, began)) for first, last in spans.values()) / (ended - began)


def mean_untrained_rows(works: Iterable[Work], began: float, ended: float) -> float:
    """Return the rows that are being sampled, or were and wait until their step begins to train on them, on average
    over this time. They begin when it is decided which weights sample, and these may have to be brought first."""
    # Not all works are nodes: there are transfers of weights.
    node_works = [(work, NODES[work.op]) for work in works if work.op in NODES]
    training_starts: dict[int, float] = {}
    for work, op in node_works:
        if op.trains:
            training_starts[work.step] = min(work.start, training_starts.get(work.step, work.start))
    waited = 0.0
    for work, op in node_works:
        if op.generates:
            first_work = work.last_input if work.last_input is not None and work.last_input.op == "sync" else work
            waited += work.rows * max(
                0.0, min(training_starts.get(work.step, ended), ended) - max(min(first_work.fired, work.start), began)
            )
    return waited / (ended - began)


def critical_path(works: Sequence[Work], began: float) -> tuple[Work, ...]:
    """Return the chain of works that ends last: each began when the one before it had ended. Nothing else would make
    the step shorter. Where steps overlap, the first work may have begun before the step."""
    chain: list[Work] = []
    work = max(works, key=lambda work: work.end, default=None)
    while work is not None and (work.start >= began or work.end > began):
        chain.append(work)
        work = work.waited_for
    return tuple(reversed(chain))
