"""Writes the checkpoints of a run while it goes on, and when it is interrupted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rlgraph.backends.saved import Diverged
from rlgraph.compilation.compilation import Compilation
from rlgraph.errors import NO_SPAN, Diagnostic, RunError
from rlgraph.runs.checkpoint import disk, document
from rlgraph.runs.checkpoint.often import read_often
from rlgraph.runs.folder import CHECKPOINTS, RunFolder
from rlgraph.runs.options import KEEP, Options, installed

if TYPE_CHECKING:
    from rlgraph.backends.flight import Things
    from rlgraph.backends.saved import SavedModel


class Resumable(Protocol):
    """A backend whose runs can be saved, and gone on with."""

    done: int
    """The number of the last step that is over."""

    def rows(self) -> dict[str, int | None]:
        """Of each data source how many rows it has, where that is known."""
        ...

    def whole(self) -> bool:
        """Whether the models are as the last step that is over left them."""
        ...

    def keep(self, model: str, place: Path) -> SavedModel | None:
        """Writes what that step left of a model into a folder; None: it is as it was loaded. Raises OSError,
        Diverged."""
        ...

    def kept(self, name: str) -> Any:
        """The value of a thing that it left."""
        ...

    def resume(self, number: int, things: Things, models: Mapping[str, SavedModel]) -> None:
        """Goes on behind a step, in place of the first one. Raises EngineError for weights of another model."""
        ...


class Saver:
    """Of one run."""

    def __init__(self, folder: RunFolder, compiled: Compilation, options: Options, backend: Resumable) -> None:
        assert options.save_every is not None
        self.folder, self.compiled, self.options, self.backend = folder, compiled, options, backend
        self.often = read_often(options.save_every)
        self.last = backend.done
        """The step whose checkpoint is there, or was tried."""

    @property
    def place(self) -> Path:
        return self.folder.path / CHECKPOINTS

    def step(self, number: int) -> None:
        """A step is over. Raises RunError where its checkpoint cannot be written."""
        if self.often.due(number):
            self.save()

    def save(self) -> Path | None:
        """What the last step has left, unless that is saved, or weights have changed since then. Raises RunError; the
        checkpoints before it are as they were."""
        number = self.backend.done
        if number == self.last or not self.backend.whole():
            return None
        self.last = number
        try:
            # Metrics are there before the checkpoint that they lead to.
            self.folder.to_disk()
            written = disk.write(self.place, number, self._fill)
            disk.prune(self.place, self.options.keep or KEEP)
        except RunError:
            raise
        except Exception as error:  # each library has its own way to say that a disk is full
            raise RunError(self._failed(number, error)) from None
        self.often.saved()
        return written

    def _fill(self, folder: Path) -> None:
        program, source = self.compiled.program, self.compiled.source.text
        header = {
            "step": self.backend.done,
            "seed": self.options.seed,
            "phases": [[phase.name, phase.steps] for phase in program.phases],
            "rows": self.backend.rows(),
            "set": dict(self.compiled.set),
            "versions": installed(),
        }
        things = {name: self.backend.kept(name) for name in document.living(program)}
        document.write(folder, header, source, self.compiled.text(), things, self._models(folder))

    def _models(self, folder: Path) -> Iterator[tuple[str, SavedModel]]:
        for model in self.compiled.program.models:
            try:
                saved = self.backend.keep(model.name, folder / document.MODELS / model.name)
            except Diverged as error:
                # Weights that are lost do not take the place of those that are not.
                message = (
                    f"`{model.name}` has diverged in step {self.backend.done}: {error} has NaN or infinite weights"
                )
                hint = f"no checkpoint of it is written{self._before()}; lower `lr`, or set `clip_norm`"
                raise RunError(Diagnostic("E0831", message, NO_SPAN, hint)) from None
            if saved is not None:
                yield model.name, saved

    def _before(self) -> str:
        found = disk.newest(self.place)
        return f", the last one is `{found}`" if found else ""

    def _failed(self, number: int, error: Exception) -> Diagnostic:
        said = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
        hint = "make room, or go on in another folder"
        if type(error).__name__ == "Unsavable":
            hint = "keep such values out of the data, as a text or a number"
        before = self._before().removeprefix(", ")
        hint = f"{hint}; {before}" if before else hint
        return Diagnostic("E0828", f"the checkpoint of step {number} cannot be written: {said}", NO_SPAN, hint)
