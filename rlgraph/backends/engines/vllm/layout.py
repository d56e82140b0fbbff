"""Lays out a language model as vLLM does over the ranks that split its layers, in its unquantized form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rlgraph.catalog.models.families import (
    CORRECTION,
    EMBEDDING,
    ModelKind,
    expert_layer_prefix,
    gate_up_rows,
    tensor_rows_of_part,
)
from rlgraph.catalog.models.latent_attention import LatentAttention
from rlgraph.catalog.models.rank_slices import RankSlicer, Slice
from rlgraph.catalog.models.shape import Shape
from rlgraph.ir.layout import LocalTensor
from rlgraph.ir.mesh import Mesh

VOCAB_MULTIPLE = 64
"""vLLM pads the vocabulary to a multiple of it, before it is divided."""


def layout(shape: Shape, mesh: Mesh, rank: int, kind: ModelKind = "causal_lm") -> tuple[LocalTensor, ...]:
    """Return the local tensors of a rank, for a split in which `rlgraph.backends.enginespec.layout_checks` finds no
    fault; every replica along `dp` has the same.

    Ranks along `ep` have whole experts, and split everything else as those along `tp` do: vLLM's
    `enable_expert_parallel`.
    """
    cuts, whole_experts = RankSlicer.for_rank(shape, mesh, rank, kind), mesh.axis_size("ep") > 1
    size, index = split_size_and_rank(mesh, rank)
    cuts = replace(cuts, tp=size, index=index)
    tensors = [
        cuts.split_padded_tensor(EMBEDDING, EMBEDDING, padded_vocab_size(shape)),
        *_layers(shape, cuts, whole_experts),
        cuts.whole_tensor("model.norm.weight", "model.norm.weight"),
    ]
    if not shape.tied:
        tensors.append(cuts.split_padded_tensor("lm_head.weight", "lm_head.weight", padded_vocab_size(shape)))
    return tuple(tensors)


def split_size_and_rank(mesh: Mesh, rank: int) -> tuple[int, int]:
    """Return over how many ranks layers are split, along `tp` or `ep`, and which one of them a rank is."""
    axis = "ep" if mesh.axis_size("ep") > 1 else "tp"
    return mesh.axis_size(axis), mesh.axis_position(rank, axis)


def padded_vocab_size(shape: Shape) -> int:
    """Return the rows of the embedding, on all ranks together."""
    return -(-shape.vocab // VOCAB_MULTIPLE) * VOCAB_MULTIPLE


def _layers(shape: Shape, cuts: RankSlicer, whole_experts: bool) -> Iterator[LocalTensor]:
    layer = "model.layers.*."
    yield from _latent(shape.latent, cuts) if shape.latent else _attention(shape, cuts)
    yield from _experts(shape, cuts, whole_experts) if shape.experts else _network(shape, cuts)
    for name in shape.norms:
        yield cuts.whole_tensor(f"{layer}{name}.weight", f"{layer}{name}.weight")


def _attention(shape: Shape, cuts: RankSlicer) -> Iterator[LocalTensor]:
    layer = "model.layers.*."
    for field in ("weight", "bias") if shape.qkv_bias else ("weight",):
        yield cuts.concatenate_slices(f"{layer}self_attn.qkv_proj.{field}", list(_qkv(shape, cuts, field)))
    yield cuts.split_tensor(f"{layer}self_attn.o_proj.weight", f"{layer}self_attn.o_proj.weight", dim=1)
    if shape.qk_norm:
        for name in ("self_attn.q_norm.weight", "self_attn.k_norm.weight"):
            yield cuts.whole_tensor(f"{layer}{name}", f"{layer}{name}")


def _latent(latent: LatentAttention, cuts: RankSlicer) -> Iterator[LocalTensor]:
    """Yield the tensors of latent attention. Each rank has some heads, and everything that makes what heads share: one
    matrix, if queries are made so, too."""
    layer = "model.layers.*.self_attn."
    down, keys = "kv_a_proj_with_mqa.weight", "kv_a_layernorm.weight"
    if latent.queries:
        parts = [
            (f"{layer}q_a_proj.weight", (0, latent.queries)),
            (f"{layer}{down}", (0, latent.cached_numbers_per_token)),
        ]
        yield cuts.concatenate_slices(f"{layer}fused_qkv_a_proj.weight", parts)
        yield cuts.whole_tensor(f"{layer}q_a_layernorm.weight", f"{layer}q_a_layernorm.weight")
        yield cuts.split_tensor(f"{layer}q_b_proj.weight", f"{layer}q_b_proj.weight")
    else:
        yield cuts.whole_tensor(f"{layer}{down}", f"{layer}{down}")
        yield cuts.split_tensor(f"{layer}q_proj.weight", f"{layer}q_proj.weight")
    yield cuts.whole_tensor(f"{layer}{keys}", f"{layer}{keys}")
    yield cuts.split_tensor(f"{layer}kv_b_proj.weight", f"{layer}kv_b_proj.weight")
    yield cuts.split_tensor(f"{layer}o_proj.weight", f"{layer}o_proj.weight", dim=1)


def _network(shape: Shape, cuts: RankSlicer) -> Iterator[LocalTensor]:
    layer, columns = "model.layers.*.", cuts.rank_range(shape.ffn)
    yield cuts.concatenate_slices(
        f"{layer}mlp.gate_up_proj.weight", [tensor_rows_of_part(shape, part, *columns) for part in ("gate", "up")]
    )
    yield cuts.split_tensor(f"{layer}mlp.down_proj.weight", f"{layer}mlp.down_proj.weight", dim=1)


def _gated(cuts: RankSlicer, name: str) -> Iterator[LocalTensor]:
    """Yield a network that all tokens take, of a layer that has experts or of one before these."""
    yield cuts.split_tensor(f"{name}.gate_up_proj.weight", f"{name}.gate_proj.weight", f"{name}.up_proj.weight")
    yield cuts.split_tensor(f"{name}.down_proj.weight", f"{name}.down_proj.weight", dim=1)


def _experts(shape: Shape, cuts: RankSlicer, entire: bool) -> Iterator[LocalTensor]:
    """Yield the tensors of experts: some columns of all, or some experts entire; the gate's rows lie above those of
    up."""
    if shape.dense:
        yield from _gated(cuts, "model.layers.*.mlp")
    layers = expert_layer_prefix(shape)
    hf = f"{layers}mlp"
    vllm = f"{layers}block_sparse_moe" if shape.family == "mixtral" else hf
    columns = (0, shape.ffn) if entire else cuts.rank_range(shape.ffn)
    yield cuts.whole_tensor(f"{vllm}.gate.weight", f"{hf}.gate.weight")
    yield cuts.concatenate_slices(f"{vllm}.experts.routed_experts.w13_weight", gate_up_rows(shape, *columns), dim=1)
    yield cuts.concatenate_slices(
        f"{vllm}.experts.routed_experts.w2_weight", [(f"{hf}.experts.down_proj", columns)], dim=2
    )
    if shape.routing:
        yield cuts.whole_tensor(f"{vllm}.gate.{CORRECTION}", f"{hf}.gate.{CORRECTION}")
    if shape.shared_ffn:
        yield from _gated(cuts, f"{vllm}.{shape.shared_expert_name}")
        if not shape.routing:
            yield cuts.whole_tensor(
                f"{vllm}.{shape.shared_expert_name}_gate.weight", f"{hf}.{shape.shared_expert_name}_gate.weight"
            )


def _qkv(shape: Shape, cuts: RankSlicer, field: str) -> Iterator[Slice]:
    """Yield this rank's query heads, then its key heads, then its value heads. With more ranks than key-value heads
    each head is on as many neighbouring ranks as there are for it."""
    rows = shape.kv_heads * shape.head_dim
    sharers = max(1, cuts.tp // shape.kv_heads)
    size = rows * sharers // cuts.tp
    start = cuts.index // sharers * size
    yield tensor_rows_of_part(shape, "q", *cuts.rank_range(shape.heads * shape.head_dim), field)
    yield tensor_rows_of_part(shape, "k", start, start + size, field)
    yield tensor_rows_of_part(shape, "v", start, start + size, field)
