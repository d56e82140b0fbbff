"""Transfers over real gloo processes: content, bytes, buffers; torch's own redistribution as the oracle."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import Placement, Replicate, Shard

from rlgraph.backends.engines.base import EngineError
from rlgraph.backends.engines.megatron import layout as megatron
from rlgraph.backends.engines.transformers import layout as transformers
from rlgraph.backends.engines.vllm import layout as vllm
from rlgraph.backends.exchange.digest import MovedPart, first_difference, tensor_digest
from rlgraph.backends.exchange.exchange import ExchangeCost, TransferEndpoint
from rlgraph.backends.exchange.mailbox import GlooLink
from rlgraph.catalog.models.families import parameter_shapes
from rlgraph.catalog.models.latent_attention import ExpertRouting, LatentAttention
from rlgraph.catalog.models.shape import Shape
from rlgraph.ir.layout import LocalTensor, TensorPiece, full_box, layer_tensor_name
from rlgraph.ir.mesh import Mesh, make_mesh
from rlgraph.ir.message_carriers import TensorSite, peer_carriers
from rlgraph.ir.transfer import Topology, Transfer
from rlgraph.passes.resharding.reshard import plan_resharding
from tests.backends.engines.exchanging import Crew, crew, exchange, exchange_changes, hurry, meet, redistribute
from tests.suites import few
from tests.waits import NEVER

WORLD = 4

Side = dict[int, tuple[LocalTensor, ...]]
Case = tuple[str, Mesh, int, str, Mesh, int]
"""Engine, split and first place of the source, and of the destination."""

RUNS = itertools.count()

SITES = {
    "gloo": {place: TensorSite("cpu", place, place, place) for place in range(WORLD)},
    "shared": {place: TensorSite("cpu", 0, 0, place) for place in range(WORLD)},
    "nccl": {place: TensorSite("cuda", place, 0, place) for place in range(WORLD)},
    # Two on one GPU: those of other GPUs have a communicator with each of them.
    "pairs": {place: TensorSite("cuda", place % 2, place, place) for place in range(WORLD)},
    "each": {
        0: TensorSite("cuda", 0, 0, 0),
        1: TensorSite("cuda", 0, 0, 1),
        2: TensorSite("cuda", 1, 0, 2),
        3: TensorSite("cpu", 0, 0, 3),
    },
}
"""Where processes say that they are, for what carries messages between them: they are on this CPU, and what NCCL would do
among GPUs is done by gloo."""


LAYOUTS = {"megatron": megatron.layout, "vllm": vllm.layout, "transformers": transformers.layout}


@pytest.fixture(scope="module")
def four() -> Iterator[Crew]:
    with crew(WORLD) as found:
        yield found


# A model


SMALL = Shape("qwen2", vocab=130, hidden=32, ffn=48, layers=4, heads=8, kv_heads=2, head_dim=4, qkv_bias=True)
LARGE = Shape("qwen3", vocab=2048, hidden=512, ffn=1024, layers=2, heads=8, kv_heads=4, head_dim=64, qk_norm=True)

LATENT = Shape(
    "deepseek_v3",
    vocab=130,
    hidden=32,
    ffn=24,
    layers=4,
    heads=4,
    kv_heads=4,
    head_dim=6,
    experts=4,
    experts_per_token=2,
    shared_ffn=16,
    routing=ExpertRouting(2, 1, 1.0),
    dense=1,
    dense_ffn=48,
    latent=LatentAttention(8, 6, 4, 2, 4),
)


def content(shape: Shape) -> dict[str, Tensor]:
    """Numbers that float32 and bfloat16 both hold exactly, hardly any two neighbours the same."""
    generator = torch.Generator().manual_seed(0)
    return {
        each.name: torch.randint(-127, 127, each.shape, generator=generator).float()
        for each in parameter_shapes(shape, "causal_lm")
    }


def filled(layout: Sequence[LocalTensor], full: Mapping[str, Tensor] | None, dtype: torch.dtype) -> dict[str, Tensor]:
    """A place's tensors, padding and what is not `full` as -1."""
    found = {}
    for local in layout:
        tensor = torch.full(local.shape, -1, dtype=dtype)
        for piece in local.pieces if full is not None else ():
            at = tuple(slice(start, start + high - low) for start, (low, high) in zip(piece.at, piece.box, strict=True))
            tensor[at] = full[piece.name][tuple(slice(*ends) for ends in piece.box)].to(dtype)
        if "*" in local.name:
            found |= {layer_tensor_name(local.name, layer): each.clone() for layer, each in enumerate(tensor)}
        else:
            found[local.name] = tensor
    return found


def side(shape: Shape, engine: str, over: Mesh, first: int = 0) -> Side:
    return {first + rank: LAYOUTS[engine](shape, over, rank) for rank in range(over.rank_count)}


def carry_out(
    four: Crew,
    source: Side,
    destination: Side,
    transfer: Transfer,
    full: Mapping[str, Tensor],
    wide: torch.dtype = torch.float32,
    narrow: torch.dtype = torch.float32,
    ema: float | None = None,
    over: str = "gloo",
) -> tuple[list[ExchangeCost], list[dict[str, Tensor]]]:
    """Run it on all places: what each did, and what it has then. over: what carries it between any two of them, or
    `each` for another thing between others."""
    sent = min(wide, narrow, key=lambda dtype: dtype.itemsize)
    jobs = []
    # That it cannot be averaged is a matter of the whole transfer.
    own = transfer.split_by_place(range(WORLD)) if ema is None else dict.fromkeys(range(WORLD), transfer)
    there = peer_carriers(
        transfer.bytes_by_pair(),
        SITES[over],
        f"the weights of run {next(RUNS)}",
        {place: f"rank {place}" for place in range(WORLD)},
    )
    for place in range(WORLD):
        before, after = source.get(place, ()), destination.get(place, ())
        jobs.append(
            (
                own[place],
                before,
                after,
                filled(before, full, wide),
                filled(after, None, narrow),
                sent,
                ema,
                there[place],
            )
        )
    answers = four.ask(exchange, *jobs)
    assert first_difference(moved.digests for moved, _ in answers) is None
    assert ema is not None or bool(transfer.moves) == any(moved.digests for moved, _ in answers)
    return [moved for moved, _ in answers], [tensors for _, tensors in answers]


CASES = [
    ("megatron", make_mesh(1, 1, 2), 0, "vllm", make_mesh(1, 1, 2), 2),
    ("megatron", make_mesh(1, 1, 2), 0, "vllm", make_mesh(2, 1, 1), 2),
    ("megatron", make_mesh(1, 1, 2), 0, "vllm", make_mesh(2, 1, 1), 1),
    ("megatron", make_mesh(1, 2, 2), 0, "vllm", make_mesh(2, 1, 1), 0),
    ("megatron", make_mesh(1, 2, 2), 0, "vllm", make_mesh(4, 1, 1), 0),
    ("megatron", make_mesh(1, 2, 2), 0, "vllm", make_mesh(2, 1, 2), 0),
    ("megatron", make_mesh(1, 4, 1), 0, "vllm", make_mesh(1, 1, 4), 0),
    ("megatron", make_mesh(1, 3, 1), 0, "vllm", make_mesh(1, 1, 2), 2),
    ("megatron", make_mesh(2, 1, 2), 0, "vllm", make_mesh(1, 1, 4), 0),
    ("megatron", make_mesh(2, 2, 1), 0, "megatron", make_mesh(1, 2, 2), 0),
    ("megatron", make_mesh(1, 1, 4), 0, "megatron", make_mesh(1, 4, 1), 0),
    ("transformers", make_mesh(), 0, "vllm", make_mesh(3, 1, 1), 1),
    ("transformers", make_mesh(2), 0, "vllm", make_mesh(1, 1, 2), 2),
    ("vllm", make_mesh(1, 1, 4), 0, "transformers", make_mesh(), 0),
    ("transformers", make_mesh(fsdp=2), 0, "vllm", make_mesh(1, 1, 2), 2),
    ("transformers", make_mesh(fsdp=4), 0, "megatron", make_mesh(1, 2, 2), 0),
    ("megatron", make_mesh(1, 1, 4), 0, "transformers", make_mesh(fsdp=3), 1),
    ("transformers", make_mesh(fsdp=3), 0, "transformers", make_mesh(2, fsdp=2), 0),
    ("transformers", make_mesh(tp=2), 0, "vllm", make_mesh(1, 1, 2), 2),
    ("megatron", make_mesh(1, 1, 4), 0, "transformers", make_mesh(2, tp=2), 0),
]


def arrived(
    four: Crew, shape: Shape, source: Side, destination: Side, transfer: Transfer, over: str
) -> list[ExchangeCost]:
    """What each process says of a transfer, after which all that the destination holds is there."""
    full = content(shape)
    moved, tensors = carry_out(four, source, destination, transfer, full, over=over)
    for place, layout in destination.items():
        expected = filled(layout, full, torch.float32)
        assert expected.keys() == tensors[place].keys()
        assert all(torch.equal(expected[name], tensors[place][name]) for name in expected)
    return moved


def named(case: Case) -> str:
    return f"{case[0]} {case[1]} - {case[3]} {case[4]} from {case[5]}"


def product(cases: Sequence[Case]) -> list[Any]:
    """Each case over each carrier. `make test` has each case once, and each carrier as often as others."""
    carriers = sorted(SITES)
    return [
        pytest.param(
            *(over, case),
            id=f"{over}-{named(case)}",
            marks=[] if cases.index(case) % len(carriers) == at else pytest.mark.long,
        )
        for at, over in enumerate(carriers)
        for case in cases
    ]


@pytest.mark.parametrize("over, case", product(CASES))
def test_a_model_arrives(four: Crew, over: str, case: Case) -> None:
    """In rounds of small buckets or in one: each carrier has half of the layouts either way, and each layout half of the
    carriers."""
    bucket = (2048, 1 << 26)[(CASES.index(case) + sorted(SITES).index(over)) % 2]
    source, destination = side(SMALL, *case[:3]), side(SMALL, *case[3:])
    topology = Topology.one_per_device(range(WORLD))
    transfer = plan_resharding(source, destination, itemsize=4, topology=topology, bucket=bucket)
    moved = arrived(four, SMALL, source, destination, transfer, over)
    assert sum(each.sent_bytes for each in moved) == sum(each.received_bytes for each in moved) == transfer.bound
    assert max(each.peak_buffer_bytes for each in moved) <= transfer.peak <= bucket


SPARSE = [
    ("megatron", make_mesh(tp=2, ep=2), 0, "transformers", make_mesh(2), 2),
    ("megatron", make_mesh(pp=2, ep=2), 0, "transformers", make_mesh(fsdp=3), 1),
    ("megatron", make_mesh(pp=3), 0, "transformers", make_mesh(fsdp=2), 2),
    ("transformers", make_mesh(fsdp=2), 0, "megatron", make_mesh(pp=2, tp=2), 0),
    ("megatron", make_mesh(1, 4), 0, "megatron", make_mesh(ep=4), 0),
    ("megatron", make_mesh(tp=2, ep=2), 0, "vllm", make_mesh(tp=2), 2),
    ("megatron", make_mesh(pp=2, tp=2), 0, "vllm", make_mesh(ep=4), 0),
    ("transformers", make_mesh(fsdp=3), 0, "vllm", make_mesh(tp=4), 0),
]


@pytest.mark.parametrize("over, case", product(SPARSE))
def test_a_model_whose_first_layer_has_no_experts_arrives(four: Crew, over: str, case: Case) -> None:
    source, destination = side(LATENT, *case[:3]), side(LATENT, *case[3:])
    transfer = plan_resharding(
        source, destination, itemsize=4, topology=Topology.one_per_device(range(WORLD)), bucket=1 << 26
    )
    moved = arrived(four, LATENT, source, destination, transfer, over)
    assert sum(each.sent_bytes for each in moved) == transfer.bound


WIDE, NARROW = torch.float32, torch.bfloat16


@pytest.mark.parametrize(
    "over, wide, narrow",
    few(
        itertools.product(sorted(SITES), (WIDE, NARROW), (WIDE, NARROW)),
        ("gloo", NARROW, WIDE),
        ("shared", WIDE, NARROW),
        ("nccl", NARROW, NARROW),
        ("pairs", WIDE, WIDE),
    ),
)
def test_large_tensors_and_other_dtypes(four: Crew, over: str, wide: torch.dtype, narrow: torch.dtype) -> None:
    """Large parts are sent from where they lie, if they are of the dtype that travels, and the link can."""
    source, destination = side(LARGE, "megatron", make_mesh(1, 2, 1)), side(LARGE, "vllm", make_mesh(2, 1, 1), 2)
    itemsize = min(wide.itemsize, narrow.itemsize)
    transfer = plan_resharding(
        source, destination, itemsize=itemsize, topology=Topology.one_per_device(range(WORLD)), bucket=1 << 28
    )
    full = content(LARGE)
    moved, tensors = carry_out(four, source, destination, transfer, full, wide, narrow, over=over)
    for place, layout in destination.items():
        expected = filled(layout, full, narrow)
        assert all(torch.equal(expected[name], tensors[place][name]) for name in expected)
    assert sum(each.sent_bytes for each in moved) == transfer.bound
    if wide == narrow and over not in ("shared", "each"):
        assert max(each.peak_buffer_bytes for each in moved) < transfer.peak / 10


@pytest.mark.parametrize("over", few(sorted(SITES), "each"))
def test_a_broadcast_that_is_passed_on(four: Crew, over: str) -> None:
    source, destination = side(LARGE, "transformers", make_mesh()), side(LARGE, "vllm", make_mesh(3, 1, 1), 1)
    slow = Topology({place: place for place in range(WORLD)}, dict.fromkeys(range(WORLD), 0), node_bandwidth=1e6)
    transfer = plan_resharding(source, destination, itemsize=4, topology=slow, bucket=1 << 22)
    assert transfer.has_forwarding
    full = content(LARGE)
    moved, tensors = carry_out(four, source, destination, transfer, full, over=over)
    assert max(each.sent_bytes for each in moved) < 1.1 * transfer.bound / 3
    assert max(each.peak_buffer_bytes for each in moved) <= 1 << 22
    for place, layout in destination.items():
        expected = filled(layout, full, torch.float32)
        assert all(torch.equal(expected[name], tensors[place][name]) for name in expected)


@pytest.mark.parametrize("passed_on, narrow", few(itertools.product([False, True], [WIDE, NARROW]), (False, NARROW)))
def test_what_changed_of_a_model(four: Crew, passed_on: bool, narrow: torch.dtype) -> None:
    """The same weights arrive, whole the first time, and then as the few numbers that changed."""
    source = side(LARGE, *(("transformers", make_mesh()) if passed_on else ("megatron", make_mesh(1, 1, 2))))
    destination = side(LARGE, "vllm", make_mesh(3, 1, 1) if passed_on else make_mesh(2, 1, 1), 1 if passed_on else 2)
    slow = Topology({place: place for place in range(WORLD)}, dict.fromkeys(range(WORLD), 0), node_bandwidth=1e6)
    size = narrow.itemsize
    transfer = plan_resharding(source, destination, itemsize=size, topology=slow, bucket=1 << 22, forward=passed_on)
    assert transfer.has_forwarding == passed_on
    generator = torch.Generator().manual_seed(1)
    times = [content(LARGE)]
    for share in (0.01, 0.0, 0.5):
        change = {name: torch.rand(full.shape, generator=generator) < share for name, full in times[-1].items()}
        times.append({name: torch.where(change[name], full + 1, full) for name, full in times[-1].items()})
    jobs = []
    for place in range(WORLD):
        before, after = source.get(place, ()), destination.get(place, ())
        held = [filled(before, full, torch.float32) for full in times]
        jobs.append((transfer, before, after, held, filled(after, None, narrow), narrow))
    answers = four.ask(exchange_changes, *jobs)
    sent = []
    for time, full in enumerate(times):
        for place, layout in destination.items():
            expected = filled(layout, full, narrow)
            assert all(torch.equal(expected[name], answers[place][time][1][name]) for name in expected)
        sent.append(sum(each[time][0].sent_bytes for each in answers))
        assert sent[time] == sum(each[time][0].received_bytes for each in answers)
        assert first_difference(each[time][0].digests for each in answers) is None
    heads = sent[2]
    assert heads < transfer.bound / 1000 and sent[0] == transfer.bound + heads
    assert sent[1] < transfer.bound * (0.01 * (size + 1) + 1 / 255) / size * 1.05 + heads
    assert sent[1] < sent[3] < transfer.bound


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_a_digest_is_of_every_bit_and_its_place(dtype: torch.dtype) -> None:
    """More than one stretch; a tenth of a second each."""
    tensor = torch.arange(300_000).to(dtype)
    digest = tensor_digest(tensor)
    assert digest == tensor_digest(tensor.clone())
    bits = tensor.view(torch.uint8).clone()
    for place in (0, 500, len(bits) - 1):
        for bit in range(8):
            changed = bits.clone()
            changed[place] ^= 1 << bit
            assert tensor_digest(changed.view(dtype)) != digest
    assert tensor_digest(bits.roll(1).view(dtype)) != digest and tensor_digest(bits.flip(0).view(dtype)) != digest


def test_a_part_that_one_end_lacks_differs() -> None:
    part = MovedPart("rank 0", "rank 1", 0, "w[0:4]")
    assert first_difference([{part: 1}, {part: 1}]) is None
    assert first_difference([{part: 1}, {part: 2}]) == first_difference([{part: 1}, {}]) == part


@pytest.mark.parametrize("over", few(sorted(SITES), "shared"))
def test_a_moving_average(four: Crew, over: str) -> None:
    """One place keeps some, gets some; large and small tensors alike."""
    source, destination = side(LARGE, "megatron", make_mesh(1, 2, 1)), side(LARGE, "vllm", make_mesh(3, 1, 1))
    transfer = plan_resharding(
        source, destination, itemsize=4, topology=Topology.one_per_device(range(WORLD)), bucket=1 << 24, forward=False
    )
    full = content(LARGE)
    _, tensors = carry_out(four, source, destination, transfer, full, ema=0.75, over=over)
    for place, layout in destination.items():
        for name, arrived in filled(layout, full, torch.float32).items():
            expected = torch.full_like(arrived, -1).lerp_(arrived, 0.25)
            padding = arrived == -1
            assert torch.equal(tensors[place][name][~padding], expected[~padding])


def test_what_a_place_holds_twice_counts_once(four: Crew) -> None:
    before = tuple(
        LocalTensor(name, (6,), (TensorPiece("w", (ends,), (0,)),)) for name, ends in (("a", (0, 6)), ("b", (4, 10)))
    )
    after = (LocalTensor("w", (10,), (TensorPiece("w", ((0, 10),), (0,)),)),)
    transfer = plan_resharding(
        {0: before}, {0: after}, itemsize=4, topology=Topology.one_per_device(range(WORLD)), bucket=1 << 20
    )
    tensors = {"a": torch.arange(6.0), "b": torch.arange(4.0, 10.0)}
    empty = (transfer, (), (), {}, {}, torch.float32)
    (_, found), *_ = four.ask(
        exchange, (transfer, before, after, tensors, {"w": torch.zeros(10)}, torch.float32, 0.5), *[empty] * 3
    )
    assert torch.equal(found["w"], torch.arange(10.0) / 2)


def test_what_does_not_fit_together(four: Crew) -> None:
    source, destination = side(LARGE, "transformers", make_mesh()), side(LARGE, "vllm", make_mesh(3, 1, 1), 1)
    slow = Topology({place: place for place in range(WORLD)}, dict.fromkeys(range(WORLD), 0), node_bandwidth=1e6)
    transfer = plan_resharding(source, destination, itemsize=4, topology=slow, bucket=1 << 22)
    with pytest.raises(EngineError, match="forward=False"):
        carry_out(four, source, destination, transfer, content(LARGE), ema=0.5)
    with pytest.raises(EngineError, match="planned for elements of 4 bytes"):
        carry_out(four, source, destination, transfer, content(LARGE), torch.bfloat16, torch.bfloat16)


def test_a_peer_that_does_not_answer() -> None:
    """Two mailboxes in one process; only one of them works."""
    store = dist.HashStore()
    boxes: dict[int, GlooLink] = {}

    def make(place: int) -> None:
        boxes[place] = GlooLink(place, (3, 5), store, seconds=NEVER)
        meet(boxes[place], (3, 5))

    makers = [threading.Thread(target=make, args=(place,)) for place in (3, 5)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    hurry(boxes[5], 0.2)
    layout = (LocalTensor("w", (8,), (TensorPiece("w", ((0, 8),), (0,)),)),)
    transfer = plan_resharding(
        {3: layout}, {5: layout}, itemsize=4, topology=Topology.one_per_device((3, 5)), bucket=1 << 20
    )
    end = TransferEndpoint(transfer, boxes[5], destination=layout)
    with pytest.raises(EngineError, match=r"w\[0:8\] of weights from place 3 to place 5 .*gone or does not answer"):
        end.run({}, {"w": torch.zeros(8)})


# torch's own redistribution

PLACEMENTS: tuple[Placement, ...] = (Replicate(), Shard(0), Shard(1))

PAIRS = [
    *(((4,), (a,), (b,)) for a in PLACEMENTS for b in PLACEMENTS),
    *(
        ((2, 2), (a, b), (c, d))
        for a in PLACEMENTS
        for b in PLACEMENTS
        for c in PLACEMENTS
        for d in PLACEMENTS
        if (a, b) != (c, d)
    ),
]


def placed(size: tuple[int, ...], over: tuple[int, ...], placements: tuple[Placement, ...], rank: int) -> LocalTensor:
    """What a rank holds: as torch does it, outer mesh dimensions cut first and each gets ceil(size / parts)."""
    box = list(full_box(size))
    coordinates = Mesh(tuple((str(index), length) for index, length in enumerate(over))).coordinates(rank)
    for index, (length, placement) in enumerate(zip(over, placements, strict=True)):
        if isinstance(placement, Shard):
            low, high = box[placement.dim]
            each = -(-(high - low) // length)
            at = coordinates[str(index)]
            box[placement.dim] = (min(low + at * each, high), min(low + (at + 1) * each, high))
    shape = tuple(high - low for low, high in box)
    return LocalTensor("w", shape, (TensorPiece("w", tuple(box), (0,) * len(size)),))


@pytest.mark.parametrize("step", few([1, 4], 4))
def test_what_torch_can_redistribute(four: Crew, step: int) -> None:
    """No number of ranks divides these sizes: parts differ, and one may be empty. step: through the pairs."""
    size = (7, 5)
    full = torch.arange(size[0] * size[1]).view(size).float()
    for over, before, after in PAIRS[::step]:
        layouts = [(placed(size, over, before, rank), placed(size, over, after, rank)) for rank in range(WORLD)]
        source = {rank: (held,) for rank, (held, _) in enumerate(layouts)}
        destination = {rank: (needed,) for rank, (_, needed) in enumerate(layouts)}
        theirs = four.ask(redistribute, *([(full, over, before, after)] * WORLD))
        for rank, (held, needed) in enumerate(layouts):
            assert [tuple(each.shape) for each in theirs[rank]] == [held.shape, needed.shape]
        transfer = plan_resharding(
            source, destination, itemsize=4, topology=Topology.one_per_device(range(WORLD)), bucket=1 << 20
        )
        jobs = [
            (
                transfer,
                source[rank],
                destination[rank],
                {"w": theirs[rank][0]},
                {"w": torch.zeros(destination[rank][0].shape)},
                torch.float32,
            )
            for rank in range(WORLD)
        ]
        ours = four.ask(exchange, *jobs)
        for rank in range(WORLD):
            assert torch.equal(ours[rank][1]["w"], theirs[rank][1]), (over, before, after, rank)
