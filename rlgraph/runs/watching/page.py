"""Makes the page of runs: one self-contained HTML, either alone or with a server behind it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from rlgraph.runs.watching.run_reader import RunReader
from rlgraph.runs.watching.sample_pages import Page, count_samples, step_page
from rlgraph.viz.escape import escape
from rlgraph.viz.fonts import font_style_sheet
from rlgraph.viz.html import picture_style_sheet

EXPORTED_STEPS = 40
"""Of how many steps of a run an exported page has samples: the first ones, the last ones, and some in between."""
EXPORTED_CHARACTERS = 4_000_000
"""The most characters of samples of a run that an exported page has."""


def runs_data(readers: Sequence[RunReader]) -> dict[str, Any]:
    """Return what the page shows of the runs but their samples, and a stamp that changes when there is more."""
    stamp = [reader.stamp() for reader in readers]
    return {"stamp": stamp, "runs": [reader.page_data() for reader in readers]}


def live_page(readers: Sequence[RunReader]) -> str:
    """Return the page that asks its server for samples and for what is new."""
    return _page({**runs_data(readers), "live": True})


def exported_page(readers: Sequence[RunReader]) -> str:
    """Return the page that needs nothing else, with samples of some steps."""
    samples = [_exported(reader.path) for reader in readers]
    kept = [count_samples(reader.path) for reader in readers]
    return _page({**runs_data(readers), "live": False, "samples": samples, "kept": kept})


def _exported(run: Path) -> list[dict[str, Any]]:
    """Return a page's samples of some steps, the newest step first."""
    newest = step_page(run)
    first, last = newest.steps
    span = max(last - first, 1)
    steps = sorted({first + span * at // (EXPORTED_STEPS - 1) for at in range(EXPORTED_STEPS)} | {last}, reverse=True)
    rows: dict[int, list[dict[str, Any]]] = {newest.step: _all_rows(run, newest)}
    used = len(json.dumps(rows[newest.step]))
    for step in steps:
        if step > last or used > EXPORTED_CHARACTERS:
            continue
        page = step_page(run, step)
        if page.step not in rows:
            rows[page.step] = _all_rows(run, page)
            used += len(json.dumps(rows[page.step]))
    return [row for step in sorted(rows, reverse=True) for row in rows[step]]


def _all_rows(run: Path, page: Page) -> list[dict[str, Any]]:
    """Return the rows of a step's first page and of those after it, of at most so many characters."""
    rows = [*page.rows]
    while page.next is not None and len(json.dumps(rows)) < EXPORTED_CHARACTERS // EXPORTED_STEPS:
        page = step_page(run, page.step, begin=page.next)
        rows += page.rows
    return rows


def _page(data: dict[str, Any]) -> str:
    names = ", ".join(run["name"] for run in data["runs"])
    parts = {
        "TITLE": escape(names),
        "STYLE": f"{font_style_sheet()}\n{picture_style_sheet()}\n{_asset('watch.css')}",
        "DATA": script_json(data),
        "SCRIPT": "\n".join(_asset(name) for name in ("elements.js", "charts.js", "samples.js", "plan.js", "watch.js")),
    }
    # Split at the marks, so that a mark inside a filled-in text is not replaced.
    pieces = _asset("watch.html").split("@@")
    return "".join(parts[piece] if index % 2 else piece for index, piece in enumerate(pieces))


def script_json(value: object) -> str:
    """Return JSON that cannot end the script element that contains it."""
    return json.dumps(value).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _asset(name: str) -> str:
    return (files("rlgraph.runs.watching") / "page" / name).read_text("utf-8")
