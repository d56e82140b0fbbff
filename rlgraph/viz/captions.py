"""What is written on a box: titles, options, formulas, types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rlgraph.ir.graph import Constant, Model, Node, Record, Unit, Value
from rlgraph.ir.text import show, show_constant
from rlgraph.ir.types import Handle

FORMULA_COLUMNS = 44
FORMULA_LINES = 4
METRIC_COLUMNS = 56
OPTION_COLUMNS = 40

# What goes without saying: internal names, and options at the value that changes nothing.
_HIDDEN = {"key", "func", "names", "env", "axis", "name", "column", "micro", "why"}
_NEUTRAL: dict[str, Constant] = {
    "n": 1,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_tokens": 0,
    "epochs": 1,
    "shuffle": False,
    "rounds": 64,
    "clip_norm": 0.0,
    "weight_decay": 0.0,
    "beta1": 0.9,
    "beta2": 0.999,
    "eps": 1e-8,
    "dtype": "float32",
    "timeout": 60.0,
    "batch": 0,
}


def options(attrs: Iterable[tuple[str, Constant]]) -> str:
    """The options that say something: `n=16, max_tokens=1024`."""
    said = []
    for name, value in attrs:
        neutral = name in _NEUTRAL and value == _NEUTRAL[name]
        if name not in _HIDDEN and not neutral and value is not None and value != ():
            said.append(f"{name}={show_constant(value)}")
    return ", ".join(said)


def record(found: Record, kind: str) -> str:
    """What something from outside is made of: `jsonl("a.jsonl", batch=8)`."""
    # A data source is shuffled unless it says otherwise; a loop is not.
    told = options((name, value) for name, value in found.options if (kind, name, value) != ("data", "shuffle", True))
    shown = [show_constant(arg) for arg in found.args] + ([told] if told else [])
    return short(f"{found.name}({', '.join(shown)})", OPTION_COLUMNS)


def training(node: Node, axes: Mapping[str, str]) -> str:
    """The options of a training step: `lr=1e-06, micro-batches by rollout`."""
    micro = node.attr("micro")
    parts = [
        options(node.attrs),
        f"micro-batches by {axes.get(micro, micro)}" if isinstance(micro, str) and micro else "",
    ]
    return ", ".join(part for part in parts if part)


def loop(node: Node, axes: Mapping[str, str]) -> tuple[str, str]:
    """Title and note of a loop: `minibatch prompts`, `4 parts, 2 epochs`."""
    attrs = dict(node.attrs)
    axis = attrs.pop("axis", None)
    rows = axes.get(str(axis), str(axis)) if axis is not None else _drawn(node)
    title = f"{node.op} {rows}".rstrip()
    counted = []
    for name, words in (("parts", "part"), ("epochs", "epoch"), ("steps", "step"), ("rows", "row")):
        count = attrs.get(name)
        if isinstance(count, int) and (name, count) != ("epochs", 1):
            counted.append(f"{count} {words}{'' if count == 1 else 's'}")
    if node.op == "every":
        title, counted = f"every {', '.join(counted)}" if counted else title, []
    if node.op == "collect" and counted:
        counted[0] = f"until {attrs['rows']} {rows or 'rows'} are kept" if "rows" in attrs else counted[0]
    rest = options(item for item in attrs.items() if item[0] not in ("parts", "epochs", "steps", "rows"))
    return title, ", ".join([*counted, *([rest] if rest else [])])


def _drawn(node: Node) -> str:
    """The data source that a loop draws from."""
    given = (value.type for value in node.regions[0].inputs)
    return next((kind.name for kind in given if isinstance(kind, Handle) and kind.kind == "cursor"), "")


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


_BREAKS = {
    "+": 0,
    "-": 0,
    "or": 0,
    "and": 0,
    "<": 0,
    ">": 0,
    "<=": 0,
    ">=": 0,
    "==": 0,
    "!=": 0,
    "*": 1,
    "/": 1,
}


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
        badness = 2 * depth + (0 if text[place - 1] == "," else _BREAKS.get(after, 6))
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
