"""Turns the failure of a process into a message: which process failed, what it was asked for, why, and what to do."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rlgraph.backends.device_full import device_full_error, is_device_full
from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.exchange.digest import MovedPart
from rlgraph.backends.exchange.link import LinkError
from rlgraph.backends.ray.row_refs import Address
from rlgraph.errors import NO_SPAN, Diagnostic, Related, RlgraphError, RunError, Span
from rlgraph.ir.graph import Node
from rlgraph.ir.plan import HOST

LOST = ("E0740", "E0742")
"""The error codes of a process that is gone, and of one that does not answer."""


def is_process_lost(error: BaseException) -> bool:
    """Return whether an error says that a process is gone or does not answer."""
    return isinstance(error, RunError) and any(diagnostic.code in LOST for diagnostic in error.diagnostics)


@dataclass(frozen=True)
class CallContext:
    """Which processes were asked for what, as messages say if it fails."""

    who: tuple[Address, ...]
    """All processes that were asked."""
    doing: str
    """What they do, e.g. `train` of `actor`."""
    node: Node | None = None
    """The node whose work it is."""
    calls: tuple[tuple[Address, ...], ...] = ()
    """For each reference, the processes that have answered when it is there; empty if each process has a reference of
    its own."""

    @property
    def answering_processes(self) -> tuple[tuple[Address, ...], ...]:
        return self.calls or tuple((who,) for who in self.who)

    @property
    def source_span(self) -> Span:
        return self.node.span if self.node else NO_SPAN


def work_phrase(node: Node) -> str:
    """Return the words for a node's work in messages."""
    return f"`{node.op}` for `{node.name}`" if node.outputs else f"`{node.op}`"


def process_name(who: Address) -> str:
    """Return the name of a process in messages."""
    return f"rank {who[1]} of {who[0]}" if who[0] != HOST else "the host process"


def process_gone_error(
    who: Address, why: str, request: CallContext, logs: str, told: LinkError | None = None
) -> RunError:
    """Return the error for a process that has ended. told: a broken link to it, as another process reports it."""
    hint = f"a process is often ended when memory runs out: give it more, or smaller work; logs are in {logs}"
    more = f"; {told}" if told else ""
    message = f"{process_name(who)} is gone: {why}; it was asked for {request.doing}{more}"
    return RunError(Diagnostic("E0740", message, request.source_span, hint))


def broken_link_error(
    who: Address | None, why: LinkError, request: CallContext, logs: str, notes: tuple[Related, ...] = ()
) -> RunError:
    """Return the error for a transfer or collective that does not progress. who: the process that does not answer; None
    if all do. notes: who waits for whom."""
    silent = f"{process_name(who)} does not answer" if who else "processes do not reach each other"
    hint = f"if something is only slow, give it longer with `--timeout SECONDS`; logs are in {logs}"
    return RunError(Diagnostic("E0742", f"{silent}: it was {request.doing}; {why}", request.source_span, hint, notes))


def wrong_weights_error(model: str, part: MovedPart, node: Node) -> RunError:
    """Return the error for weights that are not what was sent."""
    message = (
        f"the weights of `{model}` that {part.destination} has are not those that {part.source} sent: "
        f"{part.description} differs"
    )
    hint = "go on from the last checkpoint; if it happens again, look for a damaged device or link"
    return RunError(Diagnostic("E0743", message, node.span, hint))


def unresponsive_error(
    who: Address, seconds: float, request: CallContext, logs: str, notes: tuple[Related, ...] = ()
) -> RunError:
    """Return the error for a process that does not answer. notes: who waits for whom."""
    hint = f"if it is only slow, give it longer with `--timeout SECONDS`; logs are in {logs}"
    message = f"{process_name(who)} has not answered for {seconds:g} s: it was asked for {request.doing}"
    return RunError(Diagnostic("E0742", message, request.source_span, hint, notes))


def process_error(error: BaseException, who: Address, request: CallContext, logs: str) -> RlgraphError:
    """Return the error for an exception in a process, without what Ray has wrapped around it."""
    import ray.exceptions as lost

    cause = _cause(error)
    if isinstance(cause, RlgraphError):
        return cause
    if is_device_full(cause):
        return device_full_error(cause, request.doing, request.source_span, process_name(who))
    if isinstance(cause, EngineError):
        return engine_refused_error(cause, request)
    if isinstance(cause, lost.ActorUnavailableError):
        # The actor may come back, but what it was asked for is lost.
        return process_gone_error(who, process_end_reason(cause), request, logs)
    if isinstance(cause, (lost.ObjectStoreFullError, lost.OutOfDiskError)):
        message = (
            f"there is no room for the rows that {process_name(who)} sends: Ray's object store and its disk are full"
        )
        hint = (
            "let fewer rows travel (a smaller batch, fewer columns), make room on the disk, "
            "or `ray start --object-store-memory BYTES` and `--address`"
        )
        return RunError(Diagnostic("E0741", f"{message}; they are for {request.doing}", request.source_span, hint))
    if isinstance(cause, ImportError) or getattr(error, "actor_init_failed", False):
        hint = f"every machine needs the same rlgraph, Ray, torch and engines; logs are in {logs}"
        return RunError(
            Diagnostic("E0745", f"{process_name(who)} cannot be started: {_last(cause)}", request.source_span, hint)
        )
    hint = f"this may be a bug of rlgraph: please report it with the logs in {logs}"
    return RunError(
        Diagnostic(
            "E0744",
            f"{process_name(who)} failed: {_last(cause)}; it was asked for {request.doing}",
            request.source_span,
            hint,
        )
    )


def engine_refused_error(error: EngineError, request: CallContext) -> RunError:
    """Return the error for an engine that cannot do what it was asked for."""
    return RunError(Diagnostic("E0731", f"{request.doing}: {error}", request.source_span, error.hint))


def process_end_reason(error: BaseException) -> str:
    """Return Ray's words for the end of a process, without its general advice."""
    import ray.exceptions as lost

    if isinstance(error, lost.ActorUnavailableError):
        return "its process or its machine cannot be reached"
    detail = re.search(r"exit detail: (.*?)\.(?: Some common causes| There are some|\s*$)", str(error), re.DOTALL)
    return detail[1] if detail else _last(error)


def failed_actor_id(error: BaseException) -> str:
    """Return the id of the actor in which an error began, or of the sender where rows did not arrive; empty if
    unknown."""
    cause = _cause(error)
    if actor := getattr(cause, "actor_id", None):
        return str(actor)
    ids = re.findall(r"actor_id=(\w+)", str(error))
    return ids[-1] if ids else ""


def wrapped_link_error(error: BaseException | None) -> LinkError | None:
    """Return the link failure that an error wraps, if any."""
    cause = None if error is None else _cause(error)
    return cause if isinstance(cause, LinkError) else None


def _cause(error: BaseException) -> BaseException:
    """Return the original error, which Ray wraps once for each process that it passes through."""
    while isinstance(inner := getattr(error, "cause", None), BaseException):
        error = inner
    return error


def _last(error: BaseException) -> str:
    """Return an exception in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    # The last line of Ray's own exceptions quotes the one that matters.
    return last if type(error).__module__.startswith("ray.") else f"{type(error).__name__}: {last}".removesuffix(": ")
