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
from rlgraph.backends.worker.agent_tree import AgentLine, AgentTree, AnswerCount
from rlgraph.backends.worker.columns import finite_numbers
from rlgraph.backends.worker.first_failures import FirstFailure
from rlgraph.backends.worker.growing_episode import GrowingEpisode
from rlgraph.backends.worker.session import Session, SessionModel
from rlgraph.backends.worker.turn_sampling import NextTurn, WantedTurn, sample_turns
from rlgraph.backends.worker.unread_parts import unread_request_warnings
from rlgraph.errors import Diagnostic, RunError, count_phrase
from rlgraph.ir.graph import Node
from rlgraph.user_code import Agent

MOST_FAILED = 8
"""So many episodes that all fail, the first of a run, end it."""


@dataclass(frozen=True, slots=True)
class PlayedEpisodes:
    """What became of episodes of an agent."""

    last: Mapping[str, list[AgentLine]]
    """The line of each one's last answer, of each model that it asks, by the name by which it asks it."""
    all: Mapping[str, list[list[AgentLine]]]
    """All lines of each one; () where they are not kept."""
    columns: Mapping[str, Tensor]
    """What is known of each episode besides."""

    def episodes(self) -> list[GrowingEpisode]:
        """Return all that was said in them, one episode after the other."""
        several = [[[line] for line in lines] for lines in self.last.values()]
        by_episode = zip(*several, *self.all.values(), strict=True)
        found = [line for parts in by_episode for part in parts for line in part]
        return list(dict.fromkeys(line.episode for line in found))


def play_agent(
    sampling: Mapping[str, ActionSampling],
    rows: Sequence[Mapping[str, Any]],
    prompts: Sequence[Any],
    agent: Agent,
) -> PlayedEpisodes:
    """Play an episode for each row. sampling: how each model is sampled, by the name by which the agent asks it; of one
    alone any name will do. prompts: of the rows, for those in which nothing is asked."""
    first = next(iter(sampling.values()))
    node, session, ids = first.node, first.session, first.ids
    seeds = first.frame.step.row_random_numbers(node.attr("key"), ids, "agent")
    counts = [AnswerCount() for _ in ids]
    episodes = [
        AgentEpisode(row_label(row), data, int(seed >> np.uint64(33)), _trees(sampling, agent, row, data, count))
        for row, data, seed, count in zip(ids, rows, seeds, counts, strict=True)
    ]
    with AgentPlay(agent, session.agent_server, [*sampling], episodes) as play:
        (_answer_as_they_come if first.takes_rows_meanwhile else _answer_in_rounds)(sampling, play)
    _note_failures(node, session, episodes, agent)
    _note_unread(sampling, session, episodes)
    numbers = [numbers_of(episode, agent) for episode in episodes]
    last, lines = dict[str, list[AgentLine]](), dict[str, list[list[AgentLine]]]()
    for name, how in sampling.items():
        # A number that is called as a model is that one's reward; the others have the first number.
        place = agent.returns.index(name) if name in agent.returns else 0
        trees = [episode.trees[name] for episode in episodes]
        last[name] = [
            tree.line or _nothing_asked(node, how.model, episode.name, prompt)
            for tree, episode, prompt in zip(trees, episodes, prompts, strict=True)
        ]
        lines[name] = [tree.lines if agent.branches == "all" else [] for tree in trees]
        for episode, made, one, several in zip(episodes, numbers, last[name], lines[name], strict=True):
            for line in (one, *several):
                _end_line(line.episode, episode, made[place])
    columns = {
        "requests": torch.tensor([count.answers for count in counts], dtype=torch.long),
        "refused": torch.tensor([e.refused for e in episodes], dtype=torch.long),
        "died": torch.tensor([e.failure is not None and not e.stalled for e in episodes], dtype=torch.bool),
        "stalled": torch.tensor([e.stalled for e in episodes], dtype=torch.bool),
    }
    for place, name in enumerate(agent.returns[1:], 1):
        if name in sampling:
            continue
        values = [row[place] for row in numbers]
        columns[name] = finite_numbers(values, partial(_number_name, name, ids), node.span, session.dtype)
    return PlayedEpisodes(last, lines, columns)


def _trees(
    sampling: Mapping[str, ActionSampling], agent: Agent, row: RowId, data: Mapping[str, Any], count: AnswerCount
) -> dict[str, AgentTree]:
    return {
        name: AgentTree(
            how.node, row_label(row), how.model.engine.codec, data, agent.branches, how.model.max_row_tokens, count
        )
        for name, how in sampling.items()
    }


def _number_name(name: str, ids: Sequence[RowId], place: int) -> str:
    return f"`{name}` of {row_label(ids[place])}"


def _answer_in_rounds(sampling: Mapping[str, ActionSampling], play: AgentPlay) -> None:
    """Answer the requests that wait together, and then those that have come meanwhile, until all episodes are over."""
    places = _places(play)
    while (asked := play.next_requests()) is not None:
        begun = _begin(play, asked)
        wanted = [WantedTurn(places[one.episode], name, turn, one.request.seed) for one, name, t in begun for turn in t]
        made = iter(sample_turns(sampling, wanted))
        for one, name, turns in begun:
            _end(play, one, name, turns, [next(made) for _ in turns])


def _answer_as_they_come(sampling: Mapping[str, ActionSampling], play: AgentPlay) -> None:
    """Answer each request as soon as it is sampled, beside those that come meanwhile, until all episodes are over. This
    thread alone writes and reads texts; others wait for the engine."""
    places = _places(play)
    going: dict[Future[list[SampledTurn]], _Begun] = {}
    with ThreadPoolExecutor(max(1, play.most_at_once)) as threads:
        while (asked := play.next_requests(gathers=False)) is not None:
            for one, name, turns in _begin(play, asked):
                wanted = [WantedTurn(places[one.episode], name, turn, one.request.seed) for turn in turns]
                sampled = threads.submit(sample_turns, sampling, wanted)
                going[sampled] = one, name, turns
                sampled.add_done_callback(lambda _: play.wake())
            for sampled in [sampled for sampled in going if sampled.done()]:
                _end(play, *going.pop(sampled), sampled.result())
        # Answers to episodes that were ended meanwhile.
        for sampled, begun in going.items():
            _end(play, *begun, sampled.result())


def _places(play: AgentPlay) -> dict[AgentEpisode, int]:
    return {episode: place for place, episode in enumerate(play.episodes)}


_Begun = tuple[AskedRequest, str, list[NextTurn]]
"""A request that can be answered, the name of the model that it asks, and the turns that are to be sampled."""


def _begin(play: AgentPlay, asked: Sequence[AskedRequest]) -> list[_Begun]:
    """Return the requests that can be answered; the others are refused."""
    begun = []
    for one in asked:
        try:
            name = _asked_model(play, one)
            begun.append((one, name, one.episode.trees[name].begin_turns(one.request)))
        except RequestRefused as refused:
            play.answer(one, refused)
    return begun


def _asked_model(play: AgentPlay, one: AskedRequest) -> str:
    """Return the name of the model that a request asks. Raises RequestRefused where there is none of that name."""
    name = one.request.model
    if len(play.models) == 1 or name in play.models:
        return name if name in play.models else play.models[0]
    known = ", ".join(f"`{other}`" for other in play.models)
    raise RequestRefused(f"no model is called `{name}` here: there are {known}", "model_not_found", 404)


def _end(play: AgentPlay, one: AskedRequest, name: str, turns: Sequence[NextTurn], made: Sequence[SampledTurn]) -> None:
    play.answer(one, one.episode.trees[name].end_turns(one.request, turns, made, name))


def _nothing_asked(node: Node, model: SessionModel, name: str, prompt: Any) -> AgentLine:
    """Return the line of an episode, of this name, in which a model was asked nothing."""
    codec = model.engine.codec
    return AgentLine(GrowingEpisode(node, name, codec, [codec.start_id or 0], "", False, (), {}, False), 0, prompt)


def _end_line(line: GrowingEpisode, episode: AgentEpisode, reward: float) -> None:
    """Note at the end of a line what its episode came to."""
    answers = len(line.actions)
    line.rewards = [*[0.0] * (answers - 1), reward] if answers else []
    line.over = episode.failure is None


def _note_unread(sampling: Mapping[str, ActionSampling], session: Session, episodes: Sequence[AgentEpisode]) -> None:
    """Tell of what is asked that the chat template of a model does not write."""
    for name, how in sampling.items():
        asked = [(one.name, request) for one in episodes if (request := one.trees[name].first_request)]
        warnings = unread_request_warnings(how.node, how.model.model.name, how.model.engine.codec, asked)
        session.failures.add(
            FirstFailure(f"{part} of {how.model.model.name}", warning.render(), warns=True)
            for part, warning in warnings
        )


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
