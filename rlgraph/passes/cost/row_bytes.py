"""Counts the bytes of rows in the memory of a process, by their axes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rlgraph.ir.types import Axis, Table, Tensor
from rlgraph.passes.cost.task import Maker

ITEM_BYTES = {"float": 4, "int": 8, "number": 8, "bool": 1}
"""Bytes of an entry. Texts, and what is only known when data are read, are not counted."""
TOKEN_BYTES, LENGTH_BYTES = 9, 8
"""Bytes of a token, with whether it carries loss, and of the length of a row."""
COMPUTED = frozenset(("tokens", "end", "length", "text", "age", "turn"))
"""Columns of a table that are computed from the others where they are read."""


@dataclass(frozen=True, slots=True)
class MadeRows:
    """The rows of a value that is made in a step, or of a buffer."""

    value: str
    maker: Maker
    bytes: float
    """All of them in a step, kept tokens included."""
    kept: float
    """Bytes of these that are kept tokens."""
    stays: bool = False
    """Whether they stay from step to step."""


def value_bytes(kind: Tensor | Table, entries: Callable[[Axis], float], tokens: float, token_bytes: float) -> float:
    """Return the bytes of a value without kept tokens. entries: how many an axis has; tokens: those of the rows of a
    table, prompts included, of so many bytes each beside their columns."""
    if isinstance(kind, Tensor):
        return ITEM_BYTES.get(kind.dtype, 0) * entries(kind.axis) if kind.axis else 0.0
    columns = (column for name, column in kind.column_types().items() if name not in COMPUTED)
    held = sum(value_bytes(column, entries, 0.0, 0.0) for column in columns)
    return held + (token_bytes * tokens + LENGTH_BYTES * entries(kind.axis) if kind.token else 0.0)
