"""The backend of a run, opened by its name."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, cast

from rlgraph.compilation.compilation import Compilation
from rlgraph.compilation.planning import not_built, not_installed
from rlgraph.errors import NO_SPAN, Diagnostic, ProgramError, UsageMistake
from rlgraph.placement.memory import least_memory
from rlgraph.runs.trained import Elsewhere, Here, TrainedModel

if TYPE_CHECKING:
    from rlgraph.backends.local.session import Settings
    from rlgraph.backends.steps import Observer, StepResult
    from rlgraph.engines.base import Embedded

Name = Literal["local", "ray"]


@dataclass(frozen=True)
class Options:
    """How to run; all but the first two change nothing of what is computed."""

    steps: int = 100
    seed: int = 0
    threads: int | None = None
    block: int | None = None
    token_budget: int | None = None
    backend: Name = "local"
    address: str | None = None
    """Of a Ray cluster; None: one that is started on this machine."""
    debug: bool = False
    """The actors of a plan are objects in this process."""
    record: Path | None = None
    """A folder for all that is sampled."""
    replay: Path | None = None
    """A recording, in place of sampling."""
    trace: Path | None = None
    """A file for the timeline."""
    timeout: float = 1800.0
    """Longest wait for an answer of an actor, in seconds."""


class Backend(Protocol):
    """Runs a program; it is open from its construction on."""

    def steps(self, wanted: int | None) -> Iterator[StepResult]: ...

    def trained(self) -> dict[str, int]:
        """For each model how many optimizer steps it took."""
        ...

    def save(self, model: str, folder: Path) -> None:
        """Writes a folder that a model source can name."""
        ...

    def close(self) -> None: ...


@contextmanager
def open_backend(
    compiled: Compilation, options: Options, observer: Observer
) -> Iterator[tuple[Backend, dict[str, TrainedModel]]]:
    """The backend, and the models of the program as they are in it. Raises ProgramError for what cannot be opened."""
    with warnings.catch_warnings():
        # In a notebook, tqdm (which comes with transformers) misses a package that nobody needs.
        warnings.filterwarnings("ignore", "IProgress not found")
        from rlgraph.backends.local.session import Settings

    settings = Settings(
        options.seed,
        options.threads or 1,
        options.block,
        options.token_budget,
        folder=compiled.folder,
        record=options.record and options.record.resolve(),
        replay=options.replay and options.replay.resolve(),
    )
    make = {"local": _local, "ray": _ray}[options.backend]
    with _one_torch_thread():
        backend, models = make(compiled, options, settings, observer)
        try:
            yield backend, models
        finally:
            backend.close()


def _local(
    compiled: Compilation, options: Options, settings: Settings, observer: Observer
) -> tuple[Backend, dict[str, TrainedModel]]:
    from rlgraph.backends.local.run import LocalBackend

    backend = LocalBackend(compiled.program, settings, observer)
    engines = {name: cast("Embedded", state.engine) for name, state in backend.session.models.items()}
    return backend, {name: TrainedModel(name, 0, Here(engine)) for name, engine in engines.items()}


def _ray(
    compiled: Compilation, options: Options, settings: Settings, observer: Observer
) -> tuple[Backend, dict[str, TrainedModel]]:
    from rlgraph.backends.local.session import model_spec

    if not options.debug and find_spec("ray") is None:
        hint = "pip install 'rlgraph[ray]'"
        raise UsageMistake(Diagnostic("E0819", "the package `ray` is not installed", NO_SPAN, hint))
    if missing := [*not_built(compiled.plan), *not_installed(compiled.plan, compiled.schedule)]:
        raise ProgramError(missing)
    from rlgraph.backends.ray.backend import RayBackend

    program = compiled.program
    backend = RayBackend(
        program,
        compiled.plan,
        settings,
        observer,
        address=options.address,
        debug=options.debug,
        seconds=options.timeout,
        memory=least_memory(program, compiled.plan, compiled.placed.shapes),
    )
    models = {
        # What nobody works with stays as its source is, like what is frozen.
        model.name: Elsewhere(
            backend,
            model.name,
            model_spec(program, model, compiled.folder),
            model.frozen or model.name not in dict(compiled.plan.owners),
        )
        for model in program.models
    }
    return backend, {name: TrainedModel(name, 0, weights) for name, weights in models.items()}


@contextmanager
def _one_torch_thread() -> Iterator[None]:
    """Engines work on blocks side by side; torch's own threads under theirs would only wait for each other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
