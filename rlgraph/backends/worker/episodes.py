"""Plays episodes with an environment, which become a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.engines.records import State
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.engines.turns import without_end
from rlgraph.backends.frame import Frame, NodeOutput
from rlgraph.backends.rows import RowId, TableData, row_label
from rlgraph.backends.versions import Runs, merge_runs
from rlgraph.backends.worker.columns import finite_numbers
from rlgraph.backends.worker.sampler import (
    Sampler,
    newest_allowed_version,
    sampling_options,
    weight_refresh,
    weights_to_sample_with,
)
from rlgraph.backends.worker.sampling import repeat_items, table_output, table_type, version_columns
from rlgraph.backends.worker.sampling_inputs import encode_prompts, ids_of_samples, rows_to_answer
from rlgraph.backends.worker.session import ModelState, Session, engine_run_error
from rlgraph.conversations import Message, content, options_of, tools_of
from rlgraph.errors import Diagnostic, RunError
from rlgraph.ir.graph import Node
from rlgraph.ops import attribute_value
from rlgraph.user_code import Environment, Episode
from rlgraph.user_code.child import Observation


def interact(node: Node, frame: Frame, session: Session) -> NodeOutput:
    """Play `n` episodes for each row: the model acts, the environment answers, tokens in are tokens out.

    An episode is its prompt, the first observation, an action, an observation, ... Only actions carry loss. Where the
    prompt is messages, observations are turns that the model's chat template writes; else they are bare text. It ends
    when the environment says so, after `max_turns` actions or with `max_tokens` tokens after the prompt.
    """
    model = session.models[frame.values[node.inputs[0]]]
    if frame.admission is not None:
        # Each turn submits rows of its own.
        frame.admission.may_continue = True
    parents, data, prompts = rows_to_answer(node, frame, asks=False)
    kind, count = table_type(node), node.attr("n")
    ids = ids_of_samples(parents, count)
    weights, version = weights_to_sample_with(node, frame, session, model)
    started = encode_prompts(node, model, prompts, parents, data)
    rows, asked = repeat_items(data, count), repeat_items(prompts, count)
    environment = session.environments[node.attr("env")]
    by_template = attribute_value(node, "turns") == "chat"
    episodes = [
        _Episode(node, row_label(row), list(started[place // count]), asked[place], rows[place], by_template)
        for place, row in enumerate(ids)
    ]
    games = [environment(row_label(row)) for row in ids]
    try:
        first = environment.run_calls([partial(game.reset, row) for game, row in zip(games, rows, strict=True)])
        for said, episode in zip(first, episodes, strict=True):
            episode.begin(model, said)
        for turn in range(node.attr("max_turns")):
            open_ = [
                place for place, episode in enumerate(episodes) if episode.tokens_left(node.attr("max_tokens")) > 0
            ]
            if not open_:
                break
            _turn(node, frame, session, model, weights, version, ids, episodes, environment, games, open_, turn)
    finally:
        for game in games:
            game.close()
    # Where there was no room for an action nothing was sampled, and nothing recorded.
    runs = [merge_runs(e.versions) or ((newest_allowed_version(node, frame, session, model), 0),) for e in episodes]
    session.notes.add_note(frame.step, "sampled", node.attr("key"), ids, runs)
    sequences = Sequences.from_lists([e.tokens for e in episodes], [e.scored for e in episodes])
    turns = np.array([len(e.rewards) for e in episodes], dtype=np.int64)
    owners = [row for row, e in zip(ids, episodes, strict=True) for _ in e.rewards]
    rewards = [r for e in episodes for r in e.rewards]
    columns = {
        "logprobs": torch.tensor([p for e in episodes for p in e.logprobs], dtype=session.dtype),
        "finished": torch.tensor([e.over for e in episodes], dtype=torch.bool),
        **version_columns(runs, kind),
        "reward": finite_numbers(
            rewards, lambda place: f"a reward of {row_label(owners[place])}", node.span, session.dtype
        ),
        "turns": torch.from_numpy(turns),
    }
    table = TableData(rows, asked, sequences, columns, model.model.name)
    return table_output(node, parents, ids, table, count)


class _Episode:
    """An episode as it grows."""

    def __init__(
        self, node: Node, name: str, prompt: list[int], asked: Any, row: Mapping[str, Any], by_template: bool
    ) -> None:
        """prompt: the tokens of what is asked; by_template: whether messages are answered with messages."""
        self.node = node
        self.name = name
        self.row = row
        self.messages: list[Message] | None = None if isinstance(asked, str) or not by_template else _messages(asked)
        """What the episode begins with, where its turns are written by the chat template."""
        self.replies: list[list[Message]] = []
        """What the environment has replied to each action, as messages."""
        self.tokens = prompt
        self.scored = [False] * len(prompt)
        self.prompt = len(prompt)
        self.logprobs: list[float] = []
        self.versions: list[tuple[int, int]] = []
        self.rewards: list[float] = []
        self.over = False

    def begin(self, model: ModelState, said: Observation) -> None:
        """Add the first observation: messages continue those of the prompt, before the model's turn is opened."""
        if not said:
            return
        if self.messages is None:
            self.add_observation(self.observed(model, said))
            return
        self.messages += _as_messages(said)
        self.tokens = self._written(lambda: model.engine.codec.encode_prompt(self.messages or (), *self._given()))
        self.scored = [False] * len(self.tokens)

    def observed(self, model: ModelState, said: Observation) -> list[int]:
        """Return the tokens that come after an action: with a chat template all that it writes up to the next one."""
        messages = self.messages
        if messages is not None:
            self.replies.append(_as_messages(said))
            codec = model.engine.codec
            piece = self._written(lambda: codec.encode_turn(messages, self.replies, *self._given()))
            return without_end(piece, self.tokens)
        if isinstance(said, str):
            return model.engine.codec.encode_text(said)
        message = f"the environment answers {self.name} with messages, and the episode is a text: {said!r:.60}"
        hint = "return the text alone, or make the prompt a list of messages and leave out `turns=text`"
        raise RunError(Diagnostic("E0861", message, self.node.span, hint))

    def add_observation(self, ids: list[int]) -> None:
        """Add the tokens of an observation, which carry no loss."""
        self.tokens += ids
        self.scored += [False] * len(ids)

    def _given(self) -> tuple[Sequence[Mapping[str, Any]], Mapping[str, Any]]:
        """Return what the chat template is given for the row alone."""
        return tools_of(self.row), options_of(self.row)

    def _written(self, write: Callable[[], list[int]]) -> list[int]:
        try:
            return write()
        except (EngineError, TypeError, KeyError) as error:
            raise engine_run_error(self.node, f"the turns of {self.name} cannot be written", error) from None

    def add_action(self, ids: list[int], logprobs: list[float], versions: Runs) -> None:
        """Add an action, which carries loss."""
        self.tokens += ids
        self.scored += [True] * len(ids)
        self.logprobs += logprobs
        self.versions += versions

    def tokens_left(self, most: int) -> int:
        """Return how many tokens may still come; none when it is over."""
        return 0 if self.over else most - (len(self.tokens) - self.prompt)


def _messages(asked: Any) -> list[Message]:
    """Return the messages of a prompt that has been encoded."""
    given = content(asked, "prompt")
    assert not isinstance(given, str)
    return list(given)


def _as_messages(said: Observation) -> list[Message]:
    """Return an observation as messages: a text is a user's."""
    return [{"role": "user", "content": said}] if isinstance(said, str) else list(said)


def _turn(
    node: Node,
    frame: Frame,
    session: Session,
    model: ModelState,
    weights: State | None,
    version: int,
    ids: tuple[RowId, ...],
    episodes: list[_Episode],
    environment: Environment,
    games: Sequence[Episode],
    open_: list[int],
    turn: int,
) -> None:
    """Take one action in every open episode. Rows with the same room left are sampled together."""
    most = node.attr("max_tokens")
    keys = frame.step.row_random_numbers(node.attr("key"), ids, turn)
    by_room: dict[int, list[int]] = {}
    for place in open_:
        by_room.setdefault(episodes[place].tokens_left(most), []).append(place)
    for room, group in by_room.items():
        encoded = [episodes[place].tokens for place in group]
        rows, sampling = tuple(ids[place] for place in group), sampling_options(node, model, room)
        how = sampling, weights, version, weight_refresh(node, frame), frame.admission
        sampler = Sampler(node, frame.step, session, model, turn, 1, *how)
        [(_, _, made, runs)] = sampler.sample_parts(rows, encoded, keys[group], [len(rows)])
        actions = made.sequences.scored_rows()
        logprobs = torch.split(made.logprobs, made.sequences.scored_counts().tolist())
        decode = model.engine.codec.decode
        answers = environment.run_calls(
            [partial(games[place].step, decode(action)) for place, action in zip(group, actions, strict=True)]
        )
        for place, action, chances, runs_of_row, answer in zip(group, actions, logprobs, runs, answers, strict=True):
            episodes[place].add_action(action, chances.tolist(), runs_of_row)
            observation, reward, over = answer
            episodes[place].rewards.append(reward)
            episodes[place].over = over
            if not over and turn + 1 < node.attr("max_turns"):
                # An observation that does not fit could not be answered: the episode ends with the action.
                room_left = episodes[place].tokens_left(most)
                observed = episodes[place].observed(model, observation)
                if len(observed) < room_left:
                    episodes[place].add_observation(observed)
                else:
                    episodes[place].over = True
