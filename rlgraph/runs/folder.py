"""The folder of a run, with these files:

program.rlf      the program as it was run; `plan.json` where that was a plan file
run.json         how it was run: what was set in it, seed, steps, versions, by which process
run.toml         the same as a run file, which repeats the run
graph.txt        its graph after the last pass
plan_picture.json  what works where, with the predicted seconds and bytes, as the page of `rlgraph watch` draws it
metrics.jsonl    a line a step: `step`, `seconds`, and every reported name
events.jsonl     what happened: each step's seconds by work, checkpoints, warnings, how the run ended
samples.jsonl    some rows of every step, as a person reads them, with the numbers that they were given
trace.jsonl      a line a step, where steps may overlap: which weights made which rows, and what became of these
trackers/        what was sent to trackers; beside it folders that these write, as `tensorboard/`
models/NAME/     the trained models, as `from_pretrained` reads them
best/NAME/       with `--keep-best`: the trained models of the best checkpoint, as `from_pretrained` reads them
checkpoints/     what the run can be resumed from
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Protocol

from rlgraph.backends.saved_models import DIVERGED
from rlgraph.catalog.models.adapters import update_adapter_base_path
from rlgraph.errors import NO_SPAN, Diagnostic, RlgraphError, RunError, UsageMistake
from rlgraph.files import cause_text, failure_reason
from rlgraph.runs.checkpoint.disk import flush_folder, write_text_atomically
from rlgraph.runs.folder_lock import HOW, lock_folder
from rlgraph.runs.jsonlines import decode_nonfinite, encode_nonfinite
from rlgraph.runs.plan_picture import PICTURE
from rlgraph.runs.replaced_run import REPLACED, bring_back, forget, remove_run, set_aside
from rlgraph.runs.samples import SAMPLES, cut_samples_after
from rlgraph.runs.trackers.known import TRACKER_FOLDERS

METRICS, TRACE, EVENTS, GRAPH = "metrics.jsonl", "trace.jsonl", "events.jsonl", "graph.txt"
PROGRAM, PLAN, REPEATS = "program.rlf", "plan.json", "run.toml"
CHECKPOINTS, MODELS, BEST_MODELS = "checkpoints", "models", "best"
OURS = (
    PROGRAM,
    PLAN,
    HOW,
    REPEATS,
    GRAPH,
    PICTURE,
    METRICS,
    TRACE,
    EVENTS,
    SAMPLES,
    MODELS,
    BEST_MODELS,
    CHECKPOINTS,
    *TRACKER_FOLDERS,
)
DEFAULT_PARENT = Path("runs")


class SavableModel(Protocol):
    """A model that can be saved."""

    def save(self, folder: str | Path) -> None: ...


class RunFolder:
    """A folder that belongs to one run, with its metrics file open and locked."""

    def __init__(self, path: Path, metrics: IO[str], made: bool) -> None:
        self.path = path
        self.note: Callable[[str], None] = lambda _: None
        """The function that is told if the folder was removed or moved."""
        self.losses = 0
        """The number of times that the folder was found gone."""
        self._metrics = metrics
        self._texts: Mapping[str, str] = {}
        """The texts of the other files that were written, by file name."""
        self._earlier: Mapping[str, str] = {}
        """Those that they had before."""
        self._beside: dict[str, IO[str]] = {}
        """The files beside the metrics that have lines of every step, by name."""
        self._made = made
        self._replaces = False
        """Whether an earlier run is set aside, which comes back if nothing is run."""

    @classmethod
    def make_numbered(cls, name: str) -> RunFolder:
        """Make `runs/NAME-1`, or the next free number: two runs that start at once get two folders."""
        number = 1
        with suppress(OSError):
            taken = [entry.name.removeprefix(f"{name}-") for entry in DEFAULT_PARENT.glob(f"{name}-*")]
            number = max((int(end) for end in taken if end.isdecimal()), default=0) + 1
        while True:
            path = DEFAULT_PARENT / f"{name}-{number}"
            try:
                DEFAULT_PARENT.mkdir(exist_ok=True)
                path.mkdir()
                return cls._claimed(path, True)
            except FileExistsError:
                if not DEFAULT_PARENT.is_dir():
                    raise _unusable(DEFAULT_PARENT, "it is a file") from None
                number += 1
            except OSError as error:
                raise _unusable(path, failure_reason(error)) from None

    @classmethod
    def claim_folder(cls, path: Path, overwrite: bool = False) -> RunFolder:
        """Take this folder: a new or empty one, or with `overwrite` that of an earlier run. Raise UsageMistake."""
        # A shell leaves `~` as it is behind `--out=` and in quotes, and Python everywhere.
        path = path.expanduser()
        made, replaces = not path.exists(), False
        try:
            if (path / REPLACED).exists() and not (path / METRICS).exists():
                bring_back(path, OURS)
            path.mkdir(parents=True, exist_ok=True)
            inside = {entry.name for entry in path.iterdir()}
            if METRICS in inside:
                with (path / METRICS).open("r+", encoding="utf-8") as metrics:
                    lock_folder(metrics, path)
                    if overwrite:
                        set_aside(path, OURS)
                        replaces = True
            if inside and not replaces:
                hint = "take another folder with `--out`"
                replaced = ", or replace the run in it with `--overwrite` (`overwrite=True` in Python)"
                hint += replaced if METRICS in inside else ""
                other = ", and has no run that `--overwrite` could replace" if overwrite else ""
                raise UsageMistake(Diagnostic("E0810", f"the folder `{path}` is not empty{other}", NO_SPAN, hint))
            folder = cls._claimed(path, made)
            folder._replaces = replaces
            return folder
        except FileExistsError:
            raise _unusable(path, "another run has just begun in it" if path.is_dir() else "it is a file") from None
        except OSError as error:
            raise _unusable(path, failure_reason(error)) from None

    @classmethod
    def _claimed(cls, path: Path, made: bool) -> RunFolder:
        # Mode x: if two runs saw the same empty folder at once, only one gets it.
        metrics = _new(path / METRICS)
        lock_folder(metrics, path)
        return cls(path, metrics, made)

    @classmethod
    def open_for_resume(cls, path: Path) -> RunFolder:
        """Open the folder of a run that is resumed. Raise UsageMistake if a run is at work in it."""
        try:
            metrics = _lines(path / METRICS)
            lock_folder(metrics, path)
            return cls(path, metrics, False)
        except OSError as error:
            raise _unusable(path, failure_reason(error)) from None

    def cut_after_step(self, step: int) -> list[dict[str, Any]]:
        """Cut metrics, trace and samples after this step, and return the metrics that stay."""
        try:
            records = cut_lines_after(self._metrics, step)
            for name, cut in ((TRACE, cut_lines_after), (SAMPLES, cut_samples_after)):
                if (self.path / name).exists():
                    self._beside[name] = _lines(self.path / name)
                    cut(self._beside[name], step)
        except OSError as error:
            raise _unusable(self.path, failure_reason(error)) from None
        return [decode_nonfinite(record) for record in records]

    def write_run_inputs(
        self,
        text: str,
        graph: str,
        how: Mapping[str, object],
        *,
        plan: bool = False,
        picture: str = "",
        repeats: str = "",
    ) -> None:
        """Write what is run: the text of a program or of a plan file, its graph, and how it is run. picture: that of
        its plan, if there is one. repeats: the run file, if there is one."""
        written = {PLAN if plan else PROGRAM: text, GRAPH: graph, HOW: json.dumps(how, indent=2) + "\n"}
        written |= {PICTURE: picture} if picture else {}
        written |= {REPEATS: repeats} if repeats else {}
        try:
            earlier = [self.path / name for name in written if (self.path / name).is_file()]
            self._earlier = {path.name: path.read_text("utf-8") for path in earlier}
            # Each is replaced whole or not at all: a resumed run has them already, and could not be resumed without.
            for name, text in written.items():
                write_text_atomically(self.path / name, text)
            self._texts = written
        except OSError as error:
            raise _unusable(self.path, failure_reason(error)) from None

    def restore_run_inputs(self) -> None:
        """Write again what was there before `write_run_inputs`: a resumed run has done nothing of what it was to do."""
        with suppress(OSError):
            for name, text in self._earlier.items():
                write_text_atomically(self.path / name, text)

    def recreate_if_missing(self) -> None:
        """Make the folder again if it was removed or moved away, so that a run of a day is not lost with it. What was
        written is copied from the files, which are still open. Raise OSError."""
        if _is(self._metrics, self.path / METRICS):
            return
        gone = self.path
        self._metrics, self.path = _again(self._metrics, gone)
        self.losses += 1
        for name, file in self._beside.items():
            if not _is(file, self.path / name):
                self._beside[name] = _copied(file, self.path / name)
        for name, text in self._texts.items():
            write_text_atomically(self.path / name, text)
        self.note(
            f"`{gone}` is not there any more: it was removed or moved while the run wrote into it; `{self.path}` has "
            "the metrics of all steps again, and gets what is written from here on, without the checkpoints before"
        )

    def append_step(
        self,
        record: Mapping[str, Any],
        trace: Mapping[str, Any] | None = None,
        samples: Sequence[str] = (),
        event: str = "",
    ) -> None:
        """Append the line of a step, that of its trace, those of its samples, and that of its event. Raise RunError if
        the disk is full."""
        self._forget_replaced()
        try:
            self.recreate_if_missing()
            traced = [] if trace is None else [json.dumps(trace)]
            for name, lines in ((TRACE, traced), (SAMPLES, samples), (EVENTS, [event] if event else [])):
                self._append_beside(name, lines)
            self._metrics.write(json.dumps(encode_nonfinite(record), allow_nan=False) + "\n")
            self._metrics.flush()
        except OSError as error:
            raise RunError(
                Diagnostic(
                    "E0812",
                    f"the metrics cannot be written to `{self.path}`: {_reason(error)}",
                    NO_SPAN,
                    _ROOM,
                )
            ) from None

    def append_event(self, line: str) -> None:
        """Append an event that is no step. A full disk is told of when the next step is written."""
        with suppress(OSError, ValueError):
            self._append_beside(EVENTS, [line])

    def _append_beside(self, name: str, lines: Sequence[str]) -> None:
        """Append lines to a file beside the metrics. Raise OSError."""
        if not lines:
            return
        if name not in self._beside:
            path = self.path / name
            self._beside[name] = _at_end(path) if path.exists() else _new(path)
        file = self._beside[name]
        file.writelines(f"{line}\n" for line in lines)
        file.flush()

    def save(self, models: Mapping[str, SavableModel]) -> list[Path]:
        """Save these models, each one whole or not at all, and return their folders. Raise RunError, also for weights
        that have diverged, which are not saved: a model that was saved before stays."""
        from rlgraph.backends.engines.tensor_files import first_diverged_tensor

        written: list[Path] = []
        with suppress(OSError):
            self.recreate_if_missing()
        losses = self.losses
        for name, model in models.items():
            final, draft = (self.path / MODELS / called for called in (name, f".{name}"))
            try:
                draft.mkdir(parents=True, exist_ok=True)
                model.save(draft)
                odd = first_diverged_tensor(draft)
                if not odd:
                    update_adapter_base_path(draft, final)
                    flush_folder(draft)
                    replace_folder(draft, final)
            except Exception as error:  # each library has its own way to say that a disk is full
                message = f"`{name}` cannot be saved in `{final}`: {_reason(error)}"
                hint = error.diagnostics[0].hint if isinstance(error, RlgraphError) else _ROOM
                raise RunError(Diagnostic("E0813", message, NO_SPAN, hint)) from None
            finally:
                shutil.rmtree(draft, ignore_errors=True)
            if odd:
                raise diverged_error(
                    name, odd, f"`{final}` stays as it was saved before; " if final.exists() else "it is not saved; "
                )
            written.append(final)
        with suppress(OSError):
            self.recreate_if_missing()
        return written if losses == self.losses else self.save(models)

    def flush(self) -> None:
        """Flush what was written to the disk, so that it survives a power failure. Raise OSError. It may be called
        during `step`, which leaves nothing in its buffers."""
        for file in (self._metrics, *self._beside.values()):
            os.fsync(file.fileno())

    def _forget_replaced(self) -> None:
        if self._replaces:
            forget(self.path)
            self._replaces = False

    def close(self) -> None:
        """Close the files."""
        self._forget_replaced()
        for file in (self._metrics, *self._beside.values()):
            with suppress(OSError):
                file.close()

    def discard_run(self) -> None:
        """Remove everything that was written, because nothing was run; an earlier run comes back."""
        if self._replaces:
            self._replaces = False
            self.close()
            with suppress(OSError):
                bring_back(self.path, OURS)
            return
        self.close()
        with suppress(OSError):
            remove_run(self.path, OURS)
            if self._made:
                self.path.rmdir()
            if self.path.parent == DEFAULT_PARENT:
                DEFAULT_PARENT.rmdir()


def diverged_error(name: str, tensor: str, kept: str) -> RunError:
    """Return the error for a model with such a tensor. kept: what is left of it, and `; `."""
    message = f"`{name}` has diverged: {tensor} has {DIVERGED}"
    return RunError(Diagnostic("E0831", message, NO_SPAN, f"{kept}lower `lr`, or set `clip_norm`"))


def recording_folder(path: Path) -> Path:
    """Return the folder of a recording. The path may also be a run's folder, and means what that run recorded. Raise
    UsageMistake for a run that recorded nothing."""
    try:
        record = json.loads((path / HOW).read_text("utf-8"))["record"]
    except (OSError, ValueError, KeyError, TypeError):
        return path
    if isinstance(record, str):
        return Path(record)
    message, hint = f"the run in `{path}` was not recorded", "run it again with `--record DIR`"
    raise UsageMistake(Diagnostic("E0815", message, NO_SPAN, hint))


_BYTES = "surrogateescape"
"""The way to read bytes that are no text: a machine that lost its power may leave some in a file."""


def _new(path: Path) -> IO[str]:
    """Create a file for writing and reading. Raise FileExistsError if it exists."""
    return path.open("x+", encoding="utf-8", errors=_BYTES)


def _is(file: IO[str], path: Path) -> bool:
    """Return whether an open file is the one at a path."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except OSError:
        return False


def _again(metrics: IO[str], path: Path) -> tuple[IO[str], Path]:
    """Return the metrics of a folder that is gone and their new folder: the same place; if another run has that, one
    beside it; if that is impossible, one in the folder for temporary files. Raise OSError."""
    beside = (path.with_name(f"{path.name}-again{number}") for number in ("", *range(2, 100)))
    here = Path(tempfile.gettempdir())
    elsewhere = (here / f"{path.name}-again{number}" for number in ("", *range(2, 100)))
    failure: OSError | None = None
    for place in (path, *beside, *elsewhere):
        try:
            place.mkdir(parents=True, exist_ok=True)
            copy = _copied(metrics, place / METRICS)
            lock_folder(copy, place)
            return copy, place
        except OSError as error:
            failure = failure or error
    assert failure is not None
    raise failure


def _copied(file: IO[str], path: Path) -> IO[str]:
    """Copy a file to a path, and return the copy, open at its end."""
    copy = _new(path)
    file.seek(0)
    shutil.copyfileobj(file, copy)
    copy.flush()
    file.close()
    return copy


def _lines(path: Path) -> IO[str]:
    """Open a file with a line for each step, to append to it."""
    return path.open("r+", encoding="utf-8", errors=_BYTES)


def _at_end(path: Path) -> IO[str]:
    """Open a file with lines to append to it. A line that was half written when the run was killed is ended."""
    file = _lines(path)
    size = file.seek(0, os.SEEK_END)
    if size:
        file.seek(size - 1)
        if file.read(1) != "\n":
            file.write("\n")
    return file


def cut_lines_after(file: IO[str], step: int) -> list[dict[str, Any]]:
    """Cut a file with one JSON line per step after this step, and return the records that stay."""
    file.seek(0)
    records, end = [], 0
    for line in file.read().splitlines(keepends=True):
        try:
            record = json.loads(line)
            if not line.endswith("\n") or record["step"] > step:
                break
        except (ValueError, LookupError, TypeError, RecursionError):
            break
        records.append(record)
        end += len(line.encode("utf-8", _BYTES))
    file.seek(0)
    file.truncate(end)
    file.seek(0, os.SEEK_END)
    return records


def replace_folder(draft: Path, final: Path) -> None:
    """Move a draft to its final place. A resumed run's folder may have an older one of that name, which is removed."""
    old = final.with_name(f".{final.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if final.exists():
        final.rename(old)
    draft.rename(final)
    shutil.rmtree(old, ignore_errors=True)


def _unusable(path: Path, why: str) -> UsageMistake:
    message, hint = f"`{path}` cannot hold a run: {why}", "take another folder with `--out`"
    return UsageMistake(Diagnostic("E0811", message, NO_SPAN, hint))


_ROOM = "make room, or take a folder on another disk with `--out`"


def _reason(error: Exception) -> str:
    if isinstance(error, RlgraphError):
        return error.diagnostics[0].message
    return cause_text(error)
