"""Samples tokens inside vLLM exactly as `rlgraph.backends.engines.sampling` does: by the row's key and the token's
place."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.v1.sample.logits_processor.builtin import process_dict_updates
from vllm.v1.sample.logits_processor.interface import BatchUpdate, LogitsProcessor

from rlgraph.backends.engines.likeliest import KeptTokens
from rlgraph.backends.engines.sampling import draw_tokens, to_device
from rlgraph.backends.engines.vllm.sampled_row import ROW_FIELD, DrawnTokens, HostCopy, SampledRow
from rlgraph.backends.engines.vllm.start import StartNotes


class SamplingLogitsProcessor(LogitsProcessor):
    """Samples a token for each row of vLLM's batch, and makes it the likeliest. What it draws it hands to the executor
    (`rlgraph.backends.engines.vllm.ranks`), and waits for no device."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        self._drawn = cast(StartNotes, vllm_config.additional_config).drawn
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
                    self._drawn.append(self._sample(logits, rows, places[rows], forbids))
        return logits

    def _count(self, batch: int) -> None:
        """Note how many rows of other batches are sampled together with those of this one."""
        own_rows = self._batches == batch
        admission = self._rows[int(own_rows.argmax())].batch.admission
        if admission is not None:
            admission.concurrent_calls = max(admission.concurrent_calls, int((~own_rows).sum()))

    def _sample(self, logits: Tensor, rows: np.ndarray, places: np.ndarray, forbids: bool) -> DrawnTokens:
        """Sample for some rows that are sampled in the same way, at these places; `forbids`: no stop token."""
        batch = self._rows[rows[0]].batch
        banned = to_device(torch.tensor(batch.stops), logits.device) if forbids and batch.stops else None
        positions = to_device(torch.from_numpy(rows), logits.device)
        selected = logits if len(rows) == len(logits) else logits[positions]
        support: list[KeptTokens] = []
        drawn = draw_tokens(selected, self._keys[rows], places, batch.sampling, banned, support)
        logits[positions, drawn[0]] = torch.inf
        return DrawnTokens(
            [self._rows[row] for row in rows], places.tolist(), HostCopy(*drawn), next(iter(support), None), forbids
        )


def _entry(params: SamplingParams, prompt: list[int] | None, response: list[int]) -> tuple[SampledRow, list[int]]:
    row: SampledRow = (params.extra_args or {})[ROW_FIELD]
    row.response, row.prompt_length = response, len(prompt or ())
    return row, response
