"""Whose seconds a prediction has, the search's or the simulator's: never two of them for one thing without a word."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from rlgraph.explain.chosen_plan import step_lines
from rlgraph.runs.planfiles.diff import Difference, _whose

SEARCHED = {"seconds": 43.3, "gap": 0.0, "tokens": 100.0, "bound_seconds": 43.3}
SIMULATED = {"seconds": 30.0, "gap": 0.0, "tokens": 100.0, "bound_seconds": 43.3, "in_turn_seconds": 43.3}


def test_where_a_step_has_two_clocks_it_is_said_why_they_differ() -> None:
    [line] = step_lines("1x1:x", 1, SEARCHED)
    assert "43.3 s a step by the search" in line
    first, second, why = step_lines("1x1:x", 1, SIMULATED)
    assert "30 s a step by the simulator" in first and "43.3 s by the search" in second
    assert why.startswith("the simulator fires each node on rows of their own lengths") and "the search counts" in why


def test_a_difference_names_the_clock_of_seconds() -> None:
    """A bound is of the search's, and may lie above what the simulator says of a step in which work overlaps."""
    one, other = (SimpleNamespace(sections={"predicted": told}) for told in (SEARCHED, SIMULATED))
    files: tuple[Any, Any] = one, other
    assert _whose("predicted", "seconds", *files) == "the search -> the simulator"
    assert _whose("predicted", "bound_seconds", *files) == "the search"
    assert _whose("predicted", "seconds", files[0], files[0]) == ""
    assert _whose("predicted", "gap", *files) == _whose("holdings", "seconds", *files) == ""
    told = Difference("predicted", "seconds", 43.3, 30.0, "the search -> the simulator")
    assert str(told) == "seconds by the search -> the simulator: 43.3 -> 30 (-30.7%)"
