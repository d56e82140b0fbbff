"""What a tracker says of itself, what it is told of a run, and the methods that it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rlgraph.errors import install_command

FINISHED, INTERRUPTED, FAILED, KILLED = "finished", "interrupted", "failed", "killed"
"""How a run ended; a killed one did not say so itself."""


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker is told of a run when it opens."""

    name: str
    """The name of the run's folder."""
    project: str
    """The name of the program, under which runs are grouped where nothing else is said."""
    folder: Path
    configuration: Mapping[str, object] = field(default_factory=dict)
    """Settings, options, seed and versions: numbers, texts and None, by names such as `set.n`."""
    program: str = ""
    """The text of the program, or of the plan file that was run."""
    id: str | None = None
    """The name that the tracker gave the run when it was sent before; None for the first time."""
    first: int = 1
    """The first step that is sent."""


class Tracker(Protocol):
    """A run in an open tracker. Any method may raise any error if the tracker cannot be reached."""

    id: str
    """The name that the tracker gave the run, by which it goes on."""
    where: str
    """The address or the folder where one looks at it."""

    def metrics(self, step: int, time_s: float, numbers: Mapping[str, float]) -> None:
        """Send the numbers of a step; time_s: when it was over, in seconds since 1970."""
        ...

    def samples(self, step: int, time_s: float, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Send some rows of a step as a table."""
        ...

    def picture(self, name: str, png: bytes) -> None:
        """Send a picture."""
        ...

    def model(self, name: str, folder: Path) -> None:
        """Send a trained model, which is a folder of files."""
        ...

    def close(self, outcome: str) -> None:
        """Say how the run ended, and end."""
        ...


@dataclass(frozen=True)
class TrackerSpec:
    """What other code knows of a tracker without loading its package."""

    name: str
    about: str
    """A text that says what it is."""
    package: str
    """The package that it needs, which the extra of the tracker's name installs."""
    open: Callable[[TrackedRun], Tracker]
    """Opens a run in it, or goes on with that of `TrackedRun.id`."""
    folder: str = ""
    """The part of a run's folder that it writes; empty where it writes none."""
    keeps_models: bool = True
    replaces_steps: bool = False
    """Whether steps that were sent may be sent again, as those after a checkpoint that a run goes back to."""

    @property
    def how_to_install(self) -> str:
        """The command that installs what it needs."""
        return install_command(self.name)
