"""What each tensor operation computes: one torch function for each name in `tensor`.

There is no padding and no mask. A value on an axis is a 1-D tensor with one entry for each row of that axis:
the tokens of all rows, one after another. A single value is a 0-d tensor or a Python number. Which row of an
outer axis an entry lies in is an index: int64 [entries], ascending, so the entries of a row lie together and
an empty row is an index that does not occur.

    elementwise   f(*values)           entries that already meet on one axis
    reduction     f(x, index, size)    [size], an entry for each row that `index` points at; index None: 0-d
    scan          f(x, index)          along the entries of each row

Where the result is a number, numbers come in its kind: `lowering` has made floats of ints, and ints of bools.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

Number: TypeAlias = "Tensor | float"
"""A tensor or a Python number (int and bool too), which never changes the dtype of what it meets."""


# Elementwise


def truth(x: Number) -> Tensor:
    """A number is true where it is not 0."""
    if not isinstance(x, Tensor):
        return torch.tensor(bool(x))
    return x if x.dtype == torch.bool else x != 0


def and_(a: Number, b: Number) -> Tensor:
    return truth(a) & truth(b)


def or_(a: Number, b: Number) -> Tensor:
    return truth(a) | truth(b)


def floordiv(a: Number, b: Number) -> Tensor:
    a, b = _tensors(a, b)
    return torch.div(a, b, rounding_mode="floor")


def minimum(a: Number, b: Number) -> Tensor:
    """Where both are equal each gets half of the gradient, as in torch; also where one is a Python number."""
    return torch.minimum(*_tensors(a, b))


def maximum(a: Number, b: Number) -> Tensor:
    """As `minimum`."""
    return torch.maximum(*_tensors(a, b))


def clip(x: Number, low: Number, high: Number) -> Tensor:
    """Gradient 1 from bound to bound, the bounds included."""
    if isinstance(x, Tensor) and not isinstance(low, Tensor) and not isinstance(high, Tensor):
        return torch.clamp(x, low, high)
    return torch.clamp(*_tensors(x, low, high))


def where(condition: Number, a: Number, b: Number) -> Tensor:
    return torch.where(truth(condition), a, b)


def float_(x: Tensor) -> Tensor:
    return x if x.is_floating_point() else x.to(torch.get_default_dtype())


def same_text(a: Any, b: Any) -> Tensor:
    """Whether texts are equal, bool; numbers compare as numbers.

    A column of texts is a list, a single text a str.
    """
    if not isinstance(a, (str, list)) and not isinstance(b, (str, list)):
        return torch.as_tensor(beside(a, b) == beside(b, a))
    left, right = (value.tolist() if isinstance(value, Tensor) else value for value in (a, b))
    if not isinstance(left, list) and not isinstance(right, list):
        return torch.tensor(bool(left == right))
    count = len(left if isinstance(left, list) else right)
    left, right = (value if isinstance(value, list) else [value] * count for value in (left, right))
    return torch.tensor([one == other for one, other in zip(left, right, strict=True)], dtype=torch.bool)


def other_text(a: Any, b: Any) -> Tensor:
    """Whether texts differ; see `same_text`."""
    return torch.logical_not(same_text(a, b))


# Reductions


def mean(x: Tensor, index: Tensor | None, size: int) -> Tensor:
    """0 of none. The mean of equal entries is exactly that entry: a group without spread has no advantage."""
    count = _count(x, index, size).clamp(min=1)
    middle = (_total(x, index, size) / count).to(x.dtype)
    if x.dtype != torch.float64:
        return middle  # A total in double precision is exact enough.
    with torch.no_grad():
        off = x - gather(middle, index)
        rest = torch.nan_to_num(_total(off, index, size) / count, nan=0.0)
    return middle + rest


def sum_(x: Tensor, index: Tensor | None, size: int) -> Tensor:
    return _total(x, index, size).to(x.dtype if x.is_floating_point() else torch.int64)


def var(x: Tensor, index: Tensor | None, size: int) -> Tensor:
    off = x - gather(mean(x, index, size), index)
    free = (_count(x, index, size) - 1).clamp(min=1)
    return (_total(off * off, index, size) / free).to(x.dtype)


def std(x: Tensor, index: Tensor | None, size: int) -> Tensor:
    spread = var(x, index, size)
    some = spread > 0
    # The inner `where` keeps the infinite slope of the root at 0 out of the gradient.
    return torch.where(some, torch.sqrt(torch.where(some, spread, 1)), 0)


def min_(x: Tensor, index: Tensor | None, size: int) -> Tensor:
    """The gradient goes to the first of the smallest entries."""
    return _at(x, _first(x, index, size, "amin"))


def max_(x: Tensor, index: Tensor | None, size: int) -> Tensor:
    """The gradient goes to the first of the largest entries."""
    return _at(x, _first(x, index, size, "amax"))


def argmin(x: Tensor, index: Tensor | None, size: int) -> Tensor:
    """int64 row of the axis of `x`; -1 of none."""
    first = _first(x, index, size, "amin")
    return torch.where(first < x.shape[0], first, -1)


def argmax(x: Tensor, index: Tensor | None, size: int) -> Tensor:
    """int64 row of the axis of `x`; -1 of none."""
    first = _first(x, index, size, "amax")
    return torch.where(first < x.shape[0], first, -1)


def count(x: Tensor, index: Tensor | None, size: int) -> Tensor:
    return _total(truth(x), index, size)


def size_(x: Tensor | Sequence[Any], index: Tensor | None, size: int) -> Tensor:
    return _count(x, index, size)


def any_(x: Tensor, index: Tensor | None, size: int) -> Tensor:
    return count(x, index, size) > 0


def all_(x: Tensor, index: Tensor | None, size: int) -> Tensor:
    return count(x, index, size) == _count(x, index, size)


def quantile(x: Tensor, q: Number, index: Tensor | None, size: int) -> Tensor:
    """At place q * (n - 1) of the n sorted entries, linear between two; 0 of none.

    q: a single value or [size].
    """
    order = x.detach().argsort(stable=True)
    if index is not None:
        order = order.index_select(0, index.index_select(0, order).argsort(stable=True))
    entries = torch.cat((x.index_select(0, order), x.new_zeros(1)))
    number = _count(x, index, size)
    start = number.cumsum(0) - number if index is not None else torch.zeros_like(number)
    last = (number - 1).clamp(min=0)
    place = torch.as_tensor(q, dtype=x.dtype, device=x.device).clamp(0, 1) * last
    below = torch.minimum(place.detach().floor().long(), last)
    low = entries[start + below]
    high = entries[start + torch.minimum(below + 1, last)]
    share, step = place - below, high - low
    # Two entries may be further from each other than the largest number that there is.
    between = torch.where(step.isfinite(), low + share * step, low * (1 - share) + high * share)
    return torch.where(number > 0, between, 0)


# Scans


def next_(x: Tensor, index: Tensor) -> Tensor:
    return _shift(x, index, 1)


def prev(x: Tensor, index: Tensor) -> Tensor:
    return _shift(x, index, -1)


def cumsum(x: Tensor, index: Tensor) -> Tensor:
    """In log2(longest row) steps: each doubles how many entries a sum covers, and no row touches another."""
    step, longest = 1, _longest(index)
    while step < longest:
        x = x + _shift(x, index, -step)
        step *= 2
    return x


def discount(x: Tensor, decay: Number, index: Tensor) -> Tensor:
    """y[t] = x[t] + decay[t] * y[t + 1] in each row, by doubling as in `cumsum`.

    decay: a single value or [entries].
    """
    step, longest = 1, _longest(index)
    while step < longest:
        # x[t] covers `step` entries, and decay[t] is the product of the decays over them.
        x = x + decay * _shift(x, index, step)
        if isinstance(decay, Tensor) and decay.dim():
            decay = decay * _shift(decay, index, step)
        else:
            decay = decay * decay
        step *= 2
    return x


# What `lowering` writes between operations


def number(x: Number) -> Number:
    """A column of the data in mathematics: whole numbers stay whole, and a truth is 1 or 0."""
    if isinstance(x, Tensor):
        return x.long() if x.dtype == torch.bool else x
    return int(x) if isinstance(x, bool) else x


def beside(x: Number, other: Number) -> Number:
    """What of a column is compared with `other`: a whole number beside a real one in double precision, in which it
    stays what it is."""
    real = other.is_floating_point() if isinstance(other, Tensor) else isinstance(other, float)
    whole = isinstance(x, Tensor) and not x.is_floating_point()
    return x.double() if real and whole and isinstance(x, Tensor) else x


def within(exact: Tensor, near: Tensor) -> Tensor:
    """Whole numbers, of which `near` is what they come to in double precision.

    Raises OverflowError where 64 bits are too few for them: then they are off by 2**64 at least, and what double
    precision rounds off is much less.
    """
    if not exact.is_floating_point() and bool(((near - exact.double()).abs() > _OFF).any()):
        raise OverflowError("whole numbers of more than 64 bits")
    return exact


_OFF = 2.0**62


def whole_add(a: Number, b: Number) -> Tensor:
    """`a + b` of a column of the data. See `within`."""
    return within(torch.as_tensor(a + b), torch.as_tensor(_double(a) + _double(b)))


def whole_sub(a: Number, b: Number) -> Tensor:
    """`a - b` of a column of the data. See `within`."""
    return within(torch.as_tensor(a - b), torch.as_tensor(_double(a) - _double(b)))


def whole_mul(a: Number, b: Number) -> Tensor:
    """`a * b` of a column of the data. See `within`."""
    return within(torch.as_tensor(a * b), torch.as_tensor(_double(a) * _double(b)))


def whole_sum(x: Tensor, index: Tensor | None, size: int) -> Tensor:
    """The sum of a column of the data. See `within`."""
    return within(sum_(x, index, size), _total(x.double(), index, size))


def whole_neg(x: Tensor) -> Tensor:
    """`-x` of a column of the data. See `within`."""
    return within(-x, -x.detach().double())


def whole_abs(x: Tensor) -> Tensor:
    """`abs(x)` of a column of the data. See `within`."""
    return within(x.abs(), x.detach().double().abs())


def whole_floordiv(a: Number, b: Number) -> Tensor:
    """`a // b` of a column of the data. See `within`."""
    return within(floordiv(a, b), floordiv(_double(a), _double(b)))


def whole_cumsum(x: Tensor, index: Tensor) -> Tensor:
    """The sums of a column of the data along the tokens. See `within`."""
    return within(cumsum(x, index), cumsum(x.detach().double(), index))


def _double(x: Number) -> Number:
    return x.detach().double() if isinstance(x, Tensor) else float(x)


def constant(value: float, dtype: torch.dtype | None) -> Tensor:
    """A Python number as a 0-d tensor, where a tensor has to stand; dtype None: int64 or bool, as it is."""
    return torch.tensor(value, dtype=dtype)


def gather(x: Any, index: Tensor | None) -> Any:
    """The value of the row that each entry lies in, broadcast from outside. A list of texts stays one."""
    if index is None:
        return x
    if isinstance(x, list):
        return [x[row] for row in index.tolist()]
    return torch.index_select(x, 0, index)


def own_rows(x: Tensor | Sequence[Any]) -> Tensor:
    """The index of an axis to itself: every entry is a row of its own."""
    return torch.arange(len(x), device=x.device if isinstance(x, Tensor) else None)


# Shared


def _total(x: Tensor, index: Tensor | None, size: int) -> Tensor:
    """Sums in double precision (or int64): the same to the last bit of a float32, however rows are split."""
    wide = x.double() if x.is_floating_point() else x.long()
    return wide.sum() if index is None else wide.new_zeros(size).index_add(0, index, wide)


def _count(x: Tensor | Sequence[Any], index: Tensor | None, size: int) -> Tensor:
    return torch.tensor(len(x)) if index is None else torch.bincount(index, minlength=size)


def _first(x: Tensor, index: Tensor | None, size: int, extreme: str) -> Tensor:
    """Place of the first extremal entry; len(x) of none. A nan is extremal, as in torch."""
    entries = x.detach() if x.dtype != torch.bool else x.long()
    into = torch.zeros(entries.shape[0], dtype=torch.int64, device=x.device) if index is None else index
    size = 1 if index is None else size
    best = entries.new_zeros(size).scatter_reduce(0, into, entries, extreme, include_self=False)
    best = best.index_select(0, into)
    place = torch.arange(entries.shape[0], device=x.device)
    place = torch.where((entries == best) | torch.isnan(entries), place, entries.shape[0])
    first = place.new_full((size,), entries.shape[0]).scatter_reduce(0, into, place, "amin")
    return first[0] if index is None else first


def _at(x: Tensor, place: Tensor) -> Tensor:
    """The entries at these places; 0 where the place is behind the last."""
    return torch.cat((x, x.new_zeros(1)))[place]


def _shift(x: Tensor, index: Tensor, step: int) -> Tensor:
    """x[t + step], 0 where that is not in the row of t."""
    if abs(step) >= x.shape[0]:
        return torch.zeros_like(x)
    none = x.new_zeros(abs(step))
    same = index[abs(step) :] == index[: -abs(step)]
    if step > 0:
        return torch.cat((torch.where(same, x[step:], 0), none))
    return torch.cat((none, torch.where(same, x[:step], 0)))


def _longest(index: Tensor) -> int:
    return int(torch.bincount(index).max()) if index.shape[0] else 0


def _tensors(*values: Number) -> tuple[Tensor, ...]:
    """Python numbers as tensors of the dtype of the tensors beside them."""
    beside = next((value for value in values if isinstance(value, Tensor)), None)
    return tuple(
        value
        if isinstance(value, Tensor)
        else torch.tensor(value)
        if beside is None
        else torch.tensor(value, dtype=beside.dtype, device=beside.device)
        for value in values
    )


OF_COLUMNS: Mapping[str, Callable[..., Any]] = {
    "add": whole_add,
    "sub": whole_sub,
    "mul": whole_mul,
    "neg": whole_neg,
    "abs": whole_abs,
    "floordiv": whole_floordiv,
    "sum": whole_sum,
    "cumsum": whole_cumsum,
}
"""What takes the place of operations whose result is a number of a column of the data: it says where whole numbers
become too large, which no number of a program does."""

REFERENCE: Mapping[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "floordiv": floordiv,
    "mod": operator.mod,
    "pow": operator.pow,
    "neg": operator.neg,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
    "and": and_,
    "or": or_,
    "not": torch.logical_not,
    "exp": torch.exp,
    "log": torch.log,
    "log1p": torch.log1p,
    "expm1": torch.expm1,
    "sqrt": torch.sqrt,
    "abs": torch.abs,
    "sign": torch.sign,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "round": torch.round,
    "sigmoid": torch.sigmoid,
    "logsigmoid": torch.nn.functional.logsigmoid,
    "tanh": torch.tanh,
    "relu": torch.relu,
    "minimum": minimum,
    "maximum": maximum,
    "clip": clip,
    "where": where,
    "detach": torch.detach,
    "float": float_,
    "mean": mean,
    "sum": sum_,
    "std": std,
    "var": var,
    "min": min_,
    "max": max_,
    "count": count,
    "size": size_,
    "any": any_,
    "all": all_,
    "quantile": quantile,
    "argmax": argmax,
    "argmin": argmin,
    "next": next_,
    "prev": prev,
    "cumsum": cumsum,
    "discount": discount,
}
