"""The experts that vLLM's routers chose come with the rows: those of the transformers engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("vllm")

from rlgraph.backends.engines.base import Sampling
from rlgraph.backends.engines.errors import NoRoutes
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.engines.transformers.engine import TransformersEngine
from rlgraph.backends.engines.vllm.engine import VllmEngine
from rlgraph.backends.engines.weights import ModelWeights, fill_tensors
from rlgraph.backends.worker.action_sampling import SampledTurn
from rlgraph.backends.worker.growing_episode import GrowingEpisode
from rlgraph.backends.worker.turn_sampling import cut_to_room
from rlgraph.ir.graph import Node
from tests.backends.engines.refreshing import Coming
from tests.backends.engines.vllm_models import spec

Pair = tuple[VllmEngine, TransformersEngine]
LONG = Sequences.from_lists([[3 + (i * i + row // 2) % 37 for i in range(80 - row)] for row in range(4)])
"""Of several blocks of the key-value cache, which begin alike."""
SHORT = Sequences.from_lists([[5, 6, 7], [8], [9, 10, 11, 12, 13, 14, 15]])


def keys(count: int, start: int = 0) -> np.ndarray:
    return np.arange(start, start + count, dtype=np.uint64)


@pytest.fixture(scope="module", params=["qwen3_moe", "deepseek_v3"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """The second model's first layer has no experts. 4 s each, once vLLM is there."""
    told = replace(spec(request.param), keeps_routes=True)
    yield VllmEngine.open(told, rows=5, row_tokens=128, cache_bytes=0), TransformersEngine.open(told)


def check(pair: Pair, prompts: Sequences, n: int, sampling: Sampling, start: int = 0) -> None:
    made, theirs = (each.generate(prompts, n, sampling, keys(n * len(prompts), start)) for each in pair)
    assert made.sequences.rows() == theirs.sequences.rows()
    mine, other = made.sequences.routes, theirs.sequences.routes
    assert mine is not None and other is not None and mine.dtype == other.dtype and mine.shape == other.shape
    # The order within a token means nothing.
    assert mine.sort(-1)[0].equal(other.sort(-1)[0])


def test_they_are_those_of_transformers(pair: Pair) -> None:
    """With rows that wait for a place, find their prompts in the cache, lose their blocks and are read again."""
    sampling = Sampling(12, keeps_routes=True)
    check(pair, SHORT, 4, sampling)
    check(pair, LONG, 3, sampling)
    # What is in the cache came from rows that did not ask.
    turned = LONG.take(torch.tensor([2, 3]))
    pair[0].generate(turned, 1, Sampling(3), keys(2, 50))
    check(pair, turned, 2, Sampling(40, keeps_routes=True, stop_ids=(20, 21)), 70)
    none = pair[0].generate(SHORT, 2, Sampling(0, keeps_routes=True), keys(6))
    assert none.sequences.routes is not None and bool((none.sequences.routes == -1).all())
    plain = pair[0].generate(SHORT, 1, Sampling(3), keys(3))
    assert plain.sequences.routes is None


def test_with_new_weights_they_are_those_of_the_sampling_ones(pair: Pair) -> None:
    """A row is read again with the weights that came; the experts of its first tokens are those they had."""
    engine, model = pair
    own = engine.state()
    generator = torch.Generator().manual_seed(3)
    other = {name: torch.randn(each.shape, generator=generator) / 8 for name, each in own.items()}
    sampling = Sampling(12, min_tokens=12, keeps_routes=True)
    before = engine.generate(SHORT, 1, sampling, keys(3))
    coming = Coming(lambda _: engine.load_weights(other), after=(6,))
    changed = engine.generate(SHORT, 1, sampling, keys(3), refresh=coming)
    fill_tensors(engine.tensors(), engine.layout(), ModelWeights(model.model))
    engine.note_weights_written()
    first, mixed = before.sequences.routes, changed.sequences.routes
    assert first is not None and mixed is not None and changed.versions is not None
    for row, (one, two) in enumerate(
        zip(
            first.split(before.sequences.lengths.tolist()), mixed.split(changed.sequences.lengths.tolist()), strict=True
        )
    ):
        versions = changed.versions.split(changed.sequences.scored_counts().tolist())[row]
        old = int((versions == versions[0]).sum())
        assert 0 < old < 12
        # The experts that a token has are those with which the next one was sampled.
        count = int(SHORT.lengths[row]) + old - 1
        assert one[:count].equal(two[:count])
        assert not one[count:-1].equal(two[count:-1])
    check(pair, SHORT, 1, sampling)


def played(engine: VllmEngine | TransformersEngine, start: int) -> GrowingEpisode:
    """An episode of three turns, the second of which is cut, with observations between them."""
    line = GrowingEpisode(Node("interact", (), ()), "episode", engine.codec, [5, 6, 7] * 12, "", False, (), {}, False)
    for turn, room in enumerate((9, 4, 9)):
        sampling = Sampling(9, min_tokens=9, keeps_routes=True)
        made = engine.generate(Sequences.from_lists([line.tokens]), 1, sampling, keys(1, start + turn))
        [ids], [routes] = made.sequences.scored_tokens_by_row(), made.sequences.routes_by_row()
        whole = SampledTurn(ids, made.logprobs.tolist(), ((0, len(ids)),), False, routes)
        line.add_action(cut_to_room(whole, room))
        line.observe_tokens([8 + turn, 9, 10, 11 + turn], 200)
    return line


def test_those_of_an_episode_are_those_of_transformers(pair: Pair) -> None:
    """Turn by turn, from what is in the cache and what is not."""
    for start in (200, 300):
        made, theirs = (played(engine, start) for engine in pair)
        assert made.tokens == theirs.tokens and made.routes is not None and theirs.routes is not None
        assert made.routes.shape[0] == len(made.tokens) - 4 and bool((made.routes[:-1] >= 0).all())
        assert made.routes.sort(-1)[0].equal(theirs.routes.sort(-1)[0])


def test_a_dense_model_has_none() -> None:
    engine = VllmEngine.open(replace(spec("qwen2"), keeps_routes=True))
    with pytest.raises(NoRoutes, match="no routers of experts"):
        engine.generate(SHORT, 1, Sampling(3, keeps_routes=True), keys(3))
