"""Writes numbers and texts into a text."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

WIDEST_FORMAT = 10_000
"""The most characters that a format may ask for: a row has room for fewer tokens."""


def format_entry(value: Any, how: str) -> str:
    """Return a number, a truth value or a text as it stands in a text. how: a format as in Python; empty: a number with
    the fewest digits that tell it from others, and `true` or `false`.

    Raises ValueError where the format does not fit, and TypeError for what is neither.
    """
    if isinstance(value, str):
        return _formatted(value, how)
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):
        return _formatted("true" if value else "false", how)
    if not isinstance(value, Real):
        raise TypeError(type(value).__name__)
    if how:
        return _formatted(int(value) if isinstance(value, Integral) else float(value), how)
    return str(value)


def _formatted(value: str | int | float, how: str) -> str:
    width = max((int(part) for part in _digits(how)), default=0)
    if width > WIDEST_FORMAT:
        raise ValueError(f"`{how}` asks for {width:,} characters")
    try:
        return format(value, how)
    except ValueError:
        # Python's words for it differ from release to release.
        what = "a text" if isinstance(value, str) else "a whole number" if isinstance(value, int) else "a number"
        raise ValueError(f"`{how}` is no format for {what}") from None


def _digits(how: str) -> list[str]:
    """Return the whole numbers in a format."""
    return "".join(sign if sign.isdecimal() and sign.isascii() else " " for sign in how).split()
