"""What a process does with its models besides computing: it transfers, saves and offloads weights, and counts
changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from rlgraph.backends.engines.errors import PartialUpdate
from rlgraph.backends.engines.folder_writers import AdapterFolder, ModelFolder, open_folder
from rlgraph.backends.engines.offload import OffloadRecord
from rlgraph.backends.engines.roles import Offloads, Saves
from rlgraph.backends.exchange.exchange import ExchangeCost
from rlgraph.backends.ray import engine_opener
from rlgraph.backends.ray.activity import ActivityLog
from rlgraph.backends.ray.arrivals import WeightArrivals
from rlgraph.backends.ray.folder_parts import empty_tensors
from rlgraph.backends.ray.transfer_ends import Links, WeightsReport, report_weights
from rlgraph.backends.saved_models import SavedModel
from rlgraph.backends.step import Step
from rlgraph.backends.worker.nodes import copy_or_blend_weights
from rlgraph.backends.worker.saving import (
    BoxesToWrite,
    ModelPart,
    ModelSnapshot,
    WrittenFiles,
    hold_snapshot,
    load_saved_part,
    model_part,
    release_model,
    take_snapshot,
    write_part,
)
from rlgraph.backends.worker.session import Session
from rlgraph.ir.graph import Node, Program
from rlgraph.ir.layout import LocalTensor
from rlgraph.ir.message_carriers import PeerCarriers
from rlgraph.ir.transfer import Transfer

_BY_GLOO = PeerCarriers()
_SOONER = 0.9
"""Fraction of the longest wait for a process: a process that waits for a peer then reports which one before the
controller gives up on all of them."""


class RankModels:
    """The shards of a group's models that one rank holds."""

    session: Session

    def __init__(self, program: Program, seconds: float, saves: bool) -> None:
        """seconds: longest wait for another process. saves: what steps leave of models is written while later steps
        run."""
        self.saves = saves
        self.nodes: list[tuple[str, Node]] = list(program.walk())
        self.links = Links(_SOONER * seconds)
        self.doing = ActivityLog()
        self.arrivals = {model.name: WeightArrivals() for model in program.models}
        self.changes = Counter[str]()
        """How often each model was changed. Ranks of a group with the same count have parts of the same weights."""
        self.folder: ModelFolder | AdapterFolder
        self.left: dict[str, ModelSnapshot] = {}
        """What the last change has left of each model, in a run that is saved."""
        self.held: dict[str, ModelSnapshot] = {}
        """What is being written of them."""

    # Weights

    def report_weights(self, model: str) -> WeightsReport:
        """Return what this rank has of a model."""
        state = self.session.models[model]
        try:
            report = report_weights(state.engine, engine_opener.node_id())
        except PartialUpdate:
            # Weights of its last update did not arrive from another replica, which shows only when they are read.
            report, state.torn = (
                WeightsReport(tuple(state.engine.layout()), torch.float32, engine_opener.node_id()),
                True,
            )
        return replace(report, change_count=self.changes[model], half_updated=state.torn)

    def join_link(self, link: str, place: int, places: int, address: str) -> None:
        """Join the processes of a link."""
        with self.doing(f"the meeting for {link}"):
            self.links.join_link(link, place, places, address)

    def prepare_weight_transfer(
        self,
        link: str,
        name: str,
        transfer: Transfer,
        source: str | None,
        destination: str | Sequence[LocalTensor] | None,
        dtype: torch.dtype,
        delta: bool = False,
        ways: PeerCarriers = _BY_GLOO,
    ) -> None:
        """Work out this process's part of a transfer from a model here, to a model here or to tensors of its own.
        delta: only changed weights travel. ways: the carriers to and from each peer."""
        sides = self._layout(source), self._layout(destination)
        self.links.prepare_exchange(link, name, transfer, *sides, dtype, delta, ways, self._device(source, destination))

    def _device(self, *sides: str | Sequence[LocalTensor] | None) -> torch.device:
        """Return the device of the models here that take part in a transfer."""
        tensors = (self.session.models[side].engine.tensors() for side in sides if isinstance(side, str))
        return next((tensor.device for by_name in tensors for tensor in by_name.values()), torch.device("cpu"))

    def _layout(self, side: str | Sequence[LocalTensor] | None) -> Sequence[LocalTensor]:
        """Return the layout of a model here, or of the given tensors."""
        if side is None:
            return ()
        return self.session.models[side].engine.layout() if isinstance(side, str) else side

    def exchange_weights(
        self,
        name: str,
        source: str | None,
        destination: str | None,
        version: int | None = None,
        average: float | None = None,
        update: Step | None = None,
        verify: bool = False,
    ) -> ExchangeCost:
        """Take part in a transfer: send a model's weights, current or of a version, and write received ones to a model
        here. update: the step in which this changes the model; None if it is only copied here. verify: return digests
        of what was moved, too."""
        sent: Mapping[str, Tensor] = {}
        if source is not None:
            state = self.session.models[source]
            past = None if version is None else state.past.get(version)
            sent = state.engine.tensors() if past is None else past
        with self.doing(f"the transfer {name}"):
            if destination is None:
                return self.links.run_exchange(name, sent, {}, average, verify)
            target = self.session.models[destination].engine
            if update is not None:
                self.session.prepare_weight_change(destination, update)
            with self._written(destination):
                moved = self.links.run_exchange(name, sent, target.tensors(), average, verify)
                target.note_weights_written()
        if update is not None:
            self._left(destination)
        return moved

    def refresh_weights(self, name: str, model: str, version: int, number: int, verify: bool = False) -> ExchangeCost:
        """Take part in a transfer to a model that samples, before its next token or in `wait_for_refresh`."""

        def receive() -> ExchangeCost:
            engine = self.session.models[model].engine
            with self.doing(f"the transfer {name}"), self._written(model):
                moved = self.links.run_exchange(name, {}, engine.tensors(), None, verify)
                engine.note_weights_written()
            if torch.cuda.is_available():
                # Another thread may go on with the weights, whose CUDA stream would not wait for these copies.
                torch.cuda.synchronize()
            return moved

        return self.arrivals[model].announce_weights(number, version, receive)

    def wait_for_refresh(self, model: str, number: int) -> None:
        """Return when the refresh is received, before any later request is done."""
        with torch.no_grad():
            self.arrivals[model].wait_until_received(number)

    # Sleep

    def offload_model(self, model: str, keep: bool) -> OffloadRecord:
        """Offload a model from the device. keep: its weights are needed again."""
        with self.doing(f"putting `{model}` to sleep"):
            return self.offloading_engine(model).sleep(keep)

    def onload_model(self, model: str, kept: bool = True) -> OffloadRecord:
        """Bring an offloaded model back to the device."""
        with self.doing(f"waking `{model}` up"):
            return self.offloading_engine(model).wake()

    def offloading_engine(self, model: str) -> Offloads:
        return cast(Offloads, self.session.models[model].engine)

    # Folders

    def start_model_folder(self, model: str, folder: str) -> None:
        """Begin a folder for a model whose weights arrive part by part."""
        engine: Any = self.session.models[model].engine
        self.folder = open_folder(engine.spec, Path(folder))

    def write_folder_file(
        self, name: str, part: Sequence[LocalTensor], dtype: torch.dtype, model: str | None = None
    ) -> ExchangeCost:
        """Receive tensors and write them as one file of the folder. model: one of which this process has parts
        itself."""
        tensors = empty_tensors(part, dtype)
        sent = {} if model is None else self.session.models[model].engine.tensors()
        with self.doing(f"the transfer {name}"):
            moved = self.links.run_exchange(name, sent, tensors, None)
        self.folder.write(tensors)
        return moved

    def close_model_folder(self) -> None:
        self.folder.close()

    def save(self, model: str, folder: str) -> None:
        """Write a model that this rank has all of."""
        cast(Saves, self.session.models[model].engine).save(folder)

    # Changes

    def assign_weights(self, step: Step, node: int, target: str, source: str) -> None:
        """Give a model here the weights of another one here, as an `update` node says."""
        with self._written(target):
            copy_or_blend_weights(self.nodes[node][1], step, self.session, target, source)
        self._left(target)

    def count_optimizer_step(self, model: str) -> None:
        """Count a finished update of a model here."""
        self.changes[model] += 1
        self._left(model)

    @contextmanager
    def _written(self, model: str) -> Iterator[None]:
        """Marks a model's weights as unusable until the block has finished changing them."""
        state = self.session.models[model]
        state.torn = True
        yield
        state.torn = False
        self.changes[model] += 1

    def _left(self, model: str) -> None:
        if self.saves:
            self.left[model] = take_snapshot(self.session.models[model], self.left.get(model))

    # Checkpoints

    def last_changed_step(self) -> int:
        """Return the last step that changed a model here, or began to. Is answered while a step runs."""
        return max((state.past.changed for state in self.session.models.values()), default=0)

    def model_part(self, model: str) -> ModelPart:
        """Return what this rank has of a model."""
        return model_part(self.session.models[model])

    def hold_weights(self, model: str, number: int) -> ModelPart:
        """Return what step `number` left of a model here, and keep it from being changed until `write_checkpoint` has
        written it, or `release_held_weights`. Is answered while later steps run."""
        state = self.session.models[model]
        if not state.past.changed:
            return ModelPart(0, 0, (), (), ())
        self.held[model] = hold_snapshot(state, self.left[model], number)
        return self.held[model].part

    def write_checkpoint(self, model: str, place: str, part: BoxesToWrite) -> WrittenFiles:
        """Write a part of a held model into a checkpoint's folder, in a thread of its own."""
        try:
            return write_part(self.session.models[model], self.held[model], Path(place), part)
        finally:
            self.release_held_weights(model)

    def release_held_weights(self, model: str) -> None:
        """Stop holding a model."""
        self.held.pop(model, None)
        release_model(self.session.models[model])

    def restore_model(self, model: str, saved: SavedModel) -> None:
        """Load this rank's part of a model, which may be offloaded: at the start, all that the plan offloads are."""
        engine = self.session.models[model].engine
        sleeps = hasattr(engine, "offloader") and engine.offloader.asleep
        if sleeps:
            self.onload_model(model)
        with self._written(model):
            load_saved_part(self.session.models[model], saved)
        self._left(model)
        if sleeps:
            self.offload_model(model, keep=True)
