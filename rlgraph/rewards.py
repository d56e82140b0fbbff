"""Reward functions that ship: `func correct = python("rlgraph.rewards:exact_match")`.

They are called like a user's own, in a process of their own, and are short enough to copy and change.
"""

from __future__ import annotations

import re
from typing import Any

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?|-?\.\d+")


def exact_match(completions: list[Any], answer: list[Any], **columns: Any) -> list[float]:
    """1 for each completion that ends in the right answer, else 0.

    `answer` is a column of the data. Where it is a number, the last number of the completion has to be the same
    number. Else its last words have to be the same ones, whatever their case.
    What stands before `####` in an answer, as in GSM8K, is on the way to it. Raises ValueError for a row without one.
    """
    if None in answer:
        raise ValueError("`answer` is None: there is nothing that could be right")
    return [float(_right(_text(each), str(right))) for each, right in zip(completions, answer, strict=True)]


def _right(said: str, answer: str) -> bool:
    wanted = answer.rpartition("####")[2].strip()
    if not _NUMBER.fullmatch(wanted.strip("$ ")):
        return bool(wanted) and _words(said)[-len(_words(wanted)) :] == _words(wanted)
    found = _NUMBER.findall(said)
    return bool(found) and _value(found[-1]) == _value(wanted.strip("$ "))


def _value(number: str) -> float:
    return float(number.replace(",", ""))


def _words(text: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s.]", text.casefold())


def _text(completion: Any) -> str:
    """A text as it is; of a list of messages the last one's content."""
    return str(completion[-1].get("content") or "") if isinstance(completion, list) else str(completion or "")
