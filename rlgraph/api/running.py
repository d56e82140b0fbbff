"""Runs a compiled program in this process, and leaves behind what is worth keeping, however it ends."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from rlgraph.api.progress import Display, Quiet, display
from rlgraph.api.rundir import RunFolder
from rlgraph.errors import RunError
from rlgraph.ir.graph import Node

if TYPE_CHECKING:
    from rlgraph.api.compiled import Compiled
    from rlgraph.backends.local.run import Observer, Step
    from rlgraph.engines.transformers import TransformersEngine


@dataclass(frozen=True)
class Options:
    """How to run; all but the first two change nothing of what is computed."""

    steps: int = 100
    seed: int = 0
    threads: int | None = None
    block: int | None = None
    token_budget: int | None = None


@dataclass(frozen=True)
class TrainedModel:
    """A model as the run left it."""

    name: str
    engine: TransformersEngine = field(repr=False)
    updates: int
    """Optimizer steps that it took."""

    @property
    def model(self) -> Any:
        """The Hugging Face model."""
        return self.engine.model

    @property
    def tokenizer(self) -> Any:
        """The Hugging Face tokenizer."""
        return self.engine.codec.tokenizer

    def save(self, folder: str | Path) -> None:
        """Writes a folder that `from_pretrained` reads."""
        self.engine.save(folder)

    def answer(
        self, prompts: Sequence[Any], *, max_tokens: int = 64, temperature: float = 0.0, seed: int = 0
    ) -> list[str]:
        """An answer to each prompt (a text, or a list of messages); the likeliest one at temperature 0."""
        import numpy as np
        import torch

        from rlgraph.engines.base import Sampling
        from rlgraph.engines.sequences import Sequences

        codec = self.engine.codec
        asked = Sequences.from_pairs([codec.encode_prompt(prompt) for prompt in prompts], [[] for _ in prompts])
        keys = np.random.default_rng(seed).integers(0, 2**63, len(prompts), dtype=np.uint64)
        with torch.no_grad():
            made = self.engine.generate(asked, 1, Sampling(max_tokens, temperature), keys).sequences
        ids = iter(made.tokens[made.scored].tolist())
        return [codec.decode([next(ids) for _ in range(count)]) for count in made.counts().tolist()]


@dataclass
class Run:
    """What a run made."""

    metrics: list[dict[str, Any]] = field(default_factory=list)
    """For each step `step`, `seconds` and every reported name; `phase` in programs that have several."""
    models: dict[str, TrainedModel] = field(default_factory=dict)
    """Every model of the program, by its name in it."""
    folder: Path | None = None
    """Where everything was written."""
    saved: list[Path] = field(default_factory=list)
    """Folders of the trained models."""

    def __repr__(self) -> str:
        where = f", in {self.folder}" if self.folder else ""
        return f"<run of {len(self.metrics)} steps{where}>"


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in a run: `run` holds what was done until then, and trained models were saved."""

    def __init__(self, run: Run) -> None:
        super().__init__(f"interrupted after {len(run.metrics)} steps")
        self.run = run

    def _render_traceback_(self) -> list[str]:
        """What notebooks show."""
        return [str(self), *(f"saved {path}" for path in self.run.saved)]


def run(
    compiled: Compiled,
    options: Options,
    out: str | Path | None,
    overwrite: bool,
    progress: bool,
    observer: Observer | None,
) -> Run:
    """See `Compiled.run`."""
    folder = RunFolder.at(Path(out), overwrite) if out is not None else None
    return run_in(folder, compiled, options, display() if progress else Quiet(), observer)


def run_in(
    folder: RunFolder | None,
    compiled: Compiled,
    options: Options,
    shown: Display,
    observer: Observer | None = None,
) -> Run:
    """Runs, writing into a folder if one is given."""
    options = replace(options, threads=options.threads or _cores())
    made = Run(folder=folder.path if folder else None)
    with _Interrupts(shown) as interrupts:
        try:
            if folder:
                folder.begin(compiled.source.text, compiled.text(), _how(compiled, options))
            _steps(made, folder, compiled, options, _Watch(shown, interrupts, observer))
        except BaseException as error:
            _rescue(made, folder, shown)
            if isinstance(error, KeyboardInterrupt):
                raise Interrupted(made) from None
            raise
        finally:
            shown.close()
            if folder:
                folder.close()
    return made


def _steps(made: Run, folder: RunFolder | None, compiled: Compiled, options: Options, watch: _Watch) -> None:
    with warnings.catch_warnings():
        # In a notebook, tqdm (which comes with transformers) misses a package that nobody needs.
        warnings.filterwarnings("ignore", "IProgress not found")
        from rlgraph.backends.local.run import LocalBackend
        from rlgraph.backends.local.session import Settings

    threads = options.threads or 1
    settings = Settings(options.seed, threads, options.block, options.token_budget, folder=compiled.folder)
    with _one_torch_thread():
        backend = LocalBackend(compiled.program, settings, watch)
        try:
            made.models.update(
                (name, TrainedModel(name, state.engine, 0)) for name, state in backend.session.models.items()
            )
            phases = {phase.name: phase.steps or options.steps for phase in compiled.program.phases}
            watch.display.begin(phases)
            for step in backend.steps(options.steps):
                made.metrics.append(_record(step, len(phases) > 1))
                if folder:
                    folder.step(made.metrics[-1])
                watch.display.step(step.number, step.phase, step.seconds, step.metrics)
                watch.interrupts.check()
        finally:
            _count_updates(made, {name: state.updates for name, state in backend.session.models.items()})
            backend.session.close()
    if folder:
        made.saved += folder.save(_trained(made))


def _cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _count_updates(made: Run, updates: Mapping[str, int]) -> None:
    for name, model in made.models.items():
        made.models[name] = TrainedModel(name, model.engine, updates[name])


def _trained(made: Run) -> dict[str, TrainedModel]:
    return {name: model for name, model in made.models.items() if model.updates}


def _rescue(made: Run, folder: RunFolder | None, shown: Display) -> None:
    """Saves what is there after a run that did not come to its end."""
    if folder is None:
        return
    trained = _trained(made)
    if not made.metrics and not trained:
        folder.discard()
        made.folder = None
        return
    left = {name: model for name, model in trained.items() if folder.path / "models" / name not in made.saved}
    try:
        made.saved += folder.save(left)
    except RunError as second:
        # The first failure is the one to tell; this one is told beside it.
        shown.note(str(second))
    for path in made.saved:
        shown.note(f"saved {path}")


def _record(step: Step, phases: bool) -> dict[str, Any]:
    where = {"phase": step.phase} if phases else {}
    return {"step": step.number, **where, "seconds": round(step.seconds, 6), **step.metrics}


def _how(compiled: Compiled, options: Options) -> dict[str, object]:
    from importlib.metadata import version

    from rlgraph import __version__

    versions = {"rlgraph": __version__, "torch": version("torch"), "transformers": version("transformers")}
    return {
        "program": compiled.source.path,
        "set": dict(compiled.set),
        **asdict(options),
        "versions": versions,
    }


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


class _Interrupts:
    """Ctrl-C and SIGTERM end a run where its weights are whole, not in an update; the second one at once."""

    def __init__(self, shown: Display) -> None:
        self.display = shown
        self.updating = False
        self.seen = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Interrupts:
        # Only the main thread may ask for signals; elsewhere they are somebody else's.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _signal(self, number: int, frame: FrameType | None) -> None:
        first, self.seen = not self.seen, True
        if first:
            self.display.note("interrupted: once more to leave at once, without saving")
        if not first or not self.updating:
            raise KeyboardInterrupt

    def check(self) -> None:
        """Ends the run if that was asked for during an update."""
        if self.seen:
            raise KeyboardInterrupt


class _Watch:
    """Sees every node before and after its work, and tells the others."""

    def __init__(self, shown: Display, interrupts: _Interrupts, observer: Observer | None) -> None:
        self.display, self.interrupts, self.observer = shown, interrupts, observer

    def opening(self, what: str) -> None:
        self.display.opening(what)
        if self.observer:
            self.observer.opening(what)

    def firing(self, node: Node) -> None:
        self.interrupts.updating = node.op in ("train", "update")
        self.display.firing(node)
        if self.observer:
            self.observer.firing(node)

    def fired(self, node: Node, seconds: float, tokens: int) -> None:
        self.display.fired(node, seconds, tokens)
        if self.observer:
            self.observer.fired(node, seconds, tokens)
        if self.interrupts.updating:
            self.interrupts.updating = False
            self.interrupts.check()
