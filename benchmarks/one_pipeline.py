"""Gradients of an actor and a critic over two stages, one after the other and in one pipeline. For fused.py."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from rlgraph.backends.engines.base import MicroBatch, ModelCall
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.engines.sources import ModelSpec, RandomWeights
from rlgraph.backends.engines.tokenizers import WordTokenizer
from rlgraph.catalog.models.families import ModelKind
from rlgraph.ir.mesh import Mesh, make_mesh
from rlgraph.passes.pipelines.bounds import serial_seconds
from rlgraph.passes.pipelines.fuse import best_rule_schedule
from rlgraph.passes.pipelines.problem import PipelineModel, PipelineProblem
from rlgraph.passes.pipelines.timetable import compute_timetable
from tests.backends.engines.ranks import Ranks

STAGES = 2
ROWS, TOKENS = 4, 64
"""Of a micro-batch; half of a row's tokens are scored."""
SIZES = {
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 512,
}
KINDS: tuple[ModelKind, ...] = ("causal_lm", "value_lm")


def micro(kind: ModelKind, block: int) -> MicroBatch:
    made = torch.Generator().manual_seed(block)
    ids = torch.randint(0, 60, (2, ROWS, TOKENS // 2), generator=made)
    part = Sequences.from_pairs(ids[0].tolist(), ids[1].tolist())
    call = ModelCall("logprobs" if kind == "causal_lm" else "values", part)
    return MicroBatch((call,), lambda answers: (answers[0] ** 2).sum())


def job(mesh: Mesh, dtype: str, count: int, times: int) -> tuple[list[float], float]:
    """On one stage: the seconds of either way, and how far the gradients differ."""
    from rlgraph.backends.engines.megatron.engine import MegatronEngine, add_joint_gradients

    words = WordTokenizer(" ".join(f"t{number}" for number in range(60)))
    engines = [
        MegatronEngine.open(
            ModelSpec(kind, RandomWeights("llama", SIZES, words), dtype=dtype), mesh, turned=kind == "value_lm"
        )
        for kind in KINDS
    ]
    parts = [(engine, range(count), partial(micro, kind)) for engine, kind in zip(engines, KINDS, strict=True)]
    ways: list[Callable[[], Any]] = [
        lambda: [add_joint_gradients([part]) for part in parts],
        lambda: add_joint_gradients(parts),
    ]
    seconds: list[list[float]] = [[], []]
    gradients: list[list[torch.Tensor]] = []
    # The first time of either makes connections.
    for turn in range(2 * (times + 1)):
        for engine in engines:
            engine.clear_gradients()
        dist.barrier()
        began = time.perf_counter()
        ways[turn % 2]()
        dist.barrier()
        if turn >= 2:
            seconds[turn % 2].append(time.perf_counter() - began)
        else:
            weights: list[Any] = [weight for each in engines for weight in each.tensors().values()]
            gradients.append([weight.main_grad.clone() for weight in weights])
    pairs = [(one, other) for one, other in zip(*gradients, strict=True) if one.any()]
    return list(map(statistics.median, seconds)), max(float((a - b).abs().max() / a.abs().max()) for a, b in pairs)


def measured(counts: list[int], times: int = 5) -> Iterator[dict[str, Any]]:
    ranks = Ranks(STAGES)
    try:
        for count in counts:
            fast = ranks.run(make_mesh(pp=STAGES), job, "float32", count, times)
            exact = ranks.run(make_mesh(pp=STAGES), job, "float64", count, 1)
            serial, fused = (max(each[0][way] for each in fast) for way in range(2))
            problem = PipelineProblem(
                tuple(PipelineModel(kind, STAGES, count, 1, 2, reverse=kind == "value_lm") for kind in KINDS)
            )
            yield {
                "what": "one pipeline",
                "micro_batches": count,
                "serial": serial,
                "fused": fused,
                "speedup": serial / fused,
                "promised": serial_seconds(problem) / compute_timetable(problem, best_rule_schedule(problem)).makespan,
                "error": max(each[1] for each in exact),
            }
    finally:
        ranks.close()
