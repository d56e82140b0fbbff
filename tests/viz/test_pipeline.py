"""The picture of a pipeline is what its lists say: a bar for each entry, where the timetable has it."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from rlgraph.passes.pipelines.fuse import best_rule_schedule
from rlgraph.passes.pipelines.problem import PipelineModel, PipelineProblem
from rlgraph.passes.pipelines.published_schedules import published_lists, serial_lists
from rlgraph.passes.pipelines.timetable import WAYS, Lists, ScheduleEntry, Timetable, compute_timetable, timed_entries
from rlgraph.viz.boxes import Role
from rlgraph.viz.gantt import CUT, ROOM, gantt_svg
from rlgraph.viz.pipeline import draw_pipeline, idle_fractions, peak_in_flight
from rlgraph.viz.png import svg_to_png
from rlgraph.viz.theme import HUES, ROLES
from tests.viz.charts import bars_of

ACTOR = PipelineModel("actor", 4, 8, 5.0, 10.0, memory=2.0)
CRITIC = PipelineModel("critic", 2, 4, 3.0, 6.0, copies=2, memory=1.0, reverse=True)
LONG = PipelineProblem(
    (
        PipelineModel("actor", 16, 300, 2.0, 4.0, memory=1.5),
        PipelineModel("critic", 16, 200, 1.0, 2.0, memory=1.0, reverse=True),
    )
)


def scheduled(problem: PipelineProblem) -> tuple[PipelineProblem, Lists, Timetable]:
    if problem is LONG:
        lists = serial_lists(problem)
    else:
        lists = published_lists(problem.models[0]) if len(problem.replicas) == 1 else best_rule_schedule(problem)
    return problem, lists, compute_timetable(problem, lists)


def picture(problem: PipelineProblem, roles: Sequence[Role] = ()) -> str:
    return gantt_svg("ppo", "", [draw_pipeline(*scheduled(problem), "in one pipeline", ["a note"], roles)])


PROBLEMS = [
    PipelineProblem((ACTOR,)),
    PipelineProblem((ACTOR, CRITIC)),
    PipelineProblem((ACTOR, replace(ACTOR, name="other", reverse=True), replace(CRITIC, copies=1, micro_batches=3))),
    PipelineProblem((PipelineModel("one", 1, 1, 0.001, 0.002),)),
    PipelineProblem((replace(ACTOR, chunks=2),)),
    PipelineProblem((replace(ACTOR, weight=4.0),)),
    PipelineProblem((replace(ACTOR, weight=4.0, chunks=3), replace(ACTOR, name="other", reverse=True))),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=["1F1B", "two", "three", "one bar", "chunks", "halves", "both"])
def test_every_entry_has_one_bar_where_the_timetable_has_it(problem: PipelineProblem) -> None:
    _, lists, table = scheduled(problem)
    found = bars_of(picture(problem))
    assert len(found) == problem.forward_backward_count == sum(map(len, lists))
    left, scale = min(bar.x for bar in found), ROOM / table.makespan
    heights = sorted({bar.y for bar in found})
    assert len(heights) == problem.stage_count and all(
        after - before > bar.height for (before, after), bar in zip(pairwise(heights), found, strict=False)
    )
    for y, own, starts in zip(heights, lists, table.starts, strict=True):
        lane = sorted((bar for bar in found if bar.y == y), key=lambda bar: bar.x)
        assert len(lane) == len(own)
        assert all(before.right <= after.x + 0.02 for before, after in pairwise(lane)), "bars of a stage do not overlap"
        count = Counter[ScheduleEntry]()
        for bar, entry, start in zip(lane, own, starts, strict=True):
            model = problem.replicas[entry.replica].model
            end = start + model.part_seconds(entry.part)
            count[entry] += 1
            assert (bar.x, bar.right) == pytest.approx((left + start * scale, left + end * scale), abs=0.02)
            name, way = re.escape(model.name), re.escape(WAYS[entry.part])
            chunk = f" chunk {'abc'[entry.chunk]}" if model.chunks > 1 else ""
            assert re.match(rf"{name}(, copy \d,)?{chunk} {way} {count[entry]}: ", bar.told)
            assert bar.seconds == pytest.approx((start, end), rel=1e-3)


def test_a_bar_is_coloured_by_its_model_and_forward_is_paler() -> None:
    found = [(re.match(r"(\w+).* (forward|backward) ", bar.told), bar) for bar in bars_of(picture(PROBLEMS[1]))]
    fills = {match.groups(): bar.fill for match, bar in found if match}
    assert len(fills) == len({bar.fill for _, bar in found}) == 4
    for name in ("actor", "critic"):
        (hue, pale), (same, strong) = fills[name, "forward"], fills[name, "backward"]
        assert hue == same and float(pale or 1) < float(strong or 1)
    assert fills["actor", "forward"][0] != fills["critic", "forward"][0]


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        (("policy", "critic"), (ROLES["policy"].edge, ROLES["critic"].edge)),
        (("critic", "policy"), (ROLES["critic"].edge, ROLES["policy"].edge)),
        (("critic", "critic"), (ROLES["critic"].edge, HUES[0])),
        ((), HUES[:2]),
        (("", "policy"), (HUES[1], ROLES["policy"].edge)),
    ],
)
def test_colours_are_those_of_roles_and_two_models_never_have_the_same(
    roles: tuple[Role, ...], expected: tuple[str, str]
) -> None:
    two = PipelineProblem((ACTOR, replace(ACTOR, name="other", reverse=True)))
    found = {bar.told.split()[0]: bar.fill[0] for bar in bars_of(picture(two, roles))}
    assert (found["actor"], found["other"]) == expected


def test_more_models_than_colours_are_drawn_all_the_same() -> None:
    many = PipelineProblem(tuple(PipelineModel(f"m{number}", 2, 1, 1.0, 2.0) for number in range(len(HUES) + 3)))
    assert len(bars_of(picture(many))) == many.forward_backward_count
    assert len({bar.fill[0] for bar in bars_of(picture(many))}) == len(HUES)


def test_models_of_the_same_name_are_not_mixed_up() -> None:
    found = bars_of(picture(PipelineProblem((ACTOR, replace(ACTOR, reverse=True)))))
    assert len({bar.fill for bar in found}) == 4


def test_what_is_said_is_what_the_lists_come_to() -> None:
    problem, lists, table = scheduled(PROBLEMS[1])
    svg = picture(problem)
    shown = re.findall(r">([^<>]+)</text>", svg)
    work = [0.0] * problem.stage_count
    held = [Counter[str]() for _ in work]
    most: list[tuple[float, int]] = [(0.0, 0)] * problem.stage_count
    for piece in sorted(timed_entries(problem, lists, table), key=lambda piece: (piece.start, piece.entry.part == "F")):
        model = problem.replicas[piece.entry.replica].model
        work[piece.stage] += piece.end - piece.start
        own = held[piece.stage]
        own[model.name] += 1 if piece.entry.part == "F" else -1
        memory = own["actor"] * ACTOR.memory + own["critic"] * CRITIC.memory
        most[piece.stage] = max(most[piece.stage], (memory, own.total()))
    for stage, (memory, count) in enumerate(most):
        actor, critic = peak_in_flight(problem, lists)[stage]
        assert (actor * ACTOR.memory + critic * CRITIC.memory, actor + critic) == (memory, count)
        assert memory == table.peaks[stage] and idle_fractions(problem, table)[stage] == pytest.approx(
            1 - work[stage] / table.makespan
        )
        share = f"{1 - work[stage] / table.makespan:.0%}"
        assert f"{share} idle, {actor:g} + {critic:g} in flight" in shown and f"stage {stage + 1}" in shown
    assert "a note" in shown and "in one pipeline" in shown
    assert "critic: 2 copies of 2 stages, 4 micro-batches each, from the last stage to the first" in shown
    assert "actor: 8 micro-batches, from the first stage to the last" in shown
    legend = ["actor forward", "actor backward", "critic forward", "critic backward"]
    assert [words for words in shown if words in legend] == legend


def test_chunks_and_halves_are_told_apart() -> None:
    problem = PipelineProblem((replace(ACTOR, weight=4.0, chunks=2),))
    svg = picture(problem)
    shown = re.findall(r">([^<>]+)</text>", svg)
    legend = ["actor forward", "actor backward (inputs)", "actor backward (weights)"]
    assert [words for words in shown if words in legend] == legend and "actor backward" not in shown
    assert len({bar.fill for bar in bars_of(svg)}) == 3 and {"1a", "1b", "8b"} <= set(shown)
    assert any(words.endswith(", 2 times: its chunks on a stage are a to b") for words in shown)
    _, lists, table = scheduled(problem)
    for counts, peak in zip(peak_in_flight(problem, lists), table.peaks, strict=True):
        assert counts[0] * ACTOR.memory == pytest.approx(peak)


def test_numbers_stand_where_there_is_room() -> None:
    svg = picture(PROBLEMS[1])
    texts = [
        (float(text.get("x", "nan")), text.text)
        for text in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
        if "y" not in text.attrib
    ]
    bars = bars_of(svg)
    assert len(texts) == len(bars), "all of these are wide enough"
    for x, number in texts:
        assert any(abs(bar.x + bar.width / 2 - x) < 0.1 and f" {number}: " in bar.told for bar in bars)


def test_names_are_escaped() -> None:
    name = '<b>&"actor"</b>\x00'
    svg = picture(PipelineProblem((replace(ACTOR, name=name), replace(CRITIC, name="</title>"))))
    told = {bar.told for bar in bars_of(svg)}
    assert any(each.startswith('<b>&"actor"</b>\N{REPLACEMENT CHARACTER} forward 1: ') for each in told)
    assert any(each.startswith("</title>, copy 2, backward 1: ") for each in told) and "<b>" not in svg


def test_a_long_pipeline_is_cut() -> None:
    problem, lists, table = scheduled(LONG)
    svg = picture(problem)
    found = bars_of(svg)
    assert problem.forward_backward_count == 16_000 and 600 < len(found) < 1_300 and len(svg) < 200_000
    assert svg.count('class="cut"') == 2 and "% of the time is left out" in svg
    assert sum(bar.width for bar in found) / len(found) > 9, "bars can be seen"
    left, right = min(bar.x for bar in found), max(bar.right for bar in found)
    assert right - left == pytest.approx(ROOM, abs=0.1)
    told = Counter(bar.told for bar in found)
    assert max(told.values()) == 1 and table.makespan in {bar.seconds[1] for bar in found}
    known = {
        f"{LONG.replicas[piece.entry.replica].model.name} {WAYS[piece.entry.part]} {piece.number + 1}: "
        f"{piece.start:.4g} s to {piece.end:.4g} s"
        for piece in timed_entries(problem, lists, table)
    }
    assert told.keys() <= known
    assert "actor forward 1: 0 s to 2 s" in told and f"{table.makespan:.4g} s" in " ".join(told)
    scale = max(bar.width for bar in found) / 4.0
    whole = [bar for bar in found if bar.width == pytest.approx((bar.seconds[1] - bar.seconds[0]) * scale, abs=0.05)]
    assert len(whole) > 0.9 * len(found), "one scale for all that is drawn"
    lanes = re.findall(r'class="lane" x="[\d.]+" y="[\d.]+" width="([\d.]+)"', svg)
    assert sum(map(float, lanes)) == pytest.approx(16 * (ROOM - 2 * CUT), rel=0.001)
    for y in {bar.y for bar in found}:
        lane = sorted((bar for bar in found if bar.y == y), key=lambda bar: bar.x)
        assert all(before.right <= after.x + 0.02 for before, after in pairwise(lane))


@pytest.mark.parametrize("problem", [*PROBLEMS, LONG])
def test_it_is_drawn(problem: PipelineProblem) -> None:
    assert svg_to_png(picture(problem), 1.0).startswith(b"\x89PNG")
