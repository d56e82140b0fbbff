"""The processes of a plan and how they are called: as Ray actors, or as objects in this process for debugging."""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast

import torch

from rlgraph.backends.device_full import device_full_error, is_device_full
from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.ray.failures import CallContext, engine_refused_error, process_name
from rlgraph.backends.ray.piece_store import Wire, Wish
from rlgraph.backends.ray.row_refs import Address
from rlgraph.backends.ray.worker import Worker, WorkerSpec
from rlgraph.ir.layout import even_range
from rlgraph.ir.plan import Plan
from rlgraph.ops.nodes import NODES, user_code_of
from rlgraph.passes.placement.model_load_order import model_load_rounds

P = ParamSpec("P")
T = TypeVar("T")


Losing = Callable[[Mapping[Address, str]], Sequence[Address] | None]
"""Is given the processes that have ended, and why; returns all those that the run goes on without, or None if it
cannot."""


class Reference(Generic[T]):
    """An answer that may not have arrived yet, in a form that only the `Processes` that gave it can read."""


class Processes(ABC):
    """The processes of a plan. Calls are sent at once and answered later. The public methods of `Worker` can be called;
    a reference may stand for an argument."""

    def __init__(self, specs: Mapping[Address, WorkerSpec], seconds: float) -> None:
        self.specs, self.seconds = specs, seconds
        self.who = tuple(specs)
        """The processes, without those that the run goes on without."""
        self.gone: dict[Address, str] = {}
        """Processes that have ended, and why."""
        self.waited: Callable[[CallContext], None] = lambda request: None
        """Is told now and then which request is still waited for; may ask processes, and must not wait."""
        self.counts: object = None
        """The folder in which processes on hard devices count what they hold; it is there as long as this is."""
        self._sending = {group: threading.RLock() for group, _ in specs}

    def load_models(self, plan: Plan, names: Collection[str] | None = None) -> list[str]:
        """Load the models everywhere, held as `plan` says, and return the names of the values that live across steps.
        names: the groups that were restarted; None opens all groups for the first time."""
        groups = {spec.group.name: spec.group for spec in self.specs.values()}
        groups = {name: group for name, group in groups.items() if names is None or name in names}
        meeting: dict[str, dict[str, str]] = {}
        for group in groups.values():
            places = {"group": 0} | {str(copy): ranks[0] for copy, ranks in enumerate(group.replica_ranks())}
            who = tuple((group.name, rank) for rank in places.values())
            addresses = self.get(
                [self.call(address, Worker.start_rendezvous) for address in who],
                CallContext(who, "the start of the process"),
            )
            meeting[group.name] = dict(zip(places, addresses, strict=True))
        holdings = {
            name: {model: plan.holding(model, name) for model in group.models} for name, group in groups.items()
        }
        turned = {
            name: tuple(model for model in group.models if plan.has_reversed_stages(model, name))
            for name, group in groups.items()
        }
        opened = []
        for round_groups in model_load_rounds(plan):
            who = tuple(address for address in self.who if address[0] in round_groups and address[0] in groups)
            opening = [
                self.call(address, Worker.load_models, meeting[address[0]], holdings[address[0]], turned[address[0]])
                for address in who
            ]
            opened += self.get(opening, CallContext(who, "opening"))
        if names is None:
            self._reach(plan)
        return [name for things in opened for name in things]

    def _reach(self, plan: Plan) -> None:
        """Give processes that act in an environment of another group handles of that group's processes: each
        data-parallel replica gets a share of them, or one where they are fewer than replicas."""
        program = self.specs[self.who[0]].program
        acted_in = {user_code_of(node) for _, node in program.walk() if NODES[node.op].uses_model}
        acting = {role.group for role in plan.roles if NODES[role.operation].foreign}
        callers: list[Address] = []
        answers: list[Reference[None]] = []
        for name, runner in (
            (outside.name, plan.group_of_code(outside.name)) for outside in program.outside if outside.name in acted_in
        ):
            for group in plan.groups:
                if runner is None or group.name not in acting:
                    continue
                size, copies = runner.mesh.rank_count, group.replica_ranks()
                for copy, ranks in enumerate(copies):
                    environment_ranks = range(*even_range(size, len(copies), copy)) or [copy % size]
                    handles = [self.remote_handle((runner.name, rank)) for rank in environment_ranks]
                    for rank in ranks:
                        callers.append((group.name, rank))
                        answers.append(self.call(callers[-1], Worker.connect_environment, name, handles, len(callers)))
        if callers:
            self.get(answers, CallContext(tuple(callers), "opening"))

    def call_lock(self, group: str) -> AbstractContextManager[object]:
        """Return a lock to hold while all ranks of a replica are called one by one, so that every rank gets the calls
        of different threads in the same order."""
        return self._sending[group]

    @abstractmethod
    def remote_handle(self, who: Address) -> Any:
        """Return what another process of the run needs to call this one."""

    @abstractmethod
    def call(
        self, who: Address, method: Callable[Concatenate[Worker, P], T], *args: P.args, **named: P.kwargs
    ) -> Reference[T]:
        """Call a method of a process: `call(who, Worker.save, model, folder)`."""

    @abstractmethod
    def call_through_leader(
        self,
        through: Address,
        to: Sequence[Address],
        method: Callable[Concatenate[Worker, P], T],
        *args: P.args,
        **named: P.kwargs,
    ) -> Reference[list[T]]:
        """Call a method of other ranks of a replica through its leader, with one call for all of them."""

    @abstractmethod
    def pack_rows(self, who: Address, parcels: Sequence[Sequence[Wish]]) -> list[Reference[Wire]]:
        """Have a process pack the rows of each parcel."""

    @abstractmethod
    def get(
        self,
        references: Sequence[Reference[T]],
        request: CallContext,
        beside: Sequence[Reference[Any]] = (),
        *,
        alone: bool = False,
        losing: Losing | None = None,
    ) -> list[T]:
        """Wait for the answers. Raises RunError where a process failed, is gone, or does not answer. beside: answers
        that are not waited for, but whose failure ends the wait. alone: a failure of other waits does not end this one.
        losing: is asked when processes are gone; the answer of those that the run goes on without is None."""

    @abstractmethod
    def wait_for_first(self, references: Sequence[Reference[Any]], beside: Sequence[Reference[Any]] = ()) -> int:
        """Wait until one of these answers has arrived, or something has failed, which `get` then raises. Return its
        index."""

    def answers_if_ready(self, references: Sequence[Reference[T]]) -> list[T] | None:
        """Return the answers if all have arrived, without waiting; None otherwise, and an empty list where a process
        has failed, which `get` tells whoever waits for it."""
        return None

    def call_all(
        self, request: CallContext, method: Callable[Concatenate[Worker, P], T], *args: P.args, **named: P.kwargs
    ) -> list[T]:
        """Call the same method of all processes of a request, and wait."""
        return self.get([self.call(who, method, *args, **named) for who in request.who], request)

    def call_idle(
        self,
        who: Sequence[Address],
        enough: Callable[[Mapping[Address, T]], bool],
        request: CallContext,
        method: Callable[Concatenate[Worker, P], T],
        *args: P.args,
        **named: P.kwargs,
    ) -> dict[Address, T]:
        """Return the answers of the processes that are alive and idle. After a failure some may wait for ever: the wait
        then ends when the answers are `enough`, or after a while."""
        asked = [self.call(address, method, *args, **named) for address in who]
        return dict(zip(who, self.get(asked, request), strict=True))

    @abstractmethod
    def fail_waiters(self, why: BaseException) -> None:
        """Make whoever waits in `get` fail soon, for this reason."""

    @abstractmethod
    def allow_calls(self) -> None:
        """Allow calls again after a failure or an interrupt; calls to processes that are gone fail at once."""

    @abstractmethod
    def replace_groups(self, plan: Plan, names: Collection[str]) -> None:
        """Start new processes in the places of all processes of some groups, with models as they were first loaded.
        Raises RunError if they cannot be started."""

    @abstractmethod
    def stop(self) -> None:
        """End all processes, whatever they do."""


_COLLECTIVE: tuple[object, ...] = (Worker.join_link, Worker.exchange_weights, Worker.write_folder_file)
"""Calls in which processes wait for each other."""
_WHILE_IT_WAITS: tuple[object, ...] = (Worker.write_checkpoint, Worker.release_held_weights)
"""Calls that a process may run in the middle of another one."""


class InlineProcesses(Processes):
    """For `--debug`: each process is an object here, and calls are plain function calls, so that breakpoints work."""

    def __init__(self, specs: Mapping[Address, WorkerSpec]) -> None:
        super().__init__(specs, math.inf)
        self.workers = {who: Worker(spec) for who, spec in specs.items()}
        self._locks = {who: threading.RLock() for who in specs}
        self._threads = ThreadPoolExecutor(len(specs), "process")
        self._waiting: dict[Address, Future[Any]] = {}
        """The collective call that each process is in; its next call waits for that."""

    def remote_handle(self, who: Address) -> Any:
        return self.workers[who]

    def call(
        self, who: Address, method: Callable[Concatenate[Worker, P], T], *args: P.args, **named: P.kwargs
    ) -> Reference[T]:
        worker = self.workers[who]
        answer: T | Future[T] | EngineError | torch.OutOfMemoryError
        if method in _WHILE_IT_WAITS:
            return cast("Reference[T]", method(worker, *args, **named))
        if who in self._waiting:
            wait([self._waiting.pop(who)])
        if method in _COLLECTIVE:
            answer = self._waiting[who] = self._threads.submit(method, worker, *args, **named)
        else:
            with self._locks[who]:
                try:
                    answer = method(worker, *args, **named)
                except (EngineError, torch.OutOfMemoryError) as error:
                    answer = error
        return cast("Reference[T]", answer)

    def call_through_leader(
        self,
        through: Address,
        to: Sequence[Address],
        method: Callable[Concatenate[Worker, P], T],
        *args: P.args,
        **named: P.kwargs,
    ) -> Reference[list[T]]:
        raise AssertionError("in this process a group is one object")

    def pack_rows(self, who: Address, parcels: Sequence[Sequence[Wish]]) -> list[Reference[Wire]]:
        return [self.call(who, Worker.pack_parcel, parcel) for parcel in parcels]

    def get(
        self,
        references: Sequence[Reference[T]],
        request: CallContext,
        beside: Sequence[Reference[Any]] = (),
        *,
        alone: bool = False,
        losing: Losing | None = None,
    ) -> list[T]:
        answers = [reference.result() if isinstance(reference, Future) else reference for reference in references]
        for answer in answers:
            if isinstance(answer, Exception) and is_device_full(answer):
                raise device_full_error(answer, request.doing, request.source_span, process_name(request.who[0]))
            if isinstance(answer, EngineError):
                raise engine_refused_error(answer, request)
        return cast("list[T]", answers)

    def wait_for_first(self, references: Sequence[Reference[Any]], beside: Sequence[Reference[Any]] = ()) -> int:
        return 0

    def fail_waiters(self, why: BaseException) -> None:
        """Do nothing: nobody waits."""

    def allow_calls(self) -> None:
        """Do nothing: no call is ever interrupted."""

    def replace_groups(self, plan: Plan, names: Collection[str]) -> None:
        raise AssertionError("in this process nobody is lost")

    def stop(self) -> None:
        for worker in self.workers.values():
            worker.close()
