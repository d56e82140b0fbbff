"""Plays episodes with an environment, which become a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.frame import Frame, NodeOutput
from rlgraph.backends.rows import TableData, row_label
from rlgraph.backends.weight_versions import merge_version_runs
from rlgraph.backends.worker.action_sampling import ActionSampling, turn_room
from rlgraph.backends.worker.agent_episodes import play_agent
from rlgraph.backends.worker.columns import finite_numbers
from rlgraph.backends.worker.growing_episode import GrowingEpisode
from rlgraph.backends.worker.sampler import newest_allowed_version, weights_to_sample_with
from rlgraph.backends.worker.sampling import repeat_items, table_output, table_type, version_columns
from rlgraph.backends.worker.sampling_inputs import encode_prompts, ids_of_samples, rows_to_answer
from rlgraph.backends.worker.session import Session
from rlgraph.conversations import template_options_of, tools_of
from rlgraph.ir.graph import Node
from rlgraph.ir.types import SAID, TURN_TOKENS
from rlgraph.ops import attribute_value
from rlgraph.user_code import Environment, Episode

CHECKED = 8
"""How many episodes of a run are compared with their whole conversations."""


def run_interact(node: Node, frame: Frame, session: Session) -> NodeOutput:
    """Play `n` episodes for each row: the model acts, the environment answers, tokens in are tokens out.

    An episode is its prompt, the first observation, an action, an observation, ... Only actions carry loss. Where the
    prompt is messages, observations are turns that the model's chat template writes; else they are bare text. It ends
    when the environment says so, after `max_turns` actions or with `max_tokens` tokens after the prompt.
    """
    model = session.models[frame.values[node.inputs[0]]]
    if frame.admission is not None:
        # Each turn submits rows of its own.
        frame.admission.may_continue = True
    parents, data, prompts = rows_to_answer(node, frame, session, asks=False)
    kind, count = table_type(node), node.attr("n")
    ids = ids_of_samples(parents, count)
    weights, version = weights_to_sample_with(node, frame, session, model)
    how = ActionSampling(node, frame, session, model, weights, version, ids)
    environment = session.environments[node.attr("env")]
    rows, asked = repeat_items(data, count), repeat_items(prompts, count)
    more: Mapping[str, Tensor] = {}
    if environment.agent is not None:
        played = play_agent(how, rows, asked, environment.agent)
        episodes, asked, more = played.lines, played.asked, played.columns
    else:
        started = encode_prompts(node, model, prompts, parents, data, environment.tools)
        episodes = _step_environment(how, rows, asked, started, environment)
    if node.name not in session.checked:
        session.checked.add(node.name)
        for episode in episodes[:CHECKED]:
            episode.check_special_tokens()
    # Where there was no room for an action nothing was sampled, and nothing recorded.
    runs = [
        merge_version_runs(e.versions) or ((newest_allowed_version(node, frame, session, model), 0),) for e in episodes
    ]
    session.notes.add_note(frame.step, "sampled", node.attr("key"), ids, runs)
    sequences = Sequences.from_lists([e.tokens for e in episodes], [e.scored for e in episodes])
    turns = np.array([len(e.rewards) for e in episodes], dtype=np.int64)
    owners = [row for row, e in zip(ids, episodes, strict=True) for _ in e.rewards]
    rewards = [r for e in episodes for r in e.rewards]
    made_calls = [calls for e in episodes for calls in e.calls]
    columns = {
        "logprobs": torch.tensor([p for e in episodes for p in e.logprobs], dtype=session.dtype),
        "finished": torch.tensor([e.over for e in episodes], dtype=torch.bool),
        **version_columns(runs, kind),
        "reward": finite_numbers(
            rewards, lambda place: f"a reward of {row_label(owners[place])}", node.span, session.dtype
        ),
        "turns": torch.from_numpy(turns),
        "calls": torch.tensor([len(calls) for calls in made_calls], dtype=torch.long),
        "failed": torch.tensor([sum(call.failed for call in calls) for calls in made_calls], dtype=torch.long),
        TURN_TOKENS: torch.tensor([tokens for e in episodes for tokens in e.action_tokens], dtype=torch.long),
        "observation": [said for e in episodes for said in e.observations],
        SAID: [e.function_arguments() for e in episodes],
        **more,
    }
    table = TableData(rows, asked, sequences, columns, model.model.name)
    return table_output(node, parents, ids, table, count)


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
    games = [environment(row_label(row)) for row in how.ids]
    try:
        first = environment.run_calls([partial(game.reset, row) for game, row in zip(games, rows, strict=True)])
        for said, episode in zip(first, episodes, strict=True):
            episode.add_first_observation(said)
        for turn in range(node.attr("max_turns")):
            open_ = [
                place for place, episode in enumerate(episodes) if episode.tokens_left(node.attr("max_tokens")) > 0
            ]
            if not open_:
                break
            _turn(how, episodes, environment, games, open_, turn)
    finally:
        for game in games:
            game.close()
    return episodes


def _turn(
    how: ActionSampling,
    episodes: list[GrowingEpisode],
    environment: Environment,
    games: Sequence[Episode],
    open_: list[int],
    turn: int,
) -> None:
    """Take one action in every open episode. Rows with the same room left are sampled together."""
    most, most_turns = how.node.attr("max_tokens"), how.node.attr("max_turns")
    by_room: dict[int, list[int]] = {}
    for place in open_:
        by_room.setdefault(turn_room(how.node, episodes[place].tokens_left(most)), []).append(place)
    for room, group in by_room.items():
        encoded = [episodes[place].tokens for place in group]
        made = how.sample(group, turn, encoded, how.random_numbers(group, turn), room)
        actions = [
            episodes[place].add_action(sampled.ids, sampled.logprobs, sampled.versions)
            for place, sampled in zip(group, made, strict=True)
        ]
        answers = environment.run_calls(
            [partial(games[place].step, action) for place, action in zip(group, actions, strict=True)]
        )
        for place, (observation, reward, over) in zip(group, answers, strict=True):
            episodes[place].rewards.append(reward)
            episodes[place].over = over
            episodes[place].record_tool_calls(games[place].last_calls)
            if not over and turn + 1 < most_turns:
                episodes[place].add_observation(observation, most)
