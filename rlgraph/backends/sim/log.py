"""Time that passes in a simulation, and what it passed with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rlgraph.backends.clocks import Virtual
from rlgraph.backends.sim.works import Teller, Work
from rlgraph.backends.steps import Observer
from rlgraph.ir.plan import Group
from rlgraph.passes.cost.fusing import Fusion
from rlgraph.passes.cost.sampled import Sampled
from rlgraph.passes.cost.time import Batch, Cost


class Prediction(Protocol):
    """What each piece of work takes; `rlgraph.passes.cost.predict.Predictor` is one."""

    def work(self, model: str, operation: str, batches: Sequence[Batch], copies: int | None = None) -> Cost:
        """Of the whole group that does this work, or of so many of its data-parallel copies: they share the rows."""
        ...

    def fused(self, works: Sequence[tuple[str, Sequence[Batch]]]) -> Fusion:
        """Trainings that share a pipeline: their models, each with its rows. Of one alone, that it has by itself."""
        ...

    def sampled(
        self, model: str, operation: str, prompts: Sequence[float], answers: Sequence[float], samples: int, copy: int
    ) -> Sampled:
        """Of one copy that samples, on its rows alone: tokens of each row, so many samples for each prompt."""
        ...

    def host(self, op: str, count: float) -> Cost:
        """Of so many rows, by the process that has no model."""
        ...

    def sync(self, model: str, source: str, target: str, copies: int | None = None) -> Cost:
        """Of a model's weights from one group to another, or to so many of its copies."""
        ...

    def rows(self, source: str, target: str, tokens: float, copies: int | None = None) -> Cost:
        """Of rows from one group to another, or to so many of its copies."""
        ...

    def onload(self, model: str, group: str, operation: str, batches: Sequence[Batch]) -> Cost:
        """Of a model that is off-loaded while its group does not work with it: until it is there, and away again."""
        ...

    def order(self, group: str, copies: int | None = None) -> Cost:
        """Until a group, or so many of its copies, has its order, and has answered."""
        ...


@dataclass(frozen=True, slots=True)
class Fired:
    """A work that has all its inputs, and waits for its turn."""

    at: float
    input: Work | None
    """What made the last of them."""


class Log:
    """Lets time pass, and keeps what was done in it."""

    def __init__(self, clock: Virtual, predictor: Prediction, observer: Observer) -> None:
        self.clock, self.predictor, self.observer = clock, predictor, observer
        self.works: list[Work] = []
        self._teller = Teller(observer)

    def fired(self) -> Fired:
        """Work whose inputs are there now."""
        return Fired(self.clock.now, self._cause())

    def _cause(self) -> Work | None:
        cause = self.clock.cause
        assert cause is None or isinstance(cause, Work)
        return cause

    def take(
        self,
        name: str,
        op: str,
        groups: Sequence[Group],
        step: int,
        fired: Fired,
        parts: Mapping[str, float],
        counts: tuple[int, int] = (0, 0),
        later: dict[str, float] | None = None,
        idle: Callable[[], float] = lambda: 0.0,
        stages: Callable[[], Fusion] | None = None,
    ) -> Work:
        """Work of groups whose pools the caller has: it begins now, and is over when this returns. `counts`: rows and
        tokens. `later`: what others add to its parts meanwhile. `idle`: says at the end for how many seconds a copy had
        nothing to do. `stages`: of a pipeline, what they do."""
        clock = self.clock
        start, after = clock.now, self._cause()
        clock.sleep(sum(parts.values()))
        while later:
            more = dict(later)
            later.clear()
            clock.sleep(sum(more.values()))
            parts = {name: parts.get(name, 0.0) + more.get(name, 0.0) for name in {**parts, **more}}
        names, pools = tuple(group.name for group in groups), tuple(group.pool for group in groups)
        when, rest = (fired.at, start, clock.now, fired.input, after), (idle(), dict(parts))
        work = Work(name, op, names, pools, step, *when, *counts, *rest, stages=stages)
        clock.note(work)
        self.works.append(work)
        self._teller.tell(work)
        return work
