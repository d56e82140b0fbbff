"""Environments that are tools: functions of the user's that a model calls in its answers.

`env desk = tools("tools.py:search", "tools.py:calculate")` names functions whose parameters have types, and whose
docstrings say what they do and what each argument is. Each call in an answer is run, and what it returns is a message
of the role `tool`. An answer without a call ends the episode. A call that is wrong is answered with its error.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from rlgraph.errors import Diagnostic, ProgramError
from rlgraph.user_code.child import Observation
from rlgraph.user_code.code_diagnostics import CodeTarget, load_signature, parse_target
from rlgraph.user_code.environments import Environment, EnvironmentSpec, ToolCall
from rlgraph.user_code.files import SearchFolders
from rlgraph.user_code.spec import BAD_ARGUMENT, int_option, refuse_unknown_options, seconds_option
from rlgraph.user_code.static_checks import python_reference_faults
from rlgraph.user_code.tool_calls import WrittenCall, written_calls, wrong_arguments_message
from rlgraph.user_code.worker import IMPORT_LIMIT_S, CodeFailure, Raised, Worker, Workers, run_in_parallel

OPTIONS = ("timeout", "workers")
LIMIT_S = 30.0
"""The limit of a call, where the declaration does not say."""
MOST_CALLS = 16
"""The calls of one answer that are run, at most."""
NOT_A_TOOL = "E0863"
NOT_TOGETHER = "E0864"
_EXAMPLE = 'as in `tools("tools.py:search", "tools.py:calculate")`'


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of one declaration."""

    schemas: Mapping[str, Mapping[str, Any]]
    """For each name what the chat template is given."""
    limit_s: float
    """The limit of one call."""
    workers: tuple[Worker, ...] = field(repr=False)
    turns: Iterator[Worker] = field(repr=False)
    """The processes in turn, without end."""

    def run_calls(self, calls: list[WrittenCall]) -> tuple[ToolCall, ...]:
        """Return the calls of an answer with their results, in their order; they run beside each other."""
        asked: list[Callable[[], ToolCall]] = [
            partial(self._answer, call, next(self.turns), place) for place, call in enumerate(calls)
        ]
        return tuple(run_in_parallel(self.workers, asked) if len(asked) > 1 else [ask() for ask in asked])

    def _answer(self, call: WrittenCall, worker: Worker, place: int) -> ToolCall:
        arguments = call.arguments if isinstance(call.arguments, Mapping) else {}
        error = self._wrong(call) if place < MOST_CALLS else f"only {MOST_CALLS} calls of an answer are run"
        if not error:
            try:
                result = worker.request("call_tool", call.name, dict(arguments), limit_s=self.limit_s)
                return ToolCall(call.name, arguments, result, False)
            except Raised as raised:
                error = f"{raised.type}: {raised.message}" if raised.message else raised.type
            except CodeFailure as failure:
                error = failure.in_words
        return ToolCall(call.name, arguments, f"error: {error}", True)

    def _wrong(self, call: WrittenCall) -> str:
        """Return what is wrong with a call, in words; "" if nothing is."""
        if call.error:
            return call.error
        if call.name not in self.schemas:
            return f"there is no tool `{call.name:.60}`; there are: {', '.join(self.schemas)}"
        return wrong_arguments_message(call.arguments, self.schemas[call.name]["function"]["parameters"])


@dataclass(slots=True)
class ToolEpisode:
    """One episode with tools, which ends with an answer that calls none."""

    tools: Tools
    last_calls: tuple[ToolCall, ...] = ()

    def reset(self, row: Mapping[str, Any]) -> Observation:
        """Return nothing: the prompt says it all."""
        return ""

    def step(self, action: str) -> tuple[Observation, float, bool]:
        """Return what the calls of an answer return, no reward, and whether there is no call."""
        self.last_calls = self.tools.run_calls(written_calls(action))
        messages = [
            {"role": "tool", **({"name": call.name} if call.name else {}), "content": call.result}
            for call in self.last_calls
        ]
        return messages, 0.0, not messages

    def close(self) -> None:
        """End the episode: the tools keep nothing of it."""


def check_tools_declaration(spec: EnvironmentSpec) -> None:
    """Raise an error for what is wrong with a declaration, as far as can be seen without any file."""
    for place, argument in enumerate(spec.args):
        if not isinstance(argument, str) or not argument:
            message = f"`tools` takes texts: each a file and a function in it, not {argument!r:.60}"
            raise ProgramError(Diagnostic(BAD_ARGUMENT, message, spec.argument_span(place), _EXAMPLE))
        if argument in spec.args[:place]:
            message = f"'{argument}' is named twice"
            raise ProgramError(Diagnostic(NOT_TOGETHER, message, spec.argument_span(place), "leave one out"))
        if argument.rpartition(":")[0] != spec.args[0].rpartition(":")[0]:
            message = f"'{argument}' is of another file than '{spec.args[0]}'"
            hint = "the tools of an environment share its processes: import them all in one file, and name that"
            raise ProgramError(Diagnostic(NOT_TOGETHER, message, spec.argument_span(place), hint))
    refuse_unknown_options(spec, OPTIONS)
    seconds_option(spec, "timeout", LIMIT_S)
    int_option(spec, "workers", 1)


def tools_declaration_faults(spec: EnvironmentSpec, folders: SearchFolders) -> list[Diagnostic]:
    """Return what is wrong with a declaration, without running the user's Python."""
    alone = [
        replace(spec, args=(argument,), options={}, spans={0: spec.argument_span(place)})
        for place, argument in enumerate(spec.args)
    ]
    return [fault for tool in alone for fault in python_reference_faults(tool, folders)]


def open_tool_environment(spec: EnvironmentSpec, folders: SearchFolders, pool: Workers) -> Environment:
    """Return the environment of tools. Raises `ProgramError`."""
    targets = [
        parse_target(argument, folders, spec.argument_span(place), spec.kind)
        for place, argument in enumerate(spec.args)
    ]
    slots = range(int_option(spec, "workers", 1) or 1)
    processes = tuple(pool.worker_for(targets[0].code, slot) for slot in slots)
    schemas = {target.name: _schema(target, processes[0]) for target in targets}
    tools = Tools(schemas, seconds_option(spec, "timeout", LIMIT_S), processes, itertools.cycle(processes))
    return Environment(lambda name: ToolEpisode(tools), processes, tuple(schemas.values()), "tool", reads_special=True)


def _schema(target: CodeTarget, worker: Worker) -> Mapping[str, Any]:
    """Return what a model is shown of a function. Raises ProgramError where that cannot be told."""
    load_signature(target, worker)
    try:
        schema: Mapping[str, Any] = worker.request("tool_schema", target.name, limit_s=IMPORT_LIMIT_S)
    except CodeFailure as failure:
        why = failure.message if isinstance(failure, Raised) else failure.in_words
        why = why.removeprefix(f"Cannot generate JSON schema for {target.name} because ").rstrip("!")
        message = f"`{target.name}` cannot be shown to a model as a tool: {why}"
        hint = "give each parameter a type, and the docstring a line for each: `Args:`, then `x: what it is`"
        raise ProgramError(Diagnostic(NOT_A_TOOL, message, target.span, hint)) from None
    return schema
