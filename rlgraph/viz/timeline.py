"""The timeline of a step: a lane for each pool, a bar for each piece of work, the critical path underlined."""

from __future__ import annotations

from rlgraph.viz.gantt import Bar, BarStyle
from rlgraph.viz.theme import KINDS, ROLES

LOOKS: dict[str, BarStyle] = {
    "generate": BarStyle("generate", ROLES["policy"], "k-generate"),
    "forward": BarStyle("forward pass", ROLES["reward"], "k-forward"),
    "train": BarStyle("train", ROLES["critic"], "k-train"),
    "sync": BarStyle("send weights", KINDS["state"], "k-sync"),
    "host": BarStyle("without a model", KINDS["data"], "k-host"),
}


def work_bar(lane: str, name: str, kind: str, start: float, end: float, critical: bool = False) -> Bar:
    """Return the bar of a piece of work. kind: one of `LOOKS`."""
    # `train actor` is shortened to `actor` where there is less room: the colour says the rest.
    return Bar(lane, name, LOOKS[kind], start, end, (name, name.split()[-1]), critical)
