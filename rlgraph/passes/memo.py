"""Keeps results that are asked for again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Key = TypeVar("Key")
Result = TypeVar("Result")


def get_or_compute(results: dict[Key, Result], key: Key, compute: Callable[[], Result]) -> Result:
    """Return the result of a key, which is computed and kept where it is not known yet."""
    try:
        # Most are there: a search asks half a million times.
        return results[key]
    except KeyError:
        pass
    results[key] = result = compute()
    return result
