"""Experts in a layer of Megatron-core: its own ones dispatch tokens by operations of CUDA and Transformer Engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel import (
    all_to_all,
    gather_from_sequence_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
)
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn

from rlgraph.backends.engines.megatron.modules import Gate
from rlgraph.backends.engines.megatron.weights import part, whole
from rlgraph.catalog.models.latent import Routing
from rlgraph.catalog.models.shape import Shape


class Experts(nn.Module):
    """The feed-forward network of a layer that has experts, E of them.

    Ranks along ep have E / ep of them each and tokens of their own, which go to where their experts are and back; ranks
    along tp have some columns of each. What the ranks along tp make of their columns is added up once, experts that
    every token takes included, and so are the gradients of what each of them has whole: the router.
    """

    def __init__(self, config: TransformerConfig, *, shape: Shape) -> None:
        super().__init__()
        tp, ep = config.tensor_model_parallel_size, parallel_state.get_expert_model_parallel_world_size()
        self._shape, self._split, self._ranks = shape, tp > 1, ep
        self._group = parallel_state.get_expert_model_parallel_group()
        columns, own = shape.ffn // tp, shape.experts // ep
        self.router = whole(shape.experts, shape.hidden, self._split)
        self.linear_fc1 = part((own, 2 * columns, shape.hidden), 1)
        self.linear_fc2 = part((own, shape.hidden, columns), 2)
        for weight in (self.linear_fc1, self.linear_fc2):
            # Megatron's word for what the copies along ep do not have in common.
            weight.allreduce = ep == 1  # type: ignore[attr-defined]
        if shape.shared_ffn:
            columns = shape.shared_ffn // tp
            self.shared_fc1 = part((2 * columns, shape.hidden), 0)
            self.shared_fc2 = part((shape.hidden, columns), 1)
            if not shape.routing:
                self.shared_gate = whole(1, shape.hidden, self._split)
        if shape.routing:
            self.correction = nn.Parameter(torch.zeros(shape.experts), requires_grad=False)
        self._gate = Gate(config)

    def forward(self, hidden: Tensor, **_: Any) -> tuple[Tensor, None]:
        """hidden: [tokens / tp, 1, hidden]."""
        if self._split:
            hidden = gather_from_sequence_parallel_region(hidden)
        x = hidden[:, 0]
        found = self._routed(x)
        if self._shape.shared_ffn:
            shared = self._gate(x @ self.shared_fc1.t()) @ self.shared_fc2.t()
            found = found + (shared if self._shape.routing else (x @ self.shared_gate.t()).sigmoid() * shared)
        found = found[:, None]
        return reduce_scatter_to_sequence_parallel_region(found) if self._split else found, None

    def _routed(self, x: Tensor) -> Tensor:
        """What its experts make of each token, [T, hidden], times their shares."""
        shares, chosen = self._corrected(x, self._shape.routing) if self._shape.routing else self._largest(x)
        order = chosen.flatten().argsort(stable=True)
        token = order // self._shape.experts_per_token
        counts = chosen.flatten().bincount(minlength=self._shape.experts)
        made = self._sent(x.index_select(0, token), counts)
        # Back in the tokens' order. Adding up by index would keep what is added.
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=x.device)
        found = made.index_select(0, back).view(*chosen.shape, -1) * shares.to(x.dtype)[..., None]
        return found.sum(1)

    def _largest(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Of each token the shares of its experts, and which ones these are, [T, experts of a token] both."""
        logits = x @ self.router.t()
        shares = logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        shares, chosen = shares.topk(self._shape.experts_per_token)
        return shares / shares.sum(-1, keepdim=True) if self._shape.norm_topk else shares, chosen

    def _corrected(self, x: Tensor, routing: Routing) -> tuple[Tensor, Tensor]:
        """The same of routers with a bias; as wide as float32 before the product, as transformers has it."""
        wide = torch.promote_types(x.dtype, torch.float32)
        shares = (x.to(wide) @ self.router.t().to(wide)).sigmoid()
        with torch.no_grad():
            wanted = (shares + self.correction).unflatten(-1, (routing.groups, -1))
            groups = wanted.topk(2)[0].sum(-1).topk(routing.chosen)[1]
            open_to = torch.zeros_like(wanted[..., 0], dtype=torch.bool).scatter_(1, groups, True)
            wanted = wanted.masked_fill(~open_to[..., None], -torch.inf).flatten(1)
            chosen = wanted.topk(self._shape.experts_per_token)[1]
        shares = shares.gather(1, chosen)
        shares = shares / (shares.sum(-1, keepdim=True) + 1e-20) if self._shape.norm_topk else shares
        return shares * routing.scale, chosen

    def _sent(self, x: Tensor, counts: Tensor) -> Tensor:
        """x: [N, hidden], by expert; counts: int64 [E]. What the experts make of it, in the same order."""
        if self._ranks == 1:
            return self._computed(x, counts.tolist())
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts, group=self._group)
        going, coming = counts.view(self._ranks, -1), arriving.view(self._ranks, -1)
        out, back = going.sum(1).tolist(), coming.sum(1).tolist()
        there = all_to_all(self._group, x, back, out)
        # By rank, and of each by expert: the other way about.
        expert = torch.arange(coming.numel(), device=x.device) % coming.shape[1]
        order = expert.repeat_interleave(coming.flatten()).argsort(stable=True)
        made = self._computed(there[order], coming.sum(0).tolist())
        returned = torch.empty_like(order)
        returned[order] = torch.arange(len(order), device=x.device)
        found: Tensor = all_to_all(self._group, made[returned], out, back)
        return found

    def _computed(self, x: Tensor, counts: Sequence[int]) -> Tensor:
        """By this rank's experts, with so many tokens each. Those without one take part: all have a gradient."""
        rows = zip(x.split(counts), self.linear_fc1, self.linear_fc2, strict=True)
        return torch.cat([self._gate(own @ above.t()) @ below.t() for own, above, below in rows])
