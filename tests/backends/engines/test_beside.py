"""Models that are split unlike, in processes of their own, in one pipeline on the same devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

pytest.importorskip("megatron.core")

from rlgraph.backends.engines.base import TrainOptions
from rlgraph.backends.engines.process_groups import connect_to_store, open_store
from rlgraph.backends.engines.sources import ModelSpec
from rlgraph.backends.engines.transformers.engine import TransformersEngine
from rlgraph.backends.exchange.mailbox import GlooLink
from rlgraph.backends.ray.time_sharing import PipelineSeat, PipelineTurns, pipeline_seats
from rlgraph.ir.mesh import Mesh, make_mesh
from rlgraph.ir.plan import Group
from rlgraph.passes.placement.fused_pipelines import shared_stage_devices
from tests.backends.engines.ranks import Ranks
from tests.backends.engines.sharded import Clipped, Task, Trained, rows, whole, write
from tests.suites import few
from tests.waits import NEVER

PAIRS = {
    "more copies behind each other": (make_mesh(pp=4), make_mesh(dp=2, pp=2)),
    "no stages of its own": (make_mesh(pp=2), make_mesh(dp=2)),
    "copies side by side": (make_mesh(pp=2, tp=2), make_mesh(dp=2, pp=2)),
    "both": (make_mesh(pp=2, tp=2), make_mesh(dp=4)),
    "two blocks": (make_mesh(dp=2, pp=2), make_mesh(dp=4)),
    "in parts": (make_mesh(pp=2, chunks=2), make_mesh(dp=2)),
}
KINDS = ("causal_lm", "value_lm")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models")
    for kind in KINDS:
        write("tied", kind, made / kind)
    return made


@pytest.fixture(scope="module")
def ranks() -> Iterator[tuple[Ranks, Ranks]]:
    """Processes of both models."""
    both = tuple(Ranks(4) for _ in KINDS)
    yield both
    for each in both:
        each.close()


def gradients(
    split: Mesh,
    spec: ModelSpec,
    tasks: Sequence[Task],
    turned: bool,
    seats: Sequence[PipelineSeat],
    places: Sequence[int],
    addresses: Sequence[str],
) -> list[Trained]:
    """Of a model beside another one, by each task. seats, places, addresses: of each rank; none: it is alone."""
    from rlgraph.backends.engines.megatron.engine import MegatronEngine, add_joint_gradients
    from rlgraph.backends.engines.megatron.shim import redirect_cuda_to_cpu

    engine, rank = MegatronEngine.open(spec, split, turned=turned), dist.get_rank()
    found, beside = list[Trained](), None
    if seats:
        count = addresses.count(addresses[rank]) * len(KINDS)
        mailbox = GlooLink(places[rank], range(count), connect_to_store(addresses[rank], NEVER), seconds=NEVER)
        beside = PipelineTurns(mailbox, seats[rank], count)
    for task in tasks:
        blocks = task.blocks[split.axis_position(rank, "dp")]
        with redirect_cuda_to_cpu():
            engine.clear_gradients()
            # Twice, as in two updates.
            for _ in range(2):
                add_joint_gradients([(engine, blocks, partial(task.micro, spec.kind, 0))], beside=beside)
            assert engine._trainer
            engine._trainer.sum_gradients()
            grads = {name: weight.main_grad.clone() for name, weight in engine.tensors().items()}
        found.append(Trained([], grads, engine.layout()))
    return found


def shared(copies: int, count: int, drop: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Rows for copies, the first of which has micro-batches of one row each and more of them than others. drop: copies
    that have none."""
    busy = copies - drop
    own = [tuple(range(at, count, busy)) for at in range(busy)]
    found = [
        tuple((row,) for row in own[0]),
        *(tuple(part[at : at + 2] for at in range(0, len(part), 2)) for part in own[1:]),
    ]
    return (*found, *((),) * drop)


@pytest.mark.parametrize("pair", few(PAIRS, "no stages of its own"))
def test_they_have_the_gradients_that_they_have_alone(ranks: tuple[Ranks, Ranks], folder: Path, pair: str) -> None:
    """Where all copies have rows, and where one of each model has none."""
    splits, groups = PAIRS[pair], list[Group]()
    for name, split in zip(KINDS, splits, strict=True):
        groups.append(Group(name, "all", "megatron", split, tuple(range(split.rank_count)), (name,)))
    groups = [replace(group, devices=shared_stage_devices(group, groups)) for group in groups]
    meetings, where = [], dict[tuple[str, int], tuple[PipelineSeat, int, str]]()
    for block in pipeline_seats(groups, KINDS):
        meetings.append(open_store("127.0.0.1"))
        where |= {who: (seat, at, meetings[-1].address) for at, (who, seat) in enumerate(block.items())}
    jobs = []
    for at, (group, kind) in enumerate(zip(groups, KINDS, strict=True)):
        copies = group.mesh.axis_size("dp")
        tasks = [
            Clipped(rows(12), shared(copies, 9, drop if copies > 1 else 0), TrainOptions(lr=1e-2)) for drop in (0, 1)
        ]
        spec = ModelSpec(kind, str(folder / kind), "float64")
        told = [*zip(*(where[kind, rank] for rank in range(group.mesh.rank_count)), strict=True)]
        jobs.append((group.mesh, gradients, spec, tasks, at == 1, *map(list, told)))
    with ThreadPoolExecutor(2) as pool:
        together = [*pool.map(lambda each: each[0].run(*each[1]), zip(ranks, jobs, strict=True))]
    for (_, _, spec, tasks, *_), both in zip(jobs, together, strict=True):
        whole_tasks = [replace(task, blocks=(tuple(block for own in task.blocks for block in own),)) for task in tasks]
        alone = ranks[0].run(make_mesh(), gradients, spec, whole_tasks, False, [], [], [])
        like = TransformersEngine.open(replace(spec, dtype="float32")).state()
        for at in range(len(tasks)):
            expected, grads = (whole([rank[at] for rank in each], like) for each in (alone, both))
            for name, tensor in grads.items():
                assert expected[name].abs().max() > 0
                torch.testing.assert_close(tensor, expected[name], rtol=0, atol=1e-10)
