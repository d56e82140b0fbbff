"""Reward functions: the user's Python, and the verifiers of reasoning_gym, called on a batch of completions.

A function has the signature that reward functions have in TRL: `f(prompts, completions, **columns) ->
list[float]`, all by name. It is given the columns that it names as parameters, and all of them if it takes
`**kwargs`; `completion_ids` too, if it names them. Where prompts are lists of messages, completions are
`[{"role": "assistant", "content": ...}]`. An `async def` is awaited. One with the signature that they have in verl,
`f(data_source, solution_str, ground_truth, extra_info)`, is called a row at a time. It runs in a process of its own
(see `worker.py`).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from rlgraph.errors import Diagnostic, ProgramError, RunError, did_you_mean, quoted_list
from rlgraph.user_code.code_diagnostics import (
    BAD_SIGNATURE,
    NO_NAME,
    CallSignature,
    CodeTarget,
    failed_call_error,
    load_signature,
    parse_target,
    user_options,
)
from rlgraph.user_code.conventions import (
    available_verl_arguments,
    hint_for_exception,
    hint_for_missing_parameters,
    is_called_per_row,
    verl_row_arguments,
)
from rlgraph.user_code.files import SearchFolders
from rlgraph.user_code.function_declarations import (
    DEFAULT_LIMIT_S,
    OPTIONS,
    SHIPPED,
    FunctionSpec,
    check_function_declaration,
    over_option,
    reward_server_settings,
)
from rlgraph.user_code.outcomes import Judgement, ResultContract, judge_results, result_contract
from rlgraph.user_code.reward_server import limit_with_retries_s
from rlgraph.user_code.spec import (
    flag_option,
    int_option,
    require_package,
    seconds_option,
)
from rlgraph.user_code.worker import (
    IMPORT_LIMIT_S,
    CodeFailure,
    CodeSource,
    Died,
    Raised,
    TimedOut,
    Worker,
    Workers,
    WrongValue,
    run_in_parallel,
)

RowValues = list[Any] | CodeFailure | None
"""The numbers and texts of a row, the failure of its call, or None where the function abstains."""
_ABSTAINS = "in the declaration, `none=skip` leaves such a row without a number, and `none=0.0` gives it one"
_GIVEN = ("prompts", "completions", "completion_ids")


@dataclass(frozen=True, slots=True)
class RewardFunction:
    """A function of the user's that is ready to be called."""

    target: CodeTarget
    signature: CallSignature
    constants: Mapping[str, Any]
    """Arguments that the program gives as options."""
    limit_s: float
    """The limit of one call."""
    batch: int | None
    """The most rows of one call, unless rows that belong together are more."""
    over: str
    """The rows on which the number of a row may depend, one of `UNITS`: no call has only a part of them."""
    workers: tuple[Worker, ...] = field(repr=False)
    contract: ResultContract = ResultContract()
    trial: bool = True
    """Whether it is called on a made-up answer before the first step."""
    together: bool = False
    """Whether a call that fails would fail for any of its rows, so that none is looked for."""

    @property
    def is_called_per_row(self) -> bool:
        """Whether it takes one row at a time, as in verl."""
        return is_called_per_row(self.signature.named)

    def check_columns(self, columns: Iterable[str]) -> None:
        """Raise an error unless `columns` hold all that the function asks for; a run asks before it works."""
        names = tuple(columns)
        if missing := self.missing_columns(names):
            message = f"`{self.target.name}` asks for a column '{missing[0]}', which the data do not have"
            hint = hint_for_missing_parameters(self.target.name, missing, names)
            hint = hint or did_you_mean(missing[0], (*names, *_GIVEN))
            hint = hint or f"it may ask for {quoted_list((*_GIVEN, *names), 'and')}"
            raise ProgramError(Diagnostic(BAD_SIGNATURE, message, self.target.span, hint))

    def missing_columns(self, names: Collection[str]) -> list[str]:
        """Return what the function asks for and is not given by rows with these columns."""
        verl = available_verl_arguments(names) if self.is_called_per_row else ()
        available = {*names, *_GIVEN, *self.constants, *verl}
        return [name for name in self.signature.required if name not in available]

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]] | None = None,
        columns: Mapping[str, Sequence[Any]] | None = None,
        ids: Sequence[object] | None = None,
        groups: Sequence[int] | None = None,
    ) -> list[float]:
        """Return one number for each completion, the first of those that it returns; see `judge`."""
        numbers: list[float] = self.judge(prompts, completions, completion_ids, columns, ids, groups).columns[0]
        return numbers

    def judge(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]] | None = None,
        columns: Mapping[str, Sequence[Any]] | None = None,
        ids: Sequence[object] | None = None,
        groups: Sequence[int] | None = None,
    ) -> Judgement:
        """Return what the function gives for each completion.

        All arguments have one entry for each completion; `ids` name the rows in errors. `groups`, ascending, says which
        rows are of one prompt; without it each is by itself. Raises `RunError`.
        """
        columns = columns or {}
        if self.has_parameter("calls"):
            # What is no episode has called no tools.
            columns = {"calls": [[] for _ in completions], **columns}
        self.check_columns(columns)
        if not completions:
            width = max(1, len(self.contract.numbers)) + len(self.contract.texts)
            return Judgement([[] for _ in range(width)], [])
        names = [f"row {row}" for row in range(len(completions))] if ids is None else list(map(str, ids))
        arguments = self._arguments(prompts, completions, completion_ids, columns)
        shown = {**arguments, "prompts": list(prompts), "completions": list(completions)}
        results = self._in_parts(_Rows(names, arguments, shown, groups))
        return judge_results(self.contract, results, names)

    def accepts_column(self, name: str) -> bool:
        """Return whether it is given a column of that name, where the rows have one."""
        if name in self.constants:
            return False
        if self.is_called_per_row:
            return name in self.signature.named or (name == "reward_model" and "ground_truth" in self.signature.named)
        # `prompt` and `completion` stay out of `**kwargs`, as in TRL.
        return name in self.signature.named or (self.signature.open_ended and name not in ("prompt", "completion"))

    def has_parameter(self, name: str) -> bool:
        """Return whether it has a parameter of that name, which no option of the declaration gives."""
        return name in self.signature.named and name not in self.constants

    def close(self) -> None:
        """End the processes; a later call starts them again."""
        for worker in self.workers:
            worker.close()

    def _arguments(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]] | None,
        columns: Mapping[str, Sequence[Any]],
    ) -> dict[str, list[Any]]:
        """Return the arguments that the function accepts, with an entry for each row."""
        if self.is_called_per_row:
            given = verl_row_arguments(
                self.signature.named, [completion_as_text(answer) for answer in completions], columns
            )
            return {name: values for name, values in given.items() if name not in self.constants}
        answers = [completion_as_messages(prompt, text) for prompt, text in zip(prompts, completions, strict=True)]
        arguments = {name: list(values) for name, values in columns.items()}
        arguments |= {"prompts": list(prompts), "completions": answers}
        if completion_ids is not None:
            arguments["completion_ids"] = list(completion_ids)
        return {name: values for name, values in arguments.items() if self.accepts_column(name)}

    def _in_parts(self, rows: _Rows) -> list[RowValues]:
        """Return the results of the rows, which are divided into calls of the processes."""
        count = len(rows.names)
        size = min(self.batch or count, -(-count // len(self.workers)))
        parts = [rows.row_range(start, end) for start, end in pairwise(self._cuts(rows, size))]
        calls = [partial(self._call, *pair) for pair in zip(itertools.cycle(self.workers), parts, strict=False)]
        return [value for part in run_in_parallel(self.workers, calls) for value in part]

    def _cuts(self, rows: _Rows, size: int) -> list[int]:
        """Return where calls of so many rows begin, and the last one ends; none is within rows that belong
        together."""
        prompts, groups = rows.shown["prompts"], rows.groups
        count = len(prompts)
        if self.over == "batch":
            return [0, count]
        if self.over == "row" or groups is None:
            return [*range(0, count, size), count]
        cuts, prompts_seen = [0], set[str]()
        ends = [at for at in range(1, count) if groups[at] != groups[at - 1]]
        for start, end in pairwise([0, *ends, count]):
            group_prompts = {repr(prompt) for prompt in prompts[start:end]}
            # A call ends before a group that is too large for it, or that has a prompt of another group in it.
            if start and (end - cuts[-1] > size or prompts_seen & group_prompts):
                cuts.append(start)
                prompts_seen = set()
            prompts_seen |= group_prompts
        return [*cuts, count]

    def _call(self, worker: Worker, rows: _Rows) -> list[RowValues]:
        """Return for each row its values, None, or the failure of its call. Raises RunError for what stops the run."""
        try:
            results = self._retried(worker, rows)
        except CodeFailure as failure:
            if self.contract.failed != "stop":
                return self._in_smallest_calls(worker, failure, rows)
            if isinstance(failure, WrongValue):
                raise self._error(failure, failure.row, rows) from None
            raise self._error(*self._culprit(worker, failure, rows), rows) from None
        for row, result in enumerate(results):
            if isinstance(result, CodeFailure) and self.contract.failed == "stop":
                raise self._error(result, row, rows)
            if result is None and self.contract.none == "stop":
                raise self._error(WrongValue("None", row, _ABSTAINS), row, rows)
        return results

    def _in_smallest_calls(self, worker: Worker, failure: CodeFailure, rows: _Rows) -> list[RowValues]:
        """Return the results of rows whose call has failed: those that belong together are judged by themselves."""
        cuts = [] if self.together else self._cuts(rows, 1)
        if len(cuts) <= 2:
            return [failure] * len(rows.names)
        return [result for start, end in pairwise(cuts) for result in self._call(worker, rows.row_range(start, end))]

    def _retried(self, worker: Worker, rows: _Rows) -> list[RowValues]:
        try:
            return self._request(worker, rows, self.limit_s)
        except Died as died:
            if not died.killed:
                raise
            # The process holds nothing that the run needs: another one is asked for the same, once.
            return self._request(worker, rows, self.limit_s)

    def _request(self, worker: Worker, rows: _Rows, limit_s: float) -> list[RowValues]:
        arguments = {**rows.arguments, **self.constants}
        by_row = tuple(rows.arguments) if self.is_called_per_row else ()
        asked = (self.target.name, len(rows.names), arguments, self.contract.returns, by_row)
        results = worker.request("score", *asked, limit_s=limit_s)
        return [_row_values(result, row) for row, result in enumerate(results)]

    def _culprit(self, worker: Worker, failure: CodeFailure, rows: _Rows) -> tuple[CodeFailure, int | None]:
        """Return how and for which row alone the call fails too; the search takes no longer than one call may."""
        if len(rows.names) == 1:
            return failure, 0
        if self.together:
            return failure, None
        try:  # restarting the process does not count as time of the search
            worker.request("load_early", limit_s=IMPORT_LIMIT_S)
        except CodeFailure:
            return failure, None
        end_s = time.monotonic() + min(self.limit_s, DEFAULT_LIMIT_S)
        for row in range(len(rows.names)):
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                break
            try:
                self._request(worker, rows.row_range(row, row + 1), left_s)
            except TimedOut as alone:
                # A row that ran for most of the search hangs; one that ran at its end may only be slow.
                if isinstance(failure, TimedOut) and left_s > 0.5 * self.limit_s:
                    return TimedOut(failure.limit_s, alone.file, alone.line), row
                break
            except WrongValue:
                continue
            except CodeFailure as alone:
                return alone, row
        return failure, None

    def _error(self, failure: CodeFailure, row: int | None, rows: _Rows) -> RunError:
        names = rows.names
        if row is None and len(names) > 1:
            alike = names[0] == names[-1]
            where = f"on {len(names)} rows together: {names[0] if alike else f'{names[0]} to {names[-1]}'}"
            slow = isinstance(failure, TimedOut)
            alone = "batch=1" if self.over == "row" else "over=row, batch=1"
            slow_hint = f"with `{alone}` every row has its own limit, and is named"
            hint = slow_hint if slow else self._hint(failure, rows)
            return failed_call_error(self.target, failure, where, None, hint)
        row = row or 0
        hint = self._hint(failure, rows) or ("each must be a finite number" if isinstance(failure, WrongValue) else "")
        return failed_call_error(self.target, failure, f"on {names[row]}", rows.row_for_message(row), hint)

    def _hint(self, failure: CodeFailure, rows: _Rows) -> str:
        """Return what to write in a function that expects to be called as in other systems."""
        if isinstance(failure, WrongValue):
            return failure.hint
        return hint_for_exception(failure, rows.arguments.get("completions", ())) if isinstance(failure, Raised) else ""


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of one call, or of some of them."""

    names: list[str]
    arguments: dict[str, list[Any]]
    """The arguments of the function."""
    shown: dict[str, list[Any]]
    """The values of a row that an error shows."""
    groups: Sequence[int] | None = None
    """Numbers, ascending, that say which rows are of one prompt; None: each is by itself."""

    def row_range(self, start: int, end: int) -> _Rows:
        arguments = {name: values[start:end] for name, values in self.arguments.items()}
        shown = {name: values[start:end] for name, values in self.shown.items()}
        return _Rows(self.names[start:end], arguments, shown, None if self.groups is None else self.groups[start:end])

    def row_for_message(self, row: int) -> dict[str, Any]:
        rest = [name for name in self.shown if name not in ("prompts", "completions", "completion_ids")]
        texts = {"prompt": self.shown["prompts"][row], "completion": self.shown["completions"][row]}
        return {**texts, **{name: self.shown[name][row] for name in rest}}


def _row_values(result: tuple[Any, ...], row: int) -> RowValues:
    """Return the values of a row, None where the function abstains, or the failure for this row."""
    match result:
        case ("value", list() as values):
            return values
        case ("none",):
            return None
        case ("raised", dict() as details):
            return Raised(**details)
        case ("wrong", str() as what, str() as hint):
            return WrongValue(what, row, hint)
    raise AssertionError(result)


def open_reward_function(spec: FunctionSpec, folders: SearchFolders, workers: Workers | None = None) -> RewardFunction:
    """Return the function that a program declares. This loads the user's file, so only a run may do it.

    Relative paths begin in `folders`. With the same `workers`, two functions of one file share its module; without, the
    function has processes of its own. Raises `ProgramError`.
    """
    check_function_declaration(spec)
    target = _target(spec, folders)
    pool = workers or Workers()
    processes = tuple(pool.worker_for(target.code, slot) for slot in range(int_option(spec, "workers", 1) or 1))
    signature = load_signature(target, processes[0])
    if signature.is_class:
        hint = f"make an object of it in '{target.path}', `reward = {target.name}()`, and name that"
        raise ProgramError(Diagnostic(NO_NAME, f"`{target.name}` is a class, not a function", target.span, hint))
    limit_s = seconds_option(spec, "timeout", DEFAULT_LIMIT_S)
    if spec.kind == "http":
        server = reward_server_settings(spec, limit_s)
        constants: dict[str, Any] = {"rlgraph_server": server}
        limit_s = limit_with_retries_s(limit_s, server["retries"])
    else:
        constants = user_options(spec, OPTIONS, signature, target.name)
    if spec.kind == "reasoning_gym" and spec.args:
        constants["name"] = spec.args[0]
    batch, trial = int_option(spec, "batch", None), flag_option(spec, "trial", True)
    whole = spec.kind == "http"
    return RewardFunction(
        target, signature, constants, limit_s, batch, over_option(spec), processes, result_contract(spec), trial, whole
    )


def _target(spec: FunctionSpec, folders: SearchFolders) -> CodeTarget:
    """Return the file and the function of a declaration."""
    if spec.kind == "python":
        return parse_target(spec.args[0], folders, spec.argument_span(0), spec.kind)
    file, package = SHIPPED[spec.kind]
    if package:
        require_package(package, spec.span)
    return CodeTarget(spec.kind, CodeSource(Path(__file__).with_name(file)), spec.kind, spec.span, ours=True)


def completion_as_text(completion: Any) -> Any:
    """Return what the assistant says in a completion that is a list of messages; any other as it is."""
    if not isinstance(completion, list):
        return completion
    return "\n".join(str(message.get("content") or "") for message in completion if message["role"] == "assistant")


def completion_as_messages(prompt: Any, completion: Any) -> Any:
    """Return the completion as a list of messages if the prompt is one, else as it is."""
    if isinstance(prompt, list) and isinstance(completion, str):
        return [{"role": "assistant", "content": completion}]
    return completion
