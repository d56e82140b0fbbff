"""This module begins an episode of each environment before the first step, so that one which fails is told of at once,
and not after models are loaded and a turn is sampled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rlgraph.backends.worker.function_trials import Note, first_row
from rlgraph.data import BatchReader
from rlgraph.dsl.columns import find_episode_uses
from rlgraph.errors import Diagnostic, RunError
from rlgraph.ir.graph import Program
from rlgraph.ops import attribute_value
from rlgraph.user_code import Environment
from rlgraph.user_code.class_environments import ObjectEpisode

ACTION = ""
"""What is done in a trial: nothing, as a model does that ends its answer at once. What runs commands runs none."""
_HINT = (
    "before the first step an episode is tried, with one empty action, as a model may give; `trial=false` in the "
    "declaration leaves that out"
)


def try_environments(
    program: Program, readers: Mapping[str, BatchReader], environments: Mapping[str, Environment], note: Note
) -> list[Diagnostic]:
    """Return what is wrong with an episode of one empty action in each environment, on the first row of its data.

    An environment is passed over that says `trial=false`, that has no episodes of its own (an agent, tools), or whose
    rows are of a stream.
    """
    known = {name: reader.source.columns for name, reader in readers.items()}
    uses = {str(use.node.attr("env")): use for use in reversed(find_episode_uses(program, known))}
    problems: list[Diagnostic] = []
    for name, environment in environments.items():
        use = uses.get(name)
        row = None if use is None or not environment.tries else first_row(readers, use.source)
        if use is None or row is None:
            continue
        note(f"trying {name} with an empty action")
        episode = environment(row[0])
        assert isinstance(episode, ObjectEpisode), "others are not tried"
        try:
            _play(episode, row[1], tuple(attribute_value(use.node, "players") or ()))
        except RunError as error:
            hints = ["; ".join(filter(None, (found.hint, _HINT))) for found in error.diagnostics]
            problems += [replace(found, hint=hint) for found, hint in zip(error.diagnostics, hints, strict=True)]
    return problems


def _play(episode: ObjectEpisode, row: Mapping[str, Any], players: tuple[str, ...]) -> None:
    """Play an episode of one action. Raises RunError."""
    try:
        if players:
            acting, _ = episode.begin_players(row, players)
            episode.step_players(ACTION, players, acting)
        else:
            episode.reset(row)
            episode.step(ACTION)
    finally:
        episode.close()
