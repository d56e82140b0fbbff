"""The page of `rlgraph watch` in a browser: what is clicked, searched and typed, in light and dark, and that every text
has its room."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlgraph.runs.watching.page import exported_page
from rlgraph.runs.watching.run_reader import RunReader
from rlgraph.runs.watching.server import WatchServer
from tests.runs.written_runs import written_run
from tests.viz.browser import CHROMIUM, Browser

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")

TABS = ("curves", "samples", "rewards", "plan", "time", "events")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    opened = Browser(tmp_path_factory.mktemp("browser"), 1400, 900)
    yield opened
    opened.close()


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """A page of two runs, one of them with many metrics."""
    more = {f"a/quite_long_name_of_a_metric_that_somebody_reports/{number}": 1e-7 for number in range(14)}
    runs = [written_run(tmp_path / "grpo-1", 30), written_run(tmp_path / "grpo-2", 12, more=more, ended=False)]
    (tmp_path / "page.html").write_text(exported_page([RunReader(run) for run in runs]))
    return tmp_path / "page.html"


def show(browser: Browser, tab: str) -> None:
    """Click on a tab as a person does."""
    place = f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])(byId('tab-{tab}').getBoundingClientRect())"
    browser.click(*browser.run(place))
    assert browser.run(f"byId('{tab}').hidden") is False


def texts(browser: Browser, selector: str) -> list[str]:
    found: list[str] = browser.run(f"[...document.querySelectorAll({json.dumps(selector)})].map((e) => e.textContent)")
    return found


def put(browser: Browser, name: str, value: Any, event: str = "input") -> None:
    browser.run(f"byId('{name}').value = {json.dumps(value)}; byId('{name}').dispatchEvent(new Event('{event}'))")


def key(browser: Browser, name: str) -> None:
    for kind in ("keyDown", "keyUp"):
        text = {"text": name} if len(name) == 1 else {}
        browser.order("Input.dispatchKeyEvent", type=kind, key=name, **(text if kind == "keyDown" else {}))


def test_curves_are_chosen_searched_and_made_large(browser: Browser, page: Path) -> None:
    browser.open(page)
    shown = texts(browser, "#grid h2")
    assert shown[:2] == ["reward", "kl"] and len(shown) == 12
    assert texts(browser, "[data-metric=reward] .values span") == ["1", "1"]
    put(browser, "filter", "metric_that_somebody_reports/1")
    assert len(texts(browser, "#grid h2")) == 5
    put(browser, "filter", "no such")
    assert texts(browser, "#grid") == ["No such metric."]
    put(browser, "filter", "")
    # A person opens the list and takes one metric out of it.
    browser.run("document.querySelector('#choice summary').click()")
    browser.run("[...document.querySelectorAll('#metrics button')].find((b) => b.textContent === 'kl').click()")
    assert "kl" not in texts(browser, "#grid h2") and "metrics=reward" in browser.run("location.hash")
    browser.run("document.querySelector('[data-metric=reward] button').click()")
    assert browser.run("document.querySelector('[data-metric=reward]').className") == "card wide"
    # A run is taken out by its box.
    browser.run("document.querySelectorAll('#runs input')[1].click()")
    assert len(texts(browser, "[data-metric=reward] .values span")) == 1


def test_smoothing_and_a_log_scale_draw_other_curves(browser: Browser, page: Path) -> None:
    browser.open(page)
    path = "document.querySelector('[data-metric=kl] path.curve:last-of-type').getAttribute('d')"
    plain = browser.run(path)
    put(browser, "smooth", "0.9")
    smooth = browser.run(path)
    put(browser, "smooth", "0")
    assert browser.run(path) == plain != smooth
    browser.run("byId('log').click()")
    assert browser.run(path) != plain and "log=1" in browser.run("location.hash")


def test_samples_are_stepped_through_ordered_and_searched(browser: Browser, page: Path) -> None:
    browser.open(page)
    show(browser, "samples")
    assert texts(browser, ".sample .prompt pre") == ["What is 30+1?", "What is 30+0?"]
    assert texts(browser, "#sample-note") == ["Step 30 of 1 to 30, 2 rows kept; this file has 60 of 60 rows"]
    browser.run("byId('step-before').click()")
    assert texts(browser, ".sample .prompt pre") == ["What is 29+1?", "What is 29+0?"]
    put(browser, "order", "worst", "change")
    assert texts(browser, ".sample .prompt pre") == ["What is 29+0?", "What is 29+1?"]
    put(browser, "sample-run", "1", "change")
    put(browser, "sample-step", "3", "change")
    assert texts(browser, ".sample .prompt pre")[0] == "What is 3+0?"
    browser.run("byId('search').value = 'WHAT IS 7+1'")
    browser.run("byId('search').focus()")
    key(browser, "Enter")
    assert texts(browser, ".sample .prompt pre") == ["What is 7+1?"]
    assert texts(browser, ".sample mark") == ["What is 7+1"]
    # What a model writes is text, whatever it is.
    assert "</script><script>" in texts(browser, ".sample .answer pre")[0]
    assert browser.run("document.title") == "grpo-1, grpo-2" and browser.run("document.images.length") == 0
    browser.run("byId('search').value = 'nowhere'")
    key(browser, "Enter")
    assert texts(browser, "#sample-note") == ["Nothing found among the 24 of 24 rows"]


def test_seconds_stand_beside_those_predicted_and_events_have_their_texts(browser: Browser, page: Path) -> None:
    browser.open(page)
    show(browser, "time")
    cells = texts(browser, "#time table:first-of-type tbody tr:first-child td")
    assert cells[:3] == ["generate rollout", "1.5 s", "2 s"]
    show(browser, "events")
    kinds = texts(browser, "#events .kind")
    assert kinds[0] in ("finished", "note") and sorted(kinds) == ["finished", "note", "note", "started", "started"]
    assert any(text.startswith("a <b>note</b> </script>") for text in texts(browser, "#events td"))
    show(browser, "rewards")
    assert texts(browser, "#rewards h2")[:2] == ["score \u00b7 grpo-1", "score \u00b7 grpo-2"]


def test_the_plan_has_what_was_measured(browser: Browser, page: Path) -> None:
    browser.open(page)
    show(browser, "plan")
    drawn = texts(browser, "#plan .plan:first-of-type text")
    assert "1.5 s" in drawn and "received 2MB" in drawn and "measured 3MB, 250 ms" in drawn
    rows = texts(browser, "#plan .beside tbody tr")
    assert "learngenerate rollout (play)1.5 s" in rows and any("4 others" in row for row in rows)
    # A box says more when it is chosen, by the keyboard too.
    browser.run("document.querySelector('#plan .node').focus()")
    key(browser, "Enter")
    assert browser.run("document.querySelector('#plan .told').hidden") is False
    show(browser, "rewards")
    assert texts(browser, ".ages h2")[:2] == ["Ages of rows by step \u00b7 grpo-1", "Ages of all rows \u00b7 grpo-1"]
    assert texts(browser, ".ages tbody tr:first-child")[0] == "0 versions606.45%"


def test_ticks_of_numbers_that_hardly_differ_are_told_apart(browser: Browser, page: Path) -> None:
    browser.open(page)
    for low, high in ((1234.001, 1234.009), (1e-7, 1e-7), (3, 3), (0.1234561, 0.1234569), (5e6, 5e6 + 2)):
        ticks = browser.run(
            f"[...frame(400, 190, [1, 2], [{low}, {high}], false, '').svg.querySelectorAll('text[text-anchor=end]')]"
            ".map((t) => t.textContent)"
        )
        assert len(ticks) > 2 and len(set(ticks)) == len(ticks), ticks


def test_the_page_is_used_by_keyboard(browser: Browser, page: Path) -> None:
    browser.open(page)
    key(browser, "3")
    assert browser.run("byId('rewards').hidden") is False
    key(browser, "ArrowRight")
    assert browser.run("[byId('plan').hidden, document.activeElement.id]") == [False, "tab-plan"]
    key(browser, "1")
    key(browser, "/")
    assert browser.run("document.activeElement.id") == "filter"
    browser.run("document.querySelector('[data-metric=reward] svg').focus()")
    key(browser, "Home")
    assert texts(browser, "[data-metric=reward] .values span") == ["step 1", "0.03333", "0.08333"]
    key(browser, "ArrowRight")
    assert texts(browser, "[data-metric=reward] .values span")[0] == "step 2"


CONTRAST = """(() => {
  const light = (color) => { const [r, g, b] = color.match(/[\\d.]+/g).map((c) => { c /= 255;
    return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const ground = (e) => { const c = getComputedStyle(e).backgroundColor;
    return c === "rgba(0, 0, 0, 0)" && e.parentElement ? ground(e.parentElement) : c; };
  const poor = [];
  for (const e of document.querySelectorAll("main *, header *")) {
    if (!e.checkVisibility() || ![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())) continue;
    const style = getComputedStyle(e), color = e.closest("svg") ? style.fill : style.color;
    const [a, b] = [light(color), light(ground(e))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5 && !e.disabled) poor.push([e.textContent.slice(0, 30), color, ground(e)]);
  }
  return poor;
})()"""

# What has a text that is wider than its box, or stands out of the page; folded texts are cut on purpose.
OUTSIDE = """(() => {
  const poor = document.documentElement.scrollWidth > innerWidth ? [["the page", document.documentElement.scrollWidth]] : [];
  for (const e of document.querySelectorAll("main *, header *")) {
    if (!e.checkVisibility() || ![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())) continue;
    if (e.closest("svg")) {
      if (e.closest(".plan")) continue;
      const text = e.getBoundingClientRect(), box = e.closest(".card").getBoundingClientRect();
      if (text.left < box.left || text.right > box.right || text.bottom > box.bottom) poor.push([e.textContent, "svg"]);
    } else if (e.clientWidth && e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display !== "inline") {
      poor.push([e.textContent.slice(0, 40), e.scrollWidth, e.clientWidth]);
    }
  }
  const labels = [...document.querySelectorAll("svg.chart")].filter((svg) => svg.checkVisibility());
  for (const svg of labels) {
    const boxes = [...svg.querySelectorAll("text")].map((text) => text.getBoundingClientRect());
    boxes.forEach((a, at) => boxes.slice(0, at).forEach((b) => {
      if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3) poor.push(["labels", svg.ariaLabel]);
    }));
  }
  return poor;
})()"""


@pytest.mark.parametrize("width", [1400, 390])
def test_every_text_fits_and_is_read_in_light_and_dark(width: int, browser: Browser, page: Path) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.order("Emulation.setDeviceMetricsOverride", **size)
    try:
        for dark in (False, True):
            browser.dark(dark)
            browser.open(page)
            assert (browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(17, 20, 26)") is dark
            for tab in TABS:
                show(browser, tab)
                assert browser.run(OUTSIDE) == [], (tab, dark)
                assert browser.run(CONTRAST) == [], (tab, dark)
    finally:
        browser.dark(False)
        browser.order("Emulation.setDeviceMetricsOverride", **{**size, "width": 1400})


def test_a_page_with_a_server_shows_what_is_new_and_asks_for_samples(browser: Browser, tmp_path: Path) -> None:
    run = written_run(tmp_path / "run", 3, rows=40, ended=False)
    server = WatchServer([RunReader(run)])
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        browser.open(server.address)
        assert texts(browser, "#runs .muted")[0].startswith("step 3 of 3")
        heard = "globalThis.heard = new Promise((done) => document.addEventListener('news', () => done(true)))"
        browser.run(f"{heard}; true")
        with (run / "metrics.jsonl").open("a") as file:
            file.write('{"step": 4, "reward": 0.5, "fresh": 1.0}\n')
        assert browser.run("heard") is True
        assert "fresh" in texts(browser, "#grid h2")
        asked = "(() => { const plain = samples.show.bind(samples); return plain(%s).then(() => true); })()"
        browser.run("view.tab = 'samples'")
        browser.run(asked % "")
        assert len(texts(browser, ".sample")) == 30 and browser.run("byId('more').hidden") is False
        browser.run(asked % "samples.page.next")
        assert len(texts(browser, ".sample")) == 40 and browser.run("byId('more').hidden") is True
        browser.run("byId('search').value = 'is 2+7?'")
        browser.run(asked % "")
        assert texts(browser, ".sample .prompt pre") == ["What is 2+7?"]
        assert texts(browser, "#sample-note") == ["1 sample in all steps"]
    finally:
        server.shutdown()
        thread.join()
        server.close()
