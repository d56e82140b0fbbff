"""Tokens of ranks that split layers, on their way to experts on other ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.engines.transformers.engine import TransformersEngine
from rlgraph.ir.mesh import Mesh, make_mesh
from tests.backends.engines.ranks import Ranks
from tests.backends.engines.sharded import MODELS, Task, Trained, whole, with_routes, write
from tests.backends.engines.test_megatron import OPTIONS, gradients

pytest.importorskip("megatron.core")

BLOCKS = ((0, 1), (2, 3, 4))
"""One for each of two ranks that share experts out."""


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    started = Ranks(4)
    yield started
    started.close()


def gradients_and_numbers_sent(mesh: Mesh, spec: Any, task: Task) -> tuple[Trained, int]:
    """Gradients, and how many numbers this rank sends along ep for them, with those that stay: layers are computed
    again."""
    from megatron.core import parallel_state

    plain, sent = dist.all_to_all_single, []

    def counted(output: Tensor, given: Tensor, **named: Any) -> Any:
        if given.is_floating_point() and named["group"] is parallel_state.get_expert_model_parallel_group():
            sent.append(given.numel())
        return plain(output, given, **named)

    with patch.object(dist, "all_to_all_single", counted):
        return gradients(mesh, spec, task, True), sum(sent)


@pytest.mark.parametrize(("model", "one_sided"), [("qwen2_moe", True), ("moonlight", False)])
def test_each_token_goes_to_its_experts_once(ranks: Ranks, tmp_path: Path, model: str, one_sided: bool) -> None:
    """And not once for each rank that splits its layer; gradients are those of one process, of experts that all tokens
    take, too, where some routes are replayed, and where all lead to one rank's experts. 3 s."""
    spec = replace(write(model, "causal_lm", tmp_path / "model"), dtype="float64")
    rows = Sequences.from_pairs([[3 + row, 4, 5, 6 + row, 7] for row in range(5)], [[8, 9 + row] for row in range(5)])
    rows = with_routes(rows, model)
    assert rows.routes is not None
    if one_sided:
        rows = replace(rows, routes=torch.arange(3, dtype=torch.int16).expand_as(rows.routes).contiguous())
    task = Task(rows, (BLOCKS,), replace(OPTIONS, clip_norm=None))
    like = TransformersEngine.open(spec).state()
    expected = whole(ranks.run(make_mesh(), gradients, spec, task, False), like)
    found = ranks.run(make_mesh(ep=2, tp=2), gradients_and_numbers_sent, spec, task)
    for name, tensor in whole([each for each, _ in found], like).items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=1e-10, msg=name)
    config, tokens = MODELS[model][1], 6 * 5
    once = config["num_hidden_layers"] * config["num_experts_per_tok"] * tokens * config["hidden_size"]
    # There and back, forward twice and backward.
    assert sum(numbers for _, numbers in found) == 6 * once
