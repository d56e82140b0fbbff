"""Reference implementations of the tensor operations: one torch function for each name in `tensor`.

There is no padding and no mask. A value on an axis is a 1-D tensor with one entry for each row of that axis: the
tokens of all rows, concatenated. A single value is a 0-d tensor or a Python number. An index says which row of an outer
axis each entry is in: int64 [entries], ascending, so that the entries of a row are contiguous and an empty row does
not occur in it.

    elementwise   f(*values)           of entries on one common axis
    reduction     f(x, index, size)    [size], an entry for each row that `index` points at; index None: 0-d
    ranking       f(x, index, size)    [entries], of what is in the same row; index None: of all entries
    scan          f(x, index)          along the entries of each row

Where the result is a number, `lowering` has converted the arguments to its dtype: ints to floats, bools to ints.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from rlgraph.ops.scans import decayed_sums, neighbours
from rlgraph.ops.text_reference import contains, has_number, last_number, matches

Number: TypeAlias = "Tensor | float"
"""A tensor or a Python number (also int and bool), which never changes the dtype of the other argument."""


# Elementwise


def truth(x: Number) -> Tensor:
    """Return whether numbers are not 0, bool."""
    if not isinstance(x, Tensor):
        return torch.tensor(bool(x))
    return x if x.dtype == torch.bool else x != 0


def and_(a: Number, b: Number) -> Tensor:
    """Return `a and b`."""
    return truth(a) & truth(b)


def or_(a: Number, b: Number) -> Tensor:
    """Return `a or b`."""
    return truth(a) | truth(b)


def floordiv(a: Number, b: Number) -> Tensor:
    """Return `a // b`, rounded down."""
    a, b = _tensors(a, b)
    return torch.div(a, b, rounding_mode="floor")


def minimum(a: Number, b: Number) -> Tensor:
    """Return the smaller one. Equal arguments each get half of the gradient, as in torch, even if one is a Python
    number."""
    return torch.minimum(*_tensors(a, b))


def maximum(a: Number, b: Number) -> Tensor:
    """Return the larger one, with gradients as in `minimum`."""
    return torch.maximum(*_tensors(a, b))


def clip(x: Number, low: Number, high: Number) -> Tensor:
    """Return `x` between bounds, with gradient 1 from bound to bound, inclusive."""
    if isinstance(x, Tensor) and not isinstance(low, Tensor) and not isinstance(high, Tensor):
        return torch.clamp(x, low, high)
    return torch.clamp(*_tensors(x, low, high))


def where(condition: Number, a: Number, b: Number) -> Tensor:
    """Return `a` where the condition is true, else `b`."""
    return torch.where(truth(condition), a, b)


def float_(x: Tensor) -> Tensor:
    """Return `x` as floats; a float dtype is kept."""
    return x if x.is_floating_point() else x.to(torch.get_default_dtype())


def texts_equal(a: Any, b: Any) -> Tensor:
    """Return whether texts are equal, bool; numbers are compared as numbers.

    A column of texts is a list, a single text a str.
    """
    if not isinstance(a, (str, list)) and not isinstance(b, (str, list)):
        return torch.as_tensor(widen_for_comparison(a, b) == widen_for_comparison(b, a))
    left, right = (value.tolist() if isinstance(value, Tensor) else value for value in (a, b))
    if not isinstance(left, list) and not isinstance(right, list):
        return torch.tensor(bool(left == right))
    count = len(left if isinstance(left, list) else right)
    left, right = (value if isinstance(value, list) else [value] * count for value in (left, right))
    return torch.tensor([one == other for one, other in zip(left, right, strict=True)], dtype=torch.bool)


def texts_differ(a: Any, b: Any) -> Tensor:
    """Return whether texts differ; see `texts_equal`."""
    return torch.logical_not(texts_equal(a, b))


# Keys


def key(x: Tensor | Sequence[Any]) -> Tensor:
    """Return for each entry a number, int64 [entries], that is the same for equal entries."""
    if isinstance(x, Tensor):
        numbered: Tensor = torch.unique(x.detach(), return_inverse=True)[1]
        return numbered
    numbers: dict[Any, int] = {}
    return torch.tensor([numbers.setdefault(entry, len(numbers)) for entry in x], dtype=torch.int64)


def join(a: Tensor, b: Tensor) -> Tensor:
    """Return for each entry a number, int64 [entries], that is the same where both of two keys are."""
    return key(a * (int(b.max()) + 1) + b) if len(b) else b


def first_of_equals(keys: Tensor, above: Tensor | None) -> Tensor:
    """Return for each row the first row with an equal key, int64 [rows]. above: the outer row that each lies in, whose
    rows alone are compared; None: all are."""
    groups = keys if above is None else join(above, keys)
    places = torch.arange(len(groups), device=groups.device)
    return places.new_full((len(groups),), len(groups)).scatter_reduce(0, groups, places, "amin")[groups]


# Reductions


def mean(x: Tensor, index: Tensor | None, size: int) -> Tensor:
    """Return the mean, 0 of no entries. The mean of equal entries is exactly that entry, so that their advantage is
    0."""
    count = _count(x, index, size).clamp(min=1)
    rounded_mean = (_total(x, index, size) / count).to(x.dtype)
    if x.dtype != torch.float64:
        return rounded_mean  # A sum in double precision is exact enough.
    with torch.no_grad():
        deviation = x - broadcast_to_entries(rounded_mean, index)
        correction = torch.nan_to_num(_total(deviation, index, size) / count, nan=0.0)
    return rounded_mean + correction


def sum_(x: Tensor, index: Tensor | None, size: int) -> Tensor:
    """Return the sum, int64 for integers."""
    return _total(x, index, size).to(x.dtype if x.is_floating_point() else torch.int64)


def var(x: Tensor, index: Tensor | None, size: int) -> Tensor:
    """Return the unbiased variance, 0 of a single entry."""
    deviation = x - broadcast_to_entries(mean(x, index, size), index)
    degrees_of_freedom = (_count(x, index, size) - 1).clamp(min=1)
    return (_total(deviation * deviation, index, size) / degrees_of_freedom).to(x.dtype)


def std(x: Tensor, index: Tensor | None, size: int) -> Tensor:
    """Return the unbiased standard deviation, 0 of a single entry."""
    variance = var(x, index, size)
    positive = variance > 0
    # The inner `where` keeps the infinite derivative of the root at 0 out of the gradient.
    return torch.where(positive, torch.sqrt(torch.where(positive, variance, 1)), 0)


def min_(x: Tensor, index: Tensor | None, size: int) -> Tensor:
    """Return the smallest entry; the gradient goes to the first of equals."""
    return _at(x, _first(x, index, size, "amin"))


def max_(x: Tensor, index: Tensor | None, size: int) -> Tensor:
    """Return the largest entry; the gradient goes to the first of equals."""
    return _at(x, _first(x, index, size, "amax"))


def first(x: Tensor, index: Tensor | None, size: int) -> Tensor:
    """Return the entry that stands first."""
    return _at(x, _first(torch.arange(len(x), device=x.device), index, size, "amin"))


def last(x: Tensor, index: Tensor | None, size: int) -> Tensor:
    """Return the entry that stands last."""
    return _at(x, _first(torch.arange(len(x), device=x.device), index, size, "amax"))


def argmin(x: Tensor, index: Tensor | None, size: int) -> Tensor:
    """Return the int64 row of the axis of `x` with the smallest entry; -1 of none."""
    first = _first(x, index, size, "amin")
    return torch.where(first < x.shape[0], first, -1)


def argmax(x: Tensor, index: Tensor | None, size: int) -> Tensor:
    """Return the int64 row of the axis of `x` with the largest entry; -1 of none."""
    first = _first(x, index, size, "amax")
    return torch.where(first < x.shape[0], first, -1)


def count(x: Tensor, index: Tensor | None, size: int) -> Tensor:
    """Return how many entries are true."""
    return _total(truth(x), index, size)


def size_(x: Tensor | Sequence[Any], index: Tensor | None, size: int) -> Tensor:
    """Return how many entries there are."""
    return _count(x, index, size)


def any_(x: Tensor, index: Tensor | None, size: int) -> Tensor:
    """Return whether an entry is true."""
    return count(x, index, size) > 0


def all_(x: Tensor, index: Tensor | None, size: int) -> Tensor:
    """Return whether every entry is true."""
    return count(x, index, size) == _count(x, index, size)


def quantile(x: Tensor, q: Number, index: Tensor | None, size: int) -> Tensor:
    """Return the value at position q * (n - 1) of the n sorted entries, linearly interpolated; 0 of none.

    q: a single value or [size].
    """
    order = _in_rows(x.detach().argsort(stable=True), index)
    entries = torch.cat((x.index_select(0, order), x.new_zeros(1)))
    counts = _count(x, index, size)
    start = counts.cumsum(0) - counts if index is not None else torch.zeros_like(counts)
    last = (counts - 1).clamp(min=0)
    position = torch.as_tensor(q, dtype=x.dtype, device=x.device).clamp(0, 1) * last
    below = torch.minimum(position.detach().floor().long(), last)
    low = entries[start + below]
    high = entries[start + torch.minimum(below + 1, last)]
    fraction, step = position - below, high - low
    # The difference of two entries may overflow.
    interpolated = torch.where(step.isfinite(), low + fraction * step, low * (1 - fraction) + high * fraction)
    return torch.where(counts > 0, interpolated, 0)


# Rankings


def rank(x: Tensor, index: Tensor | None, size: int) -> Tensor:
    """Return for each entry its place in its row, int64, from 0 for the largest. Equals are in the order in which they
    are given. A nan is the largest, as in `argmax`."""
    order = _in_rows(x.detach().argsort(stable=True, descending=True), index)
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order), device=order.device)
    if index is None:
        return places
    counts = _count(x, index, size)
    return places - (counts.cumsum(0) - counts)[index]


def top(x: Tensor, k: Number, index: Tensor | None, size: int) -> Tensor:
    """Return whether each entry is one of the `k` largest of its row, bool.

    k: a single value or [size].
    """
    return rank(x, index, size) < (broadcast_to_entries(k, index) if isinstance(k, Tensor) and k.dim() else k)


def running(x: Tensor, y: Tensor, index: Tensor | None, size: int) -> Tensor:
    """Return for each entry the sum of `x` over the entries of its row from the one with the largest `y` down to this
    one. Equals are in the order in which they are given."""
    order = _in_rows(y.detach().argsort(stable=True, descending=True), index)
    rows = torch.zeros_like(order) if index is None else index[order]
    sums = torch.empty_like(x)
    sums[order] = cumsum(x.detach()[order], rows)
    return sums


# Pairs


def other(x: Any, offset: Tensor, index: Tensor) -> Any:
    """Return for each pair the entry of its second row, so many rows behind the first one; of a list of texts a list.

    offset, index: int64 [pairs]; index: the first row of each.
    """
    return broadcast_to_entries(x, index + offset)


# Scans


def next_(x: Tensor, index: Tensor) -> Tensor:
    """Return the next entry of the row, 0 at the last."""
    return neighbours(x, index, 1)


def prev(x: Tensor, index: Tensor) -> Tensor:
    """Return the previous entry of the row, 0 at the first."""
    return neighbours(x, index, -1)


def cumsum(x: Tensor, index: Tensor) -> Tensor:
    """Return cumulative sums in each row."""
    return decayed_sums(x, None, index, -1)


def discount(x: Tensor, decay: Number, index: Tensor) -> Tensor:
    """Return y[t] = x[t] + decay[t] * y[t + 1] in each row.

    decay: a single value or [entries].
    """
    return decayed_sums(x, decay, index, 1)


def accumulate(x: Tensor, decay: Number, index: Tensor) -> Tensor:
    """Return y[t] = x[t] + decay[t] * y[t - 1] in each row. Where decay is 0 it begins anew.

    decay: a single value or [entries].
    """
    return decayed_sums(x, decay, index, -1)


# Conversions that `lowering` inserts between operations


def as_number(x: Number) -> Number:
    """Return a data column as numbers: integers stay integers, and bools become 1 or 0."""
    if isinstance(x, Tensor):
        return x.long() if x.dtype == torch.bool else x
    return int(x) if isinstance(x, bool) else x


def widen_for_comparison(x: Number, other: Number) -> Number:
    """Return a column for a comparison with `other`: integers become double precision, which keeps their values, if the
    other one is a float."""
    other_is_float = other.is_floating_point() if isinstance(other, Tensor) else isinstance(other, float)
    is_integer = isinstance(x, Tensor) and not x.is_floating_point()
    return x.double() if other_is_float and is_integer and isinstance(x, Tensor) else x


def constant_tensor(value: float, dtype: torch.dtype | None) -> Tensor:
    """Return a Python number as a 0-d tensor; dtype None: int64 or bool, as it is."""
    return torch.tensor(value, dtype=dtype)


def broadcast_to_entries(x: Any, index: Tensor | None) -> Any:
    """Broadcast values of rows to the entries in them. A list of texts stays a list."""
    if index is None:
        return x
    if isinstance(x, list):
        return [x[row] for row in index.tolist()]
    return torch.index_select(x, 0, index)


def identity_index(x: Tensor | Sequence[Any]) -> Tensor:
    """Return the index of an axis to itself, in which every entry is its own row."""
    return torch.arange(len(x), device=x.device if isinstance(x, Tensor) else None)


def select_chosen(x: Any, chosen: Tensor) -> Any:
    """Return the entries that count, bool [entries]; of a list of texts a list."""
    if isinstance(x, list):
        return [text for text, counts in zip(x, chosen.tolist(), strict=True) if counts]
    return x[chosen]


def scatter_chosen(x: Tensor, chosen: Tensor) -> Tensor:
    """Return what was computed of entries that `select_chosen` returned where these were before; 0 for the others."""
    full = x.new_zeros(chosen.shape)
    full[chosen] = x
    return full


def original_positions(place: Tensor, chosen: Tensor) -> Tensor:
    """Return where entries of what `select_chosen` returned were before, int64; -1 stays -1."""
    places = torch.cat((chosen.nonzero()[:, 0], chosen.new_full((1,), -1, dtype=torch.int64)))
    return places[place]


# Shared


def _total(x: Tensor, index: Tensor | None, size: int) -> Tensor:
    """Return sums in double precision (or int64): equal to the last bit of a float32, however rows are split."""
    wide = x.double() if x.is_floating_point() else x.long()
    return wide.sum() if index is None else wide.new_zeros(size).index_add(0, index, wide)


def _count(x: Tensor | Sequence[Any], index: Tensor | None, size: int) -> Tensor:
    return torch.tensor(len(x)) if index is None else torch.bincount(index, minlength=size)


def _in_rows(order: Tensor, index: Tensor | None) -> Tensor:
    """Return an order of all entries as one of the entries of each row, row after row."""
    return order if index is None else order[index[order].argsort(stable=True)]


def _first(x: Tensor, index: Tensor | None, size: int, extreme: str) -> Tensor:
    """Return the position of the first extremal entry; len(x) of none. A nan is extremal, as in torch."""
    entries = x.detach() if x.dtype != torch.bool else x.long()
    rows = torch.zeros(entries.shape[0], dtype=torch.int64, device=x.device) if index is None else index
    size = 1 if index is None else size
    best = entries.new_zeros(size).scatter_reduce(0, rows, entries, extreme, include_self=False)
    best = best.index_select(0, rows)
    positions = torch.arange(entries.shape[0], device=x.device)
    positions = torch.where((entries == best) | torch.isnan(entries), positions, entries.shape[0])
    first = positions.new_full((size,), entries.shape[0]).scatter_reduce(0, rows, positions, "amin")
    return first[0] if index is None else first


def _at(x: Tensor, place: Tensor) -> Tensor:
    """Return the entries at these positions; 0 where the position is after the last."""
    return torch.cat((x, x.new_zeros(1)))[place]


def _tensors(*values: Number) -> tuple[Tensor, ...]:
    """Return all values as tensors; Python numbers get the dtype of the first tensor."""
    first_tensor = next((value for value in values if isinstance(value, Tensor)), None)
    return tuple(
        value
        if isinstance(value, Tensor)
        else torch.tensor(value)
        if first_tensor is None
        else torch.tensor(value, dtype=first_tensor.dtype, device=first_tensor.device)
        for value in values
    )


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
    "cos": torch.cos,
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
    "contains": contains,
    "matches": matches,
    "number": last_number,
    "has_number": has_number,
    "key": key,
    "join": join,
    "mean": mean,
    "sum": sum_,
    "std": std,
    "var": var,
    "min": min_,
    "max": max_,
    "first": first,
    "last": last,
    "count": count,
    "size": size_,
    "any": any_,
    "all": all_,
    "quantile": quantile,
    "argmax": argmax,
    "argmin": argmin,
    "rank": rank,
    "top": top,
    "running": running,
    "other": other,
    "next": next_,
    "prev": prev,
    "cumsum": cumsum,
    "discount": discount,
    "accumulate": accumulate,
}
