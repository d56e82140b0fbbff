"""Declares the tensor operations, each in a record. Their implementations are in `reference`.

Elementwise operations work on entries broadcast to the innermost axis of their arguments; a reduction goes from an axis
to one that contains it; a ranking compares the entries of each row of such an axis, and has a result for each entry; a
pairing has for each pair of rows the entry of the second; a scan runs along the inner axis of its argument, inside each
row.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rlgraph.ir.types import Axis, DType, Tensor, inner_of_two_axes

OpKind = Literal["elementwise", "reduction", "ranking", "pairing", "scan"]


@dataclass(frozen=True, slots=True)
class TensorOp:
    """The declaration of a tensor operation."""

    name: str
    kind: OpKind
    args: int
    dtype: DType | Literal["same"]
    """The dtype of the result; `same`: that of the arguments, where bool counts as int and a data column as a
    number."""
    doc: str
    function: bool = True
    """Whether the language has it as a function of that name; the others are operators, or made by passes."""
    sign: str = ""
    """Its operator, if it is not written as a function: between two arguments or before its only one."""
    precedence: int = 0
    """The precedence of its operator: the higher, the tighter it binds."""
    right: bool = False
    """Whether its operator is right-associative: `a ** b ** c` is `a ** (b ** c)`."""
    gradient: bool = True
    """Whether gradients flow through it; otherwise its gradient is 0."""
    linear: Literal["all", "each", "first"] | None = None
    """Whether it is linear in `all` arguments together, in `each` with the others fixed, or in the `first` one, with
    the same factor for every entry: such an operation on sums can be computed on parts of a batch and added up."""
    python: Callable[..., Any] | None = None
    """The same on Python's numbers, to fold constants."""
    neutral: float | None = None
    """The neutral element: as the last argument it leaves the first one as it is."""
    commutes: bool = False
    """Whether it is commutative."""
    inverse: bool = False
    """Whether it is its own inverse."""
    numbers: Literal["result", "widest", "own"] = "result"
    """The dtype that its arguments are converted to: that of the result, floats if one of them is, or no conversion.
    Integers that are compared with floats become double precision, so that they keep their values."""
    conditions: int = 0
    """How many first arguments are conditions and not numbers."""
    texts: bool = False
    """Whether it also takes two texts, for which it does what `python` does."""
    reads_text: bool = False
    """Whether its first argument is a text, in a column."""
    by_entry: bool = False
    """Of a grouped operation: whether its second argument has an entry for each entry, and not for each group."""
    exact: bool = False
    """Whether equal arguments have results equal to the last digit, in any block and on any processor."""
    whole: bool = False
    """Whether its result is a whole number, though its dtype is float."""
    latex: str = ""
    """Its form in LaTeX, where it is not its operator or a function of its name: `#1` is the first argument, `##1` the
    same in brackets unless it is a symbol. Of a reduction the operator alone."""

    @property
    def is_grouped(self) -> bool:
        """Whether a result depends on all entries of a row of the axis that `by=` names, or of the whole batch."""
        return self.kind in ("reduction", "ranking", "pairing")


def _sign(
    name: str, sign: str, precedence: int, dtype: DType | Literal["same"], doc: str, args: int = 2, **more: Any
) -> TensorOp:
    return TensorOp(name, "elementwise", args, dtype, doc, False, sign, precedence, **more)


LARGEST = 2**63
"""The bound of integers in a program, since runs compute with 64 bits."""

_COMPARED = 4
"""The precedence of comparisons alone: they cannot be chained."""


def _comparison(name: str, sign: str, python: Callable[..., Any], **more: Any) -> TensorOp:
    doc = f"`a {sign} b`"
    return _sign(name, sign, _COMPARED, "bool", doc, python=python, numbers="widest", gradient=False, **more)


def _reads_text(name: str, args: int, dtype: DType, doc: str, **more: Any) -> TensorOp:
    return TensorOp(name, "elementwise", args, dtype, doc, gradient=False, numbers="own", reads_text=True, **more)


_ALL = (
    _sign("add", "+", 5, "same", "`a + b`", python=operator.add, linear="all", neutral=0, commutes=True, exact=True),
    _sign("sub", "-", 5, "same", "`a - b`", python=operator.sub, linear="all", neutral=0, exact=True),
    _sign("mul", "*", 6, "same", "`a * b`", python=operator.mul, linear="each", neutral=1, commutes=True, exact=True),
    _sign(
        "div",
        "/",
        6,
        "float",
        "`a / b`",
        python=operator.truediv,
        linear="first",
        neutral=1,
        exact=True,
        latex=r"\frac{#1}{#2}",
    ),
    _sign(
        "floordiv",
        "//",
        6,
        "same",
        "`a // b`, rounded down",
        python=operator.floordiv,
        gradient=False,
        exact=True,
        latex=r"\left\lfloor \frac{#1}{#2} \right\rfloor",
    ),
    _sign("mod", "%", 6, "same", "`a % b`, with the sign of `b`", python=operator.mod, exact=True),
    _sign("pow", "**", 9, "float", "`a ** b`", python=operator.pow, right=True, neutral=1, latex=r"{##1}^{#2}"),
    _sign("neg", "-", 8, "same", "`-a`", 1, python=operator.neg, linear="all", inverse=True, exact=True),
    _comparison("lt", "<", operator.lt),
    _comparison("le", "<=", operator.le),
    _comparison("gt", ">", operator.gt),
    _comparison("ge", ">=", operator.ge),
    _comparison("eq", "==", operator.eq, commutes=True, texts=True),
    _comparison("ne", "!=", operator.ne, commutes=True, texts=True),
    _sign("and", "and", 2, "bool", "`a and b`", commutes=True, gradient=False),
    _sign("or", "or", 1, "bool", "`a or b`", commutes=True, gradient=False),
    _sign("not", "not", 3, "bool", "`not a`", 1, gradient=False, inverse=True),
    TensorOp("exp", "elementwise", 1, "float", "e to the power of `x`", latex=r"\exp\left(#1\right)"),
    TensorOp("log", "elementwise", 1, "float", "natural logarithm", latex=r"\log\left(#1\right)"),
    TensorOp("cos", "elementwise", 1, "float", "cosine of `x`, an angle in radians", latex=r"\cos\left(#1\right)"),
    TensorOp("log1p", "elementwise", 1, "float", "`log(1 + x)`, exact for a small `x`"),
    TensorOp("expm1", "elementwise", 1, "float", "`exp(x) - 1`, exact for a small `x`"),
    TensorOp("sqrt", "elementwise", 1, "float", "square root", latex=r"\sqrt{#1}"),
    TensorOp("abs", "elementwise", 1, "same", "absolute value", exact=True, latex=r"\left|#1\right|"),
    TensorOp("sign", "elementwise", 1, "same", "-1, 0 or 1", gradient=False, exact=True),
    TensorOp(
        "floor",
        "elementwise",
        1,
        "float",
        "rounded down",
        gradient=False,
        exact=True,
        whole=True,
        latex=r"\left\lfloor #1 \right\rfloor",
    ),
    TensorOp(
        "ceil",
        "elementwise",
        1,
        "float",
        "rounded up",
        gradient=False,
        exact=True,
        whole=True,
        latex=r"\left\lceil #1 \right\rceil",
    ),
    TensorOp(
        "round",
        "elementwise",
        1,
        "float",
        "rounded to the nearest whole number, halves to the even one",
        gradient=False,
        exact=True,
        whole=True,
    ),
    TensorOp("sigmoid", "elementwise", 1, "float", "`1 / (1 + exp(-x))`", latex=r"\sigma\left(#1\right)"),
    TensorOp(
        "logsigmoid",
        "elementwise",
        1,
        "float",
        "`log(sigmoid(x))`, without overflow",
        latex=r"\log \sigma\left(#1\right)",
    ),
    TensorOp("tanh", "elementwise", 1, "float", "hyperbolic tangent", latex=r"\tanh\left(#1\right)"),
    TensorOp("relu", "elementwise", 1, "same", "`max(x, 0)`", exact=True),
    TensorOp(
        "minimum",
        "elementwise",
        2,
        "same",
        "`min(a, b)`: the smaller one of two",
        function=False,
        python=min,
        commutes=True,
        exact=True,
        latex=r"\min\left(#1, #2\right)",
    ),
    TensorOp(
        "maximum",
        "elementwise",
        2,
        "same",
        "`max(a, b)`: the larger one of two",
        function=False,
        python=max,
        commutes=True,
        exact=True,
        latex=r"\max\left(#1, #2\right)",
    ),
    TensorOp("clip", "elementwise", 3, "same", "`x` held between the second and the third argument", exact=True),
    TensorOp(
        "where",
        "elementwise",
        3,
        "same",
        "the second argument where the first is true, else the third",
        conditions=1,
        exact=True,
        latex=r"\begin{cases} #2 & #1 \\ #3 & \text{else} \end{cases}",
    ),
    TensorOp(
        "detach", "elementwise", 1, "same", "the same value, through which no gradient goes", gradient=False, exact=True
    ),
    TensorOp("float", "elementwise", 1, "float", "as a real number", linear="all", exact=True, latex=r"#1"),
    _reads_text("contains", 2, "bool", "whether the text has the second one in it, letter by letter"),
    _reads_text("matches", 2, "bool", "whether the regular expression (Python's) is somewhere in the text"),
    _reads_text("number", 1, "float", "the last number in the text; a row without one has no entry", exact=True),
    _reads_text("has_number", 1, "bool", "whether there is a number in the text", function=False),
    TensorOp(
        "key",
        "elementwise",
        1,
        "key",
        "the number of an entry's value",
        False,
        gradient=False,
        numbers="own",
        texts=True,
        latex=r"#1",
    ),
    TensorOp(
        "join",
        "elementwise",
        2,
        "key",
        "the number of two keys together",
        False,
        gradient=False,
        numbers="own",
        latex=r"\left(#1, #2\right)",
    ),
    TensorOp("mean", "reduction", 1, "float", "average of the valid entries; 0 of none", linear="all"),
    TensorOp("sum", "reduction", 1, "same", "sum of the valid entries", linear="all", latex=r"\sum"),
    TensorOp("std", "reduction", 1, "float", "unbiased standard deviation; 0 of a single entry"),
    TensorOp("var", "reduction", 1, "float", "unbiased variance; 0 of a single entry"),
    TensorOp("min", "reduction", 1, "same", "smallest entry; 0 of none", latex=r"\min"),
    TensorOp("max", "reduction", 1, "same", "largest entry; 0 of none", latex=r"\max"),
    TensorOp("first", "reduction", 1, "same", "entry that stands first; 0 of none", latex=r"\operatorname{first}"),
    TensorOp("last", "reduction", 1, "same", "entry that stands last; 0 of none", latex=r"\operatorname{last}"),
    TensorOp(
        "count",
        "reduction",
        1,
        "int",
        "number of entries that are true (of numbers: not 0)",
        gradient=False,
        numbers="own",
    ),
    TensorOp(
        "size",
        "reduction",
        1,
        "int",
        "number of valid entries, whatever they hold",
        gradient=False,
        numbers="own",
    ),
    TensorOp("any", "reduction", 1, "bool", "whether an entry is true; false of none", gradient=False),
    TensorOp("all", "reduction", 1, "bool", "whether every entry is true; true of none", gradient=False),
    TensorOp(
        "quantile", "reduction", 2, "float", "the quantile of the second argument (0 to 1), linearly interpolated"
    ),
    TensorOp("argmax", "reduction", 1, "row", "the row with the largest entry, the first of equals", gradient=False),
    TensorOp("argmin", "reduction", 1, "row", "the row with the smallest entry, the first of equals", gradient=False),
    TensorOp(
        "rank",
        "ranking",
        1,
        "int",
        "how many entries come before it, from the largest to the smallest: 0 for the largest; of equals the first "
        "comes first",
        gradient=False,
        numbers="own",
    ),
    TensorOp(
        "top",
        "ranking",
        2,
        "bool",
        "whether it is one of the `k` largest: of exactly `k`, or of all where there are fewer",
        gradient=False,
        numbers="own",
    ),
    TensorOp(
        "running",
        "ranking",
        2,
        "float",
        "sum of `x` along an order: over the entries from the one with the largest `y` down to this one; of equals the "
        "first comes first",
        gradient=False,
        by_entry=True,
    ),
    TensorOp(
        "other", "pairing", 2, "same", "what the second row of a pair has", False, numbers="own", texts=True, exact=True
    ),
    TensorOp("next", "scan", 1, "same", "the entry of the next valid token; 0 at the last"),
    TensorOp("prev", "scan", 1, "same", "the entry of the valid token before; 0 at the first"),
    TensorOp("cumsum", "scan", 1, "same", "sum of the entries up to and with this one"),
    TensorOp("discount", "scan", 2, "float", "reward still to come: `x` + decay * (that of the next valid token)"),
    TensorOp("accumulate", "scan", 2, "float", "what has come so far: `x` + decay * (that of the valid token before)"),
)

TENSOR: Mapping[str, TensorOp] = {op.name: op for op in _ALL}

INFIX: Mapping[str, TensorOp] = {op.sign: op for op in _ALL if op.sign and op.args == 2}
PREFIX: Mapping[str, TensorOp] = {op.sign: op for op in _ALL if op.sign and op.args == 1}
"""Operations that are written as operators, by the operator."""

COMPARISONS = tuple(op.sign for op in _ALL if op.precedence == _COMPARED)


def infer_type(name: str, args: Sequence[Tensor], axis: Axis | None = None) -> Tensor:
    """Return the type of an operation's result; `axis` is the one that a reduction leaves, or whose rows a ranking
    compares the entries of. Both may have one argument more, which says for each entry whether it counts, and a key
    behind it: then entries in rows with equal keys, that lie in one row of `axis`, are a group, and a reduction has an
    entry for each row of the key's axis.

    Raises ValueError where axes do not nest, and where an operation on texts is given none; the checker reports that
    earlier, with a caret.
    """
    op, key = TENSOR[name], key_of(args)
    if op.kind == "pairing":
        value, pairs = args
        if pairs.axis is None or pairs.axis.parent is None or not pairs.axis.parent.is_within(value.axis):
            raise ValueError(f"{value} has nothing for {pairs}")
        return Tensor(value.dtype, pairs.axis)
    if op.is_grouped and key is not None:
        args = args[:-1]
    if op.is_grouped and len(args) == op.args + 1 and args[-1].dtype == "bool":
        args = args[:-1]
    if len(args) != op.args:
        raise ValueError(f"{name} takes {op.args} arguments, not {len(args)}")
    if op.reads_text and any(arg.dtype not in ("text", "any") for arg in args):
        raise ValueError(f"{name} takes texts, not {' and '.join(arg.dtype for arg in args)}")
    if op.is_grouped:
        source = args[0].axis
        if source is None or not source.is_within(axis):
            raise ValueError(f"{name} cannot go from {source and source.key} to {axis and axis.key}")
        if key is not None:
            if key.axis is None or not source.is_within(key.axis) or not key.axis.is_within(axis) or op.dtype == "row":
                raise ValueError(f"{name} of {args[0]} cannot be grouped by {key} in {axis and axis.key}")
            return Tensor(_dtype(op, args), key.axis if op.kind == "reduction" else source)
        return Tensor(_dtype(op, args), axis if op.kind == "reduction" else source)
    if op.kind == "scan":
        if args[0].axis is None or not args[0].axis.inner:
            raise ValueError(f"{name} runs along tokens or turns, not along {args[0]}")
        return Tensor(_dtype(op, args), args[0].axis)
    common_axis: Axis | None = None
    for arg in args:
        common_axis = inner_of_two_axes(common_axis, arg.axis)
    return Tensor(_dtype(op, args), common_axis)


def key_of(args: Sequence[Tensor]) -> Tensor | None:
    """Return the type of the key by which a reduction or a ranking groups, given the types of its arguments; None where
    it groups by the rows of an axis."""
    return args[-1] if args and args[-1].dtype == "key" else None


def _dtype(op: TensorOp, args: Sequence[Tensor]) -> DType:
    if op.dtype != "same":
        return op.dtype
    kinds = {arg.dtype for arg in args[op.conditions :]}
    if "float" in kinds:
        return "float"
    return "int" if kinds <= {"int", "bool"} else "number"
