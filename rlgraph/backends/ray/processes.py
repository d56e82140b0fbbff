"""The processes of a plan and how they are called: Ray actors, or objects in this process to debug them."""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from rlgraph.backends.ray.remote import Address
from rlgraph.backends.ray.worker import Job, Worker
from rlgraph.errors import NO_SPAN, Diagnostic, RlgraphError, RunError
from rlgraph.ir.graph import Node

ROWS = "rows"
"""The threads of an actor that send rows while it computes."""


class Processes(ABC):
    """Calls go out at once and are answered later. What is passed on is a reference."""

    def __init__(self, jobs: Mapping[Address, Job], seconds: float) -> None:
        self.jobs, self.seconds = jobs, seconds
        self.who = tuple(jobs)

    def open(self) -> list[str]:
        """Loads the models everywhere. Names of the things that live across steps."""
        groups = {job.group.name: job.group for job in self.jobs.values()}
        meeting: dict[str, dict[str, str]] = {}
        for group in groups.values():
            places = {"group": 0} | {str(copy): ranks[0] for copy, ranks in enumerate(group.copies())}
            who = tuple((group.name, rank) for rank in places.values())
            found = self.get([self.call(each, "address") for each in who], What(who, "the start of the process"))
            meeting[group.name] = dict(zip(places, found, strict=True))
        opened = self.get([self.call(each, "open", meeting[each[0]]) for each in self.who], What(self.who, "opening"))
        return [name for names in opened for name in names]

    @abstractmethod
    def call(self, who: Address, method: str, *args: Any) -> Any:
        """A reference to the answer."""

    @abstractmethod
    def get(self, references: Sequence[Any], what: What) -> list[Any]:
        """The answers; raises RunError where a process failed, is gone, or does not answer."""

    @abstractmethod
    def give_up(self) -> None:
        """Whoever waits in `get` fails soon."""

    @abstractmethod
    def stop(self) -> None:
        """Ends all processes, whatever they do."""


@dataclass(frozen=True)
class What:
    """What a wait is for, to say so if it fails."""

    who: tuple[Address, ...]
    """For each reference, who answers."""
    doing: str
    """`train` of `actor`."""
    node: Node | None = None
    """Where the program asks for it."""


def shown(who: Address) -> str:
    """How messages call a process."""
    return f"rank {who[1]} of {who[0]}" if who[0] != "host" else "the host process"


_TOGETHER = ("meet", "exchange", "write_part")
"""Calls in which processes wait for each other."""


class InThisProcess(Processes):
    """For `--debug`: each process is an object here, and a call is a call, so that breakpoints work."""

    def __init__(self, jobs: Mapping[Address, Job]) -> None:
        super().__init__(jobs, math.inf)
        self.workers = {who: Worker(job) for who, job in jobs.items()}
        self._locks = {who: threading.RLock() for who in jobs}
        self._threads = ThreadPoolExecutor(len(jobs), "process")

    def call(self, who: Address, method: str, *args: Any) -> Any:
        bound = getattr(self.workers[who], method)
        if method in _TOGETHER:
            return self._threads.submit(bound, *args)
        with self._locks[who]:
            return bound(*args)

    def get(self, references: Sequence[Any], what: What) -> list[Any]:
        return [each.result() if isinstance(each, Future) else each for each in references]

    def give_up(self) -> None:
        """Nobody waits: a call is a call."""

    def stop(self) -> None:
        for worker in self.workers.values():
            worker.close()


class Actors(Processes):
    """Ray actors. One failure ends them all: ranks that wait for the one that failed would wait for ever."""

    def __init__(
        self, jobs: Mapping[Address, Job], handles: Mapping[Address, Any], seconds: float, release: Callable[[], None]
    ) -> None:
        """seconds: longest wait for an answer. release: gives back what the actors ran on."""
        super().__init__(jobs, seconds)
        self.handles, self.release = handles, release
        self.over = False
        """Nobody waits for answers any more."""

    def call(self, who: Address, method: str, *args: Any) -> Any:
        bound = getattr(self.handles[who], method)
        return (bound.options(concurrency_group=ROWS) if method == "pack" else bound).remote(*args)

    def get(self, references: Sequence[Any], what: What) -> list[Any]:
        import ray

        waiting = list(references)
        places = {reference: place for place, reference in enumerate(references)}
        found: dict[int, Any] = {}
        left = self.seconds
        while waiting:
            if self.over:
                raise RunError(Diagnostic("E0743", f"{what.doing} was given up: something else failed", _span(what)))
            # Short waits, so that the failure of another node ends this one too.
            done, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=min(_SLICE, left), fetch_local=False)
            for reference in done:
                place = places[reference]
                try:
                    found[place] = ray.get(reference, timeout=self.seconds)
                except Exception as error:
                    raise self.failed(what.who[place], what, error) from None
            left -= 0 if done else _SLICE
            if waiting and left <= 0:
                late = what.who[places[waiting[0]]]
                raise RunError(
                    Diagnostic(
                        "E0742", f"{shown(late)} has not answered for {self.seconds:.0f} s: {what.doing}", _span(what),
                        "if it is only slow, give it longer: --timeout SECONDS; look at its log with `ray logs`",
                    )
                )  # fmt: skip
        return [found[place] for place in range(len(references))]

    def give_up(self) -> None:
        self.over = True

    def failed(self, who: Address, what: What, error: Exception) -> RlgraphError:
        """What a failure means to the user."""
        import ray.exceptions as lost

        cause = getattr(error, "cause", None)
        if isinstance(cause, RlgraphError):
            return cause
        if isinstance(error, (lost.RayActorError, lost.WorkerCrashedError, lost.NodeDiedError)):
            message = f"{shown(who)} is gone while {what.doing} was asked of it: {_first(error)}"
            hint = "a process is often ended when memory runs out; see its log with `ray logs`, and give it more or smaller work"
            return RunError(Diagnostic("E0740", message, _span(what), hint))
        if isinstance(error, (lost.ObjectStoreFullError, lost.OutOfDiskError, lost.OutOfMemoryError)):
            message = f"there is no room for the rows that {shown(who)} sends: {what.doing}"
            hint = "raise Ray's object store (`ray start --object-store-memory`), or let fewer rows travel: a smaller batch"
            return RunError(Diagnostic("E0741", message, _span(what), hint))
        if isinstance(error, lost.GetTimeoutError):
            return RunError(Diagnostic("E0742", f"the answer of {shown(who)} does not arrive: {what.doing}", _span(what)))
        return RunError(Diagnostic("E0744", f"{shown(who)} failed: {what.doing}: {_first(cause or error)}", _span(what),
                                   "this may be a bug of rlgraph: please report it with the log of the process"))  # fmt: skip

    def stop(self) -> None:
        import ray

        for handle in self.handles.values():
            ray.kill(handle)
        self.release()


_SLICE = 0.5


def _first(error: BaseException) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"


def _span(what: What) -> Any:
    return what.node.span if what.node else NO_SPAN
