"""Splits a transformers model into two functions: tokens to hidden states, and hidden states to the head's output."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast

from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.engines.sources import quiet_transformers
from rlgraph.backends.engines.transformers.attention import reading_packed_rows, supports_packed_rows
from rlgraph.backends.engines.transformers.autocast import NARROW, autocast
from rlgraph.backends.engines.transformers.cache import PreallocatedCache, make_cache
from rlgraph.backends.engines.transformers.linear import is_plain_linear
from rlgraph.backends.engines.transformers.packing import Packing, pack_separately, pack_sharing_prefixes
from rlgraph.backends.engines.transformers.routing import find_routing
from rlgraph.backends.engines.transformers.spec import SHARES
from rlgraph.catalog.clusters.cluster import cpu_or_gpu

_PADDED = 1.05
"""Rows that padding makes at most so many times as large are padded: attention of rows side by side takes one call."""

_MOST_LAYERS, _MOST_HEAD = 0.25, 0.01
"""How far two ways to the same numbers may be apart in a narrow dtype, as shares of the largest: two passes through the
layers; two heads on the same hidden states."""
_LARGE_SCALE = 1000.0

_HEADS = ("score", "classifier", "lm_head")
_CACHE = ("cache", "past_key_values")
"""What transformers calls a row's cache: in newer versions, and before."""


class Network:
    """Splits a model into backbone and head, so that the head runs only at the positions that are needed.

    The head is a module of the model, or, where the model scales or caps that module's output, the model itself on a
    backbone that returns its input. Whether head(backbone(x)) is really what the model computes is tried once on a few
    tokens: a model for which neither is so is run whole instead, at every position.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        pad_id: int,
        gathered: Callable[[Tensor], Tensor] | None = None,
        autocast: bool = False,
    ) -> None:
        """pad_id: what rows are padded with. gathered: from a rank's part of logits to all of them, where the model is
        split by vocabulary. autocast: whether products before the head are bfloat16; raises EngineError where the head
        cannot be run alone."""
        self._autocast = False
        self.model = model
        self.device = model.device
        self._pad_id, self._gathered = pad_id, gathered or (lambda logits: logits)
        self.can_capture = gathered is None
        """Whether a token's work is this process's alone, so that a CUDA graph can have it."""
        self._backbone: nn.Module = model.base_model
        self._head = self._find_head()
        if autocast and self._head is None:
            raise EngineError(
                f"the head of {type(model).__name__} cannot be run alone, and stays float32: no `autocast`"
            )
        self._autocast = autocast
        self.routing = find_routing(model)

    @property
    def rounding_dtype(self) -> torch.dtype:
        """The dtype to which what the layers compute is rounded."""
        return NARROW if self._autocast else self.model.dtype

    def hidden_at(self, rows: Sequences, places: Tensor, beginnings: Tensor | None = None) -> Tensor:
        """Return what `head` needs at some places, float [M, ...]: int64 [M], which increase, among the tokens of all
        rows.

        The rows lie one behind the other where the model can read them so, and are padded on the right where it cannot,
        or where there is little to pad. The padding needs no mask: a causal model never looks to the right.

        beginnings: how many tokens of each row, int64 [N], are read once for all neighbours that begin with the same
        ones, where the model can do that and it saves something; None: none.
        """
        longest = int(rows.lengths.max())
        packing = (
            pack_sharing_prefixes(rows, beginnings) if beginnings is not None and self.can_share_prefixes else None
        )
        if packing is None and self.can_pack and len(rows) * longest > _PADDED * rows.tokens.shape[0]:
            packing = pack_separately(rows)
        if packing is not None:
            index = packing.place_of_token[places]
            with self._replaying(None if rows.routes is None else rows.routes[packing.token_at_place]):
                states = self.packed_hidden_states(rows, packing)
        else:
            index = rows.row_of_token[places] * longest + rows.token_positions[places]
            ids, mask = rows.padded(self._pad_id)
            routes = rows.routes
            if routes is not None:
                padded = routes.new_full((*mask.shape, *routes.shape[1:]), -1)
                padded[mask] = routes
                routes = padded.flatten(0, 1)
            with self._replaying(routes):
                states = self.hidden_states(ids.to(self.device))
        flat = states.flatten(0, 1)
        return flat if _is_range(index, flat.shape[0]) else flat.index_select(0, index.to(self.device))

    def _replaying(self, routes: Tensor | None) -> AbstractContextManager[None]:
        """Make routers choose these experts, where there are any. Raises EngineError where that cannot be."""
        if routes is None:
            return nullcontext()
        if self.routing is None:
            raise EngineError(f"{type(self.model).__name__} has no routers of experts that could be replayed")
        return self.routing.replaying(routes.to(self.device))

    def packed_hidden_states(self, rows: Sequences, packing: Packing) -> Tensor:
        """Return what `states` returns, for rows that lie one behind the other, [1, places, H]; only where it
        `can_pack`."""
        tokens, positions = rows.tokens[packing.token_at_place], rows.token_positions[packing.token_at_place]
        with reading_packed_rows(packing.spans):
            return self.hidden_states(tokens[None].to(self.device), positions[None].to(self.device))

    def apply_head(self, hidden: Tensor) -> Tensor:
        """Return the model's output where its hidden states are these, float [M, outputs]."""
        return hidden if self._head is None else self._head(hidden)

    @property
    def head_matrix(self) -> nn.Linear | None:
        """The head, where it is a linear layer without bias that computes nothing else."""
        head = self._head
        plain = isinstance(head, nn.Linear) and is_plain_linear(head) and head.bias is None and not head._forward_hooks
        return head if plain else None  # type: ignore[return-value]

    def decode_step(self, ids: Tensor, cache: Cache, positions: Tensor, mask: Tensor | None) -> Tensor:
        """Return the logits after the last of the new tokens `ids`, int64 [N, T], as float [N, V], and append the
        tokens to the cache.

        positions: int64 [N or 1, T]. mask: bool [N, places in the cache and T], None where there is no padding.
        """
        module = self.model if self._head is None else self._backbone
        arguments = {
            "input_ids": ids,
            cache_argument_name(module): cache,
            "position_ids": positions,
            "attention_mask": mask,
            "use_cache": True,
        }
        if self._head is None:
            return self._gathered(module(**arguments, logits_to_keep=1).logits[:, -1])
        with autocast(self.device, self._autocast):
            hidden = module(**arguments).last_hidden_state[:, -1]
        return self._gathered(self._head(hidden))

    def hidden_states(self, ids: Tensor, positions: Tensor | None = None) -> Tensor:
        """Return the model's states at every position before its head, float [N, T, H]; behind the head where that
        cannot be run alone."""
        if self._head is None:
            return self.all_outputs(ids, positions)
        with autocast(self.device, self._autocast):
            out: Tensor = _read(self._backbone, ids, positions).last_hidden_state
        return out

    def all_outputs(self, ids: Tensor, positions: Tensor | None = None) -> Tensor:
        """Return the model's own output at every position, [N, T, outputs]."""
        if self._autocast:
            flat = self.apply_head(self.hidden_states(ids, positions).flatten(0, 1))
            return flat.view(*ids.shape, -1)
        out: Tensor = _read(self.model, ids, positions).logits
        if out.dim() != 3:
            raise EngineError(
                f"{type(self.model).__name__} gives no scalar for each token: its head cannot be run alone"
            )
        return out

    def all_logits(self, ids: Tensor) -> Tensor:
        """Return the logits of the whole vocabulary at every position, [N, T, V]."""
        return self._gathered(self.all_outputs(ids))

    def make_cache(self, room: int) -> PreallocatedCache:
        """Return the cache of rows whose prompts so many tokens may follow."""
        return make_cache(self.model.config, room)

    @cached_property
    @torch.no_grad()
    def can_pad_left(self) -> bool:
        """Whether a row that is padded on the left in a cached pass gives what it gives alone.

        It does not for some recurrent models, nor in float64 where transformers computes attention itself in float32.
        """
        ids = self._probe()
        mask = torch.ones(2, 8, dtype=torch.bool, device=self.device)
        mask[1, :3] = False
        both = torch.cat([ids, ids])
        positions = (mask.long().cumsum(1) - 1).clamp(min=0)
        padded = self.decode_step(both, make_cache(self.model.config, 1), positions, mask)[1]
        alone = self.decode_step(ids[:, 3:], make_cache(self.model.config, 1), positions[1:, 3:], None)[0]
        return bool((padded - alone).abs().max() <= _tolerance(alone.to(self.rounding_dtype)))

    @cached_property
    @torch.no_grad()
    def can_read_on(self) -> bool:
        """Whether rows whose common beginning was read once, with padding behind it, give what each gives alone."""
        ids, cache = self._probe(), self.make_cache(1)
        mask = torch.ones(2, ids.shape[1], dtype=torch.bool, device=self.device)
        mask[1, 3:5] = False
        positions = (mask.long().cumsum(1) - 1).clamp(min=0)
        self.decode_step(ids[:, :3], cache, positions[:1, :3], None)
        if not cache.keeps_all_places:
            return False
        cache.spread(2, ids.shape[1] - 3)
        found = self.decode_step(torch.cat([ids, ids])[:, 3:], cache, positions[:, 3:], mask)
        for row, seen in zip(found, mask, strict=True):
            own = ids[:, seen]
            alone = self.decode_step(
                own, self.make_cache(1), torch.arange(own.shape[1], device=self.device)[None], None
            )
            if (row - alone[0]).abs().max() > _tolerance(alone[0].to(self.rounding_dtype)):
                return False
        return True

    @cached_property
    @torch.no_grad()
    def can_fix_spans(self) -> bool:
        """Whether a token that is written where a tensor says, into a cache with places to spare, gives what it gives
        behind the others."""
        ids, cache = self._probe(), self.make_cache(8)
        appended, end = self.make_cache(8), ids.shape[1] - 1
        places = torch.arange(ids.shape[1], device=self.device)
        for each in (cache, appended):
            self.decode_step(ids[:, :end], each, places[None, :end], None)
        if not cache.keeps_all_places:
            return False
        cache.fix_span(places[end:], 2 * end)
        seen = torch.arange(2 * end, device=self.device) <= end
        expected = self.decode_step(ids[:, end:], appended, places[None, end:], None)
        try:
            found = self.decode_step(ids[:, end:], cache, places[None, end:], seen[None, None, None])
        except Exception:
            return False  # Its attention takes no such mask.
        return bool((found - expected).abs().max() <= _tolerance(expected.to(self.rounding_dtype)))

    @cached_property
    @torch.no_grad()
    def can_pack(self) -> bool:
        """Whether rows that lie one behind the other give what each gives alone."""
        ids = self._probe()[0].tolist()
        rows = Sequences.from_lists([ids, ids[3:], ids[:2]])
        return supports_packed_rows(self.model) and self._reads_same(rows, pack_separately(rows))

    @cached_property
    @torch.no_grad()
    def can_share_prefixes(self) -> bool:
        """Whether rows give what each gives alone where their common beginnings exist once."""
        if cpu_or_gpu(self.device.type) not in SHARES.devices:
            return False
        ids = self._probe()[0].tolist()
        rows = Sequences.from_lists([ids, ids[:7], [*ids[:4], *ids[5:7]], [*ids[:4], ids[7]], ids[3:]])
        packing = pack_sharing_prefixes(rows, torch.tensor([4, 4, 4, 4, 5]), 0)
        return packing is not None and self.can_pack and self._reads_same(rows, packing)

    def _reads_same(self, rows: Sequences, packing: Packing) -> bool:
        """Return whether rows that are packed so give what each gives alone, to the rounding of the model's dtype, or
        of float32: even in float64 models transformers computes some parts in that, and rounds by a token's place."""
        try:
            together = self.packed_hidden_states(rows, packing)[0][packing.place_of_token].split(rows.lengths.tolist())
        except Exception:
            return False
        alone = [self.hidden_states(torch.tensor([row], device=self.device))[0] for row in rows.rows()]
        coarser = max(self.rounding_dtype, torch.float32, key=lambda dtype: torch.finfo(dtype).eps)
        return all(
            bool((packed_states - single).abs().max() <= _tolerance(single.to(coarser)))
            for packed_states, single in zip(together, alone, strict=True)
        )

    def _probe(self) -> Tensor:
        """Return a few tokens to try the model on, int64 [1, 8]; padding in front, of which some models warn, once."""
        config = self.model.config.get_text_config()
        ids: Tensor = torch.arange(1, 9, device=self.device)[None] % config.vocab_size
        ids[0, 0] = getattr(config, "pad_token_id", None) or 0
        return ids

    @torch.no_grad()
    def _find_head(self) -> Callable[[Tensor], Tensor] | None:
        """Return the head, if there is one that gives on the backbone the model's own output for a few tokens."""
        ids = self._probe()
        with quiet_transformers():
            expected = self.model(input_ids=ids, use_cache=False).logits
        if self._backbone is self.model:
            return None
        *modules, rest = _heads(self.model)
        for head in (*modules, rest):
            try:
                hidden = self._backbone(input_ids=ids, use_cache=False).last_hidden_state[0]
                parts = head(hidden)
            except Exception:
                continue
            # A sequence classifier reads one place, which it chooses itself.
            gap = (parts - expected).abs().amax(-1).min() if expected.dim() == 2 else (parts - expected[0]).abs().max()
            if parts.dim() == 2 and bool(gap <= _tolerance(expected, _MOST_HEAD)) and _agree(head, rest, hidden):
                return head
        return None


def _read(module: nn.Module, ids: Tensor, positions: Tensor | None) -> Any:
    return module(input_ids=ids, use_cache=False, **({} if positions is None else {"position_ids": positions}))


def _heads(model: PreTrainedModel) -> Iterator[Callable[[Tensor], Tensor]]:
    """Yield the candidates for the head of a model: from hidden states [M, H] to [M, outputs]."""
    modules = [model.get_output_embeddings(), *(getattr(model, name, None) for name in _HEADS)]
    yield from (module for module in modules if isinstance(module, nn.Module))
    # The copy shares all modules but the backbone with the model.
    rest = copy.copy(model)
    rest._modules = {**model._modules, model.base_model_prefix: _PassThrough()}

    def head(hidden: Tensor) -> Tensor:
        out: Tensor = rest(inputs_embeds=hidden[None], use_cache=False).logits[0]
        return out

    yield head


def _agree(head: Callable[[Tensor], Tensor], rest: Callable[[Tensor], Tensor], hidden: Tensor) -> bool:
    """Return whether two heads give the same for large hidden states, too: in small ones a cap changes less than a
    narrow dtype shows."""
    try:
        expected = rest(_LARGE_SCALE * hidden)
    except Exception:
        return True  # This model has no such head.
    output = head(_LARGE_SCALE * hidden)
    return output.shape != expected.shape or bool((output - expected).abs().max() <= _tolerance(expected, _MOST_HEAD))


class _PassThrough(nn.Module):
    """Takes the place of a backbone: its last hidden states are its input."""

    def forward(self, inputs_embeds: Tensor, **options: object) -> BaseModelOutputWithPast:
        return BaseModelOutputWithPast(last_hidden_state=inputs_embeds)  # type: ignore[arg-type]


def _tolerance(logits: Tensor, most: float = _MOST_LAYERS) -> float:
    """Return how far numbers may be apart that are the same but for rounding; never more than a share of the
    largest."""
    return min(most, 100 * torch.finfo(logits.dtype).eps) * float(logits.abs().max())


def _is_range(index: Tensor, size: int) -> bool:
    """Return whether `index` is 0, 1, ..., size - 1 in order, given that all places of it are asked for once."""
    return index.shape[0] == size and bool((index == torch.arange(size)).all())


def cache_argument_name(model: nn.Module) -> str:
    """Return the name by which a model takes its cache. With the old one newer versions warn for each token, and later
    refuse."""
    return _cache_name(type(model).forward)


@cache
def _cache_name(forward: Callable[..., Any]) -> str:
    return next(name for name in _CACHE if name == _CACHE[-1] or name in inspect.signature(forward).parameters)
