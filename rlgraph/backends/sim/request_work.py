"""This module describes requests for a cost model and for a reader of a timeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from rlgraph.backends.distributed.sharding import rows_by_replica
from rlgraph.backends.distributed.transport import NodeRequest
from rlgraph.backends.frame import Frame, NodeOutput
from rlgraph.backends.sim.fake_rows import FakeRows
from rlgraph.backends.sim.work_log import WorkLog
from rlgraph.ir.graph import Node
from rlgraph.ops.nodes import NODES, model_of, rows_per_input, tables_read
from rlgraph.passes.cost.batch import Batch, total_rows
from rlgraph.passes.cost.cost import Cost
from rlgraph.passes.cost.fused_pipelines import FusedPipeline


def shard_fake_rows(rows: FakeRows, order: NodeRequest) -> list[FakeRows]:
    """Return the rows of each replica of a group that samples them: those of a prompt stay together."""
    copies, samples = order.replica_count or order.group.mesh.axis_size("dp"), rows_per_input(order.node)
    shards = rows_by_replica(order, rows.row_count // samples, copies)
    return [rows.pick((shard[:, None] * samples + np.arange(samples)).reshape(-1)) for shard in shards]


def work_title(node: Node) -> str:
    """Return the name of a work in a timeline: training by its model, all else by what it makes."""
    if not NODES[node.op].trains:
        return node.name
    model = model_of(node).split("@")[0]
    return f"train {model}" if node.regions else f"update {model}"


def model_used(node: Node, frame: Frame) -> str | None:
    """Return the model that a node works with."""
    if not NODES[node.op].uses_model:
        return None
    model: str = frame.values[model_of(node)]
    return model


def batches_worked_on(node: Node, frame: Frame, made: NodeOutput) -> list[Batch]:
    """Return the rows that are sampled, or read; of an update, the tables that its calls read."""
    if NODES[node.op].generates:
        return [made.values[node.name].sampling_cost_batch(rows_per_input(node), node.attr("n"))]
    return [frame.values[table].to_cost_batch() for table in tables_read(node)]


def row_and_token_counts(node: Node, frame: Frame, made: NodeOutput) -> tuple[int, int]:
    """Return the rows that a node worked on, and the tokens that it sampled."""
    values = (*made.values.values(), *(frame.values.get(name) for name in node.inputs))
    rows = max((value.row_count for value in values if isinstance(value, FakeRows)), default=0)
    tokens = int(made.values[node.name].response.sum()) if NODES[node.op].generates else 0
    return rows, tokens


def deferred_stage_work(
    order: NodeRequest, batches: Sequence[Batch], log: WorkLog
) -> Callable[[], FusedPipeline] | None:
    """Return what computes the work of the stages of a training that has several; no other node works stage by
    stage."""
    node, model = order.node, model_used(order.node, order.frame)
    trained = node.regions and NODES[node.op].trains and total_rows(batches)
    if not trained or order.group.mesh.axis_size("pp") == 1 or model is None:
        return None
    return partial(log.predictor.fused_pipeline, [(model, batches)])


def cost_parts(cost: Cost) -> dict[str, float]:
    """Return the parts of a cost that are not 0, in seconds."""
    named = ("compute", "memory", "communication", "bubble", "overhead", "environment")
    return {name: getattr(cost, name) for name in named if getattr(cost, name)}
