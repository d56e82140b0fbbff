"""A run on Ray that loses a process goes on: by itself, or with other engines, other splits and other backends."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray.util")
pytest.importorskip("megatron.core")

import ray
from safetensors.torch import load_file
from scheduled import compiled
from tiny import EPS, data_folder, weights

from rlgraph.backends.ray import backend
from rlgraph.backends.ray.actors import Actors
from rlgraph.backends.ray.worker import Worker
from rlgraph.backends.worker.session import Settings
from rlgraph.errors import RunError
from rlgraph.ir.plan import HOST
from rlgraph.runs.checkpoint import disk
from rlgraph.runs.events import EventReader, WorkStarted
from tests.waits import until

STEPS = 7
CHECKPOINTS = Path("run/checkpoints")
PROGRAM = f"""
algorithm kept
model actor  = causal_lm({weights(0, hidden=16, layers=2)})
model slow   = frozen(actor)
data prompts = jsonl("prompts.jsonl", batch=4, shuffle=true)
func score   = python("rewards.py:spread")
state baseline = 0.0
state solved[task] = 0.5
buffer past  = fifo(capacity=9)

step async(lag=1):
    collect prompts(3, rest=carry, ahead=1.5):
        rollout = actor.generate(prompts, n=2, max_tokens=4)
        reward  = score(rollout)
        keep prompts where std(reward, by=prompts) > 0
    baseline := 0.9 * baseline + 0.1 * mean(reward)
    solved[rollout.task] := 0.5 * solved[rollout.task] + 0.5 * reward
    push past(rollout, adv=reward - baseline)
    old = past.sample(6)
    now = actor.logprobs(rollout)
    train actor(lr=cosine(0.02, steps=20), eps={EPS}):
        minimize mean(-actor.logprobs(old) * old.adv)
    update slow from actor(ema=0.75)
    report reward = mean(reward), solved = mean(solved[rollout.task]), age = mean(rollout.age), old = mean(old.adv)
    report now = mean(now), kl = mean(rollout.logprobs - slow.logprobs(rollout))
"""


def schedule(learn: str) -> str:
    return f"""
pool learn = 4 devices
pool play = 1 devices
place actor.train, actor.logprobs on learn({learn})
place actor.generate, slow on play(engine=transformers)
"""


class Kills(EventReader):
    """Ends a process with SIGKILL when it has been trained so often, and what is written beside the run is on the disk."""

    def __init__(self) -> None:
        self.left = self.pid = 0
        self.started = 0

    def work_started(self, event: WorkStarted) -> None:
        self.left -= event.node.op == "train"
        if self.left == 0 and event.node.op == "train":
            until(lambda: disk.newest_checkpoint(CHECKPOINTS) is not None)
            os.kill(self.pid, signal.SIGKILL)


def numbers(run: Any) -> list[dict[str, float]]:
    return [{k: v for k, v in step.items() if k != "seconds" and not k.startswith("sync/")} for step in run.metrics]


@pytest.mark.long
def test_a_killed_run_goes_on_with_other_engines_and_splits(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older weights, states, a buffer and what `collect` carries are those that it had; so is what AdamW keeps."""
    data_folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    how: dict[str, Any] = {"threads": 1, "progress": False}
    plans = {
        name: compiled(PROGRAM, {}, schedule(learn), tmp_path)
        for name, learn in {
            "megatron": "engine=megatron, tp=2, pp=2",
            "transformers": "engine=transformers, dp=2",
            "alone": "engine=megatron",
        }.items()
    }
    expected = numbers(plans["alone"].run(STEPS, **how))
    watch, plain = Kills(), backend.start_processes

    def start(*args: Any, **named: Any) -> Any:
        found = plain(*args, **named)
        assert isinstance(found, Actors)
        last = max(who for who, spec in found.specs.items() if spec.group.pool == "learn")
        watch.pid, watch.started = ray.get(found.call(last, Worker.pid)), watch.started + 1
        return found

    monkeypatch.setattr(backend, "start_processes", start)
    watch.left = 4
    with pytest.raises(RunError, match="is gone"):
        plans["megatron"].run(STEPS, out="run", save_every=2, max_restarts=0, backend="ray", on_event=watch, **how)
    newest = disk.newest_checkpoint(CHECKPOINTS)
    assert newest is not None and newest.name == "step-000000002"
    files = {path.name for path in (newest / "models/actor").iterdir()}
    assert {
        f"{kind}-rank0000{rank}.safetensors" for kind in ("weights", "moments", "past-1") for rank in range(4)
    } == files
    # The second time it goes back to step 2 by itself.
    watch.left, watch.started = 2, 0
    made = plans["transformers"].run(5, resume="run", backend="ray", on_event=watch, **how)
    for one, other in zip(numbers(made), expected[:5], strict=True):
        assert one == pytest.approx(other, rel=0, abs=1e-5)
    assert watch.left < 0 and watch.started == 2
    # One format: it ends in one process.
    for one, other in zip(numbers(plans["alone"].run(STEPS, resume="run", **how)), expected, strict=True):
        assert one == pytest.approx(other, rel=0, abs=1e-5)


def test_megatron_is_saved_without_the_host(kept: None, tmp_path: Path) -> None:
    """Nobody knows yet that the host process is gone, which writes what is split."""
    made = compiled(
        PROGRAM, {}, schedule("engine=megatron, tp=2").replace("4 devices", "2 devices"), data_folder(tmp_path)
    )
    run = backend.RayBackend(made.program, made.plan, Settings(folder=tmp_path), seconds=120)
    try:
        next(run.run_steps(1))
        run.save("actor", tmp_path / "before")
        os.kill(ray.get(run.processes.handles[HOST, 0].pid.remote()), signal.SIGKILL)
        run.save("actor", tmp_path / "after")
    finally:
        run.close()
    before, after = (
        {name: each for file in (tmp_path / where).glob("*.safetensors") for name, each in load_file(file).items()}
        for where in ("before", "after")
    )
    assert before and before.keys() == after.keys()
    assert all(before[name].equal(after[name]) for name in before)
