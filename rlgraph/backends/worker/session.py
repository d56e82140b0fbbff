"""This module has what lives as long as a run: models and their engines, readers, functions, environments, states."""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch

from rlgraph.backends.device_full import device_full_error, is_device_full
from rlgraph.backends.engines.errors import ConversationError, EngineError, HubError, MissingHead, ModelRefused
from rlgraph.backends.engines.meter import WorkMeter
from rlgraph.backends.engines.records import Rank
from rlgraph.backends.engines.roles import EmbeddedEngine, Engine, LimitsCache
from rlgraph.backends.engines.sources import ModelSpec
from rlgraph.backends.enginespec.registry import embedded_engine, rank_opener
from rlgraph.backends.length_history import LengthHistory
from rlgraph.backends.recording import Recorder, Replay
from rlgraph.backends.step import Step
from rlgraph.backends.trace_notes import TraceNotes
from rlgraph.backends.weight_versions import PastWeights, WeightVersions
from rlgraph.backends.worker.agent_server import AgentServer
from rlgraph.backends.worker.conversation_warnings import conversation_warnings
from rlgraph.backends.worker.empty_prompts import empty_prompt_diagnostics
from rlgraph.backends.worker.environment_trials import try_environments
from rlgraph.backends.worker.first_failures import FirstFailures
from rlgraph.backends.worker.function_trials import try_functions
from rlgraph.backends.worker.model_sources import chat_span, model_spec, source_span
from rlgraph.backends.worker.prompt_limits import apply_prompt_limits, prompt_limits
from rlgraph.backends.worker.turn_trials import try_turns
from rlgraph.catalog.models.missing_heads import missing_head_diagnostic
from rlgraph.data import BatchReader, Cursor, check_source, open_source
from rlgraph.dsl.columns import column_misuses
from rlgraph.errors import Diagnostic, ProgramError, RunError
from rlgraph.ir.graph import External, Model, Node, Program
from rlgraph.ir.plan import ModelHolding
from rlgraph.ops.shared_base_models import base_models
from rlgraph.user_code import (
    Ask,
    CodeFailure,
    Environment,
    RemoteWorker,
    RewardFunction,
    Workers,
    open_environment,
    open_reward_function,
)
from rlgraph.user_code.files import SearchFolders
from rlgraph.user_code.spec import CallSpec

Note = Callable[[str], None]
Progress = Callable[[int, int, str, int], None]
"""Is told what a node has done of how much, in which unit ("row", "micro-batch"), and how many tokens it has made."""


@dataclass(frozen=True)
class Settings:
    """How to run; nothing here changes what is computed, but for the order of float sums."""

    seed: int = 0
    threads: int = 1
    block: int | None = None
    """Rows of its unit that every node takes at a time; None: what the plan says, or the batch."""
    token_budget: int | None = None
    """Padded tokens of a micro-batch, at most; None: the engine's own budget."""
    micro_rows: int | None = None
    """Rows of a micro-batch, at most, instead of a token budget."""
    folder: Path = field(default_factory=Path)
    """The program's folder."""
    here: Path = field(default_factory=Path.cwd)
    """The folder in which the command runs, whatever that of this process is."""
    record: Path | None = None
    """A folder for all that is sampled, which `rlgraph.backends.recording.claim_folder` has claimed."""
    replay: Path | None = None
    """A recording, whose rows take the place of sampling."""
    skips: bool = False
    """Whether an update whose gradient is not finite is left out, and the run goes on."""
    device: str | None = None
    """The device of the models, where they are all in this process, as torch names it; None: the engine chooses."""
    saves: bool = False
    """Whether what steps leave of models is written while others go on."""

    @property
    def folders(self) -> SearchFolders:
        """The folders in which relative paths of the program begin."""
        return SearchFolders(self.folder, self.here)


@dataclass
class SessionModel:
    """A model in a run."""

    engine: Engine
    model: Model
    past: PastWeights
    updates: int = 0
    """Optimizer steps that it took."""
    skipped: tuple[Step | None, int] = (None, 0)
    """The last step in which updates were left out because their gradient was not finite, and how many."""
    empty: tuple[Step | None, int] = (None, 0)
    """The last step in which updates were left out because they had no rows, and how many."""
    odd: list[str] = field(default_factory=list)
    """Rows of the micro-batches of an update whose loss is not finite, for a message."""
    gathers: Step | None = None
    """The step of which gradients have been added up."""
    gate: threading.Condition = field(default_factory=threading.Condition)
    torn: bool = False
    """Whether a change has ended halfway: its weights are neither the old ones nor the new ones."""
    held: bool = False
    """Whether its weights are being written to disk: a change of them waits at the gate."""

    @property
    def max_row_tokens(self) -> int | None:
        """Tokens of a row, at most; None: any number, or the engine does not say."""
        return self.engine.max_row_tokens

    def holding_for_longer_rows(self, tokens: int) -> ModelHolding | None:
        """Return what the plan would have to say of the model for a row of so many tokens; None where that would not
        help."""
        return (
            cast(LimitsCache, self.engine).holding_for_longer_rows(tokens)
            if hasattr(self.engine, "holding_for_longer_rows")
            else None
        )


OpenEngine = Callable[[Model, ModelSpec, "Session"], Any]
"""Makes the engine of a model, or a proxy that only has its `codec`; raises `EngineError` where it cannot."""


def _open_here(model: Model, spec: ModelSpec, session: Session) -> Engine:
    """Open an engine in this process."""
    beside = session.engine_with_same_base(model)
    if model.copy_of and beside is None:
        return cast(EmbeddedEngine, session.models[model.copy_of].engine).copy()
    rank = Rank(threads=session.settings.threads, device=session.settings.device, base_engine=beside)
    engine: EmbeddedEngine = rank_opener(embedded_engine())(spec, rank)
    return engine


class Session:
    """Opens everything that a program names, before the first step.

    A process that does a part of the work only opens that part: `open_engine` makes the engines, `outside` names what
    else.
    """

    def __init__(
        self,
        program: Program,
        settings: Settings,
        note: Note = lambda text: None,
        *,
        open_engine: OpenEngine = _open_here,
        outside: Container[str] | None = None,
        spread: bool = True,
        who: str = "",
        split: bool = False,
    ) -> None:
        """spread: functions and environments have as many processes as the program says; otherwise one. who: the name
        of this process in a recording. split: whether this process is one of several that split each model, which
        all do the same in the same order."""
        self.split = split
        self.spread = spread
        self.program, self.settings = program, settings
        self.versions = WeightVersions(program)
        self.first_versions = frozenset(value.name for phase in program.phases for value in phase.graph.inputs)
        """The names of the values with which steps begin."""
        self.bases = base_models(program)
        self.notes = TraceNotes(program)
        self._open_engine = open_engine
        self.workers = Workers()
        self.failures = FirstFailures(prints=not who)
        """Of functions that the run goes on without; where the run has many processes, the one that runs the steps says
        them."""
        self.checked: set[str] = set()
        """Nodes whose first episodes have been compared with their whole conversations."""
        self.models: dict[str, SessionModel] = {}
        self.readers: dict[str, BatchReader] = {}
        self.functions: dict[str, RewardFunction] = {}
        self.environments: dict[str, Environment] = {}
        self.never_finished: dict[str, int] = {}
        """For each agent of which no episode has come to its end, how many have failed."""
        self._agent_server: AgentServer | None = None
        self._opening = threading.Lock()
        self.history = LengthHistory()
        self.first: dict[str, Any] = {}
        """Values of things that live across steps, as they are before the first one, by name."""
        self.recorder = Recorder(settings.record, who) if settings.record else None
        self.replay = Replay(settings.replay, program.name, settings.seed) if settings.replay else None
        self.progress: Progress = lambda done, total, unit, tokens: None
        """Is told how far the node at work is."""
        try:
            self._open(note, [thing for thing in program.outside if outside is None or thing.name in outside])
        except BaseException:
            self.close()
            raise

    def _open(self, note: Note, wanted: Sequence[External]) -> None:
        problems: list[Diagnostic] = []
        for outside in wanted:
            note(f"opening {outside.name}")
            with _collected(problems):
                self._open_outside(outside)
        if not problems:
            columns = {name: reader.source.columns for name, reader in self.readers.items()}
            problems += column_misuses(self.program, columns, self.functions)
        sentences: list[str] = []
        if not problems:
            # Before models are loaded, which may take minutes.
            problems, sentences = try_functions(self.program, self.readers, self.functions, note)
            problems += try_environments(self.program, self.readers, self.environments, note)
        if problems:
            raise ProgramError(problems)
        for model in self.program.models:
            where = (
                f" on {self.settings.device} in {self.program.dtype_of_model(model)}" if self.settings.device else ""
            )
            note(f"loading {model.name}{where}")
            with _collected(problems):
                self._open_model(model)
        if problems:
            raise ProgramError(problems)
        warnings = empty_prompt_diagnostics(self.program, self.readers, self.models)
        problems += [diagnostic for diagnostic in warnings if diagnostic.severity == "error"]
        problems += try_turns(self.program, self.readers, self.models, self.environments)
        if problems:
            raise ProgramError(problems)
        limits = prompt_limits(self.program, self.readers, self.models)
        warnings += conversation_warnings(self.program, self.readers, self.models, self.environments)
        self.judged = [
            *sentences,
            *(warning.render() for warning in warnings),
            *apply_prompt_limits(self.readers, limits, note),
        ]
        """Sentences on functions that failed on made-up answers, on prompts that are empty or without the
        template of a chat model, on what a model does not read, and on what was done with rows that are too long."""
        self.dtype = program_numbers_dtype(self.program)
        for state in self.program.states:
            self.first[state.name] = {} if state.keyed else torch.tensor(state.initial, dtype=self.dtype)
        self.initial = {state.name: state.initial for state in self.program.states}

    def _open_outside(self, outside: External) -> None:
        folders = self.settings.folders
        if outside.kind == "buffer":
            self.first[outside.name] = None
            return
        overrides = {} if self.spread or outside.kind == "data" else {"workers": 1}
        spec = _spec(outside, overrides)
        if outside.kind == "data":
            check_source(spec)
            source = open_source(spec, folders, self.workers)
            self.readers[outside.name] = BatchReader(source, outside.name, self.settings.seed)
            self.first[outside.name] = Cursor()
        elif outside.kind == "func":
            self.functions[outside.name] = open_reward_function(spec, folders, self.workers)
        else:
            self.environments[outside.name] = open_environment(spec, folders, self.workers)

    def open_remote_environment(self, name: str, asks: Sequence[Ask], caller: int) -> None:
        """Open an environment whose processes are elsewhere. caller: a number for each session that uses them."""
        outside = next(thing for thing in self.program.outside if thing.name == name)
        away = Workers(lambda code, slot: RemoteWorker(code, asks[slot], caller))
        self.environments[name] = open_environment(_spec(outside, {"workers": len(asks)}), self.settings.folders, away)

    def call_environment(
        self, name: str, generation: int, operation: str, arguments: tuple[Any, ...], limit_s: float
    ) -> tuple[int, Any]:
        """Return what the process of an environment here answers to `Ask`."""
        worker = self.environments[name].workers[0]
        answer: Any
        try:
            answer = worker.request_same_process(generation, operation, *arguments, limit_s=limit_s)
        except CodeFailure as failure:
            answer = failure
        return worker.generation, answer

    def _open_model(self, model: Model) -> None:
        if model.copy_of and model.copy_of not in self.models:
            return  # The original could not be loaded, which has been reported.
        try:
            engine = self._open_engine(model, model_spec(self.program, model, self.settings.folders), self)
        except ModelRefused as error:
            hint = "take a model of another architecture: `rlgraph explain E0746` says what is tried"
            raise ProgramError(
                Diagnostic("E0746", f"`{model.name}` would come out wrong: {error}", source_span(model), hint)
            ) from None
        except ConversationError as error:
            raise ProgramError(
                Diagnostic(error.code, f"`{model.name}`: {error}", chat_span(model), error.hint)
            ) from None
        except MissingHead as error:
            raise ProgramError(missing_head_diagnostic(model.name, str(error), source_span(model))) from None
        except EngineError as error:
            hint = (
                error.hint
                if isinstance(error, HubError) or error.hint
                else "give a folder, a hub name, `gguf(...)`, or `random(...)`"
            )
            raise ProgramError(
                Diagnostic("E0730", f"`{model.name}` cannot be loaded: {error}", source_span(model), hint)
            ) from None
        except torch.OutOfMemoryError as error:
            raise device_full_error(error, f"loading `{model.name}`", source_span(model)) from None
        meter: WorkMeter | None = getattr(engine, "meter", None)
        if meter is not None:
            meter.tell = lambda done, total, tokens: self.progress(done, total, "row", tokens)
        self.models[model.name] = SessionModel(engine, model, PastWeights(model.name, self.versions))
        self.first[model.name] = model.name

    def engine_with_same_base(self, model: Model) -> Any:
        """Return the engine of an open model in this process that has the same weights, which never change; None: there
        is none."""
        base = self.bases.get(model.name)
        engines = [state.engine for name, state in self.models.items() if base and self.bases.get(name) == base]
        return next((engine for engine in engines if hasattr(engine, "tensors")), None)

    def prepare_weight_change(self, name: str, step: Step) -> None:
        """Prepare for a change of a model's weights: wait until they are not held, and keep the past ones as long as
        they are needed."""
        state = self.models[name]
        with state.gate:
            state.gate.wait_for(lambda: not state.held)
            state.past.copy_before_change(step, state.engine.state)

    def forget_steps(self, step: Step) -> None:
        """Forget what only this step and those before needed, which are over."""
        for state in self.models.values():
            state.past.drop_unneeded(step)
        if self.replay:
            self.replay.forget_steps(step)

    def decode_rows(self, owner: str, rows: Sequence[Sequence[int]]) -> list[str]:
        """Return the texts of rows of tokens. owner: the model whose tokens they are."""
        codec = self.models[owner].engine.codec
        return [codec.decode(row) for row in rows]

    @property
    def agent_server(self) -> AgentServer:
        """The server that agents ask, which is started when it is first needed."""
        with self._opening:
            if self._agent_server is None:
                self._agent_server = AgentServer()
            return self._agent_server

    def close(self) -> None:
        """End the processes of functions and environments, and the server for them."""
        self.workers.close()
        with self._opening:
            if self._agent_server is not None:
                self._agent_server.close()
                self._agent_server = None


def _spec(outside: External, overrides: Mapping[str, Any]) -> CallSpec:
    """Return the spec of an outside thing. overrides: options that count, whatever the program says."""
    args, options = outside.record.plain_arguments()
    return CallSpec(
        outside.record.name, args, {**options, **overrides}, outside.record.span, dict(outside.record.spans)
    )


def program_numbers_dtype(program: Program) -> torch.dtype:
    """Return the dtype of the program's own numbers: float64 if a model has it."""
    dtypes = {dict(model.options).get("dtype") for model in program.models}
    return torch.float64 if "float64" in dtypes else torch.float32


@contextmanager
def _collected(problems: list[Diagnostic]) -> Iterator[None]:
    """Collect the errors of all that cannot be opened, so that they are reported at once."""
    try:
        yield
    except ProgramError as error:
        problems += error.diagnostics


def engine_run_error(node: Node, what: str, error: Exception) -> RunError:
    """Return the error for what an engine refuses, at the place in the program that asked."""
    if isinstance(error, ConversationError):
        return RunError(Diagnostic(error.code, f"{what}: {error}", node.span, error.hint))
    if is_device_full(error):
        return device_full_error(error, f"the work of `{node.name}`", node.span)
    return RunError(
        Diagnostic("E0731", f"{what}: {error}", node.span, error.hint if isinstance(error, EngineError) else "")
    )


def row_too_long_error(node: Node, what: str, tokens: int, state: SessionModel, longest: int) -> RunError:
    """Return the error for a row of so many tokens, for which the model has too few positions, or the cache that the
    plan gives it has no room."""
    message = f"{what} longer than the {longest:,} that a row of `{state.model.name}` may have"
    hint = "lower `max_tokens`, or leave such rows out of the data"
    if roomier := state.holding_for_longer_rows(tokens):
        where = f"of `{roomier.model}` on `{roomier.group}` in the plan file"
        hint = f"raise `kv_bytes` {where} to {roomier.kv_bytes} at least, {hint}"
    return RunError(Diagnostic("E0748", message, node.span, hint))
