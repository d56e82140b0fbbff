"""This module moves the last rows of a request: when they move, from which replicas of a model, and to which."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from rlgraph.backends.device_queues import HeldDevices, device_set
from rlgraph.backends.distributed.transport import NodeRequest


class TailMoves:
    """The blocks of a request that have not ended, and the replicas that go on with them."""

    def __init__(
        self, order: NodeRequest, turn: HeldDevices, rows: Sequence[int], dealt: Sequence[Sequence[int]]
    ) -> None:
        """rows: of each block. dealt: the blocks of each replica."""
        assert order.tail is not None
        self.order, self.turn, self.rows, self.tail = order, turn, rows, order.tail
        self.here = list(range(len(dealt)))
        """Replicas that have not left."""
        self.left = {block: copy for copy, blocks in enumerate(dealt) for block in blocks}
        """The replica that each block is with."""

    @classmethod
    def for_request(
        cls, order: NodeRequest, turn: HeldDevices, rows: Sequence[int], dealt: Sequence[Sequence[int]]
    ) -> TailMoves | None:
        """Return the moves of a request's last rows; None for a request whose rows stay where they are."""
        return None if order.tail is None else cls(order, turn, rows, dealt)

    def end_block(self, block: int) -> Mapping[int, int] | None:
        """Note that a block has ended. Returns for each block that moves now the replica that goes on with it; None: no
        replica leaves."""
        freed = self.drop_ended_block(block)
        if freed is None:
            return None
        destinations = self.assign_blocks([moving for moving, replica in self.left.items() if replica in freed], freed)
        remaining = {**self.left, **destinations}
        freed = [replica for replica in self.here if replica not in remaining.values()]
        if not freed or not all(self.turn.release_some(device_set(self.order.group, replica)) for replica in freed):
            return None
        self.left, self.here = remaining, [replica for replica in self.here if replica not in freed]
        return destinations

    def drop_ended_block(self, block: int) -> list[int] | None:
        """Note that a block has ended and forget it. Returns the replicas that need not go on now."""
        del self.left[block]
        return self.replicas_to_free()

    def replicas_to_free(self) -> list[int] | None:
        """Return the replicas that need not go on, once so few rows are left; None: not yet. Those that have most to do
        stay, so that their rows need not move."""
        if not 0 < sum(self.rows[block] for block in self.left) < self.tail.row_limit(sum(self.rows)):
            return None
        load = self.remaining_row_counts(self.here)
        return sorted(self.here, key=lambda replica: (-load[replica], replica))[self.tail.on :]

    def assign_blocks(self, blocks: Collection[int], freed: Collection[int]) -> dict[int, int]:
        """Return for each block that is given up the replica that goes on with it: the one that has the fewest rows by
        then."""
        load, destinations = (
            self.remaining_row_counts([replica for replica in self.here if replica not in freed]),
            dict[int, int](),
        )
        for block in sorted(blocks):
            destinations[block] = min(load, key=lambda replica: (load[replica], replica))
            load[destinations[block]] += self.rows[block]
        return destinations

    def remaining_row_counts(self, copies: Collection[int]) -> dict[int, int]:
        """Return the rows that these replicas have in blocks that have not ended."""
        rows_of = dict.fromkeys(copies, 0)
        for block, replica in self.left.items():
            if replica in rows_of:
                rows_of[replica] += self.rows[block]
        return rows_of
