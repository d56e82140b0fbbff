"""Pages of docs/why have what benchmarks/asynchrony.py prints: all of its cases, and, of the cheap ones, the figures."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from benchmarks import slow_link, split_points
from benchmarks.asynchrony import EXPERIMENTS, HEAD, Experiment, rows, shown
from tests.documents import ROOT

PAGES = [ROOT / "docs/why" / f"{name}.md" for name in ("asynchrony", "streaming", "systems")]
TEXT = "\n".join(page.read_text("utf-8") for page in PAGES)
TABLES = dict(re.findall(r"<!-- asynchrony: ([\w ]+) -->\n(.*?)<!-- end -->", TEXT, re.DOTALL))


def test_every_case_is_on_the_page() -> None:
    assert list(TABLES) == list(EXPERIMENTS)
    for name, experiment in EXPERIMENTS.items():
        lines = TABLES[name].splitlines()
        assert "\n".join(lines[:2]) == HEAD
        cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
        assert [(row[0], row[1], row[2], row[7]) for row in cells] == [
            (answers, case.plan, str(case.lag), case.published)
            for answers, *_ in experiment.lengths
            for case in experiment.cases
        ]


@pytest.mark.parametrize("name, cases", [("areal", 2), ("streamrl", 1)])
def test_the_page_has_what_is_printed(name: str, cases: int) -> None:
    whole = EXPERIMENTS[name]
    few: Experiment = replace(whole, answers=whole.answers[:1], cases=whole.cases[:cases])
    printed = [shown(row) for row in rows(few)]
    assert printed == TABLES[name].splitlines()[2 : 2 + cases], (
        "put what `python benchmarks/asynchrony.py` prints there"
    )


@pytest.mark.long
def test_the_slow_link_on_the_page_is_what_is_printed() -> None:
    """Of the smallest model; of the others the lines are there."""
    [table] = re.findall(r"<!-- slow link -->\n(.*?)\n<!-- end -->", TEXT, re.DOTALL)
    head, lines = table.splitlines()[:2], table.splitlines()[2:]
    assert head == slow_link.HEAD.splitlines()
    found = [slow_link.shown(row) for row in slow_link.rows(slow_link.MODELS[:1])]
    assert lines[: len(found)] == found
    assert len(lines) == len(found) * len(slow_link.MODELS)


def test_split_points_are_those_of_the_experiments() -> None:
    text = (ROOT / "docs/why/split-points.md").read_text("utf-8")
    [table] = re.findall(r"<!-- split points -->\n(.*?)\n<!-- end -->", text, re.DOTALL)
    head, lines = "\n".join(table.splitlines()[:2]), table.splitlines()[2:]
    assert head == split_points.HEAD
    wanted = list(split_points.compared())
    assert len(lines) == len(wanted)
    for line, (cells, _, _, case) in zip(lines, wanted, strict=True):
        gain, published, met = (cell.strip() for cell in line.strip("|").split("|")[5:8])
        assert line.startswith(cells) and published == case.published
        higher = float(gain.rstrip("x")) > 1
        # A gain of 1.00 may be on either side.
        assert gain == "1.00x" or met == ("yes" if higher == (split_points.least_published(case) > 1) else "no")
    met = sum(" | yes | " in line for line in lines)
    assert f"{met} of {len(lines)} rows" in text
