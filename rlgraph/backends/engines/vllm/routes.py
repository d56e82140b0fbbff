"""Says which experts routers of vLLM's model chose for each token of a row.

vLLM has an option for it (`enable_return_routed_experts`), but only with its second model runner, which takes no logits
processors of others.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from rlgraph.backends.engines.ragged import ragged_positions

if TYPE_CHECKING:
    from rlgraph.backends.engines.vllm.sampled_row import SampledRow


def record_routes(worker: Any) -> None:
    """Put a recorder beside the model that vLLM's worker has loaded, as its `route_recorder`."""
    worker.get_model().route_recorder = RouteRecorder(worker.model_runner)


class RouteRecorder:
    """Keeps the experts of each token beside its keys and values, by their place in vLLM's cache: what a row finds in
    the cache comes with the experts that were chosen when it was computed. A pass of CUDA's graphs writes them, too,
    where the recorder is there before the graphs are."""

    def __init__(self, runner: Any) -> None:
        """runner: vLLM's, which has loaded its model."""
        from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner

        layers: list[Any] = [module for module in runner.model.modules() if isinstance(module, MoERunner)]
        layers.sort(key=lambda layer: layer.layer_id)
        self._runner = runner
        tokens, chosen = runner.scheduler_config.max_num_batched_tokens, layers[0].router.top_k
        self._chosen = torch.zeros((tokens, len(layers), chosen), dtype=torch.int32, device=runner.device)
        self._at_slot = np.full((0, len(layers), chosen), -1, np.int16)
        """By place in the cache; -1: nothing is known."""
        for place, layer in enumerate(layers):
            layer.router.set_capture_fn(partial(self._capture, place))

    def _capture(self, layer: int, chosen: Tensor) -> None:
        self._chosen[: chosen.shape[0], layer] = chosen

    def note_step(self, rows: Sequence[SampledRow]) -> None:
        """Note the experts of the tokens that vLLM has read for these rows, all of its batch, before it samples."""
        batch = self._runner.input_batch
        starts = self._runner.query_start_loc.np[: len(rows) + 1].astype(np.int64)
        before, counts = batch.num_computed_tokens_cpu[: len(rows)].astype(np.int64), np.diff(starts)
        slots = self._slots(np.repeat(np.arange(len(rows)), counts), ragged_positions(before, counts))
        taken = self._chosen[: int(starts[-1])].to("cpu", torch.int16).numpy()
        if slots.max() >= len(self._at_slot):
            more = max(int(slots.max()) + 1, 2 * len(self._at_slot)) - len(self._at_slot)
            self._at_slot = np.concatenate([self._at_slot, np.full((more, *taken.shape[1:]), -1, np.int16)])
        self._at_slot[slots] = taken
        for index, row in enumerate(rows):
            if not row.batch.sampling.keeps_routes:
                continue
            read = taken[starts[index] : starts[index + 1]]
            if not row.response:
                cached = np.arange(before[index])
                row.routes = [self._at_slot[self._slots(np.full_like(cached, index), cached)], read]
                continue
            # What is read again, perhaps with other weights, keeps the experts with which the tokens were sampled.
            known = row.prompt_length + len(row.response) - 1
            row.routes.append(read[max(0, known - int(before[index])) :])

    def _slots(self, rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Return the places in the cache of rows' tokens, int64 [N] each."""
        table = self._runner.input_batch.block_table[0]
        blocks = table.block_table.np[rows, positions // table.block_size].astype(np.int64)
        slots: np.ndarray = blocks * table.block_size + positions % table.block_size
        return slots


def whole_routes(routes: Sequence[np.ndarray], shape: tuple[int, int], tokens: int) -> Tensor:
    """Return the experts of all tokens of a row, int16 [tokens, *shape], from those of its first ones; -1 for the
    others, of which the last is one."""
    whole = np.full((tokens, *shape), -1, np.int16)
    if routes:
        # The last token is not read, but where a step was begun ahead of knowing it for the last.
        known = np.concatenate(list(routes))[: tokens - 1]
        whole[: len(known)] = known
    return torch.from_numpy(whole)
