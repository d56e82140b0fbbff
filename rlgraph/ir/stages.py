"""Pipeline stages: which layers of a model each of them has. Engines, transfers, saved weights and costs follow it."""

from __future__ import annotations

from functools import cache

from rlgraph.ir.layout import Range


@cache
def stage_layers(layers: int, stages: int, stage: int, chunks: int = 1) -> tuple[Range, ...]:
    """Return the ranges of layers of a stage, one for each of its chunks: all stages have a chunk before one of them
    has another.

    Where the layers cannot be divided into as many equal parts, some parts have one more: the last one but one, and
    those before it. The last one has the head as well, the first one the embedding and most micro-batches in flight
    (`get_pp_indices` of vLLM is the same rule).
    """
    parts = stages * chunks
    fewest, longer = divmod(layers, parts)
    first_longer = parts - 1 - longer

    def start(part: int) -> int:
        return part * fewest + min(max(part - first_longer, 0), longer)

    return tuple((start(part), start(part + 1)) for part in range(stage, parts, stages))


@cache
def stage_layer_counts(layers: int, stages: int, chunks: int = 1) -> tuple[int, ...]:
    """Return how many layers each stage has, the first stage first."""
    return tuple(sum(part_layer_counts(layers, stages, stage, chunks)) for stage in range(stages))


@cache
def part_layer_counts(layers: int, stages: int, stage: int, chunks: int = 1) -> tuple[int, ...]:
    """Return how many layers each part of a stage has."""
    return tuple(stop - start for start, stop in stage_layers(layers, stages, stage, chunks))
