"""Environments that are a class of the user's.

`env shell = python("envs.py:Shell", image="small")` names a class (or a function that makes an object) with
the methods

    reset(row: dict) -> str                             the first observation; "" or None where the prompt says it all
    step(action: str) -> (observation, reward, done)    str, float, bool
    (an observation may be a message or a list of messages too, where the prompt is messages)
    close()                                             not required

With several players (`interact(shell, rows, white=actor, black=rival, ...)`) they say whose turn it is:

    reset(row: dict) -> (player, observation)           the player that speaks first, and what it is told
    step(action: str) -> (player, observation, reward, done)
    (an observation that is None is what the others have said; a reward may be a dict with those of several players)
    reset(row: dict, players: tuple) -> ...             for any number of players: their names, as `interact` has them

One object is made for each episode, from the options that are not rlgraph's (`image`). It lives in a process
of its own, which is shared by the episodes of a file, or `workers=` of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rlgraph.errors import Diagnostic, ProgramError, RunError
from rlgraph.user_code.child import Observation, PlayerAnswer, PlayerTurn
from rlgraph.user_code.code_diagnostics import (
    CallSignature,
    CodeTarget,
    failed_call_error,
    load_signature,
    parse_target,
    require_arguments,
    user_options,
)
from rlgraph.user_code.environments import Environment, EnvironmentSpec, ToolCall
from rlgraph.user_code.files import SearchFolders
from rlgraph.user_code.function_declarations import DEFAULT_LIMIT_S
from rlgraph.user_code.spec import flag_option, int_option, seconds_option, single_text_argument
from rlgraph.user_code.static_checks import python_reference_faults
from rlgraph.user_code.worker import CodeFailure, Worker, Workers, WrongValue

OPTIONS = ("timeout", "workers", "trial")
NOT_AN_ENVIRONMENT = "E0729"


@dataclass(slots=True)
class ObjectEpisode:
    """One episode, which is an object of the user's class."""

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
    last_calls: tuple[ToolCall, ...] = ()

    def reset(self, row: Mapping[str, Any]) -> Observation:
        """Begin with a row of the data, and return the first observation, empty where the prompt says it all."""
        self._make(row)
        first: Observation = self._request("reset", "in `reset`", dict(row))
        return first

    def begin_players(self, row: Mapping[str, Any], players: tuple[str, ...]) -> PlayerTurn:
        """Begin with a row of the data, and return which of the players speaks first, and what it is told."""
        self._make(row)
        first: PlayerTurn = self._request("begin_players", "in `reset`", dict(row), players)
        return first

    def step_players(self, action: str, players: tuple[str, ...], acting: str) -> PlayerAnswer:
        """Return what follows an action of one of the players."""
        self.turn += 1
        answer: PlayerAnswer = self._request("step_players", f"in turn {self.turn}", action, players, acting)
        return answer

    def _make(self, row: Mapping[str, Any]) -> None:
        self.row, self.turn = row, 0
        self._request("make_environment", "at its start", self.target.name, dict(self.constants))
        self.generation = self.worker.generation

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
        hint = failure.hint if isinstance(failure, WrongValue) else ""
        if isinstance(failure, WrongValue) and failure.what.startswith("5 values from `step`"):
            hint = "those of gymnasium become: observation, reward, terminated or truncated"
        return failed_call_error(self.target, failure, where, self.row, hint)


def open_class_environment(spec: EnvironmentSpec, folders: SearchFolders, pool: Workers) -> Environment:
    """Return the environment of a class. Raises `ProgramError`."""
    target = parse_target(spec.args[0], folders, spec.argument_span(0), spec.kind)
    limit_s = seconds_option(spec, "timeout", DEFAULT_LIMIT_S)
    processes = tuple(pool.worker_for(target.code, slot) for slot in range(int_option(spec, "workers", 1) or 1))
    signature = load_signature(target, processes[0])
    constants = user_options(spec, OPTIONS, signature, target.name)
    _check_class(target, signature)
    require_arguments(target, signature, constants)
    return environment_of_objects(target, constants, limit_s, processes, flag_option(spec, "trial", True))


def environment_of_objects(
    target: CodeTarget, constants: Mapping[str, Any], limit_s: float, processes: tuple[Worker, ...], tries: bool
) -> Environment:
    """Return an environment of which each episode is an object of the target's, in one process after the other. tries:
    it is tried before the first step."""
    turns = itertools.cycle(processes)

    def make_episode(name: str) -> ObjectEpisode:
        worker = next(turns)
        return ObjectEpisode(target, constants, limit_s, worker, worker.new_object_key(), name)

    return Environment(make_episode, processes, tries=tries)


def check_class_declaration(spec: EnvironmentSpec) -> None:
    """Raise an error for what is wrong with a declaration, as far as can be seen without any file."""
    single_text_argument(spec, "a file and a class in it", 'python("envs.py:Shell")')
    seconds_option(spec, "timeout", DEFAULT_LIMIT_S)
    int_option(spec, "workers", 1)
    flag_option(spec, "trial", True)


def class_declaration_faults(spec: EnvironmentSpec, folders: SearchFolders) -> list[Diagnostic]:
    """Return what is wrong with a declaration, without running the user's Python."""
    return python_reference_faults(spec, folders, OPTIONS, alone=True)


def _check_class(target: CodeTarget, signature: CallSignature) -> None:
    missing = [name for name in ("reset", "step") if signature.is_class and name not in signature.methods]
    if missing:
        message = f"`{target.name}` is no environment: it has no method `{missing[0]}`"
        hint = "it needs reset(row) -> str and step(action) -> (observation, reward, done)"
        raise ProgramError(Diagnostic(NOT_AN_ENVIRONMENT, message, target.span, hint))
