"""This module has the rows at run time: which rows an axis has, and the tables made of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rlgraph.backends.engines.ragged import Entries
from rlgraph.ir.types import Axis, Table

if TYPE_CHECKING:
    from torch import Tensor

    from rlgraph.backends.engines.sequences import Sequences

RowId = tuple[Any, ...]
"""The identity of a row: (data, epoch, place in the data, sample, ...). Filters, shuffles and splits do not change
it."""


class RemoteEntries(Entries):
    """Entries that another process has: here it is only known how many there are, and which."""

    @abstractmethod
    def pick(self, places: np.ndarray) -> RemoteEntries:
        """Return some of them; `places` is int64."""

    @abstractmethod
    def concat(self, others: Sequence[RemoteEntries]) -> RemoteEntries:
        """Return these entries and the others, one after the other."""


@dataclass(frozen=True)
class Rows:
    """The rows of an axis."""

    axis: Axis
    size: int
    parent: np.ndarray | None = None
    """int64 [size]: the row of the parent axis that each row lies in, ascending; None for a root axis."""
    ids: tuple[RowId, ...] | RemoteEntries | None = None
    """The identities of rows; those of inner axes are known by their place."""

    @property
    def known_ids(self) -> tuple[RowId, ...]:
        """The identities of the rows, as far as they are in this process."""
        return self.ids if isinstance(self.ids, tuple) else ()

    def row_name(self, place: int) -> str:
        """Return a row's name for a message."""
        return row_label(self.known_ids[place]) if self.known_ids else f"row {place}"

    def take(self, places: np.ndarray, parent: np.ndarray | None) -> Rows:
        """Return some rows, with their places among the remaining rows of the parent."""
        ids = None if self.ids is None else pick_entries(self.ids, places)
        return Rows(self.axis, int(places.shape[0]), parent, ids)


def row_label(row: RowId) -> str:
    """Return a row's identity for a message: `prompts row 17, sample 2`."""
    data, epoch, place, *samples = row
    again = f" (pass {epoch + 1})" if epoch else ""
    return f"{data} row {place}{again}" + "".join(f", sample {sample}" for sample in samples)


@dataclass(frozen=True)
class TableData:
    """The rows of a table: what they were asked, their tokens, their columns."""

    data: tuple[Mapping[str, Any], ...]
    """For each row, the row of the data source it came from."""
    prompts: tuple[Any, ...] = ()
    """For each row with tokens, the text or the messages that its tokens begin with."""
    sequences: Sequences | None = None
    columns: dict[str, Any] = field(default_factory=dict)
    """By name: a tensor or a list with an entry for each row of the column's axis."""
    owner: str = ""
    """The model whose tokenizer made the tokens; of sampled rows, the one that sampled them."""

    @property
    def token_counts(self) -> np.ndarray | None:
        """Return the tokens of each row, int32; None where rows have no tokens."""
        return None if self.sequences is None else self.sequences.lengths.cpu().numpy().astype(np.int32)

    def take(self, kind: Table, places: Mapping[str, np.ndarray | slice]) -> TableData:
        """Return some rows; `places` has those of the table's axis, of its tokens and of its turns. Of a slice nothing
        is copied."""
        row_places, sequences = places[kind.axis.key], self.sequences
        axes = _column_axes(kind)
        if sequences is not None:
            sequences = (
                sequences.slice_rows(row_places)
                if isinstance(row_places, slice)
                else sequences.take(_tensor(row_places))
            )
        return TableData(
            pick_entries(self.data, row_places),
            pick_entries(self.prompts, row_places) if self.prompts else (),
            sequences,
            {name: pick_entries(value, places[axes[name]]) for name, value in self.columns.items()},
            self.owner,
        )

    @staticmethod
    def concat(parts: Sequence[TableData]) -> TableData:
        """Return the rows of all parts, in order."""
        if len(parts) == 1:
            return parts[0]
        first = parts[0]
        sequences = [part.sequences for part in parts if part.sequences is not None]
        return replace(
            first,
            data=tuple(row for part in parts for row in part.data),
            prompts=tuple(prompt for part in parts for prompt in part.prompts),
            sequences=sequences[0].concat(sequences) if sequences else None,
            columns={name: concat_entries([part.columns[name] for part in parts]) for name in first.columns},
        )


def _column_axes(kind: Table) -> dict[str, str]:
    return {name: tensor.axis.key for name, tensor in kind.column_types().items() if tensor.axis}


def pick_entries(value: Any, places: np.ndarray | slice) -> Any:
    """Return some entries of a tensor, a list or a tuple; `places` is int64, or a slice with a start and a stop."""
    if isinstance(value, Entries):
        return value.pick(np.arange(places.start, places.stop) if isinstance(places, slice) else places)
    if isinstance(places, slice):
        return value[places]
    if isinstance(value, list | tuple):
        picked = [value[i] for i in places.tolist()]
        return tuple(picked) if isinstance(value, tuple) else picked
    return value[_tensor(places)]


def concat_entries(parts: Sequence[Any]) -> Any:
    """Join tensors, lists, tuples or tables, one after the other."""
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], Entries):
        return parts[0].concat(parts[1:])
    if isinstance(parts[0], TableData):
        return TableData.concat(parts)
    if isinstance(parts[0], list | tuple):
        joined = [item for part in parts for item in part]
        return tuple(joined) if isinstance(parts[0], tuple) else joined
    import torch

    return torch.cat(list(parts))


def _tensor(places: np.ndarray) -> Tensor:
    """Return a tensor of these places. Imports torch only here: where other processes compute, there are no tensors."""
    import torch

    return torch.from_numpy(places)
