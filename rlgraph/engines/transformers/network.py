"""A transformers model as two functions: tokens to hidden states, and hidden states to what its head says."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel

from rlgraph.engines.base import EngineError
from rlgraph.engines.sources import quiet
from rlgraph.engines.transformers.cache import make_cache

_HEADS = ("score", "classifier", "lm_head")


class Network:
    """Splits a model into backbone and head, so that the head runs only at the positions that are needed.

    Whether head(backbone(x)) is really what the model computes is tried once on a few tokens: a model that
    scales or caps its logits in between is run whole instead, at every position.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.device = model.device
        self._backbone: nn.Module = model.base_model
        self._head: nn.Module | None = model.get_output_embeddings() or _scalar_head(model)
        if self._backbone is model or not self._splits():
            self._head = None

    @property
    def splits(self) -> bool:
        """The head can be run alone."""
        return self._head is not None

    def read(self, ids: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """What the head says at some places of right-padded rows: float [M, outputs].

        ids: int64 [N, T]. rows, columns: int64 [M]. The padding needs no mask: a causal model never looks to
        the right.
        """
        ids, rows, columns = ids.to(self.device), rows.to(self.device), columns.to(self.device)
        if self._head is None:
            return self.whole(ids)[rows, columns]
        hidden = self._backbone(input_ids=ids, use_cache=False).last_hidden_state
        flat = hidden.reshape(-1, hidden.shape[-1])
        index = rows * ids.shape[1] + columns
        read: Tensor = self._head(flat if _is_range(index, flat.shape[0]) else flat.index_select(0, index))
        return read

    def hidden(self, ids: Tensor) -> Tensor:
        """The backbone's last hidden states of right-padded rows, float [N, T, H]; only where it `splits`."""
        assert self.splits
        out: Tensor = self._backbone(input_ids=ids.to(self.device), use_cache=False).last_hidden_state
        return out

    def head(self, hidden: Tensor) -> Tensor:
        """The head on hidden states [M, H]; only where it `splits`."""
        assert self._head is not None
        out: Tensor = self._head(hidden)
        return out

    def step(self, ids: Tensor, cache: Cache, positions: Tensor, mask: Tensor | None) -> Tensor:
        """Logits after the last of the new tokens `ids`, int64 [N, T]: float [N, V]; appends the tokens to
        the cache.

        positions: int64 [N or 1, T]. mask: bool [N, places in the cache and T], None where there is no
        padding.
        """
        given = {
            "input_ids": ids,
            "past_key_values": cache,
            "position_ids": positions,
            "attention_mask": mask,
            "use_cache": True,
        }
        if self._head is None:
            logits: Tensor = self.model(**given, logits_to_keep=1).logits[:, -1]
            return logits
        last: Tensor = self._head(self._backbone(**given).last_hidden_state[:, -1])
        return last

    def states(self, ids: Tensor) -> Tensor:
        """What the model says at every position before its head, float [N, T, H]; where it has no backbone, behind
        it."""
        if self._backbone is self.model:
            return self.whole(ids)
        out: Tensor = self._backbone(input_ids=ids, use_cache=False).last_hidden_state
        return out

    def whole(self, ids: Tensor) -> Tensor:
        """The model's own output at every position, [N, T, outputs]."""
        out: Tensor = self.model(input_ids=ids, use_cache=False).logits
        if out.dim() != 3:
            raise EngineError(
                f"{type(self.model).__name__} gives no scalar for each token: its head cannot be run alone"
            )
        return out

    @cached_property
    @torch.no_grad()
    def pads(self) -> bool:
        """Whether a row that is padded on the left in a cached pass gives what it gives alone.

        It does not for some recurrent models, nor in float64 where transformers computes attention itself in
        float32.
        """
        ids = self._probe()
        mask = torch.ones(2, 8, dtype=torch.bool, device=self.device)
        mask[1, :3] = False
        both = torch.cat([ids, ids])
        positions = (mask.long().cumsum(1) - 1).clamp(min=0)
        padded = self.step(both, make_cache(self.model.config, 1), positions, mask)[1]
        alone = self.step(ids[:, 3:], make_cache(self.model.config, 1), positions[1:, 3:], None)[0]
        return bool((padded - alone).abs().max() <= _tolerance(alone))

    def _probe(self) -> Tensor:
        """A few tokens to try the model on, int64 [1, 8]; padding in front, of which some models warn,
        once."""
        config = self.model.config.get_text_config()
        ids: Tensor = torch.arange(1, 9, device=self.device)[None] % config.vocab_size
        ids[0, 0] = getattr(config, "pad_token_id", None) or 0
        return ids

    @torch.no_grad()
    def _splits(self) -> bool:
        """Whether the head on the backbone gives the model's own output for a few tokens."""
        ids = self._probe()
        with quiet():
            whole = self.model(input_ids=ids, use_cache=False).logits
        if self._head is None:
            return False
        try:
            parts = self.head(self._backbone(input_ids=ids, use_cache=False).last_hidden_state)
        except (TypeError, RuntimeError, AttributeError):
            return False
        if whole.dim() == 2:
            # A sequence classifier reads one place, of its own choice.
            return bool((parts[0] - whole).abs().amax(1).min() <= _tolerance(whole))
        return parts.shape == whole.shape and bool((parts - whole).abs().max() <= _tolerance(whole))


def _scalar_head(model: PreTrainedModel) -> nn.Module | None:
    found = [getattr(model, name) for name in _HEADS if isinstance(getattr(model, name, None), nn.Module)]
    return found[0] if found else None


def _tolerance(logits: Tensor) -> float:
    return 100 * torch.finfo(logits.dtype).eps * max(1.0, float(logits.abs().max()))


def _is_range(index: Tensor, size: int) -> bool:
    """Whether `index` is 0, 1, ..., size - 1 in order, given that it increases."""
    return index.shape[0] == size
