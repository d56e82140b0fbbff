"""What is told of stages with several parts of the layers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import rlgraph
from rlgraph.catalog.clusters.units import format_seconds
from rlgraph.explain.chunked_stages import chunked_stage_lines
from rlgraph.ir.mesh import make_mesh

GRPO = Path(rlgraph.__file__).parent / "algorithms" / "grpo.rlf"
LARGE = {"base": '"Qwen/Qwen2.5-32B-Instruct"'}


def test_parts_of_a_stage_are_told_with_what_they_save() -> None:
    found = rlgraph.compile(GRPO, cluster="8x8:a100-80gb", set={"base": '"meta-llama/Llama-2-70b-hf"'}).choice
    [(component, option)] = [
        (component, option)
        for component, option in zip(found.problem.components, found.search_result.options, strict=True)
        if option.deployment.chunks_per_stage > 1
    ]
    split = dict(option.strategy.deployment.mesh.axes)
    plain = replace(option.strategy.deployment, mesh=make_mesh(**(split | {"chunks": 1})))
    several, single = (
        sum(each * often for each, often in zip(own.task_seconds(option.copies), option.often, strict=True))
        for own in (option.strategy, found.problem.options.make_strategy(component, plain))
    )
    assert single > several
    assert list(chunked_stage_lines(found)) == [
        f"actor has {split['chunks']} parts of the layers on each of {split['pp']} stages: "
        f"{format_seconds(several)} in place of {format_seconds(single)} with one"
    ]


def test_a_schedule_that_says_one_part_has_it() -> None:
    schedule = "schedule grpo\npool all = 32 devices\nplace actor.train on all(engine=megatron, pp=4, chunks=1)\n"
    found = rlgraph.compile(GRPO, schedule=schedule, cluster="4x8:a100-80gb", set=LARGE).choice
    assert [option.deployment.chunks_per_stage for option in found.search_result.options] == [1] * len(
        found.search_result.options
    )
    assert list(chunked_stage_lines(found)) == []
