"""Indexes rows of different lengths that lie one behind the other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np


class Entries(ABC):
    """Entries of a column that are no tensor and no list."""

    @abstractmethod
    def pick(self, places: np.ndarray) -> Any:
        """Return some of them; `places` is int64."""

    @abstractmethod
    def concat(self, others: Sequence[Any]) -> Any:
        """Return these entries and the others, one after the other."""


def ragged_positions(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the places starts[i], starts[i] + 1, ... (lengths[i] of them) for each i in turn, int64 [sum(lengths)]."""
    offset = starts - (lengths.cumsum() - lengths)
    places: np.ndarray = np.repeat(offset, lengths) + np.arange(int(lengths.sum()))
    return places
