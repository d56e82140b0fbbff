"""Reward functions as other systems write them: verl's are called as they stand, for others there are hints on what to
rename and what to return."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlgraph.user_code.worker import Raised


@dataclass(frozen=True, slots=True)
class RewardConvention:
    """How another system calls a reward function."""

    system: str
    parameter: str
    """A parameter that no other system has."""
    hint: str
    """A hint on what to write; `{name}` is the function."""


CONVENTIONS = (
    *(
        RewardConvention("TRL", parameter, f"only TRL gives it: with a default, `{parameter}=None`, it may be missing")
        for parameter in ("trainer_state", "log_extra", "log_metric", "environments")
    ),
    RewardConvention(
        "OpenRLHF",
        "queries",
        "OpenRLHF's `queries` are prompts with their answers, and `labels` a column: `def f(prompts, completions, "
        "answer, **columns): return {name}([p + c for p, c in zip(prompts, completions)], prompts, answer)`",
    ),
    RewardConvention(
        "trlX",
        "samples",
        "trlX's `samples` are prompts with their answers, and `outputs` are `completions`: `def f(prompts, "
        "completions, **columns): return {name}([p + c for p, c in zip(prompts, completions)], prompts, completions)`",
    ),
)
OTHER_NAMES = {
    "completions": ("completion", "response", "responses", "output", "outputs", "generations", "solutions"),
    "prompts": ("prompt", "question", "questions", "inputs"),
    "completion_ids": ("response_ids", "output_ids", "token_ids"),
}
"""For each argument of a function, the names that other systems use for it."""


_ANSWERS = ("reward_model.ground_truth", "ground_truth", "solution", "final_answer", "target", "label")
"""Where other systems' rows have the right answer."""


def is_called_per_row(named: Collection[str]) -> bool:
    """Return whether a function with these parameters is called a row at a time, as in verl."""
    return "solution_str" in named


def available_verl_arguments(columns: Collection[str]) -> tuple[str, ...]:
    """Return the arguments of a function as in verl that rows with these columns have beside them."""
    return ("solution_str", "extra_info", *(("ground_truth",) if "reward_model" in columns else ()))


def verl_row_arguments(
    named: Collection[str], completions: Sequence[Any], columns: Mapping[str, Sequence[Any]]
) -> dict[str, list[Any]]:
    """Return the arguments of a function as in verl, each with an entry for each row: the answer as `solution_str`,
    `ground_truth` from the rows' `reward_model` where they have no such column, and columns that it names."""
    arguments = {name: list(values) for name, values in columns.items() if name in named}
    if "ground_truth" in named and "ground_truth" not in columns and "reward_model" in columns:
        models = columns["reward_model"]
        arguments["ground_truth"] = [model.get("ground_truth") if isinstance(model, dict) else None for model in models]
    if "extra_info" in named:
        arguments.setdefault("extra_info", [None] * len(completions))
    return arguments | {"solution_str": [str(completion or "") for completion in completions]}


def hint_for_missing_parameters(name: str, missing: Collection[str], columns: Collection[str] = ()) -> str:
    """Return what to write where the function `name` asks for parameters that it does not get from rows with these
    columns; "" if no other system gives them."""
    if "answer" in missing and (other := next((way for way in _ANSWERS if way.partition(".")[0] in columns), None)):
        return f"give it by name: `{name}(rollout, answer=rollout.{other})`"
    if {"ground_truth", "data_source"} <= {*missing}:
        return f'`data_source="gsm8k"` in its declaration, and `{name}(rollout, ground_truth=rollout.answer)`'
    if "ground_truth" in missing:
        return f"give it by name, `{name}(rollout, ground_truth=rollout.answer)`, or call the data's column so"
    if "data_source" in missing:
        return f'it is the same for all rows: `data_source="gsm8k"` in the declaration of `{name}`'
    for convention in CONVENTIONS:
        if convention.parameter in missing:
            return convention.hint.format(name=name)
    for argument, other_names in OTHER_NAMES.items():
        for other_name in other_names:
            if other_name in missing:
                return f"rename `{other_name}` to `{argument}`: a list, with an entry for each row"
    return ""


def hint_for_exception(failure: Raised, completions: Sequence[Any]) -> str:
    """Return what to write where a function took texts for messages, or messages for texts; "" if it did not."""
    texts = all(isinstance(completion, str) for completion in completions)
    if texts and (_matches(failure, "TypeError", "string ind") or (_indexes(failure) and "content" in _line(failure))):
        return 'completions are texts, since the prompts are: `completion` in place of `completion[0]["content"]`'
    if not texts and (_matches(failure, "AttributeError", "'list'") or _matches(failure, "TypeError", "got 'list'")):
        return 'completions are lists of messages, since the prompts are: `completion[0]["content"]` is the text'
    return ""


def _matches(failure: Raised, type_: str, part: str) -> bool:
    return failure.type == type_ and part in failure.message


def _indexes(failure: Raised) -> bool:
    return failure.type in ("IndexError", "KeyError", "TypeError")


def _line(failure: Raised) -> str:
    """Return the line that was running; "" if it cannot be read."""
    try:
        lines = Path(failure.file).read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return lines[failure.line - 1] if 0 < failure.line <= len(lines) else ""
