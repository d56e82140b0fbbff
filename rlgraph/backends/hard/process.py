"""One process on a hard device: what it holds there is counted, and refused where the device is full, as CUDA would."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from rlgraph.backends.engines.offload import MemoryCounters
from rlgraph.backends.enginespec.registry import engine
from rlgraph.backends.enginespec.start_demand import StartDemand, StartDevice
from rlgraph.backends.hard.groups import BACKEND, HardGroups
from rlgraph.backends.hard.ledger import DeviceLedger, SeatUse
from rlgraph.backends.hard.node import HardNodes, short_bytes
from rlgraph.backends.hard.tensors import StorageMeter


@dataclass(frozen=True)
class HardSeat:
    """Where a process is on hard devices, as it is told from the start."""

    nodes: HardNodes
    ledger: str
    """The path of the file in which all processes count."""
    number: int
    """Of this process's seat there."""
    who: str
    """How messages call it."""
    device: int
    """The number of its device by the plan; Ray may give it another one."""
    process_bytes: int = 0
    """Bytes of the device that it has beside its tensors."""
    engine: str = ""
    """The name of its engine."""
    demands: Mapping[str, StartDemand] = field(default_factory=dict)
    """What its engine wants when it starts, by model."""


@dataclass(frozen=True)
class Reservation:
    """Bytes that an engine would have taken on a GPU, beyond what it has here."""

    size: int
    asleep: Callable[[], bool]
    """Whether its engine has given them back for now."""


class HardProcess:
    """A process on a hard device."""

    def __init__(self, seat: HardSeat, device: int, counters: MemoryCounters, visible: int = 1) -> None:
        """device: the number among all. counters: those of the process, whose copies on the host are not on the
        device. visible: how many devices it sees."""
        self.seat, self.nodes, self.device = seat, seat.nodes, device
        self.visible = visible
        """How many devices this process sees."""
        self._counters, self._ledger = counters, DeviceLedger(Path(seat.ledger))
        self._fixed = 0
        self._reserved: list[Reservation] = []
        self._peak = self._device_peak = 0
        self._groups: HardGroups | None = None
        self.meter = StorageMeter(self._write)
        self.charge(seat.process_bytes)

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count what this thread makes while the block runs. Raises torch.OutOfMemoryError where the device is full."""
        with self.meter.counting():
            yield
        self._write(0)

    def join_groups(self, name_of: Callable[[int], str], seconds: float) -> str:
        """Have this process's groups meet as NCCL's do, and return the name of their backend. name_of: returns how
        messages call a rank. seconds: the longest wait for another process."""
        self._groups = HardGroups(self.device, name_of, lambda: self.charge(self.nodes.communicator), seconds)
        self._groups.install()
        return BACKEND

    def close(self) -> None:
        """Stop counting and meeting."""
        if self._groups is not None:
            self._groups.remove()

    def charge(self, size: int) -> None:
        """Count bytes that are there until the process ends: its runtime, a communicator."""
        self._fixed += size
        self._write(size)

    def reserve(self, reservation: Reservation) -> None:
        """Count what an engine would hold on a GPU while it does not sleep."""
        self._reserved.append(reservation)
        self._write(reservation.size)

    def open_engine(self, model: str, open_it: Callable[[], Any], address: str | None) -> Any:
        """Open an engine, if it would start on what is free of the device, and count what it would hold. address: where
        the ranks of a replica meet. Raises EngineError."""
        demand, check = self.seat.demands.get(model), engine(self.seat.engine).start_check if self.seat.engine else ""
        if demand is None or not check:
            return open_it()
        module, _, name = check.partition(":")
        device = StartDevice(self.nodes.memory, self.free_bytes(), self.visible)
        held = getattr(import_module(module), name)(demand, device, address)
        before = self.device_bytes
        opened = open_it()
        beyond = max(0, held - (self.device_bytes - before))
        self.reserve(Reservation(beyond, lambda: opened.offloader.asleep))
        return opened

    def free_bytes(self) -> int:
        """Return the bytes of the device that nobody has."""
        return self.nodes.memory - sum(use.device_bytes for use in self._ledger.on_device(self.device))

    @property
    def device_bytes(self) -> int:
        """The bytes that this process has on its device."""
        self.meter.forget_gone()
        awake = sum(reservation.size for reservation in self._reserved if not reservation.asleep())
        return self._fixed + awake + max(0, self.meter.bytes - self._counters.host.bytes)

    @property
    def peak_bytes(self) -> int:
        """The most bytes that it has had there."""
        return self._peak

    def take_peak(self) -> int:
        """Return the most bytes since the last call, and begin anew."""
        peak, self._peak = self._peak, self.device_bytes
        return peak

    def _write(self, asked: int) -> None:
        """Write down what is held. asked: bytes that were not there before."""
        held, pinned = self.device_bytes, self._counters.host.bytes
        first = self.device // self.nodes.per_node * self.nodes.per_node
        with self._ledger.locked():
            uses = self._ledger.read()
            others = [use for number, use in enumerate(uses) if number != self.seat.number]
            here = [use for use in others if use.device == self.device]
            elsewhere = sum(use.device_bytes for use in here)
            if asked and elsewhere + held > self.nodes.memory:
                raise self._full(asked, held - asked, here)
            on_host = sum(use.host_bytes for use in others if first <= use.device < first + self.nodes.per_node)
            if asked and on_host + pinned > self.nodes.host:
                raise torch.OutOfMemoryError(
                    f"CUDA error: out of memory. The processes of the node want to pin {short_bytes(on_host + pinned)} "
                    f"of its host's memory, of which {short_bytes(self.nodes.host)} may be pinned"
                )
            self._peak = max(self._peak, held)
            self._device_peak = max(self._device_peak, held + elsewhere)
            use = SeatUse(self.seat.who, self.device, held, self._device_peak, pinned)
            self._ledger.write(self.seat.number, use)

    def _full(self, asked: int, held: int, others: list[SeatUse]) -> torch.OutOfMemoryError:
        nodes = self.nodes
        free = max(0, nodes.memory - held - sum(use.device_bytes for use in others))
        theirs = "".join(f", {use.who} {short_bytes(use.device_bytes)}" for use in others if use.device_bytes)
        return torch.OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {short_bytes(asked)}. {nodes.place_name(self.device)} has a total "
            f"capacity of {short_bytes(nodes.memory)} of which {short_bytes(free)} is free. "
            f"{self.seat.who} has {short_bytes(held)} in use{theirs}"
        )


def open_hard_process(seat: HardSeat, counters: MemoryCounters) -> HardProcess:
    """Return the process that this is, on the device that it sees."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = len(seen.split(",")) if seen else 1
    return HardProcess(seat, visible_device(seat, seen), counters, visible)


def visible_device(seat: HardSeat, visible: str | None) -> int:
    """Return the number of a process's device among all. visible: `CUDA_VISIBLE_DEVICES` of the process, where Ray has
    set it: a process that sees several works on the first."""
    first = (visible or "").split(",")[0].strip()
    return int(first) if first.isdigit() and int(first) < seat.nodes.devices else seat.device
