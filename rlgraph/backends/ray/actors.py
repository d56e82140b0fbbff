"""The processes of a plan as Ray actors: how they are called, and what happens when some fail."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from rlgraph.backends.ray.activity import ActivityReport
from rlgraph.backends.ray.failures import (
    CallContext,
    broken_link_error,
    failed_actor_id,
    process_end_reason,
    process_error,
    process_gone_error,
    unresponsive_error,
    wrapped_link_error,
)
from rlgraph.backends.ray.piece_store import Wire, Wish
from rlgraph.backends.ray.processes import Losing, Processes, Reference
from rlgraph.backends.ray.row_refs import Address
from rlgraph.backends.ray.waits import WaitGraph
from rlgraph.backends.ray.worker import ORDERS, ROWS, SAMPLES, SAVES, Worker, WorkerSpec
from rlgraph.ir.plan import Plan

P = ParamSpec("P")
T = TypeVar("T")


class Actors(Processes):
    """The processes of a plan, each a Ray actor."""

    def __init__(
        self,
        specs: Mapping[Address, WorkerSpec],
        handles: Mapping[Address, Any],
        seconds: float,
        release: Callable[[], None],
        logs: str,
        begin: Callable[[WorkerSpec], Any],
    ) -> None:
        """seconds: longest wait for an answer. release: frees the resources that the actors ran on. logs: the folder of
        Ray's logs. begin: starts an actor in the place of one that has died."""
        super().__init__(specs, seconds)
        self.handles, self.release, self.logs, self.begin = dict(handles), release, logs, begin
        self.over: BaseException | None = None
        """The first failure, which ends every wait and is what each of them raises."""
        self._failed: tuple[Sequence[Any], CallContext] | None = None
        """The references and the request of the wait that failed first."""
        self._hurt = False
        """Whether a wait has failed since all processes were started."""
        self._names = {handle._actor_id.hex(): who for who, handle in handles.items()}
        self._lost = set[Address]()
        """The processes that the run goes on without."""
        self._lock = threading.Lock()
        self._passed = Counter[str]()
        """How many requests each actor was given to pass on, by its Ray id: an actor that replaces it counts from 0."""
        self._passing = threading.Lock()
        """Held while a request is passed on, so that requests are sent in the order of their numbers."""

    def remote_handle(self, who: Address) -> Any:
        return self.handles[who]

    def call(
        self, who: Address, method: Callable[Concatenate[Worker, P], T], *args: P.args, **named: P.kwargs
    ) -> Reference[T]:
        bound = getattr(self.handles[who], method.__name__)
        called = (
            bound.options(concurrency_group=_CONCURRENCY_GROUPS[method]) if method in _CONCURRENCY_GROUPS else bound
        )
        return cast("Reference[T]", called.remote(*args, **named))

    def load_models(self, plan: Plan, names: Collection[str] | None = None) -> list[str]:
        things = super().load_models(plan, names)
        leading = []
        for group in plan.groups:
            if names is not None and group.name not in names:
                continue
            for speaker, ranks in zip(group.result_ranks(), group.replica_ranks(), strict=True):
                followers = {rank: self.handles[group.name, rank] for rank in ranks if rank != speaker}
                if followers:
                    leading.append(((group.name, speaker), followers))
        who = tuple(speaker for speaker, _ in leading)
        self.get(
            [self.call(leader, Worker.make_leader, followers) for leader, followers in leading],
            CallContext(who, "opening"),
        )
        return things

    def call_through_leader(
        self,
        through: Address,
        to: Sequence[Address],
        method: Callable[Concatenate[Worker, P], T],
        *args: P.args,
        **named: P.kwargs,
    ) -> Reference[list[T]]:
        handle, threads = self.handles[through], _CONCURRENCY_GROUPS.get(method)
        # Inside a list Ray leaves references unresolved, so that rows go straight to the ranks that need them.
        passed = [rank for _, rank in to], method.__name__, list(args), named, threads
        if threads:
            return cast(
                "Reference[list[T]]", handle.call_other_ranks.options(concurrency_group=threads).remote(*passed)
            )
        who = handle._actor_id.hex()
        with self._passing:
            number = self._passed[who] + 1
            sent = handle.call_other_ranks.options(concurrency_group=ORDERS).remote(*passed, number)
            self._passed[who] = number
        return cast("Reference[list[T]]", sent)

    def pack_rows(self, who: Address, parcels: Sequence[Sequence[Wish]]) -> list[Reference[Wire]]:
        called = self.handles[who].pack_rows.options(concurrency_group=ROWS, num_returns=len(parcels))
        sent = called.remote(*parcels)
        return sent if len(parcels) > 1 else [sent]

    def get(
        self,
        references: Sequence[Reference[T]],
        request: CallContext,
        beside: Sequence[Reference[Any]] = (),
        *,
        alone: bool = False,
        losing: Losing | None = None,
    ) -> list[T]:
        import ray

        for who in request.who:
            if who in self.gone:
                raise process_gone_error(who, self.gone[who], request, self.logs)
        waiting: list[Any] = list(references)
        concurrent: list[Any] = list(beside)
        asked = dict(zip(waiting, request.answering_processes, strict=True)) if losing else {}
        end = time.monotonic() + self.seconds
        while True:
            left = end - time.monotonic()
            try:
                # Short waits, so that the failure of another wait ends this one too.
                answered, _ = ray.wait(concurrent, num_returns=len(concurrent), timeout=0) if concurrent else ([], [])
                ray.get(answered)
                answers: list[T] = ray.get(waiting, timeout=max(0.0, min(_SLICE, left)))
                if losing is None:
                    return answers
                # An answer may have come before its process was lost.
                by_reference = {
                    reference: answer
                    for reference, answer in zip(waiting, answers, strict=True)
                    if self._lost.isdisjoint(asked[reference])
                }
                return cast("list[T]", [by_reference.get(reference) for reference in references])
            except ray.exceptions.GetTimeoutError:
                if self.over is not None and not alone:
                    raise self.over from None
                if left <= 0:
                    raise self._first(waiting, request, None) from None
                self.waited(request)
            except Exception as error:
                if losing is None or not self._lose(losing, error):
                    raise self._first(waiting, request, error) from None
                waiting = [reference for reference in waiting if self._lost.isdisjoint(asked[reference])]
                concurrent = [reference for reference in concurrent if not self._is_lost(reference)]

    def answers_if_ready(self, references: Sequence[Reference[T]]) -> list[T] | None:
        import ray

        asked: list[Any] = list(references)
        ready, _ = ray.wait(asked, num_returns=len(asked), timeout=0) if asked else ([], [])
        if len(ready) < len(asked):
            return None
        try:
            return list(ray.get(asked))
        except Exception:
            return []

    def _is_lost(self, reference: Any) -> bool:
        """Return whether a reference never gets a value because it comes from a process that the run goes on
        without."""
        import ray

        try:
            ray.get(reference, timeout=0)
        except Exception as error:
            return self._names.get(failed_actor_id(error)) in self._lost
        return False

    def _lose(self, losing: Losing, error: Exception) -> bool:
        """Return whether the run can go on without the processes whose end caused an error; if so, end what is left of
        them."""
        import ray

        with self._lock:
            if self.over is not None:
                return False
            if self._names.get(failed_actor_id(error)) not in self._lost:
                # The error may come from another process that was connected to the dead one.
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

    def wait_for_first(self, references: Sequence[Reference[Any]], beside: Sequence[Reference[Any]] = ()) -> int:
        import ray

        waiting: list[Any] = [*references, *beside]
        end = time.monotonic() + self.seconds
        while self.over is None and time.monotonic() < end:
            answered, _ = ray.wait(waiting, timeout=_SLICE)
            if answered:
                index = waiting.index(answered[0])
                if index < len(references) or _fails(answered[0]):
                    return index if index < len(references) else 0
                del waiting[index]
        return 0

    def fail_waiters(self, why: BaseException) -> None:
        with self._lock:
            self.over = self.over or why

    def allow_calls(self) -> None:
        if self._failed is not None:
            self._end_silent(*self._failed)
            self._hurt = True
        self.over = self._failed = None

    def call_idle(
        self,
        who: Sequence[Address],
        enough: Callable[[Mapping[Address, T]], bool],
        request: CallContext,
        method: Callable[Concatenate[Worker, P], T],
        *args: P.args,
        **named: P.kwargs,
    ) -> dict[Address, T]:
        import ray

        who = [address for address in who if address not in self.gone]
        if not self._hurt:
            return super().call_idle(who, enough, request, method, *args, **named)
        asked: dict[Any, Address] = {self.call(address, method, *args, **named): address for address in who}
        answers: dict[Address, T] = {}
        waiting, began = list(asked), time.monotonic()
        while waiting and (took := time.monotonic() - began) < min(self.seconds, _PATIENCE):
            answered, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=_SLICE)
            for reference in answered:
                try:
                    answers[asked[reference]] = ray.get(reference)
                except ray.exceptions.RayActorError as error:
                    self.gone[asked[reference]] = process_end_reason(error)
                except ray.exceptions.RayError:
                    continue
            if took > _GRACE and enough(answers):
                break
        return {address: answers[address] for address in who if address in answers}

    def replace_groups(self, plan: Plan, names: Collection[str]) -> None:
        import ray

        who = [address for address in self.specs if address[0] in names]
        self._lost -= {*who}
        self.who = tuple(address for address in self.specs if address not in self._lost)
        for address in who:
            # The survivors of a group have joined torch groups with the dead ones, and cannot join new ones.
            ray.kill(self.handles[address])
        for address in who:
            self.handles[address] = self.begin(self.specs[address])
            self._names[self.handles[address]._actor_id.hex()] = address
            self.gone.pop(address, None)
        self._hurt = False
        started: dict[Any, Address] = {self.call(address, Worker.pid): address for address in who}
        _, missing = ray.wait(list(started), num_returns=len(started), timeout=min(self.seconds, _PATIENCE))
        self.gone |= {started[reference]: "there is no place for another one" for reference in missing}
        self.load_models(plan, names)

    def _first(self, waiting: Sequence[Any], request: CallContext, error: Exception | None) -> BaseException:
        """Return the first failure of all waits. error: that of this wait; None if it took too long."""
        with self._lock:
            if self.over is None:
                silent = self._find_gone()
                self.over, self._failed = self._meaning(waiting, request, error, silent), (waiting, request)
            return self.over

    def _meaning(
        self, waiting: Sequence[Any], request: CallContext, error: Exception | None, silent: Collection[Address]
    ) -> BaseException:
        # A closed connection that others of the group report is a consequence of the process that is gone.
        link_error = wrapped_link_error(error)
        for who in sorted(self.gone, key=lambda address: address not in request.who):
            return process_gone_error(who, self.gone[who], request, self.logs, link_error)
        if error is not None and link_error is None:
            return process_error(error, self._names.get(failed_actor_id(error), request.who[0]), request, self.logs)
        waits, slow = self._waits(silent), self._unanswered(waiting, request)
        if link_error is not None:
            mute = next((who for who in request.who if who in silent), None)
            return broken_link_error(mute, link_error, request, self.logs, waits.explain_waits(slow))
        return unresponsive_error(
            waits.process_to_blame(slow) or request.who[0], self.seconds, request, self.logs, waits.explain_waits(slow)
        )

    def _waits(self, silent: Collection[Address]) -> WaitGraph:
        """Ask the processes that answer what they wait for."""
        import ray

        asked: dict[Any, Address] = {
            self.call(who, Worker.report_activity): who
            for who in self.who
            if who not in self.gone and who not in silent
        }
        answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=_GRACE) if asked else ([], [])
        activities: dict[Address, ActivityReport] = {}
        for reference in answered:
            # A process that fails to report must not hide the reports of the others.
            with suppress(Exception):
                activities[asked[reference]] = ray.get(reference)
        return WaitGraph.from_reports(activities, silent)

    def _find_gone(self) -> set[Address]:
        """Ask every process whether it is alive, which a busy one answers too, and record those that are gone. Return
        those that do not answer."""
        import ray

        asked: dict[Any, Address] = {self.call(who, Worker.pid): who for who in self.who if who not in self.gone}
        answered, silent = ray.wait(list(asked), num_returns=len(asked), timeout=_GRACE)
        for reference in answered:
            try:
                ray.get(reference)
            except (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError) as error:
                if not getattr(error, "actor_init_failed", False):
                    self.gone[asked[reference]] = process_end_reason(error)
        return {asked[reference] for reference in silent}

    def _unanswered(self, references: Sequence[Any], request: CallContext) -> set[Address]:
        import ray

        _, waiting = ray.wait(list(references), num_returns=len(references), timeout=0)
        asked = zip(request.answering_processes, references, strict=True)
        return {who for answering, reference in asked if reference in waiting for who in answering}

    def _end_silent(self, references: Sequence[Any], request: CallContext) -> None:
        """Kill the processes of a failed wait that do not answer at all, e.g. stopped ones. Processes that wait for
        them then fail, and can be asked for what they have."""
        import ray

        silent = self._find_gone() & self._unanswered(references, request)
        if silent:
            # A busy machine may answer late, so they get a second chance.
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


_CONCURRENCY_GROUPS: dict[object, str] = {
    **dict.fromkeys(
        (Worker.pid, Worker.report_activity, Worker.close, Worker.forget_step_except, Worker.refresh_weights), ROWS
    ),
    **dict.fromkeys(
        (Worker.source_row_counts, Worker.last_changed_step, Worker.hold_weights, Worker.release_held_weights), ROWS
    ),
    **dict.fromkeys((Worker.give_up_rows, Worker.give_up_longer_rows, Worker.abandoned_parts), ROWS),
    **dict.fromkeys((Worker.row_texts, Worker.node_progress), ROWS),
    Worker.write_checkpoint: SAVES,
    **dict.fromkeys((Worker.sample_rows, Worker.continue_rows, Worker.next_sampled_part), SAMPLES),
}
"""Methods that a process runs beside its work, as it packs rows, and the concurrency group of their threads: a step may
end while a later one runs, and newer weights and other requests' rows arrive while rows are sampled."""
_SLICE = 0.5
_GRACE = 5.0
"""Seconds in which a living process answers."""
_PATIENCE = 60.0
"""Seconds in which a process that works on a failed request comes to an end of it; after that it is taken to hang."""
_CLOSING = 2.0


def _fails(reference: Any) -> bool:
    import ray

    try:
        ray.get(reference, timeout=0)
    except Exception:
        return True
    return False
