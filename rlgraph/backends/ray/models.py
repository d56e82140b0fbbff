"""What a process does with its models beside computing: weights come and go, are saved, sleep, and are counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from rlgraph.backends.engines.base import HalfChanged, Saves, Sleeps
from rlgraph.backends.engines.offload import Switched
from rlgraph.backends.exchange.exchange import Moved
from rlgraph.backends.ray import shards
from rlgraph.backends.ray.activity import Doing
from rlgraph.backends.ray.arrivals import Arrivals
from rlgraph.backends.ray.folder import AdapterFolder, ModelFolder, empty, folder_of
from rlgraph.backends.ray.links import Holding, Links, holding
from rlgraph.backends.saved import SavedModel
from rlgraph.backends.step import Step
from rlgraph.backends.worker.nodes import take_over
from rlgraph.backends.worker.saving import (
    Left,
    Part,
    Stock,
    Written,
    hold,
    left_of,
    read_part,
    release,
    stock_of,
    write_part,
)
from rlgraph.backends.worker.session import Session
from rlgraph.ir.carriers import Ways
from rlgraph.ir.graph import Node, Program
from rlgraph.ir.layout import Local
from rlgraph.ir.transfer import Transfer

_BY_GLOO = Ways()
_SOONER = 0.9
"""Of the longest wait for a process: who waits for another says for what before it is only known that none answers."""


class Models:
    """A rank's shards of the models of its group."""

    session: Session

    def __init__(self, program: Program, seconds: float, saves: bool) -> None:
        """seconds: longest wait for another process. saves: what steps leave of models is written while others go
        on."""
        self.saves = saves
        self.nodes: list[tuple[str, Node]] = list(program.walk())
        self.links = Links(_SOONER * seconds)
        self.doing = Doing()
        self.arrivals = {model.name: Arrivals() for model in program.models}
        self.changes = Counter[str]()
        """How often each model here has got new weights. Ranks of a group that have counted alike have parts of the
        same."""
        self.folder: ModelFolder | AdapterFolder
        self.left: dict[str, Left] = {}
        """What the last change has left of a model, where the run is saved."""
        self.held: dict[str, Left] = {}
        """Of these what is being written."""

    # Weights

    def holding(self, model: str) -> Holding:
        """What this rank has of a model."""
        state = self.session.models[model]
        try:
            found = holding(state.engine, shards.node())
        except HalfChanged:
            # Weights of its last update have not come from another copy, which is known when somebody asks for them.
            found, state.torn = Holding(tuple(state.engine.layout()), torch.float32, shards.node()), True
        return replace(found, changes=self.changes[model], torn=state.torn)

    def meet(self, link: str, place: int, places: int, address: str) -> None:
        """Joins the processes between which weights go."""
        with self.doing(f"the meeting for {link}"):
            self.links.meet(link, place, places, address)

    def prepare(
        self,
        link: str,
        name: str,
        transfer: Transfer,
        source: str | None,
        destination: str | Sequence[Local] | None,
        dtype: torch.dtype,
        delta: bool = False,
        ways: Ways = _BY_GLOO,
    ) -> None:
        """Works out this process's part of a transfer from a model here, to a model here or to tensors of its own.
        delta: only what changed travels. ways: how it goes to and from each peer."""
        sides = self._layout(source), self._layout(destination)
        self.links.prepare(link, name, transfer, *sides, dtype, delta, ways, self._device(source, destination))

    def _device(self, *sides: str | Sequence[Local] | None) -> torch.device:
        """Of the models here that take part."""
        tensors = (self.session.models[each].engine.tensors() for each in sides if isinstance(each, str))
        return next((tensor.device for each in tensors for tensor in each.values()), torch.device("cpu"))

    def _layout(self, side: str | Sequence[Local] | None) -> Sequence[Local]:
        """Of a model here, or of tensors that are named."""
        if side is None:
            return ()
        return self.session.models[side].engine.layout() if isinstance(side, str) else side

    def exchange(
        self,
        name: str,
        source: str | None,
        destination: str | None,
        version: int | None = None,
        average: float | None = None,
        update: Step | None = None,
    ) -> Moved:
        """Takes part in a transfer: sends a model's weights, present ones or a version of them, and writes them to a
        model here. update: the step in which this changes that model; otherwise it is only brought here."""
        sent: Mapping[str, Tensor] = {}
        if source is not None:
            state = self.session.models[source]
            past = None if version is None else state.past.get(version)
            sent = state.engine.tensors() if past is None else past
        with self.doing(f"the transfer {name}"):
            if destination is None:
                return self.links.run(name, sent, {}, average)
            target = self.session.models[destination].engine
            if update is not None:
                self.session.changing(destination, update)
            with self._written(destination):
                moved = self.links.run(name, sent, target.tensors(), average)
                target.written()
        if update is not None:
            self._left(destination)
        return moved

    def refresh(self, name: str, model: str, version: int, number: int) -> Moved:
        """Takes part in a transfer whose weights come to a model that samples: before its next token or in `settle`."""

        def receive() -> Moved:
            engine = self.session.models[model].engine
            with self.doing(f"the transfer {name}"), self._written(model):
                moved = self.links.run(name, {}, engine.tensors(), None)
                engine.written()
            if torch.cuda.is_available():
                # Who goes on with them may do so in another thread, whose stream would not wait.
                torch.cuda.synchronize()
            return moved

        return self.arrivals[model].bring(number, version, receive)

    def settle(self, model: str, number: int) -> None:
        """Has taken part in it, before whatever is ordered after this."""
        with torch.no_grad():
            self.arrivals[model].settle(number)

    # Sleep

    def sleep(self, model: str, keep: bool) -> Switched:
        """Gives the memory of a model back, on the device. keep: its weights are needed again."""
        return self.resting(model).sleep(keep)

    def wake(self, model: str, kept: bool = True) -> Switched:
        """Takes it again."""
        return self.resting(model).wake()

    def resting(self, model: str) -> Sleeps:
        return cast(Sleeps, self.session.models[model].engine)

    # Folders

    def begin_folder(self, model: str, folder: str) -> None:
        """A folder for a model whose weights will come part by part."""
        here: Any = self.session.models[model].engine
        self.folder = folder_of(here.spec, Path(folder))

    def write_part(self, name: str, part: Sequence[Local], dtype: torch.dtype, model: str | None = None) -> Moved:
        """Receives tensors, and writes them as one file of the folder. model: of which it has some itself."""
        tensors = empty(part, dtype)
        sent = {} if model is None else self.session.models[model].engine.tensors()
        with self.doing(f"the transfer {name}"):
            moved = self.links.run(name, sent, tensors, None)
        self.folder.write(tensors)
        return moved

    def end_folder(self) -> None:
        self.folder.close()

    def save(self, model: str, folder: str) -> None:
        """Writes a model that this rank has all of."""
        cast(Saves, self.session.models[model].engine).save(folder)

    # Changes

    def take_over(self, step: Step, node: int, target: str, source: str) -> None:
        """Gives a model here the weights of another one here, as an `update` says."""
        with self._written(target):
            take_over(self.nodes[node][1], step, self.session, target, source)
        self._left(target)

    def trained(self, model: str) -> None:
        """An update of a model here is done."""
        self.changes[model] += 1
        self._left(model)

    @contextmanager
    def _written(self, model: str) -> Iterator[None]:
        """Around what gives a model here other weights. Where that does not come to its end, they are none."""
        state = self.session.models[model]
        state.torn = True
        yield
        state.torn = False
        self.changes[model] += 1

    def _left(self, model: str) -> None:
        if self.saves:
            self.left[model] = left_of(self.session.models[model], self.left.get(model))

    # Checkpoints

    def last_changed(self) -> int:
        """The last step that changed a model here, or began to. Answered beside that."""
        return max((state.past.changed for state in self.session.models.values()), default=0)

    def stock(self, model: str) -> Stock:
        """What this rank has of a model."""
        return stock_of(self.session.models[model])

    def hold(self, model: str, number: int) -> Stock:
        """What step `number` has left of a model here: until `checkpoint` has written it, or `free`, nobody changes it.
        Answered beside the work of the steps that come."""
        state = self.session.models[model]
        if not state.past.changed:
            return Stock(0, 0, (), (), ())
        self.held[model] = hold(state, self.left[model], number)
        return self.held[model].stock

    def checkpoint(self, model: str, place: str, part: Part) -> Written:
        """Writes a part of a model that it holds into a folder of a checkpoint, in a thread of its own."""
        try:
            return write_part(self.session.models[model], self.held[model], Path(place), part)
        finally:
            self.free(model)

    def free(self, model: str) -> None:
        """Does not hold a model any more."""
        self.held.pop(model, None)
        release(self.session.models[model])

    def restore(self, model: str, saved: SavedModel) -> None:
        """Goes on with this rank's part of a model, which may sleep: to begin with, all that the plan off-loads do."""
        engine = self.session.models[model].engine
        sleeps = hasattr(engine, "rest") and engine.rest.asleep
        if sleeps:
            self.wake(model)
        with self._written(model):
            read_part(self.session.models[model], saved)
        self._left(model)
        if sleeps:
            self.sleep(model, keep=True)
