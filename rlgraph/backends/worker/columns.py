"""This module turns columns of the data into what a node computes with: numbers, texts, arguments of a function.

The run has checked all rows before the first step, where it can read ahead; these checks are for rows that come one by
one, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from rlgraph.backends.rows import Rows
from rlgraph.columns import EVERY_ROW, WORDS, value_kind
from rlgraph.errors import Diagnostic, RunError, Span
from rlgraph.ir.graph import Apply, Const, Expr, Node, Ref, operations_in
from rlgraph.ops import TENSOR

Who = Callable[[int], str]
"""Returns the name of the row at a place, for a message."""


def column_tensor(values: Sequence[Any], name: str, who: Who, span: Span, dtype: torch.dtype) -> Tensor:
    """Return a column as a tensor of its own kind: int64, bool, or `dtype` where a number is real.

    Raises RunError for what is no number, or none that the tensor can hold.
    """
    kinds = [value_kind(value) for value in values]
    for place, kind in enumerate(kinds):
        if kind not in ("whole", "real", "truth", "wide"):
            raise _no_number(f"{WORDS[kind]}: {values[place]!r:.60}", name, who(place), span)
    # A column without rows is bool: the one that it is joined with decides its kind.
    if all(kind == "truth" for kind in kinds):
        return torch.tensor([bool(value) for value in values], dtype=torch.bool)
    if all(isinstance(value, Integral) for value in values):
        return torch.tensor([int(value) for value in values], dtype=torch.int64)
    return finite_numbers(
        [float(value) for value in values], lambda place: f"`{name}` of {who(place)}", span, dtype, "E0735"
    )


def finite_numbers(values: Sequence[float], what: Who, span: Span, dtype: torch.dtype, code: str = "E0725") -> Tensor:
    """Return numbers in the dtype of the run, in which they have to be finite, too. what: names each in a message;
    code: the diagnostic, by default that of what the user's Python returns. Raises RunError."""
    numbers = torch.tensor(values, dtype=dtype)
    odd = numbers.isfinite().logical_not()
    if not bool(odd.any()):
        return numbers
    place = int(odd.int().argmax())
    word = str(dtype).removeprefix("torch.")
    message = f"{what(place)} is {values[place]:g}, which is not a finite number in {word}"
    raise RunError(Diagnostic(code, message, span, "scale it down: the largest number there is has 38 digits"))


def _no_number(what: str, name: str, who: str, span: Span) -> RunError:
    return RunError(Diagnostic("E0735", f"`{name}` of {who} is {what}, and no number", span))


def tensor_inputs(node: Node, values: Mapping[str, Any], who: Mapping[str, Who], dtype: torch.dtype) -> dict[str, Any]:
    """Return the inputs of a tensor node: columns are lists of texts where texts are compared, otherwise numbers. who:
    for each input, its rows. Raises RunError."""
    compared: dict[str, Span] = {}
    calculated: dict[str, Span] = {}
    read: dict[str, Span] = {}
    for let in node.body:
        _collect_operands(let.expr, compared, calculated)
        for part in operations_in(let.expr):
            if TENSOR[part.op].reads_text and isinstance(part.args[0], Ref):
                read.setdefault(part.args[0].name, part.span)
    inputs: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, int):
            inputs[name] = torch.tensor(value)
        elif not isinstance(value, list):
            inputs[name] = value
        elif name in read:
            inputs[name] = _texts(value, name, who[name], read[name], "a text is read here")
        elif name not in calculated and any(isinstance(item, str) for item in value):
            inputs[name] = _texts(value, name, who[name], compared.get(name, node.span))
        else:
            inputs[name] = column_tensor(value, name, who[name], calculated.get(name, node.span), dtype)
    for let in node.body:
        _check_sides(let.expr, inputs, values, who)
    return inputs


def _collect_operands(expr: Expr, compared: dict[str, Span], calculated: dict[str, Span]) -> None:
    """Collect the values that are operands of operations on texts, too, and those of other operations."""
    if not isinstance(expr, Apply):
        return
    for arg in expr.args:
        if isinstance(arg, Ref) and not TENSOR[expr.op].reads_text:
            (compared if TENSOR[expr.op].texts else calculated).setdefault(arg.name, expr.span)
        _collect_operands(arg, compared, calculated)


def _texts(
    values: list[Any],
    name: str,
    who: Who,
    span: Span,
    why: str = "is compared with texts: it is equal to none",
) -> list[str]:
    """Return a column of texts. why: what is done with them. Raises RunError for an entry that is none."""
    odd = next((place for place, item in enumerate(values) if not isinstance(item, str)), None)
    if odd is None:
        return values
    what = f"{WORDS[value_kind(values[odd])]}: {values[odd]!r:.60}"
    message = f"`{name}` of {who(odd)} is {what}, and {why}"
    raise RunError(Diagnostic("E0735", message, span, "write the whole column as texts in the data"))


def _check_sides(expr: Expr, inputs: Mapping[str, Any], given: Mapping[str, Any], who: Mapping[str, Who]) -> None:
    """Raise RunError where texts are compared with numbers."""
    if not isinstance(expr, Apply):
        return
    for arg in expr.args:
        _check_sides(arg, inputs, given, who)
    if not TENSOR[expr.op].texts or TENSOR[expr.op].kind != "elementwise" or expr.type.dtype == "key":
        return
    texts = [_is_text(arg, inputs) for arg in expr.args]
    if True not in texts or False not in texts:
        return
    number, text = expr.args[texts.index(False)], expr.args[texts.index(True)]
    # The checker has seen sides without a column: one side has one, and of two the message names that of the numbers.
    odd = number if isinstance(number, Ref) and number.name in given else text
    assert isinstance(odd, Ref)
    compared_with, wanted = ("a text", "texts") if odd is number else ("a number", "numbers")
    message = f"`{odd.name}` of {who[odd.name](0)} is {given[odd.name][0]!r:.60}, and is compared with {compared_with}"
    hint = f"write the column as {wanted} in the data, or compare it with {_OTHER[compared_with]}"
    raise RunError(Diagnostic("E0735", f"{message}: they are never equal", expr.span, hint))


_OTHER = {"a text": "a number", "a number": "a text"}


def _is_text(expr: Expr, inputs: Mapping[str, Any]) -> bool | None:
    """Whether a side of a comparison is of texts; None where it has no row."""
    if isinstance(expr, Const):
        return isinstance(expr.value, str)
    if isinstance(expr, Ref):
        value = inputs.get(expr.name)
        if value is None:
            return None  # This value is made in the node: the checker has seen it.
        return None if isinstance(value, Tensor) and not value.numel() else isinstance(value, list | str)
    if TENSOR[expr.op].kind == "pairing":
        return _is_text(expr.args[0], inputs)
    return False


def function_columns(
    data: Sequence[Mapping[str, Any]], rows: Rows, span: Span, takes: Callable[[str], bool]
) -> dict[str, list[Any]]:
    """Return the columns of rows of the data, for a function. takes: whether it is given a column of that name.

    Raises RunError where a row lacks a column that it is given, and others have it.
    """
    names = dict.fromkeys(name for row in data for name in row)
    for name in filter(takes, names):
        place = next((place for place, row in enumerate(data) if name not in row), None)
        if place is not None:
            raise missing_column_error(rows.row_name(place), name, span, ())
    return {name: [row.get(name) for row in data] for name in names}


def missing_column_error(who: str, name: str, span: Span, has: Sequence[str]) -> RunError:
    """Return the error for a row without a column that is asked for: others have it, or none is known to, where `has`
    names the row's own columns."""
    if has:
        shown = ", ".join(f"`{column}`" for column in has)
        return RunError(Diagnostic("E0711", f"{who} has no column `{name}`", span, f"it has {shown}"))
    message = f"{who} has no column `{name}`, which other rows have"
    return RunError(Diagnostic("E0711", message, span, EVERY_ROW))
