"""What samples cost a step: GRPO of the small model of examples/spell_backward, 32 prompts with 8 answers each.

python benchmarks/samples.py
python benchmarks/samples.py --keep 256 --backend ray --steps 20

step      milliseconds of a step, the median
samples   milliseconds of it in which rows are chosen, fetched, decoded and written, the median
share     of the step
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import rlgraph
from rlgraph.backends.steps import StepRunner
from rlgraph.runs import recorder as runs
from rlgraph.runs.folder import RunFolder

PROGRAM = """\
algorithm samples
model actor = causal_lm(random("qwen2", hidden_size=128, intermediate_size=512, num_hidden_layers=4,
    num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=64,
    tokenizer=chars("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz>")))
data words  = python("tasks.py:words", split="train", size=2000, batch=32)
func correct = reasoning_gym()
step:
    rollout = actor.generate(words, n=8, max_tokens=8)
    score   = correct(rollout)
    adv     = center(score, words)
    train actor(lr=2e-4, clip_norm=1.0):
        ratio = exp(actor.logprobs(rollout) - rollout.logprobs)
        minimize mean(-min(ratio * adv, clip(ratio, 0.8, 1.2) * adv))
    report reward = mean(score)
"""
SCHEDULE = """\
schedule samples
pool learn = 1 devices
pool play  = 1 devices
place actor.train on learn(engine=transformers)
place actor.generate on play(engine=transformers)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--keep", type=int, default=32)
    parser.add_argument("--backend", choices=("local", "ray"), default="local")
    chosen = parser.parse_args()
    spent: list[float] = []
    for owner, name in ((StepRunner, "shown_samples"), (runs, "limit_samples"), (runs, "sample_lines")):
        setattr(owner, name, timed(getattr(owner, name), spent))
    RunFolder.append_step = timed_difference(RunFolder.append_step, spent)
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "samples.rlf")
        program.write_text(PROGRAM)
        tasks = HERE.parent / "examples" / "spell_backward" / "tasks.py"
        Path(folder, "tasks.py").write_text(tasks.read_text())
        compiled = rlgraph.compile(program, schedule=SCHEDULE if chosen.backend == "ray" else None)
        run = compiled.run(
            chosen.steps, out=Path(folder, "run"), backend=chosen.backend, keep_samples=chosen.keep, progress=False
        )
    # Of each step four times were noted; the first steps warm up.
    assert len(spent) == 4 * chosen.steps, spent
    samples = [sum(spent[4 * at : 4 * at + 4]) for at in range(chosen.steps)][2:]
    steps = [record["seconds"] for record in run.metrics][2:]
    step, cost = statistics.median(steps), statistics.median(samples)
    print(f"step {1e3 * step:.1f} ms  samples {1e3 * cost:.2f} ms  share {cost / step:.2%}")
    return 0


def timed(function: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    """Return the function with its seconds appended to a list."""

    def run(*arguments: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return function(*arguments, **named)
        finally:
            spent.append(time.perf_counter() - began)

    return run


def timed_difference(write: Callable[..., None], spent: list[float]) -> Callable[..., None]:
    """Return the writing of a step, with the seconds that its samples add appended to a list."""

    def run(folder: RunFolder, record: Any, trace: Any = None, samples: Any = (), event: str = "") -> None:
        write(folder, record, trace, samples, event)
        began = time.perf_counter()
        with tempfile.TemporaryFile("w") as file:
            file.writelines(f"{line}\n" for line in samples)
            file.flush()
        spent.append(time.perf_counter() - began)

    return run


if __name__ == "__main__":
    sys.exit(main())
