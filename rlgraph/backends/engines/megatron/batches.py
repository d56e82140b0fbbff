"""Puts calls in the form of a pass over the model: rows one behind the other, and answers read off its output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.engines.likeliest import KeptTokens, LikeliestTokens
from rlgraph.backends.engines.records import ModelCall
from rlgraph.backends.engines.sequences import Sequences


class Head(Protocol):
    """A model's head."""

    def __call__(self, hidden: Tensor, tokens: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        """Turn hidden states, [M, size], and M tokens into log-probabilities and entropies, [M] each."""
        ...

    def vocabulary_sum(
        self,
        hidden: Tensor,
        formula: tuple[str, str],
        temperature: float,
        beside: Sequence[tuple[Head, Tensor]] = (),
        kept: Sequence[Tensor] = (),
    ) -> Tensor:
        """Turn hidden states, [M, size], into what a formula is reduced to over the vocabulary by the word beside it,
        [M]. beside: heads and hidden states of the other models in it; kept: likeliest tokens, [M, 2 top_k], that come
        behind them, and numbers, [M, 1]."""
        ...

    def likeliest(self, hidden: Tensor, asked: LikeliestTokens, temperature: float) -> KeptTokens:
        """Turn hidden states, [M, size], into the likeliest tokens at each of the M places."""
        ...

    def logits(self, hidden: Tensor, temperature: float) -> Tensor:
        """Turn hidden states, [M, size], into this rank's logits, divided by the temperature, [M, n]."""
        ...


def _unchanged(table: int, values: Any) -> Any:
    return values


@dataclass(frozen=True)
class CallRows:
    """The rows of some calls; rows that several of them ask for exist once."""

    calls: tuple[ModelCall, ...]
    ids: Tensor
    """int64 [1, T]: the rows' tokens that are read, at least one token."""
    lengths: list[int]
    """Tokens of each row that is read, none of them 0."""
    output_positions: Tensor
    """int64 [M]: the places among the T whose hidden states the answers are made of; at least one."""
    next_tokens: Tensor
    """int64 [M]: the tokens that follow there; fewer where a place was only made up for a pass to have one."""
    table_spans: dict[int, slice]
    """For a table of sequences, by its `id`, its places among the M."""
    routes: Tensor | None = None
    """The experts of the T tokens that are replayed, as in `Sequences`."""
    merge_ranks: Callable[[int, Any], Any] = _unchanged
    """Turns what is computed at a table's places, [m], into the results of all ranks that have some of them."""
    own_entries: Callable[[int, Tensor], Tensor] = _unchanged
    """Takes of what is known at all of a table's places, [M, ...], that of this rank's, [m, ...]."""

    def results_by_call(self, output: Tensor, head: Head) -> list[Any]:
        """Return the model's answer to each call, from its output at the places: hidden states, [M, size], or [M, 1]
        scalars; float32 at least."""
        cached: dict[tuple[int, float], tuple[Tensor, Tensor]] = {}
        answers: list[Any] = []
        for call in self.calls:
            table = id(call.sequences)
            part = output[self.table_spans[table]]
            if call.op in ("values", "score"):
                answers.append(self.merge_ranks(table, part[:, 0].to(torch.promote_types(part.dtype, torch.float32))))
                continue
            if call.op == "distribution":
                models = [other for other in call.others if other.engine is not None]
                beside = [other.engine.head_and_states(other.sequences) for other in models]
                wide = torch.promote_types(part.dtype, torch.float32)
                numbers = [other.sequences.numbers(wide) for other in call.others if other.engine is None]
                kept = [self.own_entries(table, of_tokens) for of_tokens in numbers]
                sums = head.vocabulary_sum(part, (call.formula, call.reduce), call.temperature, beside, kept)
                answers.append(self.merge_ranks(table, sums))
                continue
            if call.likeliest is not None:
                answers.append(self.merge_ranks(table, head.likeliest(part, call.likeliest, call.temperature)))
                continue
            key = table, call.temperature
            if key not in cached:
                cached[key] = head(part, self.next_tokens[self.table_spans[table]].to(part.device), call.temperature)
            answers.append(self.merge_ranks(table, cached[key][call.op == "entropy"]))
        return answers


def merge_calls(calls: Sequence[ModelCall], pad_id: int) -> CallRows:
    """Return the batch of some calls. Raises EngineError for a scored token with nothing before it, and for the score
    of a row without tokens."""
    tables = {id(call.sequences): call.sequences for call in calls}
    ops = {id(call.sequences): call.op for call in calls}
    inputs, lengths, places, tokens, spans = [], [], [], [], {}
    token_offset = place_offset = 0
    for key, table in tables.items():
        rows, columns, token = _places(table, ops[key])
        # What follows a row's last place need not be read.
        input_lengths = torch.zeros_like(table.lengths).scatter_reduce_(0, rows, columns + 1, "amax")
        starts = input_lengths.cumsum(0) - input_lengths
        inputs.append(table.truncate(input_lengths))
        lengths += [length for length in input_lengths.tolist() if length]
        places.append(starts[rows] + columns + token_offset)
        tokens.append(token)
        spans[key] = slice(place_offset, place_offset + len(rows))
        token_offset, place_offset = token_offset + len(inputs[-1].tokens), place_offset + len(rows)
    if not place_offset:
        # All ranks take part in a pass, even one that has no answers.
        inputs, lengths, places = [Sequences.from_lists([[pad_id]])], [1], [torch.zeros(1, dtype=torch.long)]
    empty = torch.zeros(0, dtype=torch.long)
    read = Sequences.concat(inputs)
    return CallRows(
        tuple(calls), read.tokens[None], lengths, torch.cat(places), torch.cat([empty, *tokens]), spans, read.routes
    )


def _places(table: Sequences, op: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return row, column and following token of each place that answers `op`."""
    if op == "score":
        if bool((table.lengths == 0).any()):
            raise EngineError("a row without tokens has no score")
        last = table.lengths - 1
        return torch.arange(len(table)), last, torch.zeros_like(last)
    positions = table.scored.nonzero()[:, 0]
    columns = table.token_positions[positions] - 1
    if bool((columns < 0).any()):
        raise EngineError("a row's first token cannot be scored: there is nothing before it to predict it from")
    return table.row_of_token[positions], columns, table.tokens[positions]
