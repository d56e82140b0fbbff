"""Samples one token for each row, with randomness that belongs to the row and not to the batch."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rlgraph.backends.engines import likeliest
from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.engines.likeliest import (
    KeptTokens,
    largest_in_order,
    restrict_ranked,
    tells_kept,
    without_unlikely,
)
from rlgraph.backends.engines.records import Sampling
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.enginespec.memory import RANKING

_GOLDEN, _MIX_1, _MIX_2 = (
    number - (1 << 64) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
"""Odd numbers of 64 bits, as the signed integers that torch has."""


def key_bits(keys: np.ndarray) -> Tensor:
    """Return keys, uint64 [N], as the signed integers of the same bits, int64 [N]."""
    return torch.from_numpy(keys.astype(np.uint64).view(np.int64))


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Return x >> bits of unsigned numbers."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    """Apply the finalizer of splitmix64: a bijection of 64-bit integers whose output bits all depend on all input
    bits."""
    x = (x ^ _shifted(x, 30)) * _MIX_1
    x = (x ^ _shifted(x, 27)) * _MIX_2
    return x ^ _shifted(x, 31)


def draw_uniforms(bits: Tensor, place: Tensor) -> Tensor:
    """Return what `uniform_numbers` returns where keys and places are tensors: as `key_bits` returns them, and int64
    [N] or [1]. Whoever calls it does not wait for the device."""
    return _shifted(_mix(_mix(bits) + (place + 1) * _GOLDEN), 11).double() * 2.0**-53


def uniform_numbers(keys: np.ndarray, place: int | np.ndarray) -> Tensor:
    """Return a number in [0, 1) for each row: a pure function of the row's key and the token's place, float64 [N].

    keys: uint64 [N]. The keys are mixed first, so that keys 0, 1, 2, ... make independent streams. place: int64 [N], or
    the same for all rows.
    """
    return draw_uniforms(key_bits(keys), torch.as_tensor(place))


def sample(
    logits: Tensor,
    keys: np.ndarray,
    place: int | np.ndarray,
    sampling: Sampling,
    banned: Tensor | None,
    support: list[KeptTokens] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return a token for each row and its log-probability under the whole distribution: int64 [N], float [N].

    keys, place: as in `uniform_numbers`. The others, and which token it is: as in `choose_tokens`. Raises EngineError
    where logits are not finite.
    """
    token, logprob, finite = draw_tokens(logits, keys, place, sampling, banned, support)
    if not bool(finite.all()):
        raise not_finite()
    return token, logprob


def draw_tokens(
    logits: Tensor,
    keys: np.ndarray,
    place: int | np.ndarray,
    sampling: Sampling,
    banned: Tensor | None,
    support: list[KeptTokens] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `sample` returns, and whether each log-probability is finite, bool [N], in place of an error: nobody
    waits for the device."""
    uniforms = None if sampling.temperature == 0 else to_device(uniform_numbers(keys, place), logits.device)
    return choose_tokens(logits, uniforms, sampling, banned, support)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of the host on a device. Nobody waits for what a GPU has to do before."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def not_finite() -> EngineError:
    """Return the error of logits that are not finite."""
    return EngineError(
        "the model's logits are not finite: its weights have diverged, or its dtype is too narrow",
        "lower `lr`, or bound every update: `train actor(lr=1e-6, clip_norm=1.0)`",
    )


def choose_tokens(
    logits: Tensor,
    uniforms: Tensor | None,
    sampling: Sampling,
    banned: Tensor | None,
    support: list[KeptTokens] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return a token for each row, its log-probability under the whole distribution, and whether that is finite: int64
    [N], float [N], bool [N]. Where no support is kept, whoever calls it does not wait for the device.

    logits: float [N, V], float32 or float64, overwritten. uniforms: float64 [N], not used at temperature 0: a random
    token is found by inverting the cumulative distribution at one uniform. banned: tokens that must not be sampled,
    int64 [B]; the log-probability is still taken over the whole vocabulary. support: gets the tokens that each row's is
    sampled from, where the sampling keeps them.
    """
    scaled = logits if sampling.temperature in (0, 1) else logits.div_(sampling.temperature)
    forbidden = None if banned is None else scaled.index_select(1, banned)
    allowed = scaled if banned is None else scaled.index_fill_(1, banned, -torch.inf)
    top = allowed.amax(1, keepdim=True)
    weights = (allowed - top).exp_()
    cumulative = weights.cumsum(1)
    log_total = top[:, 0] + cumulative[:, -1].log()
    if forbidden is not None:
        log_total = torch.logaddexp(log_total, forbidden.logsumexp(1))
    finite = torch.isfinite(log_total)
    if uniforms is None:
        token = allowed.argmax(1)
    else:
        if sampling.top_k or sampling.top_p < 1 or sampling.min_p:
            _restrict(weights, sampling)
            torch.cumsum(weights, 1, out=cumulative)
        total = cumulative[:, -1]
        point = uniforms.to(total.dtype) * total
        # Rounding may lift the point to the total itself, past the last token that has any weight.
        point = torch.minimum(point, torch.nextafter(total, torch.zeros_like(total)))
        # Of sums that are not finite any is greater or none.
        last = logits.shape[1] - 1
        token = torch.searchsorted(cumulative, point[:, None], right=True)[:, 0].clamp_(max=last)
    if support is not None and sampling.keeps_support:
        support.append(_support(weights, allowed, log_total))
    return token, allowed.gather(1, token[:, None])[:, 0] - log_total, finite


def _support(weights: Tensor, logits: Tensor, log_total: Tensor) -> KeptTokens:
    """Return the tokens that have weight, [N, V], with the logarithms of their probabilities, which sum up to 1 over
    the whole vocabulary. log_total: [N], the logarithm of what all are divided by."""
    rows, ids = weights.nonzero(as_tuple=True)
    logs = logits[rows, ids] - log_total[rows]
    return KeptTokens(torch.bincount(rows, minlength=weights.shape[0]).cpu(), ids.to("cpu", torch.int32), logs.cpu())


def _restrict(weights: Tensor, sampling: Sampling) -> None:
    """Set those of `weights`, [N, V], to 0 that min_p, top_k and top_p exclude, in this order. The weight of the
    likeliest token is 1. Some rows at a time, since their order takes several times the bytes of the weights."""
    for block in weights.split(RANKING.rows(weights.shape[1])):
        if sampling.min_p:
            block.copy_(without_unlikely(block, sampling.min_p))
        if not sampling.top_k and sampling.top_p == 1:
            continue
        if block.device.type != "cpu":
            _restrict_sorted(block, sampling)
            continue
        left = _restrict_likeliest(block, sampling)
        if len(left):
            rest = block[left]
            _restrict_sorted(rest, sampling)
            block[left] = rest


def _restrict_sorted(weights: Tensor, sampling: Sampling) -> None:
    """Set those of `weights`, [N, V], to 0 that top_k and top_p exclude; nobody waits for the device."""
    ranked, columns = weights.sort(dim=1, descending=True, stable=True)
    kept = restrict_ranked(ranked, sampling.top_k, sampling.top_p, _total(weights, sampling))
    weights.zero_().scatter_(1, columns, kept)


def _restrict_likeliest(weights: Tensor, sampling: Sampling) -> Tensor:
    """Set those of `weights`, [N, V], to 0 that top_k and top_p exclude, where some of the largest tell which these
    are. Return the other rows, int64 [M], which are as they were."""
    count = max(likeliest.LIKELIEST, 2 * sampling.top_k)
    if count >= weights.shape[1]:
        return torch.arange(len(weights))
    values, columns = largest_in_order(weights, count)
    kept = restrict_ranked(values, sampling.top_k, sampling.top_p, _total(weights, sampling))
    told = tells_kept(kept, values)
    rows = told.nonzero()[:, 0]
    weights[rows] = torch.zeros_like(weights[rows]).scatter_(1, columns[rows], kept[rows])
    return (~told).nonzero()[:, 0]


def _total(weights: Tensor, sampling: Sampling) -> Tensor | None:
    """Return the sum of what `top_p` is a share of, [N, 1]: where there is no `top_k`, that of all."""
    return None if sampling.top_k else weights.sum(1, keepdim=True)


def check_row_keys(keys: np.ndarray, prompts: Sequences, n: int) -> None:
    """Raise EngineError where there is not one key for each of the `n` samples of each prompt."""
    count = len(prompts) * n
    if keys.shape != (count,):
        raise EngineError(f"{len(prompts)} prompts with {n} samples need {count} row keys, got {keys.shape}")


def with_start_token(prompts: Sequences, start_id: int | None) -> Sequences:
    """Return `prompts`, an empty one begun with the token that begins a text. Raises EngineError where there is
    none."""
    if not len(prompts) or int(prompts.lengths.min()) > 0:
        return prompts
    if start_id is None:
        raise EngineError("an empty prompt, and the tokenizer has no token that a text begins with")
    return Sequences.from_lists([row or [start_id] for row in prompts.rows()])
