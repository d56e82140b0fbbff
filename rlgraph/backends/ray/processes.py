"""The processes of a plan and how they are called: Ray actors, or objects in this process to debug them."""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast

from rlgraph.backends.ray.failures import Request, actor_of, gone, late, meaning, refused, why_gone
from rlgraph.backends.ray.remote import Address
from rlgraph.backends.ray.store import Wire, Wish
from rlgraph.backends.ray.worker import ORDERS, ROWS, SAMPLES, SAVES, Worker, WorkerSpec
from rlgraph.engines.base import EngineError
from rlgraph.ir.layout import share
from rlgraph.ir.plan import Plan
from rlgraph.ops.nodes import NODES, code_of

P = ParamSpec("P")
T = TypeVar("T")


class Reference(Generic[T]):
    """An answer that need not be there yet. What it is only the processes know that gave it."""


class Processes(ABC):
    """Calls go out at once and are answered later. What can be called are the public methods of `Worker`; a reference
    may stand for an argument."""

    def __init__(self, specs: Mapping[Address, WorkerSpec], seconds: float) -> None:
        self.specs, self.seconds = specs, seconds
        self.who = tuple(specs)

    def open(self, plan: Plan) -> list[str]:
        """Loads the models everywhere, held as `plan` says. Names of the things that live across steps."""
        groups = {spec.group.name: spec.group for spec in self.specs.values()}
        meeting: dict[str, dict[str, str]] = {}
        for group in groups.values():
            places = {"group": 0} | {str(copy): ranks[0] for copy, ranks in enumerate(group.copies())}
            who = tuple((group.name, rank) for rank in places.values())
            found = self.get(
                [self.call(each, Worker.address) for each in who], Request(who, "the start of the process")
            )
            meeting[group.name] = dict(zip(places, found, strict=True))
        held = {name: {model: plan.holding(model, name) for model in group.models} for name, group in groups.items()}
        opened = []
        for names in _rounds(plan):
            who = tuple(each for each in self.who if each[0] in names)
            opening = [self.call(each, Worker.open, meeting[each[0]], held[each[0]]) for each in who]
            opened += self.get(opening, Request(who, "opening"))
        self._reach(plan)
        return [name for names in opened for name in names]

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
    ) -> list[T]:
        """The answers; raises RunError where a process failed, is gone, or does not answer. beside: answers that are
        not waited for, but a failure ends the wait. alone: what others wait for may be given up meanwhile."""

    @abstractmethod
    def first(self, references: Sequence[Reference[Any]], beside: Sequence[Reference[Any]] = ()) -> int:
        """Waits until one of these answers is there, or something has gone wrong, which `get` tells: which to get."""

    def ask(
        self, request: Request, method: Callable[Concatenate[Worker, P], T], *args: P.args, **named: P.kwargs
    ) -> list[T]:
        """Has all whom a request is for do the same, and waits."""
        return self.get([self.call(who, method, *args, **named) for who in request.who], request)

    @abstractmethod
    def give_up(self, why: BaseException) -> None:
        """Whoever waits in `get` fails soon, and tells why."""

    @abstractmethod
    def go_on(self) -> None:
        """After a failure or an interrupt: what is whole can be asked for again, what is not fails at once."""

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

    def stop(self) -> None:
        for worker in self.workers.values():
            worker.close()


class Actors(Processes):
    """Ray actors."""

    def __init__(
        self,
        specs: Mapping[Address, WorkerSpec],
        handles: Mapping[Address, Any],
        seconds: float,
        release: Callable[[], None],
        logs: str,
    ) -> None:
        """seconds: longest wait for an answer. release: gives back what the actors ran on. logs: the folder of
        Ray's."""
        super().__init__(specs, seconds)
        self.handles, self.release, self.logs = handles, release, logs
        self.gone: dict[Address, str] = {}
        """Processes that have ended, and why."""
        self.over: BaseException | None = None
        """Why nobody waits for answers any more: what came first is what everybody tells."""
        self._failed: tuple[Sequence[Any], Request] | None = None
        """The wait in which it came."""
        self._names = {handle._actor_id.hex(): who for who, handle in handles.items()}
        self._lock = threading.Lock()

    def handle(self, who: Address) -> Any:
        return self.handles[who]

    def call(
        self, who: Address, method: Callable[Concatenate[Worker, P], T], *args: P.args, **named: P.kwargs
    ) -> Reference[T]:
        bound = getattr(self.handles[who], method.__name__)
        called = bound.options(concurrency_group=_BESIDE[method]) if method in _BESIDE else bound
        return cast("Reference[T]", called.remote(*args, **named))

    def open(self, plan: Plan) -> list[str]:
        found = super().open(plan)
        leading = []
        for group in plan.groups:
            for speaker, ranks in zip(group.speakers(), group.copies(), strict=True):
                others = {rank: self.handles[group.name, rank] for rank in ranks if rank != speaker}
                if others:
                    leading.append(((group.name, speaker), others))
        who = tuple(speaker for speaker, _ in leading)
        self.get([self.call(each, Worker.lead, others) for each, others in leading], Request(who, "opening"))
        return found

    def pass_on(
        self,
        through: Address,
        to: Sequence[Address],
        method: Callable[Concatenate[Worker, P], T],
        *args: P.args,
        **named: P.kwargs,
    ) -> Reference[list[T]]:
        threads = _BESIDE.get(method)
        called = self.handles[through].pass_on.options(concurrency_group=threads or ORDERS)
        # Inside of a list references stay references: rows go to those who need them.
        sent = called.remote([rank for _, rank in to], method.__name__, list(args), named, threads)
        return cast("Reference[list[T]]", sent)

    def pack(self, who: Address, parcels: Sequence[Sequence[Wish]]) -> list[Reference[Wire]]:
        called = self.handles[who].pack.options(concurrency_group=ROWS, num_returns=len(parcels))
        sent = called.remote(*parcels)
        return sent if len(parcels) > 1 else [sent]

    def get(
        self,
        references: Sequence[Reference[T]],
        request: Request,
        beside: Sequence[Reference[Any]] = (),
        *,
        alone: bool = False,
    ) -> list[T]:
        import ray

        for who in request.who:
            if who in self.gone:
                raise gone(who, self.gone[who], request, self.logs)
        waiting: list[Any] = list(references)
        others: list[Any] = list(beside)
        end = time.monotonic() + self.seconds
        while True:
            left = end - time.monotonic()
            try:
                # Short waits, so that the failure of another wait ends this one too.
                answered, _ = ray.wait(others, num_returns=len(others), timeout=0) if others else ([], [])
                ray.get(answered)
                found: list[T] = ray.get(waiting, timeout=max(0.0, min(_SLICE, left)))
                return found
            except ray.exceptions.GetTimeoutError:
                if self.over is not None and not alone:
                    raise self.over from None
                if left <= 0:
                    raise self._first(waiting, request, None) from None
            except Exception as error:
                raise self._first(waiting, request, error) from None

    def first(self, references: Sequence[Reference[Any]], beside: Sequence[Reference[Any]] = ()) -> int:
        import ray

        waiting: list[Any] = [*references, *beside]
        end = time.monotonic() + self.seconds
        while self.over is None and time.monotonic() < end:
            answered, _ = ray.wait(waiting, timeout=_SLICE)
            if answered:
                found = waiting.index(answered[0])
                if found < len(references) or _fails(answered[0]):
                    return found if found < len(references) else 0
                del waiting[found]
        return 0

    def give_up(self, why: BaseException) -> None:
        with self._lock:
            self.over = self.over or why

    def go_on(self) -> None:
        if self._failed is not None:
            self._end_torn(*self._failed)
        self.over = self._failed = None

    def _first(self, waiting: Sequence[Any], request: Request, error: Exception | None) -> BaseException:
        """The first failure of all waits. `error`: of this one; None if it took too long."""
        with self._lock:
            if self.over is None:
                silent = self._find_gone()
                self.over, self._failed = self._meaning(waiting, request, error, silent), (waiting, request)
            return self.over

    def _meaning(
        self, waiting: Sequence[Any], request: Request, error: Exception | None, silent: Container[Address]
    ) -> BaseException:
        # What others of its group say then (a connection was closed) comes from the one that is gone.
        for who in sorted(self.gone, key=lambda each: each not in request.who):
            return gone(who, self.gone[who], request, self.logs)
        if error is not None:
            return meaning(error, self._names.get(actor_of(error), request.who[0]), request, self.logs)
        # Of those that wait for each other, the one that says nothing at all is the one to name.
        slow = sorted(self._unanswered(waiting, request, 0.0), key=lambda each: (each not in silent, each))
        return late(slow[0] if slow else request.who[0], self.seconds, request, self.logs)

    def _find_gone(self) -> set[Address]:
        """Asks every process whether it is there; one that works answers beside its work. Those that say nothing."""
        import ray

        asked: dict[Any, Address] = {self.call(who, Worker.pid): who for who in self.who if who not in self.gone}
        answered, silent = ray.wait(list(asked), num_returns=len(asked), timeout=_GRACE)
        for reference in answered:
            try:
                ray.get(reference)
            except (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError) as error:
                if not getattr(error, "actor_init_failed", False):
                    self.gone[asked[reference]] = why_gone(error)
        return {asked[reference] for reference in silent}

    def _unanswered(self, references: Sequence[Any], request: Request, seconds: float) -> set[Address]:
        import ray

        _, waiting = ray.wait(list(references), num_returns=len(references), timeout=seconds)
        asked = zip(request.answering, references, strict=True)
        return {who for each, reference in asked if reference in waiting for who in each}

    def _end_torn(self, references: Sequence[Any], request: Request) -> None:
        """Ends ranks that wait for one that failed, and groups of which only some ranks have new weights."""
        import ray

        stuck = self._unanswered(references, request, _GRACE)
        answering = zip(request.answering, references, strict=True)
        failed = stuck.union(*(who for who, reference in answering if _fails(reference)))
        groups = [{who for who in request.who if who[0] == group} for group in {group for group, _ in request.who}]
        changing = [ranks for ranks in groups if request.changes_weights and ranks & failed]
        torn = [ranks for ranks in changing if ranks - failed or not self._alike(ranks)]
        for who in stuck.union(*torn) - set(self.gone):
            self.gone[who] = "it was ended, because others that it worked with had failed"
            ray.kill(self.handles[who])

    def _alike(self, ranks: set[Address]) -> bool:
        """Whether the weights of those of them that are there have changed equally often: of ranks that answer together
        nobody knows which one failed."""
        import ray

        asked: list[Any] = [self.call(who, Worker.changed) for who in ranks - self.gone.keys()]
        if not asked:
            return True
        found, silent = ray.wait(asked, num_returns=len(asked), timeout=_GRACE)
        return not silent and len({*ray.get(found)}) == 1

    def stop(self) -> None:
        import ray

        closing: list[Any] = [self.call(who, Worker.close) for who in self.who if who not in self.gone]
        try:
            ray.wait(closing, num_returns=max(1, len(closing)), timeout=_CLOSING) if closing else None
        finally:
            for handle in self.handles.values():
                ray.kill(handle)
            self.release()


_BESIDE: dict[object, str] = {
    **dict.fromkeys((Worker.pid, Worker.changed, Worker.close, Worker.retain, Worker.refresh), ROWS),
    **dict.fromkeys((Worker.rows, Worker.last_changed, Worker.hold, Worker.free), ROWS),
    **dict.fromkeys((Worker.leave, Worker.unfinished), ROWS),
    Worker.checkpoint: SAVES,
    **dict.fromkeys((Worker.sample, Worker.go_on, Worker.next_sampled), SAMPLES),
}
"""What a process does while it works on something else, as it packs rows, and in which threads: a step may end while a
later one is at work, newer weights come while rows are sampled, and so do rows of other orders."""
_SLICE = 0.5
_GRACE = 5.0
"""Seconds in which a process that is there answers."""
_CLOSING = 2.0


def _fails(reference: Any) -> bool:
    import ray

    try:
        ray.get(reference, timeout=0)
    except Exception:
        return True
    return False
