"""Calls that go out together: what all of a copy has to do is told to the copy, and not to each of its ranks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import compress
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast

from rlgraph.backends.ray.failures import Request
from rlgraph.backends.ray.processes import Losing, Processes, Reference
from rlgraph.backends.ray.remote import Address
from rlgraph.backends.ray.worker import Worker
from rlgraph.ir.graph import Node
from rlgraph.ir.plan import Group

Copy = tuple[Address, tuple[Address, ...]]
"""A data-parallel copy: the rank that leads it, and its others. What the others have to do is mostly the same, and the
one that leads passes it on: so that all of them hear one thing after the other. It also has the results, but for those
of models whose stages lie the other way round."""

P = ParamSpec("P")
T = TypeVar("T")


def copies(group: Group) -> tuple[Copy, ...]:
    """Of a group, in order."""
    return tuple(
        ((group.name, speaker), tuple((group.name, rank) for rank in ranks if rank != speaker))
        for speaker, ranks in zip(group.speakers(), group.copies(), strict=True)
    )


class Calls(Generic[T]):
    """What is asked, and by whom it will be answered."""

    def __init__(self, processes: Processes) -> None:
        self.processes = processes
        self.asked: list[tuple[Address, ...]] = []
        """For each call, who answers it."""
        self.answers: list[Reference[Any]] = []
        self.beside: list[Reference[Any]] = []
        """Answers to others, a failure of which ends the wait for these."""
        self._several: list[bool] = []

    @property
    def who(self) -> tuple[Address, ...]:
        """All of them, in the order of their answers."""
        return tuple(who for each in self.asked for who in each)

    def one(self, who: Address, method: Callable[Concatenate[Worker, P], T], *args: P.args, **named: P.kwargs) -> None:
        """Asks a process itself."""
        self._add((who,), self.processes.call(who, method, *args, **named), several=False)

    def others(self, copy: Copy, method: Callable[Concatenate[Worker, P], T], *args: P.args, **named: P.kwargs) -> None:
        """Asks others of a copy than the one that leads it, through that one."""
        leader, others = copy
        self._add(others, self.processes.pass_on(leader, others, method, *args, **named), several=True)

    def copy(self, copy: Copy, method: Callable[Concatenate[Worker, P], T], *args: P.args, **named: P.kwargs) -> None:
        """Asks all of a copy."""
        with self.processes.sending(copy[0][0]):
            self.one(copy[0], method, *args, **named)
            if copy[1]:
                self.others(copy, method, *args, **named)

    def also(self, others: Calls[T]) -> None:
        """Waits for what others were asked, too."""
        self.asked += others.asked
        self.answers += others.answers
        self._several += others._several

    def _add(self, who: tuple[Address, ...], answer: Reference[Any], *, several: bool) -> None:
        self.asked.append(who)
        self.answers.append(answer)
        self._several.append(several)

    def get(self, doing: str, node: Node | None = None, losing: Losing | None = None) -> list[list[T]]:
        """Waits: for each call the answers. Raises RunError where a process failed, is gone, or does not answer.
        losing: of calls to processes that the run goes on without nothing is left."""
        request = Request(self.who, doing, node, tuple(self.asked))
        found: list[Any] = self.processes.get(self.answers, request, self.beside, losing=losing)
        if losing is not None:
            left = [answer is not None for answer in found]
            found, self.asked = [*compress(found, left)], [*compress(self.asked, left)]
            self._several = [*compress(self._several, left)]
        return [
            cast("list[T]", answer) if several else [answer]
            for answer, several in zip(found, self._several, strict=True)
        ]
