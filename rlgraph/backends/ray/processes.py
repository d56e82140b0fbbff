"""The processes of a plan and how they are called: Ray actors, or objects in this process to debug them."""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast

from rlgraph.backends.engines.base import EngineError
from rlgraph.backends.ray.failures import Request, refused
from rlgraph.backends.ray.remote import Address
from rlgraph.backends.ray.store import Wire, Wish
from rlgraph.backends.ray.worker import Worker, WorkerSpec
from rlgraph.ir.layout import share
from rlgraph.ir.plan import Plan
from rlgraph.ops.nodes import NODES, code_of

P = ParamSpec("P")
T = TypeVar("T")


Losing = Callable[[Mapping[Address, str]], Sequence[Address] | None]
"""What becomes of processes that have ended, and why they have: all of those that the run goes on without; None: it
cannot."""


class Reference(Generic[T]):
    """An answer that need not be there yet. What it is only the processes know that gave it."""


class Processes(ABC):
    """Calls go out at once and are answered later. What can be called are the public methods of `Worker`; a reference
    may stand for an argument."""

    def __init__(self, specs: Mapping[Address, WorkerSpec], seconds: float) -> None:
        self.specs, self.seconds = specs, seconds
        self.who = tuple(specs)
        """Those that there are: not who the run goes on without."""
        self.gone: dict[Address, str] = {}
        """Processes that have ended, and why."""
        self._sending = {group: threading.RLock() for group, _ in specs}

    def open(self, plan: Plan, names: Collection[str] | None = None) -> list[str]:
        """Loads the models everywhere, held as `plan` says. Names of the things that live across steps. names: of the
        groups that were begun again; None: all of them, for the first time."""
        groups = {spec.group.name: spec.group for spec in self.specs.values()}
        groups = {name: group for name, group in groups.items() if names is None or name in names}
        meeting: dict[str, dict[str, str]] = {}
        for group in groups.values():
            places = {"group": 0} | {str(copy): ranks[0] for copy, ranks in enumerate(group.copies())}
            who = tuple((group.name, rank) for rank in places.values())
            found = self.get(
                [self.call(each, Worker.address) for each in who], Request(who, "the start of the process")
            )
            meeting[group.name] = dict(zip(places, found, strict=True))
        held = {name: {model: plan.holding(model, name) for model in group.models} for name, group in groups.items()}
        turned = {
            name: tuple(model for model in group.models if plan.turned(model, name)) for name, group in groups.items()
        }
        opened = []
        for turn in _rounds(plan):
            who = tuple(each for each in self.who if each[0] in turn and each[0] in groups)
            opening = [self.call(each, Worker.open, meeting[each[0]], held[each[0]], turned[each[0]]) for each in who]
            opened += self.get(opening, Request(who, "opening"))
        if names is None:
            self._reach(plan)
        return [name for found in opened for name in found]

    def _reach(self, plan: Plan) -> None:
        """Who acts in an environment that runs elsewhere gets handles of its processes: each data-parallel copy a share
        of them, or one, where they are fewer than copies."""
        program = self.specs[self.who[0]].program
        acted_in = {code_of(node) for _, node in program.walk() if NODES[node.op].with_model}
        acting = {role.group for role in plan.roles if NODES[role.operation].foreign}
        callers: list[Address] = []
        answers: list[Reference[None]] = []
        for name, runner in ((each.name, plan.runs(each.name)) for each in program.outside if each.name in acted_in):
            for group in plan.groups:
                if runner is None or group.name not in acting:
                    continue
                size, copies = runner.mesh.size, group.copies()
                for copy, ranks in enumerate(copies):
                    mine = range(*share(size, len(copies), copy)) or [copy % size]
                    handles = [self.handle((runner.name, rank)) for rank in mine]
                    for rank in ranks:
                        callers.append((group.name, rank))
                        answers.append(self.call(callers[-1], Worker.reach, name, handles, len(callers)))
        if callers:
            self.get(answers, Request(tuple(callers), "opening"))

    def sending(self, group: str) -> AbstractContextManager[object]:
        """Held while something is told to all ranks of a copy of a group, one by one: what another thread tells them
        comes before it, or behind it, at all of them."""
        return self._sending[group]

    @abstractmethod
    def handle(self, who: Address) -> Any:
        """What another process of the run needs to call this one."""

    @abstractmethod
    def call(
        self, who: Address, method: Callable[Concatenate[Worker, P], T], *args: P.args, **named: P.kwargs
    ) -> Reference[T]:
        """Has a process do something: `call(who, Worker.save, model, folder)`."""

    @abstractmethod
    def pass_on(
        self,
        through: Address,
        to: Sequence[Address],
        method: Callable[Concatenate[Worker, P], T],
        *args: P.args,
        **named: P.kwargs,
    ) -> Reference[list[T]]:
        """Has the others of a copy do something, through the one that speaks for it: one call, however many they
        are."""

    @abstractmethod
    def pack(self, who: Address, parcels: Sequence[Sequence[Wish]]) -> list[Reference[Wire]]:
        """Has a process pack rows, for each parcel of its own."""

    @abstractmethod
    def get(
        self,
        references: Sequence[Reference[T]],
        request: Request,
        beside: Sequence[Reference[Any]] = (),
        *,
        alone: bool = False,
        losing: Losing | None = None,
    ) -> list[T]:
        """The answers; raises RunError where a process failed, is gone, or does not answer. beside: answers that are
        not waited for, but a failure ends the wait. alone: what others wait for may be given up meanwhile. losing: is
        asked where processes are gone; None is the answer of those that the run goes on without."""

    @abstractmethod
    def first(self, references: Sequence[Reference[Any]], beside: Sequence[Reference[Any]] = ()) -> int:
        """Waits until one of these answers is there, or something has gone wrong, which `get` tells: which to get."""

    def ask(
        self, request: Request, method: Callable[Concatenate[Worker, P], T], *args: P.args, **named: P.kwargs
    ) -> list[T]:
        """Has all whom a request is for do the same, and waits."""
        return self.get([self.call(who, method, *args, **named) for who in request.who], request)

    def free(
        self,
        who: Sequence[Address],
        enough: Callable[[Mapping[Address, T]], bool],
        request: Request,
        method: Callable[Concatenate[Worker, P], T],
        *args: P.args,
        **named: P.kwargs,
    ) -> dict[Address, T]:
        """What those of them answer who are there and have nothing else to do. After a failure some may wait for ever:
        then it is enough to have answers that are `enough`, or to have waited for a while."""
        asked = [self.call(each, method, *args, **named) for each in who]
        return dict(zip(who, self.get(asked, request), strict=True))

    @abstractmethod
    def give_up(self, why: BaseException) -> None:
        """Whoever waits in `get` fails soon, and tells why."""

    @abstractmethod
    def go_on(self) -> None:
        """After a failure or an interrupt: what is whole can be asked for again, what is not fails at once."""

    @abstractmethod
    def replace(self, plan: Plan, names: Collection[str]) -> None:
        """Others take the places of all processes of some groups, with models as they were loaded. Raises RunError if
        they cannot be started."""

    @abstractmethod
    def stop(self) -> None:
        """Ends all processes, whatever they do."""


def _rounds(plan: Plan) -> list[list[str]]:
    """Groups whose processes load their models at the same time. Those of a pool on which models sleep do so one after
    the other: there is no room for all of them awake."""
    turns: list[list[str]] = []
    for pool in plan.pools:
        groups = [group.name for group in plan.groups if group.pool == pool.name]
        sleeps = any(holding.offload and holding.group in groups for holding in plan.holdings)
        for number, names in enumerate([[name] for name in groups] if sleeps else [groups]):
            turns += [[] for _ in range(number + 1 - len(turns))]
            turns[number] += names
    return turns


_TOGETHER: tuple[object, ...] = (Worker.meet, Worker.exchange, Worker.write_part)
"""Calls in which processes wait for each other."""
_WHILE_IT_WAITS: tuple[object, ...] = (Worker.checkpoint, Worker.free)
"""Calls that a process may wait for in the midst of another one."""


class InThisProcess(Processes):
    """For `--debug`: each process is an object here, and a call is a call, so that breakpoints work."""

    def __init__(self, specs: Mapping[Address, WorkerSpec]) -> None:
        super().__init__(specs, math.inf)
        self.workers = {who: Worker(spec) for who, spec in specs.items()}
        self._locks = {who: threading.RLock() for who in specs}
        self._threads = ThreadPoolExecutor(len(specs), "process")
        self._waiting: dict[Address, Future[Any]] = {}
        """What a process does together with others: all else comes after it."""

    def handle(self, who: Address) -> Any:
        return self.workers[who]

    def call(
        self, who: Address, method: Callable[Concatenate[Worker, P], T], *args: P.args, **named: P.kwargs
    ) -> Reference[T]:
        worker = self.workers[who]
        found: T | Future[T] | EngineError
        if method in _WHILE_IT_WAITS:
            return cast("Reference[T]", method(worker, *args, **named))
        if who in self._waiting:
            wait([self._waiting.pop(who)])
        if method in _TOGETHER:
            found = self._waiting[who] = self._threads.submit(method, worker, *args, **named)
        else:
            with self._locks[who]:
                try:
                    found = method(worker, *args, **named)
                except EngineError as error:
                    found = error
        return cast("Reference[T]", found)

    def pass_on(
        self,
        through: Address,
        to: Sequence[Address],
        method: Callable[Concatenate[Worker, P], T],
        *args: P.args,
        **named: P.kwargs,
    ) -> Reference[list[T]]:
        raise AssertionError("in this process a group is one object")

    def pack(self, who: Address, parcels: Sequence[Sequence[Wish]]) -> list[Reference[Wire]]:
        return [self.call(who, Worker.parcel, parcel) for parcel in parcels]

    def get(
        self,
        references: Sequence[Reference[T]],
        request: Request,
        beside: Sequence[Reference[Any]] = (),
        *,
        alone: bool = False,
        losing: Losing | None = None,
    ) -> list[T]:
        found = [each.result() if isinstance(each, Future) else each for each in references]
        for each in found:
            if isinstance(each, EngineError):
                raise refused(each, request)
        return cast("list[T]", found)

    def first(self, references: Sequence[Reference[Any]], beside: Sequence[Reference[Any]] = ()) -> int:
        return 0

    def give_up(self, why: BaseException) -> None:
        """Nobody waits: a call is a call."""

    def go_on(self) -> None:
        """Nothing is cut off."""

    def replace(self, plan: Plan, names: Collection[str]) -> None:
        raise AssertionError("in this process nobody is lost")

    def stop(self) -> None:
        for worker in self.workers.values():
            worker.close()
