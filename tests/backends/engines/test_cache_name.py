"""By which name a model is given its cache, in the versions of transformers that there are."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from rlgraph.backends.engines.base import Sampling
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.engines.sources import ModelSpec, RandomWeights, load
from rlgraph.backends.engines.tokenizers import CharTokenizer
from rlgraph.backends.engines.transformers.engine import TransformersEngine
from rlgraph.backends.engines.transformers.network import cache_argument_name

SHAPE = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
}


def renamed(forward: Callable[..., Any]) -> Callable[..., Any]:
    """As transformers wraps what has a new name for an argument."""

    @functools.wraps(forward)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    return wrapped


class New(nn.Module):
    @renamed
    def forward(self, input_ids: Any, cache: Any = None, **kwargs: Any) -> None: ...


class Old(nn.Module):
    def forward(self, input_ids: Any, past_key_values: Any = None, **kwargs: Any) -> None: ...


class Any_(nn.Module):
    def forward(self, input_ids: Any, **kwargs: Any) -> None: ...


def test_a_cache_has_the_name_that_the_model_has_for_it() -> None:
    assert [cache_argument_name(model) for model in (New(), Old(), Any_())] == [
        "cache",
        "past_key_values",
        "past_key_values",
    ]


def test_transformers_does_not_warn_of_how_it_is_called() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        spec = ModelSpec("causal_lm", RandomWeights("qwen2", SHAPE, CharTokenizer("abcd>")))
        engine = TransformersEngine(load(spec), spec)
        asked = Sequences.from_pairs([[3, 4], [5]], [[], []])
        with torch.no_grad():
            made = engine.generate(asked, 1, Sampling(4, 1.0), np.arange(2, dtype=np.uint64))
        assert engine.logprobs(made.sequences, 1.0).isfinite().all()
