"""A model of seven billion weights that is trained and sampled on one pool of eight devices."""

from __future__ import annotations

import pytest

import rlgraph
from rlgraph.api.compiled import Compiled
from rlgraph.catalog.clusters.cluster import DeviceKind
from rlgraph.passes.compilation import default_plan
from rlgraph.passes.placement.place import Machine

PROGRAM = """
algorithm small
model actor = causal_lm("Qwen/Qwen2.5-7B-Instruct", dtype="bfloat16")
model ref   = frozen(actor)
data prompts = jsonl("prompts.jsonl", batch=32)
func judge = python("f.py:f")
step:
    rollout = actor.generate(prompts, n=4, max_tokens=1024)
    score = judge(rollout)
    kept = ref.logprobs(rollout)
    train actor(lr=1e-6):
        minimize -mean(actor.logprobs(rollout) * score) + 0.001 * mean(actor.logprobs(rollout) - kept)
"""
SHARED = """
schedule small
pool all = 8 devices
place actor.train, ref on all(engine=megatron, tp=2{trainer})
place actor.generate on all(engine=vllm, tp=2{sampler})
"""


def compiled(trainer: str = "", sampler: str = "", cluster: str | None = None) -> Compiled:
    """The program with options of both lines."""
    schedule = SHARED.format(trainer=trainer, sampler=sampler)
    return rlgraph.compile(PROGRAM, schedule=schedule, cluster=cluster)


def place_as_on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with GPUs, to the compiler."""

    def machine(devices: int, kind: DeviceKind = "gpu") -> Machine:
        return Machine(devices, kind)

    monkeypatch.setattr(default_plan, "local_machine", machine)
