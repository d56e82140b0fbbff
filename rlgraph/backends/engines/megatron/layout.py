"""Lays out a model of Megatron-core's GPTModel over pipeline stages, tensor-parallel ranks, and expert-parallel ranks.

The names are those of `get_gpt_layer_local_spec(normalization="RMSNorm")`, except for experts; layers are counted from
0 on each stage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rlgraph.catalog.models.adapters import adapter_matrix_names
from rlgraph.catalog.models.families import (
    CORRECTION,
    EMBEDDING,
    ModelKind,
    Part,
    expert_layer_prefix,
    gate_up_rows,
    linear_layers,
    tensor_rows_of_part,
    trainable_parameter_shapes,
)
from rlgraph.catalog.models.latent_attention import LatentAttention
from rlgraph.catalog.models.rank_slices import RankSlicer, Slice
from rlgraph.catalog.models.shape import Shape
from rlgraph.ir.layout import LocalTensor, Range
from rlgraph.ir.mesh import Mesh, make_mesh


def layout(shape: Shape, mesh: Mesh, rank: int, kind: ModelKind = "causal_lm") -> tuple[LocalTensor, ...]:
    """Return the local tensors of a rank, for a split in which `rlgraph.backends.enginespec.layout_checks` finds no
    fault; every replica along `dp` has the same. For a model with adapters only these, and a head that is trained."""
    cuts = RankSlicer.for_rank(shape, mesh, rank, kind)
    stages, stage = mesh.axis_size("pp"), mesh.axis_position(rank, "pp")
    if shape.adapters:
        trained = RankSlicer.for_rank(shape, mesh, rank, kind, trainable_parameter_shapes(shape, kind))
        adapters = [tensor for linear in adapted_linears(shape, cuts) for tensor in _adapters(linear, trained)]
        return (*adapters, *(_head(shape, cuts, kind, stages) if kind != "causal_lm" and stage == stages - 1 else ()))
    tensors: list[LocalTensor] = []
    if stage == 0:
        tensors.append(
            cuts.split_padded_tensor("embedding.word_embeddings.weight", EMBEDDING, padded_vocab_size(shape, cuts.tp))
        )
    tensors += _layers(shape, cuts)
    if stage == stages - 1:
        tensors.append(cuts.whole_tensor("decoder.final_layernorm.weight", "model.norm.weight"))
        tensors += _head(shape, cuts, kind, stages)
    return tuple(tensors)


def padded_vocab_size(shape: Shape, tp: int) -> int:
    """Return the vocabulary's size, raised to a multiple of the tensor-parallel ranks: each has as many rows."""
    return -(-shape.vocab // tp) * tp


@dataclass(frozen=True)
class SplitLinear:
    """A linear layer of Megatron's, which every decoder layer has, and the rank's parts of the Hugging Face layers that
    it is made of."""

    name: str
    modules: tuple[str, ...]
    """The names of these layers."""
    parts: tuple[tuple[str, Range], ...]
    """Of the rank's parts, one behind the other, the layer and the range of its outputs, or inputs; one may come again,
    or not at all."""
    splits_inputs: bool = False
    """Ranks split its inputs, and add up their outputs; else they split its outputs."""

    def weight(self, cuts: RankSlicer) -> LocalTensor:
        """Return its weight."""
        slices = [(f"{module}.weight", part) for module, part in self.parts]
        return cuts.concatenate_slices(f"{self.name}.weight", slices, dim=int(self.splits_inputs))

    def adapter_name(self, module: str) -> str:
        """Return the name under which it has the adapter of one of these layers."""
        return f"{self.name}.adapters.{module.rpartition('.')[2]}"


def adapted_linears(shape: Shape, cuts: RankSlicer) -> Iterator[SplitLinear]:
    """Yield those linear layers of a rank that have adapters."""
    linears = [
        *(() if shape.latent else _attention_linears(shape, cuts)),
        *(() if shape.experts else _network_linears(shape, cuts)),
    ]
    for linear in linears:
        if shape.adapters and shape.adapters.adapted_layers(linear.modules):
            yield linear


def layers_without_adapters(shape: Shape) -> list[str]:
    """Return the names of the linear layers that are to have adapters, of which this engine has none, by their last
    parts."""
    if shape.adapters is None:
        return []
    cuts = RankSlicer.for_rank(shape, make_mesh(), 0, "causal_lm")
    held = {module for linear in adapted_linears(shape, cuts) for module in linear.modules}
    wanted = shape.adapters.adapted_layers(linear_layers(shape))
    return sorted({name.rpartition(".")[2] for name in wanted if name not in held})


def _adapters(linear: SplitLinear, trained: RankSlicer) -> Iterator[LocalTensor]:
    """Yield a rank's parts of the adapters of a linear layer: what lies between A and B is whole on each rank, which
    has the rows of B, or the columns of A, that belong to its part of the weight."""
    for module in linear.modules:
        (a, b), local = adapter_matrix_names(module), linear.adapter_name(module)
        if a not in trained.shapes:
            continue
        ranges = [part for name, part in linear.parts if name == module]
        if linear.splits_inputs:
            yield trained.concatenate_slices(f"{local}.lora_A", [(a, part) for part in ranges], dim=1)
            yield trained.whole_tensor(f"{local}.lora_B", b)
            continue
        yield trained.whole_tensor(f"{local}.lora_A", a)
        if ranges:
            yield trained.concatenate_slices(f"{local}.lora_B", [(b, part) for part in ranges])


def _attention_linears(shape: Shape, cuts: RankSlicer) -> tuple[SplitLinear, SplitLinear]:
    megatron, hf = "decoder.layers.*.self_attention.", "model.layers.*.self_attn."
    inputs = cuts.rank_range(shape.heads * shape.head_dim)
    return (
        SplitLinear(f"{megatron}linear_qkv", *_fused(shape, ("q", "k", "v"), _qkv(shape, cuts, "weight"))),
        SplitLinear(f"{megatron}linear_proj", (f"{hf}o_proj",), ((f"{hf}o_proj", inputs),), splits_inputs=True),
    )


def _network_linears(shape: Shape, cuts: RankSlicer) -> tuple[SplitLinear, SplitLinear]:
    megatron, hf, columns = "decoder.layers.*.mlp.", "model.layers.*.mlp.", cuts.rank_range(shape.ffn)
    parts: tuple[Part, ...] = ("gate", "up")
    rows = [tensor_rows_of_part(shape, part, *columns) for part in parts]
    return (
        SplitLinear(f"{megatron}linear_fc1", *_fused(shape, parts, rows)),
        SplitLinear(f"{megatron}linear_fc2", (f"{hf}down_proj",), ((f"{hf}down_proj", columns),), splits_inputs=True),
    )


def _fused(
    shape: Shape, parts: Iterable[Part], slices: Iterable[Slice]
) -> tuple[tuple[str, ...], tuple[tuple[str, Range], ...]]:
    """Return the layers that are fused, and a rank's parts of them, from slices of their weights."""
    weights = dict.fromkeys(tensor_rows_of_part(shape, part, 0, 0)[0] for part in parts)
    modules = tuple(name.removesuffix(".weight") for name in weights)
    return modules, tuple((name.removesuffix(".weight"), rows) for name, rows in slices)


def _layers(shape: Shape, cuts: RankSlicer) -> Iterator[LocalTensor]:
    megatron, hf = "decoder.layers.*.", "model.layers.*."
    yield cuts.whole_tensor(f"{megatron}input_layernorm.weight", f"{hf}input_layernorm.weight")
    yield from _latent(shape.latent, cuts) if shape.latent else _attention(shape, cuts)
    yield from _norms(shape, cuts)
    if shape.experts:
        yield from _experts(shape, cuts)
        return
    yield from (linear.weight(cuts) for linear in _network_linears(shape, cuts))


def _attention(shape: Shape, cuts: RankSlicer) -> Iterator[LocalTensor]:
    megatron, hf = "decoder.layers.*.self_attention.", "model.layers.*.self_attn."
    fused, output = _attention_linears(shape, cuts)
    yield fused.weight(cuts)
    if shape.qkv_bias:
        yield cuts.concatenate_slices(f"{fused.name}.bias", list(_qkv(shape, cuts, "bias")))
    if shape.qk_norm:
        yield cuts.whole_tensor(f"{megatron}q_layernorm.weight", f"{hf}q_norm.weight")
        yield cuts.whole_tensor(f"{megatron}k_layernorm.weight", f"{hf}k_norm.weight")
    yield output.weight(cuts)


def _latent(latent: LatentAttention, cuts: RankSlicer) -> Iterator[LocalTensor]:
    """Yield the tensors of `rlgraph.backends.engines.megatron.latent`: each rank has some heads, and everything that
    makes what heads share."""
    megatron, hf = "decoder.layers.*.self_attention.", "model.layers.*.self_attn."
    if latent.queries:
        yield cuts.whole_tensor(f"{megatron}queries_down", f"{hf}q_a_proj.weight")
        yield cuts.whole_tensor(f"{megatron}queries_norm.weight", f"{hf}q_a_layernorm.weight")
    yield cuts.split_tensor(f"{megatron}queries_up", f"{hf}q_{'b_' if latent.queries else ''}proj.weight")
    yield cuts.whole_tensor(f"{megatron}keys_down", f"{hf}kv_a_proj_with_mqa.weight")
    yield cuts.whole_tensor(f"{megatron}keys_norm.weight", f"{hf}kv_a_layernorm.weight")
    yield cuts.split_tensor(f"{megatron}keys_up", f"{hf}kv_b_proj.weight")
    yield cuts.split_tensor(f"{megatron}linear_proj", f"{hf}o_proj.weight", dim=1)


def _norms(shape: Shape, cuts: RankSlicer) -> Iterator[LocalTensor]:
    """Yield all norms but the one before attention."""
    megatron = (
        ["pre_mlp_layernorm"] if len(shape.norms) == 2 else ["self_attn_bda.norm", "pre_mlp_layernorm", "mlp_bda.norm"]
    )
    for norm, hf in zip(megatron, shape.norms[1:], strict=True):
        yield cuts.whole_tensor(f"decoder.layers.*.{norm}.weight", f"model.layers.*.{hf}.weight")


def _experts(shape: Shape, cuts: RankSlicer) -> Iterator[LocalTensor]:
    """Yield the tensors of `rlgraph.backends.engines.megatron.experts`: some experts for each rank along ep, some
    columns of them for each along tp. Layers without experts may come before."""
    megatron, hf = "decoder.layers.*.mlp.", f"{expert_layer_prefix(shape)}mlp."
    if shape.dense:
        first = "model.layers.*.mlp."
        yield cuts.split_tensor(f"{megatron}linear_fc1.weight", f"{first}gate_proj.weight", f"{first}up_proj.weight")
        yield cuts.split_tensor(f"{megatron}linear_fc2.weight", f"{first}down_proj.weight", dim=1)
    yield cuts.whole_tensor(f"{megatron}router", f"{hf}gate.weight")
    if shape.routing:
        yield cuts.whole_tensor(f"{megatron}correction", f"{hf}gate.{CORRECTION}")
    yield cuts.concatenate_slices(f"{megatron}linear_fc1", gate_up_rows(shape, *cuts.rank_range(shape.ffn)), dim=1)
    yield cuts.split_tensor(f"{megatron}linear_fc2", f"{hf}experts.down_proj", dim=2)
    if shape.shared_ffn:
        gate_up = [f"{hf}{shape.shared_expert_name}.{name}_proj.weight" for name in ("gate", "up")]
        yield cuts.split_tensor(f"{megatron}shared_fc1", *gate_up)
        yield cuts.split_tensor(f"{megatron}shared_fc2", f"{hf}{shape.shared_expert_name}.down_proj.weight", dim=1)
        if not shape.routing:
            yield cuts.whole_tensor(f"{megatron}shared_gate", f"{hf}{shape.shared_expert_name}_gate.weight")


def _qkv(shape: Shape, cuts: RankSlicer, field: str) -> Iterator[Slice]:
    """Yield the slices of a rank's fused rows: for each key-value head those of its queries, its key and its value;
    each rank has an equal range of them.

    With more ranks than key-value heads the range of a rank begins or ends within a head's rows (megatron-core gathers
    the fused activations there), else it is that of whole heads.
    """
    start, stop = cuts.rank_range((shape.heads + 2 * shape.kv_heads) * shape.head_dim)
    queries = shape.heads // shape.kv_heads * shape.head_dim
    at = 0
    for head in range(shape.kv_heads):
        sizes: tuple[tuple[Part, int], ...] = (("q", queries), ("k", shape.head_dim), ("v", shape.head_dim))
        for part, size in sizes:
            low, high = max(start - at, 0), min(stop - at, size)
            if low < high:
                yield tensor_rows_of_part(shape, part, head * size + low, head * size + high, field)
            at += size


def _head(shape: Shape, cuts: RankSlicer, kind: ModelKind, stages: int) -> Iterator[LocalTensor]:
    """Yield the head's tensors. A scalar head is whole on each tensor-parallel rank. A tied output layer is a tensor of
    its own where the embedding is on another stage."""
    if kind != "causal_lm":
        for source in ("score.weight", "score.bias"):
            if source in cuts.shapes:
                yield cuts.whole_tensor(source.replace("score", "output_layer"), source)
    elif not shape.tied or stages > 1:
        source = EMBEDDING if shape.tied else "lm_head.weight"
        yield cuts.split_padded_tensor("output_layer.weight", source, padded_vocab_size(shape, cuts.tp))
