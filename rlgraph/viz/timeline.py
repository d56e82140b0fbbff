"""The timeline of a step: a lane for each pool, a bar for each piece of work, the critical path underlined."""

from __future__ import annotations

from rlgraph.viz.gantt import Bar, Look
from rlgraph.viz.theme import KINDS, ROLES

LOOKS: dict[str, Look] = {
    "generate": Look("generate", ROLES["policy"], "k-generate"),
    "forward": Look("forward pass", ROLES["reward"], "k-forward"),
    "train": Look("train", ROLES["critic"], "k-train"),
    "sync": Look("send weights", KINDS["state"], "k-sync"),
    "host": Look("without a model", KINDS["data"], "k-host"),
}


def worked(lane: str, name: str, kind: str, start: float, end: float, critical: bool = False) -> Bar:
    """Return the bar of a piece of work. kind: one of `LOOKS`."""
    # `train actor` is shortened to `actor` where there is less room: the colour says the rest.
    return Bar(lane, name, LOOKS[kind], start, end, (name, name.split()[-1]), critical)
