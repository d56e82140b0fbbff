"""Gives the processes of a plan their places on hard devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from rlgraph.backends.enginespec.registry import engine
from rlgraph.backends.enginespec.start_demand import StartDemand
from rlgraph.backends.hard.ledger import DeviceLedger
from rlgraph.backends.hard.node import HardNodes
from rlgraph.backends.hard.process import HardSeat
from rlgraph.errors import NO_SPAN, Diagnostic, RunError, count_phrase
from rlgraph.ir.plan import Group, Plan


def hard_seats(
    plan: Plan, nodes: HardNodes, folder: Path, demands: Mapping[tuple[str, str], StartDemand] | None = None
) -> dict[tuple[str, int], HardSeat]:
    """Return the place of each process that has a device, by group and rank, and make the file in `folder` in which
    they count.

    demands: what engines want when they start, by group and model. Raises RunError for a plan with more devices than
    there are.
    """
    needed = sum(pool.devices for pool in plan.pools)
    if needed > nodes.devices:
        there = count_phrase(nodes.devices, "hard device")
        message = f"the plan needs {count_phrase(needed, 'device')}, and there are {there}"
        raise RunError(Diagnostic("E0745", message, NO_SPAN, "make the pools smaller, or `--device hard:` larger"))
    first, devices = 0, dict[str, int]()
    for pool in plan.pools:
        devices[pool.name] = first
        first += pool.devices
    groups = [group for group in plan.groups if group.models and group.pool in devices]
    who = [(group, rank) for group in groups for rank in range(group.mesh.rank_count)]
    ledger = folder / "devices"
    DeviceLedger.create(ledger, len(who))
    return {
        (group.name, rank): HardSeat(
            nodes,
            str(ledger),
            number,
            f"rank {rank} of {group.name}",
            devices[group.pool] + group.devices[rank],
            _process_bytes(nodes, group),
            group.engine,
            {model: demand for (name, model), demand in (demands or {}).items() if name == group.name},
        )
        for number, (group, rank) in enumerate(who)
    }


def device_peaks(seats: Iterable[HardSeat]) -> dict[int, int]:
    """Return the most bytes that each device has had, of all of its processes together."""
    peaks: dict[int, int] = {}
    for path in {seat.ledger for seat in seats}:
        ledger = DeviceLedger(Path(path))
        try:
            for use in ledger.read():
                if use.device >= 0:
                    peaks[use.device] = max(peaks.get(use.device, 0), use.peak_bytes)
        finally:
            ledger.close()
    return peaks


def _process_bytes(nodes: HardNodes, group: Group) -> int:
    return engine(group.engine).memory.process_bytes if nodes.process is None else nodes.process
