"""Quantities with units, read and shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlgraph.catalog.clusters.units import (
    BASE,
    EXAMPLES,
    UNITS,
    QuantityKind,
    format_exact,
    format_quantity,
    parse_quantity,
)

KINDS: tuple[QuantityKind, ...] = tuple(UNITS)
MOST = dict.fromkeys(KINDS, 1e18) | {"share": 1.0}
KIND_AND_VALUE = st.sampled_from(KINDS).flatmap(
    lambda kind: st.tuples(st.just(kind), st.floats(min_value=0, max_value=MOST[kind], allow_subnormal=False))
)


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("80GB", "bytes", 80e9),
        ("80GiB", "bytes", 80 * 2**30),
        ("81559 MiB", "bytes", 81559 * 2**20),
        ("3.35TB/s", "bandwidth", 3.35e12),
        ("200Gb/s", "bandwidth", 25e9),
        (" 8 b/s ", "bandwidth", 1),
        ("312TFLOP/s", "rate", 312e12),
        ("1.5e12FLOP/s", "rate", 1.5e12),
        ("5us", "time", 5e-6),
        ("2.69", "price", 2.69),
        ("2.69$/h", "price", 2.69),
        ("0ms", "time", 0),
    ],
)
def test_a_quantity_is_read(text: str, kind: QuantityKind, value: float) -> None:
    assert parse_quantity(text, kind) == value


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        (
            "200Gb",
            "bandwidth",
            "`Gb` is the wrong unit: expected a bandwidth such as `25GB/s` (bytes) or `200Gb/s` (bits)",
        ),
        ("200", "bandwidth", "`200` has no unit"),
        ("80Gb", "bytes", "`Gb` is the wrong unit: expected a size"),
        ("80GB/s", "bytes", "`GB/s` is the wrong unit"),
        ("312TFLOPS", "rate", "`TFLOPS` is the wrong unit: expected a rate such as `312TFLOP/s`"),
        ("5", "time", "`5` has no unit: expected a time"),
        ("-5us", "time", "`-5us` is negative"),
        ("fast", "bandwidth", "`fast` is no number with a unit"),
        ("", "bytes", "`` is no number"),
        ("1.2.3GB", "bytes", "is the wrong unit"),
        ("nanGB", "bytes", "`nanGB` is no number"),
        ("1e999GB", "bytes", "`1e999GB` is too large"),
        ("3€", "price", "expected US dollars an hour"),
    ],
)
def test_what_is_wrong_says_what_was_expected(text: str, kind: QuantityKind, said: str) -> None:
    with pytest.raises(ValueError) as error:
        parse_quantity(text, kind)
    assert said in str(error.value)
    assert EXAMPLES[kind] in str(error.value)


@given(KIND_AND_VALUE)
def test_what_is_written_exactly_is_read_as_the_same(of: tuple[QuantityKind, float]) -> None:
    kind, value = of
    assert parse_quantity(format_exact(value, kind), kind) == value


@given(KIND_AND_VALUE)
def test_what_is_shown_has_four_digits(of: tuple[QuantityKind, float]) -> None:
    kind, value = of
    assert parse_quantity(format_quantity(value, kind), kind) == pytest.approx(value, rel=5.1e-4)


def test_units_that_suit() -> None:
    assert format_quantity(85_899_345_920, "bytes") == "85.9GB"
    assert format_quantity(25e9, "bandwidth") == "25GB/s"
    assert format_quantity(3.35e12, "bandwidth") == "3.35TB/s"
    assert format_quantity(2.25e15, "rate") == "2.25PFLOP/s"
    assert format_quantity(14e-6, "time") == "14us"
    assert format_exact(64 * 2**30, "bytes") == "64GiB"
    assert format_exact(1e308, "time") == "1e+308s"  # In milliseconds it is more than a float holds.
    assert all(UNITS[kind][unit] == 1 for kind, unit in BASE.items())
