"""A process's part of a model on its way into files and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from rlgraph.backends.engines.base import EngineError, Keeps, State
from rlgraph.backends.engines.moments import MASTER, Moments
from rlgraph.backends.engines.optimizer import STEP
from rlgraph.backends.engines.stored import Stored, View, chosen, extents, write
from rlgraph.backends.engines.weights import Weights, fill, locals_of
from rlgraph.backends.saved import SavedModel, undamaged
from rlgraph.backends.worker.session import ModelState
from rlgraph.digests import Digests
from rlgraph.ir.layout import Box, Local
from rlgraph.ir.transfer import TensorBox
from rlgraph.passes.resharding.owners import owners

MOMENTS = "moments"


@dataclass(frozen=True)
class Stock:
    """What a process has of a model, layer by layer."""

    updates: int
    changed: int
    """The last step that changed the weights; 0: they are as they were loaded."""
    past: tuple[int, ...]
    weights: tuple[Local, ...]
    moments: tuple[Local, ...]


def parts(stocks: Sequence[Stock]) -> list[Part]:
    """What each of these processes writes, so that all of it is written, and once."""
    weights, moments = owners([each.weights for each in stocks]), owners([each.moments for each in stocks])
    whole_of = extents(each.weights for each in stocks)
    marks = [f"-rank{rank:05d}" for rank in range(len(stocks))] if len(stocks) > 1 else [""]
    return [
        Part(w, m, {name: whole_of[name] for name, _ in (*w, *m)}, mark)
        for w, m, mark in zip(weights, moments, marks, strict=True)
    ]


@dataclass(frozen=True)
class Part:
    """What a process writes of it: boxes of global tensors."""

    weights: Sequence[TensorBox]
    moments: Sequence[TensorBox]
    whole_of: Mapping[str, Box]
    """All of each tensor."""
    mark: str = ""
    """Of its files, where others write more of them."""


@dataclass(frozen=True)
class Left:
    """What a change has left of a model in a process: tensors that the next change writes into. Whatever the engine
    does meanwhile with its own (it computes with older weights in their place, moves its model to the host), they name
    what was left."""

    stock: Stock
    tensors: Mapping[str, Tensor]
    moments: Moments
    past: Mapping[int, State] = field(default_factory=dict)


def left_of(state: ModelState, before: Left | None = None) -> Left:
    """Asked in the thread that works with the engine. before: of an earlier change."""
    own = {name: tensor.detach() for name, tensor in state.engine.tensors().items()}
    layout = before.stock.weights if before else tuple(locals_of(state.engine.layout(), own))
    moments = moments_of(state)
    kinds = {kind: {name: each.detach() for name, each in kept.items()} for kind, kept in moments.kinds.items()}
    stock = Stock(state.updates, state.past.changed, (), layout, moments.layout)
    return Left(stock, own, replace(moments, kinds=kinds))


def hold(state: ModelState, left: Left, number: int) -> Left:
    """What step `number` has left, with older weights that later ones may read: until `release` nobody changes it. Of a
    model that a later step has begun to change nothing is held, nor of one that none has changed."""
    with state.gate:
        changed, past = state.past.changed, state.past.kept(number)
        state.held = 0 < changed <= number
    return replace(left, stock=replace(left.stock, changed=changed, past=tuple(sorted(past))), past=past)


def release(state: ModelState) -> None:
    with state.gate:
        state.held = False
        state.gate.notify_all()


def stock_of(state: ModelState) -> Stock:
    return left_of(state).stock


def need_same(held: Iterable[Sequence[Local]], saved: SavedModel) -> None:
    """Raises EngineError where what was saved is not what these ranks have together, UsageMistake where it is
    damaged."""
    with undamaged(saved):
        own, weights = extents(held), Stored(saved.files("weights"))
    for name in own.keys() ^ {*weights.names}:
        raise EngineError(f"{name} is only {'in the model' if name in own else 'among those that were saved'}")
    for name, box in own.items():
        if box != weights.box(name):
            sizes = (" x ".join(str(stop) for _, stop in each) for each in (box, weights.box(name)))
            raise EngineError("{} is {}, and was {}".format(name, *sizes))


def moments_of(state: ModelState) -> Moments:
    """Of an engine that trains nothing there are none."""
    return cast(Keeps, state.engine).moments() if hasattr(state.engine, "moments") else Moments()


@dataclass(frozen=True)
class Written:
    """What a process has written."""

    files: Mapping[str, Digests]
    """What is in them, by name."""
    odd: str = ""
    """The first tensor whose weights are NaN or infinite."""
    failure: str = ""
    """Why it could not go on."""


@torch.no_grad()
def write_part(state: ModelState, left: Left, place: Path, part: Part) -> Written:
    """Into a folder of a checkpoint, which need not be there yet; beside whatever reads the model."""
    moments, odd, files = left.moments, "", dict[str, Digests]()
    rest = getattr(state.engine, "rest", None)
    reading = nullcontext if rest is None else rest.reading
    kinds = {"weights": left.tensors, **{f"past-{version}": tensors for version, tensors in left.past.items()}}
    kept: dict[str, Tensor | View] = {
        f"{kind}:{name}": tensor
        for kind, tensors in moments.kinds.items()
        for name, tensor in chosen(tensors, moments.layout, part.moments, part.whole_of).items()
    }
    # Whoever has a parameter's beginning tells how often it was updated.
    first = [name for name, box in part.moments if not any(start for start, _ in box)] if moments.steps else []
    kept |= {f"{STEP}:{name}": torch.tensor(moments.steps) for name in first}
    try:
        place.mkdir(parents=True, exist_ok=True)
        for kind, tensors in kinds.items():
            file = place / f"{kind}{part.mark}.safetensors"
            own = chosen(tensors, left.stock.weights, part.weights, part.whole_of)
            files[file.name], lost = write(file, own, reading=reading)
            odd = lost or odd
        file = place / f"{MOMENTS}{part.mark}.safetensors"
        # Moments are finite where weights stay so.
        files[file.name], _ = write(file, kept, reading=reading, looks=False)
    except OSError as error:
        return Written(files, odd, error.strerror or str(error))
    return Written(files, odd)


class _Widest:
    """Narrow weights of which the optimizer had wide copies, as these: for an engine that holds them wide itself."""

    def __init__(self, narrow: Weights, moments: Stored) -> None:
        self._narrow, self._wide = narrow, moments.under(MASTER)
        self._copied = {name.removeprefix(f"{MASTER}:") for name in moments.names if name.startswith(f"{MASTER}:")}

    def read(self, name: str, box: Box) -> Tensor:
        return (self._wide if name in self._copied else self._narrow).read(name, box)


@torch.no_grad()
def read_part(state: ModelState, saved: SavedModel) -> None:
    """Goes on with a model as it was saved, however it was split then. Reads no more than this process has of it.
    Raises EngineError for weights of another model, UsageMistake for files that are not as they were written."""
    with undamaged(saved):
        _read_part(state, saved)


def _read_part(state: ModelState, saved: SavedModel) -> None:
    engine = state.engine
    own = engine.tensors()
    layout = locals_of(engine.layout(), own)
    moments = Stored(saved.files(MOMENTS))
    kinds = {name.partition(":")[0] for name in moments.names} - {STEP}
    weights: Weights = Stored(saved.files("weights"))
    if MASTER in kinds and any(each.itemsize > 2 for each in own.values()):
        weights = _Widest(weights, moments)
    fill(own, layout, weights)
    engine.written()
    if kinds and hasattr(engine, "begin_moments"):
        steps = next((name for name in moments.names if name.startswith(f"{STEP}:")), None)
        made = engine.begin_moments(kinds, 0.0 if steps is None else float(moments.read(steps, ())))
        for kind in kinds & made.kinds.keys():
            fill(made.kinds[kind], made.layout, moments.under(kind))
    state.updates = saved.updates
    # Where one's own are and as they lie: they will take their place.
    past = {version: {name: torch.empty_like(each) for name, each in own.items()} for version in saved.past}
    for version, tensors in past.items():
        fill(tensors, layout, Stored(saved.files(f"past-{version}")))
    state.past.restore(saved.changed, past)
