"""The timeline's picture: bars where the time is, words where there is room, and what a browser and a PNG need."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from rlgraph.viz.gantt import ROOM, WORDS, Bar, Lane, gantt, tick
from rlgraph.viz.png import render

LANES = [Lane("host", "no device"), Lane("learn", "8 devices, 40% busy"), Lane("play <&>", "8 devices, 60% busy")]
BARS = [
    Bar("host", "prompts", "host", 0.0, 0.001, True),
    Bar("play <&>", "rollout", "generate", 0.001, 6.0, True),
    Bar("learn", "ref_logp", "forward", 2.0, 4.0),
    Bar("learn", "sync actor", "sync", 6.0, 6.4, True),
    Bar("play <&>", "sync actor", "sync", 6.0, 6.4, True),
    Bar("learn", "train actor", "train", 6.4, 10.0, True),
]


def rects(svg: str) -> dict[str, tuple[float, float, float]]:
    """Left side, top and width of each bar, by what its tip says."""
    found = {}
    for group in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}g"):
        rect = group.find("{http://www.w3.org/2000/svg}rect")
        found[group[0].text] = tuple(float(rect.get(name)) for name in ("x", "y", "width"))
    return found


def test_bars_are_where_their_time_is() -> None:
    svg = gantt("ppo", "10 s a step", LANES, BARS, 10.0)
    found = rects(svg)
    left = found["prompts: 0 s to 0.001 s"][0]
    x, y, width = found["rollout: 0.001 s to 6 s"]
    assert x == pytest.approx(left + ROOM * 0.0001, abs=0.01) and width == pytest.approx(ROOM * 0.5999, abs=0.01)
    other, lower, length = found["ref_logp: 2 s to 4 s"]
    assert other == pytest.approx(left + ROOM * 0.2, abs=0.01) and length == pytest.approx(ROOM * 0.2, abs=0.01)
    assert lower < y, "the lanes are in the order of the pools"
    assert found["prompts: 0 s to 0.001 s"][2] > 0.5, "what is short can still be seen"


def test_words_only_where_they_fit() -> None:
    shown = re.findall(r">([^<>]*)</text>", gantt("ppo", "", LANES, BARS, 10.0))
    assert "rollout" in shown and "train actor" in shown and "prompts" not in shown
    assert shown.count("actor") == 0, "a bar of 38 pixels has no room for a word of 5 letters and its margins"
    assert "play &lt;&amp;&gt;" in shown
    assert all(WORDS[kind] in shown for kind in WORDS) and "critical path" in shown
    assert WORDS["train"] not in re.findall(r">([^<>]*)</text>", gantt("ppo", "", LANES, BARS[:3], 10.0))


@pytest.mark.parametrize("seconds", [1e-4, 0.03, 1.0, 7.3, 59.0, 3600.0, 1e6])
def test_ticks_are_round_and_few(seconds: float) -> None:
    count = seconds / tick(seconds)
    assert 5 - 1e-6 <= count <= 12.5
    assert f"{tick(seconds):.0e}"[0] in "125"


def test_it_is_drawn() -> None:
    assert render(gantt("ppo", "10 s a step", LANES, BARS, 10.0), 1.0).startswith(b"\x89PNG")
    assert render(gantt("nothing", "", [], [], 0.0), 1.0).startswith(b"\x89PNG")
