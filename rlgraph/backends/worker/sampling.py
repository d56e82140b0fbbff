"""Samples answers to prompts, which become a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlgraph.backends.engines.likeliest import KeptTokens
from rlgraph.backends.engines.records import Generation, Sampling
from rlgraph.backends.frame import Frame, NodeOutput
from rlgraph.backends.rows import RowId, Rows, TableData
from rlgraph.backends.weight_versions import Runs
from rlgraph.backends.worker.sampler import Sampler, sampling_options, weight_refresh, weights_to_sample_with
from rlgraph.backends.worker.sampling_inputs import (
    encode_prompts,
    ended_rows,
    ids_of_samples,
    rows_to_answer,
    tokens_to_go_on_from,
)
from rlgraph.backends.worker.session import Session, SessionModel
from rlgraph.errors import Diagnostic, RunError
from rlgraph.ir.graph import Node
from rlgraph.ir.types import MIXED, OLDEST, SUPPORT, SUPPORT_SHARE, TURN_TOKENS, Axis, Table
from rlgraph.ops.nodes import expected_lengths_of, mixed_models, mixture_weights, model_work_of, rows_per_input


def run_generate(node: Node, frame: Frame, session: Session) -> NodeOutput:
    """Sample `n` answers for each row of a table or a text column, or those of them that end first."""
    size = rows_to_answer(node, frame, session)[0].size
    [(_, _, made)] = run_generate_in_parts(node, frame, session, [size])
    return made


def run_generate_in_parts(
    node: Node, frame: Frame, session: Session, sizes: Sequence[int]
) -> Iterator[tuple[int, Rows, NodeOutput]]:
    """Do `generate` for the first `sizes[0]` rows, for the next `sizes[1]`, and so on. Yields each part when it is
    done: its number, and the rows that were asked, counted in the part as everything in it is."""
    model = session.models[frame.values[node.inputs[0]]]
    parents, data, prompts = rows_to_answer(node, frame, session)
    kind = table_type(node)
    count, answers = node.attr("n"), rows_per_input(node)
    ids = ids_of_samples(parents, count)
    begun = tokens_to_go_on_from(node, frame, model, session)
    encoded = encode_prompts(node, model, prompts, parents, data) if begun is None else begun
    weights, version = weights_to_sample_with(node, frame, session, model)
    keys = frame.step.row_random_numbers(node.attr("key"), ids)
    expected = frame.values[expected_lengths_of(node)] if expected_lengths_of(node) else None
    how = sampling_options(node, model), weights, version, weight_refresh(node, frame), frame.admission, expected
    ended = () if begun is None else tuple(ended_rows(node, frame, session))
    mixture = _mixture(node, frame, session, model)
    sampler = Sampler(node, frame.step, session, model, None, count, *how, mixture, ended)
    bounds = list(pairwise(accumulate(sizes, initial=0)))
    for number, rows, made, runs in sampler.sample_parts(ids, encoded, keys, sizes):
        start, stop = bounds[number]
        # With one answer for each row that is asked, they are the same rows.
        row_ids = parents.known_ids[start:stop] if kind.axis.key == parents.axis.key else rows
        columns = {
            "logprobs": made.logprobs.to(session.dtype),
            "finished": made.finished,
            **version_columns(runs, kind),
            **_support_columns(made, sampler.sampling, session),
        }
        if mixture:
            columns[MIXED] = torch.ones(len(rows), dtype=torch.bool)
        session.notes.add_note(frame.step, "sampled", node.attr("key"), row_ids, runs)
        asked = repeat_items(data[start:stop], answers), repeat_items(prompts[start:stop], answers)
        table = TableData(*asked, made.sequences, columns, model.model.name)
        part = parents.take(np.arange(start, stop), None)
        yield number, part, table_output(node, part, row_ids, table, answers)


def _mixture(node: Node, frame: Frame, session: Session, model: SessionModel) -> list[tuple[Any, float]]:
    """Return the engines of a mixture, that of the node's own model first, and their weights; none where it is no
    mixture. Raises RunError where their tokenizers differ."""
    weights = mixture_weights(node)
    if not weights:
        return []
    others = [session.models[frame.values[name]] for name in mixed_models(node)]
    known = model.engine.codec.tokenizer.get_vocab()
    odd = next((other for other in others if other.engine.codec.tokenizer.get_vocab() != known), None)
    if odd is not None:
        message = f"`{odd.model.name}` and `{model.model.name}` split texts into other tokens: they have no mixture"
        hint = "take models of one family, with one tokenizer"
        raise RunError(Diagnostic("E0893", message, node.span, hint))
    return [(state.engine, weight) for state, weight in zip((model, *others), weights, strict=True)]


def sampled_token_count(node: Node, made: NodeOutput) -> int:
    """Return how many tokens a node sampled."""
    return int(made.values[node.name].sequences.scored.sum()) if model_work_of(node.op) == "generates" else 0


def longest_answer_lengths(node: Node, made: NodeOutput) -> tuple[int, ...]:
    """Return for each row that was asked the tokens of the longest of its answers; 0 where one was given up."""
    counts = made.values[node.name].sequences.scored_counts().view(-1, rows_per_input(node))
    longest = counts.max(1).values * (counts.min(1).values > 0)
    return tuple(longest.tolist())


def table_type(node: Node) -> Table:
    """Return the type of the table that a node makes."""
    kind = node.outputs[0].type
    assert isinstance(kind, Table)
    return kind


def version_columns(runs: Sequence[Runs], kind: Table) -> dict[str, Tensor]:
    """Return the version of each row, int64 [rows], whose tokens are all of one; where they may be of several, that of
    each token, int64 [total scored], and the oldest of each row."""
    oldest = torch.tensor([row_runs[0][0] for row_runs in runs], dtype=torch.long)
    if not kind.spans:
        return {"version": oldest}
    listed = [run for row_runs in runs for run in row_runs]
    versions, tokens = (torch.tensor([run[part] for run in listed], dtype=torch.long) for part in (0, 1))
    return {"version": versions.repeat_interleave(tokens), OLDEST: oldest}


def _support_columns(made: Generation, sampling: Sampling, session: Session) -> dict[str, Any]:
    """Return the tokens that each one was sampled from, and how probable they are together, where they are kept."""
    if not sampling.keeps_support:
        return {}
    support = (made.support or KeptTokens.nothing()).to(session.dtype)
    return {SUPPORT: support, SUPPORT_SHARE: support.shares()}


def repeat_items(items: Sequence[Any], count: int) -> tuple[Any, ...]:
    return tuple(item for item in items for _ in range(count))


def table_output(
    node: Node, parents: Rows, ids: tuple[RowId, ...], table: TableData, count: int | np.ndarray
) -> NodeOutput:
    """Return the table, and the rows of the axes that it brings. count: the rows in each row of the parents."""
    kind, rows = table_type(node), list[Rows]()
    if kind.axis.key != parents.axis.key:
        parent = np.repeat(np.arange(parents.size), count)
        rows.append(Rows(kind.axis, len(ids), parent, ids))
    return NodeOutput({node.outputs[0].name: table}, rows + rows_of_inner_axes(kind, table))


def rows_of_inner_axes(kind: Table, table: TableData) -> list[Rows]:
    """Return the turns of episodes, and the tokens of a table's rows."""
    assert kind.token and table.sequences is not None
    if kind.turn is None:
        return [rows_from_counts(kind.token, table.sequences.scored_counts().numpy())]
    turns, tokens = (table.columns[name].numpy() for name in ("turns", TURN_TOKENS))
    return [rows_from_counts(kind.turn, turns), rows_from_counts(kind.token, tokens)]


def rows_from_counts(axis: Axis, counts: np.ndarray) -> Rows:
    """Return rows of an inner axis, from how many there are in each row of the axis that it lies in, int64."""
    return Rows(axis, int(counts.sum()), np.repeat(np.arange(counts.shape[0]), counts))
