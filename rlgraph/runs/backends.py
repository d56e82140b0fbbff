"""The functions that open the backend of a run, one for each backend; `rlgraph.runs.options` names them."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.enginespec.registry import engine
from rlgraph.backends.hard.demands import start_demands
from rlgraph.backends.hard.node import is_hard, read_hard_nodes
from rlgraph.catalog.clusters.processor import processor_flags
from rlgraph.errors import NO_SPAN, Diagnostic, ProgramError, UsageMistake
from rlgraph.ir.graph import Program
from rlgraph.ops.program_work import model_operations
from rlgraph.passes.compilation.compilation import Compilation
from rlgraph.passes.compilation.compile import autocast_notes, resolve_auto_autocast, with_default_dtypes
from rlgraph.passes.compilation.default_plan import unusable_engine_diagnostics
from rlgraph.passes.placement.least_memory import least_bytes_of_all_ranks
from rlgraph.runs.folder import recording_folder
from rlgraph.runs.options import RunOptions, backend_spec
from rlgraph.runs.trained_models import LocalWeights, RemoteWeights, TrainedModel

if TYPE_CHECKING:
    from rlgraph.backends.engines.roles import EmbeddedEngine
    from rlgraph.backends.steps import Observer, StepResult
    from rlgraph.backends.worker.session import Settings


class Backend(Protocol):
    """An object that runs a program. It is open as soon as it is constructed."""

    def run_steps(self, wanted: int | None) -> Generator[StepResult]: ...

    def optimizer_step_counts(self) -> dict[str, int]:
        """Return the number of optimizer steps that each model took."""
        ...

    def save(self, model: str, folder: Path) -> None:
        """Write the model to a folder that a model source can name."""
        ...

    def close(self) -> None: ...


@contextmanager
def open_backend(
    compiled: Compilation, options: RunOptions, observer: Observer
) -> Iterator[tuple[Backend, dict[str, TrainedModel]]]:
    """Yield the open backend, which has to be installed, and the program's models in it. Raise ProgramError for what
    cannot be opened."""
    spec = backend_spec(options.backend)
    with warnings.catch_warnings():
        # In a notebook, tqdm (which comes with transformers) misses a package that nobody needs.
        warnings.filterwarnings("ignore", "IProgress not found")
        import_module("tqdm.auto")
    from rlgraph.backends.worker.session import Settings

    settings = Settings(
        options.seed,
        options.threads or 1,
        options.block,
        options.token_budget,
        folder=compiled.folder.absolute(),
        record=options.record and options.record.resolve(),
        replay=options.replay and recording_folder(options.replay).resolve(),
        skips=options.on_nonfinite == "skip",
        saves=options.save_every is not None,
    )
    module, _, name = spec.opens.partition(":")
    with _one_torch_thread():
        opened, models = getattr(import_module(module), name)(compiled, options, settings, observer)
        try:
            yield opened, models
        finally:
            opened.close()


def open_local(
    compiled: Compilation, options: RunOptions, settings: Settings, observer: Observer
) -> tuple[Backend, dict[str, TrainedModel]]:
    """Open a backend in this process."""
    from rlgraph.backends.engines.device import choose_visible_device
    from rlgraph.backends.local.backend import LocalBackend

    try:
        settings = replace(settings, device=choose_visible_device(options.device))
    except EngineError as error:
        hint = "take one of these, or leave `device` out"
        raise UsageMistake(Diagnostic("E0821", str(error), NO_SPAN, hint)) from None
    # Without a cluster the device decides the dtypes that are still open.
    program = _with_products(with_default_dtypes(compiled.program, settings.device != "cpu"), observer)
    backend = LocalBackend(program, settings, observer)
    backend.most_samples = max(options.kept_sample_count, options.show_samples)
    weights = {
        name: LocalWeights(partial(backend.save, name), cast("EmbeddedEngine", state.engine))
        for name, state in backend.session.models.items()
    }
    return backend, {name: TrainedModel(name, 0, held) for name, held in weights.items()}


def open_ray(
    compiled: Compilation, options: RunOptions, settings: Settings, observer: Observer
) -> tuple[Backend, dict[str, TrainedModel]]:
    """Open a backend with the processes of the plan."""
    from rlgraph.backends.worker.model_sources import model_spec

    if options.device and not is_hard(options.device):
        message = f"the models of a plan are not all on `{options.device}`: each process has the devices of its rank"
        raise UsageMistake(Diagnostic("E0821", message, NO_SPAN, "leave `device` out, or take the backend `local`"))
    # A cluster elsewhere may have other devices.
    here = not options.debug and options.address is None
    plan, shapes = compiled.plan, compiled.placed.shapes
    if problems := unusable_engine_diagnostics(plan, compiled.schedule, shapes, here=here):
        raise ProgramError(problems)
    if (options.save_every or options.resume) and not options.debug:
        _need_moments(compiled)
    from rlgraph.backends.ray.backend import RayBackend

    program = _with_products(compiled.program, observer)
    hard = read_hard_nodes(options.device) if options.device and is_hard(options.device) else None
    backend = RayBackend(
        program,
        plan,
        settings,
        observer,
        address=options.address,
        debug=options.debug,
        seconds=options.timeout,
        memory=least_bytes_of_all_ranks(program, plan, shapes),
        repeats=options.restarts,
        verify_every=options.verify_weights,
        say=observer.show_note,
        hard=hard,
        demands=None if hard is None else start_demands(program, plan, shapes, hard.memory),
    )
    backend.most_samples = max(options.kept_sample_count, options.show_samples)
    models = {
        # A model that no worker owns stays as its source is, as a frozen one does.
        model.name: RemoteWeights(
            partial(backend.save, model.name),
            model_spec(program, model, compiled.folders),
            model.frozen or model.name not in dict(plan.owners),
        )
        for model in program.models
    }
    return backend, {name: TrainedModel(name, 0, weights) for name, weights in models.items()}


def _with_products(program: Program, observer: Observer) -> Program:
    """Return the program with the dtype of products decided by this machine's processor, once for all processes: what
    samples and what trains have to agree. It is said in the run's notes."""
    flags = processor_flags()
    for text in autocast_notes(program, flags):
        observer.show_note(text)
    return resolve_auto_autocast(program, flags)


def _need_moments(compiled: Compilation) -> None:
    """Raise UsageMistake if an engine that trains does not export the state of its optimizer."""
    for model, owner in compiled.plan.owners:
        name = compiled.plan.group(owner).engine
        trains = "train" in model_operations(compiled.program).get(model, ())
        if trains and not engine(name).keeps_moments:
            message = f"the engine {name}, which trains `{model}`, does not tell what its optimizer keeps"
            raise UsageMistake(Diagnostic("E0830", message, NO_SPAN, "take another engine for it, or run without"))


@contextmanager
def _one_torch_thread() -> Iterator[None]:
    """Limit torch to one thread: engines work on blocks in parallel, and torch's own threads below theirs would only
    wait for each other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
