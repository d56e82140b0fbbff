"""How models are put to sleep and woken up in the processes that have them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlgraph.backends.distributed.offload import Bed, Shifting
from rlgraph.backends.engines.offload import Switched
from rlgraph.backends.ray.calls import Calls, copies
from rlgraph.backends.ray.processes import Processes
from rlgraph.backends.ray.worker import Worker
from rlgraph.backends.step import Step
from rlgraph.backends.steps import Observer
from rlgraph.ir.graph import Node


class Sleeping:
    """Sends who has to, and waits: the memory is somebody else's then."""

    def __init__(self, processes: Processes, observer: Observer) -> None:
        self.processes, self.observer = processes, observer
        self._switched: dict[int, list[Switched]] = {}
        """For each step that is under way, what the switches that it made took."""

    def shift(self, shifting: Shifting, node: Node, step: Step) -> None:
        """Before a node's work, by who has the turn of its devices."""
        with shifting() as shift:
            self._each("sleep", [bed for bed, _ in shift.sleep], [keep for _, keep in shift.sleep], node, step)
            self._each("wake", shift.wake, [True] * len(shift.wake), node, step)

    def _each(self, what: str, beds: Sequence[Bed], keeps: Sequence[bool], node: Node, step: Step) -> None:
        if not beds:
            return
        calls = Calls[Switched](self.processes)
        method: Callable[[Worker, str, bool], Switched] = Worker.sleep if what == "sleep" else Worker.wake
        asked: list[Bed] = []
        for bed, keep in zip(beds, keeps, strict=True):
            calls.copy(copies(bed.group)[bed.copy], method, bed.model, keep)
            asked += [bed] * (len(calls.asked) - len(asked))
        verb = "putting to sleep" if what == "sleep" else "waking up"
        found = calls.get(f"{verb} {', '.join(dict.fromkeys(f'`{bed.model}`' for bed in beds))}", node)
        for bed, who, switched in zip(asked, calls.asked, found, strict=True):
            for (group, rank), each in zip(who, switched, strict=True):
                self._switched.setdefault(step.number, []).append(each)
                self.observer.span(
                    bed.group.pool,
                    f"{group} {rank}",
                    f"{what} {bed.model}",
                    "sleep",
                    each.start,
                    each.start + each.seconds,
                    moved=each.moved,
                )

    def finish(self, step: Step) -> dict[str, float]:
        """What the switches of a step took, of all processes together."""
        found = self._switched.pop(step.number, [])
        if not found:
            return {}
        seconds, moved = sum(each.seconds for each in found), sum(each.moved for each in found)
        return {"sleep/seconds": seconds, "sleep/bytes": float(moved)}
