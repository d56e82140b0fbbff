"""The processes of a plan as objects in this one: what is computed are the very numbers of the local backend."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from scheduled import apart, compiled, together
from test_exactness import PROGRAMS
from tiny import compile_text, data_folder, shipped

from rlgraph.backends.local.run import LocalBackend, Settings, Step
from rlgraph.backends.ray.backend import RayBackend
from rlgraph.ir.graph import Program

STEPS = 3

Weights = dict[str, dict[str, torch.Tensor]]
"""Of each model, at the end."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_folder(tmp_path_factory.mktemp("debug"))


@cache
def local(name: str, folder: Path, block: int | None) -> tuple[list[Step], Weights]:
    swaps, changes = PROGRAMS[name]
    backend = LocalBackend(compile_text(shipped(name, swaps), changes), Settings(folder=folder, block=block))
    try:
        steps = list(backend.steps(STEPS))
        return steps, {model: state.engine.state() for model, state in backend.session.models.items()}
    finally:
        backend.close()


def debugged(
    name: str, folder: Path, block: int | None, schedule: Callable[[Program], str]
) -> tuple[list[Step], Weights]:
    """The weights are those of their owners."""
    swaps, changes = PROGRAMS[name]
    text = shipped(name, swaps)
    made = compiled(text, changes, schedule(compile_text(text, changes)), folder)
    backend = RayBackend(made.program, made.plan, Settings(folder=folder, block=block), debug=True)
    try:
        steps = list(backend.steps(STEPS))
        sessions = {group: worker.session for (group, _), worker in backend.processes.workers.items()}
        return steps, {model: dict(sessions[group].models[model].engine.tensors()) for model, group in made.plan.owners}
    finally:
        backend.close()


CASES = [(apart, None), (apart, 1), (apart, 2), (apart, 3), (together, None), (together, 2)]


@pytest.mark.parametrize(("schedule", "block"), CASES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_algorithm(folder: Path, name: str, schedule: Callable[[Program], str], block: int | None) -> None:
    steps, weights = local(name, folder, block)
    found, others = debugged(name, folder, block, schedule)
    assert [step.metrics for step in found] == [step.metrics for step in steps]
    for model, tensors in others.items():
        for key, tensor in tensors.items():
            assert torch.equal(tensor, weights[model][key]), (model, key)
