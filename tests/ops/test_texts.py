"""What is read in texts: parts, regular expressions, the last number."""

import pytest
import torch

from rlgraph.ops.text_reference import contains, has_number, last_number, matches


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("I give it 7", 7.0),
        ("3 of 5.", 5.0),
        ("minus: -2.5e1!", -25.0),
        ("3-2", 2.0),
        ("(3)-2", 2.0),
        ("3/4", 4.0),
        ("1,234,567.5 in all", 1234567.5),
        ("1,2", 2.0),
        ("1,2345", 2345.0),
        (".5", 0.5),
        ("+8", 8.0),
        ("0", 0.0),
    ],
)
def test_the_last_number_is_read(text: str, number: float) -> None:
    assert last_number([text]).tolist() == [number]
    assert has_number([text]).tolist() == [True]


@pytest.mark.parametrize("text", ["", "none", "-", "٣", "1e999"])
def test_a_text_without_a_number_has_none(text: str) -> None:
    assert last_number([text]).tolist() == [0.0]
    assert has_number([text]).tolist() == [False]


def test_no_rows_have_no_entries() -> None:
    for result in (contains([], "a"), matches([], "a"), last_number([]), has_number([])):
        assert result.shape == (0,)
    assert contains([], "a").dtype == torch.bool


def test_parts_are_looked_for_letter_by_letter_and_patterns_anywhere() -> None:
    assert contains(["a.b", "axb", "A.B"], "a.b").tolist() == [True, False, False]
    assert matches(["say a.b", "axb", "A.B"], "a.b$").tolist() == [True, True, False]
