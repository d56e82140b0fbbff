"""Whose seconds a prediction has, the search's or the simulator's: never two of them for one thing without a word."""

from __future__ import annotations

from typing import Any

from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.explain.chosen_plan import step_lines
from rlgraph.explain.plan_changes import _Side, _speed, _step, format_gib
from rlgraph.ir.plan import Pool

SEARCHED = {"seconds": 43.3, "gap": 0.0, "tokens": 100.0, "bound_seconds": 43.3}
SIMULATED = {"seconds": 30.0, "gap": 0.0, "tokens": 100.0, "bound_seconds": 43.3, "in_turn_seconds": 43.3}


def test_where_a_step_has_two_clocks_it_is_said_why_they_differ() -> None:
    [line] = step_lines("1x1:x", 1, SEARCHED)
    assert "43.3 s a step by the search" in line
    first, second, why = step_lines("1x1:x", 1, SIMULATED)
    assert "30 s a step by the simulator" in first and "43.3 s by the search" in second
    assert why.startswith("the simulator fires each node on rows of their own lengths") and "the search counts" in why


def steps(*told: dict[str, Any]) -> list[str]:
    """The lines about a step of a difference between two predictions."""
    return [f"{change.name}: {'; '.join(change.details)}" for change in _step(*told)]


def test_a_difference_names_the_clock_of_seconds() -> None:
    """A bound is of the search's, and may lie above what the simulator says of a step in which work overlaps: it is
    said what it is a bound of."""
    assert steps(SEARCHED, SIMULATED) == [
        "a step: 43.3 s by the search -> 30 s by the simulator (-30.7%)",
        "tokens/s: 2.31 -> 3.33 (+44.3%)",
    ]
    lower = {**SIMULATED, "bound_seconds": 40.0}
    assert steps(SIMULATED, lower) == [
        "no plan is faster than, one work after the other, by the search: 43.3 s -> 40 s (-7.6%)"
    ]
    assert steps(SEARCHED, {**SEARCHED, "seconds": 42.0, "bound_seconds": 41.0}) == [
        "a step: 43.3 s -> 42 s (-3.0%) by the search",
        "no plan is faster than: 43.3 s -> 41 s (-5.3%)",
        "tokens/s: 2.31 -> 2.38 (+3.1%)",
    ]
    assert _speed(SEARCHED, SIMULATED) == "1.44x as fast (the search against the simulator)"
    assert _speed(SIMULATED, {**SIMULATED, "seconds": 60.0}) == "0.50x as fast"
    assert _speed(SEARCHED, SEARCHED) == "as fast"
    assert _speed(SEARCHED, {}) == ""


def test_devices_and_bytes_are_told_by_name() -> None:
    side = _Side(plan=None, sections={}, cluster=read_cluster("1x4:a100-80gb + 2x8:h100-80gb"))  # type: ignore[arg-type]
    assert side.devices(Pool("all", 20)) == "4 a100-80gb, node 0 and 16 h100-80gb, nodes 1-2"
    assert side.devices(Pool("learn", 4, first=8)) == "4 h100-80gb, node 1, devices 4-7"
    assert side.devices(Pool("judge", 0, cpus=3)) == "3 cpus"
    assert [format_gib(count) for count in (0, 2**20, 80e9)] == ["0 GiB", "1 MiB", "74.5 GiB"]


def test_where_nothing_is_proven_no_share_is_told() -> None:
    [line] = step_lines("1x1:x", 1, SEARCHED | {"gap": 1.0})
    assert line.endswith("; nothing is proven of others") and "%" not in line
