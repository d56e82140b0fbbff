"""Makes tables of episodes that have been played; also of the parts of players, which travel in a column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.frame import Frame, NodeOutput
from rlgraph.backends.rows import RowId, TableData, row_label
from rlgraph.backends.weight_versions import Runs, merge_version_runs
from rlgraph.backends.worker.columns import finite_numbers
from rlgraph.backends.worker.growing_episode import GrowingEpisode
from rlgraph.backends.worker.sampling import rows_of_inner_axes, table_type, version_columns
from rlgraph.backends.worker.session import Session
from rlgraph.errors import Span
from rlgraph.ir.graph import Node
from rlgraph.ir.types import SAID, TURN_TOKENS, Table, player_column


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
    sequences = Sequences.from_lists([record.tokens for record in records], [record.scored for record in records])
    return TableData(tuple(rows), tuple(record.asked for record in records), sequences, columns, owner)


def run_player(node: Node, frame: Frame, session: Session) -> NodeOutput:
    """Return the table of what a player was told and has said in episodes of several."""
    table: TableData = frame.values[node.inputs[0]]
    kind, model = table_type(node), str(node.attr("model"))
    records = table.columns[player_column(str(node.attr("player")), model)]
    ids = frame.rows[kind.axis.key].known_ids
    made = episode_table(kind, records, table.data, ids, session, model, node.span)
    return NodeOutput({node.outputs[0].name: made}, rows_of_inner_axes(kind, made))
