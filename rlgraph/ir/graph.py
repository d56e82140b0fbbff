"""Nodes, graphs and programs: one immutable structure from the type checker to the backends.

A graph is a list of nodes in an order in which they can run. A node with regions is a loop or a training step: its
region is a graph that may use every value of the graphs around it. Region nodes share one convention:

    inputs   the carried handles' first versions, then the values captured from outside
    region   inputs: the carried handles; outputs: their last versions, then the exported values
    outputs  the carried handles after the loop, then the exported values

The region of `train` puts the loss where the trained model's last version would stand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Literal

from rlgraph.errors import NO_SPAN, Span
from rlgraph.ir.types import Axis, Tensor, Type, axes_of


@dataclass(frozen=True, slots=True)
class Record:
    """A constant that says how to make something: `causal_lm("Qwen/Qwen2.5-7B")`, `jsonl("a.jsonl", batch=8)`."""

    name: str
    args: tuple[Constant, ...] = ()
    options: tuple[tuple[str, Constant], ...] = ()
    span: Span = field(default=NO_SPAN, compare=False, repr=False)
    spans: tuple[tuple[int | str, Span], ...] = field(default=(), compare=False, repr=False)
    """Of the arguments by place, and of the options that are written by name."""

    def option(self, name: str, default: Any = None) -> Any:
        return dict(self.options).get(name, default)

    def plain(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments, and the options that were given, with lists for tuples: what code outside the compiler takes."""
        return tuple(map(plain, self.args)), {name: _given(value) for name, value in self.options if value is not None}


Constant = int | float | bool | str | None | Record | tuple["Constant", ...]


def plain(value: Constant) -> Any:
    """A constant with lists for tuples."""
    return [plain(item) for item in value] if isinstance(value, tuple) else value


def _given(value: Constant) -> Any:
    """The same, with a dict for what is given by name alone, as `columns(answer="")`."""
    return value.plain()[1] if isinstance(value, Record) and not value.args else plain(value)


# Tensor mathematics: expressions inside a node


@dataclass(frozen=True, slots=True)
class Const:
    value: int | float | bool | str
    type: Tensor
    span: Span = field(default=NO_SPAN, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Ref:
    name: str
    type: Tensor
    span: Span = field(default=NO_SPAN, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Apply:
    """One tensor operation; `rlgraph/ops` declares what each is."""

    op: str
    args: tuple[Expr, ...]
    type: Tensor
    axis: str | None = None
    """Of a reduction or a count: the key of the axis that is left over (None: a single value)."""
    span: Span = field(default=NO_SPAN, compare=False, repr=False)


Expr = Const | Ref | Apply


@dataclass(frozen=True, slots=True)
class Let:
    """One named expression of a tensor node."""

    name: str
    expr: Expr


# Nodes


@dataclass(frozen=True, slots=True)
class Value:
    """What a node makes or a graph is given; its name is unique in the program."""

    name: str
    type: Type


@dataclass(frozen=True, slots=True)
class Unit:
    """The least that a node can work on: a row of an axis with all that lies in it, or the whole batch."""

    axis: str | None
    """Key of the axis; None for the whole batch."""
    reason: str = ""
    """Why it is not a single row: the barrier's reason."""


@dataclass(frozen=True, slots=True)
class Node:
    op: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[Value, ...] = ()
    attrs: tuple[tuple[str, Constant], ...] = ()
    body: tuple[Let, ...] = ()
    """Of a `tensor` node: each may use those before it; the outputs are among them."""
    regions: tuple[Graph, ...] = ()
    unit: Unit | None = None
    """Filled in by the pass `granularity`."""
    span: Span = field(default=NO_SPAN, compare=False, repr=False)
    id: int | None = field(default=None, compare=False, repr=False)
    """Its place in the program's walk, the same in every process; filled in by `numbered`."""

    def attr(self, name: str, default: Any = None) -> Any:
        return dict(self.attrs).get(name, default)

    @property
    def name(self) -> str:
        """How diagnostics and pictures call it: by what it makes."""
        return self.outputs[0].name if self.outputs else self.op

    # The convention of nodes with a region

    @property
    def region(self) -> Graph:
        """What a loop or a training step runs."""
        (only,) = self.regions
        return only

    @property
    def carried_in(self) -> tuple[str, ...]:
        """The handles that its region is given, by the names that they have outside."""
        return self.inputs[: len(self.region.inputs)]

    @property
    def carried_out(self) -> tuple[Value, ...]:
        """The same handles after it; their last versions in the region are its first outputs."""
        return self.outputs[: len(self.region.inputs)]

    @property
    def captured(self) -> tuple[str, ...]:
        """The values from outside that its region uses."""
        return self.inputs[len(self.region.inputs) :]

    @property
    def exported(self) -> tuple[tuple[str, Value], ...]:
        """What its region makes for outside: the name inside, and the value outside."""
        count = len(self.region.inputs)
        return tuple(zip(self.region.outputs[count:], self.outputs[count:], strict=True))


@dataclass(frozen=True, slots=True)
class Graph:
    inputs: tuple[Value, ...] = ()
    nodes: tuple[Node, ...] = ()
    outputs: tuple[str, ...] = ()

    def walk(self) -> Iterator[Node]:
        """Every node, those of regions after the node that holds them."""
        for node in self.nodes:
            yield node
            for region in node.regions:
                yield from region.walk()

    def values(self) -> dict[str, Type]:
        """Types of all values made here and in regions, by name."""
        found = {value.name: value.type for value in self.inputs}
        for node in self.nodes:
            found.update({value.name: value.type for value in node.outputs})
            for region in node.regions:
                found.update(region.values())
        return found


# Programs


@dataclass(frozen=True, slots=True)
class Model:
    name: str
    kind: str
    """`causal_lm`, `value_lm` or `reward_lm`."""
    source: Constant
    """A hub name, a folder, `random(...)`; with `copy_of`, unused."""
    copy_of: str | None = None
    """Starts with the weights of that model."""
    frozen: bool = False
    options: tuple[tuple[str, Constant], ...] = ()
    span: Span = field(default=NO_SPAN, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Outside:
    """Something from outside the program: a data source, a function, an environment, a buffer's rule."""

    kind: str
    """`data`, `func`, `env` or `buffer`."""
    name: str
    record: Record
    span: Span = field(default=NO_SPAN, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class State:
    name: str
    initial: float
    keyed: bool = False
    span: Span = field(default=NO_SPAN, compare=False, repr=False)


SPANS = ("row", "turn", "token")
"""What of a sampled row may be of one version of the weights, the others of another."""


@dataclass(frozen=True, slots=True)
class Staleness:
    """How old the weights are that sample, in steps that changed them."""

    steps: int = 0
    exact: bool = True
    """Exactly so old, as soon as there have been so many; otherwise at most."""
    span: Literal["row", "turn", "token"] = "row"
    """What is of one version: a row, a turn of an episode, or a token. A row is as old as its oldest token."""
    updates: int | None = None
    """Where the program bounds the age in updates of the weights: how many, at the last update of a step. `steps` is
    what keeps this bound."""

    @property
    def word(self) -> str:
        """Of the language."""
        return "lag" if self.exact else "staleness"

    def __str__(self) -> str:
        span = f', span="{self.span}"' if self.span != "row" else ""
        return f"{self.word}={self.steps}{span}" + ("" if self.updates is None else f", updates={self.updates}")


@dataclass(frozen=True, slots=True)
class Phase:
    """One kind of step. Its graph is given the first version of each thing that lives across steps and returns the
    last."""

    name: str
    graph: Graph
    steps: int | None = None
    """How often it runs before the next phase; None for the main step."""
    staleness: Staleness = Staleness()
    """Of the weights that sample."""


@dataclass(frozen=True, slots=True)
class Program:
    name: str
    models: tuple[Model, ...] = ()
    outside: tuple[Outside, ...] = ()
    states: tuple[State, ...] = ()
    phases: tuple[Phase, ...] = ()

    def map_graphs(self, change: Mapping[str, Graph]) -> Program:
        """The same program with other graphs, by phase name."""
        phases = tuple(replace(p, graph=change.get(p.name, p.graph)) for p in self.phases)
        return replace(self, phases=phases)

    def model(self, name: str) -> Model:
        return next(model for model in self.models if model.name == name)

    def workers(self, code: str) -> int:
        """Processes over which the calls of a function, or the episodes of an environment, are spread where it has no
        pool of its own."""
        record = next((each.record for each in self.outside if each.name == code), None)
        return int(record.option("workers") or 1) if record else 1

    def original(self, model: Model) -> Model:
        """What a model is a copy of, through copies of copies; itself if it is none."""
        while model.copy_of:
            model = self.model(model.copy_of)
        return model

    def dtype(self, model: Model) -> str:
        """Of a model's weights; a copy has that of its original."""
        return str(dict(self.original(model).options).get("dtype") or "float32")

    def walk(self) -> Iterator[tuple[str, Node]]:
        """Every node with the name of its phase."""
        return ((phase.name, node) for phase in self.phases for node in phase.graph.walk())


def numbered(program: Program) -> Program:
    """The same program, in which each node knows its number."""
    numbers = count()

    def graph(old: Graph) -> Graph:
        return replace(old, nodes=tuple(node(each) for each in old.nodes))

    def node(old: Node) -> Node:
        number = next(numbers)
        return replace(old, id=number, regions=tuple(map(graph, old.regions)))

    return replace(program, phases=tuple(replace(phase, graph=graph(phase.graph)) for phase in program.phases))


def refs(expr: Expr) -> dict[str, Tensor]:
    """The names that an expression uses with their types, in order of first use."""
    found: dict[str, Tensor] = {}
    seen: set[int] = set()

    def visit(part: Expr) -> None:
        # Parts are shared: each is looked at once, or a chain of squares would take for ever.
        if id(part) in seen:
            return
        seen.add(id(part))
        if isinstance(part, Ref):
            found.setdefault(part.name, part.type)
        elif isinstance(part, Apply):
            for arg in part.args:
                visit(arg)

    visit(expr)
    return found


def substitute(expr: Expr, names: Mapping[str, Expr]) -> Expr:
    """The expression with names replaced; what was shared stays shared."""
    known: dict[int, Expr] = {}

    def swap(part: Expr) -> Expr:
        if isinstance(part, Ref):
            return names.get(part.name, part)
        if not isinstance(part, Apply):
            return part
        if id(part) not in known:
            args = tuple(swap(arg) for arg in part.args)
            same = all(new is old for new, old in zip(args, part.args, strict=True))
            known[id(part)] = part if same else replace(part, args=args)
        return known[id(part)]

    return swap(expr)


def tensor_node(body: tuple[Let, ...], outputs: tuple[str, ...], span: Span = NO_SPAN) -> Node:
    """A tensor node: its inputs are the names its body uses and does not define."""
    own: dict[str, Expr] = {}
    free: dict[str, None] = {}
    for let in body:
        free.update(dict.fromkeys(name for name in refs(let.expr) if name not in own))
        own[let.name] = let.expr
    values = tuple(Value(name, own[name].type) for name in outputs)
    return Node("tensor", tuple(free), values, body=body, span=span)


def rename(node: Node, names: Mapping[str, str]) -> Node:
    """The node with its uses of values renamed, in its regions too; what it makes keeps its name."""
    if not names:
        return node
    inputs = tuple(names.get(name, name) for name in node.inputs)
    if node.body:
        body = tuple(replace(let, expr=substitute(let.expr, _renamed(let.expr, names))) for let in node.body)
        return replace(node, inputs=tuple(dict.fromkeys(inputs)), body=body)
    node = replace(node, inputs=inputs)
    for region in node.regions:
        outputs = tuple(names.get(name, name) for name in region.outputs)
        node = region_node(
            node, replace(region, nodes=tuple(rename(inner, names) for inner in region.nodes), outputs=outputs)
        )
    return node


def _renamed(expr: Expr, names: Mapping[str, str]) -> dict[str, Expr]:
    return {name: Ref(names[name], kind) for name, kind in refs(expr).items() if name in names}


def captures(region: Graph) -> tuple[str, ...]:
    """Names that a region uses and does not make, in order of first use."""
    made = {value.name for value in region.inputs}
    used: dict[str, None] = {}
    for node in region.nodes:
        used.update(dict.fromkeys(name for name in node.inputs if name not in made))
        made.update(value.name for value in node.outputs)
    used.update(dict.fromkeys(name for name in region.outputs if name not in made))
    return tuple(used)


def region_node(node: Node, region: Graph) -> Node:
    """The region node with another region: what it captures is worked out anew."""
    kept = node.inputs[: len(region.inputs)]
    return replace(node, inputs=kept + captures(region), regions=(region,))


def axes(program: Program) -> dict[str, Axis]:
    """Every axis of a program by its key, parents first."""
    found: dict[str, Axis] = {}
    for phase in program.phases:
        for kind in phase.graph.values().values():
            for axis in axes_of(kind):
                for above in reversed(list(axis.path())):
                    found.setdefault(above.key, above)
    return found
