"""The number of the step, schedules as values, and options of `train` that a step computes, against plain formulas.

AdamW is torch's own, on the gradient that the run had, in float64.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import EPS, Run, compile_text, data_folder, run_text, weights

from rlgraph.backends.engines.optimizer import Optimizer
from rlgraph.errors import RunError

HEAD = f"""algorithm t
model actor = causal_lm({weights()}, dtype="float64")
data prompts = jsonl("prompts.jsonl", batch=4, shuffle=false)
func spread = python("rewards.py:spread")
state level = 0.5
"""
STEP = """
step:
    rollout = actor.generate(prompts, n=2, max_tokens=4)
    score   = spread(rollout)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_folder(tmp_path_factory.mktemp("schedules"))


def linear(peak: float, done: int, steps: int, warmup: int, final: float) -> float:
    if done < warmup:
        return peak * (done + 1) / warmup
    return final + (peak - final) * (1 - min(1, (done - warmup) / (steps - warmup)))


def cosine(peak: float, done: int, steps: int, warmup: int, final: float) -> float:
    if done < warmup:
        return peak * (done + 1) / warmup
    share = min(1, (done - warmup) / (steps - warmup))
    return final + (peak - final) * (1 + math.cos(math.pi * share)) / 2


def test_a_schedule_is_a_value_of_each_step(folder: Path) -> None:
    """Costs half a second."""
    text = HEAD.replace("state level = 0.5\n", "def halved(x):\n    return x / (2 * step)\n") + (
        """
phase first(steps=2):
    rollout = actor.generate(prompts, max_tokens=2)
    report n = step, a = linear(0.8, steps=5, warmup=2, final=0.2)
"""
        + STEP
        + """
    report n = step, a = linear(0.8, steps=5, warmup=2, final=0.2), b = 2 * cosine(0.3, steps=6, final=0.1)
    report c = constant(0.7, warmup=4), d = halved(mean(score)), e = mean(score)
"""
    )
    seen = run_text(text, folder, steps=6)
    assert [step.metrics["n"] for step in seen] == [1, 2, 3, 4, 5, 6, 7, 8]
    for done, step in enumerate(seen):
        assert step.metrics["a"] == pytest.approx(linear(0.8, done, 5, 2, 0.2), abs=1e-12)
        if done >= 2:
            assert step.metrics["b"] == pytest.approx(2 * cosine(0.3, done, 6, 0, 0.1), abs=1e-12)
            assert step.metrics["c"] == pytest.approx(0.7 * min(1, (done + 1) / 4), abs=1e-12)
            assert step.metrics["d"] == pytest.approx(step.metrics["e"] / (2 * (done + 1)), abs=1e-12)


TRAINED = (
    HEAD
    + STEP
    + f"""
    train actor(lr=RATE, clip_norm=0.5 + level, weight_decay=0.1 * step, beta1=0.5 + 0.1 * level, eps={EPS}, reset=RESET):
        minimize -mean(actor.logprobs(rollout) * score)
    level := level + 0.25
    report mean = mean(score), level
"""
)


@pytest.mark.parametrize("rate", ["1e-2 * (1 + mean(score))", "linear(1e-2, steps=8)"])
def test_options_of_train_are_what_the_step_computes(folder: Path, rate: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs half a second."""
    grads: list[dict[str, torch.Tensor]] = []
    plain = Optimizer.step

    def keep(self: Optimizer, gradients: Any, options: Any, number: int) -> dict[str, float]:
        names = self._names
        grads.append({name: grad.clone() for name, grad in zip(names, gradients, strict=True) if grad is not None})
        return plain(self, gradients, options, number)

    monkeypatch.setattr(Optimizer, "step", keep)
    run = Run(compile_text(TRAINED.replace("RATE", rate).replace("RESET", "step == 3")), folder)
    mine = {name: weight.clone().requires_grad_() for name, weight in run.initial["actor"].items()}
    adam, level = torch.optim.AdamW(mine.values()), 0.5
    for number, seen in enumerate(run.steps(4), 1):
        if number == 3:
            adam = torch.optim.AdamW(mine.values())
        lr = 1e-2 * (1 + seen.metrics["mean"]) if "mean" in rate else linear(1e-2, number - 1, 8, 0, 0.0)
        norm = math.sqrt(sum(float((grad**2).sum()) for grad in grads[number - 1].values()))
        for group in adam.param_groups:
            group.update(lr=lr, betas=(0.5 + 0.1 * level, 0.999), eps=EPS, weight_decay=0.1 * number)
        for name, grad in grads[number - 1].items():
            mine[name].grad = grad * min(1.0, (0.5 + level) / norm)
        adam.step()
        level += 0.25
        for name, weight in mine.items():
            assert torch.allclose(weight, seen.weights["actor"][name], atol=1e-12, rtol=0), (number, name)


def test_an_option_that_is_out_of_range_ends_the_run(folder: Path) -> None:
    """Costs a tenth of a second."""
    text = TRAINED.replace("RATE", "level - 0.6").replace("RESET", "false")
    with pytest.raises(RunError) as failed:
        run_text(text, folder)
    assert "`lr` is at least 0, and this step computes -0.1" in str(failed.value)
