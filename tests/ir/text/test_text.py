"""A printed program parses back to itself, whatever is in it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlgraph.dsl.check import check
from rlgraph.errors import Source
from rlgraph.ir.graph import (
    Apply,
    Const,
    Constant,
    ConstructorCall,
    Expr,
    External,
    Graph,
    Let,
    Model,
    Node,
    Phase,
    Program,
    Ref,
    RowUnit,
    ScalarState,
    Staleness,
    Value,
    tensor_node,
    with_region,
)
from rlgraph.ir.text.parse import parse_program
from rlgraph.ir.text.program_text import expr_text, program_text
from rlgraph.ir.types import Axis, DType, StateHandle, Table, Tensor, Type
from rlgraph.ops import NODES, TENSOR, infer_type

PROMPTS = Axis("prompts", "prompts")
KEPT = Axis("prompts.2", "prompts")
ROLLOUT = Axis("rollout", "rollout", KEPT)
TOKEN = Axis("rollout.token", "token", ROLLOUT, inner=True)
TURN = Axis("rollout.turn", "turn", ROLLOUT, inner=True)
BATCH = Axis("batch", "batch")
AXES = (PROMPTS, KEPT, ROLLOUT, TOKEN, TURN, BATCH)

# Words that mean something in the text and are no keywords of the language stand as names too.
STEMS = (
    "x",
    "rollout.logprobs",
    "größe",
    "_",
    "tensor",
    "yield",
    "given",
    "per",
    "to",
    "table",
    "batch",
    "program",
)
TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
NUMBERS = st.one_of(st.integers(), st.floats(allow_nan=False))
NAMES = st.from_regex(r"[a-z_]\w{0,5}", fullmatch=True).filter(lambda name: name not in ("true", "false", "null"))


def constants() -> st.SearchStrategy[Constant]:
    leaves = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)
    return st.recursive(leaves, lambda inner: st.one_of(st.lists(inner, max_size=3).map(tuple), records(inner)))


def records(inner: st.SearchStrategy[Constant]) -> st.SearchStrategy[ConstructorCall]:
    options = st.lists(st.tuples(NAMES, inner), max_size=2, unique_by=lambda option: option[0]).map(tuple)
    return st.builds(
        ConstructorCall,
        NAMES.filter(lambda name: name not in ("inf", "nan")),
        st.lists(inner, max_size=2).map(tuple),
        options,
    )


AXIS = st.sampled_from(AXES)
DTYPES = st.sampled_from(get_args(DType))
TENSORS = st.builds(Tensor, DTYPES, st.one_of(st.none(), AXIS))


def table(sampled: bool, temperature: float, extra: list[tuple[str, DType]], **rest: Any) -> Table:
    """A table with columns of its own on its own axis."""
    columns = tuple((name, Tensor(dtype, rest["axis"])) for name, dtype in extra)
    return Table(sampled=sampled, temperature=temperature if sampled else 1.0, extra=columns, **rest)


TABLES = st.builds(
    table,
    extra=st.lists(st.tuples(st.one_of(NAMES, TEXTS), DTYPES), max_size=2),
    axis=AXIS,
    token=st.one_of(st.none(), AXIS),
    turn=st.one_of(st.none(), AXIS),
    sampled=st.booleans(),
    temperature=st.floats(0, 10),
    data=st.one_of(st.none(), st.lists(st.one_of(NAMES, TEXTS), max_size=3).map(tuple)),
)
HANDLES = st.builds(
    StateHandle, st.sampled_from(["model", "cursor", "keyed", "buffer"]), st.sampled_from(["actor", "b.2"])
)
UNITS = st.one_of(
    st.none(),
    st.builds(
        RowUnit,
        st.one_of(st.none(), st.sampled_from([axis.key for axis in AXES])),
        st.one_of(st.just(""), TEXTS),
    ),
)


class Programs:
    """Draws programs in which every name is new."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.names = 0
        self.known: dict[str, Tensor] = {}

    def value(self, kind: Type) -> Value:
        stem = self.draw(st.sampled_from(STEMS))
        self.names += 1
        # The bare word once, then versions of it.
        name = stem if stem not in self.known and self.names == 1 else f"{stem}@{self.names}"
        if isinstance(kind, Tensor):
            self.known[name] = kind
        return Value(name, kind)

    def expr(self, size: int) -> Expr:
        leaf = not size or self.draw(st.booleans())
        if leaf and self.known and self.draw(st.booleans()):
            name = self.draw(st.sampled_from(sorted(self.known)))
            return Ref(name, self.known[name])
        if leaf:
            number: Any = self.draw(st.one_of(NUMBERS, st.sampled_from([-0.0, -1, -1.5]), st.booleans(), TEXTS))
            dtype: Any = {bool: "bool", int: "int", float: "float", str: "text"}[type(number)]
            return Const(number, Tensor(dtype))
        op = TENSOR[self.draw(st.sampled_from(["neg", "not", "pow", "sub", "lt", "and", "or", *TENSOR]))]
        args = tuple(self.expr(size - 1) for _ in range(op.args))
        axis = self.draw(st.one_of(st.none(), AXIS)) if op.kind == "reduction" else None
        try:
            return Apply(op.name, args, infer_type(op.name, [arg.type for arg in args], axis), axis and axis.key)
        except ValueError:
            return args[0]

    def tensor(self) -> Node:
        body = []
        for _ in range(self.draw(st.integers(1, 3))):
            expr = self.expr(3)
            body.append(Let(self.value(expr.type).name, expr))
        outputs = self.draw(st.lists(st.sampled_from([let.name for let in body]), min_size=1, unique=True))
        node = replace(tensor_node(tuple(body), tuple(outputs)), unit=self.draw(UNITS))
        for let in body:
            if let.name not in outputs:
                del self.known[let.name]
        return node

    def node(self, depth: int) -> Node:
        if self.draw(st.booleans()):
            return self.tensor()
        op = self.draw(st.sampled_from(sorted(NODES.keys() - {"tensor"})))
        inputs = tuple(self.draw(st.lists(st.sampled_from(sorted(self.known)), max_size=2))) if self.known else ()
        attrs = tuple(self.draw(st.lists(st.tuples(NAMES, constants()), max_size=2)))
        regions = (self.graph(depth - 1),) if NODES[op].has_region and depth else ()
        outputs = tuple(
            self.value(self.draw(st.one_of(TENSORS, TABLES, HANDLES))) for _ in range(self.draw(st.integers(0, 2)))
        )
        node = Node(op, inputs, outputs, attrs, regions=regions, unit=self.draw(UNITS))
        return with_region(node, regions[0]) if regions else node

    def graph(self, depth: int) -> Graph:
        kinds = self.draw(st.lists(st.one_of(TENSORS, TABLES, HANDLES), max_size=3))
        inputs = tuple(self.value(kind) for kind in kinds)
        nodes = tuple(self.node(depth) for _ in range(self.draw(st.integers(0, 3))))
        outputs = tuple(self.draw(st.lists(st.sampled_from(sorted(self.known)), max_size=2))) if self.known else ()
        return Graph(inputs, nodes, outputs)

    def phase(self, name: str) -> Phase:
        self.known, self.names = {}, 0
        steps = self.draw(st.one_of(st.none(), st.integers(1, 9)))
        staleness = self.draw(
            st.sampled_from(
                [
                    Staleness(),
                    Staleness(1),
                    Staleness(2, exact=False),
                    Staleness(1, exact=False, span="token"),
                    Staleness(1, False, updates=7),
                ]
            )
        )
        return Phase(name, self.graph(2), steps, staleness)


OPTIONS = st.lists(st.tuples(NAMES, constants()), max_size=2).map(tuple)
MODELS = st.one_of(
    st.builds(Model, st.just("actor"), st.just("causal_lm"), constants(), st.none(), st.booleans(), OPTIONS),
    st.builds(Model, st.just("ref"), st.just("value_lm"), st.none(), st.just("actor"), st.booleans(), OPTIONS),
)
OUTSIDES = st.builds(External, st.sampled_from(["data", "func", "env", "buffer"]), NAMES, records(constants()))
STATES = st.builds(ScalarState, NAMES, st.floats(allow_nan=False), st.booleans())


@st.composite
def programs(draw: st.DrawFn) -> Program:
    lists = [tuple(draw(st.lists(kind, max_size=2))) for kind in (MODELS, OUTSIDES, STATES)]
    found = Programs(draw)
    phases = tuple(found.phase(name) for name in ("warm", "step")[: draw(st.integers(0, 2))])
    return Program(draw(NAMES), *lists, phases)


@given(programs())
@settings(max_examples=12)
def test_a_printed_program_parses_back(program: Program) -> None:
    parses_back(program)


@pytest.mark.long
@given(programs())
@settings(max_examples=50)
def test_many_printed_programs_parse_back(program: Program) -> None:
    parses_back(program)


def parses_back(program: Program) -> None:
    text = program_text(program)
    found = parse_program(text)
    assert found == program, text
    assert program_text(found) == text


# Expressions

X, Y, Z = (Ref(name, Tensor("float", PROMPTS)) for name in "xyz")


def apply(op: str, *args: Expr, to: Axis | None = None) -> Apply:
    return Apply(op, args, infer_type(op, [arg.type for arg in args], to), to and to.key)


ONE, MINUS, ZERO = Const(1, Tensor("int")), Const(-1, Tensor("int")), Const(-0.0, Tensor("float"))


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (apply("mul", apply("add", X, Y), Z), "(x + y) * z"),
        (apply("sub", X, apply("sub", Y, Z)), "x - (y - z)"),
        (apply("sub", apply("sub", X, Y), Z), "x - y - z"),
        (apply("pow", X, apply("pow", Y, Z)), "x ** y ** z"),
        (apply("pow", apply("pow", X, Y), Z), "(x ** y) ** z"),
        (apply("neg", apply("pow", X, Y)), "-x ** y"),
        (apply("pow", apply("neg", X), Y), "(-x) ** y"),
        (apply("mul", X, apply("neg", Y)), "x * -y"),
        (apply("neg", ONE), "-(1)"),
        (apply("pow", apply("neg", ONE), X), "(-(1)) ** x"),
        (MINUS, "(-1)"),
        (apply("pow", MINUS, X), "(-1) ** x"),
        (apply("sub", X, MINUS), "x - (-1)"),
        (ZERO, "(-0.0)"),
        (apply("neg", MINUS), "-(-1)"),
        (apply("not", apply("lt", X, Y)), "not x < y"),
        (apply("lt", apply("not", X), Y), "(not x) < y"),
        (apply("and", X, apply("not", Y)), "x and not y"),
        (apply("or", apply("and", X, Y), Z), "x and y or z"),
        (apply("and", X, apply("or", Y, Z)), "x and (y or z)"),
        (apply("neg", apply("not", X)), "-(not x)"),
        (apply("mean", X, to=PROMPTS), "mean(x, to=prompts)"),
        (apply("mean", X), "mean(x)"),
        (apply("lt", X, apply("neg", Y)), "x < -y"),
        (Const('say "a\\b"\n\u2028', Tensor("text")), '"say \\"a\\\\b\\"\\n\u2028"'),
        (Const(True, Tensor("bool")), "true"),
    ],
)
def test_notation(expr: Expr, text: str) -> None:
    assert expr_text(expr) == text
    given = Graph(tuple(Value(ref.name, ref.type) for ref in (X, Y, Z)))
    node = tensor_node((Let("made", expr),), ("made",))
    program = Program("p", phases=(Phase("step", Graph(given.inputs, (node,), ("made",))),))
    (parsed,) = parse_program(program_text(program)).phases[0].graph.nodes
    assert parsed == node
    assert repr(parsed) == repr(node)  # also the sign of a zero


# What is not a program

GOOD = """program p
axis prompts
model actor = causal_lm("m", dtype="float32")
data prompts = jsonl("p.jsonl", batch=8)
state beta = -0.5

phase step(actor@0: model<actor>, prompts@0: cursor<prompts>) {steps=3}:
  prompts: table[prompts; data=?], prompts@1: cursor<prompts> <- read(prompts@0) per batch because "why"
  reward: float[prompts] <- call(prompts) {func="f", columns=["a"]} per prompts
  best: float = max(reward) + 1
  yield actor@0, prompts@1
"""


def test_good_text_stays_as_it_is() -> None:
    assert program_text(parse_program(GOOD)) == GOOD


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("program p", ""),
        ("program p", "programme p"),
        ("max(reward)", "max(rewards)"),
        ("max(reward)", "max(reward"),
        ("max(reward)", "maxi(reward)"),
        ("max(reward)", "max(reward, to=rollout)"),
        ("max(reward)", "max(prompts)"),
        ("max(reward)", "max(reward ?"),
        ("+ 1", "+"),
        ("table[prompts;", "table[prompt;"),
        ("model<actor>", "model<actor"),
        ("{steps=3}", "{steps=0.5}"),
        ("  yield actor@0, prompts@1\n", ""),
        ('"why"', '"why'),
        ('jsonl("p.jsonl", batch=8)', "4"),
        ("= causal_lm(", "= causal_m("),
        ('dtype="float32"', 'dtype="float1e400"'),
    ],
)
def test_bad_text_is_a_value_error(old: str, new: str) -> None:
    assert old in GOOD
    with pytest.raises(ValueError, match="graph text"):
        parse_program(GOOD.replace(old, new, 1))


def test_a_number_that_no_program_computes_with_is_refused() -> None:
    """A plan file has the graph as text, and anybody may write one."""
    text = program_text(check(Source("a.rlf", HOSTILE))[0])
    assert parse_program(text)
    with pytest.raises(ValueError, match="400 digits"):
        parse_program(text.replace("max_tokens=7", f"max_tokens={'7' * 400}"))


HOSTILE = """algorithm a
model actor = causal_lm("m")
data prompts = jsonl("p.jsonl", batch=2)
step:
    rollout = actor.generate(prompts, max_tokens=7)
    report x = mean(rollout.length)
"""
