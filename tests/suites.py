"""Two suites: `make test` has what a change can break, in minutes; `make test-long` has all, hours before a release.

A test that is slow by nature is marked with `@pytest.mark.long`. Of a product of parameters `make test` has a few cases
that differ in kind, and `make test-long` has the others, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def few(values: Iterable[Any], *kept: Any) -> list[Any]:
    """Parameters of which `make test` has those in `kept`, by the value or by its name (the first of a tuple); the
    others are long. Raises AssertionError for one that is not among them."""
    every = list(values)
    names = [value[0] if isinstance(value, tuple) else value for value in every]
    for one in kept:
        assert one in every or one in names, f"{one!r} is none of the values"
    return [
        value if value in kept or name in kept else pytest.param(*_as_arguments(value), marks=pytest.mark.long)
        for value, name in zip(every, names, strict=True)
    ]


def _as_arguments(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
