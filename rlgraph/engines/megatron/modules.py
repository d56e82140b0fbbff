"""What a layer of Megatron-core is made of here, where its own modules keep more than they need or know no packed rows:
attention, norms, the feed-forward network, and the head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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

from rlgraph.engines.megatron.context import Share
from rlgraph.engines.norm import rms_norm
from rlgraph.engines.varlen import attend


def layers(config: TransformerConfig, network: Any = None) -> TransformerBlockSubmodules:
    """Those of this rank's stage, with the parameters of Megatron-core's local specification. network: a module in
    place of its feed-forward network."""
    layer = get_gpt_layer_local_spec(normalization="RMSNorm", qk_layernorm=config.qk_layernorm)
    parts = layer.submodules
    parts.input_layernorm = parts.pre_mlp_layernorm = Norm
    parts.mlp.submodules.activation_func = Gate
    parts.mlp = network or parts.mlp
    attention = parts.self_attention.submodules
    attention.core_attention = Attention
    if config.qk_layernorm:
        attention.q_layernorm = attention.k_layernorm = Norm
    stage = config.num_layers // config.pipeline_model_parallel_size
    return TransformerBlockSubmodules([layer] * stage, Norm)


@dataclass
class Packed(PackedSeqParams):  # type: ignore[misc]
    """Rows that lie one behind the other, T tokens together."""

    lengths: Sequence[int] = ()
    cos: Tensor | None = None
    sin: Tensor | None = None
    """Of the angles by which each token's queries and keys are rotated, [T, 1, half of a head] each."""
    share: Share | None = None
    """This rank's part of their tokens, if it has not all: T is then what it has."""


class Angles:
    """The angles of rotary positions, which begin anew with each row."""

    def __init__(self, config: TransformerConfig, base: float, scaled_by: float | None) -> None:
        """scaled_by: the factor of Llama 3's scaling."""
        self._rotary = RotaryEmbedding(
            config.kv_channels,
            rotary_percent=1.0,
            rotary_base=base,
            rope_scaling=scaled_by is not None,
            rope_scaling_factor=scaled_by or 1.0,
            use_cpu_initialization=True,
        )
        self._dtype = config.params_dtype

    def of(self, lengths: Sequence[int], share: Share | None, device: torch.device) -> Packed:
        angles = self._rotary.get_freqs_non_repeated(max(lengths))
        places = torch.cat([torch.arange(length) for length in lengths])
        places = share.part(places) if share else places
        cos, sin = (each.to(self._dtype)[places, None].to(device) for each in (angles.cos(), angles.sin()))
        return Packed("thd", lengths=lengths, cos=cos, sin=sin, share=share.to(device) if share else None)


class Attention(nn.Module):
    """Rotates queries and keys, and attends row by row."""

    def __init__(self, **_: Any) -> None:
        super().__init__()

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: None, *, packed_seq_params: Packed, **_: Any
    ) -> Tensor:
        """query: [T, heads, size]. key, value: [T, groups, size]. Returns [T, heads, size]."""
        rotated, share = packed_seq_params, packed_seq_params.share
        query, key = _rotate(query, rotated), _rotate(key, rotated)
        if share:
            return share.attend(query, key, value)
        # A view of the fused projection would keep all of it.
        return attend(query, key, value.contiguous(), rotated.lengths)


def _rotate(x: Tensor, by: Packed) -> Tensor:
    assert by.cos is not None and by.sin is not None
    one, other = x.chunk(2, -1)
    return torch.cat([one * by.cos - other * by.sin, other * by.cos + one * by.sin], -1)


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


class Gate(nn.Module):
    """SiLU of the first half of the columns, times the second."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()

    def forward(self, gate_and_up: Tensor) -> Tensor:
        found: Tensor = _Gate.apply(gate_and_up)  # type: ignore[no-untyped-call]
        return found


class _Gate(torch.autograd.Function):
    """Its gradient needs what it reads, and nothing else."""

    @staticmethod
    def forward(ctx: Any, both: Tensor) -> Tensor:
        ctx.save_for_backward(both)
        gate, up = both.chunk(2, -1)
        return nn.functional.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (gradient,) = gradients
        (both,) = ctx.saved_tensors
        gate, up = both.chunk(2, -1)
        found = torch.empty_like(both)
        to_gate, to_up = found.chunk(2, -1)
        torch.mul(gradient, nn.functional.silu(gate), out=to_up)
        torch.ops.aten.silu_backward.grad_input(gradient * up, gate, grad_input=to_gate)
        return found


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
