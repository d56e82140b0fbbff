"""The last rows of an order: when they move, from which copies of a model, and to which."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from rlgraph.backends.distributed.transport import Order
from rlgraph.backends.turns import Turn, seats


class Ending:
    """The blocks of an order that have not ended, and the copies that go on with them."""

    def __init__(self, order: Order, turn: Turn, rows: Sequence[int], dealt: Sequence[Sequence[int]]) -> None:
        """rows: of each block. dealt: the blocks of each copy."""
        assert order.tail is not None
        self.order, self.turn, self.rows, self.tail = order, turn, rows, order.tail
        self.here = list(range(len(dealt)))
        """Copies that have not left."""
        self.left = {block: copy for copy, own in enumerate(dealt) for block in own}
        """The copy that each block is with."""

    @classmethod
    def of(cls, order: Order, turn: Turn, rows: Sequence[int], dealt: Sequence[Sequence[int]]) -> Ending | None:
        """Of an order that has a tail, and of no other one."""
        return None if order.tail is None else cls(order, turn, rows, dealt)

    def ended(self, block: int) -> Mapping[int, int] | None:
        """A block has. For each one that moves now the copy that goes on with it; None: no copy leaves."""
        freed = self.after(block)
        if freed is None:
            return None
        to = self.dealt([each for each, copy in self.left.items() if copy in freed], freed)
        kept = {**self.left, **to}
        freed = [copy for copy in self.here if copy not in kept.values()]
        if not freed or not all(self.turn.leave(seats(self.order.group, copy)) for copy in freed):
            return None
        self.left, self.here = kept, [copy for copy in self.here if copy not in freed]
        return to

    def after(self, block: int) -> list[int] | None:
        """A block has ended: the copies that need not go on now."""
        del self.left[block]
        return self.leaving()

    def leaving(self) -> list[int] | None:
        """The copies that need not go on, once so few rows are left; None: not yet. Those that have most to do keep it:
        that need not move."""
        if not 0 < sum(self.rows[block] for block in self.left) < self.tail.rows(sum(self.rows)):
            return None
        load = self.load(self.here)
        return sorted(self.here, key=lambda copy: (-load[copy], copy))[self.tail.on :]

    def dealt(self, blocks: Collection[int], freed: Collection[int]) -> dict[int, int]:
        """For each block that is given up the copy that goes on with it: the one that has the fewest rows by then."""
        load, found = self.load([copy for copy in self.here if copy not in freed]), dict[int, int]()
        for block in sorted(blocks):
            found[block] = min(load, key=lambda copy: (load[copy], copy))
            load[found[block]] += self.rows[block]
        return found

    def load(self, copies: Collection[int]) -> dict[int, int]:
        """The rows that these have in blocks that have not ended."""
        found = dict.fromkeys(copies, 0)
        for block, copy in self.left.items():
            if copy in found:
                found[copy] += self.rows[block]
        return found
