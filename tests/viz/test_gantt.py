"""The timeline's picture: bars where the time is, words where there is room, and what a browser and a PNG need."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from rlgraph.viz.gantt import CUT, ROOM, Bar, Chart, GanttLane, gantt_svg, tick_seconds, wrapped_lines
from rlgraph.viz.measure import text_width
from rlgraph.viz.png import svg_to_png
from rlgraph.viz.theme import NOTE
from rlgraph.viz.timeline import LOOKS, work_bar
from tests.viz.charts import bars_of

LANES = [
    GanttLane("host", "no device"),
    GanttLane("learn", "8 devices, 40% busy"),
    GanttLane("play <&>", "8 devices, 60% busy"),
]
BARS = [
    work_bar("host", "prompts", "host", 0.0, 0.001, True),
    work_bar("play <&>", "rollout", "generate", 0.001, 6.0, True),
    work_bar("learn", "ref_logp", "forward", 2.0, 4.0),
    work_bar("learn", "sync actor", "sync", 6.0, 6.4, True),
    work_bar("play <&>", "sync actor", "sync", 6.0, 6.4, True),
    work_bar("learn", "train actor", "train", 6.4, 10.0, True),
]


def drawn(bars: list[Bar] = BARS, **changes: object) -> str:
    chart = Chart(LANES, bars, 10.0, [*LOOKS.values()], **changes)  # type: ignore[arg-type]
    return gantt_svg("ppo", "10 s a step", [chart])


def written(svg: str) -> list[str]:
    return re.findall(r">([^<>]+)</text>", svg)


def test_bars_are_where_their_time_is() -> None:
    found = {bar.told: bar for bar in bars_of(drawn())}
    left = found["prompts: 0 s to 0.001 s"].x
    rollout, ref = found["rollout: 0.001 s to 6 s"], found["ref_logp: 2 s to 4 s"]
    assert rollout.x == pytest.approx(left + ROOM * 0.0001, abs=0.01)
    assert rollout.width == pytest.approx(ROOM * 0.5999, abs=0.01)
    assert ref.x == pytest.approx(left + ROOM * 0.2, abs=0.01) and ref.width == pytest.approx(ROOM * 0.2, abs=0.01)
    assert ref.y < rollout.y, "the lanes are in the order of the pools"
    assert found["prompts: 0 s to 0.001 s"].width > 0.5, "what is short can still be seen"


def test_words_only_where_they_fit() -> None:
    shown = written(drawn())
    assert "rollout" in shown and "train actor" in shown and "prompts" not in shown
    assert shown.count("actor") == 0, "a bar of 38 pixels has no room for a word of 5 letters and its margins"
    assert "play &lt;&amp;&gt;" in shown
    assert all(look.words in shown for look in LOOKS.values()) and "critical path" in shown
    assert LOOKS["train"].words not in written(drawn(BARS[:3]))
    assert "critical path" not in written(drawn(BARS[2:3]))


def test_what_is_left_out_takes_no_room() -> None:
    spans = ((0.0, 2.5), (6.2, 7.2))
    scale = (ROOM - CUT) / 3.5
    found = {bar.told: bar for bar in bars_of(drawn(spans=spans))}
    left = found["prompts: 0 s to 0.001 s"].x
    assert found["ref_logp: 2 s to 4 s"].x == pytest.approx(left + 2 * scale, abs=0.02)
    assert found["ref_logp: 2 s to 4 s"].width == pytest.approx(0.5 * scale, abs=0.02), "as much of it as is seen"
    assert found["train actor: 6.4 s to 10 s"].x == pytest.approx(left + 2.7 * scale + CUT, abs=0.02)
    assert found["train actor: 6.4 s to 10 s"].width == pytest.approx(0.8 * scale, abs=0.02)
    assert drawn(spans=spans).count('class="cut"') == 1 and "3.7 s are left out" in drawn(spans=spans)
    ticks = [words for words in written(drawn(spans=spans)) if words.endswith(" s")]
    assert ticks == ["0 s", "0.5 s", "1 s", "1.5 s", "2 s", "2.5 s", "6.5 s", "7 s"]


def test_charts_stand_one_below_the_other() -> None:
    chart = Chart(LANES, BARS, 10.0, [*LOOKS.values()])
    low = Chart(LANES[:1], BARS[:1], 1.0, [*LOOKS.values()], "a title", ["a note " * 60], tall=18, gap=3)
    svg = gantt_svg("ppo", "", [chart, low])
    found = bars_of(svg)
    assert max(bar.y for bar in found[:-1]) + 34 < found[-1].y and "a title" in written(svg)
    assert sum("a note" in line for line in written(svg)) > 1
    assert found[-1].y < float(re.search(r' height="(\d+)"', svg)[1])  # type: ignore[index]


def test_long_lines_are_wrapped() -> None:
    words = "one two three four five six seven"
    assert " ".join(wrapped_lines(words, 60, NOTE)) == words
    assert all(text_width(line, NOTE) <= 60 for line in wrapped_lines(words, 60, NOTE)) and wrapped_lines(
        "", 60, NOTE
    ) == [""]


@pytest.mark.parametrize("seconds", [1e-4, 0.03, 1.0, 7.3, 59.0, 3600.0, 1e6])
def test_ticks_are_round_and_few(seconds: float) -> None:
    count = seconds / tick_seconds(seconds)
    assert 5 - 1e-6 <= count <= 12.5
    assert f"{tick_seconds(seconds):.0e}"[0] in "125"


def test_it_is_drawn() -> None:
    ET.fromstring(drawn())
    assert svg_to_png(drawn(), 1.0).startswith(b"\x89PNG")
    for charts in ([], [Chart([], [], 0.0, [])]):
        assert svg_to_png(gantt_svg("nothing", "", charts), 1.0).startswith(b"\x89PNG")
