"""Asks processes that are waited for how far they are, so that a run can show it."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from rlgraph.backends.ray.calls import replicas_of
from rlgraph.backends.ray.failures import CallContext
from rlgraph.backends.ray.processes import Processes, Reference
from rlgraph.backends.ray.rank_requests import NodeProgress
from rlgraph.backends.ray.row_refs import Address
from rlgraph.backends.ray.worker import Worker
from rlgraph.backends.steps import Observer
from rlgraph.ir.graph import Node
from rlgraph.ir.plan import Plan

_MOST = 8
"""Replicas that are asked; the others are taken to be as far."""


@dataclass
class _Asked:
    """A question to the replicas that do a node's work."""

    answers: list[Reference[NodeProgress | None]]
    replicas: int
    """How many there are, those that were not asked included."""


class ProgressPoll:
    """Asks the leaders of replicas while a wait goes on, and tells the observer when they have answered. Nobody waits
    for these answers."""

    def __init__(self, plan: Plan, processes: Processes, observer: Observer) -> None:
        self.processes, self.observer = processes, observer
        self.pools = {group.name: group.pool for group in plan.groups}
        self.leaders: set[Address] = {leader for group in plan.groups for leader, _ in replicas_of(group)}
        self._asked: dict[int, _Asked] = {}
        """The question about each node, by its number."""
        self._lock = threading.Lock()

    def poll_progress(self, request: CallContext) -> None:
        """Ask how far a request is that has been waited for, or take the answer to the question before."""
        node = request.node
        if node is None or node.id is None:
            return
        with self._lock:
            asked = self._asked.pop(node.id, None)
            if asked is None:
                leaders = [who for who in request.who if who in self.leaders]
                answers = [self.processes.call(who, Worker.node_progress) for who in leaders[:_MOST]]
                self._asked[node.id] = _Asked(answers, len(leaders))
                return
            done = self.processes.answers_if_ready(asked.answers)
            if done is None:
                self._asked[node.id] = asked
                return
        self.report_progress(node, request, done, asked.replicas)

    def report_progress(
        self, node: Node, request: CallContext, answers: list[NodeProgress | None], replicas: int
    ) -> None:
        """Tell the observer how far all replicas are together."""
        works = [work for work in answers if work is not None and work.node == node.id]
        if not works:
            return
        scale = replicas / len(works)
        sums = [round(scale * sum(numbers)) for numbers in zip(*(work.counts for work in works), strict=True)]
        done, total, tokens = sums
        self.observer.node_progress(node, done, total, works[0].unit, tokens, self.pools[request.who[0][0]])
