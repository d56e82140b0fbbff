"""This module does `train`, one optimizer step with its gradient summed over micro-batches, and `accumulate` and
`apply`, which do the same in parts."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from rlgraph.backends.engines.errors import EngineError, NonFiniteGradient, NoRows, PartialUpdate
from rlgraph.backends.engines.records import MicroBatch, ModelCall, TrainOptions
from rlgraph.backends.engines.roles import AccumulatesGradients, FusesPipelines, PipelineNeighbours
from rlgraph.backends.exchange.link import LinkError
from rlgraph.backends.frame import Frame, NodeOutput, Places
from rlgraph.backends.mismatch import Mismatch
from rlgraph.backends.regions import assemble_exports, region_output, run_region
from rlgraph.backends.rows import row_label
from rlgraph.backends.step import Step
from rlgraph.backends.worker.compared import compare_with_sampler
from rlgraph.backends.worker.nodes import engine_and_sequences, model_call_options, run_node
from rlgraph.backends.worker.session import Session, engine_run_error
from rlgraph.errors import quoted_list
from rlgraph.ir.graph import ConstructorCall, Graph, Node
from rlgraph.ir.types import Table
from rlgraph.ops import NODES, table_of
from rlgraph.ops.optimizers import optimizer_of, optimizer_settings_of


def run_train(node: Node, frame: Frame, session: Session, *, idle: bool = False) -> NodeOutput:
    """Run the body for each micro-batch of the step's unit, and take the step of its gradient.

    idle: other replicas of the model have all the rows; this one only takes the same step.
    """
    gathered, model = _NodeMicroBatches(node, frame, session, node.attr("micro"), idle), frame.values[node.inputs[0]]
    state = session.models[model]
    state.odd.clear()
    with _updating(node, model, frame, session):
        options = _options(node, frame)
        state.engine.train_step(gathered.micro_batch_numbers, gathered.micro_batch, options, state.updates)
    made = gathered.node_output(model)
    return replace(made, metrics={**made.metrics, **_skipped_metrics(model, frame, session)})


def run_fused_trainings(
    nodes: Sequence[Node],
    frames: Sequence[Frame],
    session: Session,
    idle: Sequence[bool],
    beside: PipelineNeighbours | None = None,
) -> list[NodeOutput]:
    """Do `train` of models that share the stages of a pipeline: the micro-batches of all of them, then the step of
    each. beside: other processes, with other models of the pipeline."""
    bodies = [
        _NodeMicroBatches(node, frame, session, node.attr("micro"), alone)
        for node, frame, alone in zip(nodes, frames, idle, strict=True)
    ]
    states = [session.models[body.model] for body in bodies]
    try:
        for state in states:
            cast(FusesPipelines, state.engine).clear_gradients()
            state.odd.clear()
        parts = [
            (state.engine, body.micro_batch_numbers, body.micro_batch)
            for state, body in zip(states, bodies, strict=True)
        ]
        cast(FusesPipelines, states[0].engine).add_gradients_jointly(parts, beside)
    except LinkError:
        # Another process is to blame.
        raise
    except EngineError as error:
        names = quoted_list([state.model.name for state in states], "and")
        raise engine_run_error(nodes[0], f"training {names} in one pipeline failed", error) from None
    outputs = []
    for node, frame, state, body in zip(nodes, frames, states, bodies, strict=True):
        with _updating(node, body.model, frame, session):
            cast(FusesPipelines, state.engine).apply_gradients(_options(node, frame), state.updates)
        output = body.node_output(body.model)
        outputs.append(replace(output, metrics={**output.metrics, **_skipped_metrics(body.model, frame, session)}))
    return outputs


def run_accumulate_gradients(node: Node, frame: Frame, session: Session, *, idle: bool = False) -> NodeOutput:
    """Run the body for each micro-batch of some rows of the step, and add its gradient to that of the rows before.

    idle: other replicas of the model have all these rows.
    """
    axis, model = node.attr("axis"), frame.values[node.inputs[0]]
    gathered, state = _NodeMicroBatches(node, frame, session, axis, idle), session.models[model]
    engine = cast(AccumulatesGradients, state.engine)
    try:
        if state.gathers != frame.step:
            # The first gradients of a step: a step that failed may have left some.
            engine.clear_gradients()
            state.odd.clear()
            state.gathers = frame.step
        if not idle:
            engine.add_gradients(gathered.micro_batch_numbers, gathered.micro_batch)
    except EngineError as error:
        raise engine_run_error(node, f"training `{state.model.name}` failed", error) from None
    return gathered.node_output(torch.ones(0 if idle else frame.row_count(axis), dtype=torch.long))


def run_apply_gradients(node: Node, frame: Frame, session: Session, *, idle: bool = False) -> NodeOutput:
    """Take the step of the gradients that were accumulated, times a number."""
    model, scale = (frame.values[name] for name in node.inputs)
    state = session.models[model]
    state.gathers = None
    with _updating(node, model, frame, session):
        cast(AccumulatesGradients, state.engine).apply_gradients(_options(node, frame), state.updates, float(scale))
    return NodeOutput({node.outputs[0].name: model}, metrics=_skipped_metrics(model, frame, session))


TRAINING: Mapping[str, Callable[..., NodeOutput]] = {
    "train": run_train,
    "accumulate": run_accumulate_gradients,
    "apply": run_apply_gradients,
}
"""The functions of operations that train; each takes `idle`, beside what all work takes."""


_LOSS_HINT = "keep what it divides by, or takes a logarithm of, above 0: `x / (std(x) + 1e-6)`, `log(max(x, 1e-6))`"
_GRADIENT_HINT = "lower `lr`, or bound every update with `clip_norm=1.0`; `--on-nonfinite skip` leaves such updates out"


@contextmanager
def _updating(node: Node, model: str, frame: Frame, session: Session) -> Iterator[None]:
    """Guard an update of a model. One that is left out does not count as an update, and makes a version all the same:
    which step makes which version is known before."""
    state = session.models[model]
    session.prepare_weight_change(model, frame.step)
    try:
        yield
    except NoRows:
        # All ranks know that no rank has rows.
        state.empty = _one_more(state.empty, frame)
        return
    except NonFiniteGradient as error:
        # All ranks see the same norm, and leave out the same update.
        if not session.settings.skips:
            rows = f", nor is the loss of {_first_few(state.odd)}" if state.odd else ""
            refused = NonFiniteGradient(f"{error}{rows}", _LOSS_HINT if state.odd else _GRADIENT_HINT)
            raise engine_run_error(node, f"training `{state.model.name}` failed", refused) from None
        state.skipped = _one_more(state.skipped, frame)
        return
    except EngineError as error:
        state.torn = isinstance(error, PartialUpdate)
        raise engine_run_error(node, f"training `{state.model.name}` failed", error) from None
    state.updates += 1


def _one_more(left_out: tuple[Step | None, int], frame: Frame) -> tuple[Step, int]:
    """Return a step and how many of its updates were left out, with one more."""
    return frame.step, _so_far(left_out, frame) + 1


def _so_far(left_out: tuple[Step | None, int], frame: Frame) -> int:
    """Return how many updates of this step were left out; a step that is done again begins at 0."""
    step, count = left_out
    return count if step == frame.step else 0


def _skipped_metrics(model: str, frame: Frame, session: Session) -> dict[str, float]:
    """Return the metrics on updates that were left out: how many so far in this step. Those without rows are only
    reported where there are any: most programs never have one, and a column of zeros would say nothing."""
    state, metrics = session.models[model], dict[str, float]()
    if session.settings.skips:
        metrics[f"{model}.skipped"] = float(_so_far(state.skipped, frame))
    if count := _so_far(state.empty, frame):
        metrics[f"{model}.skipped_empty"] = float(count)
    return metrics


def _first_few(rows: Sequence[str]) -> str:
    """Return the names of the first rows, and how many more there are."""
    names = list(dict.fromkeys(rows))
    more = f" and {len(names) - 3} more rows" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


class _NodeMicroBatches:
    """The micro-batches of a body, and its output on them."""

    def __init__(self, node: Node, frame: Frame, session: Session, axis: str | None, idle: bool) -> None:
        self.node, self.frame, self.session, self.axis = node, frame, session, axis
        self.model = frame.values[node.inputs[0]]
        self.rows = [] if idle else _blocks(node, frame, session, axis) if axis else [None]
        self.parts: dict[int, tuple[Frame, Places]] = {}
        self.begins_step = session.models[self.model].past.changed < frame.step.number
        """Whether the weights are as they were when the step began: no update of it came before."""
        self.compared: list[Mismatch] = []
        self.asked = [inner for inner in node.region.nodes if NODES[inner.op].scores]
        self._lock = threading.Lock()
        if not idle:
            self._note()

    def _note(self) -> None:
        """Note which rows it trains on: those that a model is asked about."""
        weights = self.node.region.inputs[0].name
        for name in dict.fromkeys(map(table_of, self.asked)):
            kind = self.frame.types.get(name)
            if isinstance(kind, Table):
                rows = self.frame.rows[kind.axis.key].known_ids
                self.session.notes.add_note(self.frame.step, "trained", weights, rows, table=name)

    def _rows_of(self, body: Frame) -> list[str]:
        """Return the rows that a model is asked about in a micro-batch, for a message."""
        tables = [body.types.get(name) for name in dict.fromkeys(map(table_of, self.asked))]
        return [
            row_label(row) for kind in tables if isinstance(kind, Table) for row in body.rows[kind.axis.key].known_ids
        ]

    @property
    def micro_batch_numbers(self) -> range:
        """The numbers of the micro-batches."""
        return range(len(self.rows))

    def micro_batch(self, block: int) -> MicroBatch:
        """Return a micro-batch: the calls of the model, and its part of the loss."""
        region, session = self.node.region, self.session
        body, places = _part(self.frame, self.axis, self.rows[block], self.node.captured_values)

        def loss(answers: Sequence[Tensor]) -> Tensor:
            """The micro-batch's part of the loss."""
            compared: list[Mismatch] = []
            for inner, answer in zip(self.asked, answers, strict=True):
                body.values[inner.name] = scored = answer.to("cpu", session.dtype)
                if self.begins_step:
                    compared += compare_with_sampler(inner, body, session, scored)
            [value] = run_region(partial(_straight, session), region, body, [self.model])
            body.values = {name: _detached(body.values[name]) for name, _ in self.node.exported_values}
            with self._lock:
                self.parts[block] = body, places
                self.compared += compared
                done = len(self.parts)
            self.session.progress(done, len(self.rows), "micro-batch", 0)
            assert isinstance(value, Tensor)
            if not bool(value.isfinite()):
                with self._lock:
                    self.session.models[self.model].odd += self._rows_of(body)
            return value

        body.values[region.inputs[0].name] = self.model
        for column in (inner for inner in region.nodes if NODES[inner.op].is_column):
            # Calls may need them beside probabilities.
            body.values.update(run_node(column, body, session).values)
        return MicroBatch(tuple(_call(inner, body, session) for inner in self.asked), loss)

    def node_output(self, carried: Any) -> NodeOutput:
        """Return the output of the node: `carried`, and what the body has exported."""
        if not self.parts:
            # A rank without the answers has nothing to export either.
            return NodeOutput({self.node.outputs[0].name: carried})
        ordered = [self.parts[block] for block in self.micro_batch_numbers]
        exports = assemble_exports(self.node, self.frame, ordered, self.axis or "")
        output = region_output(self.node, self.frame, exports, [carried], {})
        return replace(output, mismatches=tuple(self.compared))


def _call(node: Node, body: Frame, session: Session) -> ModelCall:
    """Return the call of a model on the rows of a micro-batch."""
    _, sequences = engine_and_sequences(node, body, session)
    return ModelCall(node.op, sequences, **model_call_options(node, body, session))  # type: ignore[arg-type]


def _part(frame: Frame, axis: str | None, places: np.ndarray | None, names: tuple[str, ...]) -> tuple[Frame, Places]:
    """Return the frame of a micro-batch, and the places of its rows."""
    if axis is None or places is None:
        return frame.child_frame(), {}
    return frame.slice_rows(axis, places, names)


def _straight(session: Session, region: Graph, frame: Frame) -> None:
    """Run a micro-batch, which is one block: its nodes run one after the other; the model has answered already."""
    for inner in region.nodes:
        if NODES[inner.op].scores or inner.op == "setting":
            continue
        made = run_node(inner, frame, session)
        for rows in made.rows:
            frame.add_rows(rows)
        frame.values.update(made.values)


def _detached(value: object) -> object:
    return value.detach() if isinstance(value, Tensor) else value


def _blocks(node: Node, frame: Frame, session: Session, axis: str) -> list[np.ndarray | None]:
    """Return the rows of the unit for each micro-batch, int64, by the padded tokens of what the model reads for
    them."""
    lengths = torch.zeros(frame.row_count(axis), dtype=torch.long)
    for inner in node.region.nodes:
        if not NODES[inner.op].scores or table_of(inner) not in frame.values:
            continue
        kind, table = frame.types[inner.inputs[1]], frame.values[inner.inputs[1]]
        assert isinstance(kind, Table)
        lengths.index_add_(0, torch.from_numpy(frame.ancestor_rows(kind.axis.key, axis)), table.sequences.lengths)
    settings = session.settings
    if settings.micro_rows:
        rows = np.arange(frame.row_count(axis))
        return list(np.split(rows, range(settings.micro_rows, len(rows), settings.micro_rows)))
    state = session.models[frame.values[node.inputs[0]]]
    blocks = state.engine.plan_micro_batches(lengths, settings.token_budget)
    # Sort within a block, so that rows of one parent stay together.
    return [np.sort(block.numpy()) for block in blocks] or [np.arange(0)]


def _options(node: Node, frame: Frame) -> TrainOptions:
    """Return the options of an optimizer step, those that the program computes among them."""
    computed = {name: _computed(node, name, value, frame) for name, value in _settings(node).items()}
    rate = computed.get("lr", node.attr("lr"))
    given = optimizer_settings_of(node)
    common: dict[str, Any] = {
        "optimizer": optimizer_of(node),
        "settings": given | {name: value for name, value in computed.items() if name in given},
        "clip_norm": computed.get("clip_norm", node.attr("clip_norm")),
        "reset": bool(computed.get("reset", node.attr("reset"))),
    }
    if not isinstance(rate, ConstructorCall):
        return TrainOptions(lr=float(rate), **common)
    first, *_ = rate.plain_arguments()[0]
    return TrainOptions(
        lr=float(first),
        schedule=cast(Any, rate.name),
        warmup_steps=rate.option("warmup", 0),
        total_steps=rate.option("steps"),
        final_lr=rate.option("final", 0.0),
        **common,
    )


def _settings(node: Node) -> dict[str, str]:
    """Return the options that the program computes, and the name of the value of each."""
    return {
        inner.attr("name"): inner.inputs[1]
        for region in node.regions
        for inner in region.nodes
        if inner.op == "setting"
    }


def _computed(node: Node, name: str, value: str, frame: Frame) -> float:
    """Return an option that the program has computed; raise EngineError where the optimizer cannot take it."""
    number = float(frame.values[value])
    declared = next(attribute for attribute in NODES[node.op].attributes if attribute.name == name)
    bound = declared.missed_bound(number) if math.isfinite(number) else "finite"
    if bound:
        raise EngineError(f"`{name}` is {bound}, and this step computes {number:g}")
    return number
