"""Offloads models and brings them back in the processes that have them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlgraph.backends.distributed.offload import OffloadedReplica, Shifting
from rlgraph.backends.engines.offload import OffloadRecord
from rlgraph.backends.ray.calls import Calls, replicas_of
from rlgraph.backends.ray.processes import Processes
from rlgraph.backends.ray.worker import Worker
from rlgraph.backends.step import Step
from rlgraph.backends.steps import Observer
from rlgraph.ir.graph import Node


class OffloadCoordinator:
    """Tells processes to offload models or bring them back, and waits until the device memory is free for others."""

    def __init__(self, processes: Processes, observer: Observer) -> None:
        self.processes, self.observer = processes, observer
        self._switched: dict[int, list[OffloadRecord]] = {}
        """For each step in flight, the cost of its switches."""

    def switch_models(self, shifting: Shifting, node: Node, step: Step) -> None:
        """Switch models before a node's work; the caller has the turn of the devices."""
        with shifting() as shift:
            self._switch_all("sleep", [bed for bed, _ in shift.sleep], [keep for _, keep in shift.sleep], node, step)
            self._switch_all("wake", shift.wake, [True] * len(shift.wake), node, step)

    def _switch_all(
        self, what: str, beds: Sequence[OffloadedReplica], keeps: Sequence[bool], node: Node, step: Step
    ) -> None:
        if not beds:
            return
        calls = Calls[OffloadRecord](self.processes)
        method: Callable[[Worker, str, bool], OffloadRecord] = (
            Worker.offload_model if what == "sleep" else Worker.onload_model
        )
        asked_beds: list[OffloadedReplica] = []
        for bed, keep in zip(beds, keeps, strict=True):
            calls.call_replica(replicas_of(bed.group)[bed.copy], method, bed.model, keep)
            asked_beds += [bed] * (len(calls.asked) - len(asked_beds))
        verb = "putting to sleep" if what == "sleep" else "waking up"
        answers = calls.get(f"{verb} {', '.join(dict.fromkeys(f'`{bed.model}`' for bed in beds))}", node)
        for bed, who, switched in zip(asked_beds, calls.asked, answers, strict=True):
            for (group, rank), switch in zip(who, switched, strict=True):
                self._switched.setdefault(step.number, []).append(switch)
                self.observer.add_span(
                    bed.group.pool,
                    f"{group} {rank}",
                    f"{what} {bed.model}",
                    "sleep",
                    switch.start,
                    switch.start + switch.seconds,
                    moved=switch.moved_bytes,
                )

    def take_step_metrics(self, step: Step) -> dict[str, float]:
        """Return what the switches of a step took, summed over processes."""
        switches = self._switched.pop(step.number, [])
        if not switches:
            return {}
        seconds, moved = sum(switch.seconds for switch in switches), sum(switch.moved_bytes for switch in switches)
        return {"sleep/seconds": seconds, "sleep/bytes": float(moved)}
