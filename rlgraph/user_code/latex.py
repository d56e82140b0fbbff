"""Answers in LaTeX, compared by `math_verify`: a reward function, run like a user's file in a process of its own."""

from __future__ import annotations

from typing import Any

from math_verify import parse, verify  # type: ignore[import-not-found,import-untyped,unused-ignore]


def math_verify(completions: list[Any], answer: list[Any]) -> list[float | None]:
    """Return 1 for each completion whose last mathematics is equal to `answer`, else 0.

    None where `answer` is no mathematics: there is nothing that could be right.
    """
    return [_score(_text(completion), right) for completion, right in zip(completions, answer, strict=True)]


def _score(completion: str, answer: Any) -> float | None:
    text = "" if answer is None else str(answer).rpartition("####")[2].strip()
    # It reads LaTeX between dollars or in a box, and plain numbers as they are.
    right = (parse(text) or parse(f"${text}$")) if text else []
    return float(verify(right, parse(completion))) if right else None


def _text(completion: Any) -> str:
    """Return the text of a completion: itself, or the content of the last of its messages."""
    return str(completion[-1].get("content") or "") if isinstance(completion, list) else str(completion or "")
