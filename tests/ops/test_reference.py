"""The reference of every tensor operation, against loops over Python lists."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rlgraph.ops import TENSOR, reference
from rlgraph.ops.reference import REFERENCE

Rows = list[list[float]]

# Few different entries, so that ties and rows of equal entries are common; 0.1 has no exact sum.
ENTRY = st.one_of(st.sampled_from([0.0, 0.1, 1.0, -1.0, 0.3]), st.floats(-10, 10))
ROWS = st.lists(st.one_of(st.lists(ENTRY, max_size=7), st.integers(1, 9).map(lambda n: [0.1] * n)), max_size=6)
RUN = settings(max_examples=60)


def flat(rows: Rows, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, int]:
    """The entries, the row of each, the number of rows."""
    index = [place for place, row in enumerate(rows) for _ in row]
    return torch.tensor(sum(rows, []), dtype=dtype), torch.tensor(index, dtype=torch.int64), len(rows)


def close(found: Tensor, expected: Any) -> None:
    assert found.tolist() == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_every_operation_has_a_reference() -> None:
    assert list(REFERENCE) == list(TENSOR)


# Reductions


def mean(row: list[float]) -> float:
    return math.fsum(row) / len(row) if row else 0.0


def var(row: list[float]) -> float:
    return math.fsum((x - mean(row)) ** 2 for x in row) / (len(row) - 1) if len(row) > 1 else 0.0


def quantile(row: list[float], q: float) -> float:
    if not row:
        return 0.0
    place = q * (len(row) - 1)
    low = math.floor(place)
    ordered = sorted(row)
    return ordered[low] + (place - low) * (ordered[min(low + 1, len(row) - 1)] - ordered[low])


REDUCTIONS: dict[str, Callable[[list[float]], float]] = {
    "mean": mean,
    "sum": math.fsum,
    "var": var,
    "std": lambda row: math.sqrt(var(row)),
    "min": lambda row: min(row, default=0.0),
    "max": lambda row: max(row, default=0.0),
    "first": lambda row: row[0] if row else 0.0,
    "last": lambda row: row[-1] if row else 0.0,
    "count": lambda row: sum(x != 0 for x in row),
    "size": len,
    "any": any,
    "all": all,
}


def test_every_reduction_is_tested() -> None:
    rest = {"quantile", "argmax", "argmin"}
    assert {op.name for op in TENSOR.values() if op.kind == "reduction"} == REDUCTIONS.keys() | rest


@pytest.mark.parametrize("op", REDUCTIONS)
@given(rows=ROWS)
@RUN
def test_reduction(op: str, rows: Rows) -> None:
    x, index, size = flat(rows)
    close(REFERENCE[op](x, index, size), [REDUCTIONS[op](row) for row in rows])
    whole = REFERENCE[op](x, None, 1)
    assert whole.dim() == 0
    close(whole, REDUCTIONS[op](sum(rows, [])))


@pytest.mark.parametrize("op", ["argmax", "argmin"])
@given(rows=ROWS)
@RUN
def test_argmax_points_at_the_first_of_the_source_rows(op: str, rows: Rows) -> None:
    best = max if op == "argmax" else min
    x, index, size = flat(rows)
    start, expected = 0, []
    for row in rows:
        expected.append(start + row.index(best(row)) if row else -1)
        start += len(row)
    assert REFERENCE[op](x, index, size).tolist() == expected
    entries = sum(rows, [])
    assert REFERENCE[op](x, None, 1).item() == (entries.index(best(entries)) if entries else -1)


@given(rows=ROWS, q=st.floats(0, 1))
@RUN
def test_quantile(rows: Rows, q: float) -> None:
    x, index, size = flat(rows)
    expected = [quantile(row, q) for row in rows]
    close(REFERENCE["quantile"](x, q, index, size), expected)
    close(REFERENCE["quantile"](x, torch.tensor(q, dtype=x.dtype), index, size), expected)
    close(REFERENCE["quantile"](x, torch.full((size,), q, dtype=x.dtype), index, size), expected)
    close(REFERENCE["quantile"](x, q, None, 1), quantile(sum(rows, []), q))


def ranks(row: list[float]) -> list[int]:
    return [sum(y > x or (y == x and other < place) for other, y in enumerate(row)) for place, x in enumerate(row)]


@given(rows=ROWS, k=st.integers(1, 4))
@RUN
def test_rank_and_top(rows: Rows, k: int) -> None:
    x, index, size = flat(rows)
    expected, entries = sum(map(ranks, rows), []), sum(rows, [])
    assert REFERENCE["rank"](x, index, size).tolist() == expected
    assert REFERENCE["rank"](x, None, 1).tolist() == ranks(entries)
    y = torch.tensor(entries[::-1], dtype=torch.float64)
    for row, at in ((index, expected), (None, ranks(entries))):
        sums = REFERENCE["running"](y, x, row, size).tolist()
        rows = [0] * len(entries) if row is None else row.tolist()
        assert sums == pytest.approx(
            [
                sum(y.tolist()[m] for m in range(len(rows)) if rows[m] == rows[n] and at[m] <= at[n])
                for n in range(len(rows))
            ],
            abs=1e-9,
        )
    assert REFERENCE["top"](x, k, index, size).tolist() == [place < k for place in expected]
    assert REFERENCE["top"](x, torch.full((size,), k), index, size).tolist() == [place < k for place in expected]
    assert REFERENCE["top"](x, torch.tensor(k), None, 1).sum().item() == min(k, len(entries))


def test_of_equal_entries_the_first_comes_first() -> None:
    for x in (torch.zeros(100), torch.zeros(100, dtype=torch.bool), torch.zeros(100, dtype=torch.int64)):
        assert REFERENCE["rank"](x, None, 1).tolist() == list(range(100))
    assert REFERENCE["rank"](torch.tensor([-0.0, 0.0, math.nan]), None, 1).tolist() == [1, 2, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(value=st.floats(-1e3, 1e3, width=32), count=st.integers(1, 100))
@RUN
def test_a_group_of_equal_entries_has_no_spread_at_all(dtype: torch.dtype, value: float, count: int) -> None:
    x, index, size = flat([[value] * count], dtype)
    for where in (index, None):
        assert REFERENCE["mean"](x, where, size).item() == x[0].item()
        assert REFERENCE["std"](x, where, size).item() == 0


def test_mean_keeps_infinities() -> None:
    x = torch.tensor([1.0, math.inf, 2.0], dtype=torch.float64)
    assert REFERENCE["mean"](x, torch.tensor([0, 0, 1]), 2).tolist() == [math.inf, 2.0]


def test_nan_is_extremal() -> None:
    x, index = torch.tensor([1.0, math.nan, 2.0]), torch.tensor([0, 0, 1])
    assert REFERENCE["argmax"](x, index, 2).tolist() == [1, 2]
    assert REFERENCE["max"](x, index, 2).isnan().tolist() == [True, False]


@pytest.mark.parametrize("op", ["min", "max"])
def test_the_gradient_of_an_extremum_goes_to_the_first_entry(op: str) -> None:
    x = torch.tensor([1.0, 1.0, 1.0, 1.0], requires_grad=True)
    REFERENCE[op](x, torch.tensor([0, 0, 2, 2]), 3).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize("op", ["mean", "sum", "std", "var", "min", "max"])
@pytest.mark.parametrize("whole", [False, True])
@given(rows=ROWS)
@RUN
def test_gradients_are_finite(op: str, whole: bool, rows: Rows) -> None:
    x, index, size = flat(rows)
    x.requires_grad_()
    REFERENCE[op](x, None if whole else index, size).sum().backward()
    assert x.grad is not None and bool(x.grad.isfinite().all())


def test_std_of_equal_entries_has_gradient_zero() -> None:
    x = torch.tensor([0.1, 0.1, 0.1, 5.0], dtype=torch.float64, requires_grad=True)
    REFERENCE["std"](x, torch.tensor([0, 0, 0, 1]), 2).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [0, 0, 0, 0]


@given(first=ROWS, second=ROWS)
@RUN
def test_blocks_of_rows_give_what_all_rows_give(first: Rows, second: Rows) -> None:
    for op in (*REDUCTIONS, "next", "prev", "cumsum"):
        parts = []
        for rows in (first, second, first + second):
            x, index, size = flat(rows, torch.float32)
            args = (index, size) if TENSOR[op].kind == "reduction" else (index,)
            parts.append(REFERENCE[op](x, *args))
        assert torch.cat(parts[:2]).tolist() == parts[2].tolist(), op


@given(first=ROWS, second=ROWS)
@RUN
def test_totals_of_blocks_add_up(first: Rows, second: Rows) -> None:
    for op, combine in (("sum", sum), ("count", sum), ("size", sum), ("any", any), ("all", all)):
        one, other, both = (REFERENCE[op](flat(rows)[0], None, 1).item() for rows in (first, second, first + second))
        assert combine((one, other)) == pytest.approx(both, rel=1e-12, abs=1e-12)


# Scans


def discounted(row: list[float], decay: list[float]) -> list[float]:
    found: list[float] = []
    later = 0.0
    for x, d in zip(reversed(row), reversed(decay), strict=True):
        later = x + d * later
        found.append(later)
    return found[::-1]


def accumulated(row: list[float], decay: list[float]) -> list[float]:
    found: list[float] = []
    for x, d in zip(row, decay, strict=True):
        found.append(x + d * found[-1] if found else x)
    return found


def running(row: list[float]) -> list[float]:
    return [math.fsum(row[: place + 1]) for place in range(len(row))]


@given(rows=ROWS)
@RUN
def test_scans(rows: Rows) -> None:
    x, index, _ = flat(rows)
    close(REFERENCE["next"](x, index), [y for row in rows for y in [*row[1:], 0.0][: len(row)]])
    close(REFERENCE["prev"](x, index), [y for row in rows for y in [0.0, *row[:-1]][: len(row)]])
    close(REFERENCE["cumsum"](x, index), [y for row in rows for y in running(row)])


@pytest.mark.parametrize(("name", "by_hand"), [("discount", discounted), ("accumulate", accumulated)])
@given(rows=ROWS, decay=st.one_of(st.sampled_from([0.0, 1.0, 0.95]), st.floats(0, 1.2)), data=st.data())
@RUN
def test_scans_with_decay(name: str, by_hand: Any, rows: Rows, decay: float, data: st.DataObject) -> None:
    x, index, _ = flat(rows)
    expected = [y for row in rows for y in by_hand(row, [decay] * len(row))]
    close(REFERENCE[name](x, decay, index), expected)
    close(REFERENCE[name](x, torch.tensor(decay, dtype=x.dtype), index), expected)
    decays = [data.draw(st.lists(st.floats(0, 1), min_size=len(row), max_size=len(row))) for row in rows]
    along = REFERENCE[name](x, flat(decays)[0], index)
    close(along, [y for row, d in zip(rows, decays, strict=True) for y in by_hand(row, d)])


def test_accumulate_begins_anew_where_its_decay_is_0() -> None:
    x, index, _ = flat([[1.0, 2.0, 4.0, 8.0], [16.0, 32.0]])
    decay = torch.tensor([1.0, 0.5, 0.0, 0.5, 1.0, 0.0], dtype=x.dtype)
    assert REFERENCE["accumulate"](x, decay, index).tolist() == [1, 2.5, 4, 10, 16, 32]


def test_discount_of_a_long_row() -> None:
    rows = [
        torch.randn(length, generator=torch.Generator().manual_seed(length)).tolist() for length in (1000, 0, 1, 513)
    ]
    x, index, _ = flat(rows)
    close(REFERENCE["discount"](x, 0.99, index), [y for row in rows for y in discounted(row, [0.99] * len(row))])


def test_a_row_does_not_touch_another() -> None:
    x = torch.tensor([1.0, 2.0, math.inf, math.nan])
    index = torch.tensor([0, 0, 1, 1])
    assert REFERENCE["cumsum"](x.flip(0), index).tolist()[2:] == [2, 3]
    assert REFERENCE["discount"](x, 1.0, index).tolist()[:2] == [3, 2]
    assert REFERENCE["accumulate"](x.flip(0), 1.0, index).tolist()[2:] == [2, 3]
    assert REFERENCE["sum"](x, index, 2).tolist()[0] == 3


# Elementwise

INTS = [-7, -2, -1, 0, 1, 3, 5]
SIGNS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "minimum": min,
    "maximum": max,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "and": lambda a, b: bool(a and b),
    "or": lambda a, b: bool(a or b),
}


@pytest.mark.parametrize("op", SIGNS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.float64])
def test_signs_are_pythons(op: str, dtype: torch.dtype) -> None:
    pairs = [(a, b) for a in INTS for b in INTS if b or op not in ("floordiv", "mod")]
    left, right = (torch.tensor(side, dtype=dtype) for side in zip(*pairs, strict=True))
    found = REFERENCE[op](left, right)
    assert found.tolist() == [SIGNS[op](a, b) for a, b in pairs]
    assert found.dtype == (dtype if TENSOR[op].dtype == "same" else torch.bool)
    # A Python number on either side is the same as a tensor, and changes no dtype.
    assert REFERENCE[op](left, 3).tolist() == [SIGNS[op](a, 3) for a, _ in pairs]
    assert REFERENCE[op](3, right).tolist() == [SIGNS[op](3, b) for _, b in pairs]
    assert REFERENCE[op](3, right).dtype == found.dtype == REFERENCE[op](left, 3).dtype


def test_round_goes_to_the_even_number() -> None:
    assert REFERENCE["round"](torch.tensor([0.5, 1.5, 2.5, -0.5, 2.6])).tolist() == [0, 2, 2, 0, 3]


def test_clip_takes_tensors_and_numbers() -> None:
    x = torch.tensor([-2.0, 0.0, 2.0], dtype=torch.float64)
    bounds: list[Any] = [1.0, torch.tensor(1.0, dtype=x.dtype), torch.ones(3, dtype=x.dtype)]
    for low in bounds:
        for high in bounds:
            found = REFERENCE["clip"](x, -low, high)
            assert found.tolist() == [-1, 0, 1] and found.dtype == x.dtype
    assert REFERENCE["clip"](torch.tensor([1, 9]), 2, 5).tolist() == [2, 5]


def test_where_keeps_the_dtype_of_its_tensor() -> None:
    mask, x = torch.tensor([True, False]), torch.tensor([1.0, 2.0])
    assert REFERENCE["where"](mask, x, 0.5).dtype == torch.float32
    assert REFERENCE["where"](mask, x.double(), 0.5).dtype == torch.float64
    assert REFERENCE["where"](torch.tensor([2, 0]), 7.0, x).tolist() == [7, 2]
    assert REFERENCE["where"](True, x, 0.0).tolist() == [1, 2]


def test_ties_share_the_gradient_also_with_a_number() -> None:
    for beside in (1.0, torch.tensor(1.0)):
        x = torch.tensor([1.0, 0.0, 2.0], requires_grad=True)
        REFERENCE["maximum"](x, beside).sum().backward()
        assert x.grad is not None and x.grad.tolist() == [0.5, 0, 1]


def test_text() -> None:
    for same, expected in ((reference.texts_equal, [True, False]), (reference.texts_differ, [False, True])):
        assert same(["a", "b"], "a").tolist() == expected
        assert same("a", ["a", "b"]).tolist() == expected
        assert same(["a", "b"], ["a", "a"]).tolist() == expected
        assert same(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 5.0])).tolist() == expected
    assert reference.texts_equal(torch.tensor([1.0, 2.0]), "a").tolist() == [False, False]
    assert reference.texts_equal("a", "a").item() is True
    assert reference.texts_equal([], "a").dtype == torch.bool


# Gradients

AWAY = torch.tensor([0.7, -1.3, 2.3, 0.2, -0.6, 1.9], dtype=torch.float64)
"""No ties, no whole numbers, nothing at a bound."""
OTHER = torch.tensor([1.1, 0.4, -0.8, 1.7, 2.2, -1.5], dtype=torch.float64)
INDEX = torch.tensor([0, 0, 0, 2, 3, 3])
PAIRS = torch.tensor([1, 2, -1, 3, -4]), torch.tensor([0, 0, 1, 2, 4])
"""How far behind its first row the second one is, and the first row, of each pair."""
"""A row of three, an empty one, a single one, a pair."""

DIFFERENTIABLE: dict[str, Callable[[Callable[..., Tensor], Tensor, Tensor], Tensor]] = {
    **{op: lambda f, x, y: f(x, y) for op in ("add", "sub", "mul", "div", "mod", "minimum", "maximum")},
    "pow": lambda f, x, y: f(x.abs(), y) + f(x, 2) + f(2.0, y),
    **{
        op: lambda f, x, y: f(x)
        for op in ("neg", "exp", "cos", "expm1", "abs", "sign", "floor", "ceil", "round", "sigmoid")
    },
    **{op: lambda f, x, y: f(x) for op in ("logsigmoid", "tanh", "relu", "float")},
    **{op: lambda f, x, y: f(x.abs()) for op in ("log", "log1p", "sqrt")},
    "clip": lambda f, x, y: f(x, -1.0, 1.0) + f(x, -y.abs(), y.abs()),
    "where": lambda f, x, y: f(x > 0, x * y, y) + f(x > 0, x, 0.0),
    **{op: lambda f, x, y: f(x, INDEX, 4).sum() * f(x * y, None, 1) for op in ("mean", "sum", "std", "var")},
    **{op: lambda f, x, y: f(x, INDEX, 4).sum() * f(x * y, None, 1) for op in ("min", "max", "first", "last")},
    "quantile": lambda f, x, y: f(x, 0.3, INDEX, 4) * f(x, y.abs().sum() / 20, None, 1),
    **{op: lambda f, x, y: f(x, INDEX) * y for op in ("next", "prev", "cumsum")},
    "other": lambda f, x, y: f(x, *PAIRS) * y[:5],
    **{op: lambda f, x, y: f(x, 0.9, INDEX) + f(x, y[0], INDEX) + f(x, y, INDEX) for op in ("discount", "accumulate")},
}


def test_every_differentiable_operation_is_checked() -> None:
    rest = {op.name for op in TENSOR.values()} - DIFFERENTIABLE.keys()
    floats = {name for name in rest if TENSOR[name].dtype in ("same", "float")}
    assert floats == {"floordiv", "detach", "number", "running"}


@pytest.mark.parametrize("op", DIFFERENTIABLE)
def test_gradient(op: str) -> None:
    x, y = AWAY.clone().requires_grad_(), OTHER.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x, y: DIFFERENTIABLE[op](REFERENCE[op], x, y), (x, y))


@pytest.mark.parametrize("op", ["mean", "var", "std", "discount", "accumulate"])
def test_second_gradient(op: str) -> None:
    x, y = AWAY.clone().requires_grad_(), OTHER.clone().requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x, y: DIFFERENTIABLE[op](REFERENCE[op], x, y), (x, y))


def test_the_other_row_of_a_pair() -> None:
    assert REFERENCE["other"](AWAY, *PAIRS).tolist() == [-1.3, 2.3, 0.7, 1.9, 0.7]
    assert REFERENCE["other"](list("abcdef"), *PAIRS) == ["b", "c", "a", "f", "a"]


def test_detach_stops_the_gradient() -> None:
    x = AWAY.clone().requires_grad_()
    assert not REFERENCE["detach"](x).requires_grad


def test_a_quantile_between_entries_far_apart() -> None:
    """Their difference has no room in 32 bits, and what lies between them has."""
    assert REFERENCE["quantile"](torch.tensor([3e38, -3e38]), 0.75, None, 1).item() == pytest.approx(1.5e38)
    assert REFERENCE["quantile"](torch.tensor([0.1, 0.1]), 0.3, None, 1).item() == torch.tensor(0.1).item()
