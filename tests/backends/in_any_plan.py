"""Steps that come to the same numbers in any block, micro-batch and plan."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from scheduled import compiled
from tiny import Run, Sampled, Seen, compile_text

from rlgraph.backends.ray.backend import RayBackend
from rlgraph.backends.worker.session import Settings

JUDGES = """
def halves(completion_ids, **columns):
    return [float(sum(ids) % 2) for ids in completion_ids]

def some(completion_ids, **columns):
    return [None if sum(ids) % 3 == 0 else float(sum(ids) % {most}) for ids in completion_ids]
"""
"""Functions of the ids of an answer: one that judges all rows, and one that has nothing for a third of them."""
SCHEDULE = """pool play   = 1 devices
pool judges = 2 cpus
place {models} on play(engine=transformers)
place halves, some on judges
stream rollout(block={block})
"""
SPLITS = [{"block": 1}, {"block": 3}, {"micro_rows": 1}, {"micro_rows": 3}]


def one_step(text: str, folder: Path, **settings: Any) -> Seen:
    """A step in one process."""
    [seen] = Run(compile_text(text), folder, **settings).steps(1)
    return seen


def streamed_metrics(text: str, folder: Path, block: int, models: str = "actor") -> Any:
    """The metrics of a step whose rows go to their judges in blocks."""
    made = compiled(text, {}, SCHEDULE.format(models=models, block=block), folder)
    with closing(RayBackend(made.program, made.plan, Settings(folder=folder), debug=True)) as backend:
        [step] = list(backend.run_steps(1))
    return step.metrics


def assert_same(seen: Seen, whole: Seen, close: float) -> None:
    """Metrics, losses and weights of a step are those of another one."""
    assert seen.metrics == pytest.approx(whole.metrics, rel=close)
    for loss, expected in zip(seen.losses["actor"], whole.losses["actor"], strict=True):
        assert loss == pytest.approx(expected, rel=close)
    torch.testing.assert_close(seen.weights["actor"], whole.weights["actor"], atol=close, rtol=0)


def scored_ids(table: Sampled) -> list[list[int]]:
    """The ids of each row that carry loss."""
    return [
        [token for token, mine in zip(row, scored, strict=True) if mine]
        for row, scored in zip(table.tokens, table.scored, strict=True)
    ]
