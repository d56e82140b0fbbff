"""Parses the text of a graph that `rlgraph.ir.text.program_text` printed."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from rlgraph.catalog.models.families import ModelKind
from rlgraph.ir import dtypes
from rlgraph.ir.graph import (
    SPANS,
    ConstructorCall,
    External,
    Graph,
    Let,
    Model,
    Node,
    Phase,
    Program,
    ScalarState,
    Staleness,
    Value,
    tensor_node,
)
from rlgraph.ir.text.line_reader import LineReader
from rlgraph.ir.types import Axis, Type


class _Parser:
    """A parser of a program's lines; indentation says which region a line belongs to."""

    def __init__(self, text: str) -> None:
        self.lines = [line for line in text.split("\n") if line.strip()]
        self.at = 0
        self.axes: dict[str, Axis] = {}
        self.values: dict[str, Type] = {}

    def next_line_reader(self) -> LineReader:
        if self.at == len(self.lines):
            raise ValueError("the text ends too early")
        self.at += 1
        return LineReader(self.lines[self.at - 1].strip(), self.axes, self.values)

    def read_program(self) -> Program:
        head = self.next_line_reader()
        head.expect("program")
        name = head.next_token()
        models: list[Model] = []
        outside: list[External] = []
        states: list[ScalarState] = []
        phases: list[Phase] = []
        while self.at < len(self.lines):
            line = self.next_line_reader()
            word = line.next_token()
            if word == "axis":
                self.read_axis(line)
            elif word == "model":
                models.append(self.read_model(line))
            elif word == "state":
                state = line.next_token()
                keyed = line.accept("[")
                if keyed:
                    line.expect("key")
                    line.expect("]")
                line.expect("=")
                states.append(ScalarState(state, line.read_constant(), keyed))  # type: ignore[arg-type]
            elif word == "phase":
                phases.append(self.read_phase(line))
            else:
                outside_name = line.next_token()
                line.expect("=")
                record = line.read_constant()
                assert isinstance(record, ConstructorCall)
                outside.append(External(word, outside_name, record))
        return Program(name, tuple(models), tuple(outside), tuple(states), tuple(phases))

    def read_axis(self, line: LineReader) -> None:
        key = line.next_token()
        inner = line.token_text == "inside"
        parent = self.axes[line.next_token()] if line.accept("in", "inside") else None
        name = line.next_token() if line.accept("as") else key.rsplit(".", 1)[-1]
        self.axes[key] = Axis(key, name, parent, inner)

    def read_model(self, line: LineReader) -> Model:
        name = line.next_token()
        line.expect("=")
        record = line.read_constant()
        assert isinstance(record, ConstructorCall)
        frozen = record.name == "frozen"
        if frozen:
            inner = record.args[0] if record.args else None
            assert isinstance(inner, ConstructorCall)
            record = inner
        if record.name == "copy":
            original = record.args[0]
            assert isinstance(original, str)
            line.expect(":")
            return Model(name, _kind(line.next_token()), None, original, frozen, record.options)
        if record.option("dtype") not in (None, *dtypes.OF_MODELS):
            raise ValueError(f"no model is in {record.option('dtype')!r}")
        if record.option("autocast") not in (None, *dtypes.AUTOCAST):
            raise ValueError(f"no products are in {record.option('autocast')!r}")
        return Model(name, _kind(record.name), record.args[0], None, frozen, record.options)

    def read_phase(self, line: LineReader) -> Phase:
        name = line.next_token()
        self.values = {}
        line.expect("(")
        given: list[Value] = []
        while not line.accept(")"):
            given.append(line.read_value())
            line.accept(",")
        options = dict(line.read_options())
        self.values.update({value.name: value.type for value in given})
        graph = self.read_graph(tuple(given), 2)
        exact = "staleness" not in options
        steps, staleness = options.get("steps"), options.get("lag" if exact else "staleness", 0)
        assert (steps is None or isinstance(steps, int)) and isinstance(staleness, int)
        span = options.get("span", "row")
        assert span in SPANS
        updates = options.get("updates")
        return Phase(name, graph, steps, Staleness(staleness, exact, span, updates))  # type: ignore[arg-type]

    def read_graph(self, given: tuple[Value, ...], indent: int) -> Graph:
        nodes: list[Node] = []
        while True:
            line = self.next_line_reader()
            if line.token_text == "yield" and ":" not in (sign for _, sign in line.tokens):
                line.next_token()
                outputs: list[str] = []
                while line.at < len(line.tokens):
                    outputs.append(line.next_token())
                    line.accept(",")
                return Graph(given, tuple(nodes), tuple(outputs))
            nodes.append(self.read_node(line, indent))

    def read_node(self, line: LineReader, indent: int) -> Node:
        outputs: list[Value] = []
        if line.tokens[1][1] == ":":
            while line.token_text not in ("=", "<-"):
                outputs.append(line.read_value())
                line.accept(",")
        tensor = bool(outputs) and line.next_token() == "="
        self.values.update({value.name: value.type for value in outputs})
        names = tuple(value.name for value in outputs)
        if tensor:
            return self.read_tensor(line, names, indent)
        op = line.next_token()
        line.expect("(")
        inputs: list[str] = []
        while not line.accept(")"):
            inputs.append(line.next_token())
            line.accept(",")
        attrs = line.read_options()
        unit = line.read_unit()
        regions: tuple[Graph, ...] = ()
        if line.accept(":"):
            head = self.next_line_reader()
            head.expect("given")
            given: list[Value] = []
            while head.at < len(head.tokens):
                given.append(head.read_value())
                head.accept(",")
            self.values.update({value.name: value.type for value in given})
            regions = (self.read_graph(tuple(given), indent + 2),)
        return Node(op, tuple(inputs), tuple(outputs), attrs, regions=regions, unit=unit)

    def read_tensor(self, line: LineReader, names: tuple[str, ...], indent: int) -> Node:
        if line.tokens[-1][1] != ":":
            node = tensor_node((Let(names[0], line.read_expression()),), names)
            return replace(node, unit=line.read_unit())
        line.expect("tensor")
        unit = line.read_unit()
        body: list[Let] = []
        while self.at < len(self.lines) and _indent(self.lines[self.at]) > indent:
            inner = self.next_line_reader()
            name = inner.next_token()
            inner.expect("=")
            body.append(Let(name, inner.read_expression()))
            self.values[name] = body[-1].expr.type
        return replace(tensor_node(tuple(body), names), unit=unit)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _kind(name: str) -> str:
    if name not in get_args(ModelKind):
        raise ValueError(f"no kind of model is {name!r}")
    return name


def parse_program(text: str) -> Program:
    """Parse what `program_text` returned; raises ValueError for anything else."""
    parser = _Parser(text)
    try:
        return parser.read_program()
    except (ValueError, LookupError, AssertionError) as error:
        line = parser.lines[parser.at - 1].strip() if parser.at else ""
        raise ValueError(f"graph text: {error!r} in {line!r}") from error
