"""Updates for which no row is left: they are left out, and reported."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import torch
from scheduled import compiled
from test_sim import Fires
from tiny import Run, compile_text, data_folder, weights

from rlgraph.backends.ray.backend import RayBackend
from rlgraph.backends.worker.session import Settings

WHOLE = """train actor(lr=linear(0.02, warmup=2, steps=4), eps=0.01, weight_decay=0.5):
        minimize mean(-actor.logprobs(rollout))"""
PARTS = """minibatch prompts(parts=2):
        train actor(lr=0.02, eps=0.01, weight_decay=0.5):
            minimize mean(-actor.logprobs(rollout))"""
METRIC = "actor.skipped_empty"


def text(train: str, last: int) -> str:
    """A program whose second batch of five has places from 5 on, and the first one those below."""
    return f"""algorithm empty
model actor  = causal_lm({weights()}, dtype="float64")
data prompts = jsonl("prompts.jsonl", batch=5, shuffle=false)
step:
    rollout = actor.generate(prompts, n=2, max_tokens=5)
    keep rollout where prompts.place < {last}
    {train}
    report rows = size(rollout.length)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_folder(tmp_path_factory.mktemp("empty"))


@pytest.mark.parametrize("settings", [{}, {"micro_rows": 1}, {"block": 1}])
def test_no_rows_make_no_update(folder: Path, settings: dict[str, int]) -> None:
    """Neither decay nor momentum moves the weights, and the schedule of the learning rate does not go on."""
    run = Run(compile_text(text(WHOLE, 5)), folder, **settings)
    first, second, third = run.steps(3)
    assert [step.metrics.get(METRIC) for step in (first, second, third)] == [None, 1.0, None]
    assert all(torch.equal(tensor, first.weights["actor"][name]) for name, tensor in second.weights["actor"].items())
    assert any(not torch.equal(tensor, first.weights["actor"][name]) for name, tensor in third.weights["actor"].items())
    assert run.backend.optimizer_step_counts() == {"actor": 2}


def test_parts_without_rows_are_counted(folder: Path) -> None:
    """Those of prompts of which no row is left."""
    run = Run(compile_text(text(PARTS, 1)), folder)
    first, second = run.steps(2)
    assert [step.metrics[METRIC] for step in (first, second)] == [1.0, 2.0]
    assert all(torch.equal(tensor, first.weights["actor"][name]) for name, tensor in second.weights["actor"].items())


def test_gradients_that_are_added_up_while_rows_come(folder: Path) -> None:
    """The mean's denominator is 0 there, and 1 / 0 scales no gradient."""
    schedule = """pool learn = 1 devices
pool play  = 1 devices
place actor.train    on learn(engine=transformers)
place actor.generate on play(engine=transformers)
stream rollout(block=2)
"""
    made, fires = compiled(text(WHOLE, 5), {}, schedule, folder), Fires()
    with closing(RayBackend(made.program, made.plan, Settings(folder=folder), fires, debug=True)) as backend:
        found, states = [], []
        for step in backend.run_steps(2):
            found.append(step.metrics.get(METRIC))
            states.append(backend.processes.workers["learn.transformers", 0].session.models["actor"].engine.state())
    assert fires.names.count(("apply", "actor@2")) == 2
    assert found == [None, 1.0]
    assert all(torch.equal(tensor, states[0][name]) for name, tensor in states[1].items())
