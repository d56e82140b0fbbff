"""The picture: well formed, complete, nothing over anything else, quick."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from itertools import combinations

import pytest

from rlgraph.ir.graph import Program
from rlgraph.viz.boxes import walk_boxes
from rlgraph.viz.layout import Drawing, PlacedBox, lay_out_scene
from rlgraph.viz.png import svg_to_png
from rlgraph.viz.scene import to_scene
from rlgraph.viz.svg import to_svg
from rlgraph.viz.svg_elements import NAMESPACE
from tests.counting import grows_with_its_size
from tests.viz.programs import ALL, AWKWARD, EMPTY, PPO, long_program, program, wide_program

PIXEL = 0.6


def drawing(name: str) -> Drawing:
    if name == "long":
        return lay_out_scene(to_scene(long_program(40)))
    if name == "wide":
        return lay_out_scene(to_scene(wide_program(60)))
    return lay_out_scene(to_scene(program(ALL[name])))


DRAWINGS = [*ALL, "long", "wide"]


def apart(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    """Whether two rectangles (x, y, width, height) have nothing in common."""
    return (
        a[0] + a[2] <= b[0] + PIXEL
        or b[0] + b[2] <= a[0] + PIXEL
        or a[1] + a[3] <= b[1] + PIXEL
        or b[1] + b[3] <= a[1] + PIXEL
    )


def around(s: PlacedBox) -> tuple[float, float, float, float]:
    return (s.x, s.y, s.width, s.height)


def holds(outer: PlacedBox, inner: PlacedBox) -> bool:
    return outer.box.body is not None and any(box.id == inner.box.id for box in walk_boxes(outer.box.body))


@pytest.mark.parametrize("name", list(ALL))
def test_it_is_xml_with_every_box(name: str) -> None:
    found = program(ALL[name])
    root = ET.fromstring(to_svg(found, "p-"))
    assert root.tag == f"{{{NAMESPACE}}}svg"
    ids = {element.get("id") for element in root.iter() if element.get("id")}
    assert {f"p-{box.id}" for box in to_scene(found).walk_boxes()} <= ids
    assert root.find(f"{{{NAMESPACE}}}title").text == found.name


@pytest.mark.parametrize("name", DRAWINGS)
def test_boxes_do_not_overlap(name: str) -> None:
    for a, b in combinations(drawing(name).shapes, 2):
        if holds(a, b):
            assert a.x <= b.x and a.y <= b.y
            assert b.x + b.width <= a.x + a.width + PIXEL and b.y + b.height <= a.y + a.height + PIXEL
        elif not holds(b, a):
            assert apart(around(a), around(b)), (a.box.title, b.box.title)


@pytest.mark.parametrize("name", DRAWINGS)
def test_labels_stand_free(name: str) -> None:
    d = drawing(name)
    labels = [(label.x - label.width / 2, label.y, label.width, label.height) for label in d.labels if label.height]
    for a, b in combinations(labels, 2):
        assert apart(a, b)
    for label in labels:
        for shape in d.shapes:
            inside = shape.box.body is not None and (
                shape.x <= label[0]
                and label[0] + label[2] <= shape.x + shape.width
                and shape.y <= label[1]
                and label[1] + label[3] <= shape.y + shape.height + PIXEL
            )
            assert inside or apart(label, around(shape)), (label, shape.box.title)


@pytest.mark.parametrize("name", DRAWINGS)
def test_lines_cross_no_box(name: str) -> None:
    d = drawing(name)
    leaves = [shape for shape in d.shapes if shape.box.body is None]
    for stroke in d.strokes:
        for x, y, end_x, end_y in stroke.pieces:
            # A bent piece stays in the rectangle between its ends, and that is free of boxes: it is a gap of rows.
            piece = (min(x, end_x), y, abs(end_x - x), end_y - y)
            for leaf in leaves:
                assert apart(piece, around(leaf)), (stroke.link.out, leaf.box.title)


@pytest.mark.parametrize("name", DRAWINGS)
def test_arrows_end_on_boxes(name: str) -> None:
    d = drawing(name)
    for stroke in d.strokes:
        for x, y in stroke.arrows:
            assert any(abs(y - s.y) < PIXEL and s.x <= x <= s.x + s.width for s in d.shapes), stroke.link.out


@pytest.mark.parametrize("name", DRAWINGS)
def test_everything_is_on_the_paper(name: str) -> None:
    d = drawing(name)
    for shape in d.shapes:
        assert shape.x >= 0 and shape.x + shape.width <= d.width and shape.y + shape.height <= d.height


def test_every_value_has_its_type() -> None:
    svg = to_svg(program(PPO))
    for text in ("table[prompts]", "float[prompts, token]", "bool[prompts, token]", "actor@0", "critic@1"):
        assert f">{text}</text>" in svg


def test_ids_of_two_pictures_differ() -> None:
    both = to_svg(program(PPO), "a-") + to_svg(program(PPO), "b-")
    ids = re.findall(r'\bid="([^"]*)"', both)
    assert len(ids) == len(set(ids)) > 40


def test_signs_are_escaped() -> None:
    svg = to_svg(program(AWKWARD))
    assert "<script" not in svg and "&lt;script&gt;alert(1)&lt;/script&gt;" in svg
    assert r"<a>&\"b\"" in "".join(ET.fromstring(svg).itertext())


def test_signs_that_no_xml_can_have_are_replaced() -> None:
    svg = to_svg(program(AWKWARD.replace("<a>", "<a>\uffff")), embed=False)
    assert "<a>\ufffd&" in "".join(ET.fromstring(svg).itertext())
    assert svg_to_png(svg).startswith(b"\x89PNG")


def test_it_names_what_waits_and_why() -> None:
    svg = to_svg(program(PPO))
    assert ">waits for the batch</text>" in svg
    assert "waits for the batch: mean(adv) is over the whole batch" in svg


def test_the_legend_holds_only_what_is_drawn() -> None:
    assert ">Python function<" not in to_svg(program(PPO)) and ">weights<" in to_svg(program(PPO))
    assert 'class="legend' not in to_svg(program(EMPTY))


def test_the_same_program_gives_the_same_picture() -> None:
    assert to_svg(program(PPO)) == to_svg(program(PPO))


@pytest.mark.parametrize("make", [long_program, wide_program])
def test_a_node_of_hundreds_is_no_more_work(make: Callable[[int], Program]) -> None:
    to_svg(make(300))
    assert grows_with_its_size(lambda nodes: to_svg(make(nodes)), 40)
