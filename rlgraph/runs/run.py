"""Runs a compiled program, and leaves behind what is worth keeping, however it ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rlgraph.backends.hard.node import is_hard
from rlgraph.errors import LEFT_BEHIND, NO_SPAN, Diagnostic, RunError, UsageMistake, count_phrase
from rlgraph.errors.lookups import ByName
from rlgraph.passes.compilation.compilation import Compilation
from rlgraph.passes.compilation.plan_times import predicted_seconds_by_work
from rlgraph.runs.backends import open_backend
from rlgraph.runs.checkpoint import outside_digests
from rlgraph.runs.checkpoint.best import parse_best
from rlgraph.runs.checkpoint.document import Checkpoint
from rlgraph.runs.checkpoint.interval import parse_interval
from rlgraph.runs.checkpoint.resuming import (
    checkpoint_to_resume,
    newest_step,
    restore_checkpoint,
    resumed_options,
    steps_left,
)
from rlgraph.runs.checkpoint.saving import Resumable, Saver
from rlgraph.runs.display import choose_display
from rlgraph.runs.events import CheckpointSaved, EventStream, NoteKeeper, Read, Restarted, RunEnded, user_event_readers
from rlgraph.runs.folder import MODELS, PLAN, PROGRAM, TRACE, RunFolder, diverged_error, recording_folder
from rlgraph.runs.folder_lock import this_process
from rlgraph.runs.jsonlines import with_metrics
from rlgraph.runs.mismatch_warning import MismatchWarning
from rlgraph.runs.observer import InterruptHandler, RunObserver
from rlgraph.runs.options import RunOptions, installed_versions
from rlgraph.runs.plan_picture import picture_text
from rlgraph.runs.progress import Display, QuietDisplay
from rlgraph.runs.recorder import Recorder
from rlgraph.runs.row_ages import row_ages
from rlgraph.runs.run_file import run_file_text
from rlgraph.runs.timeline import Timeline, check_writable
from rlgraph.runs.trackers.known import require_folder
from rlgraph.runs.trackers.live import LiveTracking
from rlgraph.runs.trained_models import TrainedModel

if TYPE_CHECKING:
    from rlgraph.backends.steps import StepResult


def _no_models() -> dict[str, TrainedModel]:
    return ByName((), "the run", "model")


@dataclass
class Run:
    """The result of a run: its metrics, its models, and where they were written."""

    metrics: list[dict[str, Any]] = field(default_factory=list)
    """A record for each step: `step`, `seconds` and every reported name; `phase` in programs that have several."""
    models: dict[str, TrainedModel] = field(default_factory=_no_models)
    """Every model of the program, by its name in it."""
    folder: Path | None = None
    """The folder where everything was written; None if nothing was."""
    saved: list[Path] = field(default_factory=list)
    """The folders of the trained models."""
    notes: list[str] = field(default_factory=list)
    """What the run has told besides, also with `progress=False`: warnings, and what failed while it went on."""

    def __repr__(self) -> str:
        where = f", in {self.folder}" if self.folder else ""
        return f"<run of {count_phrase(len(self.metrics), 'step')}{where}>"


class Interrupted(KeyboardInterrupt):
    """The error for Ctrl-C, SIGTERM or SIGHUP in a run: its `run` has what was done until then, and trained models were
    saved; its `signal` is the number of the signal."""

    def __init__(self, run: Run, number: int = signal.SIGINT) -> None:
        done = f"after {count_phrase(len(run.metrics), 'step')}" if run.metrics else "before its first step was over"
        super().__init__(f"interrupted {done}")
        self.run, self.signal = run, int(number)

    def _render_traceback_(self) -> list[str]:
        """Return the lines that a notebook shows in place of a traceback."""
        saved = (f"saved {path}" for path in self.run.saved)
        return [str(self), *saved, *([LEFT_BEHIND] if self.run.metrics else [])]


def run(
    compiled: Compilation,
    options: RunOptions,
    out: str | Path | None,
    overwrite: bool,
    progress: bool,
    on_event: Read | None,
) -> Run:
    """Run a program with its options; see `Compiled.run`."""
    options.check_values()
    options.check_backend()
    user_event_readers(on_event)
    require_folder(options.track, out or options.resume)
    if options.resume is None:
        folder = RunFolder.claim_folder(Path(out), overwrite) if out is not None else None
    else:
        options, folder = open_resumed_run(options)
    return run_in_folder(folder, compiled, options, choose_display() if progress else QuietDisplay(), on_event)


def open_resumed_run(options: RunOptions) -> tuple[RunOptions, RunFolder]:
    """Return the options with which a run is resumed, and its folder. Raise UsageMistake."""
    assert options.resume is not None
    return resumed_options(options, options.resume), RunFolder.open_for_resume(options.resume)


def run_in_folder(
    folder: RunFolder | None,
    compiled: Compilation,
    options: RunOptions,
    shown: Display,
    on_event: Read | None = None,
) -> Run:
    """Run a program, and write into a folder if one is given. A run that is saved on the way and has lost a process
    goes back to its last checkpoint, as often as the options say."""
    options = replace(options, threads=options.threads or _cores())
    if is_hard(options.device):
        compiled = replace(compiled, gpus=True)
    if folder is None:
        options = replace(options, keep_samples=0)
    guests, broken = user_event_readers(on_event)
    recorder = None if folder is None else Recorder(folder, options.kept_sample_count)
    kept = NoteKeeper()
    stream = EventStream([kept, shown] if recorder is None else [recorder, kept, shown], guests)
    tracking = None
    if folder is not None and options.track:
        tracking = LiveTracking(folder, options.track, options.track_model, stream.publish)
        stream.readers.append(tracking)
    left, again = options.restarts if options.save_every and folder else 0, False
    try:
        while True:
            try:
                return _once(
                    folder, compiled, options, shown, stream, broken, kept.notes, again=again, may_lose=left > 0
                )
            except _Lost as lost:
                assert folder is not None and recorder is not None
                folder, left, again = RunFolder.open_for_resume(folder.path), left - 1, True
                last = newest_step(folder.path)
                options = replace(options, resume=None if last is None else folder.path)
                where = "begins anew" if last is None else f"goes on from step {last}"
                more = f"{left} more time{'s' * (left != 1)} if need be" if left else "for the last time"
                recorder.folder, broken = folder, []
                if tracking is not None:
                    tracking.folder = folder
                text = f"the run {where} by itself, {more}"
                stream.publish(Restarted(step=last or 0, error=str(lost.error), text=text))
    finally:
        shown.close()


class _Lost(Exception):
    """The error for a process that is gone or does not answer, after which the run can resume from a checkpoint."""

    def __init__(self, error: RunError) -> None:
        super().__init__(str(error))
        self.error = error


def _once(
    folder: RunFolder | None,
    compiled: Compilation,
    options: RunOptions,
    shown: Display,
    stream: EventStream,
    first: Sequence[str],
    notes: list[str],
    *,
    again: bool,
    may_lose: bool,
) -> Run:
    """Run once. first: what is told first. notes: all that is told. again: the run has begun before. may_lose: raise
    `_Lost` if a process is lost, and report nothing."""
    result = Run(folder=folder.path if folder else None, notes=notes)
    with InterruptHandler(shown) as interrupts:
        timeline = Timeline() if options.trace else None
        watch = RunObserver(
            shown,
            interrupts,
            timeline,
            stream=stream,
            show_samples=options.show_samples,
            ages=row_ages(compiled.program),
        )
        if folder:
            folder.note = watch.show_note
        for text in first:
            watch.show_note(text)
        try:
            with _claimed(folder, compiled, options, again) as (checkpoint, taken):
                _steps(result, folder, compiled, options, taken, watch, checkpoint, again=again, may_lose=may_lose)
            watch.write_timeline(options.trace)
            watch.publish(RunEnded(step=len(result.metrics), outcome="finished"))
        except BaseException as error:
            if may_lose and _is_lost(error):
                raise _Lost(cast(RunError, error)) from None
            watch.publish(_ended(error, len(result.metrics)))
            if options.resume is None and not again:
                _give_back(result, folder)
            elif folder and not result.metrics:
                folder.restore_run_inputs()
                if isinstance(error, KeyboardInterrupt):
                    _show_how_to_go_on(folder, watch)
            with _noted_failures(watch, error):
                watch.write_timeline(options.trace)
            if isinstance(error, KeyboardInterrupt):
                if not interrupts.again:
                    raise Interrupted(result, interrupts.signal) from None
                error.signal = interrupts.signal  # type: ignore[attr-defined]
            if isinstance(error, RunError) and result.metrics:
                error.run = result
            raise
        finally:
            if folder:
                folder.close()
    return result


def _ended(error: BaseException, steps: int) -> RunEnded:
    if isinstance(error, KeyboardInterrupt):
        return RunEnded(step=steps, outcome="interrupted")
    return RunEnded(step=steps, outcome="failed", text=str(error) or type(error).__name__)


def _is_lost(error: BaseException) -> bool:
    from rlgraph.backends.ray.failures import is_process_lost

    return is_process_lost(error)


@contextmanager
def _claimed(
    folder: RunFolder | None, compiled: Compilation, options: RunOptions, again: bool
) -> Iterator[tuple[Checkpoint | None, outside_digests.Digests]]:
    """Check before the run what it has to read and write. Yield the checkpoint that it is resumed from, if any, and the
    digests of what the program takes from outside, for a run that is saved."""
    from rlgraph.backends.recording import claim_folder, has_recording, read_header

    if options.save_every is not None:
        parse_interval(options.save_every)
        _need_folder(folder)
    if options.keep_best is not None:
        parse_best(options.keep_best, compiled.program)
    if options.trace:
        check_writable(options.trace)
    if options.replay:
        read_header(recording_folder(options.replay), compiled.name)
    taken = outside_digests.file_digests(compiled) if options.save_every is not None else {}
    checkpoint = None if options.resume is None else checkpoint_to_resume(options.resume, compiled, options, taken)
    after = checkpoint.step if checkpoint else None
    if again and checkpoint is None and options.record and has_recording(options.record):
        after = 0
    with claim_folder(options.record, compiled.name, options.seed, after) if options.record else nullcontext():
        if folder:
            plan = compiled.file is not None
            differs = [] if checkpoint is None else outside_digests.change_notes(checkpoint.outside, taken)
            how = {**_how(compiled, options), "differs": differs}
            picture = picture_text(compiled, options.backend)
            copy = folder.path / (PLAN if plan else PROGRAM)
            repeats = run_file_text(compiled.source, copy, where_it_ran(compiled), compiled.set, options)
            folder.write_run_inputs(
                compiled.source.text, compiled.text(), how, plan=plan, picture=picture, repeats=repeats
            )
        yield checkpoint, taken


def _steps(
    result: Run,
    folder: RunFolder | None,
    compiled: Compilation,
    options: RunOptions,
    taken: outside_digests.Digests,
    watch: RunObserver,
    checkpoint: Checkpoint | None,
    *,
    again: bool,
    may_lose: bool,
) -> None:
    with open_backend(compiled, options, watch) as (backend, models):
        result.models.update(models)
        phases = {phase.name: phase.steps or options.steps for phase in compiled.program.phases}
        done, resumable = 0, cast(Resumable, backend)
        for text in resumable.overlong_notes():
            watch.show_note(text)
        if options.save_every is not None:
            # The models are loaded now, so the revisions that the hub gave are known.
            taken = {**taken, **outside_digests.hub_revisions(compiled)}
        if checkpoint is not None:
            assert folder is not None
            restore_checkpoint(checkpoint, compiled, options, taken, resumable, watch.show_note)
            done = checkpoint.step
            result.metrics += map(_by_metric, folder.cut_after_step(done))
            watch.go_on_after(folder.path / TRACE)
        elif again and folder:
            folder.cut_after_step(0)
        saver = None
        if folder and options.save_every:

            def publish_saved(number: int, path: Path) -> None:
                watch.publish(CheckpointSaved(step=number, path=path))

            saver = Saver(folder, compiled, options, taken, resumable, publish_saved)
        warning = MismatchWarning(watch.show_note)
        try:
            watch.run_started(phases, done, compiled.name, predicted_seconds_by_work(compiled))
            for step in backend.run_steps(steps_left(compiled, options, done)):
                result.metrics.append(_record(step, len(phases) > 1))
                watch.step_done(step, result.metrics[-1])
                warning.step_done(step)
                if saver:
                    saver.step_done(step.number, result.metrics[-1])
            if saver:
                saver.save()
            _count_updates(result, backend.optimizer_step_counts())
            if folder:
                result.saved += folder.save(_trained(result))
                result.folder = folder.path
            _leave(result)
            if folder is None:
                _require_sound_weights(result)
        except BaseException as error:
            if may_lose and _is_lost(error):
                if saver:
                    saver.wait_ignoring_errors()
                raise
            _count_updates(result, backend.optimizer_step_counts())
            _rescue(result, folder, watch, saver, error)
            if isinstance(error, KeyboardInterrupt):
                _leave(result)
            elif isinstance(error, RunError) and result.metrics:
                with _noted_failures(watch, error):
                    _leave(result)
            raise


def _cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _count_updates(result: Run, updates: Mapping[str, int]) -> None:
    result.models.update({name: replace(model, updates=updates[name]) for name, model in result.models.items()})


def _trained(result: Run) -> dict[str, TrainedModel]:
    return {name: model for name, model in result.models.items() if model.updates}


def _leave(result: Run) -> None:
    """Keep the weights that are only in the backend, which will be closed."""
    saved = {path.name: path for path in result.saved}
    for name, model in result.models.items():
        model.weights.prepare_exit(saved.get(name))


def _require_sound_weights(result: Run) -> None:
    """Raise RunError where a trained model has diverged that is not saved, which would find that, too."""
    for name, model in _trained(result).items():
        if odd := model.weights.first_diverged():
            raise diverged_error(name, odd, "")


def _rescue(
    result: Run, folder: RunFolder | None, watch: RunObserver, saver: Saver | None, error: BaseException
) -> None:
    """Save what there is after a run that did not come to its end, because of `error`."""
    if folder is None:
        return
    if saver:
        with _noted_failures(watch, error):
            saver.save()
    left = {name: model for name, model in _trained(result).items() if folder.path / MODELS / name not in result.saved}
    for name, model in left.items():
        # A model that cannot be saved does not keep the others from being saved.
        with _noted_failures(watch, error):
            result.saved += folder.save({name: model})
    result.folder = folder.path
    for path in result.saved:
        watch.show_note(f"saved {path}")
    if saver:
        _show_how_to_go_on(folder, watch)


def _show_how_to_go_on(folder: RunFolder, watch: RunObserver) -> None:
    if (last := newest_step(folder.path)) is not None:
        watch.show_note(f"go on from step {last} with `rlgraph resume {folder.path}`")


def _need_folder(folder: RunFolder | None) -> None:
    if folder is None:
        message = "a run without a folder cannot be saved on the way"
        raise UsageMistake(Diagnostic("E0830", message, NO_SPAN, "give one with `out`"))


@contextmanager
def _noted_failures(watch: RunObserver, first: BaseException) -> Iterator[None]:
    """Report a second failure as a note: the first failure of a run is the one to raise."""
    try:
        yield
    except RunError as second:
        if str(second) != str(first):
            watch.show_note(str(second))


def _give_back(result: Run, folder: RunFolder | None) -> None:
    """Discard the folder of a run in which nothing was done."""
    if folder and not result.metrics and not _trained(result):
        folder.discard_run()
        result.folder = None


def _record(step: StepResult, phases: bool) -> dict[str, Any]:
    where = {"phase": step.phase} if phases else {}
    fields = {"step": step.number, **where, "seconds": round(step.seconds, 6)}
    return _by_metric(with_metrics(fields, {**step.metrics, **step.extra}))


def _by_metric(record: dict[str, Any]) -> dict[str, Any]:
    return ByName(record, "the step", "metric")


def _how(compiled: Compilation, options: RunOptions) -> dict[str, object]:
    chosen = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(options).items()}
    # Whoever replays this run may be in another folder.
    recorded = {"record": options.record and str(options.record.resolve())}
    return {
        "program": compiled.source.path,
        **where_it_ran(compiled),
        "set": dict(compiled.set),
        **chosen,
        **recorded,
        "folder": str(Path.cwd()),
        "versions": installed_versions(),
        "process": this_process(),
    }


def where_it_ran(compiled: Compilation) -> dict[str, object]:
    """Return where a program runs: the schedule's file or its text, and the number of devices without one."""
    span = compiled.schedule.span
    if not span.line or span.source.path == compiled.source.path:
        return {"schedule": None, "devices": compiled.devices}
    file = Path(span.source.path)
    return {"schedule": str(file) if file.is_file() else span.source.text, "devices": compiled.devices}
