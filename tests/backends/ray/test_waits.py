"""A rank is stopped in the midst of an update: the message says who waits for it, and in which collective."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

pytest.importorskip("ray.util")

import ray
from actors import weights
from scheduled import compiled
from tiny import data_folder

from rlgraph.backends.ray.backend import RayBackend
from rlgraph.backends.ray.worker import Worker
from rlgraph.backends.steps import SilentObserver
from rlgraph.backends.worker.session import Settings
from rlgraph.errors import RunError
from rlgraph.ir.graph import Node

PROGRAM = f"""
algorithm waits
model actor  = causal_lm({weights(0).replace('">x"', '">"')})
data prompts = jsonl("prompts.jsonl", batch=4)
step:
    rollout = actor.generate(prompts, n=2, max_tokens=4)
    train actor(lr=0.01):
        minimize mean(exp(actor.logprobs(rollout) - rollout.logprobs))
"""


class Stops(SilentObserver):
    """Stops a process when the second training begins."""

    def __init__(self) -> None:
        self.pid, self.trained = 0, 0

    def node_started(self, node: Node, pool: str = "") -> None:
        if node.op != "train":
            return
        self.trained += 1
        if self.trained == 2:
            self.then()
            os.kill(self.pid, signal.SIGSTOP)

    def then(self) -> None: ...


@pytest.mark.long
@pytest.mark.parametrize("split", ["engine=megatron, tp=2", "engine=transformers, fsdp=2"])
def test_who_waits_for_a_rank_that_was_stopped(cluster: None, tmp_path: Path, split: str) -> None:
    if "megatron" in split:
        pytest.importorskip("megatron.core")
    schedule = f"pool learn = 2 devices\npool play = 1 devices\nplace actor.train on learn({split})\n"
    schedule += "place actor.generate on play(engine=transformers)\n"
    found, watch = compiled(PROGRAM, {}, schedule, data_folder(tmp_path)), Stops()
    group = found.plan.group_of_role("actor", "train").name
    backend = RayBackend(found.program, found.plan, Settings(folder=tmp_path), watch, seconds=120)
    processes = backend.processes
    watch.pid = ray.get(processes.call((group, 1), Worker.pid))  # type: ignore[call-overload]
    watch.then = lambda: setattr(processes, "seconds", 5.0)  # type: ignore[method-assign]
    try:
        steps = backend.run_steps(2)
        next(steps)
        with pytest.raises(RunError) as caught:
            next(steps)
    finally:
        os.kill(watch.pid, signal.SIGCONT)
        backend.close()
    [told] = caught.value.diagnostics
    assert told.code == "E0742" and told.message.startswith(f"rank 1 of {group} has not answered for 5 s")
    notes = [each.message for each in told.related]
    waits = rf"rank 0 of {group} waits for rank 1 of {group} in `\w+`, number \d+ of ranks 0-1 of {group}"
    assert re.match(waits, notes[0]), notes
    assert notes[-1].startswith(f"rank 1 of {group} says nothing at all")
