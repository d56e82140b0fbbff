"""How a program is run: options, and the backends that there are, as far as they are known without being loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from rlgraph.errors import NO_SPAN, Diagnostic, UsageMistake


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
    package: str | None = None
    """It needs this one, which the extra of the backend's name brings."""

    @property
    def installed(self) -> bool:
        return self.package is None or find_spec(self.package) is not None


LOCAL = BackendSpec("local", "this process", "rlgraph.runs.backends:open_local")
RAY = BackendSpec("ray", "the processes of a plan", "rlgraph.runs.backends:open_ray", processes=True, package="ray")

BACKENDS: Mapping[str, BackendSpec] = {each.name: each for each in (LOCAL, RAY)}


def backend_spec(name: str) -> BackendSpec:
    """Raises UsageMistake where there is none of that name."""
    if name in BACKENDS:
        return BACKENDS[name]
    known = ", ".join(f"`{each}`" for each in BACKENDS)
    raise UsageMistake(Diagnostic("E0820", f"there is no backend `{name}`", NO_SPAN, f"there are {known}"))


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
    timeout: float = 1800.0
    """Longest wait for an answer of a process, in seconds."""
