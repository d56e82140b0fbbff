"""vLLM's engine with tensor-parallel ranks, each in a process of its own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters

pytest.importorskip("vllm")

from rlgraph.backends.engines.base import Sampling, State
from rlgraph.backends.engines.process_groups import open_store
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.engines.sources import load
from rlgraph.backends.engines.transformers.engine import TransformersEngine
from rlgraph.backends.engines.vllm.engine import VllmEngine
from rlgraph.backends.engines.vllm.spec import SPEC
from rlgraph.backends.engines.weights import ModelWeights, fill_tensors
from rlgraph.catalog.models.adapters import Adapters, adapter_matrix_names
from rlgraph.ir.mesh import make_mesh
from tests.backends.engines.ahead import stepping_ahead
from tests.backends.engines.ranks import IMPORTED
from tests.backends.engines.refreshing import Coming
from tests.backends.engines.vllm_models import misplaced, spec

PROMPTS = Sequences.from_lists([[3 + (i * i + row * i) % 37 for i in range(1 + 5 * row)] for row in range(8)])
KEYS = np.arange(32, dtype=np.uint64)
SAMPLINGS = [
    Sampling(40, stop_ids=(20, 21)),
    Sampling(12, temperature=0.7, top_p=0.9, min_tokens=4),
    Sampling(6, temperature=0),
]
EXPERTS = "qwen2_moe"
LATENT = "deepseek_v3"
SPLIT = [
    *((name, make_mesh(tp=2)) for name in (EXPERTS, LATENT)),
    *((name, make_mesh(ep=2)) for name in (EXPERTS, "mixtral", "qwen3_moe", LATENT)),
]
"""Of models with experts."""
ADAPTED = replace(spec(), adapters=Adapters(4, 8.0))
SHARED = "/dev/shm/"
PATIENCE = 300
"""Seconds."""


def _rank_ahead(rank: int, addresses: Any, results: Any) -> None:
    with stepping_ahead():
        _rank(rank, addresses, results)


def _rank(rank: int, addresses: Any, results: Any) -> None:
    torch.set_num_threads(1)
    if rank == 0:
        meeting = open_store("127.0.0.1")
        addresses.put(meeting.address)
    address = meeting.address if rank == 0 else addresses.get(timeout=PATIENCE)
    # Rows wait for a place, and for room in the cache: the ranks have to decide alike.
    engine = VllmEngine.open(spec(), make_mesh(tp=2), rank, address=address, rows=12, row_tokens=128, cache_bytes=0)
    shared = {line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines() if SHARED in line}
    # Semaphores are those of the queues of this test.
    named = [f"{name} would be left" for name in sorted(shared) if Path(name).exists() and "/sem." not in name]
    if not shared:
        named.append("ranks share no memory: nothing is checked")
    made = [engine.generate(PROMPTS, 4, sampling, KEYS) for sampling in SAMPLINGS]
    rows = [(one.sequences.rows(), one.logprobs.tolist()) for one in made]
    wrong = misplaced(engine, load(spec()).model)
    # New weights that wait at one rank before they do at the other.
    own = engine.state()
    halves = {name: tensor / 2 for name, tensor in own.items()}
    coming = Coming(lambda version: engine.load_weights(halves), after=(7 + 5 * rank,))
    changed = engine.generate(PROMPTS, 4, SAMPLINGS[0], KEYS, refresh=coming)
    assert changed.versions is not None
    routes: list[Any] = []
    # Experts, in the groups of the model without; the same and others, each rank with some of the experts entire.
    for name, over in SPLIT:
        sparse = VllmEngine.open(replace(spec(name), keeps_routes=True), over, rank, address=address)
        fill_tensors(sparse.tensors(), sparse.layout(), ModelWeights(load(spec(name, seed=5)).model))
        sparse.note_weights_written()
        one = sparse.generate(PROMPTS, 4, replace(SAMPLINGS[1], keeps_routes=True), KEYS)
        rows.append((one.sequences.rows(), one.logprobs.tolist()))
        assert one.sequences.routes is not None
        routes.append(one.sequences.routes.sort(-1)[0].tolist())
        wrong += misplaced(sparse, load(spec(name)).model)
        wrong += [name] * (sparse.has_results != engine.has_results)
    # Adapters, which each rank merges into its part, or has beside it.
    for how in SPEC.adapters:
        adapted = VllmEngine.open(ADAPTED, make_mesh(tp=2), rank, address=address, adapters=how)
        adapted.load_weights(new_adapters(adapted.state()))
        one = adapted.generate(PROMPTS, 4, SAMPLINGS[1], KEYS)
        rows.append((one.sequences.rows(), one.logprobs.tolist()))
    wrong += [f"{count} functions were compiled" for count in [counters["frames"]["total"]] if count]
    results.put(
        (rank, engine.has_results, rows, wrong + named, routes, (changed.sequences.rows(), changed.versions.tolist()))
    )


def new_adapters(state: State) -> State:
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(each.shape, generator=generator) / 32 for name, each in sorted(state.items())}


@pytest.mark.long
@pytest.mark.parametrize("rank_of_two", [_rank, _rank_ahead])
def test_two_ranks_generate_the_same_and_each_holds_its_part(rank_of_two: Callable[..., None]) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    addresses, results = context.Queue(), context.Queue()
    ranks = [context.Process(target=rank_of_two, args=(rank, addresses, results), daemon=True) for rank in (0, 1)]
    try:
        for process in ranks:
            process.start()
        found = sorted(results.get(timeout=PATIENCE) for _ in ranks)
    finally:
        for process in ranks:
            process.join(timeout=10)
            process.kill()
    assert [speaks for _, speaks, *_ in found] == [True, False]
    assert [wrong for *_, wrong, _, _ in found] == [[], []]
    (_, _, first, _, routes, changed), (_, _, second, _, other_routes, same) = found
    assert first == second and routes == other_routes
    assert changed == same and {*changed[1]} == {0, 1} and changed[0] != first[0][0]
    adapted = TransformersEngine.open(spec())
    adapters = new_adapters(TransformersEngine.open(ADAPTED).state())
    for name, tensor in adapted.tensors().items():
        a, b = adapter_matrix_names(name.removesuffix(".weight"))
        if a in adapters:
            tensor.data.addmm_(adapters[b], adapters[a], alpha=2.0)
    sparse = [TransformersEngine.open(spec(name, seed=5)) for name, _ in SPLIT]
    others = [*sparse, *[adapted] * len(SPEC.adapters)]
    trainers = [TransformersEngine.open(spec())] * len(SAMPLINGS) + others
    for trainer, sampling, (rows, logprobs) in zip(
        trainers, [*SAMPLINGS, *[SAMPLINGS[1]] * len(others)], first, strict=True
    ):
        keeps = trainer in sparse
        made = trainer.generate(PROMPTS, 4, replace(sampling, keeps_routes=keeps), KEYS)
        assert rows == made.sequences.rows()
        if keeps:
            assert made.sequences.routes is not None
            assert routes.pop(0) == made.sequences.routes.sort(-1)[0].tolist()
        torch.testing.assert_close(torch.tensor(logprobs), made.logprobs, rtol=0, atol=1e-5)
