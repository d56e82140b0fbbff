"""All trackers, and whether they can be used here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec

from rlgraph.errors import NO_SPAN, Diagnostic, UsageMistake, did_you_mean, quoted_list
from rlgraph.runs.trackers import mlflow, tensorboard, trackio, wandb
from rlgraph.runs.trackers.base import TrackerSpec

TRACKERS: Mapping[str, TrackerSpec] = {
    spec.name: spec for spec in (wandb.SPEC, mlflow.SPEC, trackio.SPEC, tensorboard.SPEC)
}
STATE = "trackers"
"""The part of a run's folder that says what was sent where."""
TRACKER_FOLDERS = (STATE, *(spec.folder for spec in TRACKERS.values() if spec.folder))
"""The parts of a run's folder that trackers write."""


def require_trackers(names: Sequence[str], models: bool = False) -> None:
    """Raise UsageMistake for a tracker that does not exist or whose package is not installed, and where models are to
    be sent and none of them keeps any."""
    for name in names:
        if name not in TRACKERS:
            hint = did_you_mean(name, TRACKERS) or f"there are {quoted_list([*TRACKERS], 'and')}"
            raise _unusable(f"there is no tracker `{name}`", hint)
        spec = TRACKERS[name]
        if not _is_installed(spec.package):
            raise _unusable(f"the package `{spec.package}` is not installed, which `{name}` needs", spec.how_to_install)
    if models and not any(TRACKERS[name].keeps_models for name in names):
        keeping = quoted_list([name for name, spec in TRACKERS.items() if spec.keeps_models], "or")
        message = "no tracker is named for models"
        if names:
            message = f"{quoted_list(names, 'and')} keep{'s' * (len(names) == 1)} no models"
        raise _unusable(message, f"take {keeping}, or leave models out")


def require_folder(names: Sequence[str], folder: object) -> None:
    """Raise UsageMistake where a run without a folder is to be tracked."""
    if names and folder is None:
        message = "a run without a folder cannot be tracked: what trackers get is read from it"
        raise _unusable(message, "give one with `out`")


def _is_installed(package: str) -> bool:
    # A folder of that name, as wandb makes one, is found as a package without a file.
    spec = find_spec(package)
    return spec is not None and spec.origin is not None


def _unusable(message: str, hint: str) -> UsageMistake:
    return UsageMistake(Diagnostic("E0851", message, NO_SPAN, hint))
