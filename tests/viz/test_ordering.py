"""The order of items within their rows."""

from __future__ import annotations

from dataclasses import dataclass

from rlgraph.viz.ordering import order_rows


@dataclass
class Item:
    width: float = 1.0
    first: bool = False


@dataclass
class Line:
    upper: int
    lower: int
    start: float = 0.0
    end: float = 0.0


def test_lines_that_need_not_cross_do_not() -> None:
    """0 is above 3 and 1 above 2: where one row is turned round the two lines lie side by side."""
    found = order_rows([Item()] * 4, [Line(0, 3), Line(1, 2)], [[0, 1], [2, 3]])
    assert found in ([[0, 1], [3, 2]], [[1, 0], [2, 3]])
