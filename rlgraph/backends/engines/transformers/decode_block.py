"""Rows that are decoded side by side: what is known of them, in tensors on the device, and a token's two halves as
functions of these alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlgraph.backends.engines.likeliest import KeptTokens
from rlgraph.backends.engines.records import Sampling
from rlgraph.backends.engines.sampling import choose_tokens, draw_uniforms, not_finite
from rlgraph.backends.engines.transformers.head import wide, wide_dtype
from rlgraph.backends.engines.transformers.mixture import Decodes
from rlgraph.backends.engines.transformers.pace import Pace


class DecodeBlock:
    """N rows, of which R are computed: those that run, and some that have ended since rows were dropped last.

    `choose` and `advance` neither wait for the device nor make a shape out of what they computed: between two changes
    of `span`, `keep` or `take_cache` they are the same work at the same addresses, and can be captured.
    """

    def __init__(
        self,
        network: Decodes,
        sampling: Sampling,
        pace: Pace,
        keys: Tensor,
        mask: Tensor,
        prompt_of_row: Tensor,
        stops: Tensor,
        pad_id: int,
        logits: Tensor,
        cache: Any,
    ) -> None:
        """keys: int64 [N], as `key_bits` returns them. mask: bool [N, width], False at what is left of a prompt.
        prompt_of_row: int64 [N], of the block's prompts. stops: the tokens that end a row, int64. logits, cache: what
        was found behind the prompts, [N, V], and the cache that has them."""
        self.network, self.sampling, self._pace = network, sampling, pace
        (count, width), limit, device = mask.shape, sampling.max_tokens, network.device
        self.logits, self.cache = logits, cache
        self._keys, self._prompt_of_row = keys.to(device), prompt_of_row.to(device)
        self.tokens = torch.full((count, limit), pad_id, device=device)
        self.logprobs = torch.zeros(count, limit, dtype=wide_dtype(network.model.dtype), device=device)
        self.lengths = torch.zeros(count, dtype=torch.long, device=device)
        self.finished = torch.zeros(count, dtype=torch.bool, device=device)
        self.running = torch.ones(count, dtype=torch.bool, device=device)
        self.rows = torch.arange(count, device=device)
        """Which of the N rows each of the R is."""
        ragged = not bool(mask.all())
        self._token = torch.zeros(count, dtype=torch.long, device=device)
        self._place = torch.zeros(1, dtype=torch.long, device=device)
        """Where the next token of a response is; `_column` and `_position`: where the next one that is read is, in the
        cache and in its row."""
        self._column = torch.full((1,), width, device=device)
        self._position = (mask.sum(1)[:, None] if ragged else torch.tensor([[width]])).to(device)
        self._seen: Tensor | None = None
        if ragged or pace.fixed:
            prompts = mask if ragged else mask[:1]
            behind = torch.zeros(prompts.shape[0], pace.rung(width + limit) - width, dtype=torch.bool)
            self._seen = torch.cat([prompts, behind], 1).to(device)
        stops = stops[stops < logits.shape[1]]
        self._is_stop = torch.zeros(logits.shape[1], dtype=torch.bool).index_fill(0, stops, True).to(device)
        self._stops = stops.to(device) if stops.numel() else None
        self._stop_texts = None if sampling.stop_texts is None else sampling.stop_texts.on(device)
        self._stop_states = torch.zeros(count, dtype=torch.long, device=device)
        """What each of the N rows has read of a text that would end it."""
        self._prompts = int(prompt_of_row.max()) + 1
        self._finite = torch.ones((), dtype=torch.bool, device=device)
        self.span = 0
        """How many places of the cache are read."""

    def choose(self, forbids_end: bool, support: list[KeptTokens] | None = None) -> None:
        """Sample a token for each row from its logits, and note which rows it ends. support: as in `choose_tokens`."""
        logits = wide(self.logits)
        uniforms = None if self.sampling.temperature == 0 else draw_uniforms(self._keys, self._place)
        banned = self._stops if forbids_end else None
        token, logprob, finite = choose_tokens(logits, uniforms, self.sampling, banned, support)
        self._finite.logical_and_(finite.all())
        self._token.copy_(token)
        self.tokens[self.rows, self._place] = token
        self.logprobs[self.rows, self._place] = logprob.to(self.logprobs.dtype)
        running = self.running.index_select(0, self.rows)
        self.lengths.index_add_(0, self.rows, running.long())
        ended = running & self._is_stop.index_select(0, token)
        if self._stop_texts is not None:
            states, complete = self._stop_texts.advance(self._stop_states.index_select(0, self.rows), token)
            self._stop_states.index_copy_(0, self.rows, states)
            if not forbids_end:
                ended |= running & complete
        self.running.index_copy_(0, self.rows, running & ~ended)
        self.finished.index_copy_(0, self.rows, self.finished.index_select(0, self.rows) | ended)
        if self.sampling.samples_wanted:
            # All rows have as many tokens: those that have not ended will have more than those that have.
            done = self.lengths.new_zeros(self._prompts).index_add_(0, self._prompt_of_row, self.finished.long())
            self.running &= (done < self.sampling.samples_wanted)[self._prompt_of_row]
        self._place += 1

    def advance(self) -> None:
        """Read the tokens that were chosen: the logits of the next ones."""
        seen = self._seen
        if seen is not None:
            seen.index_fill_(1, self._column, True)
            seen = seen[:, : self.span]
            if self._pace.fixed:
                seen = seen[:, None, None]
        logits = self.network.decode_step(self._token[:, None], self.cache, self._position, seen)
        if self._pace.fixed:
            self.logits.copy_(logits)
        else:
            self.logits = logits
        self._column += 1
        self._position += 1

    def set_span(self, span: int) -> None:
        """Read so many places of the cache from now on, which has to hold the next token."""
        if self._pace.fixed and span != self.span:
            self.cache.fix_span(self._column, span)
        self.span = span

    def ask(self) -> tuple[int, int]:
        """Wait for the device, and return how many rows run and how many tokens all have. Raises EngineError where
        logits were not finite."""
        running, tokens, finite = torch.stack([self.running.sum(), self.lengths.sum(), self._finite.long()]).tolist()
        if not finite:
            raise not_finite()
        return running, tokens

    def drop_ended(self) -> None:
        """Compute only the rows that run from now on."""
        keep = self.running.index_select(0, self.rows).nonzero()[:, 0]
        self.rows, self._keys, self._token = self.rows[keep], self._keys[keep], self._token[keep]
        self.cache.batch_select_indices(keep)
        if self._pace.fixed:
            self.logits = self.logits[keep]
        if self._position.shape[0] > 1:
            self._position = self._position[keep]
        if self._seen is not None and self._seen.shape[0] > 1:
            self._seen = self._seen[keep]

    def take_cache(self, logits: Tensor, cache: Any) -> None:
        """Go on behind the same tokens with what other weights make of them."""
        self.logits, self.cache, self.span = logits, cache, 0
