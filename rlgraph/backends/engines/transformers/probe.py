"""Checks whether a model computes what this engine asks of it, with a few tokens, once when it is loaded.

transformers has architectures that look to the right, keep no cache or ignore the one that they are given, and cannot
keep some of the rows that they decode. They return numbers all the same, and wrong ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from rlgraph.backends.engines.errors import EngineError, ModelRefused, first_line
from rlgraph.backends.engines.sources import quiet_transformers
from rlgraph.backends.engines.transformers.cache import make_cache
from rlgraph.backends.engines.transformers.network import Network

_ROWS, _PROMPT, _LENGTH = 3, 4, 7
"""Rows of the trial, of which the first two share their first tokens; how many these are; and how many tokens a row
has."""
_ROUNDINGS, _MOST = 1000, 0.25
"""How far two ways to the same numbers may be apart, as a share of their spread: so many roundings of the dtype, and
never more than this. Of 27 architectures, tiny ones with random weights, the farthest were 11 roundings apart; the
nearest of those that compute something else were so by 0.005 of the spread, and most by 0.3 and more."""


def check_causality(network: Network, generates: bool) -> None:
    """Raise ModelRefused where a later token changes what an earlier one gives; where the model `generates`, also where
    a token at a time gives something else than one pass over all of them."""
    ids = _trial_rows(network)
    with quiet_transformers(), torch.no_grad():
        _check_causal(network, ids)
        if generates:
            _check_decoding(network, ids)


def logits_distance(some: Tensor, others: Tensor) -> float:
    """Return how far two [..., V] are apart at the middle one of their places, in units of the spread of `others`
    there.

    The middle one, and not the worst: in a narrow dtype the router of an expert may tip over at one place.
    """
    some, others = some.double(), others.double()
    spread = others.std(-1, correction=0).clamp(min=torch.finfo(torch.float32).tiny)
    gaps = (some - others).square().mean(-1).sqrt() / spread
    return float(gaps.flatten().sort().values[gaps.numel() // 2])


def rounding_tolerance(dtype: torch.dtype) -> float:
    """Return the largest `logits_distance` of numbers that are the same but for rounding.

    No dtype counts as finer than float32, in which many models compute norms and softmax whatever their dtype is.
    """
    return min(_MOST, _ROUNDINGS * max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps))


def _trial_rows(network: Network) -> Tensor:
    """Return int64 [_ROWS, _LENGTH], all different where the vocabulary is large enough."""
    size: int = network.model.config.get_text_config().vocab_size
    ids: Tensor = torch.arange(_ROWS * _LENGTH).view(_ROWS, _LENGTH)
    ids[1, :_PROMPT] = ids[0, :_PROMPT]
    # The first tokens of a vocabulary are often special.
    return ((ids + size // 2) % size).to(network.device)


def _check_causal(network: Network, ids: Tensor) -> None:
    changed = ids.clone()
    changed[:, _PROMPT:] = ids[:, _PROMPT:].flip(1, 0)
    before, after = (network.hidden_states(tokens)[:, :_PROMPT] for tokens in (ids, changed))
    gap = logits_distance(after, before)
    if not gap <= rounding_tolerance(network.rounding_dtype):
        raise ModelRefused(
            f"{_name(network)} is no causal model: a later token changes what an earlier one gives, "
            f"by {gap:.2g} of its spread"
        )


def _check_decoding(network: Network, ids: Tensor) -> None:
    """Decode as `decode.py` does: prompts once, a row for each response, and rows that have ended leave."""
    expected = network.all_logits(ids)
    cache = make_cache(network.model.config, _LENGTH)

    def decode_tokens(rows: Tensor, start: int, end: int) -> Tensor:
        positions = torch.arange(start, end, device=ids.device)[None]
        return network.decode_step(ids[rows, start:end], cache, positions, None)

    prompts = torch.tensor([0, 2], device=ids.device)
    pairs = [(decode_tokens(prompts, 0, _PROMPT), expected[prompts, _PROMPT - 1])]
    rows = torch.arange(_ROWS, device=ids.device)
    cache.batch_select_indices(torch.tensor([0, 0, 1], device=ids.device))
    for place in range(_PROMPT, _LENGTH):
        pairs.append((decode_tokens(rows, place, place + 1), expected[rows, place]))
        if place == _PROMPT:
            rows = rows[1:]
            cache.batch_select_indices(rows)
    gap = logits_distance(torch.cat([stepwise for stepwise, _ in pairs]), torch.cat([full for _, full in pairs]))
    if not gap <= rounding_tolerance(network.rounding_dtype):
        raise ModelRefused(
            f"{_name(network)} does not decode with a cache: a token at a time it gives other numbers than in one "
            f"pass, by {gap:.2g} of their spread"
        )


@contextmanager
def refuse_on_error(model: nn.Module) -> Iterator[None]:
    """Turn errors inside the model's own code into a ModelRefused; that a device has no room is none of these."""
    try:
        yield
    except (EngineError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        first = first_line(error)
        message = f"a few tokens were tried, and {type(model).__name__} failed: {type(error).__name__}: {first:.200}"
        raise ModelRefused(message) from error


def _name(network: Network) -> str:
    return type(network.model).__name__
