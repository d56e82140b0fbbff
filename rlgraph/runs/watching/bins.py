"""Thins out long curves: each bin of neighbouring steps has its least number, its mean and its greatest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

BINS = 400
"""The most points of a curve."""


def bin_starts(count: int, bins: int = BINS) -> np.ndarray:
    """Return where each bin of so many numbers starts, ascending, int64; a bin for each number if they are few."""
    if count <= bins:
        return np.arange(count)
    return np.linspace(0, count, bins, endpoint=False).astype(np.int64)


def binned_curve(values: Sequence[float], starts: np.ndarray) -> dict[str, list[float | None]]:
    """Return `mean`, `min` and `max` of each bin over its finite numbers; None where it has none."""
    numbers = np.asarray(values, dtype=np.float64)
    finite = np.isfinite(numbers)
    counts = np.add.reduceat(finite.astype(np.int64), starts)
    empty = counts == 0
    means = np.add.reduceat(np.where(finite, numbers, 0.0), starts) / np.maximum(counts, 1)
    least = np.minimum.reduceat(np.where(finite, numbers, np.inf), starts)
    most = np.maximum.reduceat(np.where(finite, numbers, -np.inf), starts)
    return {"mean": round_numbers(means, empty), "min": round_numbers(least, empty), "max": round_numbers(most, empty)}


def round_numbers(numbers: Any, empty: Any) -> list[float | None]:
    """Return numbers with six digits, and None where they are empty."""
    return [None if nothing else float(f"{number:.6g}") for number, nothing in zip(numbers, empty, strict=True)]
