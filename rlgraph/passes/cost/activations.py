"""Estimates the bytes of a model's activations on a rank from its shape alone, in training and in a pass without
gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from rlgraph.backends.enginespec.memory import HeadTiles
from rlgraph.catalog.models.families import ModelKind, linear_layers
from rlgraph.catalog.models.shape import Shape
from rlgraph.passes.cost import latent_attention
from rlgraph.passes.cost.work import Tokens, adapter_parameter_count

LOGITS = 1 << 25
"""A rank computes at most so many logits at a time of a head that is not in tiles."""

QUERIES = 512
"""Where attention scores are written out, those of at most so many queries of a row exist at a time."""

NETWORK = 4
"""Columns that a layer keeps for each column of its feed-forward network: gate, up, SiLU of the gate, and product."""


@dataclass(frozen=True, slots=True)
class Activations:
    """The activation bytes of one rank in training, for one micro-batch."""

    layer: float
    """What each layer keeps from its forward to its backward pass."""
    working: float
    """The most that a layer's backward pass needs in addition; with recomputation this includes all that the layer
    would have kept."""
    ends: float
    """What the last norm, the scored hidden states and the rotary positions keep, and the buffers that layers share."""
    head: float
    """What the head has at its peak: logits and their gradient, or what is made of them on the way."""

    def peak_bytes(self, layers: float) -> float:
        """Return the peak bytes with so many layers, reached while the head is at work or when a backward pass
        begins."""
        return layers * self.layer + self.ends + max(self.working, self.head)


@lru_cache(4096)
def activation_bytes(
    shape: Shape,
    kind: ModelKind,
    micro: Tokens,
    *,
    itemsize: int,
    tp: int = 1,
    recompute: bool = False,
    fused_norms: bool = True,
    network: int = NETWORK,
    packed: bool = False,
    angles: int = 2,
    scores: bool = False,
    splits_tokens: bool = False,
    split_head: bool = False,
    keeps_fused: bool = True,
    wide_norms: int = 8,
    ep: int = 1,
    cp: int = 1,
    masked: bool = False,
    entropy: bool = False,
    logits: int = LOGITS,
    tiles: HeadTiles | None = None,
) -> Activations:
    """Return what autograd keeps, counted operator by operator as Korthikanti et al. do (arXiv 2205.05198, section
    4.1), for RMS norms, grouped queries and gated networks. Without sequence parallelism each tensor-parallel rank has
    the whole residual stream.

    micro: as the engine computes it, with its padding. recompute: a layer keeps its input alone. fused_norms: norms
    keep their input or its normal form; without it they are written out and compute in float32. network, angles,
    splits_tokens, split_head, keeps_fused, wide_norms: fields of `rlgraph.backends.enginespec.spec.EngineMemory`.
    packed: rows lie one behind the other. scores: attention is written out, and keeps a weight for each pair of
    tokens. ep: ranks that have experts of their own. cp: context-parallel ranks, which shard each row's tokens; micro
    is then what one rank has (`Tokens.part_of_fullest_rank`), with the keys and values of all tokens. masked:
    attention keeps masks, which layers share. entropy: the loss also needs the entropy. logits: the most logits that
    exist at a time. tiles: those of a head that is one matrix, on a device as `masked` says: True for a CPU.
    """
    layer = _LayerShard(shape, micro, itemsize, tp, fused_norms, network, packed, splits_tokens, keeps_fused, cp)
    layer = replace(layer, angles=angles, scores=scores, wide_norms=wide_norms, ep=ep)
    kept_bytes, working = layer.saved_bytes(), layer.backward_workspace_bytes()
    stream = micro.tokens * shape.hidden * itemsize / layer.token_shard_count
    if recompute:
        kept_bytes, working = stream, layer.recompute_bytes()
    if tiles is not None and kind == "causal_lm" and not shape.logits_cap:
        head = _tiled_head(shape, micro, itemsize, tp, tiles, masked)
    else:
        head = _head(shape, kind, micro, itemsize, tp, logits, split_head, entropy)
    return Activations(kept_bytes, working, layer.non_layer_bytes() + masked * layer.mask_bytes(), head)


def saved_layer_bytes_per_token(
    shape: Shape, itemsize: int, tp: int = 1, splits_tokens: bool = False, ep: int = 1
) -> float:
    """Return what one layer keeps of one token on a rank, with fused norms. splits_tokens, ep: as in
    `activation_bytes`."""
    token, splits = Tokens(1.0, 1.0, 1.0, 0.0), splits_tokens and tp > 1
    return activation_bytes(shape, "causal_lm", token, itemsize=itemsize, tp=tp, splits_tokens=splits, ep=ep).layer


def chosen_expert_bytes_per_token(shape: Shape, itemsize: int, tp: int = 1) -> float:
    """Return what of `saved_layer_bytes_per_token` is of a token's experts, where ranks have experts of their own: a
    copy of the token for each, and its columns."""
    return shape.experts_per_token * (shape.hidden + NETWORK * shape.ffn / tp) * itemsize


def forward_peak_bytes(
    shape: Shape,
    micro: Tokens,
    *,
    itemsize: int,
    tp: int = 1,
    packed: bool = False,
    splits_tokens: bool = False,
    cp: int = 1,
    masked: bool = False,
    scores: bool = False,
) -> float:
    """Return the most that a layer needs where no gradient is kept: the input of the first layer, the input of this
    one, and its intermediate results. packed, splits_tokens, cp, masked, scores: as in `activation_bytes`."""
    layer = _LayerShard(shape, micro, itemsize, tp, False, NETWORK, packed, splits_tokens, True, cp, scores=scores)
    return layer.forward_workspace_bytes() + masked * layer.mask_bytes()


def logits_bytes(
    shape: Shape,
    kind: ModelKind,
    micro: Tokens,
    tp: int = 1,
    split: bool = False,
    tiles: HeadTiles | None = None,
    itemsize: int = 4,
    on_cpu: bool = True,
) -> float:
    """Return what the head has at its peak where no gradient is kept: one tile, or logits and their softmax in float32,
    at most `LOGITS` numbers at a time; a softmax that is split by vocabulary has four such matrices."""
    if kind != "causal_lm":
        return 0.0
    if tiles is not None and not shape.logits_cap:
        return _tile_bytes(shape, micro, itemsize, tp, tiles, on_cpu)
    numbers = micro.scored * shape.vocab / tp
    return (16.0 if split else 8.0) * min(numbers, LOGITS)


def recomputed_head_share(
    shape: Shape, kind: ModelKind, scored: float, tp: int = 1, tiles: HeadTiles | None = None
) -> float:
    """Return the share of a head's logits that the backward pass computes again, with so many positions to score."""
    numbers = scored * shape.vocab / tp
    if kind != "causal_lm":
        return 0.0
    if tiles is None or shape.logits_cap:
        return float(numbers > LOGITS)
    # Of a head that is not trained the forward pass computes the gradient.
    return 0.0 if shape.adapters is not None else max(0.0, 1 - tiles.kept / max(numbers, 1.0))


def _tile_bytes(shape: Shape, micro: Tokens, itemsize: int, tp: int, tiles: HeadTiles, on_cpu: bool) -> float:
    """Return the bytes of one tile of logits, and of the float32 copies of those that are worked on together."""
    high, width = tiles.shape(math.ceil(micro.scored), math.ceil(shape.vocab / tp), on_cpu)
    together = max(1, tiles.cached // width) if on_cpu else high
    return width * (high * itemsize + 8.0 * together)


def _tiled_head(shape: Shape, micro: Tokens, itemsize: int, tp: int, tiles: HeadTiles, on_cpu: bool) -> float:
    """Return the bytes of a head in tiles when its backward pass begins: exponentials that were kept, the gradients of
    the weights and, in float32, of the hidden states, and those times their factors; or, of weights that are not
    trained, what the forward pass kept of the gradient of the hidden states, with a row of the weights for each."""
    tile, states = _tile_bytes(shape, micro, itemsize, tp, tiles, on_cpu), micro.scored * shape.hidden
    if shape.adapters is not None:
        return max(tile + 4 * states, (12 + itemsize) * states)
    kept = min(micro.scored * shape.vocab / tp, tiles.kept) * itemsize
    return kept + tile + shape.vocab / tp * shape.hidden * itemsize + (4 + itemsize) * states


def _head(
    shape: Shape, kind: ModelKind, micro: Tokens, itemsize: int, tp: int, most: int, split: bool, entropy: bool
) -> float:
    """Return the bytes of the head: two float32 matrices of a loss over the whole vocabulary (logits and their
    gradient), or four with the entropy, which keeps logarithms of its own. A loss that is split by vocabulary has four,
    whatever it asks for: logits, logits less the largest, their exponentials and a product. A cap in float32 keeps its
    output. Of more than `most` logits, `most` at a time are recomputed, beside the gradients so far of the head and of
    its input."""
    if kind != "causal_lm":
        return 0.0
    numbers = micro.scored * shape.vocab / tp
    so_far = (shape.vocab / tp + micro.scored) * shape.hidden * itemsize if numbers > most else 0
    capped = 4 if shape.logits_cap and itemsize == 4 else 0
    return ((16 if split else 8 * (1 + entropy)) + capped) * min(numbers, most) + so_far


@dataclass(frozen=True, slots=True)
class _LayerShard:
    """One rank's shard of a layer, whose methods return bytes on that rank."""

    shape: Shape
    micro: Tokens
    itemsize: int
    tp: int
    fused_norms: bool
    network: int
    packed: bool
    splits_tokens: bool
    keeps_fused: bool = True
    cp: int = 1
    angles: int = 2
    scores: bool = False
    wide_norms: int = 8
    ep: int = 1

    @property
    def token_shard_count(self) -> int:
        """The number of ranks over which tokens are split outside of products and attention."""
        return self.tp if self.splits_tokens else 1

    def saved_bytes(self) -> float:
        """Return what the layer keeps from its forward to its backward pass."""
        extra_norms = len(self.shape.norms) - 2
        norms = 2 * self._norm() + extra_norms * (self._inner() * self.shape.hidden + 4)
        per_token = norms / self.token_shard_count + self._network() + self._attention() + self._adapters()
        # Adapters of narrow models are float32, and are cast to the model's dtype to compute.
        copies = adapter_parameter_count(self.shape) / self.shape.layers * self.itemsize if self.itemsize < 4 else 0.0
        return self.micro.tokens * per_token + copies + self._weights() + self._copied()

    def backward_workspace_bytes(self) -> float:
        """Return the most that the backward pass of the feed-forward network, attention, or a norm that is written out
        needs."""
        stream = self.shape.hidden * self.itemsize
        # What the network did not keep is recomputed.
        network = stream + self._networks((2 + NETWORK - self.network) * self.itemsize / self.tp)
        if self.shape.adapters is not None:
            # As measured: a product with an adapter in it has its output and its input's gradient once, not twice.
            network -= 2 * stream / self.token_shard_count
        # A norm that is not trained has no product for the gradient of its weight.
        products = 20 if self.shape.adapters is None else 20 - 2 * self.itemsize
        norm = 0 if self.fused_norms else (products * self.shape.hidden + stream) / self.token_shard_count
        tokens = self.micro.tokens
        return max(tokens * max(network, norm, self._attending()), self._scores(), self._sharing())

    def _networks(self, column: float) -> float:
        """Return, for each token, the bytes of gradients in the largest feed-forward network, at `column` bytes for
        each column. Experts compute theirs one after the other; their inputs and outputs have gradients for each expert
        of a token."""
        shape = self.shape
        if not shape.experts:
            return shape.ffn * column
        streams = 2 * shape.experts_per_token * shape.hidden * self.itemsize
        routed = shape.ffn * shape.experts_per_token / shape.experts * column + streams
        return max(shape.shared_ffn * column, shape.dense_ffn * column, routed)

    def _attending(self) -> float:
        """Return, for each token, what the backward pass of context-parallel attention needs: gradients of the keys
        and values of all tokens. What the network kept is free by then."""
        if self.cp == 1:
            return 0.0
        queries, keys, _ = self._sizes()
        return 2 * (queries + keys * self.cp) * self.itemsize - self._network()

    def _copied(self) -> float:
        """Return the bytes of the copies of keys and values that each row has of its shared beginning."""
        return 2 * self._sizes()[1] * self.micro.copied * self.itemsize

    def _sharing(self) -> float:
        """Return what the backward pass of attention to such copies needs, whose gradients all exist before they are
        added up; what the network kept is free by then."""
        if not self.micro.copied:
            return 0.0
        queries, keys, _ = self._sizes()
        return self._copied() + self.micro.tokens * (2 * (queries + keys) * self.itemsize - self._network())

    def mask_bytes(self) -> float:
        """Return the bytes of the context-parallel masks. A rank has two stretches of each row, and for each of these
        a mask of the tokens that it sees, but for the stretch that begins the row."""
        ranks = self.cp
        return self.micro.squares * (2 * ranks + 1 - 1 / ranks) / (4 * ranks**2) * self.itemsize if ranks > 1 else 0.0

    def _weights(self) -> float:
        """Return the bytes of attention weights where attention is written out: a float32 for each head and pair of
        tokens, and its copy in another dtype."""
        if not self.scores:
            return 0.0
        return self._sizes()[2] * self.micro.squares * (4 + (self.itemsize if self.itemsize != 4 else 0))

    def _scores(self) -> float:
        """Return the bytes of attention scores in the backward pass: where a cap has to be written out, capped scores
        and their softmax of some queries at a time; where attention is written out, two gradients of all, when those of
        the network are done."""
        if self.scores:
            pairs = 2 * self._sizes()[2] * self.micro.squares * max(4, self.itemsize)
            return pairs - self.micro.tokens * self._network()
        if not self.shape.score_cap:
            return 0.0
        seen = min(self.micro.squares, QUERIES * self.micro.tokens)
        return 2 * self.shape.heads / self.tp * seen * self.itemsize

    def recompute_bytes(self) -> float:
        """Return what the backward pass needs of a layer that keeps its input alone: all that it would have kept, and
        the pass itself. A norm that is written out goes back when the network has freed what it kept."""
        network = replace(self, fused_norms=True).backward_workspace_bytes()
        return self.saved_bytes() + max(network, self.backward_workspace_bytes() - self.micro.tokens * self._network())

    def forward_workspace_bytes(self) -> float:
        """Return what a forward pass without gradients needs: the feed-forward network, the rotation of queries and
        keys, or a norm that is written out, beside the residual stream, the inputs of this layer and the first, and the
        output of a norm."""
        queries, keys, _ = self._sizes()
        item, hidden = self.itemsize, self.shape.hidden
        experts, shape = self.shape.experts_per_token, self.shape
        columns = max(shape.ffn * max(1, experts), shape.shared_ffn, shape.dense_ffn)
        # Tensor-parallel ranks add up their outputs in one more stream.
        streams = (4 + experts) / self.token_shard_count
        # Beside the outputs of gate and up are those of their adapters, and the sums, or as much.
        matrices = 4 if experts or shape.adapters else 3
        network = (streams + (self.tp > 1)) * hidden + matrices * columns / self.tp
        attention = 3 * hidden / self.token_shard_count + max(4 * queries + 2 * keys, 2 * queries + 5 * keys)
        if self.cp > 1:
            # Keys and values of all ranks, both as received and in the rows' order.
            seen = 2 * keys * self.cp
            most = max(4 * queries + 3 * keys + seen, 2 * queries + 5 * keys + 2 * seen)
            # Normed queries and keys also exist as they were before the norm.
            most += self.shape.qk_norm * (queries + keys)
            attention = 3 * hidden / self.token_shard_count + most
        if shape.latent:
            seen = 2 * keys * (self.cp - 1)
            attention = (
                3 * hidden / self.token_shard_count
                + latent_attention.forward_elements_per_token(shape, shape.latent, shape.heads / self.tp)
                + seen
            )
        wide = 0 if item >= 4 else 8
        norm = (3 if wide else 5) * hidden * item + wide * hidden
        normed = self.shape.qk_norm * ((3 * hidden + queries) * item + wide * queries)
        peak = self.micro.tokens * max(network * item, attention * item, norm, normed)
        # Queries, keys and values exist beside the output, which is concatenated.
        sharing = self.micro.tokens * (3 * hidden + 3 * queries + 4 * keys) * item + self._copied()
        peak = max(peak, sharing if self.micro.copied else 0.0) + self.micro.masks * item
        if not self.scores:
            return peak
        # Two matrices of scores, the mask, and the input, with keys and values for each head.
        pairs = self.micro.squares * (2 * self._sizes()[2] * max(4, item) + item + 1)
        return max(peak, pairs + self.micro.tokens * (3 * hidden + 3 * queries + 2 * keys) * item)

    def non_layer_bytes(self) -> float:
        """Return what the last norm, the scored hidden states, rotary positions and masks keep."""
        last = (self._norm() - self.shape.hidden * self.itemsize) / self.token_shard_count
        total = self.micro.tokens * last + self.micro.scored * self.shape.hidden * self.itemsize
        if self.token_shard_count > 1:
            # All tokens are gathered for the head.
            total += self.micro.tokens * self.shape.hidden * self.itemsize
        # Angles are for all positions of a row; where rows are packed, of all rows.
        angles = self.angles * (self.micro.tokens if self.packed else self.micro.longest)
        mask = (self.micro.squares * self.scores + self.micro.masks) * self.itemsize
        turned = self.shape.latent.turned if self.shape.latent else self.shape.head_dim
        return total + angles * turned * self.itemsize + mask

    def _norm(self) -> float:
        """Return, for each token, what a norm keeps: its input, its output, and a float32 scale."""
        return self.shape.hidden * (self._inner() + self.itemsize) + 4

    def _inner(self) -> int:
        """Return, for each column, the bytes of a norm's input. A norm that is written out also keeps the normal form,
        and one that is not trained keeps that in float32 alone."""
        if self.shape.wide_norms:
            return self.wide_norms
        return self.itemsize if self.fused_norms else 4 + self.itemsize * (self.shape.adapters is None)

    def _adapters(self) -> float:
        """Return, for each token, the bytes between the matrices A and B of the adapters."""
        adapters = self.shape.adapters
        return (
            adapters.rank * len(adapters.adapted_layers(linear_layers(self.shape))) * self.itemsize if adapters else 0.0
        )

    def _network(self) -> float:
        """Return, for each token, what a feed-forward network keeps. Mixtures of experts also keep a copy of the token
        and the output for each of its experts. Ranks that split tokens and have experts of their own, too, each choose
        experts for their own tokens, and keep these outputs alone."""
        chosen_by = self.token_shard_count if self.ep > 1 else 1
        routed = self.shape.hidden * self.shape.expert_layer_count / self.shape.layers
        copies = (1 + 1 / chosen_by) * self.shape.experts_per_token * routed
        if self.shape.experts and self.token_shard_count > 1 and (chosen_by == 1 or self.shape.shared_ffn):
            # All tokens are gathered for the router, or for experts that all of them take.
            copies += self.shape.hidden
        # Exact routers read a float32 copy.
        wide = 4 * routed / chosen_by if self.shape.routing else 0
        network = (self.network * _ffn(self.shape) / self.tp + copies) * self.itemsize
        return network + (wide if self.itemsize < 4 else 0)

    def _attention(self) -> float:
        """Return, for each token, what attention keeps: queries, keys, values, the output, and a float32 for each
        head. The output of packed rows exists for each row, or stretch, and concatenated. Keys and values are those of
        the tokens of all ranks."""
        queries, keys, heads = self._sizes()
        copied_out = self.packed and (self.micro.rows > 1 or self.cp > 1)
        if self.shape.latent:
            size, inner, ranks = self.itemsize, self._inner(), self.token_shard_count
            return latent_attention.latent_layer_bytes_per_token(
                self.shape, self.shape.latent, size, inner, heads, self.cp, self.scores, ranks
            )
        if self.scores:
            # Each head of a group has its own copy of the keys and values.
            keys = queries
        # Layers whose attention is recomputed in parts keep neither the output of a row nor the float32.
        kernels = 1 - self._in_parts()
        total = ((2 + copied_out * kernels) * queries + 2 * keys * self.cp) * self.itemsize + 4 * heads * kernels
        if self.shape.fused and self.keeps_fused:
            # Values are a view of the fused product; rotated queries exist twice.
            total += (2 * queries + keys) * self.itemsize
        if self.shape.qk_norm:
            # These norms are as in `_norm`, but their output is not kept.
            total += (queries + keys) * (self._inner() + 4 / self.shape.head_dim)
        return total

    def _in_parts(self) -> float:
        """Return the share of layers whose attention is computed for some queries at a time."""
        if self.shape.score_cap:
            return 1.0
        longer = max(self.micro.longest, 1.0) > self.shape.window
        return self.shape.windowed_layer_count / self.shape.layers if longer and not self.scores else 0.0

    def _sizes(self) -> tuple[float, float, float]:
        """Return this rank's columns of queries, its columns of keys, and its heads."""
        heads, kv_heads = self.shape.heads / self.tp, self.shape.kv_heads / self.tp
        return heads * self.shape.padded_head_dim, kv_heads * self.shape.padded_head_dim, heads


def _ffn(shape: Shape) -> float:
    """Return the columns of the feed-forward networks that one token passes, as a mean of all layers."""
    sparse = shape.ffn * max(1, shape.experts_per_token) + shape.shared_ffn
    return sparse + shape.dense / shape.layers * (shape.dense_ffn - sparse)
