"""Plays episodes in which several players speak, each with a model: the environment says whose turn it is.

Each player has a sequence of its own, in which it acts, and what it is told is a user's turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rlgraph.backends.rows import row_label
from rlgraph.backends.worker.action_sampling import ActionSampling, turn_room
from rlgraph.backends.worker.growing_episode import GrowingEpisode
from rlgraph.conversations import template_options_of, tools_of
from rlgraph.ops import attribute_value
from rlgraph.user_code import Environment
from rlgraph.user_code.child import Observation, PlayerAnswer, PlayerTurn
from rlgraph.user_code.class_environments import ObjectEpisode


@dataclass(eq=False, slots=True)
class _PlayerEpisode:
    """One episode of several players."""

    place: int
    game: ObjectEpisode
    parts: Mapping[str, GrowingEpisode]
    """What each player has been told and has said."""
    said: list[tuple[str, str]] = field(default_factory=list)
    """All actions so far, with who said them."""
    heard: dict[str, int] = field(default_factory=dict)
    """How many of these each player has heard."""
    player: str = ""
    """Whose turn it is."""
    finished: bool = False

    @property
    def part(self) -> GrowingEpisode:
        """The part of the player whose turn it is."""
        return self.parts[self.player]

    def tell(self, player: str, observation: Observation | None, most: int) -> None:
        """Give a player the turn, with what it is told; None: what the others have said since it was told."""
        unheard = [text for who, text in self.said[self.heard.get(player, 0) :] if who != player]
        told = "\n".join(unheard) if observation is None else observation
        self.player, self.heard[player] = player, len(self.said)
        if self.part.actions:
            self.part.add_observation(told, most)
        else:
            self.part.add_first_observation(told)

    def take_answer(self, acting: str, answer: PlayerAnswer, most: int | None) -> None:
        """Take in what follows an action. most: tokens of a part; None: nobody acts any more."""
        player, observation, rewards, self.finished = answer
        self.parts[acting].rewards.append(0.0)
        self.parts[acting].record_tool_calls(())
        for name, reward in rewards.items():
            # Who has not acted has nothing that a reward could be for.
            if self.parts[name].rewards:
                self.parts[name].rewards[-1] += reward
        if not self.finished and most is not None:
            self.tell(player, observation, most)


def play_players(
    sampling: Mapping[str, ActionSampling],
    rows: Sequence[Mapping[str, Any]],
    asked: Mapping[str, Sequence[Any]],
    started: Mapping[str, Sequence[Sequence[int]]],
    environment: Environment,
) -> dict[str, list[GrowingEpisode]]:
    """Play an episode for each row, and return for each player its part of them.

    sampling: how each player's actions are sampled; asked: what each player is asked in each row; started: for each
    player and row of the data the tokens of that.
    """
    players = tuple(sampling)
    node, ids = sampling[players[0]].node, sampling[players[0]].ids
    by_template, count = attribute_value(node, "turns") == "chat", node.attr("n")

    def part_of(player: str, place: int) -> GrowingEpisode:
        return GrowingEpisode(
            node,
            f"{row_label(ids[place])} as `{player}`",
            sampling[player].model.engine.codec,
            list(started[player][place // count]),
            asked[player][place],
            by_template,
            tools_of(rows[place]),
            template_options_of(rows[place]),
            environment.reads_special,
        )

    episodes = []
    for place, row in enumerate(ids):
        game = environment(row_label(row))
        assert isinstance(game, ObjectEpisode), "the checker refuses others"
        episodes.append(_PlayerEpisode(place, game, {player: part_of(player, place) for player in players}))
    most = node.attr("max_tokens")
    try:
        first: list[PlayerTurn] = environment.run_calls(
            [partial(one.game.begin_players, row, players) for one, row in zip(episodes, rows, strict=True)]
        )
        for one, (player, told) in zip(episodes, first, strict=True):
            one.tell(player, told, most)
        for turn in range(node.attr("max_turns")):
            open_ = [one for one in episodes if not one.finished and one.part.tokens_left(most) > 0]
            if not open_:
                break
            _act(sampling, open_, environment, turn)
    finally:
        for one in episodes:
            one.game.close()
    for one in episodes:
        for part in one.parts.values():
            part.over = one.finished
    return {player: [one.parts[player] for one in episodes] for player in players}


def _act(
    sampling: Mapping[str, ActionSampling], open_: Sequence[_PlayerEpisode], environment: Environment, turn: int
) -> None:
    """Take one action in each open episode. Those of a model with the same room left are sampled together, whoever it
    plays."""
    players = tuple(sampling)
    node = sampling[players[0]].node
    most, last = node.attr("max_tokens"), turn + 1 == node.attr("max_turns")
    groups: dict[tuple[str, int], list[_PlayerEpisode]] = {}
    for one in open_:
        key = sampling[one.player].model.model.name, turn_room(node, one.part.tokens_left(most))
        groups.setdefault(key, []).append(one)
    for (_, room), group in groups.items():
        how, places = sampling[group[0].player], [one.place for one in group]
        made = how.sample(places, turn, [one.part.tokens for one in group], how.random_numbers(places, turn), room)
        actions = [
            one.part.add_action(sampled.ids, sampled.logprobs, sampled.versions)
            for one, sampled in zip(group, made, strict=True)
        ]
        acting = [one.player for one in group]
        answers = environment.run_calls(
            [
                partial(one.game.step_players, action, players, player)
                for one, action, player in zip(group, actions, acting, strict=True)
            ]
        )
        for one, action, player, answer in zip(group, actions, acting, answers, strict=True):
            one.said.append((player, action))
            one.take_answer(player, answer, None if last else most)
