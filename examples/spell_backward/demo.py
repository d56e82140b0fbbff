"""Teaches a small language model, from random weights, to spell words backward.

A short supervised warm-up (`sft.rlf`), then reinforcement learning on the task's own verifier: GRPO (`grpo.rlf`), or
with `--ppo` PPO (`ppo.rlf`) against a reward model that `reward_model.rlf` trained on pairs made from that verifier.
Accuracy is measured on words that are in no training batch.

    python examples/spell_backward/demo.py [--ppo] [--seed 0] [--out runs/spell_backward] [--device cpu]
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from pathlib import Path

import rlgraph
from rlgraph.errors import RlgraphError

HERE = Path(__file__).parent
SHOWN = ("stone", "bird", "lamp", "crowd", "neon", "otter")
WARM_UP_STEPS, GRPO_STEPS, JUDGE_STEPS, PPO_STEPS = 90, 400, 300, 150


def main() -> int:
    arguments = argparse.ArgumentParser(description="Teach a small model to spell words backward.")
    arguments.add_argument("--ppo", action="store_true", help="PPO with a learned reward model in place of GRPO")
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--out", type=Path, default=Path("runs/spell_backward"), help="replaced if it is there")
    arguments.add_argument("--device", help="of the models: cpu, cuda; by default a GPU if there is one")
    chosen = arguments.parse_args()
    try:
        demo(chosen.ppo, chosen.seed, chosen.out.resolve(), chosen.device)
    except RlgraphError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


def demo(ppo: bool, seed: int, out: Path, device: str | None) -> None:
    began = time.perf_counter()
    shutil.rmtree(out, ignore_errors=True)

    heading("sft.rlf: warm a model up from random weights")
    before = train("sft.rlf", WARM_UP_STEPS, out / "sft", seed, device)
    warm = before.folder / "models" / "actor"
    accuracy_before = accuracy(warm, device)

    if ppo:
        heading("reward_model.rlf: train a judge on pairs made from the verifier")
        judge = train("reward_model.rlf", JUDGE_STEPS, out / "reward_model", seed, device, base=warm)
        heading("ppo.rlf: improve the model by PPO against the judge")
        trained = judge.folder / "models" / "reward"
        after = train("ppo.rlf", PPO_STEPS, out / "ppo", seed, device, base=warm, judge=trained)
    else:
        heading("grpo.rlf: improve it by GRPO on the task's verifier")
        after = train("grpo.rlf", GRPO_STEPS, out / "grpo", seed, device, base=warm)
    accuracy_after = accuracy(after.folder / "models" / "actor", device)

    rewards = [row["reward"] for row in after.metrics]
    picture = draw(rewards, out / "reward.png", "PPO" if ppo else "GRPO")
    first, last = mean(rewards[:10]), mean(rewards[-10:])
    heading("what it learned")
    words = [f"{word}>" for word in SHOWN]
    old_answers = before.models["actor"].answer(words, max_tokens=8)
    new_answers = after.models["actor"].answer(words, max_tokens=8)
    print(f"  {'word':<8} {'after warm-up':<15} {'now':<15}")
    for word, old, new in zip(SHOWN, old_answers, new_answers, strict=True):
        print(f"  {word:<8} {mark(word, old):<15} {mark(word, new):<15}")
    print()
    print(f"  reward of samples   {first:.2f} -> {last:.2f}   (means of the first and the last 10 steps)")
    print(
        f"  held-out accuracy   {accuracy_before:.1%} -> {accuracy_after:.1%}   (400 words that were never trained on)"
    )
    print(f"  reward curve        {picture}")
    print(f"  trained model       {after.folder / 'models' / 'actor'}")
    print(f"  took                {time.perf_counter() - began:.0f} s")
    summary = {
        "reward_first": first,
        "reward_last": last,
        "accuracy_before": accuracy_before,
        "accuracy_after": accuracy_after,
        "rewards": rewards,
    }
    (out / "summary.json").write_text(json.dumps(summary, indent=1))


def train(name: str, steps: int, out: Path, seed: int, device: str | None, **params: Path) -> rlgraph.Run:
    """Runs one of the programs beside this file, with params replaced."""
    return rlgraph.compile(HERE / name, set=params).run(steps, seed=seed, out=out, device=device)


def accuracy(model: Path, device: str | None) -> float:
    """The share of held-out words that a model spells backward, taking the likeliest letter each time."""
    run = rlgraph.compile(HERE / "evaluate.rlf", set={"base": model}).run(1, device=device, progress=False)
    return run.metrics[0]["accuracy"]


def draw(rewards: list[float], path: Path, title: str) -> Path:
    """The reward of every step, and its mean over the ten steps around."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    smooth = [mean(rewards[max(0, at - 5) : at + 5]) for at in range(len(rewards))]
    figure, axes = pyplot.subplots(figsize=(7, 3.6), layout="constrained")
    axes.plot(range(1, len(rewards) + 1), rewards, color="#9db7e8", linewidth=1, label="one step")
    axes.plot(range(1, len(rewards) + 1), smooth, color="#2f5fc4", linewidth=2, label="mean of ten")
    axes.set(xlabel="step", ylabel="reward of samples", title=f"{title} on words spelled backward", ylim=(0, 1))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(path, dpi=150)
    return path


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def mark(word: str, answer: str) -> str:
    return f"{answer} {'ok' if answer == word[::-1] else 'x'}"


def heading(text: str) -> None:
    print(f"\n== {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
