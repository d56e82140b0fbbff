"""Copies of a model that work for others and are lost: who else has the same weights does their rows, and the run
goes on without them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from rlgraph.backends.distributed.transport import Order
from rlgraph.backends.in_flight import Things
from rlgraph.backends.ray.failures import doing, shown
from rlgraph.backends.ray.processes import Losing
from rlgraph.backends.ray.remote import Address, recorded_as
from rlgraph.backends.ray.retries import replaceable
from rlgraph.backends.replayed import once
from rlgraph.backends.step import Step
from rlgraph.ir.graph import Program
from rlgraph.ir.plan import Group, Plan
from rlgraph.ir.types import is_model
from rlgraph.ops.nodes import NODES


class Losses:
    """Which copies there are, and whether a run can go on without some of them."""

    def __init__(self, program: Program, plan: Plan, record: Path | None = None) -> None:
        """record: a folder for all that is sampled."""
        self.plan, self.record = plan, record
        self.changing = {each.type.name for _, node in program.walk() for each in node.outputs if is_model(each.type)}
        self.things: Things = {}
        """What the last step that is over has left."""
        self.allowed: Callable[[], bool] = lambda: False
        """Whether the user lets a run go on by itself once more; counts."""
        self.say: Callable[[str], None] = lambda text: None
        self.lost: Callable[[Group], None] = lambda group: None
        """Is told of a group that has fewer copies from now on."""
        self._without: dict[str, set[int]] = {}
        """By group the copies that are lost."""
        self._lock = threading.Lock()

    def living(self, group: Group) -> tuple[int, ...]:
        """The copies of a group that there are, in order."""
        gone = self._without.get(group.name, ())
        return tuple(copy for copy in range(group.mesh.length("dp")) if copy not in gone)

    def groups(self) -> set[str]:
        """Those that have fewer copies than the plan says."""
        return {name for name, copies in self._without.items() if copies}

    def forget(self, groups: Collection[str]) -> None:
        """Others are in the places of all processes of some groups."""
        for name in groups:
            self._without.pop(name, None)

    def redone(self, step: Step) -> None:
        """Others have done the rows that copies which are lost had in a step."""
        if self.record is not None:
            lost = [
                recorded_as((name, rank))
                for name, copies in self._without.items()
                for copy in copies
                for rank in self.plan.group(name).copies()[copy]
            ]
            once(self.record, step.number, lost)

    def losing(self, order: Order, worked: Callable[[], Collection[Address]]) -> Losing | None:
        """For an order whose rows are shared out between copies: what is to become of processes that end meanwhile;
        None: nobody can do their rows. worked: who has done something in the steps that are under way: the rows that
        it made are with it."""
        node, group = order.node, order.group
        op = NODES[node.op]
        if not op.with_model or op.trains or op.updates or order.copy is not None or order.sampling is not None:
            return None
        if len(self.living(group)) < 2 or not self._spare(group):
            # It may have been shared out before others were lost: their rows are done by who is left.
            return lambda dead: None

        def lose(dead: Mapping[Address, str]) -> Sequence[Address] | None:
            """All of the copies that these belong to, if the others can do without them."""
            if any(name != group.name for name, _ in dead):
                return None
            copies = {group.mesh.at(rank, "dp") for _, rank in dead}
            lost = tuple((group.name, rank) for copy in sorted(copies) for rank in group.copies()[copy])
            with self._lock:
                left = [copy for copy in self.living(group) if copy not in copies]
                if not left or not self._spare(group) or {*lost} & {*worked()} or not self.allowed():
                    return None
                self._without.setdefault(group.name, set()).update(copies)
            self.lost(group)
            who, why = next(iter(sorted(dead.items())))
            self.say(
                f"{shown(who)} is gone: {why}; it was asked for {doing(node)}: the rows of its copy are done by "
                f"{'the others' if len(left) > 1 else 'the other one'}, and the run goes on with "
                f"{len(left)} of {group.mesh.length('dp')} copies of `{group.name}`"
            )
            return lost

        return lose

    def _spare(self, group: Group) -> bool:
        """A group has nothing that others have not, and no row of it is promised to one of its copies."""
        free = not self.plan.blocks and not any(each.replica for each in self.plan.holdings)
        return free and replaceable(self.plan, {group.name}, self.changing, self.things)
