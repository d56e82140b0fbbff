"""GRPO with an engine that is no part of rlgraph: it is found because its package is installed, and its numbers are
those of the engine that is built in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray.util")

from actors import PROGRAMS
from tiny import compile_text, data_folder, shipped

from rlgraph.backends.local.backend import LocalBackend
from rlgraph.backends.process.session import Settings
from tests.enginespec.packages import installed

ROOT = Path(__file__).parents[3]
METRICS = ("reward", "length", "kl")
SCHEDULE = """schedule grpo
pool learn = 1 devices
pool play = 1 devices
place actor.train, ref on learn(engine=plain)
place actor.generate on play(engine=plain)
"""


def theirs(folder: Path, packages: Path) -> list[dict[str, float]]:
    """The metrics of two steps with the engine `plain`, in processes."""
    swaps, changes = PROGRAMS["grpo"]
    (folder / "grpo.rlf").write_text(shipped("grpo", swaps))
    (folder / "plain.rls").write_text(SCHEDULE)
    command = [sys.executable, "-m", "rlgraph", "run", "grpo.rlf", "plain.rls", "--backend", "ray"]
    command += ["--steps", "2", "--out", "out"]
    for name, value in changes.items():
        command += ["--set", f"{name}={value}"]
    paths = os.pathsep.join([str(packages), str(ROOT)])
    ran = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    found = [json.loads(line) for line in (folder / "out" / "metrics.jsonl").read_text("utf-8").splitlines()]
    return [step for step in found if "reward" in step]


def ours(folder: Path) -> list[dict[str, float]]:
    """The same with the engine that is built in, in this process."""
    swaps, changes = PROGRAMS["grpo"]
    backend = LocalBackend(compile_text(shipped("grpo", swaps), changes), Settings(folder=folder))
    try:
        return [step.metrics for step in backend.steps(2)]
    finally:
        backend.close()


def test_grpo_with_an_engine_of_a_package(tmp_path: Path) -> None:
    folder = data_folder(tmp_path)
    found, expected = theirs(folder, installed(tmp_path / "packages")), ours(folder)
    assert len(found) == len(expected) == 2
    for one, other in zip(found, expected, strict=True):
        assert {name: one[name] for name in METRICS} == pytest.approx({name: other[name] for name in METRICS}, abs=1e-4)
    assert found[1]["kl"] > 0, "it learned nothing"
