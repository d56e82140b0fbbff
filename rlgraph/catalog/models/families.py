"""The parameters of each family of models, by the names that Hugging Face's models give them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from rlgraph.catalog.models.adapters import adapter_matrix_names
from rlgraph.catalog.models.config_shape import SPARSE
from rlgraph.catalog.models.latent_attention import LatentAttention
from rlgraph.catalog.models.shape import Shape
from rlgraph.ir.layout import ParameterShape, Range, layer_tensor_name, name_with_first_layer

ModelKind = Literal["causal_lm", "value_lm", "reward_lm"]
"""A language model, a model with a scalar for each token, or one with a scalar for each row: transformers'
`AutoModelForCausalLM`, `AutoModelForTokenClassification` and `AutoModelForSequenceClassification` with one label."""

EMBEDDING = "model.embed_tokens.weight"
HEAD = "score.weight"
"""The weight of a value or reward model's head, which gives its scalar."""
CORRECTION = "e_score_correction_bias"
"""The bias that takes part in the choice of experts. It is no parameter: no gradient reaches it."""


def parameter_shapes(shape: Shape, kind: ModelKind = "causal_lm") -> tuple[ParameterShape, ...]:
    """Return the embedding, the parameters of the layers, the last norm and the head. A tied output layer is not among
    them: it is the embedding."""
    return (
        ParameterShape(EMBEDDING, (shape.vocab, shape.hidden)),
        *(_latent(shape, shape.latent) if shape.latent else _attention(shape)),
        *(_experts(shape) if shape.experts else _network(shape)),
        *(_each_layer(shape, f"{name}.weight", shape.hidden) for name in shape.norms),
        ParameterShape("model.norm.weight", (shape.hidden,)),
        *_head(shape, kind),
    )


def trainable_parameter_shapes(shape: Shape, kind: ModelKind = "causal_lm") -> tuple[ParameterShape, ...]:
    """Return the parameters of a trained model that change, and so travel and have gradients and moments: all of them,
    or, with adapters, only these and the head of a value or reward model."""
    if shape.adapters is None:
        return parameter_shapes(shape, kind)
    rank, sizes = shape.adapters.rank, {matrix.name: matrix.shape for matrix in layer_matrices(shape)}
    adapters = []
    for module in shape.adapters.adapted_layers(sizes):
        layers, outputs, inputs = sizes[module]
        a, b = adapter_matrix_names(module)
        adapters += [ParameterShape(a, (layers, rank, inputs)), ParameterShape(b, (layers, outputs, rank))]
    return (*adapters, *(_head(shape, kind) if kind != "causal_lm" else ()))


class LayerMatrix(NamedTuple):
    """A linear layer that every decoder layer has, or some consecutive ones."""

    name: str
    shape: tuple[int, int, int]
    """[layers that have it, outputs, inputs]."""


def linear_layers(shape: Shape) -> dict[str, tuple[int, int]]:
    """Return outputs and inputs of the linear layers, by name with a `*` for a layer's number. The output layer is not
    among them, and neither are routers and experts, which are no modules of their own."""
    return {matrix.name: matrix.shape[1:] for matrix in layer_matrices(shape)}


def layer_matrices(shape: Shape) -> Iterator[LayerMatrix]:
    """Return the linear layers that `linear_layers` names, with how many decoder layers have each."""
    for parameter in parameter_shapes(shape):
        name, _, field = parameter.name.rpartition(".")
        if field == "weight" and len(parameter.shape) == 3 and not name.endswith(".mlp.gate"):
            layers, outputs, inputs = parameter.shape
            yield LayerMatrix(name, (layers, outputs, inputs))


def parameter_shapes_by_layer(shape: Shape, kind: ModelKind = "causal_lm") -> Iterator[ParameterShape]:
    """Return the parameters as models in memory have them: one for each layer."""
    for parameter in parameter_shapes(shape, kind):
        if "*" not in parameter.name:
            yield parameter
            continue
        for place in range(parameter.shape[0]):
            yield ParameterShape(layer_tensor_name(parameter.name, place), parameter.shape[1:])


def parameter_count(shape: Shape, kind: ModelKind = "causal_lm") -> int:
    """Return how many numbers all parameters have together, without those of adapters."""
    return count_elements(parameter_shapes(shape, kind))


def count_elements(found: Iterable[ParameterShape]) -> int:
    """Return how many numbers these parameters have together."""
    return sum(math.prod(parameter.shape) for parameter in found)


def expert_layer_prefix(shape: Shape) -> str:
    """Return the prefix of the names in layers with experts."""
    return name_with_first_layer("model.layers.*.", shape.dense)


def stored_tensor_names(family: str, name: str) -> tuple[str, ...]:
    """Return the names by which files store the tensor of one layer, or of none. Files store each expert by itself, and
    its gate and up, too: then a `#` stands for the expert's number, and the parts come in the order of their rows."""
    if family not in SPARSE:
        return (name,)
    if family == "mixtral":
        name = name.replace(".mlp.", ".block_sparse_moe.")
    layer, _, tensor = name.rpartition(".experts.")
    parts = _STORED_EXPERTS.get(family, _STORED_EXPERTS[""]).get(tensor, ()) if layer else ()
    return tuple(f"{layer}.experts.#.{part}.weight" for part in parts) or (name,)


_STORED_EXPERTS = {
    "": {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)},
    "mixtral": {"gate_up_proj": ("w1", "w3"), "down_proj": ("w2",)},
}

Part = Literal["q", "k", "v", "gate", "up"]
_FUSED: tuple[tuple[str, tuple[Part, ...]], ...] = (
    ("self_attn.qkv_proj", ("q", "k", "v")),
    ("mlp.gate_up_proj", ("gate", "up")),
)
"""The parts of a layer with the same input, by their name where they are one tensor."""


def tensor_rows_of_part(shape: Shape, part: Part, start: int, stop: int, field: str = "weight") -> tuple[str, Range]:
    """Return the tensor that has some rows of a part of each layer, and the range of these rows in it."""
    name, parts = next(entry for entry in _FUSED if part in entry[1])
    if not shape.fused:
        return f"model.layers.*.{name.split('.')[0]}.{part}_proj.{field}", (start, stop)
    before = sum(part_row_count(shape, earlier) for earlier in parts[: parts.index(part)])
    return f"model.layers.*.{name}.{field}", (before + start, before + stop)


def gate_up_rows(shape: Shape, start: int, stop: int) -> list[tuple[str, Range]]:
    """Return where some columns of each layer's experts are: the rows of the gate, and those of up, which follow."""
    name = f"{expert_layer_prefix(shape)}mlp.experts.gate_up_proj"
    return [(name, (start + offset, stop + offset)) for offset in (0, shape.ffn)]


def part_row_count(shape: Shape, part: Part) -> int:
    """Return the number of rows of a part."""
    if part in ("gate", "up"):
        return shape.ffn
    return (shape.heads if part == "q" else shape.kv_heads) * shape.head_dim


def _part_tensors(shape: Shape, name: str) -> list[tuple[str, int]]:
    """Return the tensors of parts with the same input, and how many rows each has."""
    parts = dict(_FUSED)[name]
    if shape.fused:
        return [(name, sum(part_row_count(shape, part) for part in parts))]
    return [(f"{name.split('.')[0]}.{part}_proj", part_row_count(shape, part)) for part in parts]


def _attention(shape: Shape) -> list[ParameterShape]:
    weights = []
    for name, size in _part_tensors(shape, "self_attn.qkv_proj"):
        weights.append(_each_layer(shape, f"{name}.weight", size, shape.hidden))
        if shape.qkv_bias:
            weights.append(_each_layer(shape, f"{name}.bias", size))
    weights.append(_each_layer(shape, "self_attn.o_proj.weight", shape.hidden, part_row_count(shape, "q")))
    if shape.qk_norm:
        weights += [_each_layer(shape, f"self_attn.{letter}_norm.weight", shape.head_dim) for letter in "qk"]
    return weights


def _latent(shape: Shape, latent: LatentAttention) -> list[ParameterShape]:
    queries = shape.heads * (latent.plain + latent.turned)
    if latent.queries:
        query_weights = [
            _each_layer(shape, "self_attn.q_a_proj.weight", latent.queries, shape.hidden),
            _each_layer(shape, "self_attn.q_a_layernorm.weight", latent.queries),
            _each_layer(shape, "self_attn.q_b_proj.weight", queries, latent.queries),
        ]
    else:
        query_weights = [_each_layer(shape, "self_attn.q_proj.weight", queries, shape.hidden)]
    return [
        *query_weights,
        _each_layer(shape, "self_attn.kv_a_proj_with_mqa.weight", latent.cached_numbers_per_token, shape.hidden),
        _each_layer(shape, "self_attn.kv_a_layernorm.weight", latent.keys),
        _each_layer(shape, "self_attn.kv_b_proj.weight", shape.heads * (latent.plain + latent.values), latent.keys),
        _each_layer(shape, "self_attn.o_proj.weight", shape.hidden, shape.heads * latent.values),
    ]


def _network(shape: Shape) -> list[ParameterShape]:
    return [
        *(
            _each_layer(shape, f"{name}.weight", size, shape.hidden)
            for name, size in _part_tensors(shape, "mlp.gate_up_proj")
        ),
        _each_layer(shape, "mlp.down_proj.weight", shape.hidden, shape.ffn),
    ]


def _experts(shape: Shape) -> list[ParameterShape]:
    """Return the weights of layers with experts, and of those without that may precede them. In memory all experts of a
    layer are one tensor, gate above up; files have one for each expert."""
    weights = _mlp("model.layers.*.mlp", shape.dense, shape.hidden, shape.dense_ffn) if shape.dense else []
    layer, count = f"{expert_layer_prefix(shape)}mlp", shape.layers - shape.dense
    weights += [
        ParameterShape(f"{layer}.gate.weight", (count, shape.experts, shape.hidden)),
        ParameterShape(f"{layer}.experts.gate_up_proj", (count, shape.experts, 2 * shape.ffn, shape.hidden)),
        ParameterShape(f"{layer}.experts.down_proj", (count, shape.experts, shape.hidden, shape.ffn)),
    ]
    if shape.routing:
        weights.append(ParameterShape(f"{layer}.gate.{CORRECTION}", (count, shape.experts)))
    if shape.shared_ffn:
        weights += _mlp(f"{layer}.{shape.shared_expert_name}", count, shape.hidden, shape.shared_ffn)
        if not shape.routing:
            weights.append(ParameterShape(f"{layer}.{shape.shared_expert_name}_gate.weight", (count, 1, shape.hidden)))
    return weights


def _mlp(name: str, layers: int, hidden: int, ffn: int) -> list[ParameterShape]:
    return [
        ParameterShape(f"{name}.gate_proj.weight", (layers, ffn, hidden)),
        ParameterShape(f"{name}.up_proj.weight", (layers, ffn, hidden)),
        ParameterShape(f"{name}.down_proj.weight", (layers, hidden, ffn)),
    ]


def _head(shape: Shape, kind: ModelKind) -> list[ParameterShape]:
    if kind == "causal_lm":
        return [] if shape.tied else [ParameterShape("lm_head.weight", (shape.vocab, shape.hidden))]
    weight = ParameterShape(HEAD, (1, shape.hidden))
    # In transformers only the head of token classification has a bias.
    return [weight, ParameterShape("score.bias", (1,))] if kind == "value_lm" else [weight]


def _each_layer(shape: Shape, name: str, *size: int) -> ParameterShape:
    return ParameterShape(f"model.layers.*.{name}", (shape.layers, *size))
