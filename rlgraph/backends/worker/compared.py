"""Compares log-probabilities that a model gives sampled rows with those that its sampler gave them."""

from __future__ import annotations

from torch import Tensor

from rlgraph.backends.frame import Frame
from rlgraph.backends.mismatch import Mismatch
from rlgraph.backends.rows import TableData
from rlgraph.backends.worker.session import Session
from rlgraph.ir.graph import Node
from rlgraph.ir.types import MIXED, Table
from rlgraph.ops.nodes import attribute_value


def weights_begin_step(node: Node, session: Session) -> bool:
    """Whether a node outside of `train` reads its model as the step before has left it."""
    return node.inputs[0] in session.first_versions


def compare_with_sampler(node: Node, frame: Frame, session: Session, logprobs: Tensor) -> tuple[Mismatch, ...]:
    """Return how far log-probabilities, float [tokens], are from the sampler's of the same tokens; nothing where no
    token is of the same model, at the weights with which the step began and at the same temperature. The caller knows
    that the model has these weights."""
    if node.op != "logprobs":
        return ()
    table, kind, model = frame.values[node.inputs[1]], frame.types[node.inputs[1]], frame.values[node.inputs[0]]
    assert isinstance(table, TableData) and isinstance(kind, Table)
    # Greedy decoding has its log-probabilities at temperature 1.
    sampled_at, asked_at = kind.temperature or 1, attribute_value(node, "temperature") or 1
    if not kind.sampled or MIXED in table.columns or table.owner != model or sampled_at != asked_at:
        return ()
    known = table.columns["logprobs"]
    if known.shape != logprobs.shape:
        # The model has another tokenizer.
        return ()
    versions = table.columns["version"]
    if not kind.spans:
        assert table.sequences is not None
        versions = versions.repeat_interleave(table.sequences.scored_counts())
    same = versions == session.versions.version_at(model, frame.step)
    gap = (logprobs.detach().double() - known.double())[same]
    if not gap.numel():
        return ()
    return (Mismatch(model, gap.numel(), float((gap.expm1() - gap).sum()), float(gap.abs().max())),)
