"""Computes the FLOPs of attention whose keys and values are made from a few latent numbers for each token
(`rlgraph.catalog.models.latent_attention.LatentAttention`), and the bytes that it keeps."""

from __future__ import annotations

from rlgraph.catalog.models.latent_attention import LatentAttention
from rlgraph.catalog.models.shape import Shape


def shared_weight_count(shape: Shape, latent: LatentAttention) -> int:
    """Return the number of weights of a layer that every head needs in full."""
    return shape.hidden * (latent.queries + latent.cached_numbers_per_token)


def extra_decode_flops_per_token(shape: Shape, latent: LatentAttention, context: float) -> float:
    """Return the FLOPs that the products of a layer have in addition to those of a pass over rows
    (`rlgraph.passes.cost.work.forward_flops`), for a token that sees `context` tokens. Keys and values of all that it
    sees are remade, as transformers does; values keep their own width."""
    made = 2.0 * latent.keys * shape.heads * (latent.plain + latent.values) * (context - 1)
    return made - 2.0 * shape.heads * (2 * shape.padded_head_dim - shape.head_dim - latent.values) * context


def absorbed_decode_flops_per_token(shape: Shape, latent: LatentAttention, context: float) -> float:
    """Return the same as `extra_decode_flops_per_token` for an engine that remakes nothing: queries are multiplied with
    the weights that make keys, attend to the cache, and the output is multiplied with the weights that make values
    (DeepSeek-V2, arXiv 2405.04434, section 2.1.2). These two products have as many numbers as the one that they
    replace."""
    return 2.0 * shape.heads * (latent.cached_numbers_per_token + latent.keys - 2 * shape.padded_head_dim) * context


def prefill_elements_per_token(shape: Shape, latent: LatentAttention, heads: float) -> float:
    """Return how many numbers of one token such an engine has in prefill, where it makes keys and values, beside the
    hidden states: the latents below queries and keys, plain and normalized, and the rotating part of keys; queries,
    keys, both parts of keys and values in one, and the output: of each row, of all, and where the caller wants it."""
    low = 2 * (latent.queries + latent.keys) + 2 * latent.turned
    return low + heads * (2 * shape.head_dim + latent.plain + 4 * latent.values)


def rebuilt_elements_per_token(shape: Shape, latent: LatentAttention, products: bool) -> int:
    """Return how many numbers a layer makes from the cache of one token: keys and values as they are made, and keys
    with the rotating part behind them. products: attention is two products, which need separate values."""
    return shape.heads * (latent.plain + latent.values + shape.head_dim + products * latent.values)


def forward_elements_per_token(shape: Shape, latent: LatentAttention, heads: float) -> float:
    """Return how many numbers of one token attention needs where nothing is kept: the latents below queries and keys;
    queries as made, their rotating part, and both together; keys and values as made, and keys with their rotating part;
    the output, of each row and of all; and zero-padded values, if these are narrower, or else queries and keys."""
    low = latent.queries + latent.keys + latent.cached_numbers_per_token
    padded = shape.padded_head_dim * (1 if latent.values < shape.head_dim else 2)
    per_head = 3 * shape.head_dim + latent.turned + latent.plain + latent.values + padded + 2 * shape.padded_head_dim
    return low + heads * per_head


def latent_layer_bytes_per_token(
    shape: Shape,
    latent: LatentAttention,
    itemsize: int,
    inner: int,
    heads: float,
    cp: int,
    scores: bool,
    token_ranks: int,
) -> float:
    """Return the bytes of one token that a layer keeps from its forward to its backward pass: the latents below
    queries and keys, queries, keys and zero-padded values, the output, padded and at its own width, and a float32 for
    each head. inner: bytes of what a norm keeps of a number. heads: those of this rank. cp: ranks whose tokens' keys
    and values are present. scores: attention is written out. token_ranks: the ranks that shard the tokens outside of
    products, for which the tokens are gathered."""
    low = latent.queries + latent.keys
    norms = (low * inner + 4 * (1 + (latent.queries > 0))) / token_ranks + low * itemsize
    if token_ranks > 1:
        norms += (latent.turned + (0 if latent.queries else shape.hidden)) * itemsize
    if scores:
        return norms + heads * (2 * shape.head_dim + latent.plain + 2 * latent.values) * itemsize
    wide = heads * shape.padded_head_dim * (2 + 2 * cp) + heads * latent.values
    if latent.values >= shape.head_dim:
        # Values need no zeros, and remain views of the product that made them.
        wide += heads * latent.plain
    return norms + wide * itemsize + 4 * heads
