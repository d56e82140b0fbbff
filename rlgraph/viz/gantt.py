"""A timeline as SVG: a lane for each pool, a bar for each piece of work, the critical path underlined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, log10

from rlgraph.viz import marks
from rlgraph.viz.escape import escape
from rlgraph.viz.marks import head
from rlgraph.viz.measure import text as wide
from rlgraph.viz.theme import CODE, HEAD, INK, KINDS, LABEL, MUTED, NAME, NOTE, ROLES, SMALL, Paint, Style

MARGIN, ROOM = 24.0, 960.0
"""Around the picture; width of the lanes."""
TALL, GAP = 34.0, 14.0
"""Of a lane, and between two."""
LEAST = 0.7
"""Pixels of the narrowest bar."""

WORDS: dict[str, str] = {
    "generate": "generate",
    "forward": "forward pass",
    "train": "train",
    "sync": "send weights",
    "host": "without a model",
}
PAINTS: dict[str, Paint] = {
    "generate": ROLES["policy"],
    "forward": ROLES["reward"],
    "train": ROLES["critic"],
    "sync": KINDS["state"],
    "host": KINDS["data"],
}


@dataclass(frozen=True, slots=True)
class Bar:
    lane: str
    name: str
    kind: str
    """One of `WORDS`."""
    start: float
    """Seconds, as `end`."""
    end: float
    critical: bool = False
    """It is on the critical path."""


@dataclass(frozen=True, slots=True)
class Lane:
    name: str
    note: str


def gantt(title: str, note: str, lanes: Sequence[Lane], bars: Sequence[Bar], seconds: float) -> str:
    """The picture of a time that begins at 0."""
    return _Pen(lanes, seconds).drawing(title, note, bars)


class _Pen:
    def __init__(self, lanes: Sequence[Lane], seconds: float) -> None:
        self.lanes, self.seconds = lanes, seconds
        self.left = MARGIN + 16 + max((max(wide(lane.name, NAME), wide(lane.note, NOTE)) for lane in lanes), default=0)
        self.top = MARGIN + HEAD.height + 30
        self.tops = {lane.name: self.top + place * (TALL + GAP) for place, lane in enumerate(lanes)}
        self.bottom = self.top + len(lanes) * (TALL + GAP)
        self.out: list[str] = []

    def drawing(self, title: str, note: str, bars: Sequence[Bar]) -> str:
        width = round(max(self.left + ROOM, MARGIN + wide(title, HEAD) + 12 + wide(note, NOTE)) + MARGIN)
        height = round(self.bottom + 20 + 20 + MARGIN)
        self.out = head(title, width, height)
        self.text(title, MARGIN, MARGIN + HEAD.size, HEAD, INK)
        self.text(note, MARGIN + wide(title, HEAD) + 12, MARGIN + HEAD.size, NOTE, MUTED)
        self.scale()
        for lane in self.lanes:
            self.lane(lane)
        for bar in sorted(bars, key=lambda bar: bar.critical):
            self.bar(bar)
        self.legend(bars)
        self.out.append("</svg>")
        return "\n".join(self.out) + "\n"

    def x(self, at: float) -> float:
        return self.left + ROOM * (at / self.seconds if self.seconds else 0)

    def text(self, words: str, x: float, y: float, style: Style, fill: str, anchor: str = "start") -> None:
        self.out.append(marks.words(words, x, y, style, fill, anchor=anchor))

    def scale(self) -> None:
        """Thin lines at round times."""
        step = tick(self.seconds)
        for number in range(floor(self.seconds / step + 1e-9) + 1):
            x = self.x(number * step)
            self.out.append(
                f'<path d="M{x:.1f} {self.top - 8:.1f}V{self.bottom:.1f}" stroke="#e4e7ec" stroke-width="1"/>'
            )
            self.text(f"{number * step:.10g} s", x, self.bottom + 14, LABEL, MUTED, "middle")

    def lane(self, lane: Lane) -> None:
        y = self.tops[lane.name]
        self.text(lane.name, MARGIN, y + 14, NAME, INK)
        self.text(lane.note, MARGIN, y + 29, NOTE, MUTED)
        self.out.append(
            f'<rect x="{self.left:.1f}" y="{y:.1f}" width="{ROOM:.1f}" height="{TALL:.1f}" rx="4" fill="#f9fafb" '
            f'stroke="#eaecf0"/>'
        )

    def bar(self, bar: Bar) -> None:
        x, y, paint = self.x(bar.start), self.tops[bar.lane], PAINTS[bar.kind]
        length = max(LEAST, self.x(bar.end) - x)
        edge = min(1.0, length / 6)
        self.out.append(
            f'<g class="bar k-{bar.kind}"><title>{escape(bar.name)}: {bar.start:.4g} s to {bar.end:.4g} s</title>'
            f'<rect x="{x:.2f}" y="{y + 3:.1f}" width="{length:.2f}" height="{TALL - 10:.1f}" '
            f'rx="{min(4.0, length / 3):.1f}" '
            f'fill="{paint.fill}" stroke="{paint.edge}" stroke-width="{edge:.2f}"/>'
        )
        if bar.critical:
            self.out.append(f'<rect x="{x:.2f}" y="{y + TALL - 5:.1f}" width="{length:.2f}" height="3" fill="{INK}"/>')
        # `train actor` is `actor` where there is less room: the colour says the rest.
        shown = next((words for words in (bar.name, bar.name.split()[-1]) if wide(words, CODE) + 10 <= length), "")
        if shown:
            self.text(shown, x + length / 2, y + 19, CODE, paint.text, "middle")
        self.out.append("</g>")

    def legend(self, bars: Sequence[Bar]) -> None:
        x, y = self.left, self.bottom + 30
        for kind in (kind for kind in WORDS if any(bar.kind == kind for bar in bars)):
            paint = PAINTS[kind]
            self.out.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="20" height="12" rx="4" fill="{paint.fill}" '
                f'stroke="{paint.edge}"/>'
            )
            self.text(WORDS[kind], x + 27, y + 10, SMALL, MUTED)
            x += 27 + wide(WORDS[kind], SMALL) + 22
        self.out.append(f'<rect x="{x:.1f}" y="{y + 5:.1f}" width="20" height="3" fill="{INK}"/>')
        self.text("critical path", x + 27, y + 10, SMALL, MUTED)


def tick(seconds: float) -> float:
    """A round time that fits into the whole 5 to 12 times: 1, 2 or 5 times a power of ten."""
    if seconds <= 0:
        return 1.0
    power = 10.0 ** floor(log10(seconds / 5))
    return max(each * power for each in (1.0, 2.0, 5.0) if seconds / (each * power) >= 5 - 1e-9)
