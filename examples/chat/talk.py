"""Talks with the chat model before it is trained and afterwards, and grades it on sums that it is never trained on.

    python examples/chat/talk.py before
    rlgraph run examples/chat/sums.rlf --steps 8 --out runs/chat/grpo --overwrite
    python examples/chat/talk.py after

What it said before is kept in `runs/chat/before.json`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import rlgraph
from rlgraph.errors import RlgraphError

HERE = Path(__file__).parent
QUESTIONS = (
    "What is 7+7? Answer with just the number.",
    "What is 14+13? Answer with just the number.",
    "What is the capital of France?",
)
WIDTH = 44


def main() -> int:
    arguments = argparse.ArgumentParser(description="Talk with the chat model before and after it is trained.")
    arguments.add_argument("when", choices=("before", "after"))
    arguments.add_argument("--out", type=Path, default=Path("runs/chat"), help="where the run is, in `grpo`")
    chosen = arguments.parse_args()
    try:
        (before if chosen.when == "before" else after)(chosen.out)
    except RlgraphError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


def before(out: Path) -> None:
    said = asked({})
    out.mkdir(parents=True, exist_ok=True)
    (out / "before.json").write_text(json.dumps(said, indent=1), "utf-8")
    for question, answer in zip(QUESTIONS, said["answers"], strict=True):
        print(f"  {question}\n    {line(answer)}")
    print(f"  held-out sums that are right: {said['accuracy']:.0%}")


def after(out: Path) -> None:
    old, new = json.loads((out / "before.json").read_text("utf-8")), asked({"base": out / "grpo" / "models" / "actor"})
    print(f"  {'before':<{WIDTH}} after")
    for question, first, then in zip(QUESTIONS, old["answers"], new["answers"], strict=True):
        print(f"  {question}\n    {line(first):<{WIDTH - 2}} {line(then)}")
    print()
    for row in map(json.loads, (out / "grpo" / "metrics.jsonl").read_text("utf-8").splitlines()):
        print(f"  step {row['step']:<3} reward {row['reward']:.2f} {'#' * round(40 * row['reward'])}")
    print(f"\n  held-out accuracy   {old['accuracy']:.1%} -> {new['accuracy']:.1%}   (64 sums of 10 to 17)")
    print(f"  trained adapters    {out / 'grpo' / 'models' / 'actor'}")


def asked(changes: dict[str, Path]) -> dict:
    """The answers of a model, and its share of right ones on held-out sums."""
    run = rlgraph.compile(HERE / "evaluate.rlf", set=changes).run(1, progress=False)
    prompts = [[{"role": "user", "content": question}] for question in QUESTIONS]
    return {
        "answers": run.models["actor"].answer(prompts, max_tokens=24),
        "accuracy": run.metrics[0]["accuracy"],
    }


def line(answer: str) -> str:
    """An answer on one line, cut where it is long."""
    text = " ".join(answer.split())
    return text if len(text) < WIDTH - 2 else f"{text[: WIDTH - 6]} ..."


if __name__ == "__main__":
    sys.exit(main())
