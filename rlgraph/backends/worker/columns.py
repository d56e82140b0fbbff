"""Columns of the data as what a node computes with: numbers, texts, arguments of a function.

The run has looked at all rows before the first step, where they can be looked at; what is asked here is asked of rows
that came one by one, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from rlgraph.backends.rows import Rows
from rlgraph.columns import EVERY_ROW, WORDS, kind_of
from rlgraph.errors import Diagnostic, RunError, Span
from rlgraph.ir.graph import Apply, Const, Expr, Node, Ref
from rlgraph.ops import TENSOR

Who = Callable[[int], str]
"""A row by its place, for a message."""


def numbers_of(values: Sequence[Any], name: str, who: Who, span: Span, dtype: torch.dtype) -> Tensor:
    """A column as a tensor of its own kind: int64, bool, or `dtype` where a number is real.

    Raises RunError for what is no number, or none that the tensor can hold.
    """
    kinds = [kind_of(value) for value in values]
    for place, kind in enumerate(kinds):
        if kind not in ("whole", "real", "truth", "wide"):
            raise _no_number(f"{WORDS[kind]}: {values[place]!r:.60}", name, who(place), span)
    # Of no rows: what is joined with it says what it is.
    if all(kind == "truth" for kind in kinds):
        return torch.tensor([bool(value) for value in values], dtype=torch.bool)
    if all(isinstance(value, Integral) for value in values):
        return torch.tensor([int(value) for value in values], dtype=torch.int64)
    return finite([float(value) for value in values], lambda place: f"`{name}` of {who(place)}", span, dtype, "E0735")


def finite(values: Sequence[float], what: Who, span: Span, dtype: torch.dtype, code: str = "E0725") -> Tensor:
    """Numbers in the width of the run, in which they have to be finite, too. what: each, for a message; code: of the
    diagnostic, which is that of what the user's Python gives unless said otherwise. Raises RunError."""
    found = torch.tensor(values, dtype=dtype)
    odd = found.isfinite().logical_not()
    if not bool(odd.any()):
        return found
    place = int(odd.int().argmax())
    word = str(dtype).removeprefix("torch.")
    message = f"{what(place)} is {values[place]:g}, which is not a finite number in {word}"
    raise RunError(Diagnostic(code, message, span, "scale it down: the largest number there is has 38 digits"))


def _no_number(what: str, name: str, who: str, span: Span) -> RunError:
    return RunError(Diagnostic("E0735", f"`{name}` of {who} is {what}, and no number", span))


def inputs_of(node: Node, values: Mapping[str, Any], who: Mapping[str, Who], dtype: torch.dtype) -> dict[str, Any]:
    """The inputs of a tensor node: columns are lists of texts where texts are compared, otherwise numbers. who: of each
    input, its rows. Raises RunError."""
    compared: dict[str, Span] = {}
    calculated: dict[str, Span] = {}
    for let in node.body:
        _note(let.expr, compared, calculated)
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, int):
            found[name] = torch.tensor(value)
        elif not isinstance(value, list):
            found[name] = value
        elif name not in calculated and any(isinstance(item, str) for item in value):
            found[name] = _texts(value, name, who[name], compared.get(name, node.span))
        else:
            found[name] = numbers_of(value, name, who[name], calculated.get(name, node.span), dtype)
    for let in node.body:
        _check_sides(let.expr, found, values, who)
    return found


def _note(expr: Expr, compared: dict[str, Span], calculated: dict[str, Span]) -> None:
    """Notes the values that are operands of what takes texts, too, and those of what does not."""
    if not isinstance(expr, Apply):
        return
    for arg in expr.args:
        if isinstance(arg, Ref):
            (compared if TENSOR[expr.op].texts else calculated).setdefault(arg.name, expr.span)
        _note(arg, compared, calculated)


def _texts(values: list[Any], name: str, who: Who, span: Span) -> list[str]:
    odd = next((place for place, item in enumerate(values) if not isinstance(item, str)), None)
    if odd is None:
        return values
    what = f"{WORDS[kind_of(values[odd])]}: {values[odd]!r:.60}"
    message = f"`{name}` of {who(odd)} is {what}, and is compared with texts: it is equal to none"
    raise RunError(Diagnostic("E0735", message, span, "write the whole column as texts in the data"))


def _check_sides(expr: Expr, found: Mapping[str, Any], given: Mapping[str, Any], who: Mapping[str, Who]) -> None:
    """Says where texts are compared with numbers."""
    if not isinstance(expr, Apply):
        return
    for arg in expr.args:
        _check_sides(arg, found, given, who)
    if not TENSOR[expr.op].texts:
        return
    texts = [_is_text(arg, found) for arg in expr.args]
    if True not in texts or False not in texts:
        return
    number, text = expr.args[texts.index(False)], expr.args[texts.index(True)]
    # The checker has seen what holds no column: one side does, and of two the message names that of the numbers.
    odd = number if isinstance(number, Ref) and number.name in given else text
    assert isinstance(odd, Ref)
    other, wanted = ("a text", "texts") if odd is number else ("a number", "numbers")
    message = f"`{odd.name}` of {who[odd.name](0)} is {given[odd.name][0]!r:.60}, and is compared with {other}"
    hint = f"write the column as {wanted} in the data, or compare it with {_OTHER[other]}"
    raise RunError(Diagnostic("E0735", f"{message}: they are never equal", expr.span, hint))


_OTHER = {"a text": "a number", "a number": "a text"}


def _is_text(expr: Expr, found: Mapping[str, Any]) -> bool | None:
    """Whether a side of a comparison is of texts; None where it has no row."""
    if isinstance(expr, Const):
        return isinstance(expr.value, str)
    if isinstance(expr, Ref):
        value = found.get(expr.name)
        if value is None:
            return None  # It is made in the node: the checker has seen it.
        return None if isinstance(value, Tensor) and not value.numel() else isinstance(value, list | str)
    return False


def arguments(
    data: Sequence[Mapping[str, Any]], rows: Rows, span: Span, takes: Callable[[str], bool]
) -> dict[str, list[Any]]:
    """The columns of rows of the data, for a function. takes: whether it is given a column of that name.

    Raises RunError where a row lacks one that it is given, and others have.
    """
    names = dict.fromkeys(name for row in data for name in row)
    for name in filter(takes, names):
        place = next((place for place, row in enumerate(data) if name not in row), None)
        if place is not None:
            raise lacks(rows.who(place), name, span, ())
    return {name: [row.get(name) for row in data] for name in names}


def lacks(who: str, name: str, span: Span, has: Sequence[str]) -> RunError:
    """A row without a column that is asked for: others have it, or none is known to, where `has` names its own ones."""
    if has:
        shown = ", ".join(f"`{own}`" for own in has)
        return RunError(Diagnostic("E0711", f"{who} has no column `{name}`", span, f"it has {shown}"))
    message = f"{who} has no column `{name}`, which other rows have"
    return RunError(Diagnostic("E0711", message, span, EVERY_ROW))
