"""Measures the sizes that boxes need for their captions."""

from __future__ import annotations

from rlgraph.viz.boxes import Box, Port
from rlgraph.viz.fonts import text_width_bound
from rlgraph.viz.theme import CODE, LABEL, NAME, NOTE, SMALL, TITLE, Style


def text_width(words: str, style: Style) -> float:
    """Return the width of a text."""
    return text_width_bound(words, style.face, style.size)


def label_lines(port: Port) -> tuple[str, ...]:
    """Return a value's name over its type."""
    if not port.label:
        return ()
    if port.line == "weights":
        return (port.label,)
    name, _, kind = port.label.partition(": ")
    return (name, kind) if kind else (name,)


def label_size(port: Port) -> tuple[float, float]:
    """Return the width and height of a label."""
    lines = label_lines(port)
    return max((text_width(line, LABEL) for line in lines), default=0) + 8, LABEL.height * len(
        lines
    ) + 2 if lines else 0


def frame_title_size(box: Box) -> tuple[float, float]:
    """Return the size of a frame's title, with its note below it."""
    wide = max(text_width(box.title, TITLE) + (20 if box.kind == "loop" else 0), text_width(box.note, NOTE))
    return wide + 8, 12 + TITLE.height + (NOTE.height if box.note else 0)


def model_caption_width(box: Box) -> float:
    """Return the width of a model's name and kind, left of its operations."""
    return max(text_width(box.title, TITLE), max(text_width(line, SMALL) for line in model_caption_lines(box))) + 26


def model_caption_lines(box: Box) -> tuple[str, ...]:
    """Return the lines below a model's name."""
    return tuple(box.note.split(", "))


def box_size(box: Box) -> tuple[float, float]:
    """Return the width and height of a box that holds no others."""
    waits = text_width(box.waits, SMALL) + 16 if box.waits else 0
    if box.kind == "report":
        return text_width(pill_text(box), LABEL) + 36, 22
    if box.kind in ("column", "minimize", "next"):
        return text_width(pill_text(box), SMALL if box.kind == "next" else CODE) + 26, 24
    wide = max(
        text_width(box.title, NAME),
        text_width(box.note, NOTE),
        waits,
        *(text_width(line, CODE) for line in box.lines),
        36,
    )
    tall = NAME.height + len(box.lines) * CODE.height
    tall += (NOTE.height if box.note else 0) + (SMALL.height + 3 if has_badge(box) else 0)
    return wide + 24, tall + (20 if box.kind == "data" else 14)


def pill_text(box: Box) -> str:
    """Return the one line of a small box."""
    if box.kind == "next":
        return f"{box.title}: next step"
    if box.kind == "report":
        return box.title
    return f"{box.title} {box.note}".strip()


def has_badge(box: Box) -> bool:
    """Return whether a box has a badge. A data source always waits: its amber edge is enough."""
    return bool(box.waits) and box.kind != "data"
