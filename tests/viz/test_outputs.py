"""DOT, PNG and the page."""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pydot
import pytest

from rlgraph.errors import Source
from rlgraph.viz import fonts
from rlgraph.viz.dot import to_dot
from rlgraph.viz.html import to_html
from rlgraph.viz.png import MOST_PIXELS, to_png
from rlgraph.viz.scene import to_scene
from rlgraph.viz.svg import to_svg
from tests.viz.programs import ALL, AWKWARD, EMPTY, GRPO, LOOPS, PPO, long_program, program


def parsed(text: str) -> pydot.Dot:
    graphs = pydot.graph_from_dot_data(text)
    assert graphs and len(graphs) == 1
    return graphs[0]


def graphs_in(graph: pydot.Graph) -> Iterator[pydot.Graph]:
    yield graph
    for inner in graph.get_subgraphs():
        yield from graphs_in(inner)


@pytest.mark.parametrize("name", list(ALL))
def test_dot_holds_every_box(name: str) -> None:
    found = program(ALL[name])
    graphs = list(graphs_in(parsed(to_dot(found))))
    nodes = {node.get_name() for graph in graphs for node in graph.get_nodes()}
    clusters = {graph.get_name().strip('"') for graph in graphs}
    for box in to_scene(found).walk_boxes():
        assert (f"cluster_{box.id}" in clusters) if box.body else (box.id in nodes)


def test_dot_joins_boxes_through_frames() -> None:
    scene = to_scene(program(PPO))
    names = {box.id: box.title for box in scene.walk_boxes()}
    edges = {
        (names[e.get_source()], names[e.get_destination()], (e.get("label") or '""').strip('"'))
        for e in parsed(to_dot(program(PPO))).get_edges()
    }
    assert ("score", "r", "float[prompts]") in edges
    assert ("adv", "target", "float[prompts, token]") in edges
    assert ("generate", "values", "rollout: table[prompts]") in edges
    assert ("target", "loss", "float[prompts, token]") in edges
    assert ("minimize", "actor", "actor@1") in edges


def test_every_use_of_a_value_is_an_edge() -> None:
    scene = to_scene(program(GRPO))
    used = {(box.id, port.value) for box in scene.walk_boxes() if box.body is None for port in box.inputs}
    assert len(parsed(to_dot(program(GRPO))).get_edges()) >= len(used)


@pytest.mark.skipif(not shutil.which("dot"), reason="needs Graphviz")
@pytest.mark.parametrize("name", list(ALL))
def test_graphviz_draws_it(name: str) -> None:
    done = subprocess.run(["dot", "-Tsvg"], input=to_dot(program(ALL[name])), text=True, capture_output=True)
    assert done.returncode == 0 and "Error" not in done.stderr


# PNG


def size(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    return struct.unpack(">II", png[16:24])  # type: ignore[return-value]


def svg_size(text: str) -> tuple[int, int]:
    return tuple(int(found) for found in re.search(r'width="(\d+)" height="(\d+)"', text).groups())  # type: ignore


@pytest.mark.parametrize("name", ["grpo", "empty"])
def test_png_has_the_size_of_the_svg(name: str, tmp_path: Path) -> None:
    found = program(ALL[name])
    wide, tall = svg_size(to_svg(found))
    data = to_png(found, tmp_path / "a.png", scale=1.5)
    assert (tmp_path / "a.png").read_bytes() == data
    assert size(data) == (pytest.approx(1.5 * wide, abs=1), pytest.approx(1.5 * tall, abs=1))


@pytest.mark.long
def test_a_tall_png_is_drawn_smaller() -> None:
    assert max(size(to_png(long_program(150)))) <= MOST_PIXELS + 1 < svg_size(to_svg(long_program(150)))[1] * 2


def test_png_has_text_on_a_machine_without_fonts() -> None:
    """With the package's fonts alone the picture is not that of no fonts at all."""
    import resvg_py

    svg = to_svg(program(EMPTY))
    bare = bytes(resvg_py.svg_to_bytes(svg_string=svg, skip_system_fonts=True))
    ours = bytes(
        resvg_py.svg_to_bytes(
            svg_string=svg, skip_system_fonts=True, font_files=fonts.font_files(), font_family="Inter"
        )
    )
    assert len(ours) > len(bare)


def test_the_widths_are_those_of_the_fonts() -> None:
    ttf = pytest.importorskip("fontTools.ttLib").TTFont
    for face, name in (
        ("bold", "Inter-SemiBold"),
        ("sans", "Inter-Regular"),
        ("strong", "JetBrainsMono-SemiBold"),
    ):
        font = ttf(next(path for path in fonts.font_files() if name in path))
        for words in (
            "mean(score, to=prompts)",
            "waits for the batch",
            "minibatch prompts",
            "float[rollout, token]",
        ):
            real = sum(font["hmtx"][font.getBestCmap()[ord(c)]][0] for c in words) / font["head"].unitsPerEm
            told = fonts.text_width_bound(words, face, 1)  # type: ignore[arg-type]
            assert real <= told + 0.01 and told <= real * 1.08


# HTML


class Page(HTMLParser):
    """Collects what a browser would see."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: dict[str, str] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.open.append(dict(attrs).get("id") or tag)

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts[self.open[-1]] = self.texts.get(self.open[-1], "") + data


def test_a_page_needs_nothing_from_outside() -> None:
    text = to_html([("check", program(PPO)), ("simplify", program(LOOPS))], Source("p.rlf", "algorithm ppo\n"))
    told = re.sub(r"url\(data:font/ttf;base64,[\w+/=]+\)", "", text)
    assert text.count("@font-face") == 4 and "@font-face" in told
    assert not re.search(r"https?:|//\w|@import|url\(|src=|href=(?!\"data:,)", told.replace("arXiv", ""))
    assert "@@" not in text


def test_a_page_has_a_picture_for_each_pass() -> None:
    page = Page(to_html([("check", program(PPO)), ("simplify", program(PPO))]))
    assert len([1 for tag, attrs in page.tags if tag == "div" and attrs.get("class") == "picture"]) == 2
    assert [attrs for tag, attrs in page.tags if tag == "option"] == [{}, {}]
    ids = [attrs["id"] for _, attrs in page.tags if attrs.get("id")]
    assert len(ids) == len(set(ids))


def test_a_page_tells_of_every_box() -> None:
    found = program(GRPO)
    page = Page(to_html([("check", found)], Source("p.rlf", "one\ntwo\n")))
    told = json.loads(page.texts["nodes"])
    assert set(told) == {f"g0-{box.id}" for box in to_scene(found).walk_boxes()}
    adv = next(node for node in told.values() if node["title"] == "adv")
    assert adv["reason"].startswith("mean(score") and adv["text"].startswith("adv: float[rollout] =")


def test_a_page_escapes() -> None:
    source = Source("p.rlf", 'x = "</pre><script>alert(1)</script>" @@NODES@@')
    text = to_html([("<after>&", program(AWKWARD))], source)
    assert "<script>alert" not in text and "<after>" not in text
    page = Page(text)
    assert [tag for tag, _ in page.tags].count("script") == 2
    assert 'class="src" data-line="1"' in text and "@@NODES@@" in text
    assert any("</script> <b>" in node["reason"] for node in json.loads(page.texts["nodes"]).values())


def test_a_page_without_programs() -> None:
    assert "<title>rlgraph" in to_html([])


def test_pictures_load_neither_torch_nor_numpy() -> None:
    code = (
        "import sys, rlgraph.viz.svg, rlgraph.viz.html, rlgraph.viz.png, rlgraph.viz.dot\n"
        "assert not {'torch', 'numpy', 'matplotlib', 'resvg_py'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
