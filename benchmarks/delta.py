"""How many bfloat16 weights a step of training leaves as they were, to the bit, and what `send ... (delta=true)` sends.

The demo's model after its warm-up is trained by the demo's GRPO at other learning rates, and its weights are rounded to
bfloat16 after every step, as they are sent to a generator.

    python benchmarks/delta.py
    python benchmarks/delta.py --steps 5 --rates 1e-5

`changed` is the share of the weights that a step changed, `sent` are the bytes of a transfer as a share of all: medians
over the steps, and the most. The first step, after which all goes, is left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))


import rlgraph
from rlgraph.backends.exchange.deltas import DeltaSender
from rlgraph.backends.local.backend import LocalBackend
from rlgraph.backends.worker.session import Settings

DEMO = HERE.parent / "examples" / "spell_backward"
WARM_UP = 90


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-6, 1e-5, 1e-4])
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        warm = rlgraph.compile(DEMO / "sft.rlf").run(WARM_UP, out=Path(folder) / "sft", progress=False)
        model = warm.folder / "models" / "actor"
        rows = [{"rate": rate, **measured(model, rate, chosen.steps)} for rate in chosen.rates]
    if chosen.json:
        print(json.dumps(rows, indent=1))
        return
    print(f"{'learning rate':>13}  {'changed':>8}  {'most':>8}  {'sent':>8}  {'most':>8}")
    for row in rows:
        shown = (f"{row[name]:8.2%}" for name in ("changed", "most_changed", "sent", "most_sent"))
        print(f"{row['rate']:13g}  {'  '.join(shown)}")


def measured(model: Path, rate: float, steps: int) -> dict[str, float]:
    """Shares of weights that changed, and of bytes that were sent."""
    found = [(changed / numbers, size / (2 * numbers)) for numbers, changed, size in transfers(model, rate, steps)]
    changed, sent = ([each[at] for each in found] for at in (0, 1))
    return {
        "changed": statistics.median(changed),
        "most_changed": max(changed),
        "sent": statistics.median(sent),
        "most_sent": max(sent),
    }


def transfers(model: Path, rate: float, steps: int) -> Iterator[tuple[int, int, int]]:
    """For each step but the first: weights, those that changed, and bytes that are sent."""
    text = (DEMO / "grpo.rlf").read_text().replace("linear(2e-4, steps=400, warmup=20)", str(rate))
    assert str(rate) in text
    program = rlgraph.compile(text, set={"base": model}).program
    backend = LocalBackend(program, Settings(folder=DEMO))
    senders: dict[str, DeltaSender] = {}
    try:
        for step in backend.run_steps(steps):
            weights = backend.session.models["actor"].engine.tensors()
            numbers = changed = size = 0
            for name, tensor in weights.items():
                head, body = senders.setdefault(name, DeltaSender()).encode(tensor.detach().bfloat16().contiguous())
                numbers, changed = numbers + tensor.numel(), changed + int(head[1])
                size += head.nbytes + body.nbytes
            if step.number > 1:
                yield numbers, changed, size
    finally:
        backend.close()


if __name__ == "__main__":
    main()
