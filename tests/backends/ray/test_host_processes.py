"""Several processes of the host as actors: metrics are those of one process, also after a run goes on."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("ray.util")

import ray
import ray.cloudpickle
from actors import PROGRAMS, on_each_rank
from scheduled import compiled
from tiny import compile_text, data_folder, shipped

from rlgraph.backends.local.backend import LocalBackend
from rlgraph.backends.ray.backend import RayBackend
from rlgraph.backends.worker.session import Settings
from rlgraph.ir.plan import HOST

# Actors cannot import what pytest imports.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

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


def watch_arrivals(worker: Any) -> None:
    """Have a process note of the columns that come to it how many there are, and which could be written into."""
    plain, worker.seen = worker.store_arrived, []

    def arrays(value: Any) -> list[np.ndarray]:
        if isinstance(value, np.ndarray):
            return [value]
        inner = vars(value).values() if hasattr(value, "__dict__") else value
        return [one for part in inner for one in arrays(part)] if isinstance(value, tuple) or inner is not value else []

    def store(order: Any, arrived: Any) -> Any:
        for wire in arrived:
            for _, _, sent in wire:
                worker.seen += [(array.flags.writeable, array.flags.owndata) for array in arrays(sent[1])]
        return plain(order, arrived)

    worker.store_arrived = store


def seen(worker: Any) -> list[tuple[bool, bool]]:
    del worker.store_arrived
    return list(worker.seen)


def weights(worker: Any, model: str) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in worker.session.models[model].engine.state().items()}


@pytest.mark.parametrize("count", [2, 4])
def test_their_numbers_and_weights_are_those_of_one(count: int, kept: None, tmp_path: Path) -> None:
    """And columns come to them where Ray has them: views of its memory, which nobody may write into."""
    folder = data_folder(tmp_path)
    swaps, changes = PROGRAMS["ppo"]
    text = shipped("ppo", swaps)
    local = LocalBackend(compile_text(text, changes), Settings(folder=folder))
    expected = [dict(step.metrics) for step in local.run_steps(2)]
    trained = {model: dict(local.session.models[model].engine.state()) for model in ("actor", "critic")}
    local.close()
    lines = f"pool host = {count} cpus\npool all = 1 devices\n"
    lines += "place actor, critic, ref, reward on all(engine=transformers)\n"
    made = compiled(text, changes, lines, folder)
    backend = RayBackend(made.program, made.plan, Settings(folder=folder), seconds=120)

    try:
        on_each_rank(backend, HOST, watch_arrivals)
        for step, metrics in zip(backend.run_steps(2), expected, strict=True):
            assert {name: step.metrics[name] for name in metrics} == pytest.approx(metrics, rel=1e-5, abs=1e-7)
        came = on_each_rank(backend, HOST, seen)
        assert len(came) == count and all(came)
        assert not any(writeable or owned for of_process in came for writeable, owned in of_process)
        for model, state in trained.items():
            [found] = on_each_rank(backend, made.plan.owner(model).name, weights, model)
            for name, value in state.items():
                assert torch.allclose(found[name], value, rtol=1e-5, atol=1e-6), name
    finally:
        backend.close()
