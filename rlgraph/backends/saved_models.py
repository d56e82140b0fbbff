"""This module describes the models in a checkpoint, which is what a run is between two steps, so that another process
can go on with it.

Beside the models a checkpoint has the values of things that live across steps. Nothing else is left of a step: random
numbers are a function of the seed, the node, the step and the row, and steps that had begun before their turn begin
again with the weights that they began with, which are kept as long as a step may sample with them.

A model has files of tensors by the names of the Hugging Face model (one with adapters has these, and its head), each
written by a rank that has the tensor, or a part of it:

weights          as they are
moments          what the optimizer keeps: `KIND:NAME`, of the kinds that it has (`exp_avg`, `exp_avg_sq`, `step`), and
                 `master` for the wide copy of a narrow parameter
past-VERSION     weights before these that a step to come may sample with
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rlgraph.digests import DamagedFile, FileDigests
from rlgraph.errors import NO_SPAN, Diagnostic, UsageMistake
from rlgraph.files import cause_text

MODELS = "models"
"""The part of a checkpoint in which each model has a folder."""


@dataclass(frozen=True)
class SavedModel:
    """A model in a checkpoint whose weights have changed since they were loaded."""

    place: Path
    """The folder of its files."""
    updates: int
    """Optimizer steps that it took."""
    changed: int
    """The last step that changed its weights."""
    version: int
    """The version of its weights."""
    past: tuple[int, ...]
    """The earlier versions that are saved, too."""
    digests: Mapping[str, FileDigests]
    """The digests of each of its files."""

    def files_of_kind(self, kind: str) -> dict[Path, FileDigests]:
        """Return the files of `weights`, `moments` or `past-VERSION`: one, or those of several ranks."""
        names = [name for name in sorted(self.digests) if name.startswith((f"{kind}.", f"{kind}-rank"))]
        return {self.place / name: self.digests[name] for name in names}


class PendingSave(Protocol):
    """What a step left of a model, to be saved. Later steps may read it, and wait until it is written before they
    change it."""

    def begin_writing(self, place: Path) -> None:
        """Let whoever has it begin to write it into a folder."""
        ...

    def wait_written(self) -> SavedModel:
        """Wait until it is written. Raises OSError, NonFiniteWeights, RunError."""
        ...

    def allow_changes(self) -> None:
        """Let steps change it: nobody waits for it any more, written or not."""
        ...


DIVERGED = "weights that are NaN, infinite, or so large that their squares are"
"""What no model computes with."""


class HalfUpdatedModel(Exception):
    """A model cannot be saved, because a step has begun to change it."""


class NonFiniteWeights(ValueError):
    """Weights are `DIVERGED`; the message is the name of the first such tensor."""


def damaged_checkpoint_error(checkpoint: Path, why: Exception) -> UsageMistake:
    """Return the error for a checkpoint that is not as it was written."""
    reason = cause_text(why)
    if isinstance(why, OSError) and why.filename:
        reason = f"`{os.path.relpath(why.filename, checkpoint)}`: {reason}"
    if isinstance(why, DamagedFile):
        reason = f"`{os.path.relpath(why.path, checkpoint)}` {why.why}"
    hint = f"remove `{checkpoint.name}`, and the run goes on from the checkpoint before it, if there is one"
    return UsageMistake(Diagnostic("E0827", f"the checkpoint `{checkpoint}` is damaged: {reason}", NO_SPAN, hint))


@contextmanager
def checking_damage(saved: SavedModel) -> Iterator[None]:
    """Guard the reading of a model's files. Raises UsageMistake where one is not as it was written."""
    try:
        yield
    except (OSError, DamagedFile) as error:
        raise damaged_checkpoint_error(saved.place.parents[1], error) from None
