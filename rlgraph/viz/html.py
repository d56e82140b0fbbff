"""Makes one self-contained page with the pictures of a program after each pass, and of its plan, to explore."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files

from rlgraph.errors import NOWHERE, Source
from rlgraph.ir.graph import Program
from rlgraph.viz import fonts, lanes_svg, time_plan
from rlgraph.viz.boxes import Scene
from rlgraph.viz.escape import escape
from rlgraph.viz.lanes import Lanes
from rlgraph.viz.layout import lay_out_scene
from rlgraph.viz.scene import to_scene
from rlgraph.viz.svg import drawing_to_svg
from rlgraph.viz.svg_elements import NAMESPACE
from rlgraph.viz.time_plan import TimePlan


def to_html(
    programs: Sequence[tuple[str, Program]],
    source: Source = NOWHERE,
    plan: Lanes | None = None,
    first: str = "plan",
    pipelines: str = "",
    time: TimePlan | None = None,
    timeline: str = "",
) -> str:
    """Return a page with a picture for each (title, program), and the program's text beside it.

    The titles name the pass after which a picture was taken; with several there is a selector. plan: a picture of where
    the program runs, with a selector between the two. pipelines: SVG of what its pipeline stages do when. first: which
    of them is seen first, `plan`, `pipelines` or `dataflow`. time, timeline: a step by time, from top to bottom, and as
    SVG from left to right.
    """
    details: dict[str, dict[str, object]] = {}
    pictures = []
    if plan is not None:
        pictures.append(_picture("plan", lanes_svg.to_svg(plan, "p-", embed=False)))
        details |= _work_details(plan, "p-", source.path)
    if time is not None:
        pictures.append(_picture("time", time_plan.to_svg(time, "t-")))
        details |= _timed_details(time, plan, "t-", source.path)
    charts = {"timeline": timeline, "pipelines": pipelines}
    pictures += [_picture(kind, svg) for kind, svg in charts.items() if svg]
    for index, (title, program) in enumerate(programs):
        prefix = f"g{index}-"
        scene = to_scene(program)
        # In HTML the name space is implied, and the page contains no addresses.
        svg = drawing_to_svg(lay_out_scene(scene), prefix).replace(f' xmlns="{NAMESPACE}"', "", 1)
        details |= _box_details(scene, prefix, source.path)
        pictures.append(f'<div class="picture" data-title="{escape(title)}" hidden>\n{svg}</div>')
    there = {"plan": plan, "time": time, **charts}
    kinds = [kind for kind, picture in there.items() if picture]
    shown = sorted([*kinds, "dataflow"] if kinds else [], key=lambda kind: kind != first)
    name = programs[0][1].name if programs else "rlgraph"
    page = (files("rlgraph.viz") / "page" / "page.html").read_text("utf-8")
    parts = {
        "TITLE": escape(name),
        "STYLE": f"{fonts.font_style_sheet()}\n{_asset('page.css')}\n{picture_style_sheet()}",
        "SCRIPT": _asset("page.js"),
        "OPTIONS": "".join(f"<option>{escape(title)}</option>" for title, _ in programs),
        "ONE": " hidden" if len(programs) < 2 else "",
        "KINDS": "".join(_kind_option(kind) for kind in shown),
        "PLANNED": "" if shown else " hidden",
        "PICTURES": "\n".join(pictures),
        "SOURCE": _source(source.text),
        "NODES": _json(details),
    }
    # Split at the marks, so that a mark inside a filled-in text is not replaced.
    pieces = page.split("@@")
    return "".join(parts[piece] if index % 2 else piece for index, piece in enumerate(pieces))


_KIND_TEXTS = {"time": "time, downwards", "timeline": "time, across"}


def _kind_option(kind: str) -> str:
    text = _KIND_TEXTS.get(kind)
    return f'<option value="{kind}">{text}</option>' if text else f"<option>{kind}</option>"


def _picture(kind: str, svg: str) -> str:
    """Return a picture of a plan for the page. In HTML the name space is implied, and the page contains no
    addresses."""
    plain = svg.replace(f' xmlns="{NAMESPACE}"', "", 1)
    return f'<div class="picture" data-kind="{kind}" data-title="{kind}" hidden>\n{plain}</div>'


def picture_style_sheet() -> str:
    """Return the style of pictures on a page that is light or dark as its reader prefers."""
    return _asset("picture.css")


def _asset(name: str) -> str:
    return (files("rlgraph.viz") / "page" / name).read_text("utf-8")


def _box_details(scene: Scene, prefix: str, path: str) -> dict[str, dict[str, object]]:
    """Return what the side panel shows of each box."""
    return {
        f"{prefix}{box.id}": {
            "title": box.title,
            "kind": _KINDS.get(box.kind, box.kind),
            "note": box.note,
            "text": box.text,
            "waits": box.waits,
            "reason": box.reason,
            "lines": box.rows if box.file == path else (),
            "place": f"{box.file}:{box.rows[0]}" if box.rows else "",
        }
        for box in scene.walk_boxes()
    }


def _work_details(plan: Lanes, prefix: str, path: str) -> dict[str, dict[str, object]]:
    """Return the same of each work of a plan."""
    return {
        f"{prefix}{work.id}": {
            "title": work.title,
            "kind": "new weights" if work.kind == "next" else _KINDS.get(work.kind, work.kind),
            "note": ", ".join(filter(None, (work.note, work.seconds))),
            "text": work.text,
            "waits": "",
            "reason": "",
            "lines": work.rows if work.file == path else (),
            "place": f"{work.file}:{work.rows[0]}" if work.rows else "",
        }
        for work in plan.all_works()
    }


def _timed_details(picture: TimePlan, plan: Lanes | None, prefix: str, path: str) -> dict[str, dict[str, object]]:
    """Return the same of each work of a step by time; the plan's box of the same title says more."""
    planned = {} if plan is None else {work.title: work for work in reversed([*plan.all_works()])}
    details: dict[str, dict[str, object]] = {}
    for work in picture.works:
        box = planned.get(work.title)
        details[f"{prefix}{work.id}"] = {
            "title": work.title,
            "kind": "on the critical path" if work.critical else "not on the critical path",
            "note": work.seconds,
            "text": f"{work.start:.4g} s to {work.end:.4g} s\n{box.text if box else ''}".rstrip(),
            "waits": "",
            "reason": "",
            "lines": box.rows if box and box.file == path else (),
            "place": f"{box.file}:{box.rows[0]}" if box and box.rows else "",
        }
    return details


_KINDS = {
    "data": "data source",
    "op": "operation of a model",
    "call": "Python function",
    "table": "table operation",
    "column": "column of a table",
    "tensor": "tensor maths",
    "report": "metric",
    "next": "result of the step",
    "train": "training step",
}


def _source(text: str) -> str:
    lines = text.splitlines()
    return "\n".join(
        f'<span class="src" data-line="{number}">{escape(line) or " "}</span>' for number, line in enumerate(lines, 1)
    )


def _json(value: object) -> str:
    """Return JSON that cannot end the script element that contains it."""
    return json.dumps(value, ensure_ascii=False).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
