"""Whole steps in one process: the peak of each task, and what the verdict on a device's memory says of it."""

from __future__ import annotations

import json
from collections.abc import Collection
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

import rlgraph
from rlgraph.api.compiled import Compiled
from rlgraph.backends.local.backend import LocalBackend
from rlgraph.backends.ray.backend import RayBackend
from rlgraph.backends.steps import SilentObserver
from rlgraph.backends.worker.session import Settings
from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.explain.simulate import model_configs
from rlgraph.ir.graph import Node
from rlgraph.passes.cost.constants import default_constants
from rlgraph.passes.cost.lengths import Lengths
from rlgraph.passes.cost.peak_memory import Peak, pool_peaks
from rlgraph.passes.cost.tasks import main_phase, phase_tasks
from rlgraph.passes.cost.workload import Workload
from rlgraph.passes.rewrites.accumulate import accumulating_models
from tests.passes.cost.allocated import Everywhere
from tests.suites import few

CPU = default_constants("cpu")

EXACT = replace(CPU, reserved=0, fragmentation=0.0)
MODEL = """random("qwen2", seed={seed}, hidden_size={hidden}, intermediate_size={ffn}, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=512, tokenizer=bytes())"""
REWARD = """\
def odd(prompts, completions, completion_ids, **columns):
    return [1.0 * (len(text) % 2) for text in completions]
"""
GRPO = """\
algorithm grpo
model actor = causal_lm({actor})
model ref = frozen(actor)
data prompts = jsonl("prompts.jsonl", batch={batch})
func correct = python("rewards.py:odd")
step:
    rollout = actor.generate(prompts, n=4, max_tokens={tokens}, min_tokens={tokens})
    score = correct(rollout)
    ref_logp = ref.logprobs(rollout)
    adv = score - mean(score, by=prompts)
    train actor(lr=1e-6):
        logp = actor.logprobs(rollout)
        minimize mean(mean(k3(logp, ref_logp) - adv * exp(logp - rollout.logprobs), token))
"""
PPO = """\
algorithm ppo
model actor = causal_lm({actor})
model critic = value_lm({critic})
model ref = frozen(actor)
model reward = frozen(reward_lm({critic}))
data prompts = jsonl("prompts.jsonl", batch={batch})
step:
    rollout = actor.generate(prompts, max_tokens={tokens}, min_tokens={tokens})
    old_logp = actor.logprobs(rollout)
    ref_logp = ref.logprobs(rollout)
    value = critic.values(rollout)
    score = reward.score(rollout)
    r = score * rollout.end - 0.05 * k1(old_logp, ref_logp)
    adv = gae(r, value, 1.0, 0.95)
    target = adv + value
    minibatch rollout(parts=2):
        train critic(lr=5e-6):
            minimize mean((critic.values(rollout) - target)**2)
        train actor(lr=1e-6):
            minimize -mean(exp(actor.logprobs(rollout) - old_logp) * adv)
"""
CASES = {
    "grpo": (GRPO, {"hidden": 64, "ffn": 160}, 8, 100),
    "grpo with large weights": (GRPO, {"hidden": 256, "ffn": 768}, 2, 16),
    "ppo": (PPO, {"hidden": 64, "ffn": 160}, 16, 120),
    "ppo with large weights": (PPO, {"hidden": 256, "ffn": 768}, 8, 24),
}
PROMPT = 16
ALL = "pool all = 1 devices\nplace {models} on all(engine=transformers)\n"
STREAMED = """\
pool learn = 1 devices
pool play = 1 devices
place actor.train, ref on learn(engine=transformers)
place actor.generate on play(engine=transformers)
stream rollout(block=4)
"""


class Peaks(SilentObserver):
    """The most bytes while each node was done."""

    def __init__(self, live: Everywhere) -> None:
        self.live = live
        self.found: dict[str, int] = {}

    def node_started(self, node: Node, pool: str = "") -> None:
        self.live.since()

    def node_done(self, node: Node, seconds: float, tokens: int, pool: str = "") -> None:
        name = f"train {node.inputs[0].partition('@')[0]}" if node.op == "train" else node.name
        self.found[name] = max(self.found.get(name, 0), self.live.since())


def program(name: str, folder: Path, schedule: str = ALL) -> Compiled:
    text, sizes, batch, tokens = CASES[name]
    rows = [{"prompt": "".join(chr(97 + (i + j) % 26) for j in range(PROMPT))} for i in range(batch)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "rewards.py").write_text(REWARD)
    path = folder / "program.rlf"
    actor, critic = (MODEL.format(seed=seed, **sizes) for seed in (1, 2))
    path.write_text(text.format(actor=actor, critic=critic, batch=batch, tokens=tokens))
    models = "actor, critic, ref, reward" if text is PPO else "actor, ref"
    head = text.partition("\n")[0].replace("algorithm", "schedule")
    return rlgraph.compile(path, schedule=f"{head}\n{schedule.format(models=models)}")


@cache
def measured(name: str) -> tuple[dict[str, int], int]:
    """Of the second and the third step the peak of each node; and of all."""
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder, Everywhere() as live:
        compiled = program(name, Path(folder))
        seen = Peaks(live)
        backend = LocalBackend(compiled.program, Settings(folder=Path(folder)), seen)
        try:
            steps = backend.run_steps(3)
            next(steps)
            seen.found.clear()
            for _ in steps:
                pass
        finally:
            backend.close()
    return seen.found, max(seen.found.values())


def workload(name: str) -> Workload:
    return Workload(Lengths((float(PROMPT),)), Lengths((float(CASES[name][3]),)))


def predicted(name: str, memory: str = "24GiB") -> Peak:
    cluster = read_cluster(f"1x1:cpu(memory={memory})")
    with TemporaryDirectory() as folder:
        compiled = program(name, Path(folder))
        laid = phase_tasks(compiled.program, main_phase(compiled.program), workload(name))
        return pool_peaks(compiled.plan, laid, model_configs(compiled), cluster, EXACT)["all"]


@pytest.mark.parametrize("name", few(CASES, "grpo with large weights"))
def test_the_peak_of_a_step_and_its_moment(name: str) -> None:
    found, most = measured(name)
    peak = predicted(name)
    assert peak.used_bytes == pytest.approx(most, rel=0.1)
    assert found[peak.moment] == pytest.approx(most, rel=0.05)
    for task, size in peak.moments:
        assert size == pytest.approx(found[task], rel=0.15), task


@pytest.mark.parametrize("name", few(CASES, "grpo with large weights"))
def test_verdicts_just_above_and_just_below(name: str) -> None:
    _, most = measured(name)
    assert predicted(name, f"{1.1 * most / 2**20:.3f}MiB").fits
    assert not predicted(name, f"{0.9 * most / 2**20:.3f}MiB").fits


@pytest.mark.long
@pytest.mark.parametrize("name", ["ppo", "ppo with large weights"])
def test_both_arenas_are_as_full_as_planned_where_models_sleep(name: str) -> None:
    """Four models on one device, of which one is there at a time."""
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder, Everywhere() as live, live.resizing():
        compiled = program(name, Path(folder))
        away = [
            replace(compiled.plan.holding(model, group.name), offload=True)
            for group in compiled.plan.groups
            for model in group.models
        ]
        plan, seen = replace(compiled.plan, holdings=tuple(away)), Peaks(live)
        with closing(RayBackend(compiled.program, plan, Settings(folder=Path(folder)), seen, debug=True)) as run:
            steps = run.run_steps(3)
            next(steps)
            seen.found.clear()
            list(steps)
            arenas = {group: worker.arenas for (group, _), worker in run.processes.workers.items()}
    assert len(away) == 4
    host = sum(each.host.peak for each in arenas.values())
    laid = phase_tasks(compiled.program, main_phase(compiled.program), workload(name))
    cluster, configs = read_cluster("1x1:cpu(memory=24GiB)"), model_configs(compiled)
    planned, together = (pool_peaks(each, laid, configs, cluster, EXACT)["all"] for each in (plan, compiled.plan))
    most = max(seen.found.values()) - host
    assert planned.host == pytest.approx(host, rel=0.05)
    assert planned.used_bytes == pytest.approx(most, rel=0.05)
    assert seen.found[planned.moment] - host == pytest.approx(most, rel=0.01)
    assert planned.used_bytes < 0.9 * together.used_bytes
    # What the arenas count of a model is what there is of it while it does not work.
    assert max(each.device.peak for each in arenas.values()) < most


def test_gradients_that_wait_for_rows_are_there_while_others_work() -> None:
    """Rows of the first prompt are trained on before `ref` reads those of the second. Both pools are this process."""
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder, Everywhere() as live:
        compiled = program("grpo with large weights", Path(folder), STREAMED)
        seen = Peaks(live)
        with closing(
            RayBackend(compiled.program, compiled.plan, Settings(folder=Path(folder)), seen, debug=True)
        ) as run:
            steps = run.run_steps(3)
            next(steps)
            seen.found.clear()
            list(steps)
    laid = phase_tasks(compiled.program, main_phase(compiled.program), workload("grpo with large weights"))
    cluster, configs = read_cluster("1x2:cpu(memory=24GiB)"), model_configs(compiled)

    def learn(accumulated: Collection[str]) -> tuple[dict[str, float], float]:
        found = pool_peaks(compiled.plan, laid, configs, cluster, EXACT, accumulated=accumulated)
        playing = sum(size for _, what, size in found["play"].parts if what == "weights")
        return dict(found["learn"].moments), playing

    assert accumulating_models(compiled.program, compiled.plan) == {"actor"}
    (streamed, playing), (whole, _) = learn({"actor"}), learn(())
    assert streamed["ref_logp"] + playing == pytest.approx(seen.found["ref_logp"], rel=0.05)
    assert streamed["train actor"] + playing == pytest.approx(seen.found["actor@2.added"], rel=0.1)
    assert streamed["ref_logp"] - whole["ref_logp"] > 0.15 * streamed["ref_logp"]
