"""The processes of a plan as Ray actors: how they are called, and what becomes of those that fail."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from rlgraph.backends.ray.activity import At
from rlgraph.backends.ray.failures import Request, actor_of, cut, gone, late, link_of, meaning, why_gone
from rlgraph.backends.ray.processes import Losing, Processes, Reference
from rlgraph.backends.ray.remote import Address
from rlgraph.backends.ray.store import Wire, Wish
from rlgraph.backends.ray.waits import Waits
from rlgraph.backends.ray.worker import ORDERS, ROWS, SAMPLES, SAVES, Worker, WorkerSpec
from rlgraph.ir.plan import Plan

P = ParamSpec("P")
T = TypeVar("T")


class Actors(Processes):
    """Ray actors."""

    def __init__(
        self,
        specs: Mapping[Address, WorkerSpec],
        handles: Mapping[Address, Any],
        seconds: float,
        release: Callable[[], None],
        logs: str,
        begin: Callable[[WorkerSpec], Any],
    ) -> None:
        """seconds: longest wait for an answer. release: gives back what the actors ran on. logs: the folder of
        Ray's. begin: starts a process, in the place of one that is gone."""
        super().__init__(specs, seconds)
        self.handles, self.release, self.logs, self.begin = dict(handles), release, logs, begin
        self.over: BaseException | None = None
        """Why nobody waits for answers any more: what came first is what everybody tells."""
        self._failed: tuple[Sequence[Any], Request] | None = None
        """The wait in which it came."""
        self._hurt = False
        """Something has failed before."""
        self._names = {handle._actor_id.hex(): who for who, handle in handles.items()}
        self._lost = set[Address]()
        """Those that the run goes on without."""
        self._lock = threading.Lock()
        self._passed = Counter[str]()
        """How many orders each process was given to pass on, by Ray's name of it: who takes its place begins anew."""
        self._passing = threading.Lock()
        """Held while one is sent: they are sent in the order of their numbers."""

    def handle(self, who: Address) -> Any:
        return self.handles[who]

    def call(
        self, who: Address, method: Callable[Concatenate[Worker, P], T], *args: P.args, **named: P.kwargs
    ) -> Reference[T]:
        bound = getattr(self.handles[who], method.__name__)
        called = bound.options(concurrency_group=_BESIDE[method]) if method in _BESIDE else bound
        return cast("Reference[T]", called.remote(*args, **named))

    def open(self, plan: Plan, names: Collection[str] | None = None) -> list[str]:
        found = super().open(plan, names)
        leading = []
        for group in plan.groups:
            if names is not None and group.name not in names:
                continue
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
        handle, threads = self.handles[through], _BESIDE.get(method)
        # Inside of a list references stay references: rows go to those who need them.
        said = [rank for _, rank in to], method.__name__, list(args), named, threads
        if threads:
            return cast("Reference[list[T]]", handle.pass_on.options(concurrency_group=threads).remote(*said))
        who = handle._actor_id.hex()
        with self._passing:
            number = self._passed[who] + 1
            sent = handle.pass_on.options(concurrency_group=ORDERS).remote(*said, number)
            self._passed[who] = number
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
        losing: Losing | None = None,
    ) -> list[T]:
        import ray

        for who in request.who:
            if who in self.gone:
                raise gone(who, self.gone[who], request, self.logs)
        waiting: list[Any] = list(references)
        others: list[Any] = list(beside)
        asked = dict(zip(waiting, request.answering, strict=True)) if losing else {}
        end = time.monotonic() + self.seconds
        while True:
            left = end - time.monotonic()
            try:
                # Short waits, so that the failure of another wait ends this one too.
                answered, _ = ray.wait(others, num_returns=len(others), timeout=0) if others else ([], [])
                ray.get(answered)
                found: list[T] = ray.get(waiting, timeout=max(0.0, min(_SLICE, left)))
                if losing is None:
                    return found
                # An answer may have come before its process was lost.
                there = {
                    each: answer
                    for each, answer in zip(waiting, found, strict=True)
                    if self._lost.isdisjoint(asked[each])
                }
                return cast("list[T]", [there.get(each) for each in references])
            except ray.exceptions.GetTimeoutError:
                if self.over is not None and not alone:
                    raise self.over from None
                if left <= 0:
                    raise self._first(waiting, request, None) from None
            except Exception as error:
                if losing is None or not self._lose(losing, error):
                    raise self._first(waiting, request, error) from None
                waiting = [each for each in waiting if self._lost.isdisjoint(asked[each])]
                others = [each for each in others if not self._is_lost(each)]

    def _is_lost(self, reference: Any) -> bool:
        """Whether what somebody was asked for is not to come, since the run goes on without it."""
        import ray

        try:
            ray.get(reference, timeout=0)
        except Exception as error:
            return self._names.get(actor_of(error)) in self._lost
        return False

    def _lose(self, losing: Losing, error: Exception) -> bool:
        """Whether the run goes on without those whose end an error comes from."""
        import ray

        with self._lock:
            if self.over is not None:
                return False
            if self._names.get(actor_of(error)) not in self._lost:
                # It may be another one that tells of it, to which it was connected.
                self._find_gone()
                lost = losing(self.gone) if self.gone else None
                if lost is None:
                    return False
                for who in lost:
                    ray.kill(self.handles[who])
                    self.gone.pop(who, None)
                self._lost |= {*lost}
                self.who = tuple(who for who in self.who if who not in self._lost)
            return True

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
            self._end_silent(*self._failed)
            self._hurt = True
        self.over = self._failed = None

    def free(
        self,
        who: Sequence[Address],
        enough: Callable[[Mapping[Address, T]], bool],
        request: Request,
        method: Callable[Concatenate[Worker, P], T],
        *args: P.args,
        **named: P.kwargs,
    ) -> dict[Address, T]:
        import ray

        who = [each for each in who if each not in self.gone]
        if not self._hurt:
            return super().free(who, enough, request, method, *args, **named)
        asked: dict[Any, Address] = {self.call(each, method, *args, **named): each for each in who}
        found: dict[Address, T] = {}
        waiting, began = list(asked), time.monotonic()
        while waiting and (took := time.monotonic() - began) < min(self.seconds, _PATIENCE):
            answered, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=_SLICE)
            for reference in answered:
                try:
                    found[asked[reference]] = ray.get(reference)
                except ray.exceptions.RayActorError as error:
                    self.gone[asked[reference]] = why_gone(error)
                except ray.exceptions.RayError:
                    continue
            if took > _GRACE and enough(found):
                break
        return {each: found[each] for each in who if each in found}

    def replace(self, plan: Plan, names: Collection[str]) -> None:
        import ray

        who = [each for each in self.specs if each[0] in names]
        self._lost -= {*who}
        self.who = tuple(each for each in self.specs if each not in self._lost)
        for each in who:
            # Those who are left of a group have met those who are gone: they cannot meet others.
            ray.kill(self.handles[each])
        for each in who:
            self.handles[each] = self.begin(self.specs[each])
            self._names[self.handles[each]._actor_id.hex()] = each
            self.gone.pop(each, None)
        self._hurt = False
        started: dict[Any, Address] = {self.call(each, Worker.pid): each for each in who}
        _, missing = ray.wait(list(started), num_returns=len(started), timeout=min(self.seconds, _PATIENCE))
        self.gone |= {started[each]: "there is no place for another one" for each in missing}
        self.open(plan, names)

    def _first(self, waiting: Sequence[Any], request: Request, error: Exception | None) -> BaseException:
        """The first failure of all waits. `error`: of this one; None if it took too long."""
        with self._lock:
            if self.over is None:
                silent = self._find_gone()
                self.over, self._failed = self._meaning(waiting, request, error, silent), (waiting, request)
            return self.over

    def _meaning(
        self, waiting: Sequence[Any], request: Request, error: Exception | None, silent: Collection[Address]
    ) -> BaseException:
        # What others of its group say then (a connection was closed) comes from the one that is gone.
        told = link_of(error)
        for who in sorted(self.gone, key=lambda each: each not in request.who):
            return gone(who, self.gone[who], request, self.logs, told)
        if error is not None and told is None:
            return meaning(error, self._names.get(actor_of(error), request.who[0]), request, self.logs)
        waits, slow = self._waits(silent), self._unanswered(waiting, request, 0.0)
        if told is not None:
            mute = next((who for who in request.who if who in silent), None)
            return cut(mute, told, request, self.logs, waits.notes(slow))
        return late(waits.blamed(slow) or request.who[0], self.seconds, request, self.logs, waits.notes(slow))

    def _waits(self, silent: Collection[Address]) -> Waits:
        """Who waits for whom, as far as they say so."""
        import ray

        asked: dict[Any, Address] = {
            self.call(who, Worker.at): who for who in self.who if who not in self.gone and who not in silent
        }
        answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=_GRACE) if asked else ([], [])
        found: dict[Address, At] = {}
        for reference in answered:
            # One that cannot tell does not keep the others from it.
            with suppress(Exception):
                found[asked[reference]] = ray.get(reference)
        return Waits.of(found, silent)

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

    def _end_silent(self, references: Sequence[Any], request: Request) -> None:
        """Ends those of a wait that failed who do not even say that they are there, as one that was stopped: then
        others who wait for them fail, and can be asked for what they have."""
        import ray

        silent = self._find_gone() & self._unanswered(references, request, 0.0)
        if silent:
            # A machine may be that busy.
            silent &= self._find_gone()
        for who in silent:
            self.gone[who] = "it was ended, because it did not answer"
            ray.kill(self.handles[who])

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
    **dict.fromkeys((Worker.pid, Worker.at, Worker.close, Worker.retain, Worker.refresh), ROWS),
    **dict.fromkeys((Worker.rows, Worker.last_changed, Worker.hold, Worker.free), ROWS),
    **dict.fromkeys((Worker.leave, Worker.limit, Worker.unfinished), ROWS),
    Worker.checkpoint: SAVES,
    **dict.fromkeys((Worker.sample, Worker.go_on, Worker.next_sampled), SAMPLES),
}
"""What a process does while it works on something else, as it packs rows, and in which threads: a step may end while a
later one is at work, newer weights come while rows are sampled, and so do rows of other orders."""
_SLICE = 0.5
_GRACE = 5.0
"""Seconds in which a process that is there answers."""
_PATIENCE = 60.0
"""Seconds in which a process that works on what has failed elsewhere comes to an end of it, or will wait for ever."""
_CLOSING = 2.0


def _fails(reference: Any) -> bool:
    import ray

    try:
        ray.get(reference, timeout=0)
    except Exception:
        return True
    return False
