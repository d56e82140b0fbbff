"""The modules of a Megatron-core layer whose own versions keep more than they need or do not support packed rows:
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

from rlgraph.backends.engines.megatron.context_parallel import TokenShard
from rlgraph.backends.engines.norm import rms_norm
from rlgraph.backends.engines.varlen import AttentionOptions, attend, row_bounds
from rlgraph.catalog.models.shape import Shape
from rlgraph.ir.stages import stage_layers


def stage_layer_specs(
    config: TransformerConfig,
    shape: Shape,
    rank: int,
    chunks: int,
    network: Callable[[int], Any] | None = None,
    attention: Any = None,
) -> TransformerBlockSubmodules:
    """Return the layers of a stage, with the parameters of Megatron-core's local specification. network, attention:
    what gives the module of a layer with experts from the layer's number, in place of its feed-forward network, and the
    module in place of its attention."""
    ranges = stage_layers(config.num_layers, config.pipeline_model_parallel_size, rank, chunks)
    specs = [
        _layer(config, shape, number, network(number) if network and number >= shape.dense else None, attention)
        for layers in ranges
        for number in range(*layers)
    ]
    return TransformerBlockSubmodules(specs, UnitOffsetNorm if shape.wide_norms else Norm)


def _layer(config: TransformerConfig, shape: Shape, number: int, network: Any, attention: Any) -> Any:
    layer = get_gpt_layer_local_spec(normalization="RMSNorm", qk_layernorm=config.qk_layernorm)
    parts, norm = layer.submodules, UnitOffsetNorm if shape.wide_norms else Norm
    parts.input_layernorm = parts.pre_mlp_layernorm = norm
    if shape.residual_scale != 1 or len(shape.norms) > 2:
        extra_norm = norm if len(shape.norms) > 2 else None
        parts.self_attn_bda = parts.mlp_bda = _spec(
            ResidualSum, config=config, scale=shape.residual_scale, norm=extra_norm
        )
    parts.mlp.submodules.activation_func = GatedActivation
    parts.mlp = network or parts.mlp
    if attention:
        parts.self_attention = attention
        return layer
    submodules = parts.self_attention.submodules
    submodules.core_attention = partial(Attention, shape=shape, number=number)
    if config.qk_layernorm:
        submodules.q_layernorm = submodules.k_layernorm = norm
    return layer


def _spec(module: type[nn.Module], **params: Any) -> Any:
    """Return a module's specification. A `ModuleSpec` would have to name all of its modules."""
    return SimpleNamespace(module=module, params=params)


Turn = tuple[Tensor, Tensor]
"""Cosine and sine of rotary angles, [T, 1, half of a head] each."""


@dataclass
class PackedRows(PackedSeqParams):  # type: ignore[misc]
    """Rows that lie one behind the other, T tokens together."""

    lengths: Sequence[int] = ()
    bounds: Tensor | None = None
    """`row_bounds` of these lengths; None where ranks shard the tokens."""
    rotations: Sequence[Turn] = ()
    """Cosine and sine of the angles by which each token's queries and keys are rotated; the second ones are those of
    layers with a window, where these rotate differently."""
    token_shard: TokenShard | None = None
    """This rank's part of their tokens, if it has not all: T counts its own."""
    routes: Tensor | None = None
    """The experts that are replayed, int16 [T, layers that have experts, experts of a token]; -1: routers choose."""


class RotaryAngles:
    """The angles of rotary positions, which begin anew with each row."""

    def __init__(self, config: TransformerConfig, shape: Shape) -> None:
        # Only Llama 3's scaling has a factor.
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

    def packed_rows(
        self, lengths: Sequence[int], share: TokenShard | None, routes: Tensor | None, device: torch.device
    ) -> PackedRows:
        """Return packed rows of these lengths, with their angles."""
        places = torch.cat([torch.arange(length) for length in lengths])
        places = share.shard_tokens(places) if share else places

        def cos_and_sin(rotary: RotaryEmbedding) -> Turn:
            angles = rotary.get_freqs_non_repeated(max(lengths))
            cos, sin = (table.to(self._dtype)[places, None].to(device) for table in (angles.cos(), angles.sin()))
            return cos, sin

        turns = [cos_and_sin(rotary) for rotary in self._rotary]
        return PackedRows(
            "thd",
            lengths=lengths,
            bounds=None if share else row_bounds(lengths, device),
            rotations=turns,
            token_shard=share.to(device) if share else None,
            routes=None if routes is None else routes.to(device),
        )


class Attention(nn.Module):
    """Rotates queries and keys, and attends row by row."""

    def __init__(self, *, shape: Shape, number: int, **_: Any) -> None:
        """number: of its layer, among those of all stages. Megatron's own number ignores chunks."""
        super().__init__()
        narrow = number in shape.narrow
        self._turn = -1 if narrow else 0
        self._how = AttentionOptions(
            shape.score_scale or None, shape.window if narrow else None, shape.score_cap or None
        )

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: None, *, packed_seq_params: PackedRows, **_: Any
    ) -> Tensor:
        """Return [T, heads, size]. query: [T, heads, size]. key, value: [T, groups, size]."""
        share, turn = packed_seq_params.token_shard, packed_seq_params.rotations[self._turn]
        query, key = (rotate(x.chunk(2, -1), turn) for x in (query, key))
        if share:
            return share.attend(query, key, value, self._how)
        # A view of the fused projection would keep all of it.
        return attend(query, key, value.contiguous(), packed_seq_params.lengths, self._how, packed_seq_params.bounds)


def rotate(pairs: Sequence[Tensor], turn: Turn) -> Tensor:
    """Rotate pairs of numbers, one of each of two tensors; the first ones of the results come before the second."""
    (cos, sin), (first, second) = turn, pairs
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class ResidualSum(nn.Module):
    """Adds the input of attention or network to its output, which may be normalized and multiplied first."""

    def __init__(self, config: TransformerConfig, scale: float, norm: type[Norm] | None) -> None:
        super().__init__()
        self.norm = norm(config, config.hidden_size, config.layernorm_epsilon) if norm is not None else None
        self._scale = scale

    def forward(self, training: bool, fused: bool) -> Callable[..., Tensor]:
        """Return the function that adds, which Megatron asks for so."""
        return self._add

    def _add(self, output: tuple[Tensor, None], residual: Tensor, dropout: float) -> Tensor:
        output_tensor, _ = output
        if self.norm is not None:
            output_tensor = self.norm(output_tensor)
        return residual + (output_tensor if self._scale == 1 else output_tensor * self._scale)


class Norm(nn.Module):
    """Root-mean-square normalization."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(hidden_size))
        # Each rank normalizes other tokens, so gradients are added up in the end.
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
        self._eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the last dimension of x."""
        x = x.contiguous()
        if x.is_cuda or x.element_size() < 4:
            return nn.functional.rms_norm(x, self.weight.shape, self.weight, self._eps)
        return rms_norm(x, self.weight, self._eps)


class UnitOffsetNorm(Norm):
    """Root-mean-square normalization times one more than the weight, in float32 at least."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the last dimension of x."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32)).contiguous()
        return rms_norm(wide, 1 + self.weight.to(wide.dtype), self._eps).to(x.dtype)


class GatedActivation(nn.Module):
    """SiLU of the first half of the columns, or their GELU by tanh, times the second half."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self._gelu = config.activation_func is not nn.functional.silu

    def forward(self, gate_and_up: Tensor) -> Tensor:
        """Return the gated columns, half as many."""
        gated: Tensor = _Gate.apply(gate_and_up, self._gelu)  # type: ignore[no-untyped-call]
        return gated


class _Gate(torch.autograd.Function):
    """Computes the gate; its gradient needs its input, and nothing else."""

    @staticmethod
    def forward(ctx: Any, gate_and_up: Tensor, gelu: bool) -> Tensor:
        ctx.save_for_backward(gate_and_up)
        ctx.gelu = gelu
        gate, up = gate_and_up.chunk(2, -1)
        return _activated(gate, gelu).mul_(up)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        (gate_and_up,) = ctx.saved_tensors
        gate, up = gate_and_up.chunk(2, -1)
        to_both = torch.empty_like(gate_and_up)
        to_gate, to_up = to_both.chunk(2, -1)
        torch.mul(gradient, _activated(gate, ctx.gelu), out=to_up)
        if ctx.gelu:
            torch.ops.aten.gelu_backward.grad_input(gradient * up, gate, approximate="tanh", grad_input=to_gate)
        else:
            torch.ops.aten.silu_backward.grad_input(gradient * up, gate, grad_input=to_gate)
        return to_both, None


def _activated(gate: Tensor, gelu: bool) -> Tensor:
    return nn.functional.gelu(gate, approximate="tanh") if gelu else nn.functional.silu(gate)


# The head


class ScalarHead(nn.Linear):
    """A head with one number for each hidden state, in place of the vocabulary's projection. Each tensor-parallel rank
    has all of it."""

    def __init__(self, hidden: int, bias: bool) -> None:
        super().__init__(hidden, 1, bias)
        nn.init.zeros_(self.weight)

    def forward(  # type: ignore[override]
        self, hidden: Tensor, weight: Tensor | None = None, **_: Any
    ) -> tuple[Tensor, None]:
        """Return what Megatron expects of an output layer."""
        return super().forward(hidden), None


class HiddenStatesOutput(ColumnParallelLinear):  # type: ignore[misc]
    """An output layer that returns hidden states as they are: losses multiply them with its weight."""

    def forward(self, hidden: Tensor, weight: Tensor | None = None, **_: Any) -> tuple[Tensor, None]:
        """Return the hidden states as Megatron expects an output."""
        return hidden, None


class OutputPositions:
    """Makes an output layer read the hidden states of some places only: most tokens of a row need no logits."""

    def __init__(self, model: GPTModel) -> None:
        self._read_places: Tensor | None = None
        self._split = model.config.sequence_parallel
        if model.post_process:
            model.output_layer.register_forward_pre_hook(self._pick)

    def set_positions(self, places: Tensor) -> None:
        """Set the places that the next pass reads, int64 [M]; its output is [1, M, outputs]."""
        self._read_places = places

    def _pick(self, layer: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        hidden, *rest = args  # [tokens / tp, 1, hidden]
        if self._split:
            # The gradients of a vocabulary's parts are added up; those of a scalar are the same on each rank.
            parts = isinstance(layer, HiddenStatesOutput)
            hidden = gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=parts)
        return (hidden[self._read_places], *rest)


def output_weight_rows(model: GPTModel, vocab: int) -> tuple[Tensor, int]:
    """Return this rank's rows of the output layer on the last stage, without those that pad the vocabulary, and the
    number of the first."""
    weight = model.output_layer.weight
    if weight is None:
        weight = model.shared_embedding_or_output_weight()
    first = parallel_state.get_tensor_model_parallel_rank() * weight.shape[0]
    return weight if first + weight.shape[0] <= vocab else weight[: vocab - first], first
