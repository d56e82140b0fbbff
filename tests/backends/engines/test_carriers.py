"""Links: what carries messages between which processes, that what travels is the same over each, and what is told of one
that fails."""

from __future__ import annotations

import errno
import itertools
import json
import mmap
import multiprocessing
import os
import random
import re
import resource
import signal
import time
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from rlgraph.backends.engines.base import EngineError
from rlgraph.backends.enginespec.layout_checks import layout_problems
from rlgraph.backends.exchange.exchange import TransferEndpoint
from rlgraph.backends.exchange.mailbox import GlooLink
from rlgraph.backends.exchange.shared_memory import HostMemory, SharedMemoryLink, map_host_memory
from rlgraph.backends.exchange.sites import site_of_process
from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.catalog.clusters.topology import tensor_sites_of_devices, topology_of_devices
from rlgraph.catalog.models.shape import Shape
from rlgraph.ir.layout import LocalTensor
from rlgraph.ir.mesh import Mesh, make_mesh
from rlgraph.ir.message_carriers import CARRIERS, PeerCarriers, TensorSite, carrier_between, peer_carriers
from rlgraph.ir.transfer import Topology, Transfer
from rlgraph.passes.resharding.describe import describe_transfer
from rlgraph.passes.resharding.reshard import plan_resharding
from tests.backends.engines.exchanging import Crew, crew, exchange, links_of
from tests.backends.engines.ranks import IMPORTED
from tests.backends.engines.test_exchange import SMALL, WORLD, content, filled, side
from tests.suites import few
from tests.waits import NEVER

# Which one


def test_what_carries_between_whom() -> None:
    """By where the two ends are: the first one of the table that can."""
    cpu, beside, away = TensorSite("cpu", "a", "a", 1), TensorSite("cpu", "a", "a", 2), TensorSite("cpu", "b", "b", 1)
    gpu, same, other, far = (
        TensorSite("cuda", "x", "a", 3),
        TensorSite("cuda", "x", "a", 4),
        TensorSite("cuda", "y", "a", 5),
        TensorSite("cuda", "z", "b", 6),
    )
    assert [each.name for each in CARRIERS] == ["shared", "nccl", "gloo"]
    assert carrier_between(cpu, beside) == carrier_between(cpu, cpu) == "shared"
    assert carrier_between(cpu, away) == carrier_between(cpu, gpu) == carrier_between(gpu, away) == "gloo"
    assert carrier_between(gpu, same) == "shared" and carrier_between(gpu, other) == carrier_between(gpu, far) == "nccl"
    # Two groups of one process: it cannot open its own handle, and NCCL wants a process for each GPU.
    assert carrier_between(gpu, gpu) == carrier_between(gpu, TensorSite("cuda", "y", "a", 3)) == "gloo"


def test_who_makes_a_communicator() -> None:
    def clubs(devices: list[int], pairs: list[tuple[int, int]]) -> list[tuple[tuple[int, ...], ...]]:
        sites = {place: TensorSite("cuda", device, 0, place) for place, device in enumerate(devices)}
        found = peer_carriers(pairs, sites, "the weights", {place: "" for place in sites})
        return [found[place].clubs for place in sites]

    both = (0, 1, 2)
    assert clubs([0, 1, 2, 3], [(0, 1), (0, 2)]) == [(both,), (both,), (both,), ()]
    # Who trains and who samples share two GPUs: no communicator has two processes of one.
    assert clubs([0, 1, 0, 1], [(0, 2), (0, 3), (1, 2), (1, 3)]) == [((0, 3),), ((1, 2),), ((1, 2),), ((0, 3),)]


def test_what_is_not_known_goes_over_gloo() -> None:
    found = peer_carriers([(0, 1)], {0: TensorSite("cpu", 0, 0, 0)}, "the weights", {0: "here", 1: "there"})
    assert found[0].carriers == {1: "gloo"} and found[1].place_name(0) == "here"


def test_a_plan_says_what_carries() -> None:
    """Two nodes of two GPUs: who samples has one of each in common with who trains."""
    cluster = read_cluster("2x2:a100-80gb")
    devices = {0: 0, 1: 1, 2: 1, 3: 2}
    source, destination = side(SMALL, "megatron", make_mesh(tp=2)), side(SMALL, "vllm", make_mesh(dp=2), 2)
    transfer = plan_resharding(
        source, destination, itemsize=4, topology=topology_of_devices(devices, cluster), bucket=1 << 26
    )
    size = {pair: bytes_ for pair, bytes_ in transfer.bytes_by_pair().items()}
    beside = size[1, 2]
    text = f"{beside / 1e3:.1f} kB over shared, {(sum(size.values()) - beside) / 1e3:.1f} kB over nccl"
    assert text in describe_transfer(transfer, sites=tensor_sites_of_devices(devices, cluster))
    cores = describe_transfer(transfer, sites=tensor_sites_of_devices(devices, read_cluster("1x4:cpu(memory=8GiB)")))
    assert f"{sum(size.values()) / 1e3:.1f} kB over shared\n" in cores


def test_where_this_process_is() -> None:
    found = site_of_process(torch.device("cpu"))
    assert (found.kind, found.process) == ("cpu", os.getpid())
    assert carrier_between(found, site_of_process(torch.device("cpu"))) == "shared"


# That what travels is the same


@pytest.fixture(scope="module")
def four() -> Iterator[Crew]:
    with crew(WORLD) as found:
        yield found


SPLITS = {
    "transformers": [
        make_mesh(),
        make_mesh(2),
        make_mesh(fsdp=2),
        make_mesh(fsdp=3),
        make_mesh(fsdp=4),
        make_mesh(tp=2),
        make_mesh(2, tp=2),
    ],
    "megatron": [
        make_mesh(),
        make_mesh(tp=2),
        make_mesh(pp=2),
        make_mesh(pp=4),
        make_mesh(tp=2, pp=2),
        make_mesh(2, tp=2),
        make_mesh(2, pp=2),
    ],
    "vllm": [make_mesh(), make_mesh(2), make_mesh(4), make_mesh(tp=2), make_mesh(2, tp=2), make_mesh(tp=4)],
}


def drawn(chance: random.Random, shape: Shape, engine: str) -> tuple[Mesh, int]:
    over = chance.choice([each for each in SPLITS[engine] if not layout_problems(shape, engine, each)])
    return over, chance.randrange(WORLD - over.rank_count + 1)


@pytest.mark.parametrize("pairs", few([8, 100], 8))
def test_pairs_of_layouts(four: Crew, pairs: int) -> None:
    """Any engine to any, on some of the same places or on others; messages between each two places by another carrier."""
    chance, full, used = random.Random(0), content(SMALL), set[str]()
    for number in range(pairs):
        ends = [chance.choice(sorted(SPLITS)) for _ in range(2)]
        source, destination = (side(SMALL, engine, *drawn(chance, SMALL, engine)) for engine in ends)
        topology = Topology.one_per_device(range(WORLD), chance.choice([1, 2, 4]))
        transfer = plan_resharding(
            source, destination, itemsize=4, topology=topology, bucket=chance.choice([4096, 1 << 26])
        )
        sites = {
            place: TensorSite(chance.choice(["cpu", "cuda", "cuda"]), chance.randrange(3), chance.randrange(2), place)
            for place in range(WORLD)
        }
        there = peer_carriers(
            transfer.bytes_by_pair(), sites, f"the weights of pair {number} of {pairs}", {place: "" for place in sites}
        )
        used |= {name for each in there.values() for name in each.carriers.values()}
        own = transfer.split_by_place(range(WORLD))
        jobs = []
        for place in range(WORLD):
            before, after = source.get(place, ()), destination.get(place, ())
            tensors = filled(before, full, torch.float32), filled(after, None, torch.float32)
            jobs.append((own[place], before, after, *tensors, torch.float32, None, there[place]))
        found = four.ask(exchange, *jobs)
        for place, layout in destination.items():
            expected = filled(layout, full, torch.float32)
            assert all(torch.equal(expected[name], found[place][1][name]) for name in expected), (number, ends)
        sent = sum(moved.sent_bytes for moved, _ in found)
        assert transfer.bound <= sent + transfer.copied <= 1.01 * transfer.bound or sent == transfer.moved
        assert max(moved.peak_buffer_bytes for moved, _ in found) <= transfer.peak
    assert used == {"shared", "nccl", "gloo"}


def own(told: Connection) -> None:
    memory = HostMemory(1 << 20)
    memory.bytes[7] = 5
    told.send(memory.handle())
    told.recv()  # Nothing: it is killed.


def test_nothing_is_left_of_who_is_killed() -> None:
    """Its memory has no name, and goes with those who have it: a handle of what is gone is refused."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    pipes = [context.Pipe() for _ in range(2)]
    owners = [context.Process(target=own, args=(theirs,), daemon=True) for _, theirs in pipes]
    for owner in owners:
        owner.start()
    try:
        handles = [ours.recv() for ours, _ in pipes]
        first, second = map(map_host_memory, handles)
        *place, size = json.loads(handles[0])
        with pytest.raises(EngineError, match="cannot be mapped"):
            map_host_memory(json.dumps([*place, 2 * size + mmap.PAGESIZE]))
        process, file, _ = json.loads(handles[0])
        assert os.readlink(f"/proc/{process}/fd/{file}") == "/memfd:rlgraph (deleted)"
        first[7] = 6
        assert second[7] == 5
    finally:
        for owner in owners:
            owner.kill()
            owner.join()
    assert first[7] == 6
    with pytest.raises(EngineError, match="cannot be mapped"):
        map_host_memory(handles[0])


def test_who_has_no_such_memory_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then gloo carries, which goes everywhere."""

    def refused(name: str) -> int:
        raise OSError(errno.EPERM, "Operation not permitted")

    here = torch.device("cpu")
    assert carrier_between(site_of_process(here), site_of_process(here)) == "shared"
    monkeypatch.setattr(os, "memfd_create", refused)
    assert carrier_between(site_of_process(here), site_of_process(here)) == "gloo"
    monkeypatch.delattr(os, "memfd_create")
    assert carrier_between(site_of_process(here), site_of_process(here)) == "gloo"


def grown(mailbox: GlooLink, sizes: list[int]) -> list[int]:
    """Messages that outgrow the memory, from place 0 to the others."""
    link, found = SharedMemoryLink(mailbox, torch.device("cpu")), []
    for size in sizes:
        if mailbox.place == 0:
            message = link.buffer(size).fill_(size % 251)
            for post in [link.send(message, peer) for peer in (1, 2, 3)]:
                post.wait()
        else:
            post = link.receive(torch.empty(size, dtype=torch.uint8, device="meta"), 0)
            post.wait()
            found.append(int(post.message.double().mean()))
            post.note_read()
    return found


def test_memory_that_grows(four: Crew) -> None:
    sizes = [10, 1000, 500, 1 << 20, 3, 1 << 21]
    assert four.ask(grown, *[(sizes,)] * WORLD) == [[], *[[size % 251 for size in sizes]] * 3]


# What is told of one that fails


class Interrupted(dict[str, Tensor]):
    """Tensors of a process that is ended or stopped when it comes to one of them."""

    def __init__(self, tensors: Mapping[str, Tensor], at: str, by: int) -> None:
        super().__init__(tensors)
        self.at, self.by = at, by

    def __getitem__(self, name: str) -> Tensor:
        if name == self.at:
            os.kill(os.getpid(), self.by)
        return super().__getitem__(name)


def interrupted(
    mailbox: GlooLink,
    transfer: Transfer,
    source: tuple[LocalTensor, ...],
    destination: tuple[LocalTensor, ...],
    tensors: Mapping[str, Tensor],
    into: Mapping[str, Tensor],
    there: PeerCarriers,
    by: int | None,
) -> tuple[str, float]:
    """What a place is told, and after how many seconds. by: the signal that it gets when it comes to the last tensor."""
    end = TransferEndpoint(
        transfer, mailbox, source=source, destination=destination, links=links_of(mailbox, there), ways=there
    )
    # From here on nobody waits for one who only began later.
    dist.barrier()
    began = time.monotonic()
    if by is not None:
        tensors, into = (Interrupted(each, last(each), by) for each in (tensors, into))
    try:
        end.run(tensors, into)
    except EngineError as error:
        return str(error), time.monotonic() - began
    return "", time.monotonic() - began


def last(tensors: Mapping[str, Tensor]) -> str:
    return next((name for name in tensors if "layers.3" in name and "down_proj" in name), "")


KILLED, STOPPED = signal.SIGKILL, signal.SIGSTOP
ENDS = [
    *itertools.product([KILLED], ["sends", "receives"], ["gloo", "shared", "nccl"]),
    # A message has so many seconds, and a busy machine may need them where nobody is stopped.
    *few(itertools.product([STOPPED], ["sends", "receives"], ["gloo", "shared", "nccl"])),
]


@pytest.mark.parametrize("by, end, over", ENDS, ids=lambda value: getattr(value, "name", value))
def test_one_end_fails_in_the_midst(by: int, end: str, over: str) -> None:
    """Its peer is told which tensor was on its way from whom to whom, over what, and how long it has waited."""
    kind, machine = ("cuda", 0) if over == "nccl" else ("cpu", int(over == "gloo"))
    sites = {place: TensorSite(kind, place, place * machine, place) for place in range(2)}
    source, destination = side(SMALL, "transformers", make_mesh()), side(SMALL, "vllm", make_mesh(), 1)
    transfer = plan_resharding(source, destination, itemsize=4, topology=Topology.one_per_device(range(2)), bucket=4096)
    assert transfer.round_count > 10
    names = {0: "rank 0 of learn", 1: "rank 0 of play"}
    there = peer_carriers(transfer.bytes_by_pair(), sites, "the weights of `actor`", names)
    assert there[0].carriers == {1: over}
    failing = 0 if end == "sends" else 1
    jobs = []
    for place in range(2):
        before, after = source.get(place, ()), destination.get(place, ())
        tensors = filled(before, content(SMALL), torch.float32), filled(after, None, torch.float32)
        jobs.append((transfer, before, after, *tensors, there[place], by if place == failing else None))
    # Who is ended is noticed at once.
    with crew(2, seconds=3 if by == STOPPED else NEVER, wait=1) as two:
        two.send(interrupted, *jobs)
        told, seconds = two.answer(1 - failing)
    assert "of the weights of `actor` from rank 0 of learn to rank 0 of play" in told
    assert f"of {transfer.round_count}, over {over})" in told and "layers" in told.split(" of the weights")[0]
    assert "gone or does not answer, after" in told
    if by == STOPPED:
        after = re.search(r"after ([\d.]+) s", told)
        assert seconds >= 3 and after and float(after[1]) >= 3


def starved(mailbox: GlooLink, limit: int, *arguments: Any) -> tuple[str, float]:
    """A process that can have no more bytes than that in one piece of memory that others can map."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    return interrupted(mailbox, *arguments)


def test_memory_that_there_is_not_in_the_midst() -> None:
    """Who sends says how much, for whom, and over what; who waits says from whom."""
    source, destination = side(SMALL, "transformers", make_mesh()), side(SMALL, "vllm", make_mesh(), 1)
    transfer = plan_resharding(source, destination, itemsize=4, topology=Topology.one_per_device(range(2)), bucket=4096)
    sites = {place: TensorSite("cpu", 0, 0, place) for place in range(2)}
    names = {0: "rank 0 of learn", 1: "rank 0 of play"}
    there = peer_carriers(transfer.bytes_by_pair(), sites, "the weights of `actor`", names)
    jobs = []
    for place in range(2):
        before, after = source.get(place, ()), destination.get(place, ())
        tensors = filled(before, content(SMALL), torch.float32), filled(after, None, torch.float32)
        jobs.append((1024, transfer, before, after, *tensors, there[place], None))
    with crew(2, seconds=2, wait=1) as two:
        (sender, _), (receiver, _) = two.ask(starved, *jobs)
    assert sender.startswith("all messages of the weights of `actor` from rank 0 of learn to its peers (round ")
    assert "over shared): there are no " in sender and "File too large" in sender
    assert "of the weights of `actor` from rank 0 of learn to rank 0 of play" in receiver
