"""Pages in a browser: what a click opens, and that every text has the room that was measured for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

import rlgraph
from rlgraph.api.compiled import Compiled
from rlgraph.errors import Source
from rlgraph.explain.simulate import simulate
from rlgraph.explain.time_plan import predicted_step, time_plan
from rlgraph.ir.graph import Node, Program
from rlgraph.ir.text.program_text import node_lines
from rlgraph.passes.pipelines.fuse import best_rule_schedule
from rlgraph.passes.pipelines.problem import PipelineModel, PipelineProblem
from rlgraph.passes.pipelines.published_schedules import one_f_one_b_lists
from rlgraph.passes.pipelines.timetable import compute_timetable
from rlgraph.viz.boxes import Box
from rlgraph.viz.gantt import gantt_svg
from rlgraph.viz.html import to_html
from rlgraph.viz.pipeline import draw_pipeline
from rlgraph.viz.scene import to_scene
from rlgraph.viz.svg_elements import with_fonts
from rlgraph.viz.time_plan import to_svg as time_svg
from tests.viz.browser import CHROMIUM, Browser
from tests.viz.programs import AWKWARD, program

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")

ALGORITHMS = Path(rlgraph.__file__).parent / "algorithms"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    found = Browser(tmp_path_factory.mktemp("browser"))
    yield found
    found.close()


# Clicks

# Where a person would click on a box: on its title, or in the middle of what holds no others. The picture is moved
# there first, as by dragging.
PLACE = """((id) => {
  const node = document.getElementById(id), picture = node.closest(".picture");
  const of = node.matches(".k-model, .k-train, .k-loop") ? node.querySelector("text") : node;
  picture.style.transform = "none";
  const shape = of.getBoundingClientRect(), stage = document.getElementById("stage").getBoundingClientRect();
  const x = stage.x + 200 - shape.x - shape.width / 2, y = stage.y + 200 - shape.y - shape.height / 2;
  picture.style.transform = `translate(${x}px, ${y}px)`;
  return [stage.x + 200, stage.y + 200];
})"""

OPENED = """[document.querySelector(".node.chosen")?.id, document.querySelector("#told h2")?.textContent,
  [...document.querySelectorAll(".src.marked")].map((row) => [Number(row.dataset.line), row.textContent])]"""


def expected(box: Box, nodes: dict[str, Node]) -> set[int] | None:
    """The lines of what a box was made of, by the graph itself; None for a box that is no node."""
    node = nodes.get(box.text.split("\n")[0])
    return {node.span.line, *(let.expr.span.line for let in node.body)} if node else None


@pytest.mark.parametrize("name", ["ppo", "safe_rlhf", "dapo", "agent"])
def test_a_click_opens_the_lines_of_its_node(name: str, browser: Browser, tmp_path: Path) -> None:
    compiled = rlgraph.compile(ALGORITHMS / f"{name}.rlf")
    (tmp_path / "page.html").write_text(compiled.to_html())
    browser.open(tmp_path / "page.html")
    for at, stage in enumerate(reversed(compiled.stages)):
        if stage.name not in ("check", "granularity"):
            continue
        browser.run(
            f"(() => {{ const s = document.getElementById('pass'); s.selectedIndex = {at}; s.dispatchEvent(new Event('change')); }})()"
        )
        nodes = {
            next(iter(node_lines(node))): node
            for phase in stage.program.phases
            for node in phase.graph.walk()
            if node.span.source.path == compiled.source.path
        }
        for box in to_scene(stage.program).walk_boxes():
            browser.click(*browser.run(f"{PLACE}('g{at}-{box.id}')"))
            chosen, title, marked = browser.run(OPENED)
            assert (chosen, title) == (f"g{at}-{box.id}", box.title)
            lines, texts = {line for line, _ in marked}, [text.split() for _, text in marked]
            assert lines == (expected(box, nodes) or lines), (box, marked)
            if box.kind == "minimize":
                assert [text[0] for text in texts] == ["minimize"], box
            if box.kind == "model":
                assert [text[:2] for text in texts] == [["model", box.title]], box
            if box.kind == "next":
                assert [text[1] for text in texts] == [box.title], box


def test_a_line_opens_its_boxes_in_turn(browser: Browser, tmp_path: Path) -> None:
    compiled = rlgraph.compile(ALGORITHMS / "ppo.rlf")
    (tmp_path / "page.html").write_text(compiled.to_html())
    browser.open(tmp_path / "page.html")
    lines = [at for at, line in enumerate(compiled.source.text.splitlines(), 1) if "minimize" in line]
    assert len(lines) == 2
    for line in lines:
        titles = []
        for _ in range(3):
            browser.run(f"""document.querySelector('.src[data-line="{line}"]').click()""")
            chosen, title, marked = browser.run(OPENED)
            assert line in [number for number, _ in marked]
            titles.append(title)
        assert "minimize" in titles and len(set(titles)) > 1


def test_a_line_of_another_file_marks_none(browser: Browser, tmp_path: Path) -> None:
    compiled = rlgraph.compile(ALGORITHMS / "ppo.rlf")
    page = to_html([("all", compiled.program)], Source("another.rlf", compiled.source.text))
    (tmp_path / "page.html").write_text(page)
    browser.open(tmp_path / "page.html")
    for box in to_scene(compiled.program).walk_boxes():
        browser.click(*browser.run(f"{PLACE}('g0-{box.id}')"))
        assert browser.run(OPENED) == [f"g0-{box.id}", box.title, []]


def test_a_page_shows_the_plan_or_the_dataflow(browser: Browser, tmp_path: Path) -> None:
    compiled = rlgraph.compile(ALGORITHMS / "ppo.rlf", schedule=ALGORITHMS / "ppo.rls")
    (tmp_path / "page.html").write_text(compiled.to_html())
    browser.open(tmp_path / "page.html")
    shown = "[...document.querySelectorAll('.picture')].filter((p) => !p.hidden).map((p) => p.dataset.title)"
    after = "getComputedStyle(document.getElementById('after')).display"
    assert browser.run(shown) == ["plan"] and browser.run(after) == "none"
    for work in compiled.lanes().all_works():
        browser.click(*browser.run(f"{PLACE}('p-{work.id}')"))
        chosen, title, marked = browser.run(OPENED)
        assert (chosen, title) == (f"p-{work.id}", work.title)
        assert [line for line, _ in marked] == list(work.rows) and (marked or work.kind == "next")
        if work.title.startswith("train "):
            assert [text.split()[:2] for _, text in marked] == [
                ["train", f"{work.title.split()[1]}(lr={LR[work.title]}):"]
            ]
    pick = (
        "(() => { const k = document.getElementById('kind'); k.value = '%s'; k.dispatchEvent(new Event('change')); })()"
    )
    browser.run(pick % "dataflow")
    assert browser.run(shown) == [compiled.stages[-1].name] and browser.run(after) != "none"
    browser.run(pick % "plan")
    assert browser.run(shown) == ["plan"]


LR = {"train critic": "5e-6", "train actor": "1e-6"}


def key(browser: Browser, name: str) -> None:
    for kind in ("keyDown", "keyUp"):
        text = {"text": name} if len(name) == 1 else {}
        browser.order("Input.dispatchKeyEvent", type=kind, key=name, **(text if kind == "keyDown" else {}))


CHOSEN = "document.querySelector('.node.chosen')?.id"
SEEN = """((id) => { const box = document.getElementById(id).getBoundingClientRect(), area =
  document.getElementById("stage").getBoundingClientRect();
  return box.left >= area.left && box.right <= area.right && box.top >= area.top && box.bottom <= area.bottom; })"""


def test_boxes_are_searched_walked_and_linked(browser: Browser, tmp_path: Path) -> None:
    compiled = rlgraph.compile(ALGORITHMS / "ppo.rlf", schedule=ALGORITHMS / "ppo.rls")
    (tmp_path / "page.html").write_text(compiled.to_html())
    browser.open(tmp_path / "page.html")
    title = "document.querySelector('#told h2').textContent"
    key(browser, "/")
    assert browser.run("document.activeElement.id") == "find"
    browser.run("document.activeElement.value = 'train'")
    browser.run("document.activeElement.dispatchEvent(new Event('input'))")
    first = browser.run(CHOSEN)
    key(browser, "Enter")
    assert browser.run(CHOSEN) != first and "train" in browser.run(title)
    assert browser.run(f"{SEEN}({CHOSEN})") is True
    assert browser.run("document.getElementById('found').textContent").endswith("boxes")
    key(browser, "Escape")
    assert browser.run("document.querySelectorAll('.node.hit').length") == 0
    # An arrow goes on to a box that lies there, and the address names it.
    before = browser.run(f"document.getElementById({CHOSEN}).getBoundingClientRect().y")
    chosen = browser.run(CHOSEN)
    key(browser, "ArrowUp")
    assert browser.run(CHOSEN) != chosen and browser.run("location.hash") == f"#{browser.run(CHOSEN)}"
    assert browser.run(f"document.getElementById({CHOSEN}).getBoundingClientRect().y") < before
    # Links lead to a box of any picture, by its id or by its title.
    browser.run("location.hash = 'train critic'")
    browser.run("new Promise((done) => setTimeout(() => done(true), 0))")
    assert browser.run(title) == "train critic"
    graph = next(box.id for box in to_scene(compiled.program).walk_boxes() if box.kind == "train")
    browser.open((tmp_path / "page.html").absolute().as_uri() + f"?again#g0-{graph}")
    assert browser.run(CHOSEN) == f"g0-{graph}" and browser.run("document.getElementById('kind').value") == "dataflow"
    assert browser.run(f"{SEEN}({CHOSEN})") is True
    key(browser, "p")
    assert browser.run("getComputedStyle(document.querySelector('aside')).display") == "none"


@pytest.mark.parametrize(("width", "height"), [(1400, 900), (390, 844)])
def test_at_first_sight_labels_can_be_read_and_the_program_is_whole(
    width: int, height: int, browser: Browser, tmp_path: Path
) -> None:
    compiled = rlgraph.compile(ALGORITHMS / "ppo.rlf", schedule=ALGORITHMS / "ppo.rls")
    (tmp_path / "page.html").write_text(compiled.to_html())
    size = {"deviceScaleFactor": 1, "mobile": False}
    browser.order("Emulation.setDeviceMetricsOverride", width=width, height=height, **size)
    try:
        browser.open(tmp_path / "page.html")
        scale = browser.run(
            "new DOMMatrix(getComputedStyle(document.querySelector('.picture:not([hidden])')).transform).a"
        )
        assert scale >= (0.7 if width < 700 else 0.9)
        wide = "[document.documentElement.scrollWidth, document.getElementById('source').scrollWidth - document.getElementById('source').clientWidth]"
        page, cut = browser.run(wide)
        assert page <= width and cut <= 0
        # All of it on request.
        key(browser, "0")
        shape, stage = browser.run(
            "['.picture:not([hidden]) svg', '#stage'].map((s) => document.querySelector(s).getBoundingClientRect()"
            ".toJSON())"
        )
        assert shape["right"] <= stage["right"] + 1 and shape["bottom"] <= stage["bottom"] + 1
    finally:
        browser.order("Emulation.setDeviceMetricsOverride", width=1400, height=1000, **size)


@cache
def planned() -> Compiled:
    """A program with a plan whose seconds are predicted."""
    return rlgraph.compile(ALGORITHMS / "ppo.rlf", cluster="1x8:h100-80gb")


def test_a_step_is_shown_by_time_in_both_directions(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(planned().to_html())
    browser.open(tmp_path / "page.html")
    kinds = browser.run("[...document.getElementById('kind').options].map((option) => option.value)")
    assert kinds[:3] == ["plan", "time", "timeline"]
    step = predicted_step(planned())
    assert step is not None
    works = time_plan(step).works
    longest = max(works, key=lambda work: work.end - work.start)
    short = next(work for work in works if work.title == "value")
    boxes = [f"#t-{work.id} rect" for work in (longest, short)]
    heights = [browser.run(f"Number(document.querySelector('{box}').getAttribute('height'))") for box in boxes]
    ratio = (longest.end - longest.start) / (short.end - short.start)
    assert heights[0] / heights[1] == pytest.approx(ratio, rel=0.02)
    texts = browser.run("[...document.querySelectorAll('[data-kind=plan] text')].map((text) => text.textContent)")
    assert any("seconds in boxes are of work" in text for text in texts)


# Texts

# What a text runs over: the edge of a shape, or another text. All in the picture's own units.
RUNS_OVER = """(() => {
  const svg = document.querySelector(".picture:not([hidden]) svg") ?? document.querySelector("svg");
  const inside = (a, b) => a.x >= b.x - 0.3 && a.x + a.width <= b.x + b.width + 0.3
    && a.y >= b.y - 0.3 && a.y + a.height <= b.y + b.height + 0.3;
  const apart = (a, b) => a.x + a.width <= b.x + 0.3 || b.x + b.width <= a.x + 0.3
    || a.y + a.height <= b.y + 0.3 || b.y + b.height <= a.y + 0.3;
  const place = (element) => {
    const box = element.getBBox(), to = svg.getScreenCTM().inverse().multiply(element.getScreenCTM());
    return { x: box.x + to.e, y: box.y + to.f, width: box.width, height: box.height, down: to.f };
  };
  const ink = (text) => {
    const box = place(text), size = parseFloat(getComputedStyle(text).fontSize);
    const base = Number(text.getAttribute("y")) + box.down;
    return { x: box.x, y: base - 0.75 * size, width: box.width, height: 0.95 * size };
  };
  const texts = [...svg.querySelectorAll("text")].map((text) => [text.textContent, ink(text)]);
  const shapes = [...svg.querySelectorAll("rect:not(.swatch), path.box, path.tab")].map(place);
  const found = [];
  texts.forEach(([words, box], at) => {
    shapes.forEach((shape) => { if (!inside(box, shape) && !apart(box, shape)) found.push([words, "an edge"]); });
    texts.slice(0, at).forEach(([other, place]) => { if (!apart(box, place)) found.push([words, other]); });
  });
  return [texts.length, found];
})()"""


def overlaps(browser: Browser, page: Path) -> list[list[str]]:
    browser.open(page)
    count, found = browser.run(RUNS_OVER)
    assert count > 3
    return list(found)


def drawn() -> dict[str, Program]:
    found = {path.stem: rlgraph.compile(path).program for path in sorted(ALGORITHMS.glob("*.rlf"))}
    return found | {"awkward": program(AWKWARD)}


def test_every_text_fits(browser: Browser, tmp_path: Path) -> None:
    for name, found in drawn().items():
        (tmp_path / f"{name}.html").write_text(to_html([("all", found)]))
        assert overlaps(browser, tmp_path / f"{name}.html") == [], name


@pytest.mark.parametrize("name", ["ppo", "online_dpo", "agent", "sft"])
def test_every_text_of_a_plan_fits(name: str, browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "plan.svg").write_text(rlgraph.compile(ALGORITHMS / f"{name}.rlf", cluster="1x8:h100-80gb").to_svg())
    assert overlaps(browser, tmp_path / "plan.svg") == []


def test_every_text_of_a_step_by_time_fits(browser: Browser, tmp_path: Path) -> None:
    step = predicted_step(planned())
    assert step is not None
    (tmp_path / "time.svg").write_text(with_fonts(time_svg(time_plan(step))))
    assert overlaps(browser, tmp_path / "time.svg") == []


def fused(name: str, folder: Path, schedule: str) -> Compiled:
    """A program with a schedule, on two nodes."""
    (folder / f"{name}.rls").write_text(schedule)
    return rlgraph.compile(ALGORITHMS / f"{name}.rlf", schedule=folder / f"{name}.rls", cluster="2x8:h100-80gb")


SHARED = (ALGORITHMS / "ppo.rls").read_text() + "fuse actor.train, critic.train\n"


def test_every_text_of_pipelines_and_of_a_step_fits(browser: Browser, tmp_path: Path) -> None:
    made = fused("ppo", tmp_path, SHARED)
    (tmp_path / "pipelines.svg").write_text(made.to_svg(picture="pipelines"))
    assert overlaps(browser, tmp_path / "pipelines.svg") == []
    (tmp_path / "step.svg").write_text(with_fonts(simulate(made).to_svg()))
    assert overlaps(browser, tmp_path / "step.svg") == []
    long = PipelineProblem(
        (PipelineModel("a" * 40, 16, 300, 2.0, 4.0), PipelineModel("critic", 16, 300, 0.1, 0.2, reverse=True))
    )
    for problem in (long, PipelineProblem((replace(long.models[0], micro_batches=5),))):
        lists = best_rule_schedule(problem) if len(problem.models) > 1 else one_f_one_b_lists(problem.models[0])
        chart = draw_pipeline(problem, lists, compute_timetable(problem, lists), "a title", ["a long note " * 40])
        (tmp_path / "long.svg").write_text(with_fonts(gantt_svg("ppo", "a note", [chart])))
        assert overlaps(browser, tmp_path / "long.svg") == []


def test_a_page_shows_the_pipelines(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(fused("ppo", tmp_path, SHARED).to_html())
    browser.open(tmp_path / "page.html")
    shown = "[...document.querySelectorAll('.picture')].filter((p) => !p.hidden).map((p) => p.dataset.title)"
    pick = (
        "(() => { const k = document.getElementById('kind'); k.value = '%s'; k.dispatchEvent(new Event('change')); })()"
    )
    assert browser.run(shown) == ["plan"]
    browser.run(pick % "pipelines")
    assert browser.run(shown) == ["pipelines"]
    assert browser.run("getComputedStyle(document.getElementById('after')).display") == "none"
    number = "getComputedStyle(document.querySelector('.picture:not([hidden]) .written text')).fill"
    lane = "getComputedStyle(document.querySelector('.picture:not([hidden]) .lane')).fill"
    light = [browser.run(number), browser.run(lane)]
    browser.dark(True)
    dark = [browser.run(number), browser.run(lane)]
    browser.dark(False)
    assert light == ["rgb(28, 35, 51)", "rgb(249, 250, 251)"] and dark == ["rgb(238, 241, 246)", "rgb(23, 27, 35)"]
    browser.run(pick % "dataflow")
    assert browser.run(shown) != ["pipelines"]


def test_every_text_of_an_svg_file_fits(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "agent.svg").write_text(rlgraph.compile(ALGORITHMS / "agent.rlf").to_svg())
    assert overlaps(browser, tmp_path / "agent.svg") == []
