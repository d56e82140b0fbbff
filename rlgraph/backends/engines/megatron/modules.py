"""What a layer of Megatron-core is made of here, where its own modules keep more than they need or know no packed rows:
attention, norms, the feed-forward network, and the head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.tensor_parallel import ColumnParallelLinear, gather_from_sequence_parallel_region
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn

from rlgraph.backends.engines.megatron.context import Share
from rlgraph.backends.engines.norm import rms_norm
from rlgraph.backends.engines.varlen import How, attend
from rlgraph.catalog.models.shape import Shape
from rlgraph.ir.layout import share


def layers(
    config: TransformerConfig, shape: Shape, rank: int, chunks: int, network: Any = None, attention: Any = None
) -> TransformerBlockSubmodules:
    """Those of a stage, with the parameters of Megatron-core's local specification. network, attention: modules in
    place of its feed-forward network, in layers that have experts, and of its attention."""
    parts = chunks * config.pipeline_model_parallel_size
    numbers = [
        number
        for part in range(rank, parts, config.pipeline_model_parallel_size)
        for number in range(*share(config.num_layers, parts, part))
    ]
    found = [_layer(config, shape, number, network if number >= shape.dense else None, attention) for number in numbers]
    return TransformerBlockSubmodules(found, WideNorm if shape.wide_norms else Norm)


def _layer(config: TransformerConfig, shape: Shape, number: int, network: Any, attention: Any) -> Any:
    layer = get_gpt_layer_local_spec(normalization="RMSNorm", qk_layernorm=config.qk_layernorm)
    parts, norm = layer.submodules, WideNorm if shape.wide_norms else Norm
    parts.input_layernorm = parts.pre_mlp_layernorm = norm
    if shape.residual_scale != 1 or len(shape.norms) > 2:
        more = norm if len(shape.norms) > 2 else None
        parts.self_attn_bda = parts.mlp_bda = _made(Sum, config=config, scale=shape.residual_scale, norm=more)
    parts.mlp.submodules.activation_func = Gate
    parts.mlp = network or parts.mlp
    if attention:
        parts.self_attention = attention
        return layer
    own = parts.self_attention.submodules
    own.core_attention = partial(Attention, shape=shape, number=number)
    if config.qk_layernorm:
        own.q_layernorm = own.k_layernorm = norm
    return layer


def _made(module: type[nn.Module], **params: Any) -> Any:
    """Not a `ModuleSpec`, of whose modules Megatron wants to know all."""
    return SimpleNamespace(module=module, params=params)


Turn = tuple[Tensor, Tensor]
"""Cosine and sine, [T, 1, half of a head] each."""


@dataclass
class Packed(PackedSeqParams):  # type: ignore[misc]
    """Rows that lie one behind the other, T tokens together."""

    lengths: Sequence[int] = ()
    turns: Sequence[Turn] = ()
    """Of the angles by which each token's queries and keys are rotated; the second ones are those of layers with a
    window, where these rotate otherwise."""
    share: Share | None = None
    """This rank's part of their tokens, if it has not all: T is then what it has."""


class Angles:
    """The angles of rotary positions, which begin anew with each row."""

    def __init__(self, config: TransformerConfig, shape: Shape) -> None:
        # The factor of Llama 3's scaling.
        bases = [(shape.rope_theta, dict(shape.rope_scaling).get("factor"))]
        bases += [(shape.narrow_theta, None)] * bool(shape.narrow_theta)
        self._rotary = [
            RotaryEmbedding(
                shape.latent.turned if shape.latent else config.kv_channels,
                rotary_percent=1.0,
                rotary_base=base,
                rope_scaling=factor is not None,
                rope_scaling_factor=factor or 1.0,
                use_cpu_initialization=True,
            )
            for base, factor in bases
        ]
        self._dtype = config.params_dtype

    def of(self, lengths: Sequence[int], share: Share | None, device: torch.device) -> Packed:
        places = torch.cat([torch.arange(length) for length in lengths])
        places = share.part(places) if share else places

        def turn(rotary: RotaryEmbedding) -> Turn:
            angles = rotary.get_freqs_non_repeated(max(lengths))
            cos, sin = (each.to(self._dtype)[places, None].to(device) for each in (angles.cos(), angles.sin()))
            return cos, sin

        turns = [turn(rotary) for rotary in self._rotary]
        return Packed("thd", lengths=lengths, turns=turns, share=share.to(device) if share else None)


class Attention(nn.Module):
    """Rotates queries and keys, and attends row by row."""

    def __init__(self, *, shape: Shape, number: int, **_: Any) -> None:
        """number: of its layer, among those of all stages. Megatron's own one knows no chunks."""
        super().__init__()
        narrow = number in shape.narrow
        self._turn = -1 if narrow else 0
        self._how = How(shape.score_scale or None, shape.window if narrow else None, shape.score_cap or None)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: None, *, packed_seq_params: Packed, **_: Any
    ) -> Tensor:
        """query: [T, heads, size]. key, value: [T, groups, size]. Returns [T, heads, size]."""
        share, turn = packed_seq_params.share, packed_seq_params.turns[self._turn]
        query, key = _rotate(query, turn), _rotate(key, turn)
        if share:
            return share.attend(query, key, value, self._how)
        # A view of the fused projection would keep all of it.
        return attend(query, key, value.contiguous(), packed_seq_params.lengths, self._how)


def _rotate(x: Tensor, by: Turn) -> Tensor:
    (cos, sin), (one, other) = by, x.chunk(2, -1)
    return torch.cat([one * cos - other * sin, other * cos + one * sin], -1)


class Sum(nn.Module):
    """What goes into attention or network, and what comes out of it, which may be normalized and multiplied first."""

    def __init__(self, config: TransformerConfig, scale: float, norm: type[Norm] | None) -> None:
        super().__init__()
        self.norm = norm(config, config.hidden_size, config.layernorm_epsilon) if norm is not None else None
        self._scale = scale

    def forward(self, training: bool, fused: bool) -> Callable[..., Tensor]:
        """As Megatron asks for the function that adds."""
        return self._add

    def _add(self, made: tuple[Tensor, None], before: Tensor, dropout: float) -> Tensor:
        found, _ = made
        if self.norm is not None:
            found = self.norm(found)
        return before + (found if self._scale == 1 else found * self._scale)


class Norm(nn.Module):
    """Root-mean-square normalization."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(hidden_size))
        # Ranks that normalize other tokens each add up its gradients in the end.
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
        self._eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        if x.is_cuda or x.element_size() < 4:
            return nn.functional.rms_norm(x, self.weight.shape, self.weight, self._eps)
        return rms_norm(x, self.weight, self._eps)


class WideNorm(Norm):
    """The same, times one more than the weight, and in float32 at least."""

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32)).contiguous()
        return rms_norm(wide, 1 + self.weight.to(wide.dtype), self._eps).to(x.dtype)


class Gate(nn.Module):
    """SiLU of the first half of the columns, or their GELU by tanh, times the second half."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self._gelu = config.activation_func is not nn.functional.silu

    def forward(self, gate_and_up: Tensor) -> Tensor:
        found: Tensor = _Gate.apply(gate_and_up, self._gelu)  # type: ignore[no-untyped-call]
        return found


class _Gate(torch.autograd.Function):
    """Its gradient needs what it reads, and nothing else."""

    @staticmethod
    def forward(ctx: Any, both: Tensor, gelu: bool) -> Tensor:
        ctx.save_for_backward(both)
        ctx.gelu = gelu
        gate, up = both.chunk(2, -1)
        return _activated(gate, gelu).mul_(up)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        (both,) = ctx.saved_tensors
        gate, up = both.chunk(2, -1)
        found = torch.empty_like(both)
        to_gate, to_up = found.chunk(2, -1)
        torch.mul(gradient, _activated(gate, ctx.gelu), out=to_up)
        if ctx.gelu:
            torch.ops.aten.gelu_backward.grad_input(gradient * up, gate, approximate="tanh", grad_input=to_gate)
        else:
            torch.ops.aten.silu_backward.grad_input(gradient * up, gate, grad_input=to_gate)
        return found, None


def _activated(gate: Tensor, gelu: bool) -> Tensor:
    return nn.functional.gelu(gate, approximate="tanh") if gelu else nn.functional.silu(gate)


# The head


class Scalar(nn.Linear):
    """One number for each hidden state, in place of the vocabulary's projection. Each tensor-parallel rank has all of
    it."""

    def __init__(self, hidden: int, bias: bool) -> None:
        super().__init__(hidden, 1, bias)
        nn.init.zeros_(self.weight)

    def forward(  # type: ignore[override]
        self, hidden: Tensor, weight: Tensor | None = None, **_: Any
    ) -> tuple[Tensor, None]:
        """As Megatron calls an output layer."""
        return super().forward(hidden), None


class Unread(ColumnParallelLinear):  # type: ignore[misc]
    """An output layer that gives hidden states as they are: losses multiply them with its weight."""

    def forward(self, hidden: Tensor, weight: Tensor | None = None, **_: Any) -> tuple[Tensor, None]:
        return hidden, None


class Places:
    """Lets an output layer read the hidden states of some places only: most of a row has nothing to say to the
    vocabulary."""

    def __init__(self, model: GPTModel) -> None:
        self._at: Tensor | None = None
        self._split = model.config.sequence_parallel
        if model.post_process:
            model.output_layer.register_forward_pre_hook(self._pick)

    def set(self, places: Tensor) -> None:
        """int64 [M]: those that the next pass reads; its output is [1, M, outputs]."""
        self._at = places

    def _pick(self, layer: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        hidden, *more = args  # [tokens / tp, 1, hidden]
        if self._split:
            # The gradients of a vocabulary's parts are added up; those of a scalar are the same on each rank.
            parts = isinstance(layer, Unread)
            hidden = gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=parts)
        return (hidden[self._at], *more)


def vocabulary_weight(model: GPTModel, vocab: int) -> tuple[Tensor, int]:
    """This rank's rows of the output layer on the last stage, without those that pad the vocabulary, and the number of
    the first."""
    weight = model.output_layer.weight
    if weight is None:
        weight = model.shared_embedding_or_output_weight()
    first = parallel_state.get_tensor_model_parallel_rank() * weight.shape[0]
    return weight if first + weight.shape[0] <= vocab else weight[: vocab - first], first
