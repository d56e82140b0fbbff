"""Handles lost replicas of models that only compute for others: replicas with the same weights do their rows, and the
run goes on without them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from rlgraph.backends.distributed.transport import NodeRequest
from rlgraph.backends.in_flight import Things
from rlgraph.backends.ray.failures import process_name, work_phrase
from rlgraph.backends.ray.processes import Losing
from rlgraph.backends.ray.retries import can_replace
from rlgraph.backends.ray.row_refs import Address, recorded_process_name
from rlgraph.backends.recording_cleanup import drop_resampled_rows
from rlgraph.backends.step import Step
from rlgraph.ir.graph import Program
from rlgraph.ir.plan import Group, Plan
from rlgraph.ir.types import is_model
from rlgraph.ops.nodes import NODES


class LostReplicas:
    """Knows which replicas are alive, and whether a run can go on without some of them."""

    def __init__(self, program: Program, plan: Plan, record: Path | None = None) -> None:
        """record: the folder to which everything sampled is written."""
        self.plan, self.record = plan, record
        self.changing = {
            output.type.name for _, node in program.walk() for output in node.outputs if is_model(output.type)
        }
        self.things: Things = {}
        """What the last finished step left of values that live across steps."""
        self.allowed: Callable[[], bool] = lambda: False
        """Returns whether the user allows one more automatic repeat, and counts it."""
        self.say: Callable[[str], None] = lambda text: None
        self.lost: Callable[[Group], None] = lambda group: None
        """Is called with a group that has lost replicas."""
        self._without: dict[str, set[int]] = {}
        """The lost replicas of each group."""
        self._lock = threading.Lock()

    def living_replicas(self, group: Group) -> tuple[int, ...]:
        """Return the living replicas of a group, in order."""
        gone = self._without.get(group.name, ())
        return tuple(copy for copy in range(group.mesh.axis_size("dp")) if copy not in gone)

    def count_as_living(self, groups: Collection[str]) -> None:
        """Count all replicas of some groups as living, since new processes have taken their places."""
        for name in groups:
            self._without.pop(name, None)

    def note_retried(self, step: Step) -> None:
        """Record that other replicas have done the rows that the lost ones had in a step."""
        if self.record is not None:
            lost = [
                recorded_process_name((name, rank))
                for name, copies in self._without.items()
                for copy in copies
                for rank in self.plan.group(name).replica_ranks()[copy]
            ]
            drop_resampled_rows(self.record, step.number, lost)

    def lost_process_handler(self, order: NodeRequest, worked: Callable[[], Collection[Address]]) -> Losing | None:
        """For a request whose rows are sharded over replicas, return what to do with processes that end meanwhile; None
        if nobody else can do their rows. worked: returns the processes that have made rows in the steps in flight,
        which they still hold."""
        node, group = order.node, order.group
        op = NODES[node.op]
        if not op.uses_model or op.trains or op.updates or order.copy is not None or order.refresh_state is not None:
            return None
        if len(self.living_replicas(group)) < 2 or not self._spare(group):
            # Its rows may have been sharded before other replicas were lost: the survivors do those rows.
            return lambda dead: None

        def drop_lost_replicas(dead: Mapping[Address, str]) -> Sequence[Address] | None:
            """Return all processes of the replicas that these belong to, if the others can go on without them."""
            if any(name != group.name for name, _ in dead):
                return None
            copies = {group.mesh.axis_position(rank, "dp") for _, rank in dead}
            lost = tuple((group.name, rank) for copy in sorted(copies) for rank in group.replica_ranks()[copy])
            with self._lock:
                left = [copy for copy in self.living_replicas(group) if copy not in copies]
                if not left or not self._spare(group) or {*lost} & {*worked()} or not self.allowed():
                    return None
                self._without.setdefault(group.name, set()).update(copies)
            self.lost(group)
            who, why = next(iter(sorted(dead.items())))
            self.say(
                f"{process_name(who)} is gone: {why}; it was asked for {work_phrase(node)}: the rows of its copy are "
                f"done by {'the others' if len(left) > 1 else 'the other one'}, and the run goes on with "
                f"{len(left)} of {group.mesh.axis_size('dp')} copies of `{group.name}`"
            )
            return lost

        return drop_lost_replicas

    def _spare(self, group: Group) -> bool:
        """Return whether a group has nothing that others lack, and no replica of it is bound to certain rows."""
        unbound = not self.plan.blocks and not any(holding.replica for holding in self.plan.holdings)
        return unbound and can_replace(self.plan, {group.name}, self.changing, self.things)
