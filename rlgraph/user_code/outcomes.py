"""What a reward function gives for each row: numbers, texts, or nothing, and what that means by its declaration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rlgraph.errors import Diagnostic, ProgramError
from rlgraph.user_code.spec import BAD_ARGUMENT, CallSpec
from rlgraph.user_code.worker import CodeFailure

Outcome = Literal["stop", "skip"] | float
"""What becomes of a row for which a function gives no number: the run stops, the row has none, or it has this one."""

WORDS = ("stop", "skip")

HAS_NUMBER, ABSTAINED, FAILED = 0, 1, 2
"""States of a row. Negative where the row has no number, positive where it has that of the declaration."""


@dataclass(frozen=True, slots=True)
class ResultContract:
    """What a declaration says of the results of a function."""

    numbers: tuple[str, ...] = ()
    """The names of its numbers; empty where it returns one number."""
    texts: tuple[str, ...] = ()
    """The names of its texts."""
    none: Outcome = "stop"
    """What becomes of a row for which it returns None."""
    failed: Outcome = "stop"
    """What becomes of the rows of a call that fails."""

    @property
    def returns(self) -> tuple[str, ...]:
        """The names of all that it returns for a row, of texts with a `:` in front."""
        return (*self.numbers, *(f":{name}" for name in self.texts))


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a function gave for rows."""

    columns: list[list[Any]]
    """Its numbers, then its texts: a list for each, with an entry for each row."""
    states: list[int]
    """The state of each row."""
    failures: list[str] = field(default_factory=list)
    """A sentence on each row for which it failed."""


def result_contract(spec: CallSpec) -> ResultContract:
    """Return what a declaration says of results. Raises ProgramError."""
    numbers, texts = named_texts(spec, "returns"), named_texts(spec, "texts")
    twice = next((name for name in (*numbers, *texts) if (*numbers, *texts).count(name) > 1), "")
    if twice:
        raise ProgramError(Diagnostic(BAD_ARGUMENT, f"'{twice}' is returned twice", spec.argument_span("returns")))
    if texts and not numbers:
        message = "`texts` come beside numbers, and `returns` names none"
        raise ProgramError(Diagnostic(BAD_ARGUMENT, message, spec.argument_span("texts"), 'as in `returns=["score"]`'))
    return ResultContract(numbers, texts, _outcome(spec, "none"), _outcome(spec, "failed"))


def named_texts(spec: CallSpec, option: str) -> tuple[str, ...]:
    """Return the names that an option says, one or several. Raises ProgramError."""
    given = spec.options.get(option) or ()
    names = (given,) if isinstance(given, str) else tuple(given)
    odd = next((name for name in names if not isinstance(name, str) or not name.isidentifier()), None)
    if odd is not None:
        message = f"`{option}` has names of values, and {odd!r} is none"
        raise ProgramError(
            Diagnostic(BAD_ARGUMENT, message, spec.argument_span(option), 'as in `returns=["score", "format"]`')
        )
    return names


def _outcome(spec: CallSpec, option: str) -> Outcome:
    value = spec.options.get(option, "stop")
    if value == "stop" or value == "skip":
        return value  # type: ignore[no-any-return]
    if isinstance(value, bool) or not isinstance(value, int | float):
        message = f"`{option}` must be stop, skip or a number, not {value!r}"
        raise ProgramError(Diagnostic(BAD_ARGUMENT, message, spec.argument_span(option)))
    return float(value)


def judge_results(contract: ResultContract, results: Sequence[Any | CodeFailure], names: Sequence[str]) -> Judgement:
    """Return what the results of rows mean. results: for each row its values, None, or the failure of its call; those
    that stop the run are not among them. names: of the rows."""
    width = max(1, len(contract.numbers)) + len(contract.texts)
    rows, states, failures = [], [], []
    for name, result in zip(names, results, strict=True):
        if isinstance(result, list):
            rows.append(result)
            states.append(HAS_NUMBER)
            continue
        state, outcome = (ABSTAINED, contract.none) if result is None else (FAILED, contract.failed)
        number = 0.0 if isinstance(outcome, str) else outcome
        rows.append([number] * (width - len(contract.texts)) + [""] * len(contract.texts))
        states.append(-state if outcome == "skip" else state)
        if isinstance(result, CodeFailure):
            failures.append(f"on {name}: {result.in_words}")
    columns: Iterator[tuple[Any, ...]] = zip(*rows, strict=True)
    return Judgement([list(column) for column in columns], states, failures)
