"""Processes that carry out transfers between them over gloo, for tests: started once, asked many times."""

from __future__ import annotations

import itertools
import multiprocessing
import pickle
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from rlgraph.backends.engines.process_groups import connect_to_store, open_store
from rlgraph.backends.exchange.exchange import ExchangeCost, TransferEndpoint
from rlgraph.backends.exchange.link import Link
from rlgraph.backends.exchange.mailbox import GlooLink
from rlgraph.backends.exchange.nccl import NcclLink
from rlgraph.backends.exchange.shared_memory import SharedMemoryLink
from rlgraph.ir.layout import LocalTensor
from rlgraph.ir.message_carriers import PeerCarriers
from rlgraph.ir.transfer import Transfer
from tests.backends.engines.ranks import IMPORTED
from tests.waits import NEVER

_BY_GLOO = PeerCarriers()


class Crew:
    """Process `r` is place `r`."""

    def __init__(self, pipes: list[Connection]) -> None:
        self._pipes = pipes

    def ask(self, work: Callable[..., Any], *each: tuple[Any, ...]) -> list[Any]:
        """`work(mailbox, *arguments)` on all processes at once, with arguments for each."""
        self.send(work, *each)
        found = [_received(pipe) for pipe in self._pipes]
        for answer in found:
            if isinstance(answer, BaseException):
                raise answer
        return found

    def send(self, work: Callable[..., Any], *each: tuple[Any, ...]) -> None:
        for pipe, arguments in zip(self._pipes, each, strict=True):
            _send(pipe, (work, arguments))

    def answer(self, place: int) -> Any:
        return _received(self._pipes[place])


def _send(pipe: Connection, what: Any) -> None:
    """By value. Where a pipe pickles, torch shares each tensor's memory: a file and a connection for each of hundreds
    take longer than the transfer that is tested."""
    pipe.send_bytes(pickle.dumps(what))


def _received(pipe: Connection) -> Any:
    return pickle.loads(pipe.recv_bytes())


@contextmanager
def crew(size: int, seconds: float = NEVER, wait: float = 20) -> Iterator[Crew]:
    """seconds: longest wait for a message, once they have met. wait: for their end, before they are ended."""
    meeting = open_store("127.0.0.1")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    pipes, processes = [], []
    for place in range(size):
        ours, theirs = context.Pipe()
        processes.append(
            context.Process(target=_serve, args=(place, size, meeting.address, theirs, seconds), daemon=True)
        )
        processes[-1].start()
        pipes.append(ours)
    try:
        yield Crew(pipes)
    finally:
        for pipe in pipes:
            with suppress(BrokenPipeError):  # A test has ended it.
                _send(pipe, None)
        for process in processes:
            process.join(wait)
            process.kill()


def _serve(place: int, size: int, address: str, pipe: Connection, seconds: float) -> None:
    torch.set_num_threads(1)
    store = connect_to_store(address, NEVER)
    dist.init_process_group("gloo", store=dist.PrefixStore("default", store), rank=place, world_size=size)
    mailbox = GlooLink(place, range(size), store, seconds=NEVER)
    if seconds < NEVER:
        meet(mailbox, range(size))
        dist.barrier()
        hurry(mailbox, seconds)
    while (asked := _received(pipe)) is not None:
        work, arguments = asked
        try:
            _send(pipe, work(mailbox, *arguments))
        except Exception as error:
            _send(pipe, error)
    dist.destroy_process_group()


def meet(mailbox: GlooLink, places: Iterable[int]) -> None:
    """Connects each two, which otherwise the first message does, within the limit that the mailbox was made with."""
    for one, other in itertools.combinations(places, 2):
        if mailbox.place == one:
            mailbox.send(torch.zeros(1), other).wait()
        elif mailbox.place == other:
            mailbox.receive(torch.zeros(1), one).wait()


def hurry(mailbox: GlooLink, seconds: float) -> None:
    """From here on no message is waited for longer."""
    mailbox.seconds, mailbox._limit = seconds, timedelta(seconds=seconds)


def exchange(
    mailbox: GlooLink,
    transfer: Transfer,
    source: tuple[LocalTensor, ...],
    destination: tuple[LocalTensor, ...],
    tensors: dict[str, Tensor],
    into: dict[str, Tensor],
    dtype: torch.dtype,
    ema: float | None = None,
    ways: PeerCarriers = _BY_GLOO,
) -> tuple[ExchangeCost, dict[str, Tensor]]:
    """What a place did, and its tensors afterwards. Run twice, since buffers are kept for the next time."""
    links = links_of(mailbox, ways)
    end = TransferEndpoint(
        transfer, mailbox, source=source, destination=destination, dtype=dtype, links=links, ways=ways
    )
    first = {name: tensor.clone() for name, tensor in into.items()}
    end.run(tensors, first, ema=ema)
    moved = end.run(tensors, into, ema=ema, verify=True)
    assert all(torch.equal(first[name], into[name]) for name in into)
    return moved, into


def links_of(mailbox: GlooLink, ways: PeerCarriers) -> dict[int, Link]:
    """As a process opens them; what NCCL does on GPUs, gloo does here."""
    cpu = torch.device("cpu")
    made: dict[str, Link] = {"gloo": mailbox}
    if "shared" in ways.carriers.values():
        made["shared"] = SharedMemoryLink(mailbox, cpu)
    if "nccl" in ways.carriers.values():
        limits = {"name": ways.what, "seconds": mailbox.seconds}
        made["nccl"] = NcclLink(mailbox.place, ways.clubs, mailbox.store, cpu, **limits, backend=gloo)
    return {peer: made[carrier] for peer, carrier in ways.carriers.items()}


def gloo(store: Store, rank: int, ranks: int, limit: timedelta) -> Any:
    """In the place of NCCL. To meet, it has as long as it needs."""
    return dist.ProcessGroupGloo(store, rank, ranks, timedelta(seconds=NEVER))


def exchange_changes(
    mailbox: GlooLink,
    transfer: Transfer,
    source: tuple[LocalTensor, ...],
    destination: tuple[LocalTensor, ...],
    times: list[dict[str, Tensor]],
    into: dict[str, Tensor],
    dtype: torch.dtype,
) -> list[tuple[ExchangeCost, dict[str, Tensor]]]:
    """What a place did and what it had each time. Between them somebody else writes to what it has."""
    end = TransferEndpoint(transfer, mailbox, source=source, destination=destination, dtype=dtype, delta=True)
    found = []
    for tensors in times:
        for tensor in into.values():
            tensor.fill_(-1)
        moved = end.run(tensors, into, verify=True)
        found.append((moved, {name: tensor.clone() for name, tensor in into.items()}))
    return found


def redistribute(
    mailbox: GlooLink, full: Tensor, mesh: tuple[int, ...], before: tuple[Any, ...], after: tuple[Any, ...]
) -> tuple[Tensor, Tensor]:
    """This rank's part of a tensor before and after, as DTensor has it."""
    from torch.distributed.tensor import distribute_tensor

    devices = _devices(mesh)
    tensor = distribute_tensor(full, devices, before)
    return tensor.to_local(), tensor.redistribute(devices, after).to_local()


@cache
def _devices(mesh: tuple[int, ...]) -> DeviceMesh:
    """Of a process: each is a process group or several, which take longer to make than a tensor to send."""
    return init_device_mesh("cpu", mesh)
