"""Rows that vLLM samples, with what it does not tell of them, and what a step has drawn for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.engines.likeliest import KeptTokens
from rlgraph.backends.engines.records import Admission, PartialRow, Sampling
from rlgraph.backends.engines.sampling import not_finite

if TYPE_CHECKING:
    from vllm import SamplingParams

    from rlgraph.backends.engines.vllm.routes import RouteRecorder

ROW_FIELD = "rlgraph"
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
    tokens: list[int] = field(default_factory=list)
    """The tokens of its response so far, those included with which it came."""
    logprobs: list[float] = field(default_factory=list)
    """Their log-probabilities, under the whole distribution."""
    support: list[KeptTokens] = field(default_factory=list)
    """For each of them those that it was sampled from, where they are kept."""
    begun_tokens: Sequence[int] = ()
    """Tokens of its response that it came with."""
    response: list[int] = field(default_factory=list)
    """Tokens that vLLM has added since, or has a place for."""
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
        # vLLM may have asked for a token that it has not taken, or have a place for one that is not noted yet.
        count = min(len(self.begun_tokens) + len(self.response), len(self.logprobs))
        return PartialRow(self.tokens[:count], self.logprobs[:count], support=self.support[:count])

    def sampling_params(self) -> SamplingParams:
        """Return what vLLM is to do: take the likeliest of the logits that `SamplingLogitsProcessor` leaves."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

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
            extra_args={ROW_FIELD: self},
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


class HostCopy:
    """Tensors of a device on their way to the host: nobody waits before they are asked for."""

    def __init__(self, *tensors: Tensor) -> None:
        self._copies = [tensor.to("cpu", non_blocking=True) for tensor in tensors]
        self._done: torch.cuda.Event | None = None
        if tensors[0].device.type == "cuda":
            self._done = torch.cuda.Event()
            self._done.record()

    def tensors(self) -> list[Tensor]:
        """Return them, once the device has come that far."""
        if self._done is not None:
            self._done.synchronize()
        return self._copies


@dataclass(frozen=True)
class DrawnTokens:
    """What one step has drawn for some rows that are sampled in the same way."""

    rows: Sequence[SampledRow]
    places: Sequence[int]
    """Of the tokens, in their rows' responses."""
    values: HostCopy
    """The tokens, int64 [N], their log-probabilities, float [N], and whether these are finite, bool [N]."""
    support: KeptTokens | None
    """Those that they were sampled from, where they are kept."""
    forbids: bool
    """No token ends a row here."""

    def note(self) -> None:
        """Note tokens and log-probabilities in their rows, once the device has drawn them."""
        drawn, logprobs, finite = self.values.tensors()
        tokens = drawn.tolist()
        for row, place, token, logprob in zip(self.rows, self.places, tokens, logprobs.tolist(), strict=True):
            # vLLM also asks for rows whose prompt it has not read to its end, and drops what is sampled then.
            row.tokens[place:] = [token]
            row.logprobs[place:] = [logprob]
        if not bool(finite.all()):
            # Of the calls that are sampled together each fails by itself.
            for row, is_finite in zip(self.rows, finite.tolist(), strict=True):
                if not is_finite:
                    row.batch.failure = not_finite()
        if (stop_texts := self.rows[0].batch.sampling.stop_texts) is not None:
            pairs = zip(self.rows, self.places, strict=True)
            before = [row.stop_states[place - 1] if place else 0 for row, place in pairs]
            states, complete = stop_texts.advance(torch.tensor(before), drawn)
            noted = zip(self.rows, self.places, tokens, states.tolist(), complete.tolist(), strict=True)
            for row, place, token, state, ends in noted:
                row.note_token(place, token, state, ends and not self.forbids)
        if self.support is not None:
            kept = self.support.split([1] * len(self.support))
            for row, place, of_row in zip(self.rows, self.places, kept, strict=True):
                row.support[place:] = [of_row]
