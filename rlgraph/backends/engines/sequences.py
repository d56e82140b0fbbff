"""The data an engine works on: ragged token rows, without padding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from rlgraph.backends.engines.ragged import ragged_positions


@dataclass(frozen=True)
class Sequences:
    """A batch of N token rows, one after the other: a prompt and its response, or the turns of an episode."""

    tokens: Tensor
    """int64 [total]: the rows' tokens, row after row."""
    lengths: Tensor
    """int64 [N]: tokens in each row."""
    scored: Tensor
    """bool [total]: True where the model wrote the token; log-probabilities, values and losses live exactly
    there."""
    routes: Tensor | None = None
    """int16 [total, layers with experts, experts of a token]: the experts that routers chose for each token when the
    rows were sampled, which the model that sampled them computes with again; -1 where nothing is known. None: routers
    choose."""

    def __post_init__(self) -> None:
        assert self.tokens.shape == self.scored.shape and self.tokens.dim() == self.lengths.dim() == 1
        assert self.scored.dtype == torch.bool

    def __len__(self) -> int:
        return self.lengths.shape[0]

    @classmethod
    def from_lists(cls, rows: Iterable[Sequence[int]], scored: Iterable[Sequence[bool]] | None = None) -> Sequences:
        """Return the rows of N lists of token ids, and N lists of flags of the same lengths (none: no token is
        scored)."""
        lists = [list(row) for row in rows]
        tokens = torch.tensor([token for row in lists for token in row], dtype=torch.long)
        lengths = torch.tensor([len(row) for row in lists], dtype=torch.long)
        if scored is None:
            return cls(tokens, lengths, torch.zeros_like(tokens, dtype=torch.bool))
        flags = [list(row) for row in scored]
        assert [len(row) for row in flags] == lengths.tolist(), "a flag for each token"
        return cls(tokens, lengths, torch.tensor([flag for row in flags for flag in row], dtype=torch.bool))

    @classmethod
    def from_pairs(cls, prompts: Iterable[Sequence[int]], responses: Iterable[Sequence[int]]) -> Sequences:
        """Return the rows of N prompts and N responses, of which only the responses are scored."""
        pairs = [(list(prompt), list(response)) for prompt, response in zip(prompts, responses, strict=True)]
        return cls.from_lists(
            [prompt + response for prompt, response in pairs],
            [[False] * len(prompt) + [True] * len(response) for prompt, response in pairs],
        )

    @classmethod
    def concat(cls, batches: Sequence[Sequences]) -> Sequences:
        """Return the rows of all `batches`, in order; of no batch, no rows."""
        if not batches:
            return cls.from_lists([])
        return cls(
            torch.cat([batch.tokens for batch in batches]),
            torch.cat([batch.lengths for batch in batches]),
            torch.cat([batch.scored for batch in batches]),
            _joined_routes(batches),
        )

    def take(self, index: Tensor) -> Sequences:
        """Return the rows named by `index`, int64 [M], in that order; a row may be taken more than once."""
        lengths = self.lengths[index]
        flat = ragged_index(self.row_starts[index], lengths)
        return self._rows_of(flat, lengths)

    def slice_rows(self, rows: slice) -> Sequences:
        """Return consecutive rows, of which nothing is copied."""
        lengths = self.lengths[rows]
        start = int(self.lengths[: rows.start].sum())
        tokens = slice(start, start + int(lengths.sum()))
        routes = None if self.routes is None else self.routes[tokens]
        return Sequences(self.tokens[tokens], lengths, self.scored[tokens], routes)

    def truncate(self, lengths: Tensor) -> Sequences:
        """Return so many tokens of each row from its start, int64 [N]."""
        flat = ragged_index(self.row_starts, lengths)
        return self._rows_of(flat, lengths)

    def _rows_of(self, places: Tensor, lengths: Tensor) -> Sequences:
        """Return the tokens at some places as rows of these lengths."""
        routes = None if self.routes is None else self.routes[places]
        return Sequences(self.tokens[places], lengths, self.scored[places], routes)

    def rows(self) -> list[list[int]]:
        """Return the tokens as N lists."""
        return [row.tolist() for row in self.tokens.split(self.lengths.tolist())]

    def scored_tokens_by_row(self) -> list[list[int]]:
        """Return the scored tokens as N lists."""
        return [row.tolist() for row in self.tokens[self.scored].split(self.scored_counts().tolist())]

    def scored_by_row(self) -> list[list[bool]]:
        """Return which tokens are scored as N lists."""
        return [row.tolist() for row in self.scored.split(self.lengths.tolist())]

    def routes_by_row(self) -> list[Tensor | None]:
        """Return the routes of each row; None where routers choose."""
        return [None] * len(self) if self.routes is None else [*self.routes.split(self.lengths.tolist())]

    def first_scored(self) -> list[int]:
        """Return for each row how many tokens stand before its first scored one; all of them where none is scored."""
        return [row.index(True) if True in row else len(row) for row in self.scored_by_row()]

    def padded(self, pad_id: int) -> tuple[Tensor, Tensor]:
        """Return the rows padded on the right: ids int64 [N, T] and a mask that is False at padding, bool [N, T]."""
        longest = int(self.lengths.max()) if len(self) else 0
        mask = torch.arange(longest)[None] < self.lengths[:, None]
        ids = torch.full((len(self), longest), pad_id, dtype=torch.long)
        ids[mask] = self.tokens
        return ids, mask

    def scored_counts(self) -> Tensor:
        """Return the scored tokens in each row, int64 [N]."""
        counts, has_tokens = torch.zeros_like(self.lengths), self.lengths > 0
        if bool(has_tokens.any()):
            # Without a number of eight bytes for each token.
            starts = self.row_starts[has_tokens].numpy()
            counts[has_tokens] = torch.from_numpy(np.add.reduceat(self.scored.numpy(), starts, dtype=np.int64))
        return counts

    @cached_property
    def row_starts(self) -> Tensor:
        """Where each row begins in `tokens`, int64 [N]."""
        return self.lengths.cumsum(0) - self.lengths

    @cached_property
    def row_of_token(self) -> Tensor:
        """The row that each token belongs to, int64 [total]."""
        return torch.repeat_interleave(torch.arange(len(self)), self.lengths)

    @cached_property
    def token_positions(self) -> Tensor:
        """Each token's place in its row, counted from 0, int64 [total]."""
        return torch.arange(self.tokens.shape[0]) - self.row_starts[self.row_of_token]


def _joined_routes(batches: Sequence[Sequences]) -> Tensor | None:
    """Return the routes of all batches, -1 for those that have none; None where no batch has any."""
    known = next((batch.routes for batch in batches if batch.routes is not None), None)
    if known is None:
        return None
    return torch.cat(
        [
            known.new_full((batch.tokens.shape[0], *known.shape[1:]), -1) if batch.routes is None else batch.routes
            for batch in batches
        ]
    )


def ragged_index(starts: Tensor, lengths: Tensor) -> Tensor:
    """Return `ragged_positions` of tensors on the CPU."""
    return torch.from_numpy(ragged_positions(starts.numpy(), lengths.numpy()))
