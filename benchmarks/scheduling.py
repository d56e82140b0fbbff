"""Steps of vLLM's own scheduler where the cache has no room for all rows, and tokens that it reads again of rows that
it has preempted, beside what the cost model takes. They are the same on every device, so that a tiny model on a CPU
shows them.

    python benchmarks/scheduling.py
    python benchmarks/scheduling.py --case 128 128 256 8192

A case is rows, tokens of a prompt, tokens of an answer, and tokens for which the cache has room; each has a process of
its own.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


@dataclass
class Counted:
    """What a scheduler did for some rows."""

    steps: int = 0
    mixed: int = 0
    """Steps in which prompt tokens are read."""
    read: int = 0
    """Prompt tokens, and those of preempted rows that are read again."""
    preempted: int = 0
    most: int = 0
    """The most rows in a step."""


def watch(engine: Any, counted: Counted) -> None:
    """Count what the scheduler of an engine decides from now on."""
    scheduler = engine.engine_core.engine_core.scheduler
    plain = scheduler.schedule

    def schedule(*args: Any, **more: Any) -> Any:
        made = plain(*args, **more)
        tokens = made.num_scheduled_tokens
        read = sum(count for count in tokens.values() if count > 1)
        counted.steps += bool(tokens)
        counted.mixed += read > 0
        counted.read += read
        counted.most = max(counted.most, len(tokens))
        counted.preempted += len(made.preempted_req_ids or ())
        return made

    scheduler.schedule = schedule


SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
}
TOKEN = 2 * 32 * 4
"""Bytes of a token in the cache: keys and values of 32 numbers, float32."""
CASES = ((64, 64, 256, 8192), (64, 32, 512, 8192), (64, 512, 64, 8192), (256, 32, 256, 8192), (128, 128, 256, 8192))


def sampled(rows: int, prompt: int, answer: int, room: int) -> Counted:
    """Return what vLLM's scheduler does for rows with prompts and answers of these lengths."""
    import numpy as np

    from benchmarks.gpu.measure import spec
    from rlgraph.backends.engines.records import Sampling
    from rlgraph.backends.engines.sequences import Sequences
    from rlgraph.backends.engines.vllm.engine import VllmEngine

    made = VllmEngine.open(spec(SHAPE, "float32"), row_tokens=prompt + answer + 64, cache_bytes=TOKEN * room)
    counted = Counted()
    watch(made._engine, counted)
    generator = np.random.default_rng(0)
    prompts = Sequences.from_lists([generator.integers(3, 250, prompt).tolist() for _ in range(rows)])
    made.generate(prompts, 1, Sampling(answer, min_tokens=answer), np.arange(rows, dtype=np.uint64))
    return counted


def predicted(rows: int, prompt: int, answer: int, room: int) -> tuple[float, float]:
    """Return the steps that the cost model takes, and the tokens that are read again."""
    from rlgraph.catalog.clusters.read import read_cluster
    from rlgraph.catalog.models.config_shape import shape_of
    from rlgraph.ir.mesh import make_mesh
    from rlgraph.passes.cost.batch import Batch
    from rlgraph.passes.cost.decoding_slots import busy_slots, decoding_slots, preempted_rows
    from rlgraph.passes.cost.deployment import Deployment, ModelConfig
    from rlgraph.passes.cost.lengths import Lengths

    config = ModelConfig("actor", shape_of({"model_type": "qwen2", **SHAPE}), "causal_lm", "float32")
    island = read_cluster("1x1:cpu").islands[0]
    deployment = Deployment("vllm", island, make_mesh(), kv_bytes=TOKEN * room)
    batch = Batch(rows, Lengths((float(prompt),)), Lengths((float(answer),)))
    slots, busy = decoding_slots(config, deployment, batch), busy_slots(config, deployment, batch)
    count, tokens = preempted_rows(deployment, batch, rows, slots)
    return max(0.0, rows - slots) * answer / min(rows, busy) + answer, count * tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", type=int, nargs=4, metavar=("ROWS", "PROMPT", "ANSWER", "ROOM"))
    asked = parser.parse_args()
    if not asked.case:
        print(
            "| rows, prompt + answer, room | steps | predicted | read again | predicted |\n|---|--:|--:|--:|--:|",
            flush=True,
        )
        for case in CASES:
            subprocess.run([sys.executable, __file__, "--case", *map(str, case)], check=True)
        return
    rows, prompt, answer, room = asked.case
    counted, (steps, again) = sampled(rows, prompt, answer, room), predicted(rows, prompt, answer, room)
    print(
        f"| {rows}, {prompt} + {answer}, {room:,} | {counted.steps:,} | {steps:,.0f} "
        f"| {counted.read - rows * prompt:,} | {again:,.0f} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
