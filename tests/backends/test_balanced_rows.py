"""Rows that are trained on, or read, are dealt out by their tokens. Nothing is run: a tenth of a second beside compiling."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import rlgraph
from rlgraph.api.compiled import Compiled
from rlgraph.backends.distributed.sharding import RowShards, shard_rows
from rlgraph.backends.distributed.transport import NodeRequest
from rlgraph.backends.frame import Frame
from rlgraph.backends.ray.row_refs import PieceRef, RowRefs
from rlgraph.backends.rows import Rows
from rlgraph.backends.step import Step
from rlgraph.ir.graph import program_axes
from rlgraph.ops.nodes import NODES

PROGRAM = """algorithm dealt

model actor = causal_lm(random("llama", seed=0, hidden_size=8, tokenizer=chars("ab")))
model ref = frozen(actor)
data prompts = jsonl("{rows}", batch=4)
func reward = python("rlgraph.rewards:exact_match", over=row)

step:
    rollout = actor.generate(prompts, n=2, max_tokens=8)
    score = reward(rollout)
    adv = score - mean(score, by=prompts)
    seen = ref.logprobs(rollout)
    train actor(lr=1e-2):
        minimize -mean(actor.logprobs(rollout) * adv) + 0.01 * mean(k3(actor.logprobs(rollout), seen))
    report reward = mean(score)
"""
SCHEDULE = """schedule dealt

pool all = 2 devices

place actor, ref on all(engine=transformers, dp=2)
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    rows = tmp_path_factory.mktemp("dealt") / "rows.jsonl"
    rows.write_text('{"prompt": "a", "answer": "b"}\n' * 4)
    return rlgraph.compile(PROGRAM.format(rows=rows), schedule=SCHEDULE)


def dealt(made: Compiled, op: str, tokens: list[int] | None) -> RowShards:
    """Who gets which of eight rows of four prompts, so many tokens each, which two processes have sampled."""
    [node] = [
        node
        for node in made.graph.nodes
        if (NODES[node.op].trains and node.regions if op == "train" else node.op == op)
    ]
    axes, types = program_axes(made.program), made.graph.value_types()
    counts = [None, None] if tokens is None else np.array(tokens, dtype=np.int32).reshape(2, 4)
    pieces = [PieceRef((0, rank, "rollout"), ("all", rank), 4, counts[rank]) for rank in (0, 1)]
    halves = RowRefs.from_whole_piece(pieces[0]), RowRefs.from_whole_piece(pieces[1])
    both = halves[0].concat(halves[1:])
    frame = Frame(types, Step(0, "step"), values_are_remote=True)
    frame.add_rows(Rows(axes["prompts"], 4, None, None))
    frame.add_rows(Rows(axes["rollout"], 8, np.repeat(np.arange(4), 2), None))
    frame.values = dict.fromkeys(node.inputs, both) | {"rollout": both}
    group = made.plan.owner("actor" if op == "train" else "ref")
    return shard_rows(NodeRequest(node, frame, group), axes)


@pytest.mark.parametrize("op", ["train", "logprobs"])
def test_a_replica_whose_rows_are_long_has_fewer(made: Compiled, op: str) -> None:
    """The first process has sampled both long ones."""
    tokens = [30, 30, 10, 10, 10, 10, 10, 10]
    shares = [places["rollout"].tolist() for places in dealt(made, op, tokens).places.values()]
    assert sorted(sum(shares, [])) == list(range(8)) and all(a < b for share in shares for a, b in pairwise(share))
    assert [sum(tokens[row] for row in share) for share in shares] == [60, 60]


@pytest.mark.parametrize("tokens", [None, [30, 10, 10, 10, 10, 30, 10, 10]])
def test_rows_stay_where_they_are_if_that_is_as_even_or_nobody_knows(made: Compiled, tokens: list[int] | None) -> None:
    shares = [places["rollout"].tolist() for places in dealt(made, "train", tokens).places.values()]
    assert shares == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_rows_know_their_tokens_however_they_are_taken() -> None:
    first = RowRefs.from_whole_piece(PieceRef((0, 0, "a"), ("g", 0), 3, np.array([5, 6, 7], dtype=np.int32)))
    second = RowRefs.from_whole_piece(PieceRef((1, 0, "a"), ("g", 0), 2, np.array([8, 9], dtype=np.int32)))
    both = first.concat([second]).pick(np.array([4, 0, 2]))
    assert both.token_counts is not None and both.token_counts.tolist() == [9, 5, 7]
    unknown = RowRefs.from_whole_piece(PieceRef((2, 0, "a"), ("g", 0), 1))
    assert first.concat([unknown]).token_counts is None
