"""Builds Megatron's GPTModel with the numbers of a decoder of `rlgraph.catalog.models`."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn

from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.engines.megatron.experts import Experts
from rlgraph.backends.engines.megatron.groups import Stages
from rlgraph.backends.engines.megatron.latent import LatentAttention
from rlgraph.backends.engines.megatron.layout import padded_vocab_size
from rlgraph.backends.engines.megatron.modules import HiddenStatesOutput, ScalarHead, stage_layer_specs
from rlgraph.backends.engines.megatron.shim import model_device
from rlgraph.backends.enginespec.layout_checks import layout_problems
from rlgraph.catalog.models.families import ModelKind
from rlgraph.catalog.models.shape import Shape
from rlgraph.ir.mesh import Mesh


def build(
    shape: Shape,
    mesh: Mesh,
    kind: ModelKind,
    dtype: torch.dtype,
    recompute: bool,
    stages: Stages,
    base: GPTModel | None = None,
) -> GPTModel:
    """Return this rank's part of a model, all zeros. All ranks call it. Raises EngineError where the mesh cannot hold
    the model.

    recompute: for its backward pass each layer keeps its input only. base: a model with the same weights, adapters and
    heads apart, which never change: the two share them.
    """
    faults = layout_problems(shape, "megatron", mesh, kind)
    tp = mesh.axis_size("tp")
    rows = padded_vocab_size(shape, tp)
    if rows - shape.vocab >= rows // tp:
        faults.append(f"tp={tp} is too much for a vocabulary of {shape.vocab}: the last rank has nothing of it")
    if faults:
        raise EngineError("; ".join(faults))
    # What is shared is not made on the device first: it may have no room there.
    config = _config(shape, mesh, dtype, recompute, on_host=base is not None)
    model = GPTModel(
        config,
        # A `ModuleSpec` would have to name all modules.
        stage_layer_specs(
            config,
            shape,
            stages.rank(),
            mesh.axis_size("chunks"),
            _experts_of(shape) if shape.experts else None,
            SimpleNamespace(module=LatentAttention, params={"shape": shape}) if shape.latent else None,
        ),
        vocab_size=rows,
        max_sequence_length=shape.positions,
        pre_process=stages.neighbour_rank(-1) is None,
        post_process=stages.neighbour_rank(1) is None,
        share_embeddings_and_output_weights=shape.tied and kind == "causal_lm",
        # Attention rotates queries and keys itself.
        position_embedding_type="none",
        pg_collection=stages.process_groups(),
    )
    if model.post_process:
        if kind == "causal_lm":
            model.output_layer.__class__ = HiddenStatesOutput
        else:
            model.output_layer = ScalarHead(shape.hidden, bias=kind == "value_lm")
    if model.pre_process and shape.pad_id is not None:
        _freeze_token(model, shape.pad_id)
    if model.pre_process and shape.embedding_scale != 1:
        # The scale is rounded to the dtype of the weights, as in transformers.
        scale = float(torch.tensor(shape.embedding_scale, dtype=dtype))
        model.embedding.register_forward_hook(lambda module, args, output: output * scale)
    if base is not None:
        _share(model, base, kind)
    return model.to(model_device(), dtype)


def _experts_of(shape: Shape) -> Callable[[int], SimpleNamespace]:
    """Return what makes the specification of a layer's experts from its number."""
    return lambda number: SimpleNamespace(module=Experts, params={"shape": shape, "place": number - shape.dense})


def is_shared(name: str, kind: ModelKind) -> bool:
    """Return whether models of a kind with one base share a parameter: each has its adapters, and a scalar head."""
    return ".adapters." not in name and (kind == "causal_lm" or not name.startswith("output_layer."))


def _share(model: GPTModel, base: GPTModel, kind: ModelKind) -> None:
    """Put another model's parameters in the places of a model's own."""
    theirs = dict(base.named_parameters())
    for name in [name for name, _ in model.named_parameters() if is_shared(name, kind)]:
        module, _, field = name.rpartition(".")
        setattr(model.get_submodule(module), field, nn.Parameter(theirs[name].detach(), requires_grad=False))


def _freeze_token(model: GPTModel, token: int) -> None:
    """Keep a token's embedding out of the gradient, as torch's `padding_idx` does in transformers. A model may well
    sample the padding token; where its embedding is 0, the norm above it would have a gradient out of proportion."""

    def detach(_: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        ids = args[0]  # [1, tokens]
        if model.config.sequence_parallel:
            # `found` is of this rank's tokens, [tokens / tp, 1, hidden].
            tp, rank = model.config.tensor_model_parallel_size, parallel_state.get_tensor_model_parallel_rank()
            ids = ids.t().chunk(tp)[rank]
        return torch.where((ids == token)[..., None], output.detach(), output)

    model.embedding.word_embeddings.register_forward_hook(detach)


def _config(shape: Shape, mesh: Mesh, dtype: torch.dtype, recompute: bool, on_host: bool) -> TransformerConfig:
    return TransformerConfig(
        num_layers=shape.layers,
        hidden_size=shape.hidden,
        ffn_hidden_size=shape.dense_ffn or shape.ffn,
        num_attention_heads=shape.heads,
        num_query_groups=shape.kv_heads,
        kv_channels=shape.head_dim,
        qk_layernorm=shape.qk_norm,
        add_qkv_bias=shape.qkv_bias,
        add_bias_linear=False,
        gated_linear_unit=True,
        # The function that our own module computes.
        activation_func=nn.functional.gelu if shape.gelu else nn.functional.silu,
        # Use the module that the layers name, which is ours.
        use_te_activation_func=True,
        normalization="RMSNorm",
        layernorm_epsilon=shape.norm_eps,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        # Weights are read afterwards; the padding of a vocabulary stays zeros. (Without initialization Megatron would
        # forget which parameters are split, and leave most of them out of the gradient's norm.)
        init_method=nn.init.zeros_,
        output_layer_init_method=nn.init.zeros_,
        use_cpu_initialization=on_host or not torch.cuda.is_available(),
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        tensor_model_parallel_size=mesh.axis_size("tp"),
        # Ranks split by tokens what they do not split by columns (arXiv 2205.05198, section 4.2.2).
        sequence_parallel=mesh.axis_size("tp") > 1,
        pipeline_model_parallel_size=mesh.axis_size("pp"),
        # Each micro-batch is as long as its rows together.
        variable_seq_lengths=True,
        # Megatron dispatches nothing to experts here, but refuses the default beside lengths that vary.
        moe_token_dispatcher_type="alltoall",
        batch_p2p_sync=False,
        # The gradient is the sum over micro-batches and data-parallel ranks: nothing is divided by their number.
        calculate_per_token_loss=True,
        recompute_granularity="full" if recompute else None,
        recompute_method="uniform" if recompute else None,
        recompute_num_layers=1 if recompute else None,
        # These need CUDA or Apex.
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
    )
