"""Transfers between layouts: an emulator runs the rounds and counts every byte."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from rlgraph.backends.engines.megatron import layout as megatron
from rlgraph.backends.engines.transformers import layout as transformers
from rlgraph.backends.engines.vllm import layout as vllm
from rlgraph.backends.enginespec.layout_checks import layout_problems
from rlgraph.catalog.models.families import parameter_shapes as parameters_of
from rlgraph.catalog.models.shape import Shape
from rlgraph.ir.layout import Box, LocalTensor, ParameterShape, TensorPiece, box_elements, even_range, full_box
from rlgraph.ir.mesh import Mesh, make_mesh
from rlgraph.ir.transfer import Topology, Transfer
from rlgraph.passes.resharding.cells import Layout
from rlgraph.passes.resharding.describe import describe_transfer
from rlgraph.passes.resharding.reshard import plan_resharding
from tests.catalog.models.splits import shapes
from tests.counting import calls
from tests.suites import few

Side = dict[int, tuple[LocalTensor, ...]]

ITEM = 4


def local(name: str, *boxes: Box) -> LocalTensor:
    """Boxes of one tensor, as a rank holds them."""
    return LocalTensor(name, (), tuple(TensorPiece(name, box, (0,) * len(box)) for box in boxes))


# Emulator


def content(parameters: Sequence[ParameterShape]) -> dict[str, np.ndarray]:
    """A number of its own for every element."""
    found, start = {}, 0
    for each in parameters:
        size = int(np.prod(each.shape))
        found[each.name] = np.arange(start, start + size).reshape(each.shape)
        start += size
    return found


def held(layout: Layout, full: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Which elements a layout has."""
    found = {name: np.zeros(values.shape, bool) for name, values in full.items()}
    for each in layout:
        for piece in each.pieces:
            found[piece.name][tuple(slice(*ends) for ends in piece.box)] = True
    return found


def run(transfer: Transfer, source: Side, destination: Side, full: Mapping[str, np.ndarray]) -> None:
    """Send what the plan says, round by round, from what each place has at that moment."""
    places = {*source, *destination}
    before = {place: held(source.get(place, ()), full) for place in places}
    needs = {place: held(destination.get(place, ()), full) for place in places}
    have = {place: {name: np.where(mask, full[name], -1) for name, mask in before[place].items()} for place in places}
    got = {place: {name: np.zeros(values.shape, int) for name, values in full.items()} for place in places}
    peak = 0
    for round_ in range(transfer.round_count):
        traffic = dict.fromkeys(places, 0)
        messages = []
        for move in transfer.moves:
            for giver, taker, hop in move.routes:
                for name, box in transfer.section_boxes(move, round_ - hop):
                    at = tuple(slice(*ends) for ends in box)
                    messages.append((taker, name, at, have[giver][name][at].copy()))
                    for end in (giver, taker):
                        traffic[end] += box_elements(box) * transfer.itemsize
        peak = max(peak, *traffic.values())
        for taker, name, at, values in messages:
            assert (values >= 0).all(), "a place sends what it does not have"
            have[taker][name][at] = values
            got[taker][name][at] += 1
    for place in places:
        for name, values in full.items():
            lacks = needs[place][name] & ~before[place][name]
            assert (got[place][name] == lacks).all()  # once where it is needed and was not there, never elsewhere
            assert (have[place][name][needs[place][name]] == values[needs[place][name]]).all()
    assert peak <= transfer.peak


def counted(
    source: Side, destination: Side, full: Mapping[str, np.ndarray], topology: Topology
) -> tuple[int, int, int]:
    """Bytes that have to come from elsewhere, from the same device, and that are there; element by element."""
    on: dict[int, dict[str, np.ndarray]] = {}
    for place, layout in source.items():
        masks = on.setdefault(
            topology.devices[place], {name: np.zeros(values.shape, bool) for name, values in full.items()}
        )
        for name, mask in held(layout, full).items():
            masks[name] |= mask
    away = beside = kept = 0
    for place, layout in destination.items():
        own = held(source.get(place, ()), full)
        near = on.get(topology.devices[place], own)
        for name, needed in held(layout, full).items():
            away += int((needed & ~near[name]).sum())
            beside += int((needed & near[name] & ~own[name]).sum())
            kept += int((needed & own[name]).sum())
    return away * ITEM, beside * ITEM, kept * ITEM


# Layouts at random

SHAPES = st.lists(st.integers(1, 7), min_size=1, max_size=3)


@st.composite
def sides(draw: st.DrawFn, parameters: Sequence[ParameterShape], covering: bool) -> list[tuple[LocalTensor, ...]]:
    """Layouts of a mesh's ranks: stages and splits along any dimensions, uneven, of fused and interleaved pieces."""
    ranks = make_mesh(*(draw(st.integers(1, 3)) for _ in range(3)))
    cuts = []
    for each in parameters:
        dims = st.one_of(st.none(), st.integers(0, len(each.shape) - 1))
        cuts.append((draw(dims), draw(dims), draw(st.integers(0, ranks.axis_size("pp") - 1)), draw(st.integers(1, 3))))
    found = []
    for rank in range(ranks.rank_count):
        layout = []
        for each, (staged, split, stage, blocks) in zip(parameters, cuts, strict=True):
            if staged is None and stage != ranks.axis_position(rank, "pp"):
                continue
            box = list(full_box(each.shape))
            if staged is not None:
                box[staged] = even_range(each.shape[staged], ranks.axis_size("pp"), ranks.axis_position(rank, "pp"))
            layout.append(local(each.name, *_pieces(tuple(box), split, ranks, rank, blocks)))
        found.append(tuple(layout))
    if not covering:
        found = [tuple(each for each in layout if draw(st.integers(0, 9)) < 9) for layout in found]
    return found


def _pieces(box: Box, split: int | None, ranks: Mesh, rank: int, blocks: int) -> list[Box]:
    """The box's part for this rank: one of each of so many blocks, as fused parameters have it."""
    if split is None:
        return [box]
    low, high = box[split]
    found = []
    for block in range(blocks):
        first, last = even_range(high - low, blocks, block)
        start, stop = even_range(last - first, ranks.axis_size("tp"), ranks.axis_position(rank, "tp"))
        if start < stop:
            found.append((*box[:split], (low + first + start, low + first + stop), *box[split + 1 :]))
    return found


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[ParameterShape], Side, Side, Topology, int]:
    parameters = [ParameterShape(f"p{index}", tuple(draw(SHAPES))) for index in range(draw(st.integers(1, 4)))]
    before, after = draw(sides(parameters, True)), draw(sides(parameters, False))
    shift = draw(st.sampled_from((0, 1, 2, len(before))))  # the same places, overlapping ones, others
    order = draw(st.permutations(range(len(after))))
    source = dict(enumerate(before))
    destination = {shift + place: after[rank] for rank, place in enumerate(order)}
    places = sorted({*source, *destination})
    crowd = draw(st.sampled_from((1, 1, 2, 3)))
    devices = {place: place % -(-len(places) // crowd) for place in places}
    nodes = {device: device // draw(st.shared(st.integers(1, 4), key="node")) for device in devices.values()}
    topology = Topology(devices, nodes, node_bandwidth=draw(st.sampled_from((1e3, 1e9))), network_bandwidth=1e3)
    return parameters, source, destination, topology, draw(st.sampled_from((64, 200, 1024, 1 << 20))) * ITEM


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases(), st.booleans())
def test_two_layouts(case: tuple[list[ParameterShape], Side, Side, Topology, int], forward: bool) -> None:
    check(*case, forward)


@pytest.mark.long
@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases(), st.booleans())
def test_any_two_layouts(case: tuple[list[ParameterShape], Side, Side, Topology, int], forward: bool) -> None:
    check(*case, forward)


def check(
    parameters: Sequence[ParameterShape],
    source: Side,
    destination: Side,
    topology: Topology,
    bucket: int,
    forward: bool,
) -> None:
    """Every element arrives where it is needed, once, and no byte more than that is sent."""
    full = content(parameters)
    try:
        transfer = plan_resharding(
            source, destination, itemsize=ITEM, topology=topology, bucket=bucket, forward=forward
        )
    except ValueError as error:
        assert "too small" in str(error)  # checked below
        transfer = plan_resharding(
            source, destination, itemsize=ITEM, topology=topology, bucket=1 << 20, forward=forward
        )
        bucket = 1 << 20
    run(transfer, source, destination, full)
    assert transfer.peak <= bucket
    away, beside, kept = counted(source, destination, full, topology)
    assert (transfer.moved + transfer.copied, transfer.kept, transfer.bound) == (away + beside, kept, away)
    if len({topology.devices[place] for place in destination}) == len(destination):
        assert transfer.moved == away
    else:  # The second of two takers on a device may copy it from the first.
        assert transfer.moved <= away
    assert sum(transfer.sent_bytes().values()) == sum(transfer.received_bytes().values()) == transfer.moved
    assert sum(transfer.bytes_by_pair().values()) == away + beside
    assert forward or not transfer.has_forwarding
    assert len(describe_transfer(transfer).splitlines()) <= 40


LAYOUTS = {"transformers": transformers.layout, "megatron": megatron.layout, "vllm": vllm.layout}


AXES = {"transformers": ("fsdp", "tp"), "megatron": ("tp", "pp", "ep", "chunks"), "vllm": ("tp", "ep")}
"""Along which an engine splits a copy."""


def splits(shape: Shape, engine: str) -> list[dict[str, int]]:
    """Those that an engine can do."""
    sizes = product((1, 2, 3, 4), repeat=len(AXES[engine]))
    found = (dict(zip(AXES[engine], each, strict=True)) for each in sizes)
    return [split for split in found if not layout_problems(shape, engine, make_mesh(**split))]


@st.composite
def ranks_of(draw: st.DrawFn, shape: Shape, engine: str, first: int) -> Side:
    """An engine's ranks, from a place on."""
    over = make_mesh(draw(st.integers(1, 2)), **draw(st.sampled_from(splits(shape, engine)[::-1])))
    return {first + rank: LAYOUTS[engine](shape, over, rank) for rank in range(over.rank_count)}


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("after", sorted(LAYOUTS))
@pytest.mark.parametrize("before", few(sorted(LAYOUTS), "megatron", "transformers"))
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_from_any_engine_to_any(before: str, after: str, sparse: bool, data: st.DataObject) -> None:
    """A model as any two engines hold it, on other places or on some of the same."""
    shape = data.draw(shapes(sparse).filter(lambda shape: bool(shape.experts) == sparse))
    # Not every engine knows every family.
    assume(splits(shape, before) and splits(shape, after))
    source = data.draw(ranks_of(shape, before, 0))
    destination = data.draw(ranks_of(shape, after, data.draw(st.sampled_from((0, 1, len(source))))))
    topology = Topology.one_per_device(sorted({*source, *destination}), data.draw(st.integers(1, 4)))
    check(list(parameters_of(shape)), source, destination, topology, ITEM << 20, data.draw(st.booleans()))


# What has to be so


def test_ranks_that_share_tokens_out_send_a_model_once() -> None:
    """They hold the same, as copies do: each element is sent by one of them."""
    shape, over = Shape("qwen2", 10, 8, 16, 4, 4, 4, 2), make_mesh(cp=2, tp=2)
    source = {rank: megatron.layout(shape, over, rank) for rank in range(over.rank_count)}
    destination = {over.rank_count + rank: vllm.layout(shape, make_mesh(tp=2), rank) for rank in range(2)}
    full = content(list(parameters_of(shape)))
    topology = Topology.one_per_device(sorted({*source, *destination}), 8)
    transfer = plan_resharding(source, destination, itemsize=ITEM, topology=topology, bucket=1 << 20)
    run(transfer, source, destination, full)
    norms = sum(values.size for name, values in full.items() if "norm" in name)
    assert transfer.moved == transfer.bound == ITEM * (norms + sum(values.size for values in full.values()))


def replicated(size: int, places: Sequence[int]) -> Side:
    return dict.fromkeys(places, (local("w", ((0, size),)),))


def plan(source: Side, destination: Side, bucket: int = 1 << 30, per_node: int = 8) -> Transfer:
    topology = Topology.one_per_device(sorted({*source, *destination}), per_node)
    return plan_resharding(source, destination, itemsize=ITEM, topology=topology, bucket=bucket)


def test_replicas_share_the_sending() -> None:
    """Three have it, two want it: each of the three sends two thirds."""
    size = 3 << 18
    transfer = plan(replicated(size, range(3)), replicated(size, (3, 4)))
    assert set(transfer.sent_bytes().values()) == {2 * size * ITEM // 3}


def test_a_holder_on_the_same_node_is_preferred() -> None:
    transfer = plan(replicated(1 << 20, (0, 2)), replicated(1 << 20, (1, 3)), per_node=2)
    assert transfer.bytes_by_pair().keys() == {(0, 1), (2, 3)}


def test_a_process_on_the_same_device_is_preferred() -> None:
    devices = {0: 0, 1: 1, 2: 0, 3: 1}
    transfer = plan_resharding(
        replicated(1 << 20, (0, 1)),
        replicated(1 << 20, (2, 3)),
        itemsize=ITEM,
        topology=Topology(devices, {0: 0, 1: 0}),
        bucket=1 << 30,
    )
    assert transfer.bytes_by_pair().keys() == {(0, 2), (1, 3)}
    assert (transfer.moved, transfer.bound, transfer.copied) == (0, 0, 2 * (1 << 20) * ITEM)


def test_what_many_want_is_passed_on() -> None:
    """A sender that had to send the same thing eight times takes longer than takers that pass it on."""
    size = 1 << 28
    transfer = plan(replicated(size, (0,)), replicated(size, range(1, 9)), per_node=16)
    assert transfer.has_forwarding and max(transfer.sent_bytes().values()) <= 2 * size * ITEM
    direct = plan_resharding(
        replicated(size, (0,)),
        replicated(size, range(1, 9)),
        itemsize=ITEM,
        topology=transfer.topology,
        bucket=1 << 30,
        forward=False,
    )
    assert max(direct.sent_bytes().values()) == 8 * size * ITEM
    assert transfer.seconds < direct.seconds / 2


def test_parts_of_one_size_are_not_divided_again() -> None:
    """Four have a quarter each, four of another node need all of it: each of these gets one quarter over the network,
    whole, and passes it on. A quarter of each quarter would be four times as many pieces."""
    size = 1 << 26
    source = {place: (local("w", ((place * size // 4, (place + 1) * size // 4),)),) for place in range(4)}
    transfer = plan(source, replicated(size, range(4, 8)), per_node=4)
    assert len(transfer.moves) == 4
    first = [(start, end) for move in transfer.moves for start, end, hop in move.routes if hop == 0]
    assert sorted(end for _, end in first) == [4, 5, 6, 7] and sorted(start for start, _ in first) == [0, 1, 2, 3]
    assert transfer.moved == transfer.bound == 4 * size * ITEM


def test_a_thing_of_little_size_is_not() -> None:
    transfer = plan(replicated(16, (0,)), replicated(16, range(1, 4)))
    assert not transfer.has_forwarding


def test_an_all_gather_needs_no_passing_on() -> None:
    """Each place sends its part to all others: all links are equally busy already."""
    size = 1 << 22
    source = {place: (local("w", (even_range(size, 4, place),)),) for place in range(4)}
    transfer = plan(source, replicated(size, range(4)))
    assert not transfer.has_forwarding
    assert set(transfer.sent_bytes().values()) == set(transfer.received_bytes().values()) == {size * ITEM * 3 // 4}


def test_a_node_gets_a_thing_once() -> None:
    """And its devices get equal parts of it over the network, each with a link of its own."""
    size = 1 << 24
    transfer = plan(replicated(size, range(8)), replicated(size, range(8, 24)), per_node=8)
    assert sum(transfer.bytes_between_nodes().values()) == 2 * size * ITEM
    entry: dict[int, int] = {}
    for (source, destination), bytes_ in transfer.bytes_by_pair().items():
        if transfer.topology.node_of(source) != transfer.topology.node_of(destination):
            entry[destination] = entry.get(destination, 0) + bytes_
    assert set(entry.values()) == {size * ITEM // 8}


def test_what_nobody_has() -> None:
    with pytest.raises(ValueError, match=r"needs w \[4:8\], which no place of the source holds"):
        plan({0: (local("w", ((0, 4),)),)}, replicated(8, (1,)))


def test_a_bucket_that_is_too_small() -> None:
    source = {place: (local("w", (even_range(64, 4, place),)),) for place in range(4)}
    assert plan(source, replicated(64, (4,)), bucket=4 * ITEM).peak == 4 * ITEM
    with pytest.raises(ValueError, match="bucket of 12 bytes is too small: a place has messages of 16 bytes"):
        plan(source, replicated(64, (4,)), bucket=3 * ITEM)


def test_nothing_to_do() -> None:
    transfer = plan(replicated(8, (0, 1)), replicated(8, (0, 1)))
    assert (transfer.moves, transfer.moved, transfer.kept) == ((), 0, 2 * 8 * ITEM)


# A large model

QWEN_72B = Shape("qwen2", 152064, 8192, 29568, 80, 64, 8, 128, qkv_bias=True)


def side(layout, over: Mesh, first: int = 0) -> Side:
    """Copies along dp share their layouts."""
    known = {
        (over.axis_position(r, "pp"), over.axis_position(r, "tp")): layout(QWEN_72B, over, r)
        for r in over.ranks_at(dp=0)
    }
    return {
        first + rank: known[over.axis_position(rank, "pp"), over.axis_position(rank, "tp")]
        for rank in range(over.rank_count)
    }


def planned(ranks: int, where: str) -> tuple[Transfer, int]:
    """A large model's way from so many ranks to so many, and how many calls it takes to plan it."""
    first = 0 if where == "same places" else ranks
    source, destination = (
        side(megatron.layout, make_mesh(ranks // 64, 8, 8)),
        side(vllm.layout, make_mesh(ranks // 8, 1, 8), first),
    )
    devices = {place: place % ranks if where == "same devices" else place for place in {*source, *destination}}
    topology = Topology(devices, {device: device // 8 for device in devices.values()})
    made: list[Transfer] = []
    work = calls(
        lambda: made.append(plan_resharding(source, destination, itemsize=2, topology=topology, bucket=256 << 20))
    )
    return made[0], work


@pytest.mark.parametrize("where", few(["same places", "same devices", "other devices"], "same places"))
def test_a_large_model_on_1024_ranks_is_planned_once_for_all_copies(where: str) -> None:
    """Half a million calls are less than a second, and twice as many ranks are hardly more of them."""
    (_, half), (transfer, work) = planned(512, where), planned(1024, where)
    assert work < 1.1 * half and work < 500_000
    assert transfer.moved == transfer.bound
    assert transfer.peak <= 256 << 20
    assert len(describe_transfer(transfer).splitlines()) <= 40
    received = transfer.received_bytes()
    # No link is much busier than the busiest receiver's, which no plan can spare.
    assert max(transfer.sent_bytes().values()) <= 1.15 * max(received.values())


def test_a_transfer_as_text() -> None:
    source, destination = side(megatron.layout, make_mesh(2, 2, 2)), side(vllm.layout, make_mesh(4, 1, 2), 8)
    devices = {place: place for place in range(16)}
    topology = Topology(devices, {device: device // 8 for device in devices})
    transfer = plan_resharding(source, destination, itemsize=2, topology=topology, bucket=256 << 20)
    who = {place: ("actor", place) if place < 8 else ("rollout", place - 8) for place in range(16)}
    text = describe_transfer(transfer, who)
    assert text.startswith(
        "581.7 GB between devices (at least 581.7 GB), 0 bytes copied on a device, 0 bytes in place already\n"
    )
    # The two copies of the actor share the sending of each half of a tensor-parallel rank's layers. Those that receive
    # share it by the halves, so that none of these is cut in two again.
    assert (
        "actor 1 -> rollout 1-7:2: 18.2 GB to each, passed on once\n"
        "    model.embed_tokens.weight[76032:152064, 0:8192], "
        "model.layers.*.self_attn.q_proj.weight[0:40, 4096:8192, 0:8192] and 9 more\n"
        "actor 5 -> rollout 1-7:2: 18.2 GB to each, passed on once\n"
    ) in text
    assert (
        describe_transfer(plan(replicated(8, (0, 1)), replicated(8, (0, 1))))
        == "nothing moves: every place has what it needs (64 bytes)"
    )
