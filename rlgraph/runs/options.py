"""The options of a run, and what is known of each backend without loading it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib.util import find_spec
from numbers import Integral, Real
from pathlib import Path
from typing import Literal

from rlgraph.backends.hard.node import is_hard, read_hard_nodes
from rlgraph.errors import NO_SPAN, Diagnostic, UsageMistake, install_command
from rlgraph.errors.arguments import wrong_argument
from rlgraph.runs.trackers.known import require_trackers


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """What other code knows of a backend without loading it."""

    name: str
    about: str
    """A text that says where a program runs with it."""
    opens: str
    """The `module:function` that opens it; see `rlgraph.runs.backends`."""
    processes: bool = False
    """Whether it runs the plan in processes, which can be on other machines (`address`), fail to answer (`timeout`), or
    be objects in this one (`debug`)."""
    packages: tuple[str, ...] = ()
    """The packages that it needs, which its extra installs."""
    extra: str = ""
    resumes: bool = False
    """Whether its runs can be saved on the way and resumed."""

    @property
    def missing_package(self) -> str | None:
        """Return the first of its packages that is not installed; None if all are."""
        return next((package for package in self.packages if find_spec(package) is None), None)

    @property
    def install_command(self) -> str:
        """The command that installs what it needs."""
        return install_command(self.extra)


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

BACKENDS: Mapping[str, BackendSpec] = {spec.name: spec for spec in (LOCAL, RAY)}


def backend_spec(name: str) -> BackendSpec:
    """Return the backend of this name. Raise UsageMistake if there is none."""
    if name in BACKENDS:
        return BACKENDS[name]
    names = ", ".join(f"`{backend}`" for backend in BACKENDS)
    raise UsageMistake(Diagnostic("E0820", f"there is no backend `{name}`", NO_SPAN, f"there are {names}"))


def require_installed(spec: BackendSpec) -> None:
    """Raise UsageMistake if a package of the backend is not installed."""
    if spec.missing_package:
        message = f"the package `{spec.missing_package}` is not installed"
        raise UsageMistake(Diagnostic("E0819", message, NO_SPAN, spec.install_command))


def installed_versions() -> dict[str, str]:
    """Return the versions of the packages that compute."""
    from importlib.metadata import version

    from rlgraph import __version__

    return {"rlgraph": __version__, **{name: version(name) for name in _COMPUTES}}


KEEP = 2
"""The default number of checkpoints that are kept: the newest, and the one before it."""
RESTARTS = 3
"""The default number of times that a saved run resumes by itself after it has lost a process."""


VERIFY_WEIGHTS = 100
"""The default number of transfers of the same weights of which the first is verified."""

KEEP_SAMPLES = 32
"""The default number of samples of a step that are kept."""


LEAST: Mapping[str, int | None] = {
    "steps": 0,
    "seed": None,
    "threads": 1,
    "block": 1,
    "token_budget": 1,
    "keep": 1,
    "restarts": 0,
    "verify_weights": 0,
    "keep_samples": 0,
    "show_samples": 0,
}
"""The options that are whole numbers, with the least that each may be; None: any."""
ON_NONFINITE = ("stop", "skip")


@dataclass(frozen=True)
class RunOptions:
    """How to run a program; the options after the first two do not change what is computed, `replay`, `on_nonfinite`,
    `changed` and the rounding of a device aside."""

    steps: int = 100
    seed: int = 0
    threads: int | None = None
    block: int | None = None
    token_budget: int | None = None
    backend: str = LOCAL.name
    address: str | None = None
    """The address of a cluster; None starts one on this machine."""
    debug: bool = False
    """Whether the processes of a plan are objects in this one."""
    record: Path | None = None
    """A folder for all that is sampled."""
    replay: Path | None = None
    """A recording that is replayed in place of sampling."""
    trace: Path | None = None
    """A file for the timeline."""
    device: str | None = None
    """The device of the models, with `local`; None takes a GPU if there is one. With processes, the hard devices that
    they are held to: `hard:8x80GB`."""
    timeout: float = 1800.0
    """The longest wait for an answer of a process, in seconds."""
    on_nonfinite: Literal["stop", "skip"] | None = None
    """What a run does if a gradient is NaN or infinite: it ends (also if None), or skips the update."""
    save_every: str | None = None
    """The interval at which the run is saved, as `rlgraph.runs.checkpoint.interval` reads it; None means never."""
    keep: int | None = None
    """The number of checkpoints that are kept; None means `KEEP`."""
    keep_best: str | None = None
    """The reported metric by which the best checkpoint is kept however old it is, as `rlgraph.runs.checkpoint.best`
    reads it; None keeps none for that."""
    restarts: int = RESTARTS
    """The number of times that a saved run that has lost a process goes back to its last checkpoint by itself."""
    verify_weights: int = VERIFY_WEIGHTS
    """Of so many transfers of the same weights the first is verified at both ends; 0 means none is."""
    resume: Path | None = None
    """The folder of the run that is resumed."""
    changed: bool = False
    """Whether the resumed run's program may have changed."""
    keep_samples: int | None = None
    """The number of samples of a step that are kept in the folder; None means `KEEP_SAMPLES`."""
    show_samples: int = 0
    """The number of samples of a step that are shown every so often."""
    track: tuple[str, ...] = ()
    """The names of trackers to which the run is sent."""
    track_model: bool = False
    """Whether the trained models are sent, too."""

    def __post_init__(self) -> None:
        """Read `~` in paths as the user's folder, as programs do."""
        for name in ("record", "replay", "trace", "resume"):
            path = getattr(self, name)
            if path is not None:
                object.__setattr__(self, name, Path(path).expanduser())

    @property
    def kept_sample_count(self) -> int:
        """The number of samples of a step that are kept."""
        return KEEP_SAMPLES if self.keep_samples is None else self.keep_samples

    def check_values(self) -> None:
        """Raise UsageMistake for an option with a value of another kind, or out of its range."""
        optional = {field.name for field in fields(self) if field.default is None}
        for name, least in LEAST.items():
            value = getattr(self, name)
            if value is None and name in optional:
                continue
            if not isinstance(value, Integral) or isinstance(value, bool) or (least is not None and value < least):
                wanted = "a whole number" if least is None else f"a whole number, at least {least}"
                raise wrong_argument("max_restarts" if name == "restarts" else name, wanted, value)
        if not isinstance(self.timeout, Real) or not self.timeout > 0:
            raise wrong_argument("timeout", "a number of seconds above 0", self.timeout)
        if self.on_nonfinite not in (None, *ON_NONFINITE):
            raise wrong_argument("on_nonfinite", " or ".join(f'"{name}"' for name in ON_NONFINITE), self.on_nonfinite)
        if not isinstance(self.device, str | None):
            raise wrong_argument("device", 'a text such as "cpu" or "cuda:1"', self.device)

    def check_backend(self) -> None:
        """Raise UsageMistake for a backend that does not exist, lacks a package, or has no use for a given option."""
        spec = backend_spec(self.backend)
        if not spec.processes and (self.address or self.debug):
            option = "address" if self.address else "debug"
            processes = " or ".join(f"`{name}`" for name, candidate in BACKENDS.items() if candidate.processes)
            message = f"`{option}` is for a backend with processes, and `{spec.name}` has none"
            raise UsageMistake(Diagnostic("E0820", message, NO_SPAN, f"take the backend {processes}, or leave it out"))
        if self.device is not None and is_hard(self.device):
            read_hard_nodes(self.device)
            if not spec.processes:
                message = f"`--device {self.device}` is for a backend with processes, and `{spec.name}` has none"
                raise UsageMistake(Diagnostic("E0749", message, NO_SPAN, "take the backend `ray`"))
        if (self.save_every or self.resume) and not spec.resumes:
            message = f"a run with the backend `{spec.name}` cannot be saved on the way, or gone on with"
            alternatives = " or ".join(f"`{name}`" for name, candidate in BACKENDS.items() if candidate.resumes)
            raise UsageMistake(
                Diagnostic("E0830", message, NO_SPAN, f"take the backend {alternatives}, or run without")
            )
        if (self.save_every or self.resume) and self.replay:
            message = "a run that is replayed cannot be saved on the way, or gone on with"
            raise UsageMistake(Diagnostic("E0830", message, NO_SPAN, "replay it from its beginning"))
        if self.keep_best and not (self.save_every or self.resume):
            message = "a run without checkpoints has no best one"
            raise UsageMistake(Diagnostic("E0833", message, NO_SPAN, "say how often to save one: `--save-every 20`"))
        require_installed(LOCAL if self.debug else spec)
        require_trackers(self.track, self.track_model)
