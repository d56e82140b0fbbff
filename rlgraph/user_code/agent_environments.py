"""Environments that are an agent: a function of the user's that asks the model itself, as a client of OpenAI's API.

`env bot = agent("bot.py:solve", timeout=60)` names a function that is called once for each episode:

    solve(row: dict, base_url: str, api_key: str, model: str, seed: int) -> a number, None, or with `returns=` several

It names what it needs of these. rlgraph serves the model at `base_url`, and an episode is what the function asks there.
It runs in a process of its own, one episode at a time, and there are `workers=` of them.
"""

from __future__ import annotations

import queue
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from rlgraph.errors import Diagnostic, ProgramError, did_you_mean
from rlgraph.user_code.code_diagnostics import (
    CodeTarget,
    load_signature,
    parse_target,
    require_arguments,
    user_options,
)
from rlgraph.user_code.environments import Environment, EnvironmentSpec, Episode
from rlgraph.user_code.files import SearchFolders
from rlgraph.user_code.function_declarations import DEFAULT_LIMIT_S
from rlgraph.user_code.outcomes import named_texts
from rlgraph.user_code.spec import BAD_ARGUMENT, CallSpec, int_option, seconds_option, single_text_argument, text_option
from rlgraph.user_code.static_checks import python_reference_faults
from rlgraph.user_code.worker import CodeFailure, Died, Raised, Worker, Workers

OPTIONS = ("timeout", "workers", "failed", "branches", "returns")
GIVEN = ("row", "base_url", "api_key", "model", "seed")
"""What the function is given, if it names it."""
BRANCHES = ("refuse", "skip", "all")
WORKERS = 16
"""The processes, where the declaration does not say."""
_EXAMPLE = 'agent("bot.py:solve")'


@dataclass(frozen=True, slots=True)
class AgentCall:
    """What the function is given for one episode."""

    row: Mapping[str, Any]
    base_url: str
    api_key: str
    model: str
    """The name by which it asks for the model."""
    seed: int
    """A number of this episode: the same whenever it is played again."""


@dataclass(frozen=True, slots=True)
class Agent:
    """A function of the user's that plays whole episodes."""

    target: CodeTarget
    named: frozenset[str]
    """The parameters that it has."""
    constants: Mapping[str, Any]
    """Those that the declaration gives."""
    returns: tuple[str, ...]
    """The names of the numbers that it returns, the first one the reward; empty: it returns the reward alone."""
    limit_s: float
    """The seconds that an episode may take besides those in which it waits for the model."""
    failed: float
    """The reward of an episode in which it fails."""
    branches: Literal["refuse", "skip", "all"]
    """What becomes of a request that does not go on from the last one: it is refused; or answered, and the last line
    alone is learned from (`skip`), or all of them may be."""
    processes: int
    """How many episodes it plays beside each other, at most."""
    idle: queue.SimpleQueue[Worker] = field(repr=False)
    """The processes that no episode uses."""

    def play(self, worker: Worker, call: AgentCall) -> list[float]:
        """Return the numbers that the function returns for an episode, in a process of `idle`; zeros where it returns
        nothing. Raises CodeFailure."""
        given = {name: getattr(call, name) for name in GIVEN if name in self.named and name not in self.constants}
        if "row" in given:
            given["row"] = dict(call.row)
        variables = {"OPENAI_BASE_URL": call.base_url, "OPENAI_API_KEY": call.api_key}
        numbers: list[float] = worker.request(
            "solve", self.target.name, {**self.constants, **given}, self.returns, variables, limit_s=float("inf")
        )
        return numbers

    def sentence(self, failure: CodeFailure) -> str:
        """Return what has failed in words, with the line of the user's that was running."""
        place = f", line {failure.line} of `{self.target.path}`" if failure.line and isinstance(failure, Raised) else ""
        return f"{failure.in_words}{place}"


@dataclass(eq=False)
class EndedByUs(Died):
    """rlgraph has ended an episode."""

    @property
    def in_words(self) -> str:
        return self.how


def check(spec: EnvironmentSpec) -> None:
    """Raise an error for what is wrong with a declaration, as far as can be seen without any file."""
    single_text_argument(spec, "a file and a function in it", _EXAMPLE)
    seconds_option(spec, "timeout", DEFAULT_LIMIT_S)
    int_option(spec, "workers", WORKERS)
    _failed_reward(spec)
    _branches(spec)
    named_texts(spec, "returns")


def faults(spec: EnvironmentSpec, folders: SearchFolders) -> list[Diagnostic]:
    """Return what is wrong with a declaration, without running the user's Python."""
    return python_reference_faults(spec, folders, OPTIONS, alone=True, given=GIVEN)


def open_agent(spec: EnvironmentSpec, folders: SearchFolders, pool: Workers) -> Environment:
    """Return the environment of an agent. Raises `ProgramError`."""
    target = parse_target(spec.args[0], folders, spec.argument_span(0), spec.kind)
    processes = tuple(
        pool.worker_for(target.code, slot) for slot in range(int_option(spec, "workers", WORKERS) or WORKERS)
    )
    signature = load_signature(target, processes[0])
    constants = user_options(spec, OPTIONS, signature, target.name)
    require_arguments(target, signature, constants, spec.kind, GIVEN)
    idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
    for worker in processes:
        idle.put(worker)
    agent = Agent(
        target,
        frozenset((*signature.named, *(GIVEN if signature.open_ended else ()))),
        constants,
        named_texts(spec, "returns"),
        seconds_option(spec, "timeout", DEFAULT_LIMIT_S),
        _failed_reward(spec),
        _branches(spec),
        len(processes),
        idle,
    )
    return Environment(_not_stepped, processes, agent=agent)


def _not_stepped(name: str) -> Episode:
    raise AssertionError("an agent plays its episodes itself")


def _failed_reward(spec: CallSpec) -> float:
    value = spec.options.get("failed", 0.0)
    if isinstance(value, bool) or not isinstance(value, int | float):
        message = f"`failed` must be a number, the reward of an episode in which the agent fails, not {value!r}"
        raise ProgramError(Diagnostic(BAD_ARGUMENT, message, spec.argument_span("failed"), "as in `failed=-1`"))
    return float(value)


def _branches(spec: CallSpec) -> Literal["refuse", "skip", "all"]:
    value = text_option(spec, "branches", "refuse")
    if value not in BRANCHES:
        message = f"`branches` must be refuse, skip or all, not {value!r}"
        raise ProgramError(
            Diagnostic(BAD_ARGUMENT, message, spec.argument_span("branches"), did_you_mean(str(value), BRANCHES))
        )
    return cast(Literal["refuse", "skip", "all"], value)
