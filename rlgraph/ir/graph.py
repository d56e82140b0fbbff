"""Nodes, graphs and programs: one immutable structure that is used from the type checker to the backends.

A graph is a list of nodes in an order in which they can run. A node with regions is a loop or a training step: its
region is a graph that may use every value of the enclosing graphs. Region nodes share one convention:

    inputs   the carried handles' first versions, then the values captured from outside
    region   inputs: the carried handles; outputs: their last versions, then the exported values
    outputs  the carried handles after the loop, then the exported values

The region of `train` returns the loss in place of the trained model's last version.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Literal

from rlgraph.errors import NO_SPAN, Span
from rlgraph.errors.lookups import thing_of_name
from rlgraph.ir.types import Axis, Tensor, Type, axes_of


@dataclass(frozen=True, slots=True)
class ConstructorCall:
    """A constant that describes how to make something: `causal_lm("Qwen/Qwen2.5-7B")`, `jsonl("a.jsonl", batch=8)`."""

    name: str
    args: tuple[Constant, ...] = ()
    options: tuple[tuple[str, Constant], ...] = ()
    span: Span = field(default=NO_SPAN, compare=False, repr=False)
    spans: tuple[tuple[int | str, Span], ...] = field(default=(), compare=False, repr=False)
    """The spans of arguments by position, and of options by name."""

    def option(self, name: str, default: Any = None) -> Any:
        """Return the value of an option."""
        return dict(self.options).get(name, default)

    def plain_arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return arguments and given options, with lists for tuples, as code outside the compiler expects them. A
        record among the arguments is a dict of all that it has."""
        return tuple(map(_argument, self.args)), {
            name: _given(value) for name, value in self.options if value is not None
        }


Constant = int | float | bool | str | None | ConstructorCall | tuple["Constant", ...]


def plain_constant(value: Constant) -> Any:
    """Return a constant with lists for tuples."""
    return [plain_constant(item) for item in value] if isinstance(value, tuple) else value


def _argument(value: Constant) -> Any:
    """Return an argument as `plain` does."""
    if not isinstance(value, ConstructorCall):
        return plain_constant(value)
    args, options = value.plain_arguments()
    return {"kind": value.name, "args": args, "options": options, "span": value.span, "spans": dict(value.spans)}


def _given(value: Constant) -> Any:
    """Return a constant as `plain_constant` does, but a record with options alone, as `columns(answer="")`, as a
    dict."""
    return (
        value.plain_arguments()[1] if isinstance(value, ConstructorCall) and not value.args else plain_constant(value)
    )


# Expressions of tensor mathematics inside a node


@dataclass(frozen=True, slots=True)
class Const:
    """A constant in an expression."""

    value: int | float | bool | str
    type: Tensor
    span: Span = field(default=NO_SPAN, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Ref:
    """A use of a value by its name."""

    name: str
    type: Tensor
    span: Span = field(default=NO_SPAN, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Apply:
    """The application of a tensor operation, which `rlgraph/ops` declares."""

    op: str
    args: tuple[Expr, ...]
    type: Tensor
    axis: str | None = None
    """The key of the axis that a reduction or a count leaves (None: a single value)."""
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
    """An output of a node or an input of a graph; its name is unique in the program."""

    name: str
    type: Type


@dataclass(frozen=True, slots=True)
class RowUnit:
    """The smallest set of rows that a node can work on: a row of an axis with all that lies in it, or the whole
    batch."""

    axis: str | None
    """The key of the axis; None for the whole batch."""
    reason: str = ""
    """Why it is more than a single row."""


@dataclass(frozen=True, slots=True)
class Node:
    """One operation in a graph, with its inputs and outputs."""

    op: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[Value, ...] = ()
    attrs: tuple[tuple[str, Constant], ...] = ()
    body: tuple[Let, ...] = ()
    """The expressions of a `tensor` node: each may use the ones before it, and the outputs are among them."""
    regions: tuple[Graph, ...] = ()
    unit: RowUnit | None = None
    """Set by the pass `granularity`."""
    span: Span = field(default=NO_SPAN, compare=False, repr=False)
    id: int | None = field(default=None, compare=False, repr=False)
    """Its index in `Program.walk`, which is the same in every process; set by `with_node_ids`."""

    def attr(self, name: str, default: Any = None) -> Any:
        """Return the value of an attribute, or `default` where the node does not give one."""
        return dict(self.attrs).get(name, default)

    @property
    def name(self) -> str:
        """Its name in diagnostics and pictures: that of its first output, or of its operation."""
        return self.outputs[0].name if self.outputs else self.op

    # The convention for nodes with a region

    @property
    def region(self) -> Graph:
        """The graph that a loop or a training step runs."""
        (only,) = self.regions
        return only

    @property
    def carried_input_names(self) -> tuple[str, ...]:
        """The names outside of the handles that its region is given."""
        return self.inputs[: len(self.region.inputs)]

    @property
    def carried_outputs(self) -> tuple[Value, ...]:
        """The carried handles after the node; their last versions are the first outputs of the region."""
        return self.outputs[: len(self.region.inputs)]

    @property
    def captured_values(self) -> tuple[str, ...]:
        """The values from outside that its region uses."""
        return self.inputs[len(self.region.inputs) :]

    @property
    def exported_values(self) -> tuple[tuple[str, Value], ...]:
        """The values that its region exports: the name inside, and the value outside."""
        count = len(self.region.inputs)
        return tuple(zip(self.region.outputs[count:], self.outputs[count:], strict=True))


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes in an order in which they can run, with the values that they are given and yield."""

    inputs: tuple[Value, ...] = ()
    nodes: tuple[Node, ...] = ()
    outputs: tuple[str, ...] = ()

    def walk(self) -> Iterator[Node]:
        """Return every node, those of a region after the node that has it."""
        for node in self.nodes:
            yield node
            for region in node.regions:
                yield from region.walk()

    def value_types(self) -> dict[str, Type]:
        """Return the types of all values of the graph and its regions, by name."""
        types = {value.name: value.type for value in self.inputs}
        for node in self.nodes:
            types.update({value.name: value.type for value in node.outputs})
            for region in node.regions:
                types.update(region.value_types())
        return types


# Programs


@dataclass(frozen=True, slots=True)
class Model:
    """A model that a program declares."""

    name: str
    kind: str
    """`causal_lm`, `value_lm` or `reward_lm`."""
    source: Constant
    """A hub name, a folder, `gguf(...)` or `random(...)`; unused with `copy_of`."""
    copy_of: str | None = None
    """The model with whose weights it starts."""
    frozen: bool = False
    options: tuple[tuple[str, Constant], ...] = ()
    span: Span = field(default=NO_SPAN, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class External:
    """A declaration of something outside the program: a data source, a function, an environment or a buffer's rule."""

    kind: str
    """`data`, `func`, `env` or `buffer`."""
    name: str
    record: ConstructorCall
    span: Span = field(default=NO_SPAN, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ScalarState:
    """A number, or one for each key, that lives across steps."""

    name: str
    initial: float
    keyed: bool = False
    span: Span = field(default=NO_SPAN, compare=False, repr=False)


SPANS = ("row", "turn", "token")
"""The parts of a sampled row that may have been sampled with one version of the weights each."""


@dataclass(frozen=True, slots=True)
class Staleness:
    """How old the sampling weights may be, in steps that changed them."""

    steps: int = 0
    exact: bool = True
    """Whether they are exactly so old, once there were so many steps, or at most."""
    span: Literal["row", "turn", "token"] = "row"
    """The unit that is sampled with one version: a row, a turn of an episode, or a token. A row is as old as its oldest
    token."""
    updates: int | None = None
    """The bound in updates of the weights, at the last update of a step, where the program gives one; `steps` ensures
    it."""

    @property
    def option_name(self) -> str:
        """The option of the language that declares it."""
        return "lag" if self.exact else "staleness"

    def __str__(self) -> str:
        span = f', span="{self.span}"' if self.span != "row" else ""
        return f"{self.option_name}={self.steps}{span}" + ("" if self.updates is None else f", updates={self.updates}")


@dataclass(frozen=True, slots=True)
class Phase:
    """One kind of step. Its graph takes the first version of everything that lives across steps and returns the last
    one."""

    name: str
    graph: Graph
    steps: int | None = None
    """How often it runs before the next phase; None for the main step."""
    staleness: Staleness = Staleness()
    """The bound on the age of the sampling weights."""


@dataclass(frozen=True, slots=True)
class Program:
    """A typed program: its declarations, and a graph for each kind of step."""

    name: str
    models: tuple[Model, ...] = ()
    outside: tuple[External, ...] = ()
    states: tuple[ScalarState, ...] = ()
    phases: tuple[Phase, ...] = ()

    def with_graphs(self, change: Mapping[str, Graph]) -> Program:
        """Return the program with other graphs, given by phase name."""
        phases = tuple(replace(phase, graph=change.get(phase.name, phase.graph)) for phase in self.phases)
        return replace(self, phases=phases)

    def model(self, name: str) -> Model:
        """Return the model of this name. Raise UnknownName."""
        return thing_of_name("the program", "model", name, self.models)

    def worker_count(self, code: str) -> int:
        """Return how many processes a function's calls or an environment's episodes are spread over, where it has no
        pool of its own."""
        record = next((declared.record for declared in self.outside if declared.name == code), None)
        return int(record.option("workers") or 1) if record else 1

    def original_model(self, model: Model) -> Model:
        """Return the model of which this one is a copy, through copies of copies; the model itself if it is none."""
        while model.copy_of:
            model = self.model(model.copy_of)
        return model

    def dtype_of_model(self, model: Model) -> str:
        """Return the dtype of a model's weights; a copy has that of its original."""
        return str(dict(self.original_model(model).options).get("dtype") or "float32")

    def autocast_of_model(self, model: Model) -> str | None:
        """Return what products of a model's weights are computed in: None as the weights are, `bfloat16`, or `auto`; a
        copy has that of its original."""
        chosen = dict(self.original_model(model).options).get("autocast")
        return None if chosen is None else str(chosen)

    def walk(self) -> Iterator[tuple[str, Node]]:
        """Return every node with the name of its phase."""
        return ((phase.name, node) for phase in self.phases for node in phase.graph.walk())


def with_node_ids(program: Program) -> Program:
    """Return the program with the `id` of every node set."""
    numbers = count()

    def graph_with_ids(old: Graph) -> Graph:
        return replace(old, nodes=tuple(node_with_id(inner) for inner in old.nodes))

    def node_with_id(old: Node) -> Node:
        number = next(numbers)
        return replace(old, id=number, regions=tuple(map(graph_with_ids, old.regions)))

    return replace(program, phases=tuple(replace(phase, graph=graph_with_ids(phase.graph)) for phase in program.phases))


def used_names(expr: Expr) -> dict[str, Tensor]:
    """Return the names that an expression uses, with their types, in order of first use."""
    types: dict[str, Tensor] = {}
    seen: set[int] = set()

    def visit(part: Expr) -> None:
        # Parts are shared: visiting a part once per use would take exponential time for a chain of squares.
        if id(part) in seen:
            return
        seen.add(id(part))
        if isinstance(part, Ref):
            types.setdefault(part.name, part.type)
        elif isinstance(part, Apply):
            for arg in part.args:
                visit(arg)

    visit(expr)
    return types


def operations_in(expr: Expr) -> Iterator[Apply]:
    """Yield every operation in an expression once, even where parts are shared."""
    pending, seen = [expr], set[int]()
    while pending:
        part = pending.pop()
        if isinstance(part, Apply) and id(part) not in seen:
            seen.add(id(part))
            yield part
            pending += part.args


def substitute(expr: Expr, names: Mapping[str, Expr]) -> Expr:
    """Return the expression with names replaced; shared parts stay shared."""
    results: dict[int, Expr] = {}

    def replace_names(part: Expr) -> Expr:
        if isinstance(part, Ref):
            return names.get(part.name, part)
        if not isinstance(part, Apply):
            return part
        if id(part) not in results:
            args = tuple(replace_names(arg) for arg in part.args)
            unchanged = all(new is old for new, old in zip(args, part.args, strict=True))
            results[id(part)] = part if unchanged else replace(part, args=args)
        return results[id(part)]

    return replace_names(expr)


def tensor_node(body: tuple[Let, ...], outputs: tuple[str, ...], span: Span = NO_SPAN) -> Node:
    """Return a tensor node, whose inputs are the names that its body uses and does not define."""
    defined: dict[str, Expr] = {}
    free: dict[str, None] = {}
    for let in body:
        free.update(dict.fromkeys(name for name in used_names(let.expr) if name not in defined))
        defined[let.name] = let.expr
    values = tuple(Value(name, defined[name].type) for name in outputs)
    return Node("tensor", tuple(free), values, body=body, span=span)


def rename_uses(node: Node, names: Mapping[str, str]) -> Node:
    """Return the node with its uses of values renamed, also in its regions; its outputs keep their names."""
    if not names:
        return node
    inputs = tuple(names.get(name, name) for name in node.inputs)
    if node.body:
        body = tuple(replace(let, expr=substitute(let.expr, _renamed(let.expr, names))) for let in node.body)
        return replace(node, inputs=tuple(dict.fromkeys(inputs)), body=body)
    node = replace(node, inputs=inputs)
    for region in node.regions:
        outputs = tuple(names.get(name, name) for name in region.outputs)
        node = with_region(
            node, replace(region, nodes=tuple(rename_uses(inner, names) for inner in region.nodes), outputs=outputs)
        )
    return node


def _renamed(expr: Expr, names: Mapping[str, str]) -> dict[str, Expr]:
    return {name: Ref(names[name], kind) for name, kind in used_names(expr).items() if name in names}


def captured_names(region: Graph) -> tuple[str, ...]:
    """Return the names that a region uses and does not define, in order of first use."""
    defined = {value.name for value in region.inputs}
    used: dict[str, None] = {}
    for node in region.nodes:
        used.update(dict.fromkeys(name for name in node.inputs if name not in defined))
        defined.update(value.name for value in node.outputs)
    used.update(dict.fromkeys(name for name in region.outputs if name not in defined))
    return tuple(used)


def with_region(node: Node, region: Graph) -> Node:
    """Return the region node with another region and the captures of that one."""
    carried = node.inputs[: len(region.inputs)]
    return replace(node, inputs=carried + captured_names(region), regions=(region,))


def program_axes(program: Program) -> dict[str, Axis]:
    """Return every axis of a program by its key, parents first."""
    by_key: dict[str, Axis] = {}
    for phase in program.phases:
        for kind in phase.graph.value_types().values():
            for axis in axes_of(kind):
                for above in reversed(list(axis.path_to_root())):
                    by_key.setdefault(above.key, above)
    return by_key
