"""This module says how long rows take that are read again with new weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rlgraph.backends.distributed.transport import NodeRequest
from rlgraph.backends.sim.sampling_rows import SamplingRequest
from rlgraph.backends.sim.work_log import WorkLog
from rlgraph.ops.nodes import model_of, rows_per_input
from rlgraph.passes.cost.batch import Batch
from rlgraph.passes.cost.lengths import Lengths


def rereading_seconds(log: WorkLog, order: NodeRequest, tokens: Sequence[float]) -> float:
    """Return the seconds in which rows of so many tokens are read."""
    if not tokens:
        return 0.0
    batch = Batch(float(len(tokens)), Lengths.from_lengths(tokens), Lengths.from_lengths([1]))
    model = order.frame.values[model_of(order.node)]
    return log.predictor.work_cost(model, order.node.op, [batch], order.replica_count).seconds


def reread_unfinished_seconds(log: WorkLog, sampling: SamplingRequest) -> float:
    """Return the seconds in which a group reads its rows that have not ended: all have as many tokens."""
    order, rows, past = sampling.order, sampling.rows, log.clock.now - sampling.began
    node, model = order.node, order.frame.values[model_of(order.node)]
    batch = rows.sampling_cost_batch(rows_per_input(node), node.attr("n"))

    def seconds_to_reach(tokens: int) -> float:
        cut = replace(batch, response=batch.response.capped(tokens))
        return log.predictor.work_cost(model, node.op, [cut]).seconds

    least, most = 0, int(rows.response.max(initial=0))
    while least + 1 < most:
        middle = (least + most) // 2
        least, most = (middle, most) if seconds_to_reach(middle) <= past else (least, middle)
    left = rows.response > least
    return rereading_seconds(log, order, (rows.prompt[left] + least).tolist())
