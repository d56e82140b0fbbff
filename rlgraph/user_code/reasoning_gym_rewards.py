"""The verifiers of reasoning_gym as one reward function, run like a user's file in a process of its own.

The rows need the columns that a `reasoning_gym` data source gives: `answer`, `metadata`, and `task` unless the program
names it.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import reasoning_gym as gym  # type: ignore[import-untyped]


def reasoning_gym(
    prompts: list[Any],
    completions: list[Any],
    answer: list[Any],
    metadata: list[dict[str, Any]],
    task: list[str] | None = None,
    name: str | None = None,
) -> list[float]:
    """Return the task's own score of each completion, most often 1 for right, 0 for wrong, between for near.

    An answer on which the verifier fails scores 0; if it fails on the right answer too, the row is at fault.
    """
    if name is None and task is None:
        raise ValueError("the rows have no column 'task', and the program names none")
    tasks = [name] * len(completions) if name is not None else task
    assert tasks is not None
    rows = zip(prompts, completions, answer, metadata, tasks, strict=True)
    return [_score(*row) for row in rows]


def _score(prompt: Any, completion: Any, answer: Any, metadata: dict[str, Any], task: str) -> float:
    entry = {"question": prompt, "answer": answer, "metadata": metadata}
    score = _verifier(task)
    try:
        return _number(score(extract_answer(completion), entry))
    except Exception:
        score(answer, entry)
        return 0.0


@cache
def _verifier(task: str) -> Any:
    if task not in gym.factory.DATASETS:
        raise ValueError(f"reasoning_gym has no task '{task}'")
    return gym.get_score_answer_fn(task)


def _number(score: Any) -> float:
    return 0.0 if score is None else float(score)


def extract_answer(completion: Any) -> str:
    """Return the last `<answer>...</answer>` of a completion, or all of it."""
    text = completion[-1].get("content") or "" if isinstance(completion, list) else completion or ""
    answers = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    return (answers[-1] if answers else text).strip()
