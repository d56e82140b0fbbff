"""A search whose time does not depend on the machine."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from rlgraph.pipelines import exact, fuse
from tests.waits import NEVER


def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three seconds of a search a 200th goes by with each look at the clock, whatever the machine does meanwhile; a
    solver has as long as it needs for what it proves."""
    looks, plain = itertools.count(), exact.by_constraints

    def patiently(*given: Any) -> Any:
        *what, _ = given
        return plain(*what, NEVER)

    monkeypatch.setattr(fuse, "time", SimpleNamespace(monotonic=lambda: 3.0 / 200 * next(looks)))
    monkeypatch.setattr(exact, "by_constraints", patiently)
