"""Weights that change while rows are sampled, and what the rows then have to be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from rlgraph.backends.engines.base import Generation, Sampling
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.engines.transformers.engine import TransformersEngine


@dataclass
class Coming:
    """New weights that an engine is given when it has asked so often."""

    write: Callable[[int], None]
    """Gives the engine the weights of a version."""
    after: Sequence[int]
    """For each new version how often the engine has to ask before it waits."""
    version: int = 0
    asked: int = 0

    @property
    def can_take_weights(self) -> bool:
        self.asked += 1
        return self.version < len(self.after) and self.asked > self.after[self.version]

    def take_weights(self) -> int:
        self.version += 1
        self.write(self.version)
        return self.version


def check(made: Generation, models: Mapping[int, TransformersEngine], sampling: Sampling, bound: float) -> None:
    """Each token has the log-probability that the weights of its version give it after all the tokens before it,
    whoever sampled those: to within `bound`."""
    assert made.versions is not None and made.versions.shape == made.logprobs.shape
    at = 0
    for whole, response in zip(made.sequences.rows(), made.sequences.scored_tokens_by_row(), strict=True):
        here = slice(at, at + len(response))
        versions, at = made.versions[here].tolist(), at + len(response)
        assert versions == sorted(versions)
        start = whole[: len(whole) - len(response)]
        for version in set(versions):
            expected = (
                models[version].logprobs(Sequences.from_pairs([start], [response]), sampling.temperature).detach()
            )
            mine = [place for place, found in enumerate(versions) if found == version]
            torch.testing.assert_close(made.logprobs[here][mine], expected[mine].to(made.logprobs), rtol=0, atol=bound)
