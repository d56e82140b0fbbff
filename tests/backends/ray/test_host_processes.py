"""Several processes of the host as actors: metrics are those of one process, also after a run goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray.util")

from actors import PROGRAMS
from scheduled import compiled
from tiny import compile_text, data_folder, shipped

from rlgraph.backends.local.backend import LocalBackend
from rlgraph.backends.worker.session import Settings

LINES = "pool host = 2 cpus\npool all = 1 devices\nplace actor, ref on all(engine=transformers)\n"


def metrics(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: row[name] for name in row if not name.startswith(("seconds", "sync/"))} for row in rows]


def test_several_processes_of_the_host_on_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = data_folder(tmp_path)
    monkeypatch.chdir(folder)
    swaps, changes = PROGRAMS["grpo"]
    text = shipped("grpo", swaps)
    local = LocalBackend(compile_text(text, changes), Settings(folder=folder))
    steps = [dict(step.metrics) for step in local.run_steps(3)]
    local.close()
    made = compiled(text, changes, LINES, folder)
    options: dict[str, Any] = {"threads": 1, "progress": False, "backend": "ray"}
    made.run(2, out="run", save_every=1, **options)
    made.run(3, resume="run", **options)
    found = metrics(folder / "run")
    assert len(found) == 3
    for row, expected in zip(found, steps, strict=True):
        assert {name: row[name] for name in expected} == pytest.approx(expected, rel=1e-5, abs=1e-7)
