"""Moving weights between layouts, beside what else there is: bytes on the wire and time, in memory that processes share
and on gloo over the loopback device.

    shared    our plan, carried out by `TransferEndpoint`, through memory that both processes have mapped: as on one
              machine
    planned   the same over gloo, as between machines
    floor     the fewest bytes, as flat buffers with isend and irecv: no packing and no unpacking
    gather    every parameter gathered in full on every rank that takes part, then cut
    dtensor   `DTensor.redistribute`, where it can express the pair

    python benchmarks/reshard.py
    unshare -rn sh -c 'ip link set lo up; python benchmarks/reshard.py'

In a network namespace of its own, as in the second line, the loopback device carries nothing else and `wire` is exact.
The ways take turns, and medians are shown, so that noise hits all alike. `cpu` is the CPU time of all ranks together.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.filterwarnings("ignore")

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.multiprocessing.spawn import spawn

from rlgraph.backends.engines.process_groups import connect_to_store, open_store
from rlgraph.backends.exchange.exchange import ExchangeCost, TransferEndpoint
from rlgraph.backends.exchange.mailbox import GlooLink
from rlgraph.backends.exchange.shared_memory import SharedMemoryLink
from rlgraph.ir.layout import LocalTensor, ParameterShape, TensorPiece, even_range, full_box
from rlgraph.ir.transfer import Topology
from rlgraph.passes.resharding.reshard import plan_resharding

WORLD = 4
DTYPE = torch.bfloat16


@dataclass(frozen=True)
class Size:
    hidden: int
    layers: int
    ffn: int
    vocab: int


@dataclass(frozen=True)
class Weight(ParameterShape):
    split: int | None = None
    """The dimension that tensor parallelism cuts."""
    late: bool = False
    """Whether it is on the second of two pipeline stages."""


def weights(size: Size) -> list[Weight]:
    """A GPT-like model, layer by layer."""
    h, f = size.hidden, size.ffn
    found = [Weight("embed", (size.vocab, h), 0)]
    for layer in range(size.layers):
        late = layer >= size.layers // 2
        found += [
            Weight(f"{layer}.norm1", (h,), None, late),
            Weight(f"{layer}.qkv", (3 * h, h), 0, late),
            Weight(f"{layer}.o", (h, h), 1, late),
            Weight(f"{layer}.norm2", (h,), None, late),
            Weight(f"{layer}.gate_up", (2 * f, h), 0, late),
            Weight(f"{layer}.down", (h, f), 1, late),
        ]
    return [*found, Weight("norm", (h,), None, True), Weight("head", (size.vocab, h), 0, True)]


@dataclass(frozen=True)
class Layout:
    """Which ranks there are, and how they cut a weight."""

    ranks: tuple[int, ...]
    tp: int = 1
    stages: int = 1
    fsdp: bool = False
    """Every weight is cut along its first dimension, over all ranks."""

    def holds(self, weight: Weight, rank: int) -> bool:
        index = self.ranks.index(rank) if rank in self.ranks else -1
        return index >= 0 and (self.stages == 1 or index // self.tp == weight.late)

    def cut(self, weight: Weight) -> int | None:
        return 0 if self.fsdp else weight.split if self.tp > 1 else None

    def parts(self) -> int:
        return len(self.ranks) if self.fsdp else self.tp

    def box(self, weight: Weight, rank: int) -> tuple[tuple[int, int], ...]:
        box = list(full_box(weight.shape))
        cut = self.cut(weight)
        if cut is not None:
            box[cut] = even_range(weight.shape[cut], self.parts(), self.ranks.index(rank) % self.parts())
        return tuple(box)

    def locals(self, model: list[Weight], rank: int) -> tuple[LocalTensor, ...]:
        found = []
        for weight in model:
            if self.holds(weight, rank):
                box = self.box(weight, rank)
                shape = tuple(high - low for low, high in box)
                found.append(LocalTensor(weight.name, shape, (TensorPiece(weight.name, box, (0,) * len(box)),)))
        return tuple(found)

    def team(self, weight: Weight, rank: int) -> tuple[int, ...]:
        """The ranks whose parts make up this rank's copy of a weight."""
        first = self.ranks.index(rank) // self.parts() * self.parts()
        return self.ranks[first : first + self.parts()]


ALL = (0, 1, 2, 3)


@dataclass(frozen=True)
class Case:
    name: str
    source: Layout
    destination: Layout
    mesh: tuple[int, ...] = ()
    """Of DTensor, where it can express the pair; `s` stands for the dimension that tensor parallelism cuts."""
    before: str = ""
    after: str = ""


CASES = [
    Case("TP4 -> DP4", Layout(ALL, 4), Layout(ALL), (4,), "s", "r"),
    Case("TP2xDP2 -> TP4", Layout(ALL, 2), Layout(ALL, 4), (2, 2), "rs", "ss"),
    Case("TP4 -> TP2xDP2", Layout(ALL, 4), Layout(ALL, 2), (2, 2), "ss", "rs"),
    Case("FSDP4 -> TP4", Layout(ALL, fsdp=True), Layout(ALL, 4), (4,), "0", "s"),
    Case("FSDP4 -> TP2xDP2", Layout(ALL, fsdp=True), Layout(ALL, 2)),
    Case("PP2xTP2 -> DP4", Layout(ALL, 2, 2), Layout(ALL)),
    Case("PP2xTP2 -> TP2xDP2", Layout(ALL, 2, 2), Layout(ALL, 2)),
    Case("TP2 on 0-1 -> TP2 on 2-3", Layout((0, 1), 2), Layout((2, 3), 2)),
    Case("TP2 on 0-1 -> DP2 on 2-3", Layout((0, 1), 2), Layout((2, 3))),
]

# The ways


def values(layout: Layout, model: list[Weight], rank: int, *, empty: bool = False) -> dict[str, Tensor]:
    """A rank's tensors. The same numbers on all ranks: each element is 7 * its row + its column, modulo 251."""
    found = {}
    for weight in model:
        if layout.holds(weight, rank):
            rows, *columns = (torch.arange(*ends) for ends in layout.box(weight, rank))
            full = 7 * rows[:, None] + columns[0] if columns else rows
            found[weight.name] = torch.full_like(full % 251, -1).to(DTYPE) if empty else (full % 251).to(DTYPE)
    return found


def planned(
    case: Case, model: list[Weight], rank: int, mailbox: GlooLink, bucket: int, shared: bool = False
) -> tuple[Callable[[], Any], int]:
    sides = [{r: layout.locals(model, r) for r in layout.ranks} for layout in (case.source, case.destination)]
    transfer = plan_resharding(
        *sides, itemsize=DTYPE.itemsize, topology=Topology.one_per_device(range(WORLD)), bucket=bucket
    )
    links = dict.fromkeys(range(WORLD), SharedMemoryLink(mailbox, torch.device("cpu"))) if shared else {}
    ends: dict[str, Any] = {"source": sides[0].get(rank, ()), "destination": sides[1].get(rank, ())}
    end = TransferEndpoint(transfer, mailbox, **ends, dtype=DTYPE, links=links)
    held, needed = values(case.source, model, rank), values(case.destination, model, rank, empty=True)

    def run() -> ExchangeCost:
        return end.run(held, needed)

    run()
    expected = values(case.destination, model, rank)
    assert all(torch.equal(expected[name], needed[name]) for name in expected)
    return run, transfer.bound


def floor(case: Case, model: list[Weight], rank: int) -> Callable[[], Any]:
    """The bytes between each two ranks that the plan has: it moves no more than has to be moved."""
    sides = [{r: layout.locals(model, r) for r in layout.ranks} for layout in (case.source, case.destination)]
    transfer = plan_resharding(
        *sides, itemsize=DTYPE.itemsize, topology=Topology.one_per_device(range(WORLD)), bucket=1 << 40, forward=False
    )
    buffers = [
        (pair, torch.ones(size, dtype=torch.uint8))
        for pair, size in sorted(transfer.bytes_by_pair().items())
        if rank in pair
    ]

    def run() -> None:
        works = [dist.isend(b, to) if source == rank else dist.irecv(b, source) for (source, to), b in buffers]
        for work in works:
            work.wait()

    return run


def gather(case: Case, model: list[Weight], rank: int, groups: Mapping[tuple[int, ...], Any]) -> Callable[[], Any]:
    """All parts to every rank of the copy, then whole weights to ranks that have none, then each cuts out its part."""
    held = values(case.source, model, rank)
    source, destination = case.source, case.destination

    def full(weight: Weight) -> Tensor:
        part, cut = held[weight.name], source.cut(weight)
        if cut is None:
            return part
        team = source.team(weight, rank)
        buffer = torch.empty((len(team) * part.shape[0], *part.shape[1:]), dtype=DTYPE)
        dist.all_gather_into_tensor(buffer, part.contiguous(), group=groups[team])
        return torch.cat(list(buffer.chunk(len(team))), dim=cut) if cut else buffer

    def run() -> list[Tensor]:
        found = []
        for weight in model:
            whole_ = full(weight) if weight.name in held else torch.empty(weight.shape, dtype=DTYPE)
            holders = [r for r in ALL if source.holds(weight, r)]
            if source.stages > 1:  # each holder gives it to its partner on the other stage
                pair = (rank % 2, rank % 2 + 2)
                dist.broadcast(whole_.contiguous(), pair[weight.late], group=groups[pair])
            elif len(holders) < WORLD and (rank == 0 or rank not in holders):
                dist.broadcast(whole_.contiguous(), 0, group=groups[0, 2, 3])
            if destination.holds(weight, rank):
                part = whole_[tuple(slice(*ends) for ends in destination.box(weight, rank))]
                found.append(part if part.shape == whole_.shape else part.clone())
        return found

    return run


def dtensor(case: Case, model: list[Weight], rank: int) -> Callable[[], Any] | None:
    if not case.mesh:
        return None
    devices = init_device_mesh("cpu", case.mesh)

    def placements(kinds: str, weight: Weight) -> list[Any]:
        names = {"r": Replicate(), "0": Shard(0), "s": Replicate() if weight.split is None else Shard(weight.split)}
        return [names[kind] for kind in kinds]

    tensors = []
    for weight in model:
        full = torch.ones(weight.shape, dtype=DTYPE)
        tensors.append(
            (distribute_tensor(full, devices, placements(case.before, weight)), placements(case.after, weight))
        )
    return lambda: [tensor.redistribute(devices, after).to_local() for tensor, after in tensors]


# Measuring


@dataclass
class Timed:
    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    wire: list[int] = field(default_factory=list)
    buffers: int = 0
    """Of our messages on any rank; the other ways do not say."""


def carried() -> int:
    """Bytes that the loopback device has carried so far."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "lo":
            return int(numbers.split()[0])
    return 0


def measure(run: Callable[[], Any], timed: Timed) -> None:
    """The slowest rank's time and the CPU time of all, the same on each."""
    dist.barrier()
    before = carried()
    dist.barrier()
    cpu, began = time.process_time(), time.perf_counter()
    did = run()
    spent = torch.tensor([time.perf_counter() - began, time.process_time() - cpu], dtype=torch.float64)
    dist.barrier()
    timed.wire.append(carried() - before)
    slowest, total = spent[:1].clone(), spent[1:].clone()
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    dist.all_reduce(total)
    timed.seconds.append(slowest.item())
    timed.cpu.append(total.item())
    peak = torch.tensor(did.peak_buffer_bytes if isinstance(did, ExchangeCost) else 0)
    dist.all_reduce(peak, op=dist.ReduceOp.MAX)
    timed.buffers = max(timed.buffers, int(peak))


def work(rank: int, address: str, size: Size, rounds: int, bucket: int) -> None:
    torch.set_num_threads(1)
    store = connect_to_store(address, 300)
    dist.init_process_group("gloo", store=PrefixStore("default", store), rank=rank, world_size=WORLD)
    groups: dict[tuple[int, ...], Any] = {
        team: dist.new_group(team) for team in ((0, 1), (2, 3), (0, 2), (1, 3), (0, 2, 3), ALL)
    }
    mailbox = GlooLink(rank, range(WORLD), store)
    model = weights(size)
    for case in CASES:
        ours, least = planned(case, model, rank, mailbox, bucket)
        ways: dict[str, Any] = {
            "shared": planned(case, model, rank, mailbox, bucket, shared=True)[0],
            "planned": ours,
            "floor": floor(case, model, rank),
            "gather": gather(case, model, rank, groups),
            "dtensor": dtensor(case, model, rank),
        }
        found = {name: Timed() for name, way in ways.items() if way is not None}
        for name in found:
            ways[name]()
        for _ in range(rounds):
            for name, timed in found.items():
                measure(ways[name], timed)
        if rank == 0:
            show(case, least, found)
    dist.destroy_process_group()


def show(case: Case, least: int, found: Mapping[str, Timed]) -> None:
    middle = {name: statistics.median(timed.seconds) for name, timed in found.items()}
    for name, timed in found.items():
        wire = statistics.median(timed.wire)
        print(
            f"{case.name:26} {name:8} least {least / 1e6:7.1f} MB  wire {wire / 1e6:7.1f} MB ({wire / least:5.3f})  "
            f"{middle[name] * 1e3:7.1f} ms ({middle[name] / middle['gather']:4.2f} of gather)  "
            f"cpu {statistics.median(timed.cpu) * 1e3:7.1f} ms"
            + (f"  buffers {timed.buffers / 1e6:.1f} MB" if timed.buffers else ""),
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--ffn", type=int, default=2048)
    parser.add_argument("--vocab", type=int, default=32768)
    parser.add_argument("--bucket", type=int, default=64, help="MiB")
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    meeting = open_store("127.0.0.1")
    size = Size(asked.hidden, asked.layers, asked.ffn, asked.vocab)
    spawn(work, (meeting.address, size, asked.rounds, asked.bucket << 20), nprocs=WORLD)


if __name__ == "__main__":
    main()
