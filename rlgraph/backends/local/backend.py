"""This module has the backend that does the work of each node in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.engines.roles import Saves
from rlgraph.backends.executor import Executor
from rlgraph.backends.finish_order import FinishOrder
from rlgraph.backends.frame import Frame, NodeOutput, Part
from rlgraph.backends.in_flight import Things
from rlgraph.backends.row_blocks import BlockSizes
from rlgraph.backends.rows import TableData
from rlgraph.backends.samples import RowTexts, row_texts
from rlgraph.backends.saved_models import NonFiniteWeights, PendingSave, SavedModel
from rlgraph.backends.step import Step
from rlgraph.backends.steps import Observer, SilentObserver, StepRunner
from rlgraph.backends.worker.nodes import WORK
from rlgraph.backends.worker.row_choice import chosen_row_indices
from rlgraph.backends.worker.sampling import sampled_token_count
from rlgraph.backends.worker.saving import (
    ModelSnapshot,
    boxes_to_write,
    check_saved_layout,
    hold_snapshot,
    load_saved_part,
    model_part,
    release_model,
    take_snapshot,
    write_part,
)
from rlgraph.backends.worker.session import Session, SessionModel, Settings
from rlgraph.backends.worker.training import TRAINING
from rlgraph.ir.graph import Node, Program

_WORK = {**WORK, **TRAINING}


class LocalBackend(StepRunner):
    """Fires nodes in this process. `session` outlives the run: its models can be saved."""

    def __init__(self, program: Program, settings: Settings, observer: Observer | None = None) -> None:
        self.observer = observer or SilentObserver()
        self.session = Session(program, settings, self.observer.report_progress)
        self.program, self.seed, self.record = program, settings.seed, settings.record
        self.initial_things = self.session.first
        self.trace_notes = self.session.notes
        self.finish_order = FinishOrder(settings.record, settings.replay)
        self.executor = Executor(self, BlockSizes(settings.block))
        self.session.progress = self._progress
        self._at_work: list[Node] = []
        """The nodes at work, the innermost last."""
        self.watch: Callable[[Node, Frame], None] | None = None
        """Is given the frame after each node, for tests and debugging."""

    def finish_step(self, step: Step, things: Things) -> dict[str, float]:
        self.session.forget_steps(step)
        return {}

    def optimizer_step_counts(self) -> dict[str, int]:
        """Return for each model how many optimizer steps it took."""
        return {name: state.updates for name, state in self.session.models.items()}

    def source_row_counts(self) -> dict[str, int | None]:
        """Return for each data source how many rows it has; None where that is not known."""
        return {name: reader.source.row_count for name, reader in self.session.readers.items()}

    def overlong_notes(self) -> list[str]:
        """Return what was done with rows that are too long, in sentences."""
        return self.session.judged

    def models_are_at_step_end(self) -> bool:
        """Whether the models are as the last step that is over left them: no step since then has begun to change
        one."""
        return all(state.past.changed <= self.done for state in self.session.models.values())

    def hold_weights(self, model: str) -> PendingSave | None:
        """Return what the last step left of a model, to be saved; None: it is as it was loaded."""
        state = self.session.models[model]
        left = hold_snapshot(state, take_snapshot(state), self.done)
        return (
            _LocalSave(state, left, self.weight_versions.version_after(model, self.done)) if left.part.changed else None
        )

    def resume(self, number: int, things: Things, models: Mapping[str, SavedModel]) -> None:
        """Go on behind a step, in place of the first one. Raises EngineError for weights of another model."""
        for name, saved in models.items():
            check_saved_layout([model_part(self.session.models[name]).weights], saved)
            load_saved_part(self.session.models[name], saved)
        self.resume_after(number, things)

    def save(self, model: str, folder: Path) -> None:
        """Write a folder that a model source can name. Raises EngineError for a model that is only half updated."""
        state = self.session.models[model]
        if state.torn:
            raise EngineError("an update of it has ended in the midst, and its weights are neither old nor new")
        cast(Saves, state.engine).save(folder)

    def close(self) -> None:
        """End the session."""
        self.session.close()

    def streams_output(self, node: Node, frame: Frame) -> bool:
        return False

    def run_in_parts(self, node: Node, frame: Frame, sizes: Sequence[int]) -> Iterator[Part]:
        raise NotImplementedError("nothing streams in one process")

    def max_concurrent_blocks(self, node: Node, frame: Frame) -> int:
        return 1

    def fail_pending_work(self, why: BaseException) -> None:
        """Forget the notes; no other node is at work."""
        self.trace_notes.clear()
        self.mismatches.clear()

    def fire(self, node: Node, frame: Frame) -> NodeOutput:
        self.observer.node_started(node)
        began = time.perf_counter()
        self._at_work.append(node)
        try:
            made = super().fire(node, frame)
        finally:
            self._at_work.pop()
        if self.watch:
            self.watch(node, _after(frame, made))
        self.observer.node_done(node, time.perf_counter() - began, sampled_token_count(node, made))
        return made

    def _progress(self, done: int, total: int, unit: str, tokens: int) -> None:
        """Tell the observer how far the node at work is."""
        if self._at_work:
            self.observer.node_progress(self._at_work[-1], done, total, unit, tokens)

    def choose_rows(self, node: Node, frame: Frame) -> np.ndarray:
        return chosen_row_indices(node, frame, self.session)

    def remote_row_reader(self) -> LocalBackend:
        return self

    def fetch_values(self, values: Sequence[Any]) -> list[Any]:
        return list(values)

    def fetch_texts(self, table: TableData) -> list[RowTexts]:
        return row_texts(table, self.session.decode_rows)

    def values_and_texts(self, values: Sequence[Any], table: TableData) -> tuple[list[Any], list[RowTexts]]:
        return self.fetch_values(values), self.fetch_texts(table)

    def do_node_work(self, node: Node, frame: Frame) -> NodeOutput:
        with torch.no_grad():
            return _WORK[node.op](node, frame, self.session)


class _LocalSave:
    """A model to be saved, which is written by whoever waits for it."""

    def __init__(self, state: SessionModel, left: ModelSnapshot, version: int) -> None:
        self.state, self.left, self.version = state, left, version
        self.place = Path()

    def begin_writing(self, place: Path) -> None:
        self.place = place

    def wait_written(self) -> SavedModel:
        stock = self.left.part
        try:
            written = write_part(self.state, self.left, self.place, *boxes_to_write([stock]))
        finally:
            self.allow_changes()
        if written.failure:
            raise OSError(0, written.failure)
        if written.mismatched:
            raise NonFiniteWeights(written.mismatched)
        return SavedModel(self.place, stock.updates, stock.changed, self.version, stock.past, written.files)

    def allow_changes(self) -> None:
        release_model(self.state)


def _after(frame: Frame, made: NodeOutput) -> Frame:
    """Return the frame with the output of a node."""
    after = frame.child_frame()
    for rows in made.rows:
        after.add_rows(rows)
    after.values.update(made.values)
    return after
