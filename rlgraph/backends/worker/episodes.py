"""Plays episodes with an environment, which become a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from rlgraph.backends.frame import Frame, NodeOutput
from rlgraph.backends.rows import RowId, Rows, row_label
from rlgraph.backends.worker.action_sampling import ActionSampling, SampledTurn, turn_room
from rlgraph.backends.worker.agent_episodes import play_agent
from rlgraph.backends.worker.episode_tables import (
    EpisodeRecord,
    agent_records,
    branch_ids,
    episode_records,
    episode_table,
)
from rlgraph.backends.worker.growing_episode import GrowingEpisode
from rlgraph.backends.worker.player_episodes import play_players
from rlgraph.backends.worker.sampler import newest_allowed_version, weights_to_sample_with
from rlgraph.backends.worker.sampling import repeat_items, table_output, table_type
from rlgraph.backends.worker.sampling_inputs import encode_prompts, ids_of_samples, rows_to_answer
from rlgraph.backends.worker.session import Session, SessionModel
from rlgraph.backends.worker.turn_play import play_turns
from rlgraph.backends.worker.turn_sampling import NextTurn, WantedTurn
from rlgraph.conversations import template_options_of, tools_of
from rlgraph.ir.graph import Node
from rlgraph.ir.types import player_column
from rlgraph.ops import attribute_value
from rlgraph.user_code import Environment, Episode

CHECKED = 8
"""How many episodes of a run are compared with their whole conversations."""


def run_interact(node: Node, frame: Frame, session: Session) -> NodeOutput:
    """Play `n` episodes for each row: the model acts, the environment answers, tokens in are tokens out.

    An episode is its prompt, the first observation, an action, an observation, ... Only actions carry loss. Where the
    prompt is messages, observations are turns that the model's chat template writes; else they are bare text. It ends
    when the environment says so, after `max_turns` actions or with `max_tokens` tokens after the prompt. With several
    players each has a sequence of its own, and the turns of all are counted.
    """
    if frame.admission is not None:
        # Each turn submits rows of its own.
        frame.admission.may_continue = True
    parents, data, prompts = rows_to_answer(node, frame, session, asks=False)
    kind, count = table_type(node), node.attr("n")
    ids = ids_of_samples(parents, count)
    rows, asked = repeat_items(data, count), repeat_items(prompts, count)
    environment = session.environments[node.attr("env")]
    if attribute_value(node, "players"):
        return _run_players(node, frame, session, environment, (parents, data, prompts))
    model = session.models[frame.values[node.inputs[0]]]
    how = _action_sampling(node, frame, session, model, ids)
    name, version = model.model.name, newest_allowed_version(node, frame, session, model)
    more: Mapping[str, Tensor] = {}
    if environment.agent is not None:
        played = play_agent({name: how}, rows, asked, environment.agent)
        _check_first(node, session, played.episodes())
        records, more = agent_records(played, name, version), played.columns
    else:
        started = encode_prompts(node, model, prompts, parents, data, environment.tools)
        episodes = _step_environment(how, rows, asked, started, environment)
        _check_first(node, session, episodes)
        records = episode_records(episodes, asked, version)
    _note_sampled(node, frame, session, ids, records)
    table = episode_table(kind, records, rows, ids, session, model.model.name, node.span)
    return table_output(node, parents, ids, replace(table, columns={**table.columns, **more}), count)


def _run_players(
    node: Node,
    frame: Frame,
    session: Session,
    environment: Environment,
    asked: tuple[Rows, Sequence[Any], Sequence[Any]],
) -> NodeOutput:
    """Play episodes of several players. asked: the rows, those of the data, and their prompts; a player whose name is a
    column of the data is asked that."""
    (parents, data, prompts), count = asked, node.attr("n")
    ids, rows = ids_of_samples(parents, count), repeat_items(data, count)
    models = dict(zip(node.attr("players"), node.attr("models"), strict=True))
    by_model = {name: _action_sampling(node, frame, session, session.models[name], ids) for name in {*models.values()}}
    sampling, more = {player: by_model[model] for player, model in models.items()}, dict[str, Any]()
    version = {name: newest_allowed_version(node, frame, session, how.model) for name, how in sampling.items()}
    if environment.agent is not None:
        played = play_agent(sampling, rows, repeat_items(prompts, count), environment.agent)
        _check_first(node, session, played.episodes())
        records, more = {name: agent_records(played, name, version[name]) for name in sampling}, dict(played.columns)
    else:
        own = {name: [row.get(name, prompt) for row, prompt in zip(data, prompts, strict=True)] for name in models}
        started = {name: encode_prompts(node, how.model, own[name], parents, data) for name, how in sampling.items()}
        begin = {name: repeat_items(given, count) for name, given in own.items()}
        lines = play_players(sampling, rows, begin, started, environment)
        _check_first(node, session, [part for parts in zip(*lines.values(), strict=True) for part in parts])
        records = {name: episode_records(parts, begin[name], version[name]) for name, parts in lines.items()}
    first, *_ = records
    _note_sampled(node, frame, session, ids, records[first])
    table = episode_table(table_type(node), records[first], rows, ids, session, models[first], node.span)
    more |= {
        player_column(player, models[player]): [None] * len(ids) if player == first else of_player
        for player, of_player in records.items()
    }
    return table_output(node, parents, ids, replace(table, columns={**table.columns, **more}), count)


def _action_sampling(
    node: Node, frame: Frame, session: Session, model: SessionModel, ids: tuple[RowId, ...]
) -> ActionSampling:
    weights, version = weights_to_sample_with(node, frame, session, model)
    return ActionSampling(node, frame, session, model, weights, version, ids)


def _note_sampled(
    node: Node, frame: Frame, session: Session, ids: Sequence[RowId], records: Sequence[EpisodeRecord]
) -> None:
    """Note the versions of episodes, and of all their lines where these are kept."""
    several = [record.branches for record in records]
    lines = [line for of_row in several for line in of_row]
    session.notes.add_note(
        frame.step,
        "sampled",
        node.attr("key"),
        (*ids, *branch_ids(ids, several)),
        [record.versions for record in (*records, *lines)],
    )


def _check_first(node: Node, session: Session, episodes: Sequence[GrowingEpisode]) -> None:
    """Compare the first episodes of a run with their whole conversations."""
    if node.name in session.checked:
        return
    session.checked.add(node.name)
    for episode in episodes[:CHECKED]:
        episode.check_special_tokens()


class _StepEpisode:
    """An episode of one model, whose actions an environment answers."""

    def __init__(self, how: ActionSampling, place: int, game: Episode, part: GrowingEpisode, row: Mapping[str, Any]):
        self.how, self.place, self.game, self.part, self.row = how, place, game, part, row

    def begin(self) -> Callable[[], Any]:
        return partial(self.game.reset, self.row)

    def take_beginning(self, answer: Any) -> None:
        self.part.add_first_observation(answer)

    def next_turn(self) -> WantedTurn | None:
        node, turn = self.how.node, len(self.part.actions)
        left = self.part.tokens_left(node.attr("max_tokens"))
        if left <= 0 or turn == node.attr("max_turns"):
            return None
        return WantedTurn(self.place, "", NextTurn(self.part, turn, turn_room(node, left)))

    def act(self, made: SampledTurn) -> Callable[[], Any]:
        return partial(self.game.step, self.part.add_action(made))

    def take_answer(self, answer: Any) -> None:
        observation, reward, over = answer
        self.part.rewards.append(reward)
        self.part.over = over
        self.part.record_tool_calls(self.game.last_calls)
        if not over and len(self.part.actions) < self.how.node.attr("max_turns"):
            self.part.add_observation(observation, self.how.node.attr("max_tokens"))

    def close(self) -> None:
        self.game.close()


def _step_environment(
    how: ActionSampling,
    rows: Sequence[Mapping[str, Any]],
    asked: Sequence[Any],
    started: Sequence[Sequence[int]],
    environment: Environment,
) -> list[GrowingEpisode]:
    """Return the episodes of an environment that answers each action. asked, started: what each row is asked, and for
    each of the data rows its tokens."""
    node, codec = how.node, how.model.engine.codec
    by_template = attribute_value(node, "turns") == "chat"
    count = node.attr("n")
    episodes = [
        GrowingEpisode(
            node,
            row_label(row),
            codec,
            list(started[place // count]),
            asked[place],
            by_template,
            [*environment.tools, *tools_of(rows[place])],
            template_options_of(rows[place]),
            environment.reads_special,
        )
        for place, row in enumerate(how.ids)
    ]
    played = [
        _StepEpisode(how, place, environment(row_label(how.ids[place])), part, rows[place])
        for place, part in enumerate(episodes)
    ]
    play_turns({"": how}, played, environment)
    return episodes
