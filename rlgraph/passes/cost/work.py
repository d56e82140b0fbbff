"""Computes the work of a model from its shape alone: parameters, FLOPs, and the bytes of a token in its cache."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

from rlgraph.catalog.models.families import (
    ModelKind,
    count_elements,
    layer_matrices,
    parameter_count,
    parameter_shapes,
    parameter_shapes_by_layer,
    trainable_parameter_shapes,
)
from rlgraph.catalog.models.shape import Shape
from rlgraph.ir.layout import first_stacked_layer
from rlgraph.ir.stages import stage_layers
from rlgraph.passes.cost import latent_attention


@dataclass(frozen=True, slots=True)
class Tokens:
    """Rows that a model reads together, by the sums that its work depends on, so that those of parts add up."""

    rows: float
    tokens: float
    """Tokens of all rows together, prompts included, padding excluded."""
    squares: float
    """The sum of the squared lengths of the rows."""
    scored: float
    """Tokens for which the head is computed."""
    longest: float = 0.0
    """Tokens of the longest row."""
    copied: float = 0.0
    """Tokens whose keys and values attention copies, for rows that share a prefix."""
    masks: float = 0.0
    """Numbers of the masks that say what such rows see of the prefixes."""

    def part_of_fullest_rank(self, ranks: int) -> Tokens:
        """Return what the fullest of context-parallel ranks has: each row is cut into twice as many stretches as there
        are ranks, and a rank has one from its front and one from its back, in turns. What is scored is at the ends of
        rows; rows keep their length."""
        if ranks == 1:
            return self
        scored, stretch = self.scored / max(1.0, self.rows), self.tokens / max(1.0, self.rows) / (2 * ranks)
        behind = [min(stretch, max(0.0, scored - index * stretch)) for index in range(2 * ranks)]
        pairs = [behind[index] + behind[-1 - index] for index in range(ranks)]
        rounds, left = divmod(round(self.rows), ranks)
        most = max(sum((pairs + pairs)[start : start + left]) for start in range(ranks))
        return replace(self, tokens=self.tokens / ranks, scored=rounds * scored + most)


# Parameters


@cache
def layer_parameter_count(shape: Shape, layer: int = -1) -> int:
    """Return the parameters of one layer, all its experts included; without a number, of the last one, which has
    experts if any has."""
    layer %= shape.layers
    total = 0
    for parameter in parameter_shapes(shape):
        if (
            "*" in parameter.name
            and first_stacked_layer(parameter.name) <= layer < first_stacked_layer(parameter.name) + parameter.shape[0]
        ):
            total += math.prod(parameter.shape[1:])
    return total


@cache
def body_parameter_count(shape: Shape) -> int:
    """Return the parameters of all layers."""
    return count_elements(parameter for parameter in parameter_shapes(shape) if "*" in parameter.name)


@cache
def trained_tensor_count(shape: Shape, kind: ModelKind) -> int:
    """Return how many tensors training changes, in all layers."""
    if shape.adapters:
        return sum(tensor.shape[0] if "*" in tensor.name else 1 for tensor in trainable_parameter_shapes(shape, kind))
    return sum(1 for _ in parameter_shapes_by_layer(shape, kind))


def expert_parameter_count(shape: Shape) -> int:
    """Return the parameters of the experts of all layers together, without shared experts."""
    return shape.expert_layer_count * shape.experts * _one_expert_count(shape)


def chosen_parameter_count(shape: Shape) -> int:
    """Return the parameters of the experts of one token in a layer, without shared experts."""
    return shape.experts_per_token * _one_expert_count(shape)


def _one_expert_count(shape: Shape) -> int:
    """Return the parameters of one expert of a layer: three matrices."""
    return 3 * shape.hidden * shape.ffn


@cache
def active_parameter_count(shape: Shape, kind: ModelKind = "causal_lm") -> int:
    """Return the parameters that one token uses, with only its own experts."""
    idle = expert_parameter_count(shape) - shape.expert_layer_count * chosen_parameter_count(shape)
    return parameter_count(shape, kind) - idle


def step_parameter_count(shape: Shape) -> int:
    """Return the parameters that a model reads to sample one token: of an embedding that is no head, too, nothing but
    the token's row."""
    return active_parameter_count(shape) - (0 if shape.tied else shape.vocab * shape.hidden)


@cache
def _stage_contents(shape: Shape, kind: ModelKind, pp: int, chunks: int) -> frozenset[tuple[int, int, int]]:
    """Return of each kind of pipeline stage its parameters, its layers, and those of them that have experts. The first
    has the embedding, the last has the last norm and the head; a tied head is a separate tensor there."""
    if pp == 1:
        return frozenset({(parameter_count(shape, kind), shape.layers, shape.expert_layer_count)})
    embedding = shape.vocab * shape.hidden
    head = embedding if kind == "causal_lm" else shape.hidden + (kind == "value_lm")
    contents, first_sparse = set(), shape.layers - shape.expert_layer_count
    for stage in range(pp):
        layers = [layer for part in stage_layers(shape.layers, pp, stage, chunks) for layer in range(*part)]
        parameters = sum(layer_parameter_count(shape, layer) for layer in layers)
        parameters += embedding * (stage == 0) + (shape.hidden + head) * (stage == pp - 1)
        contents.add((parameters, len(layers), sum(layer >= first_sparse for layer in layers)))
    return frozenset(contents)


@cache
def stage_parameter_count(shape: Shape, kind: ModelKind, pp: int, chunks: int = 1) -> int:
    """Return the parameters of the fullest pipeline stage."""
    return max(parameters for parameters, _, _ in _stage_contents(shape, kind, pp, chunks))


@cache
def fsdp_shard_parameter_count(shape: Shape, kind: ModelKind, parts: int) -> int:
    """Return the parameters of the fullest of so many ranks that shard the first dimension of each tensor
    (`rlgraph.ir.layout.chunk_range`)."""
    return sum(
        -(-tensor.shape[0] // parts) * math.prod(tensor.shape[1:]) for tensor in parameter_shapes_by_layer(shape, kind)
    )


@cache
def model_parallel_parameter_count(
    shape: Shape, kind: ModelKind, pp: int, tp: int, ep: int = 1, chunks: int = 1
) -> float:
    """Return the parameters of the fullest rank: layers are split over `tp`, and their experts over `ep`, too. Each
    rank has all weights that make the latent numbers of a token."""
    experts = expert_parameter_count(shape) / max(1, shape.expert_layer_count)
    shared = latent_attention.shared_weight_count(shape, shape.latent) if shape.latent else 0
    return max(
        (parameters - layers * shared - sparse * experts * (1 - 1 / ep)) / tp + layers * shared
        for parameters, layers, sparse in _stage_contents(shape, kind, pp, chunks)
    )


@cache
def adapter_parameter_count(shape: Shape) -> int:
    """Return the parameters of the adapters of all layers."""
    return count_elements(trainable_parameter_shapes(shape)) if shape.adapters else 0


@cache
def adapter_extra_bytes(shape: Shape, merged: bool, item: int, wide: int, room: int, tp: int, twice: bool) -> float:
    """Return the bytes that an engine which receives all adapters uses beside the weights, on each of the ranks that
    split these.

    merged: of a matrix with a merged adapter the unmerged copy is kept. item, wide: bytes of a number of the weights
    and of the received adapters. room: the rank for which there are slots beside the weights, of which about half have
    only the columns of a rank's part. twice: what was read at first stays, too.
    """
    received = adapter_parameter_count(shape)
    if merged:
        return adapted_parameter_count(shape) * item / tp + received * wide
    assert shape.adapters is not None
    slots = received * room / shape.adapters.rank * (1 + 1 / tp) / 2
    return received * wide + (slots + twice * received) * item


@cache
def layer_matrix_parameters(shape: Shape) -> int:
    """Return the parameters of the linear layers, without experts and the head."""
    return sum(math.prod(matrix.shape) for matrix in layer_matrices(shape))


def adapted_parameter_count(shape: Shape) -> int:
    """Return the parameters of the matrices that have an adapter."""
    sizes = {matrix.name: matrix.shape for matrix in layer_matrices(shape)}
    return sum(math.prod(sizes[name]) for name in (shape.adapters.adapted_layers(sizes) if shape.adapters else ()))


@cache
def trained_parameter_count(shape: Shape, kind: ModelKind) -> int:
    """Return the parameters that training changes: they have gradients and moments, and are synced."""
    return count_elements(trainable_parameter_shapes(shape, kind)) if shape.adapters else parameter_count(shape, kind)


# FLOPs


def forward_flops(shape: Shape, kind: ModelKind, work: Tokens) -> float:
    """Return the FLOPs of the matrix products of a pass over rows, where a multiplication and an addition count as
    two: 2 for each weight and token, and those of attention. Embeddings are looked up and count nothing; norms and
    activations are left out (Kaplan et al., arXiv 2001.08361, section 2.1; Narayanan et al., arXiv 2104.04473,
    appendix)."""
    return layers_flops(shape, work) + head_flops(shape, kind, work)


def layers_flops(shape: Shape, work: Tokens) -> float:
    """Return the part of `forward_flops` in the layers."""
    return weight_flops(shape, work) + attention_flops(shape, work)


def weight_flops(shape: Shape, work: Tokens) -> float:
    """Return the part of `layers_flops` in products with weights."""
    return 2.0 * _weights(shape) * work.tokens


def attention_flops(shape: Shape, work: Tokens) -> float:
    """Return the part of `layers_flops` in products of queries with keys, and of weights with values. It counts what
    the causal mask hides, as torch's counter does."""
    return 4.0 * shape.layers * shape.heads * shape.padded_head_dim * work.squares


def head_flops(shape: Shape, kind: ModelKind, work: Tokens) -> float:
    """Return the part of `forward_flops` in the head: at the scored tokens, or at each row's last token for a reward
    model."""
    if kind == "reward_lm":
        return 2.0 * shape.hidden * work.rows
    return 2.0 * shape.hidden * (shape.vocab if kind == "causal_lm" else 1) * work.scored


def backward_flops(shape: Shape, kind: ModelKind, work: Tokens) -> float:
    """Return twice the forward FLOPs: each product has two gradients. Attention that keeps no weights computes them
    once more, which makes it two and a half times as much (Dao, arXiv 2307.08691, section 4.1)."""
    return 2 * forward_flops(shape, kind, work) + attention_flops(shape, work) / 2


def training_flops(shape: Shape, kind: ModelKind, work: Tokens, again: bool = False) -> tuple[float, float, float]:
    """Return the FLOPs of a forward and a backward pass: of the weights of the layers, of attention (as
    `backward_flops` has it), and of the head. A product has a gradient of its input and one of its weights; where only
    adapters are trained, the latter exists for adapters alone. again: layers are recomputed."""
    passes = 4.0 if again else 3.0
    layers, head = passes * weight_flops(shape, work), 3 * head_flops(shape, kind, work)
    if shape.adapters:
        layers -= weight_flops(shape, work)
        layers += passes * adapter_flops(shape, work)
        head -= head_flops(shape, kind, work) if kind == "causal_lm" else 0
    return layers, (passes + 0.5) * attention_flops(shape, work), head


def adapter_flops(shape: Shape, work: Tokens) -> float:
    """Return the FLOPs of a forward pass through adapters that are not merged into the weights."""
    return 2.0 * adapter_parameter_count(shape) * work.tokens


def decode_flops_per_token(shape: Shape, context: float, absorbed: bool = False) -> float:
    """Return the FLOPs of one new token that sees so many, the head included. absorbed: the engine attends to the
    latent numbers that keys and values are made of, where a model has such, and makes no keys and values."""
    flops = forward_flops(shape, "causal_lm", Tokens(1, 1, context, 1, 1))
    if shape.latent is None:
        return flops
    latent_flops = (
        latent_attention.absorbed_decode_flops_per_token if absorbed else latent_attention.extra_decode_flops_per_token
    )
    return flops + shape.layers * latent_flops(shape, shape.latent, context)


def attended_tokens(shape: Shape, context: float) -> float:
    """Return how many of so many earlier tokens a new one sees, as a mean of all layers."""
    return context - shape.windowed_layer_count / shape.layers * max(0.0, context - shape.window)


@cache
def _weights(shape: Shape) -> int:
    """Return the weights of all layers with which a token is multiplied."""
    sparse = shape.expert_layer_count * shape.hidden * (shape.experts + 3 * shape.ffn * shape.experts_per_token)
    return layer_matrix_parameters(shape) + sparse


# The cache


def kv_bytes_per_token(shape: Shape, itemsize: int) -> int:
    """Return the bytes of the keys and values of one token in all layers, or of the latents that these are made of."""
    if shape.latent:
        return shape.layers * shape.latent.cached_numbers_per_token * itemsize
    return 2 * shape.layers * shape.kv_heads * shape.head_dim * itemsize


def rank_kv_bytes_per_token(shape: Shape, tp: int, itemsize: int) -> float:
    """Return `kv_bytes_per_token` on one rank, where layers are split over so many."""
    return kv_bytes_per_token(shape, itemsize) / kv_shard_count(shape, tp)


def kv_shard_count(shape: Shape, tp: int) -> int:
    """Return over how many tensor-parallel ranks the cache of a layer is split: latents, which heads share, are on
    each rank."""
    return 1 if shape.latent else min(tp, shape.kv_heads)
