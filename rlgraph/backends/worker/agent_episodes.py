"""Plays the episodes of an agent: what it asks is sampled, with what it asks in other episodes at that time. Where the
engine takes rows while it samples others, each request begins when it comes, and is answered when it ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlgraph.backends.rows import RowId, row_label
from rlgraph.backends.worker.action_sampling import ActionSampling, SampledTurn
from rlgraph.backends.worker.agent_play import AgentEpisode, AgentPlay, AskedRequest, failures_of, numbers_of
from rlgraph.backends.worker.agent_requests import RequestRefused
from rlgraph.backends.worker.agent_tree import AgentTree, NextTurn
from rlgraph.backends.worker.columns import finite_numbers
from rlgraph.backends.worker.growing_episode import GrowingEpisode
from rlgraph.backends.worker.session import Session, SessionModel
from rlgraph.errors import Diagnostic, RunError, count_phrase
from rlgraph.ir.graph import Node
from rlgraph.user_code import Agent

MOST_FAILED = 8
"""So many episodes that all fail, the first of a run, end it."""
_SEED_MIX = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class PlayedEpisodes:
    """What became of episodes of an agent."""

    lines: list[GrowingEpisode]
    asked: tuple[Any, ...]
    """What each begins with."""
    columns: Mapping[str, Tensor]
    """What is known of each besides."""


def play_agent(
    how: ActionSampling, rows: Sequence[Mapping[str, Any]], prompts: Sequence[Any], agent: Agent
) -> PlayedEpisodes:
    """Play an episode for each row. prompts: of the rows, for those in which nothing is asked."""
    node, session, model, ids = how.node, how.session, how.model, how.ids
    codec = model.engine.codec
    seeds = how.frame.step.row_random_numbers(node.attr("key"), ids, "agent")
    episodes = [
        AgentEpisode(
            row_label(row),
            data,
            int(seed >> np.uint64(33)),
            AgentTree(node, row_label(row), codec, data, agent.branches, model.max_row_tokens),
        )
        for row, data, seed in zip(ids, rows, seeds, strict=True)
    ]
    with AgentPlay(agent, session.agent_server, model.model.name, episodes) as play:
        (_answer_as_they_come if how.takes_rows_meanwhile else _answer_in_rounds)(how, play)
    _note_failures(node, session, episodes, agent)
    numbers = [numbers_of(episode, agent) for episode in episodes]
    lines = [_line(node, model, episode, reward[0]) for episode, reward in zip(episodes, numbers, strict=True)]
    begins = [prompt if e.tree.line is None else e.tree.asked for e, prompt in zip(episodes, prompts, strict=True)]
    columns = {
        "requests": torch.tensor([e.tree.answers for e in episodes], dtype=torch.long),
        "refused": torch.tensor([e.refused for e in episodes], dtype=torch.long),
        "died": torch.tensor([e.failure is not None and not e.stalled for e in episodes], dtype=torch.bool),
        "stalled": torch.tensor([e.stalled for e in episodes], dtype=torch.bool),
    }
    for place, name in enumerate(agent.returns[1:], 1):
        values = [row[place] for row in numbers]
        columns[name] = finite_numbers(values, partial(_number_name, name, ids), node.span, session.dtype)
    return PlayedEpisodes(lines, tuple(begins), columns)


def _number_name(name: str, ids: Sequence[RowId], place: int) -> str:
    return f"`{name}` of {row_label(ids[place])}"


def _answer_in_rounds(how: ActionSampling, play: AgentPlay) -> None:
    """Answer the requests that wait together, and then those that have come meanwhile, until all episodes are over."""
    places = _places(play)
    while (asked := play.next_requests()) is not None:
        begun = _begin(play, asked)
        wanted = [(places[one.episode], one.request.seed, turn) for one, turns in begun for turn in turns]
        made = iter(_sample(how, wanted))
        for one, turns in begun:
            _end(how, play, one, turns, [next(made) for _ in turns])


def _answer_as_they_come(how: ActionSampling, play: AgentPlay) -> None:
    """Answer each request as soon as it is sampled, beside those that come meanwhile, until all episodes are over. This
    thread alone writes and reads texts; others wait for the engine."""
    places = _places(play)
    going: dict[Future[list[SampledTurn]], tuple[AskedRequest, list[NextTurn]]] = {}
    with ThreadPoolExecutor(max(1, play.most_at_once)) as threads:
        while (asked := play.next_requests(gathers=False)) is not None:
            for one, turns in _begin(play, asked):
                sampling = threads.submit(
                    _sample, how, [(places[one.episode], one.request.seed, turn) for turn in turns]
                )
                going[sampling] = one, turns
                sampling.add_done_callback(lambda _: play.wake())
            for sampling in [sampling for sampling in going if sampling.done()]:
                _end(how, play, *going.pop(sampling), sampling.result())
        # Answers to episodes that were ended meanwhile.
        for sampling, (one, turns) in going.items():
            _end(how, play, one, turns, sampling.result())


def _places(play: AgentPlay) -> dict[AgentEpisode, int]:
    return {episode: place for place, episode in enumerate(play.episodes)}


def _begin(play: AgentPlay, asked: Sequence[AskedRequest]) -> list[tuple[AskedRequest, list[NextTurn]]]:
    """Return the requests that can be answered, with the turns that are to be sampled; the others are refused."""
    begun = []
    for one in asked:
        try:
            begun.append((one, one.episode.tree.begin_turns(one.request)))
        except RequestRefused as refused:
            play.answer(one, refused)
    return begun


def _end(
    how: ActionSampling, play: AgentPlay, one: AskedRequest, turns: Sequence[NextTurn], made: Sequence[SampledTurn]
) -> None:
    play.answer(one, one.episode.tree.end_turns(one.request, turns, made, how.model.model.name))


@torch.no_grad()
def _sample(how: ActionSampling, wanted: Sequence[tuple[int, int | None, NextTurn]]) -> list[SampledTurn]:
    """Sample turns, and return what was sampled for each. wanted: for each the place of its episode, the seed that it
    was asked with, and the turn."""
    made: list[SampledTurn | None] = [None] * len(wanted)
    for room, group in _groups([turn for _, _, turn in wanted], how.model.max_row_tokens):
        places, turns = [wanted[index][0] for index in group], [wanted[index][2] for index in group]
        keys = np.concatenate(
            [
                _seeded(how.random_numbers([place], turn.number), seed)
                for place, seed, turn in map(wanted.__getitem__, group)
            ]
        )
        encoded = [turn.line.tokens for turn in turns]
        sampled = how.sample(places, [turn.number for turn in turns], encoded, keys, room)
        for index, turn_made in zip(group, sampled, strict=True):
            made[index] = turn_made
    return [turn for turn in made if turn is not None]


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


def _line(node: Node, model: SessionModel, episode: AgentEpisode, reward: float) -> GrowingEpisode:
    """Return what is learned from: the line of the last answer, with the reward at its end."""
    line = episode.tree.line
    if line is None:
        start = model.engine.codec.start_id or 0
        line = GrowingEpisode(node, episode.name, model.engine.codec, [start], "", False, (), {}, False)
    answers = len(line.actions)
    line.rewards = [*[0.0] * (answers - 1), reward] if answers else []
    line.over = episode.failure is None
    return line


def _note_failures(node: Node, session: Session, episodes: Sequence[AgentEpisode], agent: Agent) -> None:
    """Tell of the first episode of a run in which the agent failed. Raises RunError where it has failed in all of the
    first ones."""
    failures, name = failures_of(episodes, agent), node.attr("env")
    session.failures.add_first(name, failures)
    if len(failures) < len(episodes):
        session.never_finished[name] = -1
    elif session.never_finished.get(name, 0) >= 0:
        failed = session.never_finished[name] = session.never_finished.get(name, 0) + len(failures)
        if failed >= MOST_FAILED:
            message = f"`{name}` has failed in all of its first {count_phrase(failed, 'episode')}; {failures[0]}"
            raise RunError(Diagnostic("E0857", message, node.span, "an agent that has come to its end once may fail"))
