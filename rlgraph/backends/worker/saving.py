"""This module writes a process's part of a model into files, and reads it back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.engines.moments import MASTER, Moments
from rlgraph.backends.engines.optimizer import STEP
from rlgraph.backends.engines.records import State
from rlgraph.backends.engines.roles import KeepsMoments
from rlgraph.backends.engines.tensor_files import StoredTensors, TensorView, full_boxes, select_views, write_tensors
from rlgraph.backends.engines.weights import WeightSource, fill_tensors, layout_by_layer
from rlgraph.backends.saved_models import SavedModel, checking_damage
from rlgraph.backends.worker.session import SessionModel
from rlgraph.digests import FileDigests
from rlgraph.ir.layout import Box, LocalTensor
from rlgraph.ir.transfer import TensorBox
from rlgraph.passes.resharding.divide_writing import divide_writing

MOMENTS = "moments"


@dataclass(frozen=True)
class ModelPart:
    """What a process has of a model, layer by layer."""

    updates: int
    changed: int
    """The last step that changed the weights; 0: they are as they were loaded."""
    past: tuple[int, ...]
    weights: tuple[LocalTensor, ...]
    moments: tuple[LocalTensor, ...]


def boxes_to_write(stocks: Sequence[ModelPart]) -> list[BoxesToWrite]:
    """Return what each of these processes writes, so that all of the model is written, and once."""
    weights, moments = (
        divide_writing([stock.weights for stock in stocks]),
        divide_writing([stock.moments for stock in stocks]),
    )
    whole_of = full_boxes(stock.weights for stock in stocks)
    marks = [f"-rank{rank:05d}" for rank in range(len(stocks))] if len(stocks) > 1 else [""]
    return [
        BoxesToWrite(w, m, {name: whole_of[name] for name, _ in (*w, *m)}, mark)
        for w, m, mark in zip(weights, moments, marks, strict=True)
    ]


@dataclass(frozen=True)
class BoxesToWrite:
    """What a process writes of a model: boxes of global tensors."""

    weights: Sequence[TensorBox]
    moments: Sequence[TensorBox]
    whole_boxes: Mapping[str, Box]
    """The box of each whole tensor."""
    file_suffix: str = ""
    """The mark of its files, where others write more of them."""


@dataclass(frozen=True)
class ModelSnapshot:
    """What a change has left of a model in a process: tensors that the next change writes into. Whatever the engine
    does meanwhile with its own (it computes with older weights in their place, moves its model to the host), they
    refer to what was left."""

    part: ModelPart
    tensors: Mapping[str, Tensor]
    moments: Moments
    past: Mapping[int, State] = field(default_factory=dict)


def take_snapshot(state: SessionModel, before: ModelSnapshot | None = None) -> ModelSnapshot:
    """Return what the last change has left. Called in the thread that works with the engine. before: what an earlier
    change left."""
    weights = {name: weight.detach() for name, weight in state.engine.tensors().items()}
    layout = before.part.weights if before else tuple(layout_by_layer(state.engine.layout(), weights))
    moments = engine_moments(state)
    kinds = {
        kind: {name: tensor.detach() for name, tensor in tensors.items()}
        for kind, tensors in moments.tensors_by_kind.items()
    }
    stock = ModelPart(state.updates, state.past.changed, (), layout, moments.layout)
    return ModelSnapshot(stock, weights, replace(moments, tensors_by_kind=kinds))


def hold_snapshot(state: SessionModel, left: ModelSnapshot, number: int) -> ModelSnapshot:
    """Return what step `number` has left, with older weights that later steps may read: until `release_model` nothing
    changes it. A model that a later step has begun to change is not held, nor one that no step has changed."""
    with state.gate:
        changed, past = state.past.changed, state.past.snapshot(number)
        state.held = 0 < changed <= number
    return replace(left, part=replace(left.part, changed=changed, past=tuple(sorted(past))), past=past)


def release_model(state: SessionModel) -> None:
    """Let steps change a model again."""
    with state.gate:
        state.held = False
        state.gate.notify_all()


def model_part(state: SessionModel) -> ModelPart:
    """Return what this process has of a model."""
    return take_snapshot(state).part


def check_saved_layout(held: Iterable[Sequence[LocalTensor]], saved: SavedModel) -> None:
    """Check that what was saved is what these ranks have together: raises EngineError where it is not, UsageMistake
    where it is damaged."""
    with checking_damage(saved):
        boxes, weights = full_boxes(held), StoredTensors(saved.files_of_kind("weights"))
    for name in boxes.keys() ^ {*weights.names}:
        raise EngineError(f"{name} is only {'in the model' if name in boxes else 'among those that were saved'}")
    for name, box in boxes.items():
        if box != weights.full_box(name):
            sizes = (" x ".join(str(stop) for _, stop in extent) for extent in (box, weights.full_box(name)))
            raise EngineError("{} is {}, and was {}".format(name, *sizes))


def engine_moments(state: SessionModel) -> Moments:
    """Return the moments of an engine; one that trains nothing has none."""
    return cast(KeepsMoments, state.engine).moments() if hasattr(state.engine, "moments") else Moments()


@dataclass(frozen=True)
class WrittenFiles:
    """What a process has written."""

    files: Mapping[str, FileDigests]
    """The digests of its files, by name."""
    mismatched: str = ""
    """The first tensor whose weights have diverged."""
    failure: str = ""
    """Why it could not go on."""


@torch.no_grad()
def write_part(state: SessionModel, left: ModelSnapshot, place: Path, part: BoxesToWrite) -> WrittenFiles:
    """Write into a folder of a checkpoint, which need not exist yet, while others read the model."""
    moments, odd, files = left.moments, "", dict[str, FileDigests]()
    rest = getattr(state.engine, "offloader", None)
    reading = nullcontext if rest is None else rest.kept_in_place
    kinds = {"weights": left.tensors, **{f"past-{version}": tensors for version, tensors in left.past.items()}}
    moment_tensors: dict[str, Tensor | TensorView] = {
        f"{kind}:{name}": tensor
        for kind, tensors in moments.tensors_by_kind.items()
        for name, tensor in select_views(tensors, moments.layout, part.moments, part.whole_boxes).items()
    }
    # The process that has a parameter's beginning writes how often it was updated.
    first = [name for name, box in part.moments if not any(start for start, _ in box)] if moments.steps else []
    moment_tensors |= {f"{STEP}:{name}": torch.tensor(moments.steps) for name in first}
    try:
        place.mkdir(parents=True, exist_ok=True)
        for kind, tensors in kinds.items():
            file = place / f"{kind}{part.file_suffix}.safetensors"
            chosen_weights = select_views(tensors, left.part.weights, part.weights, part.whole_boxes)
            files[file.name], lost = write_tensors(file, chosen_weights, reading=reading)
            odd = lost or odd
        file = place / f"{MOMENTS}{part.file_suffix}.safetensors"
        # Moments are finite where weights stay so.
        files[file.name], _ = write_tensors(file, moment_tensors, reading=reading, looks=False)
    except OSError as error:
        return WrittenFiles(files, odd, error.strerror or str(error))
    return WrittenFiles(files, odd)


class _MasterWeightSource:
    """Narrow weights, read from the wide copies that the optimizer had of them: for an engine that has wide weights
    itself."""

    def __init__(self, narrow: WeightSource, moments: StoredTensors) -> None:
        self._narrow, self._wide = narrow, moments.tensors_of_kind(MASTER)
        self._copied = {name.removeprefix(f"{MASTER}:") for name in moments.names if name.startswith(f"{MASTER}:")}

    def read(self, name: str, box: Box) -> Tensor:
        return (self._wide if name in self._copied else self._narrow).read(name, box)


@torch.no_grad()
def load_saved_part(state: SessionModel, saved: SavedModel) -> None:
    """Load a model as it was saved, however it was split then. Reads no more than this process has of it. Raises
    EngineError for weights of another model, UsageMistake for files that are not as they were written."""
    with checking_damage(saved):
        _read_part(state, saved)


def _read_part(state: SessionModel, saved: SavedModel) -> None:
    engine = state.engine
    tensors_here = engine.tensors()
    layout = layout_by_layer(engine.layout(), tensors_here)
    moments = StoredTensors(saved.files_of_kind(MOMENTS))
    kinds = {name.partition(":")[0] for name in moments.names} - {STEP}
    weights: WeightSource = StoredTensors(saved.files_of_kind("weights"))
    if MASTER in kinds and any(tensor.itemsize > 2 for tensor in tensors_here.values()):
        weights = _MasterWeightSource(weights, moments)
    fill_tensors(tensors_here, layout, weights)
    engine.note_weights_written()
    if kinds and hasattr(engine, "allocate_moments"):
        steps = next((name for name in moments.names if name.startswith(f"{STEP}:")), None)
        new_moments = engine.allocate_moments(kinds, 0.0 if steps is None else float(moments.read(steps, ())))
        for kind in kinds & new_moments.tensors_by_kind.keys():
            fill_tensors(new_moments.tensors_by_kind[kind], new_moments.layout, moments.tensors_of_kind(kind))
    state.updates = saved.updates
    # On the device and in the layout of the present weights, whose place they take.
    past = {
        version: {name: torch.empty_like(tensor) for name, tensor in tensors_here.items()} for version in saved.past
    }
    for version, tensors in past.items():
        fill_tensors(tensors, layout, StoredTensors(saved.files_of_kind(f"past-{version}")))
    state.past.restore(saved.changed, past)
