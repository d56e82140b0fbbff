"""Operations on whole numbers of data columns: they raise where integers become too large, which numbers of a program
never do."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from rlgraph.ops.reference import Number, cumsum, floordiv, sum_

_OVERFLOW = 2.0**62


def check_int64_range(exact: Tensor, near: Tensor) -> Tensor:
    """Return the integers `exact`, after a check against the same result in double precision, `near`.

    Raises OverflowError where 64 bits are too few: then they are off by at least 2**64, and rounding in double
    precision is much less."""
    if not exact.is_floating_point() and bool(((near - exact.double()).abs() > _OVERFLOW).any()):
        raise OverflowError("whole numbers of more than 64 bits")
    return exact


def _checked(name: str, operation: Callable[..., Any], numbers: int) -> Callable[..., Tensor]:
    """Return an operation whose result is checked as in `check_int64_range`; its first arguments are so many
    numbers."""

    def checked_operation(*args: Any) -> Tensor:
        near = operation(*map(_double, args[:numbers]), *args[numbers:])
        return check_int64_range(torch.as_tensor(operation(*args)), torch.as_tensor(near))

    checked_operation.__name__ = f"whole_{name}"
    return checked_operation


def _double(x: Number) -> Number:
    return x.detach().double() if isinstance(x, Tensor) else float(x)


OF_COLUMNS: Mapping[str, Callable[..., Any]] = {
    name: _checked(name, operation, numbers)
    for name, operation, numbers in (
        ("add", operator.add, 2),
        ("sub", operator.sub, 2),
        ("mul", operator.mul, 2),
        ("neg", operator.neg, 1),
        ("abs", torch.abs, 1),
        ("floordiv", floordiv, 2),
        ("sum", sum_, 1),
        ("cumsum", cumsum, 1),
    )
}
"""The replacements of operations whose result is a number of a data column."""
