"""The texts on a box: titles, options, formulas, types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rlgraph.ir.graph import Constant, ConstructorCall, Model, Node, Phase, RowUnit, Value
from rlgraph.ir.text.program_text import constant_text, expr_text
from rlgraph.ir.types import StateHandle
from rlgraph.ops import NODES
from rlgraph.ops.tensor import INFIX

FORMULA_COLUMNS = 44
FORMULA_LINES = 4
METRIC_COLUMNS = 56
OPTION_COLUMNS = 40

_ELSEWHERE = ("name", "names", "axis", "text")
"""Types of attributes that are not shown as options: a title or an arrow shows them."""


def changed_options(node: Node, but: Iterable[str] = ()) -> str:
    """Return a node's options that differ from their defaults, except some: `n=16, max_tokens=1024`."""
    attributes = {
        attribute.name: attribute for attribute in NODES[node.op].attributes if attribute.type not in _ELSEWHERE
    }
    computed = {
        inner.attr("name"): inner.inputs[1]
        for region in node.regions
        for inner in region.nodes
        if inner.op == "setting"
    }
    shown = [(name, value) for name, value in node.attrs if name in attributes and name not in (*but, *computed)]
    constant = _shown((name, value) for name, value in shown if value != attributes[name].default)
    return ", ".join([*(f"{name}={value}" for name, value in computed.items()), *([constant] if constant else [])])


def _shown(pairs: Iterable[tuple[str, Constant]]) -> str:
    return ", ".join(f"{name}={constant_text(value)}" for name, value in pairs if value is not None and value != ())


def constructor_call_text(found: ConstructorCall, kind: str) -> str:
    """Return what something from outside the program is made of: `jsonl("a.jsonl", batch=8)`."""
    # Shuffling is the default of a data source.
    options_text = _shown(item for item in found.options if (kind, *item) != ("data", "shuffle", True))
    arguments = [constant_text(arg) for arg in found.args] + ([options_text] if options_text else [])
    return shorten_text(f"{found.name}({', '.join(arguments)})", OPTION_COLUMNS)


def training_text(node: Node, axes: Mapping[str, str]) -> str:
    """Return the options of a training step: `lr=1e-06, micro-batches by rollout`."""
    micro = node.attr("micro")
    parts = [
        changed_options(node),
        f"micro-batches by {axes.get(micro, micro)}" if isinstance(micro, str) and micro else "",
    ]
    return ", ".join(part for part in parts if part)


def loop_captions(node: Node, axes: Mapping[str, str]) -> tuple[str, str]:
    """Return the title and the note of a loop: `minibatch prompts`, `4 parts, 2 epochs`."""
    axis = node.attr("axis")
    rows = axes.get(str(axis), str(axis)) if axis is not None else _read(node)
    counting = [attribute for attribute in NODES[node.op].attributes if attribute.counts]
    counted: list[str] = []
    for attribute in counting:
        count = node.attr(attribute.name)
        # The first number is always shown, another one only if it is not the default.
        if isinstance(count, int) and not (counted and count == attribute.default):
            counted.append(f"{count} {attribute.counts}{'' if count == 1 else 's'}")
    title, kind = f"{node.op} {rows}".rstrip(), NODES[node.op].loop
    if kind == "steps":
        title, counted = f"{node.op} {', '.join(counted)}", []
    if kind == "rounds":
        counted = [f"until {node.attr('rows')} {rows or 'rows'} are kept"]
    rest = changed_options(node, but=[attribute.name for attribute in counting])
    return title, ", ".join([*counted, *([rest] if rest else [])])


def _read(node: Node) -> str:
    """Return the data source whose rows a loop reads."""
    types = (value.type for value in node.region.inputs)
    return next((kind.name for kind in types if isinstance(kind, StateHandle) and kind.kind == "cursor"), "")


def phase_text(found: Phase) -> str:
    """Return how often a phase's step runs, and how far it runs ahead: `3 steps`, `async, lag 1`."""
    note = [f"{found.steps} steps"] if found.steps is not None else []
    note += [f"async, {found.staleness.option_name} {found.staleness.steps}"] if found.staleness.steps else []
    note += ["rows span versions"] if found.staleness.span != "row" else []
    return ", ".join(note)


def model_text(found: Model) -> str:
    """Return what a model is: `causal_lm`, `copy of actor, frozen`."""
    what = f"copy of {found.copy_of}" if found.copy_of else found.kind
    return f"{what}, frozen" if found.frozen else what


def value_label(value: Value, title: str = "") -> str:
    """Return a value's type, after its name unless the box shows the name already."""
    if isinstance(value.type, StateHandle):
        return value.name
    return str(value.type) if value.name == title else f"{value.name}: {value.type}"


def barrier_text(unit: RowUnit | None, axes: Mapping[str, str]) -> str:
    """Return what a box waits for; empty if it works row by row."""
    if unit is None or not unit.reason:
        return ""
    return "waits for the batch" if unit.axis is None else f"waits for its group of {axes.get(unit.axis, unit.axis)}"


def formula_lines(node: Node) -> tuple[str, ...]:
    """Return the lines of a tensor node's mathematics, cut where they are many; a single one is without its name."""
    if len(node.body) == 1:
        return limit_lines(wrap_formula(expr_text(node.body[0].expr), FORMULA_COLUMNS), FORMULA_LINES)
    lines: list[str] = []
    for let in node.body:
        lines += limit_lines(wrap_formula(f"{let.name} = {expr_text(let.expr)}", FORMULA_COLUMNS), 2)
    return limit_lines(lines, 2 * FORMULA_LINES)


def wrap_formula(text: str, columns: int) -> list[str]:
    """Return lines of at most so many characters, broken where the fewest brackets are open."""
    lines: list[str] = []
    while len(text) > columns:
        end = _break(text, columns)
        lines.append(text[:end].rstrip())
        text = "  " + text[end:].lstrip()
    return [*lines, text]


def _break(text: str, columns: int) -> int:
    """Return where to end the first line: after a comma or before an operator, in its right half."""
    depth = 0
    best, fallback = columns, columns
    least = 1000
    for place in range(min(columns, len(text) - 1) + 1):
        depth += (text[place] in "([") - (text[place] in ")]")
        if text[place] != " " or place < columns * 0.4:
            continue
        # A line that ends in an operator looks as if it went wrong there.
        word = text[place + 1 :].split(" ", 1)[0]
        sign = INFIX.get(word)
        # Loose signs are the best places, words the worst.
        tight = 0 if text[place - 1] == "," else max(0, sign.precedence - 5) if sign else 6
        badness = 2 * depth + tight
        if badness <= least:
            least, best = badness, place
    return best if least < 1000 else fallback


def limit_lines(lines: Iterable[str], most: int) -> tuple[str, ...]:
    """Return at most so many lines; a mark shows that there were more."""
    shown = list(lines)
    if len(shown) <= most:
        return tuple(shown)
    return (*shown[: most - 1], f"{shown[most - 1][: FORMULA_COLUMNS - 2]} …")


def shorten_text(text: str, columns: int) -> str:
    """Return a text cut to at most so many characters."""
    return text if len(text) <= columns else f"{text[: columns - 1]}…"
