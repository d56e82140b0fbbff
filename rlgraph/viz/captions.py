"""The captions of a box: titles, options, formulas, types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rlgraph.ir.graph import Constant, Model, Node, Phase, Record, Unit, Value
from rlgraph.ir.text.text import show, show_constant
from rlgraph.ir.types import Handle
from rlgraph.ops import NODES
from rlgraph.ops.tensor import INFIX

FORMULA_COLUMNS = 44
FORMULA_LINES = 4
METRIC_COLUMNS = 56
OPTION_COLUMNS = 40

_ELSEWHERE = ("name", "names", "axis", "text")
"""The types of attributes that are no options: a title or an arrow shows them."""


def options(node: Node, but: Iterable[str] = ()) -> str:
    """The options that say something, but for some: `n=16, max_tokens=1024`."""
    known = {each.name: each for each in NODES[node.op].attributes if each.type not in _ELSEWHERE}
    said = [(name, value) for name, value in node.attrs if name in known and name not in but]
    return _shown((name, value) for name, value in said if value != known[name].default)


def _shown(said: Iterable[tuple[str, Constant]]) -> str:
    return ", ".join(f"{name}={show_constant(value)}" for name, value in said if value is not None and value != ())


def record(found: Record, kind: str) -> str:
    """What something from outside is made of: `jsonl("a.jsonl", batch=8)`."""
    # A data source is shuffled unless it says otherwise.
    told = _shown(item for item in found.options if (kind, *item) != ("data", "shuffle", True))
    shown = [show_constant(arg) for arg in found.args] + ([told] if told else [])
    return short(f"{found.name}({', '.join(shown)})", OPTION_COLUMNS)


def training(node: Node, axes: Mapping[str, str]) -> str:
    """The options of a training step: `lr=1e-06, micro-batches by rollout`."""
    micro = node.attr("micro")
    parts = [
        options(node),
        f"micro-batches by {axes.get(micro, micro)}" if isinstance(micro, str) and micro else "",
    ]
    return ", ".join(part for part in parts if part)


def loop(node: Node, axes: Mapping[str, str]) -> tuple[str, str]:
    """Title and note of a loop: `minibatch prompts`, `4 parts, 2 epochs`."""
    axis = node.attr("axis")
    rows = axes.get(str(axis), str(axis)) if axis is not None else _read(node)
    counts = [each for each in NODES[node.op].attributes if each.counts]
    counted: list[str] = []
    for each in counts:
        count = node.attr(each.name)
        # The first number is always said, another one where it is not the usual.
        if isinstance(count, int) and not (counted and count == each.default):
            counted.append(f"{count} {each.counts}{'' if count == 1 else 's'}")
    title, kind = f"{node.op} {rows}".rstrip(), NODES[node.op].loop
    if kind == "steps":
        title, counted = f"{node.op} {', '.join(counted)}", []
    if kind == "rounds":
        counted = [f"until {node.attr('rows')} {rows or 'rows'} are kept"]
    rest = options(node, but=[each.name for each in counts])
    return title, ", ".join([*counted, *([rest] if rest else [])])


def _read(node: Node) -> str:
    """The data source whose rows a loop reads."""
    given = (value.type for value in node.region.inputs)
    return next((kind.name for kind in given if isinstance(kind, Handle) and kind.kind == "cursor"), "")


def phase(found: Phase) -> str:
    """How often a phase's step runs, and how far it runs ahead: `3 steps`, `async, lag 1`."""
    note = [f"{found.steps} steps"] if found.steps is not None else []
    note += [f"async, {found.staleness.word} {found.staleness.steps}"] if found.staleness.steps else []
    note += ["rows span versions"] if found.staleness.span != "row" else []
    return ", ".join(note)


def model(found: Model) -> str:
    """What a model is: `causal_lm`, `copy of actor, frozen`."""
    what = f"copy of {found.copy_of}" if found.copy_of else found.kind
    return f"{what}, frozen" if found.frozen else what


def label(value: Value, title: str = "") -> str:
    """A value's type, after its name unless the box says the name already."""
    if isinstance(value.type, Handle):
        return value.name
    return str(value.type) if value.name == title else f"{value.name}: {value.type}"


def barrier(unit: Unit | None, axes: Mapping[str, str]) -> str:
    """What a box waits for; empty where it works row by row."""
    if unit is None or not unit.reason:
        return ""
    return "waits for the batch" if unit.axis is None else f"waits for its group of {axes.get(unit.axis, unit.axis)}"


def formula(node: Node) -> tuple[str, ...]:
    """The lines of a tensor node's mathematics, cut where they are many; a single one without its name."""
    if len(node.body) == 1:
        return cut(wrap(show(node.body[0].expr), FORMULA_COLUMNS), FORMULA_LINES)
    lines: list[str] = []
    for let in node.body:
        lines += cut(wrap(f"{let.name} = {show(let.expr)}", FORMULA_COLUMNS), 2)
    return cut(lines, 2 * FORMULA_LINES)


def whole(node: Node) -> str:
    """All of a tensor node's mathematics, uncut."""
    return "\n".join(f"{let.name} = {show(let.expr)}" for let in node.body)


def wrap(text: str, columns: int) -> list[str]:
    """Lines of at most so many characters, broken where the fewest brackets are open."""
    lines: list[str] = []
    while len(text) > columns:
        at = _break(text, columns)
        lines.append(text[:at].rstrip())
        text = "  " + text[at:].lstrip()
    return [*lines, text]


def _break(text: str, columns: int) -> int:
    """Where to end the first line: after a comma or before an operator, in its right half."""
    depth = 0
    best, at = columns, columns
    least = 1000
    for place in range(min(columns, len(text) - 1) + 1):
        depth += (text[place] in "([") - (text[place] in ")]")
        if text[place] != " " or place < columns * 0.4:
            continue
        # A line that ends in an operator looks as if it went wrong there.
        after = text[place + 1 :].split(" ", 1)[0]
        sign = INFIX.get(after)
        # Loose signs are the best places, words the worst.
        tight = 0 if text[place - 1] == "," else max(0, sign.precedence - 5) if sign else 6
        badness = 2 * depth + tight
        if badness <= least:
            least, best = badness, place
    return best if least < 1000 else at


def cut(lines: Iterable[str], most: int) -> tuple[str, ...]:
    """At most so many lines; a mark says that there were more."""
    kept = list(lines)
    if len(kept) <= most:
        return tuple(kept)
    return (*kept[: most - 1], f"{kept[most - 1][: FORMULA_COLUMNS - 2]} …")


def short(text: str, columns: int) -> str:
    """A text of at most so many characters."""
    return text if len(text) <= columns else f"{text[: columns - 1]}…"
