"""What lives as long as a run: models and their engines, readers, functions, environments, states."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlgraph.data import Cursor, Reader, check_source, open_source
from rlgraph.engines.base import EngineError, State
from rlgraph.engines.sources import ModelSpec, RandomSource
from rlgraph.engines.tokenizers import Bytes, Chars, TokenizerSpec, Words
from rlgraph.engines.transformers import TransformersEngine
from rlgraph.errors import Diagnostic, ProgramError, RunError, Span
from rlgraph.foreign import Environment, RewardFunction, Workers, open_environment, open_function
from rlgraph.foreign.spec import Spec
from rlgraph.ir.graph import Constant, Model, Node, Outside, Program, Record, plain

Note = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    """How to run; nothing here changes what is computed, but for the order of float sums."""

    seed: int = 0
    threads: int = 1
    block: int | None = None
    """Rows of a block of the executor; None: one block for the batch."""
    token_budget: int | None = None
    """Padded tokens of a micro-batch at most; None: the engine's own."""
    micro_rows: int | None = None
    """Rows of a micro-batch at most, instead of a token budget."""
    folder: Path = field(default_factory=Path)
    """Where relative paths of the program begin."""


@dataclass
class ModelState:
    """A model in a run."""

    engine: TransformersEngine
    model: Model
    version: int = 0
    """Steps in which its weights changed."""
    updates: int = 0
    """Optimizer steps."""
    past: deque[State] = field(default_factory=deque)
    """Weights of the last versions, the newest at the end, for models whose sampling lags behind."""
    touched: bool = False
    """Its weights changed in this step."""


class Session:
    """Opens everything that a program names, before the first step."""

    def __init__(self, program: Program, settings: Settings, note: Note = lambda text: None) -> None:
        self.program, self.settings = program, settings
        self.workers = Workers()
        self.step = 0
        self.models: dict[str, ModelState] = {}
        self.readers: dict[str, Reader] = {}
        self.functions: dict[str, RewardFunction] = {}
        self.environments: dict[str, Environment] = {}
        self.handles: dict[str, Any] = {}
        """Values of things that live across steps, by name."""
        self.metrics: dict[str, float] = {}
        try:
            self._open(note)
        except BaseException:
            self.close()
            raise

    def _open(self, note: Note) -> None:
        problems: list[Diagnostic] = []
        for outside in self.program.outside:
            note(f"opening {outside.name}")
            with _collected(problems):
                self._open_outside(outside)
        if problems:
            raise ProgramError(problems)
        lag = max((phase.staleness for phase in self.program.phases), default=0)
        for model in self.program.models:
            note(f"loading {model.name}")
            with _collected(problems):
                self._open_model(model, lag)
        if problems:
            raise ProgramError(problems)
        dtypes = {state.engine.spec.dtype for state in self.models.values()}
        self.dtype = torch.float64 if "float64" in dtypes else torch.float32
        for state in self.program.states:
            self.handles[state.name] = {} if state.keyed else torch.tensor(state.initial, dtype=self.dtype)
        self.initial = {state.name: state.initial for state in self.program.states}

    def _open_outside(self, outside: Outside) -> None:
        base = self.settings.folder
        if outside.kind == "buffer":
            self.handles[outside.name] = None
            return
        args, options = outside.record.plain()
        spec = Spec(outside.record.name, args, options, outside.record.span)
        if outside.kind == "data":
            check_source(spec)
            self.readers[outside.name] = Reader(open_source(spec, base, self.workers), outside.name, self.settings.seed)
            self.handles[outside.name] = Cursor()
        elif outside.kind == "func":
            self.functions[outside.name] = open_function(spec, base, self.workers)
        else:
            self.environments[outside.name] = open_environment(spec, base, self.workers)

    def _open_model(self, model: Model, lag: int) -> None:
        try:
            if model.copy_of:
                if model.copy_of not in self.models:
                    return  # The original could not be loaded, and that has been said.
                engine = self.models[model.copy_of].engine.copy()
            else:
                engine = TransformersEngine.open(self._model_spec(model), threads=self.settings.threads)
        except EngineError as error:
            hint = "give a folder, a hub name, or `random(...)`"
            raise ProgramError(Diagnostic("E0730", f"`{model.name}` cannot be loaded: {error}", _place(model), hint)) from None
        state = ModelState(engine, model, past=deque(maxlen=lag + 1))
        if lag and not model.frozen:
            state.past.append(engine.state())
        self.models[model.name] = state
        self.handles[model.name] = model.name

    def _model_spec(self, model: Model) -> ModelSpec:
        dtype = dict(model.options).get("dtype", "float32")
        if not isinstance(model.source, Record):
            source = str(model.source)
            local = self.settings.folder / source
            return ModelSpec(model.kind, str(local) if local.is_dir() else source, dtype)  # type: ignore[arg-type]
        options = dict(model.source.options)
        tokenizer, seed = options.pop("tokenizer"), options.pop("seed")
        config = {name: plain(value) for name, value in options.items()}
        if tokenizer is None:
            raise EngineError("random weights need `tokenizer=`: a folder, or chars(...), words(...), bytes()")
        family = str(model.source.args[0])
        random = RandomSource(family, config, _tokenizer(tokenizer, self.settings.folder), seed)
        return ModelSpec(model.kind, random, dtype)  # type: ignore[arg-type]

    def row_keys(self, name: str, rows: Sequence[object], extra: object = "") -> np.ndarray:
        """A number for each row: a function of (program seed, node, step, row) and of nothing else, uint64."""
        head = f"{self.settings.seed}/{name}/{self.step}/{extra}/".encode()
        raw = b"".join(hashlib.blake2b(head + repr(row).encode(), digest_size=8).digest() for row in rows)
        return np.frombuffer(raw, dtype=np.uint64)

    def end_step(self) -> None:
        """Publishes the weights of models that changed in this step."""
        for state in self.models.values():
            if state.touched:
                state.version += 1
                state.touched = False
                if state.past:
                    state.past.append(state.engine.state())

    def close(self) -> None:
        self.workers.close()


@contextmanager
def _collected(problems: list[Diagnostic]) -> Iterator[None]:
    """All that cannot be opened is said at once."""
    try:
        yield
    except ProgramError as error:
        problems += error.diagnostics


def _tokenizer(value: Constant, folder: Path) -> TokenizerSpec | str:
    if isinstance(value, Record):
        if value.name == "chars":
            return Chars(str(value.args[0]))
        if value.name == "words":
            return Words(str(value.args[0]))
        if value.name == "bytes":
            return Bytes()
    if isinstance(value, str):
        return str(folder / value) if (folder / value).is_dir() else value
    raise EngineError("a tokenizer is a folder, or chars(...), words(...), bytes()")


def _place(model: Model) -> Span:
    return model.source.span if isinstance(model.source, Record) and model.source.span.line else model.span


def engine_failure(node: Node, what: str, error: Exception) -> RunError:
    """An engine's refusal, at the place in the program that asked."""
    return RunError(Diagnostic("E0731", f"{what}: {error}", node.span))
