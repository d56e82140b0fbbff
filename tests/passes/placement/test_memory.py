"""The least memory that a plan needs, from its parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlgraph.catalog.models.families import parameter_count
from rlgraph.catalog.models.shape import Shape
from rlgraph.dsl.check import check
from rlgraph.errors import Source
from rlgraph.ir.graph import Program
from rlgraph.passes.compilation.default_plan import read_model_shapes
from rlgraph.passes.placement.least_memory import least_bytes_of_all_ranks
from rlgraph.passes.rewrites.pipeline import run_passes
from rlgraph.user_code.files import SearchFolders
from tests.passes.placement.test_place import PROGRAM, TINY, planned


@pytest.mark.parametrize(
    ("place", "bytes_of_a_weight"),
    [
        ("actor on all(engine=transformers, dp=1)", 4 + 4 + 8),
        ("actor on all(engine=transformers, dp=2)", 2 * 16),
        # Two copies of half a model, of each of which the moments are in halves, too.
        (
            "actor.train on all(engine=megatron, tp=2, dp=2)\nplace actor.generate on all(engine=vllm, dp=1)",
            2 * (4 + 4 + 4) + 4,
        ),
    ],
)
def test_weights_gradients_and_moments(place: str, bytes_of_a_weight: int) -> None:
    text = PROGRAM.format(models=TINY.format(options=""))
    found, _ = check(Source("a.rlf", text))
    program: Program = run_passes(found)[-1].program
    shapes = read_model_shapes(program, SearchFolders(Path()))
    shape = shapes["actor"]
    assert isinstance(shape, Shape)
    plan = planned(text, f"pool all = 4 devices\nplace {place}\n")
    assert least_bytes_of_all_ranks(program, plan, shapes) == pytest.approx(
        bytes_of_a_weight * parameter_count(shape), rel=1e-3
    )
    assert least_bytes_of_all_ranks(program, plan, {}) == 0
