"""Plays episodes in which several players speak, each with a model: the environment says whose turn it is.

Each player has a sequence of its own, in which it acts, and what it is told is a user's turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from rlgraph.backends.rows import row_label
from rlgraph.backends.worker.action_sampling import ActionSampling, SampledTurn, turn_room
from rlgraph.backends.worker.growing_episode import GrowingEpisode
from rlgraph.backends.worker.turn_play import play_turns
from rlgraph.backends.worker.turn_sampling import NextTurn, WantedTurn
from rlgraph.conversations import template_options_of, tools_of
from rlgraph.ops import attribute_value
from rlgraph.user_code import Environment
from rlgraph.user_code.child import Observation, PlayerAnswer, PlayerTurn
from rlgraph.user_code.class_environments import ObjectEpisode


class _PlayerEpisode:
    """One episode of several players."""

    def __init__(
        self,
        sampling: Mapping[str, ActionSampling],
        place: int,
        game: ObjectEpisode,
        parts: Mapping[str, GrowingEpisode],
        row: Mapping[str, Any],
    ) -> None:
        """parts: what each player has been told and has said."""
        self.place, self.game, self.parts, self.row = place, game, parts, row
        self.players = tuple(sampling)
        self.node = sampling[self.players[0]].node
        self.said: list[tuple[str, str]] = []
        """All actions so far, with who said them."""
        self.heard: dict[str, int] = {}
        """How many of these each player has heard."""
        self.player = ""
        """Whose turn it is."""
        self.finished = False

    @property
    def part(self) -> GrowingEpisode:
        """The part of the player whose turn it is."""
        return self.parts[self.player]

    def begin(self) -> Callable[[], PlayerTurn]:
        return partial(self.game.begin_players, self.row, self.players)

    def take_beginning(self, answer: PlayerTurn) -> None:
        self._tell(*answer)

    def next_turn(self) -> WantedTurn | None:
        left, turn = self.part.tokens_left(self.node.attr("max_tokens")), len(self.said)
        if self.finished or left <= 0 or turn == self.node.attr("max_turns"):
            return None
        return WantedTurn(self.place, self.player, NextTurn(self.part, turn, turn_room(self.node, left)))

    def act(self, made: SampledTurn) -> Callable[[], PlayerAnswer]:
        action = self.part.add_action(made)
        self.said.append((self.player, action))
        return partial(self.game.step_players, action, self.players, self.player)

    def take_answer(self, answer: PlayerAnswer) -> None:
        player, observation, rewards, self.finished = answer
        self.part.rewards.append(0.0)
        self.part.record_tool_calls(())
        for name, reward in rewards.items():
            # Who has not acted has nothing that a reward could be for.
            if self.parts[name].rewards:
                self.parts[name].rewards[-1] += reward
        if not self.finished and len(self.said) < self.node.attr("max_turns"):
            self._tell(player, observation)

    def close(self) -> None:
        self.game.close()

    def _tell(self, player: str, observation: Observation | None) -> None:
        """Give a player the turn, with what it is told; None: what the others have said since it was told."""
        unheard = [text for who, text in self.said[self.heard.get(player, 0) :] if who != player]
        told = "\n".join(unheard) if observation is None else observation
        self.player, self.heard[player] = player, len(self.said)
        if self.part.actions:
            self.part.add_observation(told, self.node.attr("max_tokens"))
        else:
            self.part.add_first_observation(told)


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
        parts = {player: part_of(player, place) for player in players}
        episodes.append(_PlayerEpisode(sampling, place, game, parts, rows[place]))
    play_turns(sampling, episodes, environment)
    for one in episodes:
        for part in one.parts.values():
            part.over = one.finished
    return {player: [one.parts[player] for one in episodes] for player in players}
