"""What the parts have in common: on what they run, how large they are, and what they tell."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from rlgraph.backends.engines.sources import ModelSpec, RandomWeights
from rlgraph.backends.engines.tokenizers import ByteTokenizer
from rlgraph.backends.engines.transformers.engine import TransformersEngine
from rlgraph.catalog.models.configs import known_config
from rlgraph.catalog.models.families import ModelKind


@dataclass(frozen=True)
class Setting:
    """Of a run of the harness."""

    device: str
    """As torch names it."""
    small: bool = False
    """Tiny models and few tokens: to see that a part works, on any machine."""

    @property
    def gpu(self) -> bool:
        return self.device != "cpu"


@dataclass(frozen=True)
class Row:
    """One thing that was measured."""

    what: str
    measured: float
    unit: str = ""
    least: float | None = None
    most: float | None = None
    """What is asked of it; where nothing is, the figure is only told."""

    @property
    def good(self) -> bool:
        # What is not a number passes no comparison.
        return (self.least is None or self.measured >= self.least) and (self.most is None or self.measured <= self.most)


class Skipped(Exception):
    """A part that cannot be done here, and why."""


SMALL = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
    "vocab_size": 512,
}


def config(name: str, setting: Setting) -> dict[str, Any]:
    """Of a well-known model, in transformers' words; a tiny one in its place if the setting is small."""
    if setting.small:
        return dict(SMALL)
    found = known_config(name)
    assert found is not None, name
    return {key: value for key, value in found.items() if key != "model_type"}


def spec(fields: Mapping[str, Any], dtype: str, kind: ModelKind = "causal_lm", family: str = "qwen2") -> ModelSpec:
    """A model of random weights, the same on every device and in every engine."""
    return ModelSpec(kind, RandomWeights(family, fields, ByteTokenizer()), dtype)


def engine(
    fields: Mapping[str, Any], device: str, dtype: str, kind: ModelKind = "causal_lm", family: str = "qwen2"
) -> TransformersEngine:
    return TransformersEngine.open(spec(fields, dtype, kind, family), device=device)


def seconds(act: Callable[[], object], device: str, times: int = 5) -> float:
    """Median of some repetitions, after one that does not count."""
    found = []
    for _ in range(times + 1):
        wait(device)
        began = time.perf_counter()
        act()
        wait(device)
        found.append(time.perf_counter() - began)
    return statistics.median(found[1:])


def wait(device: str) -> None:
    """Until the device has done what it was told."""
    if device != "cpu":
        torch.cuda.synchronize(device)
