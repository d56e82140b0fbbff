"""Reward functions that ship with rlgraph: `func correct = python("rlgraph.rewards:exact_match")`.

They are called like a user's own, in a process of their own, and are short enough to copy and change.
"""

from __future__ import annotations

import re
from typing import Any

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?|-?\.\d+")


def exact_match(completions: list[Any], answer: list[Any], **columns: Any) -> list[float | None]:
    """Return 1 for each completion that ends in the right answer, else 0.

    `answer` is a column of the data. Where it is a number, the last number of the completion must be the same number.
    Otherwise the last words of the completion must be those of the answer, ignoring case. Text before `####` in an
    answer, as in GSM8K, is the reasoning and is ignored. It abstains, with None, from a row without an answer.
    """
    rows = zip(completions, answer, strict=True)
    return [None if right is None else float(_right(_text(completion), str(right))) for completion, right in rows]


def _right(completion: str, answer: str) -> bool:
    wanted = answer.rpartition("####")[2].strip()
    if not _NUMBER.fullmatch(wanted.strip("$ ")):
        return bool(wanted) and _words(completion)[-len(_words(wanted)) :] == _words(wanted)
    numbers = _NUMBER.findall(completion)
    return bool(numbers) and _value(numbers[-1]) == _value(wanted.strip("$ "))


def _value(number: str) -> float:
    return float(number.replace(",", ""))


def _words(text: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s.]", text.casefold())


def _text(completion: Any) -> str:
    """Return the text of a completion: itself, or the content of the last of its messages."""
    return str(completion[-1].get("content") or "") if isinstance(completion, list) else str(completion or "")
