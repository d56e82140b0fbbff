"""What ends a wait for answers."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("ray.util")

import ray

from rlgraph.backends.ray.actors import Actors
from rlgraph.backends.ray.failures import CallContext
from tests.waits import NEVER

ANSWER, BESIDE = object(), object()


class Broken(Exception):
    """What has failed."""


def test_a_failure_of_what_goes_on_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def get(references: list[object], timeout: float | None = None) -> list[Any]:
        if BESIDE in references:
            raise Broken
        if ANSWER in references:
            pytest.fail("it waits for an answer that nobody will give")
        return []

    monkeypatch.setattr(ray, "wait", lambda some, num_returns=1, timeout=None: (list(some), []))
    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(Actors, "_first", lambda self, waiting, request, error: error)
    actors: Any = Actors({}, {}, NEVER, lambda: None, "", lambda spec: None)
    with pytest.raises(Broken):
        actors.get([ANSWER], CallContext((("learn", 0),), "`train` of `actor`"), [BESIDE])
