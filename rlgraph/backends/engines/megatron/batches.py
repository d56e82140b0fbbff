"""Calls as a pass over the model takes them: rows one behind the other, and the answers read off its output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlgraph.backends.engines.base import Call, EngineError
from rlgraph.backends.engines.sequences import Sequences

Head = Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]]
"""From hidden states, [M, size], M tokens and a temperature to log-probabilities and entropies, [M] each."""


def _alone(table: int, values: Tensor) -> Tensor:
    return values


@dataclass(frozen=True)
class Batch:
    """The rows of some calls; rows that several of them ask for are there once."""

    calls: tuple[Call, ...]
    ids: Tensor
    """int64 [1, T]: what is fed of the rows, at least one token."""
    lengths: list[int]
    """Tokens of each row that is fed, none of them 0."""
    places: Tensor
    """int64 [M]: those of the T whose hidden states the answers are made of; at least one."""
    tokens: Tensor
    """int64 [M]: what follows there; less where a place was only made up for a pass to have one."""
    spans: dict[int, slice]
    """Among the M places those of a table of sequences, by its `id`."""
    together: Callable[[int, Tensor], Tensor] = _alone
    """From what is said at a table's places, [m], to what all ranks say that have some of them."""

    def answers(self, output: Tensor, head: Head) -> list[Tensor]:
        """What the model says to each call, from its output at the places: hidden states, [M, size], or [M, 1] scalars;
        float32 at least."""
        both: dict[tuple[int, float], tuple[Tensor, Tensor]] = {}
        found = []
        for call in self.calls:
            table = id(call.sequences)
            part = output[self.spans[table]]
            if call.op in ("values", "score"):
                found.append(self.together(table, part[:, 0].to(torch.promote_types(part.dtype, torch.float32))))
                continue
            key = table, call.temperature
            if key not in both:
                both[key] = head(part, self.tokens[self.spans[table]].to(part.device), call.temperature)
            found.append(self.together(table, both[key][call.op == "entropy"]))
        return found


def batch_of(calls: Sequence[Call], pad_id: int) -> Batch:
    """Raises EngineError for a scored token with nothing before it, and for the score of a row without tokens."""
    tables = {id(call.sequences): call.sequences for call in calls}
    ops = {id(call.sequences): call.op for call in calls}
    ids, lengths, places, tokens, spans = [], [], [], [], {}
    above = at = 0
    for key, table in tables.items():
        rows, columns, token = _places(table, ops[key])
        # What follows a row's last place need not be fed.
        fed = torch.zeros_like(table.lengths).scatter_reduce_(0, rows, columns + 1, "amax")
        starts = fed.cumsum(0) - fed
        ids.append(table.tokens[table.column_of < fed[table.row_of]])
        lengths += [length for length in fed.tolist() if length]
        places.append(starts[rows] + columns + above)
        tokens.append(token)
        spans[key] = slice(at, at + len(rows))
        above, at = above + len(ids[-1]), at + len(rows)
    if not at:
        # All ranks take part in a pass, whether it has something to say or not.
        ids, lengths, places = [torch.full((1,), pad_id)], [1], [torch.zeros(1, dtype=torch.long)]
    none = torch.zeros(0, dtype=torch.long)
    return Batch(tuple(calls), torch.cat(ids)[None], lengths, torch.cat(places), torch.cat([none, *tokens]), spans)


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
