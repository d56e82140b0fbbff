"""Opens everything that a program names, one after the other, as a run does before its first step: its data, its
functions and environments, its models. No weights are loaded, and nothing is trained."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rlgraph.backends.engines.errors import EngineError, HubError
from rlgraph.backends.engines.sources import ModelSpec, load_codec, max_positions
from rlgraph.backends.engines.tokenizers import Codec
from rlgraph.backends.worker.conversation_warnings import conversation_warnings
from rlgraph.backends.worker.empty_prompts import empty_prompt_diagnostics
from rlgraph.backends.worker.environment_trials import try_environments
from rlgraph.backends.worker.function_trials import find_function_trials
from rlgraph.backends.worker.model_sources import model_spec, source_span
from rlgraph.backends.worker.prompt_limits import apply_prompt_limits, prompt_limits
from rlgraph.backends.worker.turn_trials import try_turns
from rlgraph.catalog.clusters.processor import processor_flags
from rlgraph.catalog.models.configs import find_model_folder
from rlgraph.catalog.models.families import parameter_count
from rlgraph.catalog.models.shape import Shape
from rlgraph.columns import WORDS
from rlgraph.data import BatchReader, Row, open_source
from rlgraph.dsl.columns import column_misuses, find_prompt_uses
from rlgraph.errors import RlgraphError, count_phrase
from rlgraph.ir.graph import ConstructorCall, External, Model, Program
from rlgraph.passes.compilation.compilation import Compilation
from rlgraph.passes.compilation.compile import autocast_notes, resolve_auto_autocast, with_default_dtypes
from rlgraph.passes.compilation.default_plan import unusable_engine_diagnostics
from rlgraph.passes.placement.least_memory import least_bytes_of_all_ranks
from rlgraph.runs.doctor.finding import Finding, finding_of, format_bytes
from rlgraph.runs.doctor.machine import memory_bytes, model_cache_folder
from rlgraph.runs.doctor.prompts import first_rows, prompt_findings, reward_findings, tokenizer_mismatch_findings
from rlgraph.user_code import Environment, RewardFunction, Workers, open_environment, open_reward_function
from rlgraph.user_code.spec import CallSpec

_HUB_BYTES = 2
"""The bytes of a weight in a file of the hub: nearly all are in bfloat16."""
_LARGEST_SHARE = 0.9
"""The share of a device that weights, gradients and moments may take, which activations are beside."""


@dataclass
class _Opened:
    """What could be opened of a program."""

    readers: dict[str, BatchReader] = field(default_factory=dict)
    functions: dict[str, RewardFunction] = field(default_factory=dict)
    environments: dict[str, Environment] = field(default_factory=dict)
    models: dict[str, _Model] = field(default_factory=dict)


@dataclass(frozen=True)
class _Model:
    """A model of which only the tokenizer is loaded, for what asks an opened model."""

    codec: Codec
    spec: ModelSpec
    max_row_tokens: int | None

    @property
    def engine(self) -> Any:
        """The object that has the `codec` and the `spec`."""
        return self


def program_findings(compiled: Compilation) -> Iterator[Finding]:
    """Yield what a run of the program on this machine would meet before its first step. It runs the user's Python."""
    device = _device()
    program = with_default_dtypes(compiled.program, device != "cpu")
    for text in autocast_notes(program, processor_flags()):
        yield Finding("ok", "autocast", text)
    program = resolve_auto_autocast(program, processor_flags())
    for warning in compiled.diagnostics:
        yield finding_of(warning, "program")
    if compiled.planned:
        for problem in unusable_engine_diagnostics(compiled.plan, compiled.schedule, compiled.placed.shapes):
            yield finding_of(problem, "engines")
    opened, workers = _Opened(), Workers()
    try:
        for outside in program.outside:
            if outside.kind != "buffer":
                yield from _reported(outside.name, partial(_open, outside, compiled, opened, workers))
        yield from _reported("columns", partial(_columns, program, opened))
        for model in program.models:
            if not model.copy_of:
                yield from _reported(model.name, partial(_model, program, model, compiled, opened))
        for model in program.models:
            if model.copy_of in opened.models:
                opened.models[model.name] = opened.models[model.copy_of]
        yield from _reported("memory", partial(_memory, compiled, program, device))
        if {model.name for model in program.models} == {*opened.models}:
            yield from _reported("prompts", partial(_lengths, program, opened))
        rows: dict[str, list[dict[str, Any]]] = {}
        codecs = {name: model.codec for name, model in opened.models.items()}
        for name, reader in opened.readers.items():
            yield from _reported(name, partial(_first, rows, name, reader))
        known = {name: reader.source.columns for name, reader in opened.readers.items()}
        uses = find_prompt_uses(program, known)
        yield from _reported("prompts", partial(prompt_findings, program, uses, rows, opened.models))
        asked = {use.source: use.column for use in uses}
        yield from _reported("prompts", partial(tokenizer_mismatch_findings, program, rows, codecs, asked))
        trials = find_function_trials(program, known, opened.functions, partial(_named_first_row, rows))
        for name in opened.functions:
            yield from _reported(name, partial(reward_findings, program, name, trials.get(name), rows, codecs))
        for name, environment in opened.environments.items():
            yield from _reported(name, partial(_episode, program, opened, name, environment))
    finally:
        workers.close()


def _reported(subject: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Yield the findings of a check; what it raises for the user is a finding, too."""
    try:
        yield from check()
    except RlgraphError as error:
        for diagnostic in error.diagnostics:
            yield finding_of(diagnostic, subject)


def _device() -> str:
    from rlgraph.backends.engines.device import choose_visible_device

    return choose_visible_device(None)


def _open(outside: External, compiled: Compilation, opened: _Opened, workers: Workers) -> Iterator[Finding]:
    """Open a data source, a function or an environment."""
    args, options = outside.record.plain_arguments()
    spec = CallSpec(outside.record.name, args, options, outside.record.span, dict(outside.record.spans))
    what = spec.span.covered_text or f"{spec.kind}(...)"  # A plan file has no text of it.
    if outside.kind == "data":
        source = open_source(spec, compiled.folders, workers)
        opened.readers[outside.name] = BatchReader(source, outside.name, 0)
        rows = "rows one after the other" if source.row_count is None else count_phrase(source.row_count, "row")
        batch = f", {source.batch:,} a step" if source.batch else ""
        columns = source.columns or {}
        held = [f"{name}: {' or '.join(WORDS[kind] for kind in column.first)}" for name, column in columns.items()]
        yield Finding("ok", outside.name, f"{what}: {rows}{batch}", shown=tuple(held))
    elif outside.kind == "func":
        opened.functions[outside.name] = open_reward_function(spec, compiled.folders, workers)
    else:
        opened.environments[outside.name] = open_environment(spec, compiled.folders, workers)
        yield Finding("ok", outside.name, f"{what} is loaded")


def _episode(program: Program, opened: _Opened, name: str, environment: Environment) -> Iterator[Finding]:
    """Play an episode of one empty action."""
    tried: list[str] = []
    problems = try_environments(program, opened.readers, {name: environment}, tried.append)
    yield from (finding_of(diagnostic, name) for diagnostic in problems)
    if tried and not problems:
        yield Finding("ok", name, "an episode of one empty action can be played")


def _columns(program: Program, opened: _Opened) -> Iterator[Finding]:
    """Compare what columns hold with their use."""
    columns = {name: reader.source.columns for name, reader in opened.readers.items()}
    for diagnostic in column_misuses(program, columns, opened.functions):
        yield finding_of(diagnostic, "columns")


def _model(program: Program, model: Model, compiled: Compilation, opened: _Opened) -> Iterator[Finding]:
    """Look at the files of a model, and load its tokenizer."""
    place = str(source_span(model)) if source_span(model).line else ""
    try:
        spec = model_spec(program, model, compiled.folders)
        codec = load_codec(spec)
        opened.models[model.name] = _Model(codec, spec, max_positions(spec))
    except EngineError as error:
        hint = error.hint if isinstance(error, HubError) else "give a folder, a hub name, `gguf(...)` or `random(...)`"
        yield Finding("fails", model.name, f"{error} [E0730]", hint, place)
        return
    shape = compiled.placed.shapes.get(model.name)
    size = f"{parameter_count(shape, spec.kind):,} parameters, " if isinstance(shape, Shape) else ""
    described = f"{size}{spec.dtype}, {len(codec.tokenizer):,} tokens in the vocabulary"
    written = f'"{model.source}"'
    if isinstance(model.source, ConstructorCall):
        written = model.source.span.covered_text or f"{model.source.name}(...)"
    yield _weights(Finding("ok", model.name, f"{written}: {described}", "", ""), spec, shape, place)


def _weights(fine: Finding, spec: ModelSpec, shape: object, place: str) -> Finding:
    """Return the finding on a model whose tokenizer is fine, as its weights are here or not."""
    if not isinstance(spec.source, str):
        return fine
    folder = find_model_folder(spec.source)
    if folder is not None and any(folder.glob("*.safetensors")):
        return fine
    if folder is not None and Path(spec.source).is_dir():
        hint = "copy them from where the model was saved; only safetensors are read"
        return Finding("fails", fine.subject, f"{spec.source} has no weights (*.safetensors)", hint, place)
    if not isinstance(shape, Shape):
        return Finding("note", fine.subject, f"{fine.message}; its weights will be fetched from the hub")
    needed, cache = parameter_count(shape, spec.kind) * _HUB_BYTES, model_cache_folder()
    there = next(place for place in (cache, *cache.parents) if place.exists())
    message = f"{fine.message}; its weights, {format_bytes(needed)}, will be fetched from the hub into {cache}"
    if shutil.disk_usage(there).free < needed:
        hint = "make room, or name a folder of another disk with `HF_HOME`"
        return Finding("fails", fine.subject, f"{message}, where there is no room for them", hint, place)
    return Finding("note", fine.subject, message)


def _memory(compiled: Compilation, program: Program, device: str) -> Iterator[Finding]:
    """Compare what has to be in memory all the time with what there is, in one process."""
    if compiled.planned:
        return
    shapes = compiled.placed.shapes
    unknown = [model.name for model in program.models if not isinstance(shapes.get(model.name), Shape)]
    if len(unknown) == len(program.models):
        return
    needed = least_bytes_of_all_ranks(program, compiled.plan, shapes)
    total = memory_bytes()[0] if device == "cpu" else _device_memory(device)
    what = "weights, gradients and moments"
    of = f", without `{unknown[0]}`, whose shape is not known" if unknown else ""
    message = f"{what} take {format_bytes(needed)}{of}; {device} has {format_bytes(total)}"
    if total and needed > total * _LARGEST_SHARE:
        hint = "take a smaller model, adapters (`lora=lora(rank=16)`), or several devices: `rlgraph compile --cluster`"
        yield Finding("fails", "memory", message, hint)
    else:
        yield Finding("ok", "memory", f"{message}, where activations and caches go, too")


def _device_memory(device: str) -> int:
    import torch

    return int(torch.cuda.get_device_properties(device).total_memory)


def _lengths(program: Program, opened: _Opened) -> Iterator[Finding]:
    """Look for prompts that are empty, or not as a model is asked, count the tokens of all where one may be too long,
    and write a turn of each that has turns."""
    for problem in [
        *empty_prompt_diagnostics(program, opened.readers, opened.models),
        *conversation_warnings(program, opened.readers, opened.models, opened.environments),
        *try_turns(program, opened.readers, opened.models, opened.environments),
    ]:
        yield finding_of(problem, "prompts")
    for sentence in apply_prompt_limits(
        opened.readers, prompt_limits(program, opened.readers, opened.models), lambda _: None
    ):
        yield Finding("note", "prompts", sentence)


def _named_first_row(rows: Mapping[str, list[Row]], name: str) -> tuple[str, Row] | None:
    return (f"the first row of `{name}`", rows[name][0]) if rows.get(name) else None


def _first(rows: dict[str, list[dict[str, Any]]], name: str, reader: BatchReader) -> Iterator[Finding]:
    """Read the rows of the first step."""
    rows[name] = first_rows(reader)
    yield from ()
