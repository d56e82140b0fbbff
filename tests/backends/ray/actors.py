"""A program on the actors of a plan, and what one process made of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
import torch
from safetensors.torch import load_file
from scheduled import compiled
from tiny import compile_text, shipped

from rlgraph.api.compiled import Compiled
from rlgraph.backends.local.backend import LocalBackend
from rlgraph.backends.ray.backend import RayBackend
from rlgraph.backends.recording import claim_folder
from rlgraph.backends.steps import SilentObserver, StepResult
from rlgraph.backends.worker.session import Settings
from rlgraph.ir.graph import Node, Program
from rlgraph.ir.plan import ModelHolding
from tests.waits import NEVER

REPLAYED, SAMPLED = 5, 2
"""Steps that are fed what one process sampled, and steps after them that sample for themselves."""


def weights(seed: int, layers: int = 2) -> str:
    """Random weights whose heads are wide enough for vLLM. Nine tokens, which no two ranks share evenly."""
    return (
        f'random("qwen2", seed={seed}, hidden_size=64, intermediate_size=24, num_hidden_layers={layers}, num_attention_heads=2, '
        'num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.1, tokenizer=chars("abcd>x"))'
    )


def experts(seed: int) -> str:
    """The same, in whose layers each token takes two of four experts."""
    numbers = "num_local_experts=4, num_experts_per_tok=2, "
    return weights(seed).replace('"qwen2", ', f'"mixtral", {numbers}').replace("size=24", "size=32")


RATE = "lr=0.003, eps=0.001"
"""Adam divides each gradient by its size and this number. With a small one it would make steps of nothing but rounding,
for weights on which the loss does not depend; and it would not see a gradient of the wrong size."""

LORA = "causal_lm(base, lora=lora(rank=3, alpha=6.0))"
SHIPPED = {"deep": "grpo", "experts": "grpo", "lora": "grpo"}
"""The program of those that are called otherwise."""

PROGRAMS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "grpo": (
        {"max_tokens=1024": "max_tokens=5", "lr=1e-6": RATE, "parts=4": "parts=2"},
        {"base": weights(0), "n": "4", "prompts": 'jsonl("gsm8k.jsonl", batch=5)', "beta": "0.05"},
    ),
    "lora": (
        {"max_tokens=1024": "max_tokens=5", "lr=1e-6": RATE, "parts=4": "parts=2", "causal_lm(base)": LORA},
        {"base": weights(3), "n": "4", "prompts": 'jsonl("gsm8k.jsonl", batch=5)', "beta": "0.05"},
    ),
    "deep": (
        {"max_tokens=1024": "max_tokens=5", "lr=1e-6": RATE, "parts=4": "parts=2"},
        {"base": weights(0, 4), "n": "4", "prompts": 'jsonl("gsm8k.jsonl", batch=5)', "beta": "0.05"},
    ),
    "experts": (
        {"max_tokens=1024": "max_tokens=5", "lr=1e-6": RATE, "parts=4": "parts=2"},
        {"base": experts(0), "n": "4", "prompts": 'jsonl("gsm8k.jsonl", batch=5)', "beta": "0.05"},
    ),
    "ppo": (
        {"max_tokens=512": "max_tokens=5", "lr=1e-6": RATE, "lr=5e-6": RATE, "parts=8": "parts=2"},
        {"base": weights(0), "judge": weights(7), "prompts": 'jsonl("prompts.jsonl", batch=9)'},
    ),
}


@dataclass(frozen=True)
class Local:
    """A run in one process, and where it left what it sampled and its trained models."""

    steps: list[StepResult]
    recording: Path
    models: Path


def run_local(name: str, data: Path, folder: Path) -> Local:
    swaps, changes = PROGRAMS[name]
    program = compile_text(shipped(SHIPPED.get(name, name), swaps), changes)
    found = Local([], folder / f"{name}-recorded", folder / f"{name}-models")
    with claim_folder(found.recording, SHIPPED.get(name, name), 0):
        backend = LocalBackend(program, Settings(folder=data, record=found.recording))
        try:
            found.steps.extend(backend.run_steps(REPLAYED + SAMPLED))
            for model in trained(program):
                backend.save(model, found.models / model)
        finally:
            backend.close()
    return found


def trained(program: Program) -> list[str]:
    """The models that have a `train`."""
    return [model.name for model in program.models if not model.frozen]


@dataclass(frozen=True)
class Span:
    """Work of one process, in seconds since 1970."""

    pool: str
    rank: int | str
    name: str
    category: str
    start: float
    end: float


class Watcher(SilentObserver):
    """Keeps who worked when. Of `pools` the first trainings begin only when all of them are about to, and then these are
    `together`."""

    def __init__(self, pools: frozenset[str] = frozenset()) -> None:
        self.spans: list[Span] = []
        self.pools, self.together = pools, set[str]()
        self._all = threading.Barrier(max(1, len(pools)))

    def node_started(self, node: Node, pool: str = "") -> None:
        if node.op == "train" and pool in self.pools - self.together:
            self._all.wait(NEVER)
            self.together.add(pool)

    def add_span(
        self, pool: str, rank: int | str, name: str, category: str, start: float, end: float, **args: object
    ) -> int:
        self.spans.append(Span(pool, rank, name, category, start, end))
        return len(self.spans) - 1


def on_each_rank(backend: RayBackend, group: str, work: Callable[..., Any], *given: Any) -> list[Any]:
    """What a function of the process answers on each rank of a group."""
    handles = [handle for (name, _), handle in backend.processes.handles.items() if name == group]
    return list(ray.get([handle.__ray_call__.remote(work, *given) for handle in handles], timeout=120))


@dataclass
class OnActors:
    """A run that was replayed for some steps, and then sampled; its actors still live."""

    local: Local
    compiled: Compiled
    backend: RayBackend
    steps: list[StepResult]
    watcher: Watcher
    sampled: Path
    """What its last steps sampled."""

    def each(self, group: str, work: Callable[..., Any], *given: Any) -> list[Any]:
        """What a function of the process answers on each rank of a group."""
        return on_each_rank(self.backend, group, work, *given)

    def group(self, model: str, operation: str) -> str:
        """The name of the group that does this work."""
        return self.compiled.plan.group_of_role(model, operation).name


@contextmanager
def on_actors(
    name: str,
    schedule: str,
    local: Local,
    data: Path,
    folder: Path,
    holds: Mapping[tuple[str, str], Mapping[str, Any]],
    together: frozenset[str],
) -> Iterator[OnActors]:
    """Starts a plan's actors and runs; `holds`: how some roles hold their model; `together`: pools that train at the
    same time."""
    swaps, changes = PROGRAMS[name]
    made = compiled(shipped(SHIPPED.get(name, name), swaps), changes, schedule, data)
    holdings = (ModelHolding(role[0], made.plan.group_of_role(*role).name, **how) for role, how in holds.items())
    plan = replace(made.plan, holdings=tuple(holdings)) if holds else made.plan
    watcher, sampled = Watcher(together), folder / "sampled"
    with claim_folder(sampled, SHIPPED.get(name, name), 0):
        settings = Settings(folder=data, replay=local.recording, record=sampled)
        backend = RayBackend(made.program, plan, settings, watcher, seconds=120)
        try:
            found = OnActors(local, made, backend, [], watcher, sampled)
            found.steps.extend(backend.run_steps(REPLAYED))
            # Between two calls no step is under way: the ranks of a copy either all replay or all sample.
            for group in made.plan.groups:
                found.each(group.name, _sample_from_now_on)
            found.steps.extend(backend.run_steps(SAMPLED))
            yield found
        finally:
            backend.close()


def _sample_from_now_on(worker: Any) -> None:
    worker.session.replay = None


def rows(folder: Path, step: int) -> dict[Any, dict[str, Any]]:
    """What a recording has of a step, by node and row."""
    lines = [json.loads(line) for file in folder.glob(f"step-{step:06d}.*") for line in file.read_text().splitlines()]
    found = {(line["node"], tuple(line["row"])): line for line in lines}
    assert len(found) == len(lines), "a row was sampled twice"
    return found


def saved(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of a model's folder."""
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}
