"""How a plan's groups hold their models reaches the engines in the actors, and changes no number."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray.util")
pytest.importorskip("megatron.core")
pytest.importorskip("vllm")

import ray.cloudpickle
from actors import PROGRAMS, REPLAYED, run_local
from scheduled import compiled
from tiny import data_folder, shipped

from rlgraph.backends.process.session import Settings
from rlgraph.backends.ray.backend import RayBackend
from rlgraph.ir.plan import Holding

# Actors cannot import what pytest imports.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

CLOSE = 1e-5
SCHEDULE = """
pool learn = 2 devices
pool play = 1 devices
place actor.train on learn(engine=megatron, tp=2)
place ref on learn(engine=transformers, dp=2)
place actor.generate on play(engine=vllm)
"""
ROLES = ("actor", "train"), ("actor", "generate"), ("ref", "logprobs")
TOKENS = 24
"""Padded tokens: two or three rows, so that there are several micro-batches."""
CACHE = 1 << 20


def test_holdings(cluster: None, tmp_path: Path) -> None:
    folder = data_folder(tmp_path)
    local = run_local("grpo", folder, tmp_path)
    swaps, changes = PROGRAMS["grpo"]
    made = compiled(shipped("grpo", swaps), changes, SCHEDULE, folder)
    train, generate, ref = (made.plan.role(*role).name for role in ROLES)
    holdings = (
        Holding("actor", train, micro_tokens=TOKENS, recompute=True),
        Holding("actor", generate, kv_bytes=CACHE),
        Holding("ref", ref, micro_tokens=TOKENS),
    )
    settings = Settings(folder=folder, replay=local.recording)
    backend = RayBackend(made.program, replace(made.plan, holdings=holdings), settings, seconds=120)
    try:
        for found, expected in zip(backend.steps(REPLAYED), local.steps[:REPLAYED], strict=True):
            assert found.metrics == pytest.approx(expected.metrics, rel=0, abs=CLOSE)
        assert asked(backend, train, trains) == [(TOKENS, "full")] * 2
        assert asked(backend, ref, blocks) == [TOKENS] * 2
        assert asked(backend, generate, cache) == [CACHE]
    finally:
        backend.close()


def asked(backend: RayBackend, group: str, question: Callable[[Any], Any]) -> list[Any]:
    """The answers of a group's ranks."""
    handles = [handle for (name, _), handle in backend.processes.handles.items() if name == group]
    return list(ray.get([handle.__ray_call__.remote(question) for handle in handles], timeout=120))


def trains(worker: Any) -> tuple[int, str]:
    engine = worker.session.models["actor"].engine
    return engine._block_tokens, engine.model.config.recompute_granularity


def blocks(worker: Any) -> int:
    return worker.session.models["ref"].engine._block_tokens


def cache(worker: Any) -> int:
    """Bytes of the tensors that vLLM has for keys and values."""
    runner = worker.session.models["actor"].engine._engine.model_executor.driver_worker.worker.model_runner
    storages = (tensor.untyped_storage() for tensor in runner.kv_caches)
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
