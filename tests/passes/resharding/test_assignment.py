"""Rank assignments: HybridFlow's rule, formulas and protocols come out of layouts, without being put in."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest

from rlgraph.ir.layout import LocalTensor, TensorPiece, even_range
from rlgraph.ir.mesh import Mesh, make_mesh
from rlgraph.ir.transfer import Topology, Transfer
from rlgraph.passes.resharding.cells import Layout, cut_into_cells
from rlgraph.passes.resharding.rank_assignment import assign_ranks
from rlgraph.passes.resharding.reshard import plan_resharding
from tests.passes.resharding.rows import block, made, needed
from tests.suites import few

LAYERS, ROWS, COLUMNS = 192, 192, 16

M = LAYERS * ROWS * COLUMNS
"""Elements of the model: one weight for each layer."""

Side = dict[int, tuple[LocalTensor, ...]]


def shard(over: Mesh, rank: int) -> tuple[LocalTensor, ...]:
    """Layers over stages, rows over tensor-parallel ranks."""
    layers = even_range(LAYERS, over.axis_size("pp"), over.axis_position(rank, "pp"))
    rows = even_range(ROWS, over.axis_size("tp"), over.axis_position(rank, "tp"))
    shape = (layers[1] - layers[0], rows[1] - rows[0], COLUMNS)
    return (LocalTensor("w", shape, (TensorPiece("w", (layers, rows, (0, COLUMNS)), (0, 0, 0)),)),)


def full() -> tuple[LocalTensor, ...]:
    return shard(make_mesh(), 0)


def zero(size: int, rank: int) -> tuple[LocalTensor, ...]:
    """One of so many equal parts of every layer's weight."""
    layers, rows = (16, size // 16) if size > 16 else (size, 1)
    over = make_mesh(1, layers, rows)
    return shard(over, rank)


def meshes() -> list[tuple[int, int, int, int, int]]:
    """t, p, d, tg, pg: training and generation over the same devices, the second cut less."""
    powers = (1, 2, 4, 8)
    found = [
        (t, p, d, tg, pg)
        for t, p, d, tg, pg in itertools.product(powers, powers, (1, 2, 3), powers, powers)
        if t % tg == 0 and p % pg == 0 and t * p <= 16
    ]
    return [*found, (6, 4, 2, 3, 2), (6, 6, 1, 2, 3), (12, 1, 2, 4, 1)]


def gathered(source: Side, destination: Side) -> set[int]:
    """Elements that each device gets, as planned."""
    transfer = plan_resharding(
        source, destination, itemsize=1, topology=Topology.one_per_device(source), bucket=1 << 40
    )
    assert transfer.moved == transfer.bound
    return {transfer.received_bytes().get(place, 0) for place in destination}


def some() -> list[Any]:
    """The fast suite has one of six, and those that are no powers of two."""
    every = meshes()
    return [
        sizes if number % 6 == 1 or number >= len(every) - 3 else pytest.param(sizes, marks=pytest.mark.long)
        for number, sizes in enumerate(every)
    ]


@pytest.mark.parametrize("sizes", some(), ids=lambda sizes: "-".join(map(str, sizes)))
def test_table_2_of_hybridflow(sizes: tuple[int, int, int, int, int]) -> None:
    """Communication volume, peak of the parameters' memory and redundant memory of a device, as the paper's formulas
    say."""
    t, p, d, tg, pg = sizes
    training, generation = make_mesh(d, p, t), make_mesh(t * p * d // (tg * pg), pg, tg)
    source = {rank: shard(training, rank) for rank in range(training.rank_count)}

    # HybridFlow: the assignment that moves the least. Its rule: stride t/tg in a stage, p/pg over stages.
    found = assign_ranks(
        list(source.values()), [shard(generation, rank) for rank in range(generation.rank_count)], generation
    )
    destination = {device: shard(generation, rank) for device, rank in enumerate(found.ranks)}
    for device, rank in enumerate(found.ranks):
        at, then = training.coordinates(device), generation.coordinates(rank)
        assert then["tp"] == at["tp"] // (t // tg) and then["pp"] == at["pp"] // (p // pg)
    assert gathered(source, destination) == {M // (tg * pg) - M // (t * p)}
    assert found.moved_elements == training.rank_count * (M // (tg * pg) - M // (t * p))
    prints = [footprint(source[device], destination[device]) for device in source]
    assert {peak for _, peak, _ in prints} == {M // (tg * pg)}
    assert {unused for _, _, unused in prints} == {0}

    # HybridFlow-V: gathers a whole copy on each device, then cuts out what consecutive ranks need.
    if t * p > 1:
        assert gathered(source, dict.fromkeys(source, full())) == {M - M // (t * p)}
    vanilla = {rank: shard(generation, rank) for rank in range(generation.rank_count)}
    assert {footprint(source[device], full())[1] for device in source} == {M}
    unused = max(footprint(source[device], vanilla[device])[2] for device in source)
    assert unused == (0 if _nested(training, generation) else M // (t * p))


def _nested(training: Mesh, generation: Mesh) -> bool:
    """Whether consecutive ranks hold their training shards by chance: the paper's figure is the most there can be."""
    for rank in range(training.rank_count):
        at, then = training.coordinates(rank), generation.coordinates(rank)
        for axis in ("tp", "pp"):
            if then[axis] != at[axis] * generation.axis_size(axis) // training.axis_size(axis):
                return False
    return True


@pytest.mark.parametrize(
    "t, p, d", few([(1, 1, 2), (2, 1, 2), (4, 2, 2), (8, 2, 1), (8, 8, 1)], (1, 1, 2), (2, 1, 2), (4, 2, 2), (8, 2, 1))
)
def test_table_2_of_hybridflow_for_deepspeed_chat(t: int, p: int, d: int) -> None:
    """Training cuts the model over all devices (ZeRO); every device gathers all of it."""
    size = t * p * d
    source = {rank: zero(size, rank) for rank in range(size)}
    assert gathered(source, dict.fromkeys(source, full())) == {M - M // size}
    assert {footprint(source[device], full())[1] for device in source} == {M}
    # What training holds stays beside the whole copy, which is laid out otherwise.
    assert {footprint(source[device], ())[2] for device in source} == {M // size}


def test_figure_8_of_hybridflow() -> None:
    """Training 1-4-2 (p, t, d), generation 1-2-2-2 (pg, tg, dg, d)."""
    training, generation = make_mesh(2, 1, 4), make_mesh(4, 1, 2)
    found = assign_ranks(*([shard(over, rank) for rank in range(8)] for over in (training, generation)), generation)
    groups: dict[int, set[int]] = {}
    for device, rank in enumerate(found.ranks):
        groups.setdefault(generation.axis_position(rank, "dp"), set()).add(device + 1)
    assert sorted(map(sorted, groups.values())) == [[1, 3], [2, 4], [5, 7], [6, 8]]
    micro: dict[tuple[int, int], set[int]] = {}
    for device, rank in enumerate(found.ranks):
        micro.setdefault((device // 4, generation.axis_position(rank, "tp")), set()).add(device + 1)
    assert sorted(map(sorted, micro.values())) == [[1, 2], [3, 4], [5, 6], [7, 8]]
    assert str(found) == "dp2 x tp2 x dp2"


def test_the_plain_order_is_kept_where_it_is_as_good() -> None:
    found = assign_ranks(
        [shard(make_mesh(2, 1, 4), rank) for rank in range(8)],
        [shard(make_mesh(2, 1, 4), rank) for rank in range(8)],
        make_mesh(2, 1, 4),
    )
    assert (found.ranks, found.moved_elements, str(found)) == (tuple(range(8)), 0, "dp2 x tp4")


def test_another_number_of_ranks() -> None:
    with pytest.raises(ValueError, match="4 devices cannot run the 2 ranks of tp2"):
        assign_ranks([full()] * 4, [full()] * 2, make_mesh(1, 1, 2))


# Protocols of Table 3: who gets which rows, and who has the results

CONTROLLER = -1

TRAINING = [make_mesh(2, 2, 2), make_mesh(4, 1, 2), make_mesh(1, 4, 1), make_mesh(3, 1, 1), make_mesh(2, 3, 2)]


def delivered(source: Side, destination: Side) -> dict[int, list[int]]:
    """The rows that each place has in the end."""
    transfer = _plan(source, destination)
    found = {place: {row for ends in _rows(source, place) for row in range(*ends)} for place in destination}
    for move in transfer.moves:
        for _, taker, _ in move.routes:
            found[taker] |= {row for _, (ends,) in move.parts for row in range(*ends)}
    return {place: sorted(rows) for place, rows in found.items()}


def senders(source: Side, destination: Side) -> dict[int, list[int]]:
    """The rows that each place sends."""
    found: dict[int, set[int]] = {}
    for move in _plan(source, destination).moves:
        for giver, _, hop in move.routes:
            assert hop == 0
            found.setdefault(giver, set()).update(row for _, (ends,) in move.parts for row in range(*ends))
    return {place: sorted(rows) for place, rows in found.items()}


def _plan(source: Side, destination: Side) -> Transfer:
    topology = Topology.one_per_device(sorted({*source, *destination}))
    return plan_resharding(source, destination, itemsize=1, topology=topology, bucket=1 << 30, forward=False)


def _rows(side: Side, place: int) -> list[tuple[int, int]]:
    return [piece.box[0] for local in side.get(place, ()) for piece in local.pieces]


def split(rows: int, parts: int) -> list[list[int]]:
    """The paper's `split(x, k)`: equal chunks of rows."""
    assert rows % parts == 0
    return [list(range(index * rows // parts, (index + 1) * rows // parts)) for index in range(parts)]


@pytest.mark.parametrize("over", TRAINING, ids=str)
def test_3d_proto(over: Mesh) -> None:
    """Each data-parallel rank gets its chunk, on all of its p x t ranks; the last stage's first ranks have the
    results."""
    rows = 24
    whole = {CONTROLLER: block((0, rows))}
    chunks = split(rows, over.axis_size("dp"))
    expected = {rank: chunks[over.axis_position(rank, "dp")] for rank in range(over.rank_count)}
    assert delivered(whole, needed(over, rows)) == expected
    ends = {
        rank: expected[rank]
        for rank in range(over.rank_count)
        if (over.axis_position(rank, "pp"), over.axis_position(rank, "tp")) == (over.axis_size("pp") - 1, 0)
    }
    assert senders(made(over, rows), whole) == ends
    assert delivered(made(over, rows), whole) == {CONTROLLER: list(range(rows))}


@pytest.mark.parametrize("size", [1, 3, 8])
def test_dp_proto(size: int) -> None:
    """Each rank gets its chunk, and has results."""
    whole = {CONTROLLER: block((0, 24))}
    chunks = dict(enumerate(split(24, size)))
    assert delivered(whole, needed(make_mesh(size), 24)) == chunks == senders(made(make_mesh(size), 24), whole)


@pytest.mark.parametrize("over", TRAINING, ids=str)
def test_one_to_all(over: Mesh) -> None:
    """The same input everywhere: a layout in which every rank has all rows."""
    everywhere = dict.fromkeys(range(over.rank_count), block((0, 24)))
    assert delivered({CONTROLLER: block((0, 24))}, everywhere) == dict.fromkeys(range(over.rank_count), list(range(24)))


@pytest.mark.parametrize("over", TRAINING, ids=str)
def test_3d_pp_only(over: Mesh) -> None:
    """What each stage has, from the first rank of the first copy of each: weights are collected like this."""
    stages = over.axis_size("pp")
    source = {over.rank_at(pp=stage): block(even_range(24, stages, stage)) for stage in range(stages)}
    assert senders(source, {CONTROLLER: block((0, 24))}) == {
        over.rank_at(pp=s): rows for s, rows in enumerate(split(24, stages))
    }


@pytest.mark.parametrize(
    "p, t, d, pg, tg", [(1, 4, 2, 1, 2), (2, 4, 2, 1, 2), (4, 2, 1, 2, 1), (2, 2, 2, 2, 2), (2, 2, 3, 1, 1)]
)
def test_3d_all_micro_dp(p: int, t: int, d: int, pg: int, tg: int) -> None:
    """Generation cuts the rows over its micro-data-parallel ranks as well, which the assignment has put on the
    devices."""
    training, generation = make_mesh(d, p, t), make_mesh(d * p * t // (pg * tg), pg, tg)
    ranks = assign_ranks(
        *([shard(over, rank) for rank in range(over.rank_count)] for over in (training, generation)), generation
    ).ranks
    a, b = p // pg, t // tg
    chunks = split(48, d * a * b)
    expected = {}
    for device in range(training.rank_count):
        at = training.coordinates(device)
        micro = at["pp"] % a * b + at["tp"] % b
        expected[device] = chunks[at["dp"] * a * b + micro]
    side = needed(generation, 48)
    assert (
        delivered({CONTROLLER: block((0, 48))}, {device: side[rank] for device, rank in enumerate(ranks)}) == expected
    )
    results = made(generation, 48)
    spoken = {device: results[rank] for device, rank in enumerate(ranks) if rank in results}
    assert _disjoint(senders(spoken, {CONTROLLER: block((0, 48))}), 48)


def _disjoint(sent: Mapping[int, list[int]], rows: int) -> bool:
    return sorted(row for each in sent.values() for row in each) == list(range(rows))


def test_from_one_mesh_to_another_without_a_controller() -> None:
    """Rows go from who made them to who needs them: 3 copies to 2."""
    before, after = make_mesh(3, 2, 2), make_mesh(2, 1, 2)
    destination = {100 + rank: layout for rank, layout in needed(after, 12).items()}
    transfer = _plan(made(before, 12), destination)
    pairs = {(giver, taker - 100): size for (giver, taker), size in transfer.bytes_by_pair().items()}
    assert pairs == {(2, 0): 4, (2, 1): 4, (6, 0): 2, (6, 1): 2, (6, 2): 2, (6, 3): 2, (10, 2): 4, (10, 3): 4}


def footprint(before: Layout, after: Layout) -> tuple[int, int, int]:
    """Of a device that goes from one layout to another: elements that it has to get, elements it has while both are
    there (what is in both once), and elements it keeps that the second has no use for."""
    moved = peak = unused = 0
    for tensor in cut_into_cells([before, after]):
        have, need = tensor.held_by_layout
        sizes = tensor.volumes()
        moved += int(sizes[need & ~have].sum())
        peak += int(sizes[need | have].sum())
        unused += int(sizes[have & ~need].sum())
    return moved, peak, unused
