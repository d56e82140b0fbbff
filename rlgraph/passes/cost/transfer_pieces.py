"""Counts the pieces of a planned transfer of weights at its busiest ends: each takes some calls of Python and a launch,
however few bytes it has.

A tensor is cut wherever either side cuts it, layer by layer; experts of a layer are one tensor. What has the same
holders and the same takers is one stream, and where a transfer runs in several rounds
(`rlgraph.passes.resharding.reshard`) each stream is cut into as many sections, which begin and end within a matrix.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rlgraph.catalog.models.families import ModelKind
from rlgraph.catalog.models.shape import Shape
from rlgraph.ir.transfer import LATENCY
from rlgraph.passes.cost import work
from rlgraph.passes.cost.constants import Constants
from rlgraph.passes.cost.deployment import Deployment
from rlgraph.passes.cost.memory import BUCKET


@dataclass(frozen=True, slots=True)
class TransferCounts:
    """The pieces of a transfer at one rank."""

    pieces: float
    """Pieces of whole tensors."""
    sections: float
    """Sections beside the first one of each stream."""

    def seconds(self, constants: Constants) -> float:
        """Return the seconds in which one rank works on them."""
        return constants.piece * self.pieces + constants.section * self.sections


def transfer_counts(
    shape: Shape, kind: ModelKind, source: Deployment, target: Deployment, moved: float, network_s: float
) -> tuple[TransferCounts, TransferCounts]:
    """Return the counts of a rank that sends, and of one that receives and passes on to others of its node. That stages
    share the sending of whole tensors is left out. moved: bytes that a rank receives. network_s: seconds of the
    network."""
    experts = 3 * shape.expert_layer_count if shape.adapters is None else 0
    others = work.trained_tensor_count(shape, kind) - 2 * experts // 3
    here, there = (_parts(source, target), _parts(target, source))
    received = others * here[0] + experts * here[1]
    sent = (others * there[0] + experts * there[1]) / (source.dp * source.cp)
    together = takers_on_node(target)
    passed = moved * (together - 1) / together
    rounds = max(math.sqrt(network_s / LATENCY) if together > 1 else 0.0, (moved + passed) / BUCKET)
    # Streams are divided among the replicas of a node where there are fewer. Norms, which no rank splits, have other
    # holders than the rest.
    streams = source.pp * (max(here[0], together) + (source.tp > 1) * together)
    streams += max(source.pp * here[1], together) if experts else 0
    more = max(0.0, rounds - 1)
    own = 1 + (experts > 0) + (source.tp > 1)
    return TransferCounts(sent, own * more), TransferCounts(received, streams * more)


def takers_on_node(target: Deployment) -> int:
    """Return how many replicas of a node get the same weights where it is full of them. That a node may have fewer is
    left out: the search takes a transfer to more replicas for no slower."""
    return max(1, target.island.per_node // target.mesh.replica_size)


def _parts(one: Deployment, other: Deployment) -> tuple[int, int]:
    """Return into how many parts the ranks of a group cut what a rank of another group has of a tensor, and of the
    experts of a layer."""
    (sets, columns), (other_sets, other_columns) = _expert_split(one), _expert_split(other)
    experts = max(1, sets // other_sets) * max(1, columns // other_columns)
    return max(1, one.tp // other.tp) * one.fsdp, experts * one.fsdp


def _expert_split(deployment: Deployment) -> tuple[int, int]:
    """Return over how many ranks the experts of a layer are split, and over how many each expert's columns."""
    apart = deployment.whole_expert_rank_count
    return deployment.ep * apart, deployment.tp // apart
