"""The functions that resume a run from its newest checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

from rlgraph.backends.engines.errors import EngineError
from rlgraph.errors import NO_SPAN, Diagnostic, UsageMistake, quoted_list
from rlgraph.files import read_bytes
from rlgraph.passes.compilation.compilation import Compilation
from rlgraph.runs.checkpoint import disk, document, outside_digests
from rlgraph.runs.checkpoint.changes import CHANGED, require_same_graph, require_same_program
from rlgraph.runs.checkpoint.document import Checkpoint
from rlgraph.runs.folder import CHECKPOINTS
from rlgraph.runs.folder_lock import HOW
from rlgraph.runs.options import RunOptions, installed_versions
from rlgraph.runs.trackers.known import require_trackers

if TYPE_CHECKING:
    from rlgraph.backends.saved_models import SavedModel
    from rlgraph.runs.checkpoint.saving import Resumable

_AS_BEFORE = (
    "threads",
    "block",
    "token_budget",
    "device",
    "record",
    "save_every",
    "keep",
    "keep_best",
    "on_nonfinite",
)
"""The options that a resumed run takes from the run it resumes if they are not given: some of them change rounding."""


_LONGEST = 16 << 20
"""The most bytes that are read of `run.json`."""
_WRITTEN: Mapping[str, type | tuple[type, ...]] = {
    "program": str,
    "folder": str,
    "set": dict,
    "seed": int,
    "steps": int,
    "backend": str,
    "address": (str, NoneType),
    "debug": bool,
    "timeout": (int, float),
    "schedule": (str, NoneType),
    "devices": int,
    "threads": (int, NoneType),
    "block": (int, NoneType),
    "token_budget": (int, NoneType),
    "device": (str, NoneType),
    "record": (str, NoneType),
    "save_every": (str, int, NoneType),
    "keep": (int, NoneType),
    "keep_best": (str, NoneType),
    "on_nonfinite": (str, NoneType),
}
"""The fields of `run.json` that are read, with their types."""


def read_run_record(run: Path) -> dict[str, Any]:
    """Return the content of a run's `run.json`. Raise UsageMistake if the folder is not that of a run."""
    try:
        content = json.loads(read_bytes(run / HOW, _LONGEST))
        wrong = next((name for name, kind in _WRITTEN.items() if not isinstance(content[name], kind)), None)
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        raise _nothing(f"`{run}` is not the folder of a run", f"give one with a `{HOW}` in it") from None
    if wrong is not None:
        message = f"`{run / HOW}` is damaged: what it has as `{wrong}` no run writes"
        raise _nothing(message, "go on with `rlgraph run PROGRAM --resume RUN` after mending it")
    return dict(content)


def recorded_schedule(saved: Mapping[str, Any]) -> Path | str | None:
    """Return the schedule of a run's record: the file, or the text itself."""
    schedule: str | None = saved.get("schedule")
    return Path(schedule) if schedule and "\n" not in schedule else schedule


def resumed_options(options: RunOptions, run: Path) -> RunOptions:
    """Return the options with which a run is resumed. Raise UsageMistake if its folder is not that of a run."""
    saved = read_run_record(run)
    taken: dict[str, Any] = {name: getattr(options, name) or saved.get(name) for name in _AS_BEFORE}
    if taken["record"] is not None:
        taken["record"] = Path(taken["record"])
    if options.keep_samples is None and isinstance(kept := saved.get("keep_samples"), int):
        taken["keep_samples"] = kept
    if not options.track and isinstance(names := saved.get("track"), list):
        taken["track"] = tuple(map(str, names))
        taken["track_model"] = options.track_model or saved.get("track_model") is True
    resumed = replace(options, seed=saved["seed"], **taken)
    require_trackers(resumed.track, resumed.track_model)
    return resumed


def newest_step(run: Path) -> int | None:
    """Return the step of a run's newest checkpoint; None if there is none."""
    path = disk.newest_checkpoint(run / CHECKPOINTS)
    return None if path is None else disk.step_of(path)


def checkpoint_to_resume(
    run: Path, compiled: Compilation, options: RunOptions, now: outside_digests.Digests
) -> Checkpoint:
    """Return the checkpoint that a run is resumed from. now: the digests of what the program takes from outside. Raise
    UsageMistake if there is none, if the program or what it takes has changed, or if all steps are done."""
    path = disk.newest_checkpoint(run / CHECKPOINTS)
    if path is None:
        hint = "a run can be gone on with if it was begun with `--save-every`"
        raise _nothing(f"there is no checkpoint in `{run}`", hint)
    checkpoint = document.read_checkpoint(path)
    if not options.changed:
        require_same_program(checkpoint, compiled)
        # Columns of data that are gone make another graph, too.
        outside_digests.require_unchanged(checkpoint.outside, now, compiled.program)
        require_same_graph(checkpoint, compiled)
    phases = tuple((phase.name, phase.steps) for phase in compiled.program.phases)
    if phases != checkpoint.phases:
        message = "the phases of the program, or their steps, are not those of the run that was saved"
        raise UsageMistake(Diagnostic(CHANGED, message, NO_SPAN, "a step has no place in them: begin a new run"))
    if steps_left(compiled, options, checkpoint.step) < 0:
        hint = "let it have more of them with `--steps`, which counts those that are done"
        raise _nothing(f"the run in `{run}` has more than {options.steps} steps already", hint)
    return checkpoint


def steps_left(compiled: Compilation, options: RunOptions, done: int) -> int:
    """Return how many main steps are left to run."""
    before = sum(phase.steps or 0 for phase in compiled.program.phases)
    return options.steps - max(0, done - before)


def restore_checkpoint(
    checkpoint: Checkpoint,
    compiled: Compilation,
    options: RunOptions,
    now: outside_digests.Digests,
    backend: Resumable,
    note: Callable[[str], None],
) -> None:
    """Restore a checkpoint into a backend. Raise UsageMistake for content that has no meaning in the program."""
    program = compiled.program
    if not options.changed:
        outside_digests.require_unchanged(checkpoint.outside, now, program)
    for line in outside_digests.change_notes(checkpoint.outside, now):
        note(line)
    _check_rows(checkpoint, backend.source_row_counts(), options.changed)
    wanted = [*document.step_state_names(program), *backend.extra_state_names]
    new = [name for name in wanted if name not in checkpoint.things]
    gone = [name for name in checkpoint.things if name not in wanted]
    models = {
        name: document.saved_model_of(checkpoint, name) for name in checkpoint.models if _has_model(compiled, name)
    }
    gone += [name for name in checkpoint.models if name not in models]
    if new:
        note(f"{quoted_list(new, 'and')} begin{'s' * (len(new) == 1)} anew: the checkpoint has nothing of that name")
    if gone:
        note(
            f"{quoted_list(gone, 'and')} of the checkpoint {'is' if len(gone) == 1 else 'are'} not "
            f"in the program any more"
        )
    things = document.decode_step_state(checkpoint, program, [name for name in wanted if name not in new])
    _check_kinds(things, compiled)
    _check_versions(checkpoint, models, compiled)
    try:
        backend.resume(checkpoint.step, things, models)
    except (EngineError, RuntimeError, LookupError) as error:
        message = f"the weights in `{checkpoint.path}` are not those of the program's models: {error}"
        raise UsageMistake(Diagnostic(CHANGED, message, NO_SPAN, "begin a new run")) from None
    if not steps_left(compiled, options, checkpoint.step):
        # The run may have been killed before its models were saved, so that is done again.
        note(f"the run has its {options.steps} steps: `--steps {options.steps * 2}` would let it have more")
    versions_here = installed_versions()
    for name, version in checkpoint.versions.items():
        if versions_here.get(name) != version:
            note(f"{name} is {versions_here.get(name)}, and was {version}: numbers may differ by roundings")


def _has_model(compiled: Compilation, name: str) -> bool:
    return any(model.name == name for model in compiled.program.models)


def _check_rows(checkpoint: Checkpoint, now: Mapping[str, int | None], changed: bool) -> None:
    for name, rows in checkpoint.rows.items():
        if not changed and now.get(name, rows) != rows:
            has, had = (f"{count:,} rows" if isinstance(count, int) else "no known end" for count in (now[name], rows))
            message = f"`{name}` has {has}, and had {had} when the run was saved"
            hint = "its place in them means others now; `--changed` goes on all the same"
            raise UsageMistake(Diagnostic(CHANGED, message, NO_SPAN, hint))


def _check_kinds(things: Mapping[str, Any], compiled: Compilation) -> None:
    """Raise UsageMistake if a state that had a value for each key is now one number, or the other way round."""
    for state in compiled.program.states:
        if state.name in things and isinstance(things[state.name], dict) != state.keyed:
            was = "a value for each key" if not state.keyed else "a single value"
            raise UsageMistake(Diagnostic(CHANGED, f"`{state.name}` had {was}", NO_SPAN, "give it another name"))


def _check_versions(checkpoint: Checkpoint, models: Mapping[str, SavedModel], compiled: Compilation) -> None:
    from rlgraph.backends.weight_versions import WeightVersions

    versions = WeightVersions(compiled.program)
    for name, saved in models.items():
        version = versions.version_after(name, checkpoint.step)
        if version != saved.version:
            message = f"`{name}` has version {saved.version}, and by this program would have {version}"
            raise UsageMistake(Diagnostic(CHANGED, message, NO_SPAN, "rows say which versions made them: begin anew"))
        oldest = versions.oldest_needed(name, checkpoint.step + 1)
        if versions.reads_past_versions(name) and any(past not in saved.past for past in range(oldest, version)):
            message = f"this program samples with older weights of `{name}` than the run has kept"
            raise UsageMistake(Diagnostic(CHANGED, message, NO_SPAN, "keep `lag` as it was, or begin a new run"))


def _nothing(message: str, hint: str) -> UsageMistake:
    return UsageMistake(Diagnostic("E0829", message, NO_SPAN, hint))
