"""GRPO with an engine that is no part of rlgraph: it is found because its package is installed, and its numbers are
those of the engine that is built in."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("ray.util")

from actors import PROGRAMS
from scheduled import compiled
from tiny import data_folder, shipped

from rlgraph.backends.local.backend import LocalBackend
from rlgraph.backends.ray.backend import RayBackend
from rlgraph.backends.worker.session import Settings

METRICS = ("reward", "length", "kl")
SCHEDULE = """pool learn = 1 devices
pool play = 1 devices
place actor.train, ref on learn(engine=plain)
place actor.generate on play(engine=plain)
"""


def test_grpo_with_an_engine_of_a_package(engines: None, tmp_path: Path) -> None:
    swaps, changes = PROGRAMS["grpo"]
    settings = Settings(folder=data_folder(tmp_path))
    made = compiled(shipped("grpo", swaps), changes, SCHEDULE, tmp_path)
    with closing(RayBackend(made.program, made.plan, settings, seconds=120)) as backend:
        found = [step.metrics for step in backend.run_steps(2)]
    with closing(LocalBackend(made.program, settings)) as local:
        expected = [step.metrics for step in local.run_steps(2)]
    for one, other in zip(found, expected, strict=True):
        assert {name: one[name] for name in METRICS} == pytest.approx({name: other[name] for name in METRICS}, abs=1e-4)
    assert found[1]["kl"] > 0, "it learned nothing"
