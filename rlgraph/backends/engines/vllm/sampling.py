"""Samples tokens inside vLLM exactly as `rlgraph.backends.engines.sampling` does: by the row's key and the token's
place."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.sampling_params import RequestOutputKind
from vllm.v1.sample.logits_processor.builtin import process_dict_updates
from vllm.v1.sample.logits_processor.interface import BatchUpdate, LogitsProcessor

from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.engines.likeliest import KeptTokens
from rlgraph.backends.engines.records import Admission, PartialRow, Sampling
from rlgraph.backends.engines.sampling import sample
from rlgraph.backends.engines.vllm.routes import RouteRecorder

_ROW_FIELD = "rlgraph"
"""The field of a request's `extra_args` that holds its `SampledRow`."""


@dataclass
class CallSamplingSettings:
    """The sampling settings of one call's rows. The engine and its logits processor, which are in one process, share
    this object and those of its rows."""

    sampling: Sampling
    stops: tuple[int, ...]
    """The tokens that end a row."""
    admission: Admission | None = None
    recorder: RouteRecorder | None = None
    """What says which experts the tokens have, where the model's routers are recorded."""
    failure: EngineError | None = None
    """Why nothing could be sampled. It is not raised inside vLLM, which would print all it knows."""

    @property
    def way(self) -> tuple[Sampling, tuple[int, ...]]:
        """How a token is sampled: the same for rows that differ in how long they may become."""
        return replace(self.sampling, max_tokens=0), self.stops


@dataclass
class SampledRow:
    """A row, with what vLLM does not tell of its response."""

    batch: CallSamplingSettings
    index: int
    key: int
    logprobs: list[float] = field(default_factory=list)
    """Log-probabilities of its tokens so far, under the whole distribution."""
    support: list[KeptTokens] = field(default_factory=list)
    """For each of its tokens so far those that it was sampled from, where they are kept."""
    begun_tokens: list[int] = field(default_factory=list)
    """Tokens of its response that it came with."""
    response: list[int] = field(default_factory=list)
    """Tokens that vLLM has added since."""
    prompt_length: int = 0
    """Tokens that vLLM was given."""
    stop_ids: list[int] = field(default_factory=list)
    """The tokens that end it where it is now: vLLM looks at this list when it takes one."""
    stop_states: list[int] = field(default_factory=list)
    """Behind each of its tokens so far the state of what finds texts that end it."""
    ended: bool = False
    """Whether its last token completes such a text."""
    routes: list[np.ndarray] = field(default_factory=list)
    """Experts of its tokens so far, prompt and response, int16 [tokens, layers, experts of a token] each."""

    def partial_row(self) -> PartialRow:
        """Return what exists of the row."""
        tokens = [*self.begun_tokens, *self.response]
        # vLLM may have asked for a token that it has not taken, or have taken one that is not noted yet.
        count = min(len(tokens), len(self.logprobs))
        return PartialRow(tokens[:count], self.logprobs[:count], support=self.support[:count])

    def sampling_params(self) -> SamplingParams:
        """Return what vLLM is to do: take the likeliest of the logits that `SamplingLogitsProcessor` leaves."""
        stop_texts = self.batch.sampling.stop_texts
        self.stop_states = [] if stop_texts is None else stop_texts.states_of(self.begun_tokens)
        params = SamplingParams(
            temperature=0,
            max_tokens=self.batch.sampling.max_tokens - len(self.begun_tokens),
            stop_token_ids=list(self.batch.stops),
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            skip_clone=True,
            extra_args={_ROW_FIELD: self},
        )
        # vLLM copies the parameters, and this list of theirs is one in all copies.
        self.stop_ids = params.stop_token_ids or []
        return params

    def note_token(self, place: int, token: int, state: int, ends: bool) -> None:
        """Note what a token makes of the texts that end the row: one that completes a text is among those that end it.
        A token that vLLM drops is sampled and noted anew."""
        self.stop_states[place:] = [state]
        self.ended = ends
        self.stop_ids[:] = [*self.batch.stops, *([token] if ends else [])]


class SamplingLogitsProcessor(LogitsProcessor):
    """Samples a token for each row of vLLM's batch, makes it the likeliest, and notes its log-probability."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        self._entries: dict[int, tuple[SampledRow, list[int]]] = {}
        """Rows by place in the batch; the list is the response so far, which vLLM extends."""
        self._rows: list[SampledRow] = []
        self._responses: list[list[int]] = []
        self._keys = np.zeros(0, dtype=np.uint64)
        self._batches = self._ways = self._min_tokens = self._begun_counts = np.zeros(0, dtype=np.int64)

    def is_argmax_invariant(self) -> bool:
        """Tell vLLM that this changes which token is the likeliest."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow which rows entered and left the batch, and which changed places."""
        if not process_dict_updates(self._entries, batch_update, _entry):
            return
        self._rows = [self._entries[place][0] for place in sorted(self._entries)]
        self._responses = [self._entries[place][1] for place in sorted(self._entries)]
        self._keys = np.array([row.key for row in self._rows], dtype=np.uint64)
        self._min_tokens = np.array([row.batch.sampling.min_tokens for row in self._rows])
        self._batches = np.array([id(row.batch) for row in self._rows])
        ways: dict[Any, int] = {}
        self._ways = np.array([ways.setdefault(row.batch.way, len(ways)) for row in self._rows])
        self._begun_counts = np.array([len(row.begun_tokens) for row in self._rows], dtype=np.int64)

    def apply(self, logits: Tensor) -> Tensor:
        """Sample for all rows, float32 [N, V]; rows that are sampled in the same way are sampled together."""
        places = np.array([len(response) for response in self._responses]) + self._begun_counts
        short = places < self._min_tokens
        recorder = next((row.batch.recorder for row in self._rows if row.batch.recorder is not None), None)
        if recorder is not None:
            recorder.note_step(self._rows)
        for batch in np.unique(self._batches):
            self._count(batch)
        for way in np.unique(self._ways):
            for forbids in (False, True):
                rows = np.flatnonzero((self._ways == way) & (short == forbids))
                if len(rows):
                    self._sample(logits, rows, places[rows], forbids)
        return logits

    def _count(self, batch: int) -> None:
        """Note how many rows of other batches are sampled together with those of this one."""
        own_rows = self._batches == batch
        admission = self._rows[int(own_rows.argmax())].batch.admission
        if admission is not None:
            admission.concurrent_calls = max(admission.concurrent_calls, int((~own_rows).sum()))

    def _sample(self, logits: Tensor, rows: np.ndarray, places: np.ndarray, forbids: bool) -> None:
        """Sample for some rows that are sampled in the same way, at these places; `forbids`: no stop token."""
        batch = self._rows[rows[0]].batch
        banned = torch.tensor(batch.stops, device=logits.device) if forbids and batch.stops else None
        positions = torch.from_numpy(rows).to(logits.device)
        selected = logits if len(rows) == len(logits) else logits[positions]
        support: list[KeptTokens] = []
        try:
            tokens, logprobs = sample(selected, self._keys[rows], places, batch.sampling, banned, support)
        except EngineError as error:
            own_rows = self._batches[rows] == id(batch)
            if not own_rows.all():
                # Of the calls that are sampled together each fails by itself.
                self._sample(logits, rows[own_rows], places[own_rows], forbids)
                self._sample(logits, rows[~own_rows], places[~own_rows], forbids)
                return
            batch.failure = error
            logits[positions] = 0
            return
        logits[positions, tokens] = torch.inf
        for row, place, logprob in zip(rows.tolist(), places.tolist(), logprobs.tolist(), strict=True):
            # vLLM also asks for rows whose prompt it has not read to its end, and drops what is sampled then.
            self._rows[row].logprobs[place:] = [logprob]
        if (stop_texts := batch.sampling.stop_texts) is not None:
            before = [
                self._rows[row].stop_states[place - 1] if place else 0 for row, place in zip(rows, places, strict=True)
            ]
            states, complete = stop_texts.advance(torch.tensor(before), tokens.cpu())
            noted = zip(
                rows.tolist(), places.tolist(), tokens.tolist(), states.tolist(), complete.tolist(), strict=True
            )
            for row, place, token, state, ends in noted:
                self._rows[row].note_token(place, token, state, ends and not forbids)
        for kept in support:
            for row, place, of_row in zip(rows.tolist(), places.tolist(), kept.split([1] * len(kept)), strict=True):
                self._rows[row].support[place:] = [of_row]


def _entry(params: SamplingParams, prompt: list[int] | None, response: list[int]) -> tuple[SampledRow, list[int]]:
    row: SampledRow = (params.extra_args or {})[_ROW_FIELD]
    row.response, row.prompt_length = response, len(prompt or ())
    return row, response
