"""The work of attention whose keys and values are made of a few numbers a token
(`rlgraph.catalog.models.latent.Latent`), and the bytes that it keeps."""

from __future__ import annotations

from rlgraph.catalog.models.latent import Latent
from rlgraph.catalog.models.shape import Shape


def shared_weights(shape: Shape, latent: Latent) -> int:
    """Of a layer, the weights of which all heads need all."""
    return shape.hidden * (latent.queries + latent.cached)


def decode_flops(shape: Shape, latent: Latent, context: float) -> float:
    """Of a layer, for a token that sees so many: what its products have beside those of a pass over rows
    (`rlgraph.passes.cost.work.forward_flops`). Keys and values of all that it sees are made again, as transformers does
    it; values are as wide as they are."""
    made = 2.0 * latent.keys * shape.heads * (latent.plain + latent.values) * (context - 1)
    return made - 2.0 * shape.heads * (2 * shape.widest - shape.head_dim - latent.values) * context


def absorbed_flops(shape: Shape, latent: Latent, context: float) -> float:
    """The same of an engine that remakes nothing: queries are multiplied with what would make keys, attend to what the
    cache has, and what comes out is multiplied with what would make values (DeepSeek-V2, arXiv 2405.04434, section
    2.1.2). These two products have as many numbers as the one that they stand for."""
    return 2.0 * shape.heads * (latent.cached + latent.keys - 2 * shape.widest) * context


def prompted(shape: Shape, latent: Latent, heads: float) -> float:
    """Numbers of one token while such an engine reads a prompt, of which it makes keys and values, beside the hidden
    states: what lies below queries and keys, as it comes and normalized, and what rotates of keys; queries, keys, both
    parts of keys and values in one, and what comes out: of each row, of all, and where the caller wants it."""
    low = 2 * (latent.queries + latent.keys) + 2 * latent.turned
    return low + heads * (2 * shape.head_dim + latent.plain + 4 * latent.values)


def made(shape: Shape, latent: Latent, products: bool) -> int:
    """Numbers that a layer makes of what its cache has of one token: keys and values as they come, and keys with what
    rotates behind them. products: attention is two products, which want values by themselves."""
    return shape.heads * (latent.plain + latent.values + shape.head_dim + products * latent.values)


def forward(shape: Shape, latent: Latent, heads: float) -> float:
    """Numbers of one token that attention needs where nothing is kept: what lies below queries and keys; queries as
    they come, what rotates of them, and both together; keys and values as they come, and keys with what rotates; what
    comes out, of each row and of all; and values with zeros behind them, if these are narrower, or queries and keys."""
    low = latent.queries + latent.keys + latent.cached
    padded = shape.widest * (1 if latent.values < shape.head_dim else 2)
    each = 3 * shape.head_dim + latent.turned + latent.plain + latent.values + padded + 2 * shape.widest
    return low + heads * each


def kept(
    shape: Shape, latent: Latent, itemsize: int, inner: int, heads: float, cp: int, scores: bool, token_ranks: int
) -> float:
    """Bytes of one token that a layer keeps from its forward to its backward pass: what lies below queries and keys,
    these and values with zeros behind them, what comes out, as wide as they and as wide as it is, and a float32 for
    each head. inner: bytes of what a norm keeps of a number. heads: those of this rank. cp: ranks whose tokens'
    keys and values are there. scores: attention is written out. token_ranks: those that share out the tokens outside of
    products, for which these are put together."""
    low = latent.queries + latent.keys
    norms = (low * inner + 4 * (1 + (latent.queries > 0))) / token_ranks + low * itemsize
    if token_ranks > 1:
        norms += (latent.turned + (0 if latent.queries else shape.hidden)) * itemsize
    if scores:
        return norms + heads * (2 * shape.head_dim + latent.plain + 2 * latent.values) * itemsize
    wide = heads * shape.widest * (2 + 2 * cp) + heads * latent.values
    if latent.values >= shape.head_dim:
        # They need no zeros, and stay a part of what they are made with.
        wide += heads * latent.plain
    return norms + wide * itemsize + 4 * heads
