"""How a program is run: options, and the backends that there are, as far as they are known without being loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from rlgraph.errors import NO_SPAN, Diagnostic, UsageMistake, install


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """What everybody but itself knows of a backend."""

    name: str
    about: str
    """Where a program runs with it."""
    opens: str
    """`module:function`, which opens it; see `rlgraph.runs.backends`."""
    processes: bool = False
    """It runs the plan, in processes that can be on other machines (`address`), not answer (`timeout`), or be objects
    in this one (`debug`)."""
    packages: tuple[str, ...] = ()
    """It needs these, which its extra brings."""
    extra: str = ""
    resumes: bool = False
    """Its runs can be saved on the way, and gone on with."""

    @property
    def missing(self) -> str | None:
        """The first of its packages that is not installed."""
        return next((package for package in self.packages if find_spec(package) is None), None)


_COMPUTES = ("torch", "transformers")
LOCAL = BackendSpec(
    "local", "this process", "rlgraph.runs.backends:open_local", packages=_COMPUTES, extra="run", resumes=True
)
RAY = BackendSpec(
    "ray",
    "the processes of a plan",
    "rlgraph.runs.backends:open_ray",
    processes=True,
    packages=(*_COMPUTES, "ray"),
    extra="ray",
    resumes=True,
)

BACKENDS: Mapping[str, BackendSpec] = {each.name: each for each in (LOCAL, RAY)}


def backend_spec(name: str) -> BackendSpec:
    """Raises UsageMistake where there is none of that name."""
    if name in BACKENDS:
        return BACKENDS[name]
    known = ", ".join(f"`{each}`" for each in BACKENDS)
    raise UsageMistake(Diagnostic("E0820", f"there is no backend `{name}`", NO_SPAN, f"there are {known}"))


def need_installed(spec: BackendSpec) -> None:
    """Raises UsageMistake where a package of the backend is not there."""
    if spec.missing:
        message = f"the package `{spec.missing}` is not installed"
        raise UsageMistake(Diagnostic("E0819", message, NO_SPAN, install(spec.extra)))


def installed() -> dict[str, str]:
    """The versions of what computes."""
    from importlib.metadata import version

    from rlgraph import __version__

    return {"rlgraph": __version__, **{name: version(name) for name in _COMPUTES}}


KEEP = 2
"""Checkpoints of a run: the newest, and the one before it."""
RESTARTS = 3
"""How often a run that is saved goes on by itself after it has lost a process, where nothing else is said."""


@dataclass(frozen=True)
class Options:
    """How to run; all but the first two change nothing of what is computed."""

    steps: int = 100
    seed: int = 0
    threads: int | None = None
    block: int | None = None
    token_budget: int | None = None
    backend: str = LOCAL.name
    address: str | None = None
    """Of a cluster; None: one that is started on this machine."""
    debug: bool = False
    """The processes of a plan are objects in this one."""
    record: Path | None = None
    """A folder for all that is sampled."""
    replay: Path | None = None
    """A recording, in place of sampling."""
    trace: Path | None = None
    """A file for the timeline."""
    device: str | None = None
    """Of the models, with `local`; None: a GPU where there is one."""
    timeout: float = 1800.0
    """Longest wait for an answer of a process, in seconds."""
    on_nonfinite: Literal["stop", "skip"] | None = None
    """What becomes of a run where a gradient is NaN or infinite: it ends (None, too), or leaves out the update."""
    save_every: str | None = None
    """How often the run is saved, as `rlgraph.runs.checkpoint.interval` reads it; None: never."""
    keep: int | None = None
    """How many of its checkpoints are kept; None: `KEEP`."""
    keep_best: str | None = None
    """What makes a checkpoint stay though newer ones are there, as `rlgraph.runs.checkpoint.best` reads it: a name that
    the program reports; None: nothing."""
    restarts: int = RESTARTS
    """How often a run that is saved, and has lost a process, goes back to its last checkpoint by itself."""
    resume: Path | None = None
    """The folder of the run that is gone on with."""
    changed: bool = False
    """Its program may have changed."""

    def need_installed(self) -> None:
        """Raises UsageMistake for a backend that there is not, that lacks a package, or has no use for an option."""
        spec = backend_spec(self.backend)
        if not spec.processes and (self.address or self.debug):
            what = "address" if self.address else "debug"
            processes = " or ".join(f"`{name}`" for name, each in BACKENDS.items() if each.processes)
            message = f"`{what}` is for a backend with processes, and `{spec.name}` has none"
            raise UsageMistake(Diagnostic("E0820", message, NO_SPAN, f"take the backend {processes}, or leave it out"))
        if (self.save_every or self.resume) and not spec.resumes:
            message = f"a run with the backend `{spec.name}` cannot be saved on the way, or gone on with"
            able = " or ".join(f"`{name}`" for name, each in BACKENDS.items() if each.resumes)
            raise UsageMistake(Diagnostic("E0830", message, NO_SPAN, f"take the backend {able}, or run without"))
        if (self.save_every or self.resume) and self.replay:
            message = "a run that is replayed cannot be saved on the way, or gone on with"
            raise UsageMistake(Diagnostic("E0830", message, NO_SPAN, "replay it from its beginning"))
        if self.keep_best and not (self.save_every or self.resume):
            message = "a run without checkpoints has no best one"
            raise UsageMistake(Diagnostic("E0833", message, NO_SPAN, "say how often to save one: `--save-every 20`"))
        need_installed(LOCAL if self.debug else spec)
