"""Which layers of a model each pipeline stage has."""

from __future__ import annotations

import pytest

from rlgraph.ir.stages import part_layer_counts, stage_layer_counts, stage_layers


@pytest.mark.parametrize(
    ("layers", "stages", "expected"),
    [
        (4, 2, (2, 2)),
        (3, 2, (2, 1)),
        (5, 3, (2, 2, 1)),
        (94, 8, (11, 12, 12, 12, 12, 12, 12, 11)),
        (61, 16, (3, 3, *[4] * 13, 3)),
    ],
)
def test_the_last_stage_but_one_and_those_before_it_have_one_layer_more(
    layers: int, stages: int, expected: tuple[int, ...]
) -> None:
    assert stage_layer_counts(layers, stages) == expected


@pytest.mark.parametrize("layers", range(1, 14))
def test_stages_have_all_layers_one_after_another(layers: int) -> None:
    for stages in range(1, layers + 1):
        ranges = [stage_layers(layers, stages, stage) for stage in range(stages)]
        assert [layer for ((start, stop),) in ranges for layer in range(start, stop)] == list(range(layers))


def test_chunks_of_a_stage_lie_as_far_apart_as_there_are_stages() -> None:
    assert [stage_layers(12, 3, stage, 2) for stage in range(3)] == [
        ((0, 2), (6, 8)),
        ((2, 4), (8, 10)),
        ((4, 6), (10, 12)),
    ]


def test_parts_of_a_stage_may_be_unlike() -> None:
    assert [stage_layers(7, 2, stage, 2) for stage in range(2)] == [((0, 2), (4, 6)), ((2, 4), (6, 7))]
    assert [stage_layers(6, 2, stage, 2) for stage in range(2)] == [((0, 1), (3, 5)), ((1, 3), (5, 6))]
    assert [part_layer_counts(6, 2, stage, 2) for stage in range(2)] == [(1, 2), (2, 1)]
    assert stage_layer_counts(7, 2, 2) == (4, 3) and stage_layer_counts(6, 2, 2) == (3, 3)


@pytest.mark.long
def test_the_rule_is_that_of_vllm() -> None:
    distributed = pytest.importorskip("vllm.distributed.utils")
    for layers in range(1, 14):
        for stages in range(1, layers + 1):
            ours = [stage_layers(layers, stages, stage)[0] for stage in range(stages)]
            assert ours == [distributed.get_pp_indices(layers, stage, stages) for stage in range(stages)]
