"""`train`: one optimizer step, its gradient summed over micro-batches."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from rlgraph.backends.executor import Made
from rlgraph.backends.frame import Frame, Places
from rlgraph.backends.loops import assembled, made_of, run_region
from rlgraph.backends.process.nodes import options, sequences_for, work
from rlgraph.backends.process.session import Session, engine_failure
from rlgraph.engines.base import Call, EngineError, Micro, TrainOptions
from rlgraph.ir.graph import Graph, Node, Record
from rlgraph.ir.types import Table
from rlgraph.ops import NODES, table_of
from rlgraph.ops.optimizers import optimizer_of, settings_of


def train(node: Node, frame: Frame, session: Session, *, idle: bool = False) -> Made:
    """The body for each micro-batch of the step's unit; the model with its gradient's step taken.

    idle: other copies of the model have all the rows; this one only takes the same step.
    """
    region, axis, model = node.region, node.attr("micro"), frame.values[node.inputs[0]]
    state = session.models[model]
    parts: dict[int, tuple[Frame, Places]] = {}
    lock = threading.Lock()
    blocks = [] if idle else _blocks(node, frame, session) if axis else [None]

    def micro(block: int) -> Micro:
        body, places = _part(frame, axis, blocks[block], node.captured)
        asked = [inner for inner in region.nodes if NODES[inner.op].scores]

        def loss(answers: Sequence[Tensor]) -> Tensor:
            """The micro-batch's part of the loss."""
            for inner, answer in zip(asked, answers, strict=True):
                body.values[inner.name] = answer.to("cpu", session.dtype)
            [value] = run_region(partial(_straight, session), region, body, [model])
            body.values = {name: _detached(body.values[name]) for name, _ in node.exported}
            with lock:
                parts[block] = body, places
            assert isinstance(value, Tensor)
            return value

        body.values[region.inputs[0].name] = model
        return Micro(tuple(_call(inner, body, session) for inner in asked), loss)

    session.changing(model, frame.step)
    try:
        state.engine.train_step(range(len(blocks)), micro, _options(node), state.updates)
    except EngineError as error:
        raise engine_failure(node, f"training `{state.model.name}` failed", error) from None
    state.updates += 1
    if not parts:
        # A rank without the answers has nothing to export either.
        return Made({node.outputs[0].name: model})
    ordered = [parts[block] for block in range(len(blocks))]
    return made_of(node, frame, assembled(node, frame, ordered, axis or ""), [model], {})


def _call(node: Node, body: Frame, session: Session) -> Call:
    _, sequences = sequences_for(node, body, session)
    return Call(node.op, sequences, **options(node))  # type: ignore[arg-type]


def _part(frame: Frame, axis: str | None, places: np.ndarray | None, names: tuple[str, ...]) -> tuple[Frame, Places]:
    if axis is None or places is None:
        return frame.child(), {}
    return frame.slice(axis, places, names)


def _straight(session: Session, region: Graph, frame: Frame) -> None:
    """A micro-batch is one block: its nodes run one after the other; the model has answered already."""
    for inner in region.nodes:
        if NODES[inner.op].scores:
            continue
        made = work(inner, frame, session)
        for rows in made.rows:
            frame.add_rows(rows)
        frame.values.update(made.values)


def _detached(value: object) -> object:
    return value.detach() if isinstance(value, Tensor) else value


def _blocks(node: Node, frame: Frame, session: Session) -> list[np.ndarray]:
    """Rows of the unit for each micro-batch, int64, by the padded tokens of what the model reads for them."""
    axis = node.attr("micro")
    lengths = torch.zeros(frame.size(axis), dtype=torch.long)
    for inner in node.region.nodes:
        if not NODES[inner.op].scores or table_of(inner) not in frame.values:
            continue
        kind, table = frame.types[inner.inputs[1]], frame.values[inner.inputs[1]]
        assert isinstance(kind, Table)
        lengths.index_add_(0, torch.from_numpy(frame.index(kind.axis.key, axis)), table.sequences.lengths)
    settings = session.settings
    if settings.micro_rows:
        rows = np.arange(frame.size(axis))
        return np.split(rows, range(settings.micro_rows, len(rows), settings.micro_rows))
    state = session.models[frame.values[node.inputs[0]]]
    blocks = state.engine.plan_blocks(lengths, settings.token_budget)
    # Ascending within a block: rows of one parent stay together.
    return [np.sort(block.numpy()) for block in blocks] or [np.arange(0)]


def _options(node: Node) -> TrainOptions:
    rate = node.attr("lr")
    common: dict[str, Any] = {
        "optimizer": optimizer_of(node),
        "settings": settings_of(node),
        "clip_norm": node.attr("clip_norm"),
    }
    if not isinstance(rate, Record):
        return TrainOptions(lr=float(rate), **common)
    first, *_ = rate.plain()[0]
    return TrainOptions(
        lr=float(first),
        schedule=cast(Any, rate.name),
        warmup_steps=rate.option("warmup", 0),
        total_steps=rate.option("steps"),
        final_lr=rate.option("final", 0.0),
        **common,
    )
