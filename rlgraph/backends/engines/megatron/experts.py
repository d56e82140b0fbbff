"""Experts in a layer of Megatron-core, whose own ones dispatch tokens by operations of CUDA and Transformer Engine."""

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

from rlgraph.backends.engines.megatron.modules import GatedActivation
from rlgraph.backends.engines.megatron.parameters import replicated_parameter, split_parameter
from rlgraph.catalog.models.latent_attention import ExpertRouting
from rlgraph.catalog.models.shape import Shape


class Experts(nn.Module):
    """The feed-forward network of a layer that has experts, E of them.

    Ranks along ep have E / ep of them each and tokens of their own, which travel to the ranks with their experts and
    back; ranks along tp have some columns of each. The outputs of the columns on the ranks along tp are added up once,
    together with those of experts that every token takes, and so are the gradients of what each rank has whole: the
    router.
    """

    def __init__(self, config: TransformerConfig, *, shape: Shape) -> None:
        super().__init__()
        tp, ep = config.tensor_model_parallel_size, parallel_state.get_expert_model_parallel_world_size()
        self._shape, self._split, self._ranks = shape, tp > 1, ep
        self._group = parallel_state.get_expert_model_parallel_group()
        columns, local_experts = shape.ffn // tp, shape.experts // ep
        self.router = replicated_parameter(shape.experts, shape.hidden, self._split)
        self.linear_fc1 = split_parameter((local_experts, 2 * columns, shape.hidden), 1)
        self.linear_fc2 = split_parameter((local_experts, shape.hidden, columns), 2)
        for weight in (self.linear_fc1, self.linear_fc2):
            # Megatron's mark for parameters that differ along ep.
            weight.allreduce = ep == 1  # type: ignore[attr-defined]
        if shape.shared_ffn:
            columns = shape.shared_ffn // tp
            self.shared_fc1 = split_parameter((2 * columns, shape.hidden), 0)
            self.shared_fc2 = split_parameter((shape.hidden, columns), 1)
            if not shape.routing:
                self.shared_gate = replicated_parameter(1, shape.hidden, self._split)
        if shape.routing:
            self.correction = nn.Parameter(torch.zeros(shape.experts), requires_grad=False)
        self._gate = GatedActivation(config)

    def forward(self, hidden: Tensor, **_: Any) -> tuple[Tensor, None]:
        """hidden: [tokens / tp, 1, hidden]."""
        if self._split:
            hidden = gather_from_sequence_parallel_region(hidden)
        x = hidden[:, 0]
        output = self._routed_output(x)
        if self._shape.shared_ffn:
            shared = self._gate(x @ self.shared_fc1.t()) @ self.shared_fc2.t()
            output = output + (shared if self._shape.routing else (x @ self.shared_gate.t()).sigmoid() * shared)
        output = output[:, None]
        return reduce_scatter_to_sequence_parallel_region(output) if self._split else output, None

    def _routed_output(self, x: Tensor) -> Tensor:
        """Return the outputs of each token's experts, [T, hidden], times their shares."""
        shares, chosen = self._corrected(x, self._shape.routing) if self._shape.routing else self._largest(x)
        order = chosen.flatten().argsort(stable=True)
        token = order // self._shape.experts_per_token
        counts = chosen.flatten().bincount(minlength=self._shape.experts)
        expert_outputs = self._dispatched(x.index_select(0, token), counts)
        # Restore the tokens' order. Adding up by index would keep the addends for the gradient.
        places = torch.empty_like(order)
        places[order] = torch.arange(len(order), device=x.device)
        weighted = expert_outputs.index_select(0, places).view(*chosen.shape, -1) * shares.to(x.dtype)[..., None]
        return weighted.sum(1)

    def _largest(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return for each token the shares of its experts, and which ones these are, [T, experts of a token] both."""
        logits = x @ self.router.t()
        shares = logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        shares, chosen = shares.topk(self._shape.experts_per_token)
        return shares / shares.sum(-1, keepdim=True) if self._shape.norm_topk else shares, chosen

    def _corrected(self, x: Tensor, routing: ExpertRouting) -> tuple[Tensor, Tensor]:
        """Return the same as `_largest` for routers with a bias; as wide as float32 before the product, as in
        transformers."""
        wide = torch.promote_types(x.dtype, torch.float32)
        shares = (x.to(wide) @ self.router.t().to(wide)).sigmoid()
        with torch.no_grad():
            corrected = (shares + self.correction).unflatten(-1, (routing.groups, -1))
            groups = corrected.topk(2)[0].sum(-1).topk(routing.chosen)[1]
            allowed = torch.zeros_like(corrected[..., 0], dtype=torch.bool).scatter_(1, groups, True)
            corrected = corrected.masked_fill(~allowed[..., None], -torch.inf).flatten(1)
            chosen = corrected.topk(self._shape.experts_per_token)[1]
        shares = shares.gather(1, chosen)
        shares = shares / (shares.sum(-1, keepdim=True) + 1e-20) if self._shape.norm_topk else shares
        return shares * routing.scale, chosen

    def _dispatched(self, x: Tensor, counts: Tensor) -> Tensor:
        """Return what the experts compute of x, [N, hidden], by expert, in the same order. counts: int64 [E]."""
        if self._ranks == 1:
            return self._computed(x, counts.tolist())
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts, group=self._group)
        sent, received = counts.view(self._ranks, -1), arriving.view(self._ranks, -1)
        sent_counts, received_counts = sent.sum(1).tolist(), received.sum(1).tolist()
        arrived = all_to_all(self._group, x, received_counts, sent_counts)
        # Tokens arrive by rank and then by expert: sort them by expert.
        expert = torch.arange(received.numel(), device=x.device) % received.shape[1]
        order = expert.repeat_interleave(received.flatten()).argsort(stable=True)
        outputs = self._computed(arrived[order], received.sum(0).tolist())
        places = torch.empty_like(order)
        places[order] = torch.arange(len(order), device=x.device)
        result: Tensor = all_to_all(self._group, outputs[places], sent_counts, received_counts)
        return result

    def _computed(self, x: Tensor, counts: Sequence[int]) -> Tensor:
        """Apply this rank's experts to so many tokens each. Those without one take part: all have a gradient."""
        rows = zip(x.split(counts), self.linear_fc1, self.linear_fc2, strict=True)
        return torch.cat([self._gate(tokens @ up.t()) @ down.t() for tokens, up, down in rows])
