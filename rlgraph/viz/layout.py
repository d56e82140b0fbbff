"""Lays out a scene: shapes, lines, labels and tabs in the coordinates of the picture."""

from __future__ import annotations

from dataclasses import dataclass, field

from rlgraph.viz.boxes import Body, Box, Port, Scene, ValueLink
from rlgraph.viz.fonts import text_width_bound
from rlgraph.viz.layered import Arrangement, PlacedItem, ValueNet, arrange_items
from rlgraph.viz.measure import box_size, frame_title_size, label_size, model_caption_width
from rlgraph.viz.theme import CODE, HEAD, NOTE, SECTION

PAD = 16.0
MARGIN = 28.0
STUB = 6.0
"""The distance from a box to the label of the value that leaves it."""
TAB = 20.0


@dataclass(frozen=True, slots=True)
class PlacedBox:
    """A box with its place."""

    box: Box
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class ValueLabel:
    """The name and type of a value, where it leaves its box."""

    port: Port
    x: float
    """The middle."""
    y: float
    """The upper edge."""
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class EntryTab:
    """Marks where a value enters a loop."""

    port: Port
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class ValueLine:
    """The line of a value: pieces of (from, to) and the points where it arrives."""

    link: ValueLink
    pieces: tuple[tuple[float, float, float, float], ...]
    arrows: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Heading:
    """A title with a note beside it."""

    text: str
    note: str
    x: float
    y: float
    large: bool = False


@dataclass
class Drawing:
    """A scene with the places of all its parts."""

    title: str
    width: float = 0.0
    height: float = 0.0
    shapes: list[PlacedBox] = field(default_factory=list)
    strokes: list[ValueLine] = field(default_factory=list)
    labels: list[ValueLabel] = field(default_factory=list)
    tabs: list[EntryTab] = field(default_factory=list)
    headings: list[Heading] = field(default_factory=list)


def lay_out_scene(scene: Scene) -> Drawing:
    """Place everything in a scene; phases stand below each other."""
    drawing = Drawing(scene.title)
    drawing.headings.append(Heading(scene.title, "", MARGIN, MARGIN, large=True))
    y, wide = MARGIN + HEAD.height + 12, text_width_bound(scene.title, HEAD.face, HEAD.size)
    for section in scene.sections:
        if len(scene.sections) > 1 or section.note:
            drawing.headings.append(Heading(section.title, section.note, MARGIN, y))
            wide = max(
                wide,
                text_width_bound(section.title, SECTION.face, SECTION.size)
                + 16
                + text_width_bound(section.note, NOTE.face, 11),
            )
            y += SECTION.height + 10
        fit = _Fit(Box("", "loop", "", body=section.body), bare=True)
        fit.draw_into(drawing, MARGIN, y)
        y += fit.height + 2 * PAD
        wide = max(wide, fit.width)
    drawing.width, drawing.height = wide + 2 * MARGIN, y
    return drawing


class _Fit:
    """A box with its size and the places of its inner boxes relative to its upper left corner."""

    def __init__(self, box: Box, bare: bool = False, order: tuple[str, ...] = ()) -> None:
        self.box = box
        self.order = order
        """Its inputs from left to right, in the order in which they come from outside."""
        self.bare = bare
        """Whether it is a whole phase, which has no edge."""
        self.ins: dict[str, float] = {}
        self.outs: dict[str, float] = {}
        self.below = 0.0
        """The height of the labels under it."""
        self.inner: list[_Fit] = []
        self.plan = Arrangement([], [], [])
        self.nets: list[ValueLink] = []
        """One link of each net."""
        if box.body:
            self._frame(box.body)
        else:
            self.width, self.height = box_size(box)
        self._labels()

    # Sizes

    def _frame(self, body: Body) -> None:
        self.inner = [_Fit(child) for child in body.boxes]
        self._arrange(body)
        # Once more, now that it is known where the lines into the boxes come from.
        orders = [self._order(body, at) for at in range(len(self.inner))]
        if any(orders):
            self.inner = [
                _Fit(fit.box, order=order) if order else fit for fit, order in zip(self.inner, orders, strict=True)
            ]
            self._arrange(body)

    def _order(self, body: Body, at: int) -> tuple[str, ...]:
        """Return the inputs of a frame from left to right; empty if there is nothing to choose."""
        box = body.boxes[at]
        if box.body is None or len(box.inputs) < 2:
            return ()
        start: dict[str, float] = {}
        by_net = {net: s for s in reversed(self.plan.segments) for net in [s.net] if s.upper < self.given}
        for segment in self.plan.segments:
            if segment.lower == at:
                upper, first = self.plan.items[segment.upper], by_net.get(segment.net, segment)
                start[self.targets[segment.net, at]] = upper.x + segment.start + 1e-3 * first.start
        return tuple(sorted((port.value for port in box.inputs), key=lambda value: start.get(value, 0.0)))

    def _arrange(self, body: Body) -> None:
        box = self.box
        self.nets = []
        items = [fit.as_item() for fit in self.inner]
        place = {child.id: index for index, child in enumerate(body.boxes)}
        top: dict[str, int] = {}
        inputs = sorted(box.inputs, key=lambda port: self.order.index(port.value) if self.order else 0)
        for port in inputs:
            top[port.inside] = len(items)
            wide = text_width_bound(port.label, CODE.face, CODE.size) + 18 if box.kind == "loop" else 6.0
            tall = TAB if box.kind == "loop" else 0.0
            items.append(
                PlacedItem(wide, tall, outs={port.inside: wide / 2}, pin=-1, margin=5 if box.kind == "loop" else 9)
            )
        bottom: dict[str, int] = {}
        for port in box.outputs:
            bottom[port.inside] = len(items)
            wide = max(24.0, label_size(port)[0])
            items.append(PlacedItem(wide, 0, ins={port.inside: wide / 2}, pin=1, margin=8))
        self.titled = not self.bare and box.kind != "model"
        if self.titled:
            wide, tall = frame_title_size(box)
            items.append(PlacedItem(wide, tall, pin=-1, first=True, margin=6))
        nets = self._nets(body, place, top, bottom)
        self.given = len(items)
        self.targets = {(at, target): into for at, net in enumerate(nets) for target, into in net.targets}
        self.plan = arrange_items(items, nets, 14.0 if box.kind == "model" else 26.0)
        self.left = 0.0 if self.bare else model_caption_width(box) if box.kind == "model" else PAD
        self.top = 14.0 if box.kind == "model" and not box.inputs else 0.0
        self.width = self.plan.width + self.left + (0.0 if self.bare else PAD)
        self.height = self.plan.height + self.top + (0.0 if box.outputs or self.bare else PAD)
        for port in box.inputs:
            item = self.plan.items[top[port.inside]]
            self.ins[port.value] = self.left + item.x + item.width / 2
        for port in box.outputs:
            item = self.plan.items[bottom[port.inside]]
            self.outs[port.value] = self.left + item.x + item.width / 2

    def _nets(self, body: Body, place: dict[str, int], top: dict[str, int], bottom: dict[str, int]) -> list[ValueNet]:
        nets: dict[tuple[int, str], ValueNet] = {}
        for link in body.links:
            source = place[link.source] if link.source else top.get(link.out)
            target = place[link.target] if link.target else bottom.get(link.into)
            if source is None or target is None:
                continue
            if (source, link.out) not in nets:
                nets[source, link.out] = ValueNet(source, link.out, [], 0.5 if link.line == "weights" else 1.0)
                self.nets.append(link)
            net = nets[source, link.out]
            if (target, link.into) not in net.targets:
                net.targets.append((target, link.into))
        return list(nets.values())

    def _labels(self) -> None:
        """Place the labels of the values that leave the box: side by side, below its edge."""
        ports = self.box.outputs
        if not ports or self.bare:
            return
        sizes = [label_size(port) for port in ports]
        self.below = STUB + max(tall for _, tall in sizes)
        if len(ports) == 1 and not self.outs:
            self.outs[ports[0].value] = self.width / 2
        if not self.outs:
            total = sum(wide for wide, _ in sizes) + 12 * (len(ports) - 1)
            self.width = max(self.width, total)
            x = (self.width - total) / 2
            for port, (wide, _) in zip(ports, sizes, strict=True):
                self.outs[port.value] = x + wide / 2
                x += wide + 12

    def has_label(self, value: str) -> bool:
        return any(port.label for port in self.box.outputs if port.value == value)

    def as_item(self) -> PlacedItem:
        """Return its item for the layout around it, which includes the labels: they may be wider than the box."""
        self.before = max([0.0, *(label_size(p)[0] / 2 - self.outs[p.value] for p in self.box.outputs)])
        after = max([0.0, *(self.outs[p.value] + label_size(p)[0] / 2 - self.width for p in self.box.outputs)])
        ins = {value: x + self.before for value, x in self.ins.items()}
        outs = {value: x + self.before for value, x in self.outs.items()}
        full_width = self.before + self.width + after
        return PlacedItem(full_width, self.height + self.below, ins, outs, self.before, after)

    # Drawing

    def draw_into(self, drawing: Drawing, x: float, y: float) -> None:
        """Add the box and its contents to a drawing, its upper left corner at (x, y)."""
        if not self.bare:
            drawing.shapes.append(PlacedBox(self.box, x, y, self.width, self.height))
        for port in self.box.outputs:
            wide, tall = label_size(port)
            drawing.labels.append(ValueLabel(port, x + self.outs[port.value], y + self.height + STUB, wide, tall))
        if self.box.body is None:
            return
        left, top = x + self.left, y + self.top
        self._tabs(drawing, left, top)
        self._lines(drawing, left, top)
        for fit, item in zip(self.inner, self.plan.items, strict=False):
            fit.draw_into(drawing, left + item.x + fit.before, top + item.y)

    def _tabs(self, drawing: Drawing, left: float, top: float) -> None:
        if self.box.kind != "loop":
            return
        ports = sorted(self.box.inputs, key=lambda port: self.order.index(port.value) if self.order else 0)
        for port, item in zip(ports, self.plan.items[len(self.inner) :], strict=False):
            drawing.tabs.append(EntryTab(port, left + item.x, top, item.width, TAB))

    def _lines(self, drawing: Drawing, left: float, top: float) -> None:
        rows = self.plan.row_extents()
        pieces: dict[int, list[tuple[float, float, float, float]]] = {}
        arrows: dict[int, list[tuple[float, float]]] = {}
        for segment in self.plan.segments:
            upper, lower = self.plan.items[segment.upper], self.plan.items[segment.lower]
            net_pieces = pieces.setdefault(segment.net, [])
            x, y = left + upper.x + segment.start, top + upper.y + upper.height
            low = top + rows[upper.rank][1]
            if not upper.line and segment.upper < len(self.inner):
                fit = self.inner[segment.upper]
                edge = top + upper.y + fit.height
                if fit.has_label(self.nets[segment.net].out):
                    # The line is interrupted by the label.
                    if (x, edge, x, edge + STUB - 1) not in net_pieces:
                        net_pieces.append((x, edge, x, edge + STUB - 1))
                else:
                    y = edge
            elif upper.line:
                y = top + rows[upper.rank][0]
            elif upper.pin < 0 and self.box.kind != "loop":
                y = top
            if low - y > 0.01 and (x, y, x, low) not in net_pieces:
                net_pieces.append((x, y, x, low))
            end_x, end_y = left + lower.x + segment.end, top + rows[lower.rank][0]
            net_pieces.append((x, low, end_x, end_y))
            if lower.pin == 0 and not lower.line:
                arrows.setdefault(segment.net, []).append((end_x, end_y))
        for net, link in enumerate(self.nets):
            if net in pieces:
                drawing.strokes.append(ValueLine(link, tuple(pieces[net]), tuple(arrows.get(net, ()))))
