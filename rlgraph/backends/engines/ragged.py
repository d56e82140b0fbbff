"""Indexes rows of different lengths that lie one behind the other."""

from __future__ import annotations

import numpy as np


def ragged_positions(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the places starts[i], starts[i] + 1, ... (lengths[i] of them) for each i in turn, int64 [sum(lengths)]."""
    offset = starts - (lengths.cumsum() - lengths)
    places: np.ndarray = np.repeat(offset, lengths) + np.arange(int(lengths.sum()))
    return places
