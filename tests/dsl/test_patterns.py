"""What in a regular expression takes exponentially long is found, and what does not is left alone."""

from __future__ import annotations

import pytest

from rlgraph.dsl.regex_backtracking import backtracks_exponentially


@pytest.mark.parametrize(
    "pattern",
    [
        *(r"(a+)+$", r"(a*)*b", r"^(\w+\s*)*[.]$", r"(?:(?:x+)?y?)+z", r"(a+|b)*c", r"((a+)){2,}b", r"x(?=(\d+)*y)"),
        *(r"(a{1,}?)+?b", r"((a+)+b)*"),
    ],
)
def test_a_repetition_of_a_repetition(pattern: str) -> None:
    assert backtracks_exponentially(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        *(r"[0-9]+", r"(\d+,)*\d+$", r"(a+b+)*c", r"(?>a+)+b", r"(a++)+b", r"(a{1,3})+b", r"(ab?)+c", r"(a+)(b+)c"),
        *(r"<think>.*</think>\s*<answer>.*</answer>$", r"\\boxed{([^{}]|{[^{}]*})*}", r"(?i)thank", ""),
        # Nothing comes behind that would have other ways tried.
        r"(a+)+",
    ],
)
def test_what_is_no_such_thing(pattern: str) -> None:
    assert not backtracks_exponentially(pattern)
