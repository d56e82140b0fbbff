"""Which weights of a run are exported: those that it saved at its end, or those of a checkpoint."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rlgraph.backends.saved_models import SavedModel
from rlgraph.errors import NO_SPAN, Diagnostic, UsageMistake, quoted_list
from rlgraph.files import read_bytes
from rlgraph.runs.checkpoint import disk, document
from rlgraph.runs.checkpoint.best import BEST
from rlgraph.runs.folder import BEST_MODELS, CHECKPOINTS, EVENTS, METRICS, MODELS

LAST = "last"
"""The word for the newest weights."""
_LONGEST = 1 << 10
"""The most bytes that are read of a file that names a checkpoint."""


@dataclass(frozen=True)
class ExportChoice:
    """The weights of a model after a step."""

    run: Path
    model: str
    step: int
    """The step after which they were so; 0 where it is not known."""
    folder: Path | None = None
    """The Hugging Face folder that has them."""
    saved: SavedModel | None = None
    """What has them if there is no folder: a checkpoint's part."""


def choose_weights(run: Path, model: str | None, step: str = LAST) -> ExportChoice:
    """Return the weights of a run's model. model: None takes the only one that was trained. step: a number, `best`,
    or `last`. Raise UsageMistake if there are none, or the checkpoint is damaged."""
    if step == BEST:
        return _of_best(run, model)
    checkpoints = {disk.step_of(path): path for path in disk.complete_checkpoints(run / CHECKPOINTS)}
    ended = _ended_step(run)
    finals = model_folders(run / MODELS)
    if step == LAST:
        if finals and (ended is not None or not checkpoints):
            name = _one_model(model, list(finals), f"`{run / MODELS}`")
            return ExportChoice(run, name, ended or 0, finals[name])
        newest = disk.newest_checkpoint(run / CHECKPOINTS)
        if newest is None:
            hint = "models are saved when the run ends, and in checkpoints: begin runs with `--save-every`"
            raise nothing_to_export(f"`{run}` has no trained model yet", hint)
        return _of_checkpoint(run, newest, model)
    wanted = int(step) if step.isdecimal() else -1
    if wanted in checkpoints:
        return _of_checkpoint(run, checkpoints[wanted], model)
    if finals and wanted == ended:
        name = _one_model(model, list(finals), f"`{run / MODELS}`")
        return ExportChoice(run, name, wanted, finals[name])
    steps = sorted({*checkpoints, *([ended] if finals and ended else [])})
    have = f"there are those of {quoted_list([*map(str, steps)], 'and')}" if steps else "there are none"
    if wanted < 0:
        raise nothing_to_export(f"`{step}` is no step", f"write a number, `{BEST}` or `{LAST}`")
    raise nothing_to_export(f"`{run}` has no weights of step {wanted}", f"{have}; more stay with `--keep`")


def model_folders(place: Path) -> dict[str, Path]:
    """Return the folders of saved models, by name."""
    folders = sorted(place.iterdir()) if place.is_dir() else []
    return {path.name: path for path in folders if path.is_dir() and not path.name.startswith(".")}


def _of_best(run: Path, model: str | None) -> ExportChoice:
    named = ""
    with suppress(OSError, ValueError):
        named = read_bytes(run / CHECKPOINTS / BEST, _LONGEST).decode().strip()
    path = run / CHECKPOINTS / named
    if not named or path not in disk.complete_checkpoints(run / CHECKPOINTS):
        raise nothing_to_export(f"`{run}` has no best checkpoint", "begin a run with `--keep-best METRIC`")
    folders = model_folders(run / BEST_MODELS)
    if folders:
        name = _one_model(model, list(folders), f"`{run / BEST_MODELS}`")
        return ExportChoice(run, name, disk.step_of(path), folders[name])
    return _of_checkpoint(run, path, model)


def _of_checkpoint(run: Path, path: Path, model: str | None) -> ExportChoice:
    checkpoint = document.read_checkpoint(path)
    name = _one_model(model, list(checkpoint.models), f"the checkpoint of step {checkpoint.step}")
    return ExportChoice(run, name, checkpoint.step, saved=document.saved_model_of(checkpoint, name))


def _one_model(wanted: str | None, names: list[str], where: str) -> str:
    if not names:
        raise nothing_to_export(f"{where} has no trained model", "export one of a later step")
    if wanted is None and len(names) == 1:
        return names[0]
    if wanted is None:
        message = f"{where} has {quoted_list(names, 'and')}"
        raise nothing_to_export(message, f"say which one: `--model {names[0]}`")
    if wanted not in names:
        message = f"{where} has no model `{wanted}`"
        raise nothing_to_export(
            message, f"it has {quoted_list(names, 'and')}; a model that is not trained stays its source"
        )
    return wanted


def _ended_step(run: Path) -> int | None:
    """Return the last step of a run that has ended and saved its models; None if it goes on or was killed."""
    ended: int | None = None
    try:
        with (run / EVENTS).open("rb") as file:
            for line in file:
                with suppress(ValueError, LookupError, TypeError):
                    if b'"run_ended"' in line or b'"run_started"' in line:
                        event = json.loads(line)
                        ended = int(event["step"]) if event["kind"] == "run_ended" else None
    except OSError:
        return None
    if ended is None:
        return None
    # A run that fails is told of with the number of its steps, and one that ends well, too.
    last = 0
    with suppress(OSError, ValueError, LookupError, TypeError), (run / METRICS).open("rb") as file:
        for line in file:
            last = int(json.loads(line)["step"])
    return last or ended


def nothing_to_export(message: str, hint: str) -> UsageMistake:
    """Return the error for a run that has not what is wanted."""
    return UsageMistake(Diagnostic("E0853", message, NO_SPAN, hint))
