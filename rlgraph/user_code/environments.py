"""Environments: the user's Python that answers an agent.

`env shell = python("envs.py:Shell", image="small")` names a class (or a function that makes an object) with
the methods

    reset(row: dict) -> str                             the first observation; "" or None where the prompt says it all
    step(action: str) -> (observation, reward, done)    str, float, bool
    (an observation may be a message or a list of messages too, where the prompt is messages)
    close()                                             not required

One object is made for each episode, from the options that are not rlgraph's (`image`). It lives in a process
of its own, which is shared by the episodes of a file, or `workers=` of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rlgraph.errors import Diagnostic, ProgramError, RunError
from rlgraph.user_code.child import Observation
from rlgraph.user_code.declared import DEFAULT_LIMIT_S
from rlgraph.user_code.files import Folders
from rlgraph.user_code.report import (
    CodeTarget,
    Signature,
    failed_call_error,
    load_signature,
    parse_target,
    require_arguments,
    user_options,
)
from rlgraph.user_code.spec import BAD_ARGUMENT, CallSpec, int_option, seconds_option, single_text_argument
from rlgraph.user_code.worker import CodeFailure, Worker, Workers, WrongValue, run_in_parallel

T = TypeVar("T")

EnvironmentSpec = CallSpec
OPTIONS = ("timeout", "workers")
NOT_AN_ENVIRONMENT = "E0729"


@dataclass(slots=True)
class Episode:
    """One episode of an environment, from its first observation to its end."""

    target: CodeTarget
    constants: Mapping[str, Any]
    limit_s: float
    worker: Worker = field(repr=False)
    key: int
    """The key of the environment's object in the process."""
    name: str
    """The name of the row in errors."""
    row: Mapping[str, Any] = field(default_factory=dict, repr=False)
    generation: int = 0
    turn: int = 0

    def reset(self, row: Mapping[str, Any]) -> Observation:
        """Begin with a row of the data, and return the first observation, empty where the prompt says it all."""
        self.row, self.turn = row, 0
        self._request("make", "at its start", self.target.name, dict(self.constants))
        self.generation = self.worker.generation
        first: Observation = self._request("reset", "in `reset`", dict(row))
        return first

    def step(self, action: str) -> tuple[Observation, float, bool]:
        """Return what the environment answers: observation, reward, whether the episode is over."""
        self.turn += 1
        answer: tuple[Observation, float, bool] = self._request("step", f"in turn {self.turn}", action)
        return answer

    def close(self) -> None:
        """End the episode."""
        if self.generation and self.generation == self.worker.generation and self.worker.is_running:
            self._request("close", "in `close`")

    def _request(self, operation: str, when: str, *arguments: Any) -> Any:
        where = f"on {self.name}, {when}"
        if self.generation and self.generation != self.worker.generation:
            raise failed_call_error(self.target, self.worker.lost_episode_error(), where, self.row)
        try:
            return self.worker.request(operation, self.key, *arguments, limit_s=self.limit_s)
        except CodeFailure as failure:
            raise self._error(failure, where) from None

    def _error(self, failure: CodeFailure, where: str) -> RunError:
        hint = ""
        if isinstance(failure, WrongValue) and failure.what.startswith("5 values from `step`"):
            hint = "those of gymnasium become: observation, reward, terminated or truncated"
        return failed_call_error(self.target, failure, where, self.row, hint)


@dataclass(frozen=True, slots=True)
class Environment:
    """Makes the episodes of one `env` declaration."""

    target: CodeTarget
    constants: Mapping[str, Any]
    limit_s: float
    """The limit of one call of a method."""
    workers: tuple[Worker, ...] = field(repr=False)
    turns: Iterator[Worker] = field(repr=False)
    """The processes in turn, without end."""

    def __call__(self, name: object) -> Episode:
        """Return an episode for the row called `name`; its `reset` makes the user's object.

        Calls of one process wait for each other: `run_calls` steps episodes side by side.
        """
        worker = next(self.turns)
        return Episode(self.target, self.constants, self.limit_s, worker, worker.new_object_key(), str(name))

    def run_calls(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Return the results of calls of its episodes, in their order; episodes of different processes run side by
        side."""
        return run_in_parallel(self.workers, calls)

    def end_processes(self) -> None:
        """End the processes."""
        for worker in self.workers:
            worker.close()


def open_environment(spec: EnvironmentSpec, folders: Folders, workers: Workers | None = None) -> Environment:
    """Return the environment that a program declares. This loads the user's file, so only a run may do it.

    With the same `workers` as a function, it shares the module of its file. Raises `ProgramError`.
    """
    check_environment(spec)
    target = parse_target(spec.args[0], folders, spec.argument_span(0), spec.kind)
    limit_s = seconds_option(spec, "timeout", DEFAULT_LIMIT_S)
    pool = workers or Workers()
    processes = tuple(pool.worker_for(target.code, slot) for slot in range(int_option(spec, "workers", 1) or 1))
    signature = load_signature(target, processes[0])
    constants = user_options(spec, OPTIONS, signature, target.name)
    _check_class(target, signature)
    require_arguments(target, signature, constants)
    return Environment(target, constants, limit_s, processes, itertools.cycle(processes))


def check_environment(spec: EnvironmentSpec) -> None:
    """Raise an error for what is wrong with an `env` declaration, as far as can be seen without any file."""
    if spec.kind != "python":
        message = f"there are no environments of kind '{spec.kind}'"
        raise ProgramError(Diagnostic(BAD_ARGUMENT, message, spec.span, 'as in `python("envs.py:Shell")`'))
    single_text_argument(spec, "a file and a class in it", 'python("envs.py:Shell")')
    seconds_option(spec, "timeout", DEFAULT_LIMIT_S)
    int_option(spec, "workers", 1)


def _check_class(target: CodeTarget, signature: Signature) -> None:
    missing = [name for name in ("reset", "step") if signature.is_class and name not in signature.methods]
    if missing:
        message = f"`{target.name}` is no environment: it has no method `{missing[0]}`"
        hint = "it needs reset(row) -> str and step(action) -> (observation, reward, done)"
        raise ProgramError(Diagnostic(NOT_AN_ENVIRONMENT, message, target.span, hint))
