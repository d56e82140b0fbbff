"""The work of a model, from its shape alone: parameters, FLOPs, and the bytes of a token in its cache."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

from rlgraph.catalog.models.families import ModelKind, count, matrices, numbers, parameters, tensors, trained
from rlgraph.catalog.models.shape import Shape
from rlgraph.ir.layout import first_layer
from rlgraph.passes.cost import latent


@dataclass(frozen=True, slots=True)
class Tokens:
    """Rows that a model reads together, by what its work depends on. Sums, so that those of parts add up."""

    rows: float
    tokens: float
    """Of all rows together, prompts included, padding not."""
    squares: float
    """Of the rows' lengths, added up."""
    scored: float
    """Tokens for which the head is computed."""
    longest: float = 0.0
    """Tokens of the longest row."""
    copied: float = 0.0
    """Tokens whose keys and values attention has once more, for rows that begin with them."""
    masks: float = 0.0
    """Numbers that say which of these such rows see."""

    def share(self, parts: float) -> Tokens:
        """One of so many equal parts."""
        return Tokens(self.rows / parts, self.tokens / parts, self.squares / parts, self.scored / parts, self.longest)

    def shared_out(self, ranks: int) -> Tokens:
        """Of the fullest of ranks that share each row's tokens out: of twice as many stretches of each row two, one
        from its front and one from its back, in turns. What is scored is at the rows' ends; rows stay as long as they
        are."""
        if ranks == 1:
            return self
        each, stretch = self.scored / max(1.0, self.rows), self.tokens / max(1.0, self.rows) / (2 * ranks)
        behind = [min(stretch, max(0.0, each - index * stretch)) for index in range(2 * ranks)]
        pairs = [behind[index] + behind[-1 - index] for index in range(ranks)]
        rounds, left = divmod(round(self.rows), ranks)
        most = max(sum((pairs + pairs)[start : start + left]) for start in range(ranks))
        return replace(self, tokens=self.tokens / ranks, scored=rounds * each + most)

    def padded(self) -> Tokens:
        """With all rows as long as the longest, as engines compute them that have no packed rows."""
        width = self.longest
        return Tokens(self.rows, self.rows * width, self.rows * width * width, self.scored, width)


# Parameters


@cache
def layer_parameters(shape: Shape, layer: int = -1) -> int:
    """Of one layer, all its experts included; without a number, of the last one, which has experts if any has."""
    layer %= shape.layers
    found = 0
    for each in parameters(shape):
        if "*" in each.name and first_layer(each.name) <= layer < first_layer(each.name) + each.shape[0]:
            found += math.prod(each.shape[1:])
    return found


@cache
def body_parameters(shape: Shape) -> int:
    """Of all layers."""
    return numbers(each for each in parameters(shape) if "*" in each.name)


@cache
def tensor_count(shape: Shape, kind: ModelKind) -> int:
    """How many tensors change in training, in all layers."""
    if shape.adapters:
        return sum(each.shape[0] if "*" in each.name else 1 for each in trained(shape, kind))
    return sum(1 for _ in tensors(shape, kind))


def expert_parameters(shape: Shape) -> int:
    """Of the experts of all layers together, without those that every token takes."""
    return shape.sparse * shape.experts * 3 * shape.hidden * shape.ffn


@cache
def active_parameters(shape: Shape, kind: ModelKind = "causal_lm") -> int:
    """Those that one token takes part in: of the experts, its own."""
    idle = expert_parameters(shape) // max(1, shape.experts) * (shape.experts - shape.experts_per_token)
    return count(shape, kind) - idle


@cache
def stage_parameters(shape: Shape, kind: ModelKind, pp: int) -> int:
    """Of the fullest of equal pipeline stages. The first has the embedding, the last the last norm and the head; a tied
    head is a tensor of its own there."""
    if pp == 1:
        return count(shape, kind)
    stage, embedding = -(-shape.layers // pp), shape.vocab * shape.hidden
    first, last = (
        sum(layer_parameters(shape, layer) for layer in layers)
        for layers in (range(stage), range(shape.layers - stage, shape.layers))
    )
    head = embedding if kind == "causal_lm" else shape.hidden + (kind == "value_lm")
    return max(first + embedding, last + shape.hidden + head)


@cache
def shard_parameters(shape: Shape, kind: ModelKind, parts: int) -> int:
    """Of the fullest of so many ranks that share out the first dimension of each tensor (`rlgraph.ir.layout.chunk`)."""
    return sum(-(-each.shape[0] // parts) * math.prod(each.shape[1:]) for each in tensors(shape, kind))


def rank_parameters(shape: Shape, kind: ModelKind, pp: int, tp: int, ep: int = 1) -> float:
    """Of one rank of the fullest stage: layers are split over `tp`, and their experts over `ep`, too. What makes the
    few numbers a token that heads share is there on each."""
    stage = -(-shape.layers // pp)
    experts = expert_parameters(shape) / max(1, shape.sparse) * min(stage, shape.sparse)
    entire = stage * latent.shared_weights(shape, shape.latent) if shape.latent else 0
    return (stage_parameters(shape, kind, pp) - entire - experts * (1 - 1 / ep)) / tp + entire


@cache
def adapter_parameters(shape: Shape) -> int:
    """Of the adapters of all layers."""
    return numbers(trained(shape)) if shape.adapters else 0


@cache
def adapters_held(shape: Shape, merged: bool, item: int, wide: int, room: int, tp: int, twice: bool) -> float:
    """Bytes that an engine which is brought all adapters has beside the weights, on each of the ranks that split these.

    merged: of a matrix into which an adapter is merged there is one as it is without. item, wide: bytes of a number of
    the weights and of the adapters that come. room: the rank for which there are places beside the weights, with the
    columns of a rank's part of about half of them. twice: what was read at first stays, too.
    """
    came = adapter_parameters(shape)
    if merged:
        return adapted_parameters(shape) * item / tp + came * wide
    assert shape.adapters is not None
    places = came * room / shape.adapters.rank * (1 + 1 / tp) / 2
    return came * wide + (places + twice * came) * item


def adapted_parameters(shape: Shape) -> int:
    """Of the matrices that have an adapter."""
    sizes = {each.name: each.shape for each in matrices(shape)}
    return sum(math.prod(sizes[name]) for name in (shape.adapters.chosen(sizes) if shape.adapters else ()))


@cache
def trained_parameters(shape: Shape, kind: ModelKind, pp: int = 1) -> int:
    """Those of the fullest stage that training changes: what has gradients and moments, and travels."""
    return numbers(trained(shape, kind)) if shape.adapters else stage_parameters(shape, kind, pp)


# FLOPs


def forward_flops(shape: Shape, kind: ModelKind, work: Tokens) -> float:
    """Of the matrix products of a pass over rows, a multiplication and an addition counted as two: 2 for each weight
    and token, and those of the attention. Embeddings are looked up, which is none; norms and activations are left out
    (Kaplan et al., arXiv 2001.08361, section 2.1; Narayanan et al., arXiv 2104.04473, appendix)."""
    return layers_flops(shape, work) + head_flops(shape, kind, work)


def layers_flops(shape: Shape, work: Tokens) -> float:
    """The part of all layers in `forward_flops`."""
    return 2 * _weights(shape) * work.tokens + attention_flops(shape, work)


def attention_flops(shape: Shape, work: Tokens) -> float:
    """The part of queries with keys, and of weights with values, in `layers_flops`. Counted in full, what the causal
    mask hides included, as torch's counter does it."""
    return 4.0 * shape.layers * shape.heads * shape.widest * work.squares


def head_flops(shape: Shape, kind: ModelKind, work: Tokens) -> float:
    """The part of the head in `forward_flops`: at the scored tokens, of a reward model at each row's last one."""
    if kind == "reward_lm":
        return 2.0 * shape.hidden * work.rows
    return 2.0 * shape.hidden * (shape.vocab if kind == "causal_lm" else 1) * work.scored


def backward_flops(shape: Shape, kind: ModelKind, work: Tokens) -> float:
    """Twice those forward: each product has two gradients. Attention that keeps no weights computes them once more,
    which is two and a half times as much (Dao, arXiv 2307.08691, section 4.1)."""
    return 2 * forward_flops(shape, kind, work) + attention_flops(shape, work) / 2


def training_flops(shape: Shape, kind: ModelKind, work: Tokens, again: bool = False) -> tuple[float, float]:
    """Of a forward and a backward pass, of the layers and of the head. A product has the gradient of what it reads and
    that of its weights; where only adapters are trained the latter is theirs alone. again: layers are computed twice.
    """
    passes = 4.0 if again else 3.0
    layers, head = passes * layers_flops(shape, work), 3 * head_flops(shape, kind, work)
    if shape.adapters:
        layers -= 2 * _weights(shape) * work.tokens
        layers += passes * adapter_flops(shape, work)
        head -= head_flops(shape, kind, work) if kind == "causal_lm" else 0
    return layers, head


def adapter_flops(shape: Shape, work: Tokens) -> float:
    """What a forward pass has of adapters that are not merged into the weights."""
    return 2.0 * adapter_parameters(shape) * work.tokens


def decode_flops(shape: Shape, context: float, absorbed: bool = False) -> float:
    """Of one new token that sees so many, the head included. absorbed: an engine attends to the numbers that keys and
    values are made of, where a model has such, and makes none of these."""
    found = forward_flops(shape, "causal_lm", Tokens(1, 1, context, 1, 1))
    if shape.latent is None:
        return found
    more = latent.absorbed_flops if absorbed else latent.decode_flops
    return found + shape.layers * more(shape, shape.latent, context)


def seen(shape: Shape, context: float) -> float:
    """Of so many tokens before it those that a new one sees, in the mean of all layers."""
    return context - shape.windowed / shape.layers * max(0.0, context - shape.window)


@cache
def _weights(shape: Shape) -> int:
    """Of all layers, those that a token is multiplied with."""
    sparse = shape.sparse * shape.hidden * (shape.experts + 3 * shape.ffn * shape.experts_per_token)
    return sum(math.prod(each.shape) for each in matrices(shape)) + sparse


# The cache


def kv_bytes(shape: Shape, itemsize: int) -> int:
    """Of the keys and values of one token in all layers, or of what these are made of."""
    if shape.latent:
        return shape.layers * shape.latent.cached * itemsize
    return 2 * shape.layers * shape.kv_heads * shape.head_dim * itemsize


def cached_bytes(shape: Shape, tp: int, itemsize: int) -> float:
    """The same of a rank, where layers are split over so many."""
    return kv_bytes(shape, itemsize) / kv_ranks(shape, tp)


def kv_ranks(shape: Shape, tp: int) -> int:
    """Over how many of the ranks that split a layer its cache is split: of what heads share each has all."""
    return 1 if shape.latent else min(tp, shape.kv_heads)
