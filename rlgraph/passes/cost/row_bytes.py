"""Counts the bytes of rows in the memory of a process, by their axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rlgraph.ir.graph import Node
from rlgraph.ir.types import Axis, Table, Tensor
from rlgraph.passes.cost.kept_tokens import SHARE_BYTES, KeptBytes
from rlgraph.passes.cost.task import Maker

ITEM_BYTES = {"float": 4, "int": 8, "number": 8, "bool": 1}
"""Bytes of an entry. Texts, and what is only known when data are read, are not counted."""
TOKEN_BYTES, LENGTH_BYTES = 9, 8
"""Bytes of a token, with whether it carries loss, and of the length of a row."""
COMPUTED = frozenset(("tokens", "end", "length", "text", "age", "turn"))
"""Columns of a table that are computed from the others where they are read."""


@dataclass(frozen=True, slots=True)
class HeldRows:
    """Rows in memory."""

    bytes: float = 0.0
    kept: float = 0.0
    """Bytes of these that are kept tokens."""

    def __add__(self, other: HeldRows) -> HeldRows:
        return HeldRows(self.bytes + other.bytes, self.kept + other.kept)

    def __mul__(self, times: float) -> HeldRows:
        return HeldRows(self.bytes * times, self.kept * times)


@dataclass(frozen=True, slots=True)
class MadeRows:
    """The rows of a value that is made in a step, or of a buffer."""

    value: str
    maker: Maker
    held: HeldRows
    """All of them in a step."""
    stays: bool = False
    """Whether they stay from step to step."""


@dataclass(frozen=True)
class RowBytes:
    """Counts the bytes that values have in memory."""

    kept: KeptBytes
    route_bytes: Mapping[str, float]
    """Of each model whose routers are replayed, the bytes of the experts of a token."""
    of_routes: dict[str, float] = field(default_factory=dict)
    """For each axis of tokens the bytes of the experts of a token."""

    def note_routes(self, node: Node, maker: Maker) -> None:
        """Note whether the rows that a node makes have the experts of their tokens."""
        for value in node.outputs:
            if isinstance(value.type, Table) and value.type.token:
                if node.attr("routing") == "replay" and maker is not None:
                    self.of_routes[value.type.token.key] = self.route_bytes.get(maker[0], 0.0)
                elif node.op in ("sample", "recall"):
                    # Nobody knows who sampled the rows of a buffer: they have as much as any.
                    self.of_routes[value.type.token.key] = max(self.of_routes.values(), default=0.0)

    def copy_routes(self, before: str, after: str) -> None:
        """Note that tokens of an axis have what those of another one have."""
        if before in self.of_routes:
            self.of_routes[after] = self.of_routes[before]

    def held_rows(self, name: str, kind: Tensor | Table, entries: Callable[[Axis], float], tokens: float) -> HeldRows:
        """Return the bytes of a value. entries: how many an axis has; tokens: those of the value, of a table with its
        prompts."""
        token = kind.token if isinstance(kind, Table) else None
        token_bytes = TOKEN_BYTES + (self.of_routes.get(token.key, 0.0) if token else 0.0)
        place_bytes = self.kept.of_values.get(name) or self.kept.of_table(name, kind)
        # The share of what is kept is a column or a value of its own.
        kept = (entries(token) if token else tokens) * max(0.0, place_bytes - SHARE_BYTES)
        return HeldRows(value_bytes(kind, entries, tokens, token_bytes) + kept, kept)


def value_bytes(kind: Tensor | Table, entries: Callable[[Axis], float], tokens: float, token_bytes: float) -> float:
    """Return the bytes of a value without kept tokens. entries: how many an axis has; tokens: those of the rows of a
    table, prompts included, of so many bytes each beside their columns."""
    if isinstance(kind, Tensor):
        return ITEM_BYTES.get(kind.dtype, 0) * entries(kind.axis) if kind.axis else 0.0
    columns = (column for name, column in kind.column_types().items() if name not in COMPUTED)
    held = sum(value_bytes(column, entries, 0.0, 0.0) for column in columns)
    return held + (token_bytes * tokens + LENGTH_BYTES * entries(kind.axis) if kind.token else 0.0)
