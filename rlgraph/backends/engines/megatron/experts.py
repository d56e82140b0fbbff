"""Experts in a layer of Megatron-core, whose own ones dispatch tokens by operations of CUDA and Transformer Engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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

from rlgraph.backends.engines.grouped import grouped_product, sort_by_expert
from rlgraph.backends.engines.megatron.modules import GatedActivation
from rlgraph.backends.engines.megatron.parameters import replicated_parameter, split_parameter
from rlgraph.catalog.models.latent_attention import ExpertRouting
from rlgraph.catalog.models.shape import Shape


def replay_in_layers(layers: Iterable[nn.Module]) -> None:
    """Make experts take those that the rows of a pass replay, also where a layer is computed again for its gradient.
    Megatron's layers hand their rows to attention alone."""
    for layer in layers:
        if isinstance(layer.mlp, Experts):
            layer.register_forward_pre_hook(_take_routes, with_kwargs=True)


def _take_routes(layer: Any, _: tuple[Any, ...], arguments: Mapping[str, Any]) -> None:
    layer.mlp.set_routes(arguments["packed_seq_params"].routes)


class Experts(nn.Module):
    """The feed-forward network of a layer that has experts, E of them.

    Ranks along ep have E / ep of them each and tokens of their own, which travel to the ranks with their experts and
    back; ranks along tp have some columns of each, and add up their outputs. Along both each rank chooses and sends for
    its own part of the sequence-parallel region alone, and what arrives is gathered along tp, as much of it as there
    is. Along tp alone all tokens are gathered first, and outputs are added up together with those of experts that every
    token takes. Gradients of what each rank has whole, the router, are added up in the end.
    """

    def __init__(self, config: TransformerConfig, *, shape: Shape, place: int) -> None:
        """place: of its layer among those that have experts."""
        super().__init__()
        self._place = place
        self._routes: Tensor | None = None
        tp, ep = config.tensor_model_parallel_size, parallel_state.get_expert_model_parallel_world_size()
        self._shape, self._split, self._ranks = shape, tp > 1, ep
        # Whether ranks along tp, which have the same experts, each send their own tokens to those of other ranks.
        self._routes_own = tp > 1 and ep > 1
        self._group = parallel_state.get_expert_model_parallel_group()
        self._columns_group = parallel_state.get_tensor_model_parallel_group()
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

    def set_routes(self, routes: Tensor | None) -> None:
        """Set the experts that the next pass replays, int16 [T, layers that have experts, experts of a token]; -1 and
        None: the router chooses. T: of all tokens of the sequence-parallel region."""
        if routes is not None and self._routes_own:
            routes = routes.chunk(self._columns_group.size())[self._columns_group.rank()]
        self._routes = None if routes is None else routes[:, self._place]

    def forward(self, hidden: Tensor, **_: Any) -> tuple[Tensor, None]:
        """hidden: [tokens / tp, 1, hidden]."""
        if not self._routes_own:
            return self._over_columns(hidden, self._whole_output), None
        output = self._routed_output(hidden[:, 0])[:, None]
        return output + self._over_columns(hidden, self._shared_output) if self._shape.shared_ffn else output, None

    def _over_columns(self, hidden: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
        """Return what `compute` makes of all tokens on the ranks along tp, added up, [tokens / tp, 1, hidden]."""
        if not self._split:
            return compute(hidden[:, 0])[:, None]
        output = compute(gather_from_sequence_parallel_region(hidden)[:, 0])
        summed: Tensor = reduce_scatter_to_sequence_parallel_region(output[:, None])
        return summed

    def _whole_output(self, x: Tensor) -> Tensor:
        output = self._routed_output(x)
        return output + self._shared_output(x) if self._shape.shared_ffn else output

    def _shared_output(self, x: Tensor) -> Tensor:
        """Return the outputs of experts that every token takes, [T, hidden]."""
        shared: Tensor = self._gate(x @ self.shared_fc1.t()) @ self.shared_fc2.t()
        return shared if self._shape.routing else (x @ self.shared_gate.t()).sigmoid() * shared

    def _routed_output(self, x: Tensor) -> Tensor:
        """Return the outputs of each token's experts, [T, hidden], times their shares."""
        shares, chosen = self._shares_of_chosen(x)
        order, ends = sort_by_expert(chosen.flatten(), self._shape.experts)
        token = order // self._shape.experts_per_token
        expert_outputs = self._dispatched(x.index_select(0, token), ends)
        # Restore the tokens' order. Adding up by index would keep the addends for the gradient.
        places = torch.empty_like(order)
        places[order] = torch.arange(len(order), device=x.device)
        weighted = expert_outputs.index_select(0, places).view(*chosen.shape, -1) * shares.to(x.dtype)[..., None]
        return weighted.sum(1)

    def _shares_of_chosen(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return for each token the shares of its experts, and which ones these are, [T, experts of a token] both."""
        wide = torch.promote_types(x.dtype, torch.float32)
        if routing := self._shape.routing:
            # As wide as float32 before the product, as in transformers.
            shares = (x.to(wide) @ self.router.t().to(wide)).sigmoid()
            chosen = self._largest_corrected(shares.detach(), routing)
        else:
            shares = (x @ self.router.t()).softmax(-1, dtype=wide)
            chosen = shares.detach().topk(self._shape.experts_per_token)[1]
        if self._routes is not None:
            replayed = self._routes.to(chosen)
            chosen = torch.where(replayed[:, :1] >= 0, replayed, chosen)
        shares = shares.gather(1, chosen)
        if self._shape.norm_topk:
            shares = shares / (shares.sum(-1, keepdim=True) + (1e-20 if routing else 0.0))
        return shares * routing.scale if routing else shares, chosen

    def _largest_corrected(self, shares: Tensor, routing: ExpertRouting) -> Tensor:
        """Return the experts of each token, of the best groups, by their shares and a bias, [T, experts of a token]."""
        corrected = (shares + self.correction).unflatten(-1, (routing.groups, -1))
        groups = corrected.topk(2)[0].sum(-1).topk(routing.chosen)[1]
        allowed = torch.zeros_like(corrected[..., 0], dtype=torch.bool).scatter_(1, groups, True)
        corrected = corrected.masked_fill(~allowed[..., None], -torch.inf).flatten(1)
        chosen: Tensor = corrected.topk(self._shape.experts_per_token)[1]
        return chosen

    def _dispatched(self, x: Tensor, ends: Tensor) -> Tensor:
        """Return what the experts compute of x, [N, hidden], by expert, in the same order. ends: int32 [E]."""
        if self._ranks == 1:
            return self._computed(x, ends)
        counts = ends.diff(prepend=ends.new_zeros(1))
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts, group=self._group)
        columns, own = self._columns_group.size(), self._columns_group.rank()
        everywhere = arriving.new_empty(columns * len(arriving)) if self._split else arriving
        if self._split:
            # What arrives at each rank along tp is for the same experts.
            dist.all_gather_into_tensor(everywhere, arriving, group=self._columns_group)
        sent, received = counts.view(self._ranks, -1), everywhere.view(columns, self._ranks, -1)
        # The host has to know how much room what arrives takes: it waits once.
        sent_counts, *received_counts = torch.cat([sent[None], received]).sum(2).tolist()
        room = [sum(each) for each in received_counts]
        x = all_to_all(self._group, x, received_counts[own], sent_counts)
        # To send them all to each and to add up what comes back takes any numbers of tokens, on gloo, too.
        if self._split:
            x = all_to_all(self._columns_group, x.repeat(columns, 1), room, [room[own]] * columns)
        # Tokens arrive by rank and then by expert: sort them by expert.
        expert = torch.arange(received.numel(), device=x.device) % sent.shape[1]
        order, ends = sort_by_expert(expert.repeat_interleave(received.flatten(), output_size=sum(room)), sent.shape[1])
        outputs = self._computed(x[order], ends)
        places = torch.empty_like(order)
        places[order] = torch.arange(len(order), device=x.device)
        outputs = outputs[places]
        if self._split:
            parts = all_to_all(self._columns_group, outputs, [room[own]] * columns, room)
            outputs = parts.view(columns, room[own], parts.shape[1]).sum(0)
        result: Tensor = all_to_all(self._group, outputs, sent_counts, received_counts[own])
        return result

    def _computed(self, x: Tensor, ends: Tensor) -> Tensor:
        """Apply this rank's experts to the tokens of each. Those without one take part: all have a gradient."""
        return grouped_product(self._gate(grouped_product(x, self.linear_fc1, ends)), self.linear_fc2, ends)
