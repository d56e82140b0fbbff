"""Calls as a pass over the model takes them: one batch of padded rows, and the answers read off its output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlgraph.engines.base import Call, EngineError
from rlgraph.engines.sequences import Sequences

Softmax = Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]]
"""From logits, [M, n], M tokens and a temperature to log-probabilities and entropies, [M] each."""


@dataclass(frozen=True)
class Batch:
    """The rows of some calls; rows that several of them ask for are there once."""

    calls: tuple[Call, ...]
    ids: Tensor
    """int64 [N, T], padded on the right; at least one row and one column."""
    rows: Tensor
    columns: Tensor
    """int64 [M]: the places whose hidden states the answers are made of; at least one."""
    tokens: Tensor
    """int64 [M]: what follows there; less where a place was only made up for a pass to have one."""
    spans: dict[int, slice]
    """Among the M places those of a table of sequences, by its `id`."""

    def answers(self, output: Tensor, softmax: Softmax) -> list[Tensor]:
        """What the model says to each call, from the output at the places, [M, outputs]."""
        both: dict[tuple[int, float], tuple[Tensor, Tensor]] = {}
        found = []
        for call in self.calls:
            table = id(call.sequences)
            part = output[self.spans[table]]
            if call.op in ("values", "score"):
                found.append(part[:, 0])
                continue
            key = table, call.temperature
            if key not in both:
                both[key] = softmax(part, self.tokens[self.spans[table]].to(part.device), call.temperature)
            found.append(both[key][call.op == "entropy"])
        return found


def batch_of(calls: Sequence[Call], pad_id: int) -> Batch:
    """Raises EngineError for a scored token with nothing before it, and for the score of a row without tokens."""
    tables = {id(call.sequences): call.sequences for call in calls}
    ops = {id(call.sequences): call.op for call in calls}
    rows, columns, tokens, spans = [], [], [], {}
    above = at = 0
    for key, table in tables.items():
        row, column, token = _places(table, ops[key])
        rows.append(row + above)
        columns.append(column)
        tokens.append(token)
        spans[key] = slice(at, at + len(row))
        above, at = above + len(table), at + len(row)
    if not at:
        # All ranks take part in a pass, whether it has something to say or not.
        rows, columns = [torch.zeros(1, dtype=torch.long)], [torch.zeros(1, dtype=torch.long)]
    column = torch.cat(columns)
    ids = Sequences.concat(list(tables.values())).padded(pad_id)[0]
    if not ids.numel():
        ids = torch.full((1, 1), pad_id)
    # What follows the last place need not be fed.
    ids = ids[:, : int(column.max()) + 1]
    none = torch.zeros(0, dtype=torch.long)
    return Batch(tuple(calls), ids, torch.cat(rows), column, torch.cat([none, *tokens]), spans)


def _places(table: Sequences, op: str) -> tuple[Tensor, Tensor, Tensor]:
    """Row, column and following token of each place that answers `op`."""
    if op == "score":
        if bool((table.lengths == 0).any()):
            raise EngineError("a row without tokens has no score")
        last = table.lengths - 1
        return torch.arange(len(table)), last, torch.zeros_like(last)
    where = table.scored.nonzero()[:, 0]
    columns = table.column_of[where] - 1
    if bool((columns < 0).any()):
        raise EngineError("a row's first token cannot be scored: there is nothing before it to predict it from")
    return table.row_of[where], columns, table.tokens[where]
