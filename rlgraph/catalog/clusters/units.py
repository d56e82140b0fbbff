"""Parses and formats quantities with units: `80GB`, `3.35TB/s`, `200Gb/s`, `5us`, `312TFLOP/s`. `b` is a bit, `B` a
byte."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Literal

QuantityKind = Literal["bytes", "bandwidth", "rate", "time", "price", "share"]

_DECIMAL = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_BINARY_BYTES = {f"{prefix}B": factor for prefix, factor in _BINARY.items()}
_BYTES = {f"{prefix}B": factor for prefix, factor in _DECIMAL.items()} | _BINARY_BYTES
_BANDWIDTH = {f"{unit}/s": factor for unit, factor in _BYTES.items()}
_BITS = {f"{prefix}b/s": factor / 8 for prefix, factor in _DECIMAL.items()}

UNITS: Mapping[QuantityKind, Mapping[str, float]] = {
    "bytes": _BYTES,
    "bandwidth": _BANDWIDTH | _BITS,
    "rate": {f"{prefix}FLOP/s": factor for prefix, factor in _DECIMAL.items()},
    "time": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9},
    "price": {"": 1.0, "$/h": 1.0},
    "share": {"": 1.0, "%": 0.01},
}
"""For each kind, the factor of each unit to the base unit: bytes, bytes per second, FLOP/s, seconds, US dollars per
hour, the whole."""

BASE: Mapping[QuantityKind, str] = {
    "bytes": "B",
    "bandwidth": "B/s",
    "rate": "FLOP/s",
    "time": "s",
    "price": "",
    "share": "",
}

EXAMPLES: Mapping[QuantityKind, str] = {
    "bytes": "a size such as `80GB` or `24GiB`",
    "bandwidth": "a bandwidth such as `25GB/s` (bytes) or `200Gb/s` (bits)",
    "rate": "a rate such as `312TFLOP/s`",
    "time": "a time such as `5us` or `2ms`",
    "price": "US dollars an hour such as `2.69`",
    "share": "a share of at most 1 such as `0.8` or `80%`",
}

_SHOWN: Mapping[QuantityKind, tuple[str, ...]] = {
    "bytes": ("TB", "GB", "MB", "kB", "B"),
    "bandwidth": ("TB/s", "GB/s", "MB/s", "kB/s", "B/s"),
    "rate": ("PFLOP/s", "TFLOP/s", "GFLOP/s", "MFLOP/s", "FLOP/s"),
    "time": ("s", "ms", "us", "ns"),
    "price": ("",),
    "share": ("",),
}
"""The units that values are shown in, the largest first."""

_QUANTITY = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*", re.DOTALL)


def parse_quantity(text: str, kind: QuantityKind) -> float:
    """Parse a quantity, and return its value in the base unit. Raises ValueError, which says what was expected, for a
    wrong or missing unit, and for what is no number, negative or not finite."""
    match = _QUANTITY.fullmatch(text)
    if not match:
        raise ValueError(f"`{text}` is no number with a unit: expected {EXAMPLES[kind]}")
    number, unit = match.groups()
    if unit not in UNITS[kind]:
        problem = f"`{unit}` is the wrong unit" if unit else f"`{text}` has no unit"
        raise ValueError(f"{problem}: expected {EXAMPLES[kind]}")
    factor = UNITS[kind][unit]
    # 5 / 1e6 is the float 5e-6; 5 * 1e-6 is the one below it.
    value = float(number) * factor if factor >= 1 else float(number) / round(1 / factor)
    if value < 0:
        raise ValueError(f"`{text}` is negative: expected {EXAMPLES[kind]}")
    if kind == "share" and value > 1:
        raise ValueError(f"`{text}` is more than all: expected {EXAMPLES[kind]}")
    if not math.isfinite(value):
        raise ValueError(f"`{text}` is too large: expected {EXAMPLES[kind]}")
    return value


def format_quantity(value: float, kind: QuantityKind) -> str:
    """Format a quantity for people: with four digits, in the unit that suits."""
    unit = _unit(value, kind)
    scaled = value / UNITS[kind][unit]
    short = f"{scaled:.4g}"
    return f"{scaled:.0f}{unit}" if "e+" in short else f"{short}{unit}"


def format_exact(value: float, kind: QuantityKind) -> str:
    """Format a quantity with as few digits as possible such that `parse_quantity` gives the very same value."""
    units = (*_SHOWN[kind], *_BINARY_BYTES) if kind == "bytes" else _SHOWN[kind]
    numbers = [(value / UNITS[kind][unit], unit) for unit in units]
    texts = [f"{number:.12g}{unit}" for number, unit in numbers if math.isfinite(number)]
    same = [text for text in texts if "e" not in text and parse_quantity(text, kind) == value]
    return min(same, key=lambda text: sum(map(str.isdigit, text)), default=f"{value!r}{BASE[kind]}")


def _unit(value: float, kind: QuantityKind) -> str:
    units = _SHOWN[kind]
    return next((unit for unit in units if value >= UNITS[kind][unit]), units[-1])


def format_seconds(seconds: float) -> str:
    """Format seconds with three significant digits: `18.7 s`, `430 ms`."""
    if seconds >= 100:
        return f"{seconds:,.0f} s"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms" if seconds else "0 s"
