"""This module samples rows: answers to prompts, and episodes with an environment. Both become tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from rlgraph.backends.engines.base import Admission, EngineError, Generation, Sampling, State, Streams, WeightRefresh
from rlgraph.backends.engines.first_done import select_first, taken
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.frame import Frame, NodeOutput
from rlgraph.backends.recording import Replay
from rlgraph.backends.rows import RowId, Rows, TableData, row_label
from rlgraph.backends.step import Step
from rlgraph.backends.versions import Runs, merge_runs
from rlgraph.backends.worker.columns import finite_numbers, missing_column
from rlgraph.backends.worker.session import ModelState, Session, engine_failure, too_long
from rlgraph.errors import Diagnostic, RunError, count_phrase
from rlgraph.ir.graph import Node
from rlgraph.ir.steps import oldest
from rlgraph.ir.types import OLDEST, Axis, Table
from rlgraph.ops.nodes import expected_lengths_of, rows_per_input, work_of
from rlgraph.user_code import Environment, Episode


def generate(node: Node, frame: Frame, session: Session) -> NodeOutput:
    """Sample `n` answers for each row of a table or a text column, or those of them that end first."""
    size = asked_rows(node, frame)[0].size
    [(_, _, made)] = generate_parts(node, frame, session, [size])
    return made


def generate_parts(
    node: Node, frame: Frame, session: Session, sizes: Sequence[int]
) -> Iterator[tuple[int, Rows, NodeOutput]]:
    """Do `generate` for the first `sizes[0]` rows, for the next `sizes[1]`, and so on. Yields each part when it is
    done: its number, and the rows that were asked, counted in the part as everything in it is."""
    model = session.models[frame.values[node.inputs[0]]]
    parents, data, prompts = asked_rows(node, frame)
    kind = _kind(node)
    count, answers = node.attr("n"), rows_per_input(node)
    ids = _ids(parents, count)
    encoded = _encoded(node, model, prompts, parents)
    weights, version = _weights(node, frame, session, model)
    keys = frame.step.row_keys(node.attr("key"), ids)
    expected = frame.values[expected_lengths_of(node)] if expected_lengths_of(node) else None
    how = _sampling(node, model), weights, version, _refresh(node, frame), frame.admission, expected
    sampler = _Sampler(node, frame.step, session, model, None, count, *how)
    bounds = list(pairwise(accumulate(sizes, initial=0)))
    for number, rows, made, runs in sampler.parts(ids, encoded, keys, sizes):
        start, stop = bounds[number]
        # With one answer for each row that is asked, they are the same rows.
        row_ids = parents.known[start:stop] if kind.axis.key == parents.axis.key else rows
        columns = {
            "logprobs": made.logprobs.to(session.dtype),
            "finished": made.finished,
            **_versions(runs, kind),
        }
        session.notes.add(frame.step, "sampled", node.attr("key"), row_ids, runs)
        asked = _repeat(data[start:stop], answers), _repeat(prompts[start:stop], answers)
        table = TableData(*asked, made.sequences, columns, model.model.name)
        part = parents.take(np.arange(start, stop), None)
        yield number, part, _made(node, kind, part, row_ids, table, answers)


def sampled_tokens(node: Node, made: NodeOutput) -> int:
    """Return how many tokens a node sampled."""
    return int(made.values[node.name].sequences.scored.sum()) if work_of(node.op) == "generates" else 0


def longest_answers(node: Node, made: NodeOutput) -> tuple[int, ...]:
    """Return for each row that was asked the tokens of the longest of its answers; 0 where one was given up."""
    counts = made.values[node.name].sequences.counts().view(-1, rows_per_input(node))
    longest = counts.max(1).values * (counts.min(1).values > 0)
    return tuple(longest.tolist())


def _kind(node: Node) -> Table:
    """Return the type of the table that a node makes."""
    kind = node.outputs[0].type
    assert isinstance(kind, Table)
    return kind


def asked_rows(
    node: Node, frame: Frame, place: int = 1, *, asks: bool = True
) -> tuple[Rows, Sequence[Any], Sequence[Any]]:
    """Return the rows to answer, the data rows they came from, and the prompts. place: of the input that these are;
    asks: whether a row without a prompt is an error."""
    name = node.inputs[place]
    value, kind = frame.values[name], frame.types[name]
    if isinstance(kind, Table):
        rows = frame.rows[kind.axis.key]
        if value.sequences is not None:
            return rows, value.data, value.prompts
        if asks:
            return rows, value.data, data_column(value, "prompt", rows, node)
        return rows, value.data, tuple(row.get("prompt", "") for row in value.data)
    axis = kind.axis  # type: ignore[union-attr]
    assert axis
    rows = frame.rows[axis.key]
    return rows, tuple({"prompt": prompt} for prompt in value), tuple(value)


def data_column(table: TableData, name: str, rows: Rows | None, node: Node) -> tuple[Any, ...]:
    """Return a column of the data that a table's rows came from; the error names the row that lacks it."""
    for place, row in enumerate(table.data):
        if name not in row:
            others = any(name in other_row for other_row in table.data)
            raise missing_column(
                rows.who(place) if rows else f"row {place}", name, node.span, () if others else tuple(row)
            )
    return tuple(row[name] for row in table.data)


def _ids(parents: Rows, count: int) -> tuple[RowId, ...]:
    """Return the identities of `count` samples of each row."""
    if count == 1:
        return parents.known
    return tuple((*row, sample) for row in parents.known for sample in range(count))


def _encoded(node: Node, model: ModelState, prompts: Sequence[Any], parents: Rows) -> list[list[int]]:
    """Return the tokens of each prompt. Raises RunError for prompts that cannot be used."""
    encoded = []
    for place, prompt in enumerate(prompts):
        who = parents.who(place)
        if not isinstance(prompt, (str, list)):
            raise RunError(
                Diagnostic(
                    "E0732", f"the prompt of {who} is no text and no list of messages: {prompt!r:.60}", node.span
                )
            )
        try:
            encoded.append(model.engine.codec.encode_prompt(prompt))
        except (EngineError, TypeError, KeyError) as error:
            raise engine_failure(node, f"the prompt of {who} cannot be used", error) from None
        longest, most = model.longest, node.attr("max_tokens")
        if longest is not None and len(encoded[-1]) + most > longest:
            asked = f"the prompt of {who} has {count_phrase(len(encoded[-1]), 'token')}"
            asked = f"{asked}: with the {most:,} of `max_tokens` more it is"
            raise too_long(node, asked, len(encoded[-1]) + most, model, longest)
    return encoded


def _sampling(node: Node, model: ModelState, most: int | None = None) -> Sampling:
    """Return the sampling options of a node. most: tokens of an answer; None: as the node says."""
    stops: list[int] = []
    for text in node.attr("stop") or ():
        ids = model.engine.codec.encode_text(text)
        if len(ids) != 1:
            raise RunError(
                Diagnostic(
                    "E0733",
                    f'"{text}" is {len(ids)} tokens to `{model.model.name}`',
                    node.span,
                    "an answer can only stop at a single token",
                )
            )
        stops += ids
    longest = node.attr("max_tokens") if most is None else most
    try:
        return Sampling(
            longest,
            node.attr("temperature"),
            node.attr("top_p"),
            node.attr("top_k"),
            min(node.attr("min_tokens") or 0, longest),
            tuple(stops),
            node.attr("first") or 0,
        )
    except EngineError as error:
        raise engine_failure(node, f"`{model.model.name}` cannot generate", error) from None


def _weights(node: Node, frame: Frame, session: Session, model: ModelState) -> tuple[State | None, int]:
    """Return the weights that generate, where they are not the present ones, and their version. In one process the last
    ones are always there when a step samples, which satisfies any bound of their age."""
    version = _newest(node, frame, session, model) if frame.version is None else frame.version
    return model.past.get(version) if oldest(node) else None, version


def _newest(node: Node, frame: Frame, session: Session, model: ModelState) -> int:
    """Return the last version that a node may sample with."""
    return session.versions.at(model.model.name, frame.step, 1 + node.attr("lag", 0))


def _refresh(node: Node, frame: Frame) -> WeightRefresh | None:
    """Return where newer weights come from while a node samples, no more often than the program lets them."""
    return _RefreshAtTurns(frame.refresh) if frame.refresh and node.attr("span") == "turn" else frame.refresh


class _RefreshAtTurns:
    """Newer weights that come before the first token that is asked for with it, and before no other one: a turn is of
    one version."""

    def __init__(self, inner: WeightRefresh) -> None:
        self._inner, self._begun = inner, False

    @property
    def version(self) -> int:
        return self._inner.version

    @property
    def waits(self) -> bool:
        begun, self._begun = self._begun, True
        return not begun and self._inner.waits

    def take(self) -> int:
        return self._inner.take()


def _runs(made: Generation, version: int) -> list[Runs]:
    """Return for each row the versions that made its tokens; `version`: where there were no others."""
    counts = made.sequences.counts().tolist()
    if made.versions is None:
        return [((version, tokens),) for tokens in counts]
    runs: list[Runs] = []
    for part in made.versions.split(counts):
        versions, tokens = torch.unique_consecutive(part, return_counts=True)
        runs.append(tuple(zip(versions.tolist(), tokens.tolist(), strict=True)) or ((version, 0),))
    return runs


def _versions(runs: Sequence[Runs], kind: Table) -> dict[str, Tensor]:
    """Return the version of each row, int64 [rows], whose tokens are all of one; where they may be of several, that of
    each token, int64 [total scored], and the oldest of each row."""
    oldest = torch.tensor([row_runs[0][0] for row_runs in runs], dtype=torch.long)
    if not kind.spans:
        return {"version": oldest}
    listed = [run for row_runs in runs for run in row_runs]
    versions, tokens = (torch.tensor([run[part] for run in listed], dtype=torch.long) for part in (0, 1))
    return {"version": versions.repeat_interleave(tokens), OLDEST: oldest}


@dataclass(frozen=True)
class _Sampler:
    """How rows are sampled, by the recording that is replayed or else by the engine, and which of them are kept."""

    node: Node
    step: Step
    session: Session
    model: ModelState
    turn: int | None
    count: int
    """Responses to each list of tokens."""
    sampling: Sampling
    weights: State | None
    version: int
    """The version of the weights that the engine samples with."""
    refresh: WeightRefresh | None
    """Where newer weights come from meanwhile."""
    admission: Admission | None = None
    """How the rows come among those of other work."""
    expected: Sequence[float] | None = None
    """For each row that is asked the tokens that its answers are expected to have."""

    def parts(
        self, ids: tuple[RowId, ...], encoded: list[list[int]], keys: np.ndarray, sizes: Sequence[int]
    ) -> Iterator[tuple[int, tuple[RowId, ...], Generation, list[Runs]]]:
        """Yield the responses to the first `sizes[0]` lists, to the next `sizes[1]`, and so on, each part when it is
        done: its number, the rows that they are, and the versions that made them."""
        starts = list(accumulate(sizes, initial=0))
        try:
            for number, kept, made, runs in self._kept(ids, encoded, keys, sizes):
                places = [starts[number] * self.count + place for place in kept.tolist()]
                rows = tuple(ids[place] for place in places)
                if self.session.recorder and self.model.engine.speaks:
                    asked = [encoded[place // self.count] for place in places]
                    self.session.recorder.write(self.node, self.step, self.turn, rows, asked, made, runs)
                yield number, rows, made, runs
        except EngineError as error:
            raise engine_failure(self.node, f"`{self.model.model.name}` cannot generate", error) from None

    def _kept(
        self, ids: tuple[RowId, ...], encoded: list[list[int]], keys: np.ndarray, sizes: Sequence[int]
    ) -> Iterator[tuple[int, Tensor, Generation, list[Runs]]]:
        """Yield of each part its number, which responses are kept, int64, and these."""
        if self.session.replay:
            assert len(sizes) == 1, "a recording is there at once"
            yield 0, *self._replayed(self.session.replay, ids, encoded)
            return
        engine, asked = self.model.engine, Sequences.from_lists(encoded)
        # Only an engine that rereads knows `refresh`.
        engine_options: dict[str, Any] = {} if self.refresh is None else {"refresh": self.refresh}
        # Only one that admits knows `admission`.
        engine_options |= {} if self.admission is None else {"admission": self.admission}
        engine_options |= {} if self.expected is None else {"expected": self.expected}
        if len(sizes) == 1 and not (self.admission and self.admission.leaves):
            parts = iter([(0, engine.generate(asked, self.count, self.sampling, keys, self.weights, **engine_options))])
        else:
            parts = cast(Streams, engine).parts(asked, self.count, self.sampling, keys, sizes, **engine_options)
        for number, made in parts:
            all_wanted = self.admission is None or self.admission.limit is None
            kept = select_first(made, self.count, self.sampling, all_wanted)
            made = taken(made, kept)
            yield number, kept, made, _runs(made, self.version if self.refresh is None else self.refresh.version)

    def _replayed(
        self, replay: Replay, ids: tuple[RowId, ...], encoded: list[list[int]]
    ) -> tuple[Tensor, Generation, list[Runs]]:
        """Return which responses are kept, and these. Of samples that end first the recording has no others."""
        step, kept = self.step.number, torch.arange(len(ids))
        if self.sampling.first:
            recorded = torch.tensor([replay.has(self.node, step, self.turn, row) for row in ids])
            if bool((recorded.view(-1, self.count).sum(1) == self.sampling.first).all()):
                kept = recorded.nonzero()[:, 0]
        places = kept.tolist()
        rows, asked = [ids[place] for place in places], [encoded[place // self.count] for place in places]
        made, runs = replay.read(self.node, step, self.turn, rows, asked)
        if len(rows) < len(ids) or not self.sampling.first:
            return kept, made, runs
        chosen = select_first(made, self.count, self.sampling)
        return chosen, taken(made, chosen), [runs[place] for place in chosen.tolist()]


def _repeat(items: Sequence[Any], count: int) -> tuple[Any, ...]:
    return tuple(item for item in items for _ in range(count))


def _made(
    node: Node,
    kind: Table,
    parents: Rows,
    ids: tuple[RowId, ...],
    table: TableData,
    count: int,
    turns: np.ndarray | None = None,
) -> NodeOutput:
    """Return the table, and the rows of the axes that it brings."""
    rows: list[Rows] = []
    if kind.axis.key != parents.axis.key:
        parent = np.repeat(np.arange(parents.size), count)
        rows.append(Rows(kind.axis, len(ids), parent, ids))
    assert kind.token and table.sequences is not None
    rows.append(inner_rows(kind.token, table.sequences.counts().numpy()))
    if kind.turn and turns is not None:
        rows.append(inner_rows(kind.turn, turns))
    return NodeOutput({node.outputs[0].name: table}, rows)


def inner_rows(axis: Axis, counts: np.ndarray) -> Rows:
    """Return rows of an inner axis, from how many there are in each row, int64."""
    return Rows(axis, int(counts.sum()), np.repeat(np.arange(counts.shape[0]), counts))


def interact(node: Node, frame: Frame, session: Session) -> NodeOutput:
    """Play `n` episodes for each row: the model acts, the environment answers, tokens in are tokens out.

    An episode is its prompt, the first observation, an action, an observation, ... Only actions carry loss. It ends
    when the environment says so, after `max_turns` actions or with `max_tokens` tokens after the prompt.
    """
    model = session.models[frame.values[node.inputs[0]]]
    if frame.admission is not None:
        # Each turn submits rows of its own.
        frame.admission.more = True
    parents, data, prompts = asked_rows(node, frame, asks=False)
    kind, count = _kind(node), node.attr("n")
    ids = _ids(parents, count)
    weights, version = _weights(node, frame, session, model)
    started = _encoded(node, model, prompts, parents)
    rows, asked = _repeat(data, count), _repeat(prompts, count)
    environment = session.environments[node.attr("env")]
    episodes = [_Episode(list(started[place // count])) for place in range(len(ids))]
    games = [environment(row_label(row)) for row in ids]
    try:
        first = environment.together([partial(game.reset, row) for game, row in zip(games, rows, strict=True)])
        for text, episode in zip(first, episodes, strict=True):
            episode.observe(model, text)
        for turn in range(node.attr("max_turns")):
            open_ = [place for place, episode in enumerate(episodes) if episode.room(node.attr("max_tokens")) > 0]
            if not open_:
                break
            _turn(node, frame, session, model, weights, version, ids, episodes, environment, games, open_, turn)
    finally:
        for game in games:
            game.close()
    # Where there was no room for an action nothing was sampled, and nothing recorded.
    runs = [merge_runs(e.versions) or ((_newest(node, frame, session, model), 0),) for e in episodes]
    session.notes.add(frame.step, "sampled", node.attr("key"), ids, runs)
    sequences = Sequences.from_lists([e.tokens for e in episodes], [e.scored for e in episodes])
    turns = np.array([len(e.rewards) for e in episodes], dtype=np.int64)
    owners = [row for row, e in zip(ids, episodes, strict=True) for _ in e.rewards]
    rewards = [r for e in episodes for r in e.rewards]
    columns = {
        "logprobs": torch.tensor([p for e in episodes for p in e.logprobs], dtype=session.dtype),
        "finished": torch.tensor([e.over for e in episodes], dtype=torch.bool),
        **_versions(runs, kind),
        "reward": finite_numbers(
            rewards, lambda place: f"a reward of {row_label(owners[place])}", node.span, session.dtype
        ),
        "turns": torch.from_numpy(turns),
    }
    table = TableData(rows, asked, sequences, columns, model.model.name)
    return _made(node, kind, parents, ids, table, count, turns)


class _Episode:
    """An episode as it grows."""

    def __init__(self, prompt: list[int]) -> None:
        self.tokens = prompt
        self.scored = [False] * len(prompt)
        self.prompt = len(prompt)
        self.logprobs: list[float] = []
        self.versions: list[tuple[int, int]] = []
        self.rewards: list[float] = []
        self.over = False

    def observe(self, model: ModelState, text: str) -> None:
        """Add an observation, which carries no loss."""
        if text:
            ids = model.engine.codec.encode_text(text)
            self.tokens += ids
            self.scored += [False] * len(ids)

    def act(self, ids: list[int], logprobs: list[float], versions: Runs) -> None:
        """Add an action, which carries loss."""
        self.tokens += ids
        self.scored += [True] * len(ids)
        self.logprobs += logprobs
        self.versions += versions

    def room(self, most: int) -> int:
        """Return how many tokens may still come; none when it is over."""
        return 0 if self.over else most - (len(self.tokens) - self.prompt)


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
    keys = frame.step.row_keys(node.attr("key"), ids, turn)
    by_room: dict[int, list[int]] = {}
    for place in open_:
        by_room.setdefault(episodes[place].room(most), []).append(place)
    for room, group in by_room.items():
        encoded = [episodes[place].tokens for place in group]
        rows, sampling = tuple(ids[place] for place in group), _sampling(node, model, room)
        how = sampling, weights, version, _refresh(node, frame), frame.admission
        sampler = _Sampler(node, frame.step, session, model, turn, 1, *how)
        [(_, _, made, runs)] = sampler.parts(rows, encoded, keys[group], [len(rows)])
        actions = made.sequences.scored_rows()
        logprobs = torch.split(made.logprobs, made.sequences.counts().tolist())
        decode = model.engine.codec.decode
        answers = environment.together(
            [partial(games[place].step, decode(action)) for place, action in zip(group, actions, strict=True)]
        )
        for place, action, chances, runs_of_row, answer in zip(group, actions, logprobs, runs, answers, strict=True):
            episodes[place].act(action, chances.tolist(), runs_of_row)
            observation, reward, over = answer
            episodes[place].rewards.append(reward)
            episodes[place].over = over
            if not over and turn + 1 < node.attr("max_turns"):
                # An observation that does not fit could not be answered: the episode ends with the action.
                room_left = episodes[place].room(most)
                if len(model.engine.codec.encode_text(observation)) < room_left:
                    episodes[place].observe(model, observation)
                else:
                    episodes[place].over = True
