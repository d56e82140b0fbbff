"""Fits the cost model's constants to measured seconds: the result has the least error.

With the shares of the peak and of the bandwidth taken as their inverses, the model's seconds are nearly linear in its
constants. So the slopes at some constants give a linear least-squares problem, whose solution is a better point to take
slopes at, and so on (Gauss and Newton).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

ROUNDS = 8
STEP = 1e-3
"""The relative step of a constant over which a slope is taken."""
SMALL = 1e-12
"""The least step of a constant over which a slope is taken."""

Model = Callable[[np.ndarray], np.ndarray]
"""A function from constants, [K], to the seconds of each piece of work, [N]."""


def fit_constants(
    model: Model, seconds: Sequence[float] | np.ndarray, start: np.ndarray, least: np.ndarray
) -> np.ndarray:
    """Return the constants, [K], none of which is less than its least, with which the relative errors have the least
    squares.

    seconds: [N], measured. start: [K], above 0.
    """
    measured = np.asarray(seconds)
    constants, best, error = start, start, np.inf
    for _ in range(ROUNDS):
        slopes = _slopes(model, constants) / measured[:, None]
        missing = 1 - model(constants) / measured + slopes @ (constants - least)
        if not (np.isfinite(slopes).all() and np.isfinite(missing).all()):
            # The last step led to values that are not finite: the best one before is kept.
            break
        constants = least + nonnegative_least_squares(slopes, missing)
        current_error = float(np.square(model(constants) / measured - 1).sum())
        if current_error < error:
            best, error = constants, current_error
    return best


def _slopes(model: Model, at: np.ndarray) -> np.ndarray:
    """Return the slopes of the seconds, [N, K], over the constants."""
    here, columns = model(at), []
    for place in range(at.shape[0]):
        ahead = at.copy()
        ahead[place] += max(STEP * at[place], SMALL)
        columns.append((model(ahead) - here) / (ahead[place] - at[place]))
    return np.stack(columns, 1)


def nonnegative_least_squares(matrix: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return x >= 0, [K], with the least |matrix x - target|, matrix [N, K], target [N]: the active-set method of
    Lawson and Hanson (Solving Least Squares Problems, 1974, chapter 23). A column of zeros gets 0."""
    sizes = np.linalg.norm(matrix, axis=0)
    scaled = matrix / np.where(sizes > 0, sizes, 1.0)
    count = matrix.shape[1]
    free, values = np.zeros(count, dtype=bool), np.zeros(count)
    for _ in range(10 * count):
        pull = scaled.T @ (target - scaled @ values)
        pull[free | (sizes == 0)] = -np.inf
        if pull.max(initial=-np.inf) <= 1e-9:
            break
        free[pull.argmax()] = True
        values = _feasible(scaled, target, free, values)
    solution: np.ndarray = values / np.where(sizes > 0, sizes, 1.0)
    return solution


def _feasible(matrix: np.ndarray, target: np.ndarray, free: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the solution in the free places; those that would become negative on the way to it are freed no longer."""
    while True:
        wanted = np.zeros_like(values)
        wanted[free] = np.linalg.lstsq(matrix[:, free], target, rcond=None)[0]
        below = free & (wanted <= 0)
        if not below.any():
            return wanted
        way = float(np.min(values[below] / (values[below] - wanted[below]), initial=1.0))
        values = values + way * (wanted - values)
        free &= values > 1e-15
        values[~free] = 0.0
