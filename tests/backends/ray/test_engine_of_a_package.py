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
from tiny import data_folder, shipped

from tests.enginespec.packages import installed

ROOT = Path(__file__).parents[3]
METRICS = ("reward", "length", "kl")
SCHEDULE = """schedule grpo
pool learn = 1 devices
pool play = 1 devices
place actor.train, ref on learn(engine=ENGINE)
place actor.generate on play(engine=ENGINE)
"""


def run(engine: str, folder: Path, packages: Path) -> list[dict[str, float]]:
    """The metrics of two steps."""
    swaps, changes = PROGRAMS["grpo"]
    (folder / "grpo.rlf").write_text(shipped("grpo", swaps))
    (folder / f"{engine}.rls").write_text(SCHEDULE.replace("ENGINE", engine))
    command = [sys.executable, "-m", "rlgraph", "run", "grpo.rlf", f"{engine}.rls", "--backend", "ray"]
    command += ["--steps", "2", "--out", engine]
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
    found = [json.loads(line) for line in (folder / engine / "metrics.jsonl").read_text("utf-8").splitlines()]
    return [step for step in found if "reward" in step]


def test_grpo_with_an_engine_of_a_package(tmp_path: Path) -> None:
    folder, packages = data_folder(tmp_path), installed(tmp_path / "packages")
    theirs, ours = run("plain", folder, packages), run("transformers", folder, packages)
    assert len(theirs) == len(ours) == 2
    for one, other in zip(theirs, ours, strict=True):
        assert {name: one[name] for name in METRICS} == pytest.approx({name: other[name] for name in METRICS}, abs=1e-4)
    assert theirs[1]["kl"] > 0, "it learned nothing"
