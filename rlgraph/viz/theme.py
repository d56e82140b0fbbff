"""The colours and sizes of the pictures."""

from __future__ import annotations

from dataclasses import dataclass

from rlgraph.viz.boxes import BoxKind, Role
from rlgraph.viz.fonts import Face


@dataclass(frozen=True, slots=True)
class Paint:
    """The colours of a box."""

    fill: str
    edge: str
    text: str
    chip: str
    """The fill of the operations in a container."""


PAPER, INK, MUTED, FAINT, LINE = "#ffffff", "#1c2333", "#667085", "#98a2b3", "#8b95a7"
BARRIER = "#e08a00"
BARRIER_TEXT = "#a15c00"

ROLES: dict[Role, Paint] = {
    "": Paint("#f5f6f8", "#c4cad4", "#475467", "#ffffff"),
    "policy": Paint("#e6effc", "#4a80d4", "#1d4b99", "#ffffff"),
    "critic": Paint("#e2f5ec", "#33a06f", "#14633f", "#ffffff"),
    "reward": Paint("#f2e9fc", "#9263d1", "#5b2d9c", "#ffffff"),
    "policy frozen": Paint("#f1f5fb", "#9bb4da", "#47658f", "#ffffff"),
    "critic frozen": Paint("#f0f8f4", "#93c7ae", "#3f7359", "#ffffff"),
    "reward frozen": Paint("#f7f3fc", "#bda5de", "#6f5196", "#ffffff"),
}
"""The colours of a model's container, by its role; frozen ones are paler."""

KINDS: dict[BoxKind, Paint] = {
    "data": Paint("#eef1f5", "#8793a8", INK, ""),
    "call": Paint("#fff6dc", "#d9ab3a", "#6b4e00", ""),
    "table": Paint("#f2f4f7", "#a3adbd", INK, ""),
    "column": Paint("#f7f8fa", "#c9cfd9", "#475467", ""),
    "tensor": Paint("#ffffff", "#b9c1ce", INK, ""),
    "report": Paint("#fafbfc", "#cfd5de", MUTED, ""),
    "state": Paint("#fff0ea", "#dd8d6c", "#8a3f1f", ""),
    "next": Paint("#ffffff", "#b9c1ce", INK, ""),
    "loop": Paint("#fbfbfd", "#a9b2c1", "#344054", ""),
}

HUES: tuple[str, ...] = (
    *(ROLES[role].edge for role in ("policy", "critic", "reward")),
    *(KINDS[kind].edge for kind in ("call", "state")),
    *("#2a9db0", "#cf5f9e", "#8a9a3b"),
)
"""The colours of models side by side, whatever their roles. On top of any page colour they remain visible."""


@dataclass(frozen=True, slots=True)
class Style:
    """The font of a text."""

    face: Face
    size: float
    height: float
    """The distance from one line to the next."""


TITLE = Style("bold", 13, 18)
NAME = Style("strong", 12, 17)
"""For a value's name, as a box's title."""
NOTE = Style("sans", 11, 15)
CODE = Style("mono", 11, 15)
LABEL = Style("mono", 10, 13)
SMALL = Style("sans", 10.5, 14)
HEAD = Style("bold", 20, 28)
SECTION = Style("bold", 14, 22)
