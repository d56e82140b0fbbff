"""Plots: bars as long as their numbers, points where their values are, words that do not lie on each other."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from rlgraph.viz.plot import HIGH, PAINTS, PANEL, ROOM, BarRow, Panel, PanelAxis, bars_svg, lines_svg
from rlgraph.viz.png import svg_to_png

SVG = "{http://www.w3.org/2000/svg}"

ROWS = [
    BarRow("all colocated", "actor + <critic> (16)", (("generation", 10.0), ("training", 30.0)), "40s", True),
    BarRow("split", "actor (8), critic (8)", (("generation", 20.0), ("host", 60.0)), "80s"),
    BarRow("standalone", "does not fit: 3 pools on 2 devices", ()),
]
AXIS = PanelAxis("devices", ("8", "16", "64", "128"), (8.0, 16.0, 64.0, 128.0), True)


def groups(svg: str, kind: str) -> dict[str, ET.Element]:
    """What is drawn, by what its tip says."""
    every = ET.fromstring(svg).iter(f"{SVG}g")
    return {group[0].text or "": group[1] for group in every if (group.get("class") or "").split()[0] == kind}


def words(svg: str) -> list[tuple[str, float, float]]:
    return [
        (each.text or "", float(each.get("x", 0)), float(each.get("y", 0)))
        for each in ET.fromstring(svg).iter(f"{SVG}text")
    ]


def test_bars_are_as_long_as_their_numbers() -> None:
    found = groups(bars_svg("ppo", "", ROWS, "s"), "bar")
    long = {tip: float(rect.get("width", 0)) for tip, rect in found.items()}
    assert long["all colocated, generation: 10 s"] == pytest.approx(ROOM / 8, abs=0.01)
    assert long["split, host: 60 s"] == pytest.approx(ROOM * 3 / 4, abs=0.01)
    first, second = found["split, generation: 20 s"], found["split, host: 60 s"]
    assert float(second.get("x", 0)) == pytest.approx(float(first.get("x", 0)) + float(first.get("width", 0)), abs=0.02)
    assert len(found) == 4, "what does not fit has no bar"


def test_bars_say_what_they_are() -> None:
    shown = [text for text, _, _ in words(bars_svg("ppo", "why", ROWS, "s"))]
    assert {"ppo", "why", "40s", "actor + <critic> (16)", "does not fit: 3 pools on 2 devices", "chosen"} <= set(shown)
    assert "weights" not in shown, "the legend has what is there"
    assert all(kind in PAINTS for row in ROWS for kind, _ in row.parts)


def test_points_are_where_their_values_are() -> None:
    svg = lines_svg("ppo", "", AXIS, [Panel("seconds", (80.0, 40.0, 20.0, 10.0))])
    points = {tip: (float(p.get("cx", 0)), float(p.get("cy", 0))) for tip, p in groups(svg, "point").items()}
    (x8, y8), (x16, y16), (x64, _), (x128, y128) = (points[tip] for tip in ("8: 80", "16: 40", "64: 20", "128: 10"))
    assert x64 - x16 == pytest.approx(2 * (x16 - x8), abs=0.05), "two doublings are twice as far as one"
    assert x128 - x8 == pytest.approx(0.88 * PANEL, abs=0.05)
    assert y16 - y8 == pytest.approx(HIGH / 2, abs=0.05) and y128 - y8 == pytest.approx(HIGH * 7 / 8, abs=0.05)


def test_what_does_not_fit_breaks_the_line() -> None:
    svg = lines_svg("ppo", "", AXIS, [Panel("seconds", (80.0, None, 20.0, 10.0))])
    assert len(groups(svg, "point")) == 3 and list(groups(svg, "none")) == ["16: does not fit"]
    [path] = [each.get("d", "") for each in ET.fromstring(svg).iter(f"{SVG}path") if each.get("class") == "line"]
    assert path.count("M") == 2 and path.count("L") == 1


def test_names_stand_side_by_side_without_a_line() -> None:
    svg = lines_svg("ppo", "", PanelAxis("device", ("a100", "h100", "b200")), [Panel("seconds", (3.0, 2.0, 1.0))])
    left, middle, right = (float(p.get("cx", 0)) for p in groups(svg, "point").values())
    assert middle - left == pytest.approx(right - middle, abs=0.02)
    assert not [each for each in ET.fromstring(svg).iter(f"{SVG}path") if each.get("class") == "line"]


def test_labels_do_not_lie_on_each_other() -> None:
    places = tuple(float(each) for each in range(1000, 1100))
    svg = lines_svg(
        "ppo", "", PanelAxis("devices", tuple(map(str, map(int, places))), places), [Panel("seconds", places)]
    )
    shown = [x for text, x, _ in words(svg) if text.isdecimal() and len(text) == 4 and text.startswith("10")]
    assert 3 < len(shown) < 30 and all(b - a > 20 for a, b in zip(shown, shown[1:], strict=False) if b > a)


def test_they_are_drawn() -> None:
    for svg in (
        bars_svg("ppo", "why", ROWS, "s"),
        bars_svg("nothing", "", [], "s"),
        lines_svg("ppo", "", AXIS, [Panel("seconds", (None,) * 4)]),
        lines_svg("ppo", "", AXIS, [Panel("a", (1.0, 2.0, 3.0, 4.0)), Panel("b", (0.0, 0.0, 0.0, 0.0))]),
    ):
        assert svg_to_png(svg, 1.0).startswith(b"\x89PNG")
