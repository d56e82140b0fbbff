"""Tensor operations: names, arity, types, how a gradient goes through them. What they compute is in `reference`.

Elementwise operations work on entries that meet on the inner axis of their arguments; a reduction goes from an axis to
one that holds it; a scan runs along the inner axis of its argument, inside each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rlgraph.ir.types import Axis, DType, Tensor, join

Kind = Literal["elementwise", "reduction", "scan"]


@dataclass(frozen=True, slots=True)
class TensorOp:
    name: str
    kind: Kind
    args: int
    dtype: DType | Literal["same"]
    """Of the result; `same`: that of the arguments, bool counting as int."""
    doc: str
    linear: bool = False
    """The sum over parts of a batch is the value over the batch: a loss made of it can be split into micro-batches."""
    function: bool = True
    """The language has it as a function of that name; the others are signs, or made by passes."""


_ALL = (
    TensorOp("add", "elementwise", 2, "same", "`a + b`", function=False),
    TensorOp("sub", "elementwise", 2, "same", "`a - b`", function=False),
    TensorOp("mul", "elementwise", 2, "same", "`a * b`", function=False),
    TensorOp("div", "elementwise", 2, "float", "`a / b`", function=False),
    TensorOp("floordiv", "elementwise", 2, "same", "`a // b`, rounded down", function=False),
    TensorOp("mod", "elementwise", 2, "same", "`a % b`, with the sign of `b`", function=False),
    TensorOp("pow", "elementwise", 2, "same", "`a ** b`", function=False),
    TensorOp("neg", "elementwise", 1, "same", "`-a`", function=False),
    TensorOp("lt", "elementwise", 2, "bool", "`a < b`", function=False),
    TensorOp("le", "elementwise", 2, "bool", "`a <= b`", function=False),
    TensorOp("gt", "elementwise", 2, "bool", "`a > b`", function=False),
    TensorOp("ge", "elementwise", 2, "bool", "`a >= b`", function=False),
    TensorOp("eq", "elementwise", 2, "bool", "`a == b`", function=False),
    TensorOp("ne", "elementwise", 2, "bool", "`a != b`", function=False),
    TensorOp("and", "elementwise", 2, "bool", "`a and b`", function=False),
    TensorOp("or", "elementwise", 2, "bool", "`a or b`", function=False),
    TensorOp("not", "elementwise", 1, "bool", "`not a`", function=False),
    TensorOp("exp", "elementwise", 1, "float", "e to the power of `x`"),
    TensorOp("log", "elementwise", 1, "float", "natural logarithm"),
    TensorOp("log1p", "elementwise", 1, "float", "`log(1 + x)`, exact for a small `x`"),
    TensorOp("expm1", "elementwise", 1, "float", "`exp(x) - 1`, exact for a small `x`"),
    TensorOp("sqrt", "elementwise", 1, "float", "square root"),
    TensorOp("abs", "elementwise", 1, "same", "absolute value"),
    TensorOp("sign", "elementwise", 1, "same", "-1, 0 or 1"),
    TensorOp("floor", "elementwise", 1, "float", "rounded down"),
    TensorOp("ceil", "elementwise", 1, "float", "rounded up"),
    TensorOp("round", "elementwise", 1, "float", "rounded to the nearest whole number, halves to the even one"),
    TensorOp("sigmoid", "elementwise", 1, "float", "`1 / (1 + exp(-x))`"),
    TensorOp("logsigmoid", "elementwise", 1, "float", "`log(sigmoid(x))`, without overflow"),
    TensorOp("tanh", "elementwise", 1, "float", "hyperbolic tangent"),
    TensorOp("relu", "elementwise", 1, "same", "`max(x, 0)`"),
    TensorOp("minimum", "elementwise", 2, "same", "`min(a, b)`: the smaller one of two", function=False),
    TensorOp("maximum", "elementwise", 2, "same", "`max(a, b)`: the larger one of two", function=False),
    TensorOp("clip", "elementwise", 3, "same", "`x` held between the second and the third argument"),
    TensorOp("where", "elementwise", 3, "same", "the second argument where the first is true, else the third"),
    TensorOp("detach", "elementwise", 1, "same", "the same value, through which no gradient goes"),
    TensorOp("float", "elementwise", 1, "float", "as a real number"),
    TensorOp("mean", "reduction", 1, "float", "average of the valid entries; 0 of none"),
    TensorOp("sum", "reduction", 1, "same", "sum of the valid entries", linear=True),
    TensorOp("std", "reduction", 1, "float", "unbiased standard deviation; 0 of a single entry"),
    TensorOp("var", "reduction", 1, "float", "unbiased variance; 0 of a single entry"),
    TensorOp("min", "reduction", 1, "same", "smallest entry; 0 of none"),
    TensorOp("max", "reduction", 1, "same", "largest entry; 0 of none"),
    TensorOp("count", "reduction", 1, "int", "number of entries that are true (of numbers: not 0)"),
    TensorOp("size", "reduction", 1, "int", "number of valid entries, whatever they hold"),
    TensorOp("any", "reduction", 1, "bool", "whether an entry is true; false of none"),
    TensorOp("all", "reduction", 1, "bool", "whether every entry is true; true of none"),
    TensorOp(
        "quantile", "reduction", 2, "float", "the quantile of the second argument (0 to 1), linearly interpolated"
    ),
    TensorOp("argmax", "reduction", 1, "row", "the row with the largest entry, the first of equals"),
    TensorOp("argmin", "reduction", 1, "row", "the row with the smallest entry, the first of equals"),
    TensorOp("next", "scan", 1, "same", "the entry of the next valid token; 0 at the last"),
    TensorOp("prev", "scan", 1, "same", "the entry of the valid token before; 0 at the first"),
    TensorOp("cumsum", "scan", 1, "same", "sum of the entries up to and with this one"),
    TensorOp("discount", "scan", 2, "float", "reward still to come: `x` + decay * (that of the next valid token)"),
)

TENSOR: dict[str, TensorOp] = {op.name: op for op in _ALL}


def infer(name: str, args: Sequence[Tensor], axis: Axis | None = None) -> Tensor:
    """The type of an operation's result; `axis` is what a reduction leaves.

    Raises ValueError where axes do not nest: the checker has said so before, with a caret.
    """
    op = TENSOR[name]
    if len(args) != op.args:
        raise ValueError(f"{name} takes {op.args} arguments, not {len(args)}")
    if op.kind == "reduction":
        source = args[0].axis
        if source is None or not source.within(axis):
            raise ValueError(f"{name} cannot go from {source and source.key} to {axis and axis.key}")
        return Tensor(_dtype(op, args), axis)
    if op.kind == "scan":
        if args[0].axis is None or not args[0].axis.inner:
            raise ValueError(f"{name} runs along tokens or turns, not along {args[0]}")
        return Tensor(_dtype(op, args), args[0].axis)
    met: Axis | None = None
    for arg in args:
        met = join(met, arg.axis)
    return Tensor(_dtype(op, args), met)


def _dtype(op: TensorOp, args: Sequence[Tensor]) -> DType:
    if op.dtype != "same":
        return op.dtype
    kinds = {arg.dtype for arg in (args[1:] if op.name == "where" else args)}
    if op.name == "pow" and "float" not in kinds:
        return "float"
    return "int" if kinds <= {"int", "bool"} else "float"
