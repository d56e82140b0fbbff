"""Makes tables of episodes that have been played; also of the parts of players and of all lines of an agent's, which
travel in columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.frame import Frame, NodeOutput
from rlgraph.backends.rows import RowId, TableData, row_label
from rlgraph.backends.weight_versions import Runs, merge_version_runs
from rlgraph.backends.worker.agent_episodes import PlayedEpisodes
from rlgraph.backends.worker.columns import finite_numbers
from rlgraph.backends.worker.growing_episode import GrowingEpisode
from rlgraph.backends.worker.sampling import rows_of_inner_axes, table_output, table_type, version_columns
from rlgraph.backends.worker.session import Session
from rlgraph.backends.worker.turn_sampling import runs_behind
from rlgraph.errors import Span
from rlgraph.ir.graph import Node
from rlgraph.ir.types import BRANCHES, SAID, TURN_TOKENS, Table, branches_of, player_column


@dataclass(frozen=True, slots=True)
class EpisodeRecord:
    """What became of an episode, or of a player's part of it."""

    asked: Any
    """What it begins with: messages, a text or tokens."""
    tokens: list[int]
    scored: list[bool]
    """Which of the tokens carry loss."""
    logprobs: list[float]
    """Of the tokens with loss."""
    versions: Runs
    """Which weights made these."""
    rewards: list[float]
    """Of each turn."""
    calls: list[int]
    """Calls of tools in each turn."""
    failed: list[int]
    """Those that are answered with an error."""
    action_tokens: list[int]
    """Tokens with loss of each turn."""
    observations: list[str]
    """What was said before each turn."""
    finished: bool
    said: Mapping[str, Any]
    """What functions are given of it."""
    routes: Tensor | None = None
    """The experts of its first tokens, as `Sequences.routes`, where they are kept."""
    branches: tuple[EpisodeRecord, ...] = ()
    """All lines of an agent's episode, where they are kept."""

    def from_turn(self, turn: int) -> EpisodeRecord:
        """Return it with the tokens, the rewards and all else that is learned from of the turns from this one on; it
        has all its tokens, and says all that was said."""
        if not turn:
            return self
        before = sum(self.action_tokens[:turn])
        places = [place for place, own in enumerate(self.scored) if own]
        scored = list(self.scored)
        for place in places[:before]:
            scored[place] = False
        return replace(
            self,
            scored=scored,
            logprobs=self.logprobs[before:],
            versions=runs_behind(self.versions, before) or ((self.versions[-1][0], 0),),
            rewards=self.rewards[turn:],
            calls=self.calls[turn:],
            failed=self.failed[turn:],
            action_tokens=self.action_tokens[turn:],
            observations=self.observations[turn:],
        )


def episode_records(episodes: Sequence[GrowingEpisode], asked: Sequence[Any], version: int) -> list[EpisodeRecord]:
    """Return what became of episodes. asked: what each begins with; version: of the weights where nothing was
    sampled."""
    return [
        EpisodeRecord(
            begin,
            episode.tokens,
            episode.scored,
            episode.logprobs,
            # Where there was no room for an action nothing was sampled, and nothing recorded.
            merge_version_runs(episode.versions) or ((version, 0),),
            episode.rewards,
            [len(calls) for calls in episode.calls],
            [sum(call.failed for call in calls) for calls in episode.calls],
            episode.action_tokens,
            episode.observations,
            episode.over,
            episode.function_arguments(),
            episode.routes,
        )
        for episode, begin in zip(episodes, asked, strict=True)
    ]


def episode_table(
    kind: Table,
    records: Sequence[EpisodeRecord],
    rows: Sequence[Mapping[str, Any]],
    ids: Sequence[RowId],
    session: Session,
    owner: str,
    span: Span,
) -> TableData:
    """Return the table of episodes. rows, ids: of each the row of the data, and its identity; owner: the model that
    sampled them. Raises RunError for a reward that is no finite number."""
    owners = [row for row, record in zip(ids, records, strict=True) for _ in record.rewards]
    rewards = [reward for record in records for reward in record.rewards]
    columns = {
        "logprobs": torch.tensor([p for record in records for p in record.logprobs], dtype=session.dtype),
        "finished": torch.tensor([record.finished for record in records], dtype=torch.bool),
        **version_columns([record.versions for record in records], kind),
        "reward": finite_numbers(rewards, lambda place: f"a reward of {row_label(owners[place])}", span, session.dtype),
        "turns": torch.tensor([len(record.rewards) for record in records], dtype=torch.long),
        "calls": torch.tensor([calls for record in records for calls in record.calls], dtype=torch.long),
        "failed": torch.tensor([failed for record in records for failed in record.failed], dtype=torch.long),
        TURN_TOKENS: torch.tensor([count for record in records for count in record.action_tokens], dtype=torch.long),
        "observation": [text for record in records for text in record.observations],
        SAID: [record.said for record in records],
    }
    if model := branches_of(kind):
        columns[f"{BRANCHES}{model}"] = [record.branches for record in records]
    sequences = Sequences.from_lists([record.tokens for record in records], [record.scored for record in records])
    sequences = replace(sequences, routes=_routes(records))
    return TableData(tuple(rows), tuple(record.asked for record in records), sequences, columns, owner)


def _routes(records: Sequence[EpisodeRecord]) -> Tensor | None:
    """Return the experts of all tokens of episodes, -1 where nothing is known; None where they are not kept."""
    known = next((record.routes for record in records if record.routes is not None), None)
    if known is None:
        return None
    parts = []
    for record in records:
        routes = known[:0] if record.routes is None else record.routes
        parts += [routes, known.new_full((len(record.tokens) - routes.shape[0], *known.shape[1:]), -1)]
    return torch.cat(parts)


def agent_records(played: PlayedEpisodes, name: str, version: int) -> list[EpisodeRecord]:
    """Return what became of an agent's episodes: what a model was asked in them, by the name by which it was asked.
    version: of its weights where nothing was sampled."""
    lines = [*played.last[name], *(line for several in played.all[name] for line in several)]
    made = episode_records([line.episode for line in lines], [line.asked for line in lines], version)
    cut = iter([record.from_turn(line.shared) for record, line in zip(made, lines, strict=True)])
    last = [next(cut) for _ in played.last[name]]
    return [
        replace(record, branches=tuple(next(cut) for _ in several))
        for record, several in zip(last, played.all[name], strict=True)
    ]


def run_branch(node: Node, frame: Frame, session: Session) -> NodeOutput:
    """Return the table of all lines of an agent's episodes, which lie in these."""
    table: TableData = frame.values[node.inputs[0]]
    kind, model = table_type(node), str(node.attr("model"))
    assert kind.axis.parent is not None
    episodes, several = frame.rows[kind.axis.parent.key], table.columns[f"{BRANCHES}{model}"]
    counts = np.array([len(records) for records in several], dtype=np.int64)
    rows = [row for row, count in zip(table.data, counts, strict=True) for _ in range(count)]
    ids = branch_ids(episodes.known_ids, several)
    made = episode_table(kind, [one for records in several for one in records], rows, ids, session, model, node.span)
    return table_output(node, episodes, ids, made, counts)


def branch_ids(episodes: Sequence[RowId], several: Sequence[Sequence[EpisodeRecord]]) -> tuple[RowId, ...]:
    """Return the identities of the lines of episodes: of each its episode, and its number there."""
    return tuple((*row, place) for row, of_row in zip(episodes, several, strict=True) for place in range(len(of_row)))


def run_player(node: Node, frame: Frame, session: Session) -> NodeOutput:
    """Return the table of what a player was told and has said in episodes of several."""
    table: TableData = frame.values[node.inputs[0]]
    kind, model = table_type(node), str(node.attr("model"))
    records = table.columns[player_column(str(node.attr("player")), model)]
    ids = frame.rows[kind.axis.key].known_ids
    made = episode_table(kind, records, table.data, ids, session, model, node.span)
    return NodeOutput({node.outputs[0].name: made}, rows_of_inner_axes(kind, made))
