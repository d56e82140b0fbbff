"""Describes the work of one node in a step."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rlgraph.passes.cost.batch import Batch

Maker = tuple[str, str] | None
"""The maker of values: a model and its operation; None: the host."""


@dataclass(frozen=True, slots=True)
class ReadValue:
    """A value that a task reads and another operation has made. Where both are done by the same processes, or the value
    was read there before, nothing travels."""

    value: str
    """The table or tensor that is stored where it was made, of which the value may be a part."""
    maker: Maker
    tokens: float
    """Tokens in a step."""
    orders: float
    """The requests of a step that fetch it."""
    is_kept: bool = False
    """Whether it is kept tokens."""


@dataclass(frozen=True, slots=True)
class Task:
    """The work of one node in a step, and the tasks that it waits for."""

    name: str
    """The name that people see: what the node makes, or `train actor`."""
    op: str
    model: str | None
    """The model that works; None: the host does it."""
    batches: tuple[Batch, ...] = ()
    """All rows that the calls of a model read."""
    rows: float = 0.0
    """The rows of work of the host."""
    repetitions: float = 1.0
    """How often it is done in a step; less than 1 for what is not done in every step."""
    waits_for: tuple[int, ...] = ()
    """The numbers of the tasks that it waits for."""
    code: str = ""
    """The user function or environment that it calls."""
    workers: int = 1
    """Processes over which its calls are spread, where the code has no pool of its own."""
    shared: bool = False
    """Whether processes of the host share its rows."""
    reads: tuple[ReadValue, ...] = ()
    """The values that it reads from elsewhere."""
    loops: tuple[tuple[int, float], ...] = ()
    """The loops around it, the outermost first, each with a number and how often it runs: together `times`."""

    @property
    def tokens(self) -> float:
        """Return the tokens that a model reads or samples each time."""
        return sum(batch.tokens().tokens for batch in self.batches)


def device_takeovers(tasks: Sequence[Task], number: int, own: Collection[int]) -> float:
    """Return how often in a step the processes that do a task take over its devices: once for each run of a loop in
    which any other processes work with a model. own: tasks that are done by the same processes."""
    others = [task.loops for at, task in enumerate(tasks) if task.model and at not in own]
    loops = tasks[number].loops
    shared = max(
        (depth for depth in range(1, len(loops) + 1) for around in others if loops[:depth] == around[:depth]), default=0
    )
    return math.prod(times if depth < shared else min(times, 1.0) for depth, (_, times) in enumerate(loops))
