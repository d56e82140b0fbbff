"""Every algorithm that ships, five steps in actors: Megatron trains and reads in two copies, vLLM samples, and metrics
and trained weights are those of one process that was given the same rows. Costs 4 s for each algorithm."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("ray.util")
pytest.importorskip("megatron.core")
pytest.importorskip("vllm")

from actors import RATE, saved, trained, weights
from scheduled import compiled
from tiny import compile_text, data_folder

from rlgraph.backends.local.backend import LocalBackend
from rlgraph.backends.ray.backend import RayBackend
from rlgraph.backends.recording import claim_folder
from rlgraph.backends.worker.session import Settings
from rlgraph.cli.listing import shipped_algorithms
from rlgraph.dsl.inline_uses import inline_used_programs
from rlgraph.errors import Source
from rlgraph.ir.graph import Program
from rlgraph.ops.program_work import model_operations
from tests.suites import few

STEPS = 5
CLOSE = 2e-5
"""Of metrics and weights, absolute, or relative where they are larger than 1: float32, summed in other orders."""
MOVED = 1e-3
"""Weights move at least so far, so that what is the same was trained."""
WRITTEN = (
    ("rlgraph.rewards:", "rewards.py:"),
    (r"\bmax_tokens=\w+", "max_tokens=5"),
    (r"\bparts=\d+", "parts=2"),
    (r"\bbatch=\d+", "batch=5"),
    (r"\bevery \d+", "every 2"),
    (r"\blr=[^,)]+", RATE),
    (r"(phase \w+\(steps=)\d+", r"\g<1>2"),
    (r"(?m)^(param n +=) \d+", r"\1 3"),
    (r"\bn=\d+", "n=3"),
    (r"prompts\(512\)", "prompts(4)"),
    (r"(param limit +=) \d+", r"\1 6"),
    (r"\bunseen\.jsonl", "tasks.jsonl"),
    (r"\bprompts\.id\b", "prompts.place"),
    (r"(param cushion +=) \d+", r"\1 4"),
)
"""What is written in place of what: short answers, few rows, and rates and an `eps` at which weights move, and not by
the rounding of a small gradient."""


def program_text(name: str) -> str:
    """The text of a program that ships, with all that it uses, made small."""
    text: str = inline_used_programs(Source(f"{name}.rlf", shipped_algorithms()[name])).text
    for pattern, other in WRITTEN:
        text = re.sub(pattern, other, text)
    models = sorted(set(re.findall(r"_lm\((\w+)", text)))
    for seed, param in enumerate(models):
        text = re.sub(rf'(?m)^(param {param} +=) ".*"$', lambda m, s=seed: f"{m[1]} {weights(s)}", text)
    return text


def schedule_of(program: Program) -> str:
    """What samples on one device by vLLM, and all else on two by Megatron."""
    pools: dict[str, list[str]] = {"learn": [], "play": []}
    for model, work in model_operations(program).items():
        for operation in work:
            pools["play" if operation in ("generate", "interact") else "learn"].append(f"{model}.{operation}")
    engines = {"learn": ("megatron, dp=2", 2), "play": ("vllm", 1)}
    return "".join(
        f"pool {pool} = {engines[pool][1]} devices\nplace {', '.join(work)} on {pool}(engine={engines[pool][0]})\n"
        for pool, work in pools.items()
        if work
    )


@pytest.mark.parametrize("name", few(sorted(shipped_algorithms()), "gigpo", "gkd"))
def test_an_algorithm_on_actors_is_that_of_one_process(name: str, kept: None, tmp_path: Path) -> None:
    text, data = program_text(name), data_folder(tmp_path / "data")
    program = compile_text(text)
    recorded = tmp_path / "recorded"
    with claim_folder(recorded, name, 0):
        backend = LocalBackend(program, Settings(folder=data, record=recorded))
        with closing(backend):
            for model in trained(program):
                backend.save(model, tmp_path / "first" / model)
            here = list(backend.run_steps(STEPS))
            for model in trained(program):
                backend.save(model, tmp_path / "here" / model)
    made = compiled(text, {}, schedule_of(program), data)
    # Where a program samples nothing there is nothing to replay.
    settings = Settings(folder=data, replay=recorded if "play" in made.text() else None)
    with closing(RayBackend(made.program, made.plan, settings, seconds=120)) as actors:
        there = list(actors.run_steps(STEPS))
        for model in trained(program):
            actors.save(model, tmp_path / "there" / model)
    apart = {
        f"{metric}, step {one.number}": abs(other.metrics[metric] - value) / max(1.0, abs(value))
        for one, other in zip(here, there, strict=True)
        for metric, value in one.metrics.items()
    }
    for model in trained(program):
        first, ours, theirs = (saved(tmp_path / when / model) for when in ("first", "here", "there"))
        assert ours.keys() == theirs.keys()
        assert max(float((first[tensor] - value).abs().max()) for tensor, value in ours.items()) > MOVED, model
        for tensor, value in ours.items():
            apart[f"{model}: {tensor}"] = float((theirs[tensor] - value).abs().max())
    worst = max(apart, key=apart.__getitem__)
    print(f"\n{name}: {apart[worst]:.1e} ({worst})")
    assert apart[worst] < CLOSE, worst
