"""Samples what a model does in episodes: actions in environments, and answers to agents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rlgraph.backends.engines.records import State
from rlgraph.backends.frame import Frame
from rlgraph.backends.recording import Turns
from rlgraph.backends.rows import RowId
from rlgraph.backends.weight_versions import Runs
from rlgraph.backends.worker.sampler import Sampler, sampling_options, weight_refresh
from rlgraph.backends.worker.session import Session, SessionModel
from rlgraph.ir.graph import Node


@dataclass(frozen=True, slots=True)
class SampledTurn:
    """What the engine has sampled for a turn of the model's."""

    ids: list[int]
    logprobs: list[float]
    versions: Runs
    finished: bool
    """Whether it came to its end by itself."""
    routes: Tensor | None = None
    """The experts of all tokens before it and of its own, as `Sequences.routes`, where they are kept."""


@dataclass(frozen=True, slots=True)
class ActionSampling:
    """How the actions in the episodes of an `interact` are sampled."""

    node: Node
    frame: Frame
    session: Session
    model: SessionModel
    weights: State | None
    """Weights in place of the present ones."""
    version: int
    """The version of the weights that sample."""
    ids: tuple[RowId, ...]
    """The identity of each episode."""

    @property
    def takes_rows_meanwhile(self) -> bool:
        """Whether the engine takes further rows while others are being sampled, from any thread."""
        return self.frame.admission is not None and self.session.replay is None

    def random_numbers(self, places: Sequence[int], turn: int) -> np.ndarray:
        """Return the random numbers of a turn of some episodes, uint64."""
        rows = tuple(self.ids[place] for place in places)
        return self.frame.step.row_random_numbers(self.node.attr("key"), rows, turn)

    def sample(
        self, places: Sequence[int], turn: Turns, encoded: list[list[int]], keys: np.ndarray, room: int
    ) -> list[SampledTurn]:
        """Sample a turn of some episodes. turn: its number, or for each of them one; encoded: the tokens before it;
        keys: its random numbers, uint64; room: the tokens that it may have."""
        node, frame = self.node, self.frame
        rows, sampling = tuple(self.ids[place] for place in places), sampling_options(node, self.model, room)
        how = sampling, self.weights, self.version, weight_refresh(node, frame), frame.admission
        sampler = Sampler(node, frame.step, self.session, self.model, turn, 1, *how)
        [(_, _, made, runs)] = sampler.sample_parts(rows, encoded, keys, [len(rows)])
        logprobs = torch.split(made.logprobs, made.sequences.scored_counts().tolist())
        routes = made.sequences.routes_by_row()
        return [
            SampledTurn(ids, chances.tolist(), versions, finished, of_row)
            for ids, chances, versions, finished, of_row in zip(
                made.sequences.scored_tokens_by_row(), logprobs, runs, made.finished.tolist(), routes, strict=True
            )
        ]


def turn_room(node: Node, tokens_left: int) -> int:
    """Return how many tokens a turn may have in an episode of a node that has so many left."""
    return min(tokens_left, node.attr("turn_tokens") or tokens_left)
