"""Samples turns of episodes: those of a model together, however many tokens each may have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rlgraph.backends.weight_versions import Runs
from rlgraph.backends.worker.action_sampling import ActionSampling, SampledTurn
from rlgraph.backends.worker.growing_episode import GrowingEpisode

_SEED_MIX = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class NextTurn:
    """A turn of a model's that is to be sampled."""

    line: GrowingEpisode
    """All that comes before it."""
    number: int
    """The number of the turn in its episode."""
    room: int
    """How many tokens it may have, at most."""


@dataclass(frozen=True, slots=True)
class WantedTurn:
    """A turn, and what it is sampled with."""

    place: int
    """The place of its episode."""
    name: str
    """The name by which the model is asked."""
    turn: NextTurn
    seed: int | None = None
    """The seed that it was asked with."""


@torch.no_grad()
def sample_turns(sampling: Mapping[str, ActionSampling], wanted: Sequence[WantedTurn]) -> list[SampledTurn]:
    """Return what was sampled for each turn, which may be longer than its room: those of a model are sampled together,
    by whatever name it is asked."""
    made: list[SampledTurn | None] = [None] * len(wanted)
    for how in {how.model.model.name: how for how in sampling.values()}.values():
        mine = [at for at, one in enumerate(wanted) if sampling[one.name].model is how.model]
        for room, group in _groups([wanted[at].turn for at in mine], how.model.max_row_tokens):
            ones = [wanted[mine[at]] for at in group]
            keys = np.concatenate([_seeded(how.random_numbers([one.place], one.turn.number), one.seed) for one in ones])
            places, encoded = [one.place for one in ones], [one.turn.line.tokens for one in ones]
            sampled = how.sample(places, [one.turn.number for one in ones], encoded, keys, room)
            for at, turn_made in zip(group, sampled, strict=True):
                made[mine[at]] = turn_made
    return [turn for turn in made if turn is not None]


def cut_to_room(made: SampledTurn, room: int) -> SampledTurn:
    """Return what would have been sampled for a turn with so much room."""
    if len(made.ids) <= room:
        return made
    routes = made.routes
    if routes is not None:
        routes = routes[: routes.shape[0] - len(made.ids) + room].clone()
        # As of a turn that has ended there: its last token has not been read.
        routes[-1] = -1
    return SampledTurn(made.ids[:room], made.logprobs[:room], first_runs(made.versions, room), False, routes)


def _groups(turns: Sequence[NextTurn], longest: int | None) -> list[tuple[int, list[int]]]:
    """Return which turns are sampled together, and the room of each group: that of the turn that has most. The others
    are cut, as they would have ended: what is sampled at a place does not depend on how many come after it."""
    groups: list[tuple[int, list[int]]] = []
    for place in sorted(range(len(turns)), key=lambda place: -turns[place].room):
        turn = turns[place]
        if groups and (longest is None or len(turn.line.tokens) + groups[-1][0] <= longest):
            groups[-1][1].append(place)
        else:
            groups.append((turn.room, [place]))
    return groups


def _seeded(keys: np.ndarray, seed: int | None) -> np.ndarray:
    """Return keys mixed with the seed of a request, uint64."""
    return keys if seed is None else keys ^ np.uint64((seed * _SEED_MIX + 1) % (1 << 64))


def first_runs(runs: Runs, count: int) -> Runs:
    """Return which versions made the first tokens."""
    first: list[tuple[int, int]] = []
    for version, tokens in runs:
        taken = min(tokens, count)
        count -= taken
        if taken or not first:
            first.append((version, taken))
    return tuple(first)


def runs_behind(runs: Runs, count: int) -> Runs:
    """Return which versions made the tokens behind the first ones."""
    behind: list[tuple[int, int]] = []
    for version, tokens in runs:
        left = max(0, tokens - count)
        count -= tokens - left
        if left:
            behind.append((version, left))
    return tuple(behind)
