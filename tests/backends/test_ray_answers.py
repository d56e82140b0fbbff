"""What ends a wait for answers."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

pytest.importorskip("ray.util")

import ray

from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.ray.actors import Actors
from rlgraph.backends.ray.failures import CallContext, engine_refused_error
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


def test_what_an_engine_advises_comes_back_from_its_process() -> None:
    # As Ray carries it: pickled.
    error = pickle.loads(pickle.dumps(EngineError("the logits are not finite", "lower `lr`")))
    told = engine_refused_error(error, CallContext((("learn", 0),), "`generate` of `actor`"))
    assert str(told).strip() == "error[E0731]: `generate` of `actor`: the logits are not finite\nhelp: lower `lr`"
