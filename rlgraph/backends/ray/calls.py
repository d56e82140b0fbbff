"""Calls that are sent together: a replica gets one message for all of its ranks, and not one for each."""

from __future__ import annotations

from collections.abc import Callable
from itertools import compress
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast

from rlgraph.backends.ray.failures import CallContext
from rlgraph.backends.ray.processes import Losing, Processes, Reference
from rlgraph.backends.ray.row_refs import Address
from rlgraph.backends.ray.worker import Worker
from rlgraph.ir.graph import Node
from rlgraph.ir.plan import Group

Copy = tuple[Address, tuple[Address, ...]]
"""The address of the rank that leads a data-parallel replica, and those of its other ranks. The others mostly do the
same, so the leader passes requests on to them, and all get requests in one order. The leader also has the results,
except for models whose pipeline stages are reversed."""

P = ParamSpec("P")
T = TypeVar("T")


def replicas_of(group: Group) -> tuple[Copy, ...]:
    """Return the replicas of a group, in order."""
    return tuple(
        ((group.name, speaker), tuple((group.name, rank) for rank in ranks if rank != speaker))
        for speaker, ranks in zip(group.result_ranks(), group.replica_ranks(), strict=True)
    )


class Calls(Generic[T]):
    """Calls that were made, and the processes that answer each of them."""

    def __init__(self, processes: Processes) -> None:
        self.processes = processes
        self.asked: list[tuple[Address, ...]] = []
        """For each call, the processes that answer it."""
        self.answers: list[Reference[Any]] = []
        self.beside: list[Reference[Any]] = []
        """Answers to other calls, whose failure ends the wait for these."""
        self._several: list[bool] = []
        """For each call, whether its answer is a list with one item for each process."""

    @property
    def called_processes(self) -> tuple[Address, ...]:
        """All processes that were asked, in the order of their answers."""
        return tuple(who for addresses in self.asked for who in addresses)

    def call_one(
        self, who: Address, method: Callable[Concatenate[Worker, P], T], *args: P.args, **named: P.kwargs
    ) -> None:
        """Call a process directly."""
        self._add((who,), self.processes.call(who, method, *args, **named), several=False)

    def call_other_ranks(
        self, copy: Copy, method: Callable[Concatenate[Worker, P], T], *args: P.args, **named: P.kwargs
    ) -> None:
        """Call ranks of a replica other than its leader, through the leader."""
        leader, others = copy
        self._add(others, self.processes.call_through_leader(leader, others, method, *args, **named), several=True)

    def call_replica(
        self, copy: Copy, method: Callable[Concatenate[Worker, P], T], *args: P.args, **named: P.kwargs
    ) -> None:
        """Call all ranks of a replica."""
        with self.processes.call_lock(copy[0][0]):
            self.call_one(copy[0], method, *args, **named)
            if copy[1]:
                self.call_other_ranks(copy, method, *args, **named)

    def add_calls(self, others: Calls[T]) -> None:
        """Wait for the calls of `others`, too."""
        self.asked += others.asked
        self.answers += others.answers
        self._several += others._several

    def _add(self, who: tuple[Address, ...], answer: Reference[Any], *, several: bool) -> None:
        self.asked.append(who)
        self.answers.append(answer)
        self._several.append(several)

    def get(self, doing: str, node: Node | None = None, losing: Losing | None = None) -> list[list[T]]:
        """Wait for the answers, and return a list for each call. Raises RunError where a process failed, is gone, or
        does not answer. losing: calls to processes that the run goes on without are dropped from the result."""
        request = CallContext(self.called_processes, doing, node, tuple(self.asked))
        answers: list[Any] = self.processes.get(self.answers, request, self.beside, losing=losing)
        if losing is not None:
            answered = [answer is not None for answer in answers]
            answers, self.asked = [*compress(answers, answered)], [*compress(self.asked, answered)]
            self._several = [*compress(self._several, answered)]
        return [
            cast("list[T]", answer) if several else [answer]
            for answer, several in zip(answers, self._several, strict=True)
        ]
