"""The writer of a run's checkpoints, while it progresses and when it is interrupted.

A thread writes the state after a step while the next steps run: these may read the models, and an update of a model
waits until it is written, so that no copy is needed. Small state is copied when the step is over.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rlgraph.backends.saved_models import DIVERGED, MODELS, HalfUpdatedModel, NonFiniteWeights
from rlgraph.errors import NO_SPAN, Diagnostic, RunError
from rlgraph.files import cause_text
from rlgraph.passes.compilation.compilation import Compilation
from rlgraph.runs.checkpoint import disk, document, outside_digests
from rlgraph.runs.checkpoint.best import BEST, REPORTED, parse_best
from rlgraph.runs.checkpoint.interval import parse_interval
from rlgraph.runs.folder import BEST_MODELS, CHECKPOINTS, RunFolder, replace_folder
from rlgraph.runs.options import KEEP, RunOptions, installed_versions

if TYPE_CHECKING:
    from rlgraph.backends.in_flight import Things
    from rlgraph.backends.saved_models import PendingSave, SavedModel


class Resumable(Protocol):
    """A backend whose runs can be saved and resumed."""

    extra_state_names: Sequence[str]
    """The names of what it keeps from step to step besides the program's step state (things)."""
    done: int
    """The number of the last step that is over."""

    def source_row_counts(self) -> dict[str, int | None]:
        """Return the number of rows of each data source; None where it is not known."""
        ...

    def overlong_notes(self) -> list[str]:
        """Return sentences that say what was done with rows that are too long."""
        ...

    def models_are_at_step_end(self) -> bool:
        """Return whether the models are as the last finished step left them."""
        ...

    def hold_weights(self, model: str) -> PendingSave | None:
        """Return the model as the last finished step left it; None if it is as it was loaded. Raise HalfUpdatedModel if
        a step has begun to change it since then, and RunError."""
        ...

    def last_state_value(self, name: str) -> Any:
        """Return the value of step state (a thing) after that step, or of a name in `extra_state_names`."""
        ...

    def resume(self, number: int, things: Things, models: Mapping[str, SavedModel]) -> None:
        """Continue after step `number` instead of beginning. Raise EngineError for weights of another model."""
        ...


@dataclass(frozen=True)
class _Taken:
    """The state after a step, taken when the step was over."""

    number: int
    header: Mapping[str, Any]
    things: document.Encoded
    models: Mapping[str, PendingSave]

    def allow_model_changes(self) -> None:
        """Release the models, so that no update waits for them any more."""
        for model in self.models.values():
            with suppress(RunError):
                model.allow_changes()


class Saver:
    """The writer of one run's checkpoints."""

    def __init__(
        self,
        folder: RunFolder,
        compiled: Compilation,
        options: RunOptions,
        now: outside_digests.Digests,
        backend: Resumable,
        saved: Callable[[int, Path], None] = lambda step, path: None,
    ) -> None:
        """Make a saver. now: the digests of what the program takes from outside; saved: told in another thread of the
        step whose checkpoint is on the disk, and where."""
        assert options.save_every is not None
        self.outside, self.saved = now, saved
        self.folder, self.compiled, self.options, self.backend = folder, compiled, options, backend
        self.often = parse_interval(options.save_every)
        self.last = backend.done
        """The last step whose checkpoint is written, is being written, or was tried."""
        self.best = parse_best(options.keep_best, compiled.program) if options.keep_best else None
        self._value: float | None = None
        """The last value of the metric that makes a checkpoint the best, since the previous checkpoint."""
        self._under_way: tuple[int, Future[None]] | None = None
        """The step whose checkpoint is being written, and the future of that."""
        self._losses = folder.losses
        """The folder's `losses` when the last checkpoint was begun."""

    @property
    def checkpoints_folder(self) -> Path:
        return self.folder.path / CHECKPOINTS

    def step_done(self, number: int, metrics: Mapping[str, Any]) -> None:
        """Take note of a finished step and what it reported, and save if that is due. Raise RunError if a checkpoint
        cannot be written, be it an earlier one."""
        if self.best is not None and (value := self.best.reported_value(metrics)) is not None:
            self._value = value
        if self._under_way is not None and self._under_way[1].done():
            self.wait_until_written()
        if self.often.is_due(number) or self._losses != self.folder.losses:
            self.start_saving()

    def save(self) -> None:
        """Save the state after the last step, and wait until it is written. Raise RunError."""
        self.start_saving()
        self.wait_until_written()
        # The folder may have been removed meanwhile.
        self.start_saving()
        self.wait_until_written()

    def start_saving(self) -> None:
        """Begin to write the state after the last step, unless it is saved or weights have changed since then. Raise
        RunError; earlier checkpoints stay as they were."""
        self.wait_until_written()
        with suppress(OSError):
            self.folder.recreate_if_missing()
        if self._losses != self.folder.losses:
            # The earlier checkpoints are gone with the folder.
            self._losses, self.last = self.folder.losses, -1
        number = self.backend.done
        if number == self.last or not self.backend.models_are_at_step_end():
            return
        try:
            taken = self._taken(number)
        except HalfUpdatedModel:
            return
        except Exception as error:  # each library has its own way to say that a disk is full
            self.last = number
            raise self._told(number, error) from None
        self.last, self._under_way = number, (number, _in_thread(lambda: self._write(taken)))
        self.often.note_saved()
        self._value = None

    def wait_until_written(self) -> None:
        """Wait until nothing is being written. Raise RunError if writing failed; it is not retried."""
        if self._under_way is None:
            return
        number, written = self._under_way
        error = written.exception()
        self._under_way = None
        with suppress(OSError):
            self.folder.recreate_if_missing()
        if self._losses != self.folder.losses:
            return
        if error is not None:
            self.last = self.backend.done
            raise self._told(number, error) from None

    def wait_ignoring_errors(self) -> None:
        """Wait for what is being written, and ignore its errors: the run ends for another reason."""
        with suppress(RunError):
            self.wait_until_written()

    def _taken(self, number: int) -> _Taken:
        program = self.compiled.program
        models: dict[str, PendingSave] = {}
        header: dict[str, Any] = {
            "step": number,
            "seed": self.options.seed,
            "phases": [[phase.name, phase.steps] for phase in program.phases],
            "rows": self.backend.source_row_counts(),
            "set": dict(self.compiled.set),
            "outside": self.outside,
            "versions": installed_versions(),
        }
        if self.best is not None and self._value is not None:
            header[REPORTED] = {self.best.metric: self._value}
        names = (*document.step_state_names(program), *self.backend.extra_state_names)
        things = document.encode_step_state({name: self.backend.last_state_value(name) for name in names})
        taken = _Taken(number, header, things, models)
        try:
            for model in program.models:
                held = self.backend.hold_weights(model.name)
                if held is not None:
                    models[model.name] = held
        except BaseException:
            taken.allow_model_changes()
            raise
        return taken

    def _write(self, taken: _Taken) -> None:
        try:
            # Metrics reach the disk before the checkpoint of their step.
            self.folder.flush()
            with disk.draft_checkpoint(self.checkpoints_folder, taken.number) as folder:
                models = self._models(taken, folder / MODELS)
                source, graph = self.compiled.source.text, self.compiled.text()
                document.write_checkpoint(folder, taken.header, source, graph, taken.things, models)
            best = None if self.best is None else self.best.best_checkpoint(self.checkpoints_folder)
            if best is not None:
                disk.write_text_atomically(self.checkpoints_folder / BEST, f"{best.name}\n")
            disk.prune_checkpoints(self.checkpoints_folder, self.options.keep or KEEP, best)
            newest = self.checkpoints_folder / disk.checkpoint_name(taken.number)
            if best == newest:
                taken.allow_model_changes()
                self._write_best_models(newest)
            self.saved(taken.number, newest)
        finally:
            taken.allow_model_changes()

    def _write_best_models(self, checkpoint: Path) -> None:
        """Write the models of the best checkpoint as Hugging Face folders, from its files."""
        from rlgraph.runs.checkpoint.model_folders import name_base, write_saved_model

        read = document.read_checkpoint(checkpoint)
        for name in read.models:
            final = self.folder.path / BEST_MODELS / name
            draft = final.with_name(f".{name}")
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(parents=True)
            try:
                write_saved_model(document.saved_model_of(read, name), name, self.compiled, draft)
                name_base(draft, final)
                disk.flush_folder(draft)
                replace_folder(draft, final)
            finally:
                shutil.rmtree(draft, ignore_errors=True)

    def _models(self, taken: _Taken, place: Path) -> dict[str, SavedModel]:
        for name, model in taken.models.items():
            model.begin_writing(place / name)
        saved: dict[str, SavedModel] = {}
        failures: list[Exception] = []
        for name, model in taken.models.items():
            try:
                saved[name] = model.wait_written()
            except NonFiniteWeights as error:
                # Diverged weights must not replace sound ones.
                message = f"`{name}` has diverged in step {taken.number}: {error} has {DIVERGED}"
                hint = f"no checkpoint of it is written{self._before()}; lower `lr`, or set `clip_norm`"
                failures.append(RunError(Diagnostic("E0831", message, NO_SPAN, hint)))
            except Exception as error:
                # Other workers may still write into the folder: it stays as long as they do.
                failures.append(error)
        if failures:
            raise failures[0]
        return saved

    def _before(self) -> str:
        path = disk.newest_checkpoint(self.checkpoints_folder)
        return f", the last one is `{path}`" if path else ""

    def _told(self, number: int, error: BaseException) -> RunError:
        if isinstance(error, RunError):
            return error
        hint = "make room, or go on in another folder"
        if type(error).__name__ == "Unsavable":
            hint = "keep such values out of the data, as a text or a number"
        previous = self._before().removeprefix(", ")
        hint = f"{hint}; {previous}" if previous else hint
        return RunError(
            Diagnostic(
                "E0828", f"the checkpoint of step {number} cannot be written: {cause_text(error)}", NO_SPAN, hint
            )
        )


def _in_thread(work: Callable[[], None]) -> Future[None]:
    """Run `work` in a daemon thread, which does not keep the process from ending at once."""
    future = Future[None]()

    def run_work() -> None:
        try:
            work()
            future.set_result(None)
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run_work, name="checkpoint", daemon=True).start()
    return future
