"""The parameters of each family, by the names that Hugging Face's models give them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from rlgraph.catalog.models.adapters import pair
from rlgraph.catalog.models.latent import Latent
from rlgraph.catalog.models.shape import SPARSE, Shape
from rlgraph.ir.layout import Parameter, Range, at_layer, from_layer

ModelKind = Literal["causal_lm", "value_lm", "reward_lm"]
"""A language model, one with a scalar for each token, or one with a scalar for each row: transformers'
`AutoModelForCausalLM`, `AutoModelForTokenClassification` and `AutoModelForSequenceClassification` with one label."""

EMBEDDING = "model.embed_tokens.weight"
HEAD = "score.weight"
"""Of a value or reward model: what gives its scalar."""
CORRECTION = "e_score_correction_bias"
"""What takes part in the choice of experts, and is no parameter: no gradient reaches it."""


def parameters(shape: Shape, kind: ModelKind = "causal_lm") -> tuple[Parameter, ...]:
    """The embedding, what each layer has, the last norm and the head. A tied output layer is not there: it is the
    embedding."""
    return (
        Parameter(EMBEDDING, (shape.vocab, shape.hidden)),
        *(_latent(shape, shape.latent) if shape.latent else _attention(shape)),
        *(_experts(shape) if shape.experts else _network(shape)),
        *(_each_layer(shape, f"{name}.weight", shape.hidden) for name in shape.norms),
        Parameter("model.norm.weight", (shape.hidden,)),
        *_head(shape, kind),
    )


def trained(shape: Shape, kind: ModelKind = "causal_lm") -> tuple[Parameter, ...]:
    """Of a model that is trained the parameters that change, and so travel and have gradients and moments: all of them.
    Where it has adapters these alone, and the head of a model that has one of its own."""
    if shape.adapters is None:
        return parameters(shape, kind)
    rank, sizes = shape.adapters.rank, {each.name: each.shape for each in matrices(shape)}
    found = []
    for module in shape.adapters.chosen(sizes):
        layers, outputs, inputs = sizes[module]
        a, b = pair(module)
        found += [Parameter(a, (layers, rank, inputs)), Parameter(b, (layers, outputs, rank))]
    return (*found, *(_head(shape, kind) if kind != "causal_lm" else ()))


class Matrix(NamedTuple):
    """A linear layer of each layer, or of some that follow each other."""

    name: str
    shape: tuple[int, int, int]
    """Layers that have it, outputs, inputs."""


def linear(shape: Shape) -> dict[str, tuple[int, int]]:
    """The linear layers, by name with a `*` for a layer's number: how many outputs and inputs they have. The output
    layer is none of them, and neither are routers and experts, which are no modules of their own."""
    return {each.name: each.shape[1:] for each in matrices(shape)}


def matrices(shape: Shape) -> Iterator[Matrix]:
    """The linear layers, as `linear` has them, with how many layers have each."""
    for parameter in parameters(shape):
        name, _, field = parameter.name.rpartition(".")
        if field == "weight" and len(parameter.shape) == 3 and not name.endswith(".mlp.gate"):
            layers, outputs, inputs = parameter.shape
            yield Matrix(name, (layers, outputs, inputs))


def tensors(shape: Shape, kind: ModelKind = "causal_lm") -> Iterator[Parameter]:
    """The same as files and models in memory have them, one for each layer."""
    for parameter in parameters(shape, kind):
        if "*" not in parameter.name:
            yield parameter
            continue
        for place in range(parameter.shape[0]):
            yield Parameter(at_layer(parameter.name, place), parameter.shape[1:])


def count(shape: Shape, kind: ModelKind = "causal_lm") -> int:
    """How many numbers all parameters have together, without those of adapters."""
    return numbers(parameters(shape, kind))


def numbers(found: Iterable[Parameter]) -> int:
    """How many numbers some parameters have together."""
    return sum(math.prod(parameter.shape) for parameter in found)


def sparse_layers(shape: Shape) -> str:
    """What names of layers with experts begin with."""
    return from_layer("model.layers.*.", shape.dense)


def stored(family: str, name: str) -> tuple[str, ...]:
    """By what names files have one layer's tensor, or another that is not of a layer. Files have each expert by itself,
    and its gate and up, too: then with `#` in place of the expert's number, those whose rows lie above first."""
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
_TOGETHER: tuple[tuple[str, tuple[Part, ...]], ...] = (
    ("self_attn.qkv_proj", ("q", "k", "v")),
    ("mlp.gate_up_proj", ("gate", "up")),
)
"""Parts of a layer that read the same, under the name that they have where they are one tensor."""


def rows_of(shape: Shape, part: Part, start: int, stop: int, field: str = "weight") -> tuple[str, Range]:
    """Where some rows of a part of each layer are: the tensor, and the rows there."""
    name, parts = next(each for each in _TOGETHER if part in each[1])
    if not shape.fused:
        return f"model.layers.*.{name.split('.')[0]}.{part}_proj.{field}", (start, stop)
    before = sum(size_of(shape, each) for each in parts[: parts.index(part)])
    return f"model.layers.*.{name}.{field}", (before + start, before + stop)


def expert_rows(shape: Shape, start: int, stop: int) -> list[tuple[str, Range]]:
    """Where some columns of each layer's experts are: the gate's rows, and those of up, which lie below."""
    name = f"{sparse_layers(shape)}mlp.experts.gate_up_proj"
    return [(name, (start + above, stop + above)) for above in (0, shape.ffn)]


def size_of(shape: Shape, part: Part) -> int:
    """Rows of a part."""
    if part in ("gate", "up"):
        return shape.ffn
    return (shape.heads if part == "q" else shape.kv_heads) * shape.head_dim


def _together(shape: Shape, name: str) -> list[tuple[str, int]]:
    """The tensors of parts that read the same, and their rows."""
    parts = dict(_TOGETHER)[name]
    if shape.fused:
        return [(name, sum(size_of(shape, part) for part in parts))]
    return [(f"{name.split('.')[0]}.{part}_proj", size_of(shape, part)) for part in parts]


def _attention(shape: Shape) -> list[Parameter]:
    found = []
    for name, size in _together(shape, "self_attn.qkv_proj"):
        found.append(_each_layer(shape, f"{name}.weight", size, shape.hidden))
        if shape.qkv_bias:
            found.append(_each_layer(shape, f"{name}.bias", size))
    found.append(_each_layer(shape, "self_attn.o_proj.weight", shape.hidden, size_of(shape, "q")))
    if shape.qk_norm:
        found += [_each_layer(shape, f"self_attn.{letter}_norm.weight", shape.head_dim) for letter in "qk"]
    return found


def _latent(shape: Shape, latent: Latent) -> list[Parameter]:
    queries = shape.heads * (latent.plain + latent.turned)
    if latent.queries:
        found = [
            _each_layer(shape, "self_attn.q_a_proj.weight", latent.queries, shape.hidden),
            _each_layer(shape, "self_attn.q_a_layernorm.weight", latent.queries),
            _each_layer(shape, "self_attn.q_b_proj.weight", queries, latent.queries),
        ]
    else:
        found = [_each_layer(shape, "self_attn.q_proj.weight", queries, shape.hidden)]
    return [
        *found,
        _each_layer(shape, "self_attn.kv_a_proj_with_mqa.weight", latent.cached, shape.hidden),
        _each_layer(shape, "self_attn.kv_a_layernorm.weight", latent.keys),
        _each_layer(shape, "self_attn.kv_b_proj.weight", shape.heads * (latent.plain + latent.values), latent.keys),
        _each_layer(shape, "self_attn.o_proj.weight", shape.hidden, shape.heads * latent.values),
    ]


def _network(shape: Shape) -> list[Parameter]:
    return [
        *(
            _each_layer(shape, f"{name}.weight", size, shape.hidden)
            for name, size in _together(shape, "mlp.gate_up_proj")
        ),
        _each_layer(shape, "mlp.down_proj.weight", shape.hidden, shape.ffn),
    ]


def _experts(shape: Shape) -> list[Parameter]:
    """In memory all experts of a layer are one tensor, gate above up; files have one for each. Before layers with
    experts there may be some without."""
    found = _mlp("model.layers.*.mlp", shape.dense, shape.hidden, shape.dense_ffn) if shape.dense else []
    layer, count = f"{sparse_layers(shape)}mlp", shape.layers - shape.dense
    found += [
        Parameter(f"{layer}.gate.weight", (count, shape.experts, shape.hidden)),
        Parameter(f"{layer}.experts.gate_up_proj", (count, shape.experts, 2 * shape.ffn, shape.hidden)),
        Parameter(f"{layer}.experts.down_proj", (count, shape.experts, shape.hidden, shape.ffn)),
    ]
    if shape.routing:
        found.append(Parameter(f"{layer}.gate.{CORRECTION}", (count, shape.experts)))
    if shape.shared_ffn:
        found += _mlp(f"{layer}.{shape.shared}", count, shape.hidden, shape.shared_ffn)
        if not shape.routing:
            found.append(Parameter(f"{layer}.{shape.shared}_gate.weight", (count, 1, shape.hidden)))
    return found


def _mlp(name: str, layers: int, hidden: int, ffn: int) -> list[Parameter]:
    return [
        Parameter(f"{name}.gate_proj.weight", (layers, ffn, hidden)),
        Parameter(f"{name}.up_proj.weight", (layers, ffn, hidden)),
        Parameter(f"{name}.down_proj.weight", (layers, hidden, ffn)),
    ]


def _head(shape: Shape, kind: ModelKind) -> list[Parameter]:
    if kind == "causal_lm":
        return [] if shape.tied else [Parameter("lm_head.weight", (shape.vocab, shape.hidden))]
    weight = Parameter(HEAD, (1, shape.hidden))
    # Of the two classification heads only that of tokens has a bias.
    return [weight, Parameter("score.bias", (1,))] if kind == "value_lm" else [weight]


def _each_layer(shape: Shape, name: str, *size: int) -> Parameter:
    return Parameter(f"model.layers.*.{name}", (shape.layers, *size))
