"""Weights that are brought nowhere: who has which is counted as in a run, and the time of each transfer passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlgraph.backends.clocks import Queues
from rlgraph.backends.ray.failures import What
from rlgraph.backends.ray.remote import Address
from rlgraph.backends.ray.weights import Weights
from rlgraph.backends.sim.log import Log
from rlgraph.backends.step import Step
from rlgraph.ir.graph import Node, Program
from rlgraph.ir.plan import Group, Plan


class Counted(Weights):
    """The weights of a simulation."""

    def __init__(self, program: Program, plan: Plan, queues: Queues, log: Log) -> None:
        # There are no processes, and nobody is asked.
        super().__init__(program, plan, None, queues, log.observer)  # type: ignore[arg-type]
        self.log = log
        # A thread that waits here has to give on the baton.
        self._bringing = {pair: log.clock.lock() for pair in self._bringing}  # type: ignore[misc]

    def ask(self, what: What, call: Callable[[Address], tuple[Any, ...]]) -> list[Any]:
        return []

    def _move(
        self,
        source: str,
        from_: Group,
        target: str,
        to: Group,
        node: Node,
        version: int | None,
        ema: float | None = None,
        update: Step | None = None,
    ) -> None:
        fired = self.log.clock.now
        with self.queues.turn(from_.pool, to.pool):
            cost = self.log.predictor.sync(source, from_.name, to.name)
            work = self.log.take(f"sync {source}", "sync", (from_, to), fired, {"sync": cost.seconds})
        with self._lock:
            self._seconds += work.seconds
        self.log.observer.synced(source, from_.name, to.name, work.seconds, 0, 0)
