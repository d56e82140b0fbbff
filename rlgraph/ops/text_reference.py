"""Reference implementations of the operations on texts, as those of numbers are in `reference`."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import torch
from torch import Tensor

_NUMBER = re.compile(
    r"(?:(?<![\w.)])[-+])?(?:\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?", re.ASCII
)
"""A number, where commas may part thousands. Behind a letter, a digit or a bracket a minus is no sign: `3-2`."""


def contains(texts: Sequence[str], part: str) -> Tensor:
    """Return which texts have `part` in them: bool [rows]."""
    return torch.tensor([part in text for text in texts], dtype=torch.bool)


def matches(texts: Sequence[str], pattern: str) -> Tensor:
    """Return in which texts a regular expression is: bool [rows]."""
    compiled = re.compile(pattern)
    return torch.tensor([compiled.search(text) is not None for text in texts], dtype=torch.bool)


def last_number(texts: Sequence[str]) -> Tensor:
    """Return the last number in each text, 0 where there is none: float64 [rows]."""
    return torch.tensor([_last_number(text) or 0.0 for text in texts], dtype=torch.float64)


def has_number(texts: Sequence[str]) -> Tensor:
    """Return which texts have a number in them: bool [rows]."""
    return torch.tensor([_last_number(text) is not None for text in texts], dtype=torch.bool)


def _last_number(text: str) -> float | None:
    """Return the last number in a text; None where there is none, or it is too large for a float."""
    written = _NUMBER.findall(text)
    value = float(written[-1].replace(",", "")) if written else math.nan
    return value if math.isfinite(value) else None
