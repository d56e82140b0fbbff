"""Bodies of tensor nodes as torch code, against an interpreter over Python lists."""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rlgraph.backends.lowering.lower import LoweredNode, lower
from rlgraph.ir.graph import Apply, Const, Expr, Let, Node, Ref, Value, tensor_node
from rlgraph.ir.text.parse import parse_program
from rlgraph.ir.types import Axis
from rlgraph.ir.types import Tensor as Type
from rlgraph.ops import TENSOR, infer_type
from rlgraph.ops.tensor import TensorOp

PROMPTS = Axis("prompts", "prompts")
ROLLOUT = Axis("rollout", "rollout", PROMPTS)
TOKEN = Axis("rollout.token", "token", ROLLOUT, inner=True)
AXES = {axis.key: axis for axis in (PROMPTS, ROLLOUT, TOKEN)}

HEAD = """program test
axis prompts
axis rollout in prompts
axis rollout.token inside rollout
phase step(given_token: float[rollout.token], t: float[rollout.token], r: float[rollout], p: float[prompts], s: float,
 n: int[rollout], b: bool[rollout.token], name: text[prompts], other: text[rollout], any: any[rollout]):
""".replace(",\n", ",")


@dataclass(frozen=True)
class Shape:
    """A ragged batch: for each prompt, for each rollout, how many tokens."""

    tokens: list[list[int]]
    dtype: torch.dtype = torch.float64

    def rows(self, axis: str) -> list[tuple[int, ...]]:
        """Each row of an axis as the path of places that leads to it."""
        prompts = [(g,) for g in range(len(self.tokens))]
        rollouts = [(g, r) for (g,) in prompts for r in range(len(self.tokens[g]))]
        tokens = [(g, r, t) for g, r in rollouts for t in range(self.tokens[g][r])]
        return {"prompts": prompts, "rollout": rollouts, "rollout.token": tokens}[axis]  # type: ignore[return-value]

    def ancestor_rows(self, child: str, ancestor: str) -> Tensor:
        above = self.rows(ancestor)
        depth = ["prompts", "rollout", "rollout.token"].index(ancestor) + 1
        return torch.tensor([above.index(path[:depth]) for path in self.rows(child)], dtype=torch.int64)

    def row_count(self, axis: str) -> int:
        return len(self.rows(axis))


SHAPE = Shape([[3, 1, 0], [], [2]])


def node(*lines: str, yields: str) -> Node:
    """A tensor node whose outputs are written `a: float, b: int[rollout]`."""
    text = HEAD + f"  {yields} = tensor:\n" + "".join(f"    {line}\n" for line in lines) + "  yield\n"
    return parse_program(text).phases[0].graph.nodes[0]


def values(shape: Shape, seed: int = 0) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    found: dict[str, Any] = {"s": torch.tensor(0.7, dtype=shape.dtype)}
    for name, axis in (
        ("given_token", TOKEN),
        ("t", TOKEN),
        ("r", ROLLOUT),
        ("p", PROMPTS),
        ("any", ROLLOUT),
    ):
        found[name] = torch.randn(shape.row_count(axis.key), generator=generator, dtype=shape.dtype)
    found["n"] = torch.randint(1, 5, (shape.row_count("rollout"),), generator=generator)
    found["b"] = torch.rand(shape.row_count("rollout.token"), generator=generator) > 0.5
    found["name"] = ["ab"[row % 2] for row in range(shape.row_count("prompts"))]
    found["other"] = ["ba"[row % 2] for row in range(shape.row_count("rollout"))]
    return found


def run(made: Node, shape: Shape = SHAPE) -> dict[str, Tensor]:
    return lower(made)(values(shape), shape)


# The code


GRPO = (
    "adv = (r - mean(r, to=prompts)) / (std(r, to=prompts) + 1e-06)",
    "ratio = exp(t - given_token)",
    "loss = mean(mean(maximum(-ratio * adv, -clip(ratio, 1 - 0.2, 1 + 0.2) * adv), to=rollout))",
)


def test_code_is_readable() -> None:
    lowered = lower(node(*GRPO, yields="loss: float, adv: float[rollout]"))
    assert lowered.inputs == ("r", "t", "given_token")
    assert lowered.gather_pairs == (("rollout", "prompts"), ("rollout.token", "rollout"))
    assert lowered.counted_axes == ("prompts", "rollout")
    assert lowered.outputs == ("loss", "adv")
    code = lowered.module.code
    assert (
        "forward(self, r, t, given_token, index_rollout_to_prompts, index_rollout_token_to_rollout, "
        "rows_of_prompts, rows_of_rollout, dtype)" in code
    )
    assert "ratio = torch.exp(sub_1)" in code
    assert "rlgraph_ops_reference_clip(ratio, 0.8, 1.2)" in code
    assert code.count("reference_broadcast_to_entries(adv") == 1, "the advantage is spread over the tokens once"


def test_names_become_identifiers() -> None:
    made = node("x = t + 1", yields="x: float[rollout.token]")
    names = {"t": "rollout.logprobs@2", "x": "lambda"}
    body = tuple(
        Let(names[let.name], replace(let.expr, args=(Ref(names["t"], Type("float", TOKEN)),) * 2))  # type: ignore[arg-type]
        for let in made.body
    )
    lowered = lower(tensor_node(body, ("lambda",)))
    assert "rollout_logprobs_2" in lowered.module.code
    found = lowered({"rollout.logprobs@2": torch.ones(6, dtype=torch.float64)}, SHAPE)
    assert found["lambda"].tolist() == [2] * 6


def test_names_that_become_the_same_identifier_stay_apart() -> None:
    kind = Type("float", None)
    body = (Let("dtype", Apply("sub", (Ref("a.b", kind), Ref("a@b", kind)), kind)),)
    lowered = lower(tensor_node(body, ("dtype",)))
    assert lowered({"a.b": torch.tensor(5.0), "a@b": torch.tensor(3.0)}, SHAPE)["dtype"].item() == 2


def test_shared_expressions_are_computed_once() -> None:
    expr: Expr = Ref("t", Type("float", TOKEN))
    for _ in range(200):  # as a tree this has 2 ** 200 nodes
        expr = Apply("add", (expr, expr), expr.type)
    lowered = lower(Node("tensor", ("t",), (Value("x", expr.type),), body=(Let("x", expr),)))
    assert len([n for n in lowered.module.graph.nodes if n.op == "call_function"]) == 200


def test_equal_expressions_are_computed_once() -> None:
    lowered = lower(
        node("x = exp(t) + exp(t)", "y = exp(t) * 2", yields="x: float[rollout.token], y: float[rollout.token]")
    )
    assert lowered.module.code.count("torch.exp") == 1
    # 1 and 1.0 are equal to Python, not to torch.
    lowered = lower(node("x = n + 1", "y = n + 1.0", yields="x: int[rollout], y: float[rollout]"))
    found = lowered(values(SHAPE), SHAPE)
    assert found["x"].dtype == torch.int64 and found["y"].dtype == torch.float64


# Types


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("op", sorted(set(TENSOR) - {"join", "other"}))  # Those are of rows alone.
def test_every_result_has_its_dtype_and_axis(op: str, dtype: torch.dtype) -> None:
    """For ints, bools, floats, constants and single values in every place of every operation."""
    shape = Shape(SHAPE.tokens, dtype)
    given = values(shape)
    leaves: list[Expr] = [
        Ref("t", Type("float", TOKEN)),
        Ref("n", Type("int", ROLLOUT)),
        Ref("b", Type("bool", TOKEN)),
    ]
    leaves += [
        Ref("s", Type("float")),
        Const(1, Type("int")),
        Const(0.5, Type("float")),
        Const(True, Type("bool")),
    ]
    wanted: dict[str, Any] = {
        "float": dtype,
        "int": torch.int64,
        "bool": torch.bool,
        "row": torch.int64,
        "key": torch.int64,
    }
    tried = 0
    choices = [leaves] * TENSOR[op].args
    if TENSOR[op].reads_text:  # What is looked for in a text is a constant.
        choices = [[*leaves, Ref("other", Type("text", ROLLOUT))], [*leaves, Const("a", Type("text"))]][: len(choices)]
    for args in itertools.product(*choices):
        for axis in (None, ROLLOUT) if TENSOR[op].is_grouped else (None,):
            try:
                kind = infer_type(op, [arg.type for arg in args], axis)
            except ValueError:
                continue
            if any(arg.type.axis is not None and not fits(op, arg, args, axis) for arg in args[1:]):
                continue
            if op in ("floordiv", "mod") and args[1] == leaves[2]:
                continue  # torch refuses to divide ints by 0
            if op == "running" and (args[0].type.axis is None or args[0].type.axis != args[1].type.axis):
                continue  # the checker wants an entry for each (E0223)
            body = (Let("x", Apply(op, args, kind, axis and axis.key)),)
            found = lower(tensor_node(body, ("x",)))(given, shape)["x"]
            assert found.dtype == wanted[kind.dtype], args
            assert found.shape == ((shape.row_count(kind.axis.key),) if kind.axis else ()), args
            tried += 1
    assert tried


def fits(op: str, arg: Expr, args: tuple[Expr, ...], axis: Axis | None) -> bool:
    """Whether a second argument reaches the entries of a scan, or the groups of a reduction or a ranking."""
    if TENSOR[op].kind == "elementwise":
        return True
    target = axis if TENSOR[op].is_grouped else args[0].type.axis
    return target is not None and target.is_within(arg.type.axis)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_constants(dtype: torch.dtype) -> None:
    made = node(
        "a = 0.5",
        "b = 2 ** 3",
        "c = 7 // 2",
        "d = 1 < 2 and true",
        "e = where(t > 0, 1, 0.5)",
        "f = s * 3",
        "g = n / 2",
        "h = min(t) * (-inf)",
        yields="a: float, b: float, c: int, d: bool, e: float[rollout.token], f: float, g: float[rollout], h: float",
    )
    found = run(made, Shape(SHAPE.tokens, dtype))
    assert {name: found[name].dtype for name in "abefgh"} == dict.fromkeys("abefgh", dtype)
    assert [found[name].item() for name in "abcdh"] == [0.5, 8, 3, True, math.inf]
    assert found["c"].dtype == torch.int64 and found["d"].dtype == torch.bool


def test_an_int_meets_a_real_number_in_the_dtype_of_the_run() -> None:
    shape = Shape([[1, 1]])
    made = node("a = n + 0.1", "b = n > 16777216.5", yields="a: float[rollout], b: bool[rollout]")
    found = lower(made)({"n": torch.tensor([16777217, 16777216])}, shape)
    assert found["a"].tolist() == [16777217.1, 16777216.1]
    assert found["b"].tolist() == [True, False]


def test_text() -> None:
    made = node(
        'a = name == "a"',
        "b = name != other",
        'c = sum(t * (name == "a"))',
        "d = any == 1",
        "e = size(name)",
        yields="a: bool[prompts], b: bool[rollout], c: float, d: bool[rollout], e: int",
    )
    given = values(SHAPE) | {"any": torch.tensor([1.0, 0.0, 1.0, 2.0])}
    found = lower(made)(given, SHAPE)
    assert found["a"].tolist() == [True, False, True]
    assert found["b"].tolist() == [True, False, True, False]  # prompts a a a a, rollouts b a b a
    torch.testing.assert_close(found["c"], given["t"].sum())
    assert found["d"].tolist() == [True, False, True, False]
    assert found["e"].item() == 3
    assert lower(node('x = any == "1"', yields="x: bool[rollout]"))({"any": ["1", "2"]}, SHAPE)["x"].tolist() == [1, 0]


def test_a_reduction_to_its_own_axis() -> None:
    made = node(
        "a = mean(r, to=rollout)",
        "b = argmax(r, to=rollout)",
        "c = std(r, to=rollout)",
        yields="a: float[rollout], b: row[rollout], c: float[rollout]",
    )
    found = run(made)
    assert found["a"].tolist() == values(SHAPE)["r"].tolist()
    assert found["b"].tolist() == [0, 1, 2, 3]
    assert found["c"].tolist() == [0] * 4


def test_scans_take_a_decay_of_an_outer_axis() -> None:
    found = run(node("x = discount(t, r)", yields="x: float[rollout.token]"))["x"]
    t, r = values(SHAPE)["t"].tolist(), values(SHAPE)["r"].tolist()
    expected = [t[0] + r[0] * (t[1] + r[0] * t[2]), t[1] + r[0] * t[2], t[2], t[3], t[4] + r[3] * t[5], t[5]]
    assert found.tolist() == pytest.approx(expected, rel=1e-12)


def test_an_output_may_be_an_input() -> None:
    assert run(node("x = r", yields="x: float[rollout]"))["x"].tolist() == values(SHAPE)["r"].tolist()


def test_an_empty_batch() -> None:
    found = run(
        node(*GRPO, "k = discount(t, 0.9)", yields="loss: float, adv: float[rollout], k: float[rollout.token]"),
        Shape([]),
    )
    assert found["loss"].item() == 0 and found["adv"].shape == (0,) and found["k"].shape == (0,)


# Gradients and compilation


def eager_grpo(given: dict[str, Any], shape: Shape) -> Tensor:
    group, row = shape.ancestor_rows("rollout", "prompts"), shape.ancestor_rows("rollout.token", "rollout")
    adv = torch.zeros(shape.row_count("rollout"), dtype=shape.dtype)
    for g in range(shape.row_count("prompts")):
        of = given["r"][group == g]
        spread = of.std() if len(of) > 1 else torch.tensor(0.0)
        adv[group == g] = (of - of.mean()) / (spread + 1e-6)
    ratio = torch.exp(given["t"] - given["given_token"])
    loss = torch.max(-ratio * adv[row], -ratio.clamp(0.8, 1.2) * adv[row])
    means = [
        loss[row == r].mean() if (row == r).any() else torch.tensor(0.0) for r in range(shape.row_count("rollout"))
    ]
    return torch.stack([mean.to(shape.dtype) for mean in means]).mean()


def test_the_gradient_is_that_of_the_formula() -> None:
    shape = Shape([[3, 1, 4], [2], [5, 0]])
    given = values(shape)
    given["t"].requires_grad_()
    loss = lower(node(*GRPO, yields="loss: float"))(given, shape)["loss"]
    expected = eager_grpo(given, shape)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
    one, other = (torch.autograd.grad(value, given["t"])[0] for value in (loss, expected))
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.long
def test_the_module_can_be_captured_again() -> None:
    """It is an ordinary `fx.GraphModule`: torch.compile's front end takes it, and its copy prints and runs the same."""
    lowered: LoweredNode = lower(node(*GRPO, yields="loss: float"))
    compiled = torch.compile(lowered.module, backend="eager")
    found = replace(lowered, module=compiled)(values(SHAPE), SHAPE)
    assert found["loss"].item() == pytest.approx(lowered(values(SHAPE), SHAPE)["loss"].item(), rel=1e-12)


# Random expressions against an interpreter that knows nothing of indices

LEAVES = {"t": TOKEN, "given_token": TOKEN, "r": ROLLOUT, "p": PROMPTS, "s": None}
BINARY = {"add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "maximum": max}
REDUCED = {
    "mean": lambda row: math.fsum(row) / len(row) if row else 0.0,
    "sum": math.fsum,
    "std": lambda row: statistics.stdev(row) if len(row) > 1 else 0.0,
    "max": lambda row: max(row, default=0.0),
    "last": lambda row: row[-1] if row else 0.0,
}


def depth(axis: Axis | None) -> int:
    return len(list(axis.path_to_root())) if axis else 0


@st.composite
def expressions(draw: st.DrawFn, size: int = 6) -> Expr:
    if not size:
        if draw(st.booleans()):
            return Const(draw(st.sampled_from([0.5, -2.0, 1.25])), Type("float"))
        name = draw(st.sampled_from(sorted(LEAVES)))
        return Ref(name, Type("float", LEAVES[name]))
    first = draw(expressions(size - 1))
    axis = first.type.axis
    choice = draw(st.sampled_from(["binary", "tanh", "reduction", "scan"]))
    if choice == "reduction" and axis is not None:
        target = draw(st.sampled_from([*axis.path_to_root(), None]))
        op = draw(st.sampled_from(sorted(REDUCED)))
        return Apply(op, (first,), infer_type(op, [first.type], target), target and target.key)
    if choice == "scan" and axis is TOKEN:
        op = draw(st.sampled_from(["next", "cumsum"]))
        return Apply(op, (first,), infer_type(op, [first.type]))
    if choice == "binary":
        second = draw(expressions(draw(st.integers(0, size - 1))))
        op = draw(st.sampled_from(sorted(BINARY)))
        return Apply(op, (first, second), infer_type(op, [first.type, second.type]))
    return Apply("tanh", (first,), infer_type("tanh", [first.type]))


def interpret(expr: Expr, given: dict[str, Any], shape: Shape) -> dict[tuple[int, ...], float]:
    """The value at each row, by the path that leads to it; a single value is at the empty path."""
    paths = shape.rows(expr.type.axis.key) if expr.type.axis else [()]
    if isinstance(expr, Const):
        return {(): float(expr.value)}
    if isinstance(expr, Ref):
        return dict(zip(paths, given[expr.name].reshape(-1).tolist(), strict=True))
    args = [interpret(arg, given, shape) for arg in expr.args]
    depths = [depth(arg.type.axis) for arg in expr.args]
    if expr.op in BINARY:
        return {path: BINARY[expr.op](args[0][path[: depths[0]]], args[1][path[: depths[1]]]) for path in paths}
    if expr.op == "tanh":
        return {path: math.tanh(x) for path, x in args[0].items()}
    if expr.op in REDUCED:
        rows = {path: [x for inner, x in args[0].items() if inner[: len(path)] == path] for path in paths}
        return {path: REDUCED[expr.op](row) for path, row in rows.items()}
    if expr.op == "next":
        return {path: args[0].get((*path[:-1], path[-1] + 1), 0.0) for path in paths}
    assert expr.op == "cumsum"
    return {path: math.fsum(args[0][*path[:-1], t] for t in range(path[-1] + 1)) for path in paths}


@given(expressions(), st.lists(st.lists(st.integers(0, 4), max_size=3), max_size=3), st.integers(0, 1000))
@settings(max_examples=150)
def test_random_expressions(expr: Expr, tokens: list[list[int]], seed: int) -> None:
    shape = Shape(tokens)
    given = values(shape, seed)
    lowered = lower(tensor_node((Let("x", expr),), ("x",)))
    found = lowered(given, shape)["x"]
    expected = list(interpret(expr, given, shape).values())
    assert found.dim() == (expr.type.axis is not None)
    # A spread of nearly equal entries is rounding, whose root is 1e-8 of what they are.
    scale = max([1.0, *map(abs, expected)])
    assert found.reshape(-1).tolist() == pytest.approx(expected, rel=1e-9, abs=1e-7 * scale)


def test_whole_numbers_of_a_column_stay_whole() -> None:
    """What a column holds is known when it is there: whole numbers are not made real ones, unless the result is."""
    shape = Shape([[1, 1]])
    big = 2**24
    made = node(
        f"same = any == {big}",
        f"real = any == {big}.0",
        f"below = any < {big}.5",
        "more = any + 1",
        "rest = any % 2",
        "most = max(any, to=prompts)",
        "half = any / 2",
        "left = where(any > 3, any, 0)",
        yields="same: bool[rollout], real: bool[rollout], below: bool[rollout], more: number[rollout], "
        "rest: number[rollout], most: number[prompts], half: float[rollout], left: number[rollout]",
    )
    whole = lower(made)({"any": torch.tensor([big + 1, big])}, shape)
    assert whole["same"].tolist() == whole["real"].tolist() == whole["below"].tolist() == [False, True]
    assert whole["more"].tolist() == [big + 2, big + 1] and whole["rest"].tolist() == [1, 0]
    assert whole["most"].tolist() == [big + 1] and whole["left"].tolist() == [big + 1, big]
    assert whole["more"].dtype == whole["most"].dtype == torch.int64 and whole["half"].dtype == shape.dtype
    real = lower(made)({"any": torch.tensor([0.5, 4.5], dtype=shape.dtype)}, shape)
    assert real["more"].tolist() == [1.5, 5.5] and real["left"].tolist() == [0, 4.5]
    truth = lower(made)({"any": torch.tensor([True, False])}, shape)
    assert truth["more"].tolist() == [2, 1] and truth["half"].tolist() == [0.5, 0]


def test_whole_numbers_that_are_compared_with_real_ones_stay_what_they_are() -> None:
    made = node("b = n == s", yields="b: bool[rollout]")
    given = {"n": torch.tensor([2**24 + 1, 2**24]), "s": torch.tensor(2.0**24, dtype=torch.float32)}
    assert lower(made)(given, Shape([[1, 1]], torch.float32))["b"].tolist() == [False, True]


REDUCTIONS = [op for op in TENSOR.values() if op.kind == "reduction"]


@pytest.mark.parametrize("op", REDUCTIONS, ids=lambda op: op.name)
def test_a_reduction_of_some_entries_is_that_of_a_batch_without_the_others(op: TensorOp) -> None:
    """The rows that lack a value come and go; which groups there are stays."""
    shape = Shape([[1, 1, 1], [], [1, 1], [1]])
    r = torch.tensor([3.0, 1.0, 2.0, 5.0, 4.0, 7.0], dtype=torch.float64)
    ok = torch.tensor([True, False, True, True, True, False])
    share = ", 0.25" if op.args == 2 else ""
    kind = infer_type(op.name, [Type("float", ROLLOUT), *[Type("float")] * (op.args - 1)], PROMPTS).dtype
    some = lower(node(f"x = {op.name}(r{share}, r > 0 and n > 2, to=prompts)", yields=f"x: {kind}[prompts]"))
    found = some({"r": r, "n": torch.where(ok, 3, 1)}, shape)["x"]
    rest = Shape([[1, 1], [], [1, 1], []])
    whole = lower(node(f"x = {op.name}(r{share}, to=prompts)", yields=f"x: {kind}[prompts]"))({"r": r[ok]}, rest)["x"]
    if op.dtype == "row":
        whole = torch.where(whole < 0, -1, ok.nonzero()[:, 0][whole])
    assert found.tolist() == whole.tolist() and found.dtype == whole.dtype


def test_a_column_of_rows_says_which_of_their_tokens_count() -> None:
    made = node("x = mean(t, n > 2)", "y = size(t, n > 2, to=rollout)", yields="x: float, y: int[rollout]")
    given = values(SHAPE) | {"n": torch.tensor([3, 1, 3, 1])}
    found = lower(made)(given, SHAPE)
    assert found["x"].item() == pytest.approx(given["t"][:3].mean().item(), rel=1e-12)
    assert found["y"].tolist() == [3, 0, 0, 0]
