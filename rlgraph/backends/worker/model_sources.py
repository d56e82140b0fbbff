"""Where the models of a program come from: folders, the hub, GGUF files, or random weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

from rlgraph.backends.engines.chat import ChatOptions
from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.engines.sources import ModelSpec, RandomWeights
from rlgraph.backends.engines.tokenizers import ByteTokenizer, CharTokenizer, TokenizerSpec, WordTokenizer
from rlgraph.catalog.models.adapters import CONFIG, UnsupportedAdapter, adapters_of, find_adapter
from rlgraph.catalog.models.gguf import UnusableGguf
from rlgraph.errors import Diagnostic, ProgramError, Span
from rlgraph.ir.dtypes import AUTO
from rlgraph.ir.graph import Constant, ConstructorCall, Model, Program, plain_constant
from rlgraph.ir.types import StateHandle
from rlgraph.ops.nodes import NODES, model_of
from rlgraph.ops.program_work import other_players_models, replayed_models
from rlgraph.ops.shared_base_models import has_changing_weights
from rlgraph.user_code.files import SearchFolders, find_file


def model_spec(program: Program, model: Model, folders: SearchFolders) -> ModelSpec:
    """Return where a model comes from; of a copy, where its original does. Relative paths begin in `folders`."""
    chat = dict(program.original_model(model).options).get("chat")
    written = _chat_options(chat, folders) if isinstance(chat, ConstructorCall) else None
    autocast = program.autocast_of_model(model)
    assert autocast != AUTO, "it is decided where a run begins"
    return replace(
        _source_spec(program, model, folders),
        chat=written,
        autocast=autocast,
        keeps_routes=model.name in replayed_models(program),
    )


def _chat_options(chat: ConstructorCall, folders: SearchFolders) -> ChatOptions:
    """Return how a model's conversations are written. Raises ProgramError where the template cannot be read."""
    options = dict(chat.options)
    path, system, special = options.pop("template"), options.pop("system"), options.pop("special_tokens")
    continues = bool(options.pop("continue_final_message"))
    template, file = None, Path()
    if isinstance(path, str):
        place = dict(chat.spans).get("template", chat.span)
        try:
            file = find_file(path, folders, place, "chat template")
            template = file.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ProgramError(Diagnostic("E0773", f"{path!r} cannot be read: {error}", place)) from None
    assert system is None or isinstance(system, str)
    assert special is None or isinstance(special, bool)
    given = {name: plain_constant(value) for name, value in options.items()}
    return ChatOptions(template, system, special, given, "" if template is None else str(file), continues)


def _source_spec(program: Program, model: Model, folders: SearchFolders) -> ModelSpec:
    """Return where the weights and the tokenizer of a model come from."""
    dtype = program.dtype_of_model(model)
    model = program.original_model(model)
    # A copy is made of what was loaded for its original.
    generates = any(program.original_model(program.model(name)) is model for name in _generating(program))
    learns = has_changing_weights(program, model)
    adapters = adapters_of(model)
    if isinstance(model.source, ConstructorCall) and model.source.name == "gguf":
        source = _gguf_folder(model, folders)
        return ModelSpec(model.kind, source, dtype, None, generates, adapters, learns)  # type: ignore[arg-type]
    if not isinstance(model.source, ConstructorCall):
        source = folders.resolve_model_source(str(model.source))
        try:
            adapter = find_adapter(source)
        except UnsupportedAdapter as error:
            raise EngineError(str(error)) from None
        if adapter is None:
            return ModelSpec(model.kind, source, dtype, None, generates, adapters, learns)  # type: ignore[arg-type]
        base = folders.resolve_model_source(adapter[0])
        if Path(base).is_absolute() and not Path(base).is_dir():
            where = f"write where it is as `base_model_name_or_path` in its {CONFIG}"
            raise EngineError(f"the adapter in {source!r} is for the model {base!r}, which is not here: {where}")
        tokenizer_source = source if (Path(source) / "tokenizer_config.json").is_file() else None
        return ModelSpec(model.kind, base, dtype, tokenizer_source, generates, adapter[1], learns)  # type: ignore[arg-type]
    options = dict(model.source.options)
    tokenizer, seed = options.pop("tokenizer"), options.pop("seed")
    config = {name: plain_constant(value) for name, value in options.items()}
    if tokenizer is None:
        raise EngineError("random weights need `tokenizer=`: a folder, or chars(...), words(...), bytes()")
    family = str(model.source.args[0])
    assert isinstance(seed, int)
    random = RandomWeights(family, config, _tokenizer(tokenizer, folders), seed)
    return ModelSpec(model.kind, random, dtype, None, generates, adapters, learns)  # type: ignore[arg-type]


def _gguf_folder(model: Model, folders: SearchFolders) -> str:
    """Return the folder with the model of `gguf(...)`. Raises ProgramError where the file cannot be used."""
    from rlgraph.backends.engines.gguf import dequantized_folder

    assert isinstance(model.source, ConstructorCall)
    path, place = str(model.source.args[0]), dict(model.source.spans).get(0, source_span(model))
    file = find_file(path, folders, place, "model file")
    try:
        return str(dequantized_folder(file))
    except UnusableGguf as error:
        raise ProgramError(Diagnostic("E0756", f"{path!r} {error}", place, error.hint)) from None


def source_span(model: Model) -> Span:
    """Return the place of a model's source in the program."""
    return model.source.span if isinstance(model.source, ConstructorCall) and model.source.span.line else model.span


def chat_span(model: Model) -> Span:
    """Return the place in the program that says how a model's conversations are written."""
    chat = dict(model.options).get("chat")
    return chat.span if isinstance(chat, ConstructorCall) else source_span(model)


def _generating(program: Program) -> Iterator[str]:
    """Yield the models that make rows."""
    making = {name for name, op in NODES.items() if op.generates}
    for phase in program.phases:
        types = phase.graph.value_types()
        for node in phase.graph.walk():
            if node.op in making:
                yield cast(StateHandle, types[model_of(node)]).name
                yield from other_players_models(node, types)


def _tokenizer(value: Constant, folders: SearchFolders) -> TokenizerSpec | str:
    if isinstance(value, ConstructorCall):
        if value.name == "chars":
            return CharTokenizer(str(value.args[0]))
        if value.name == "words":
            return WordTokenizer(str(value.args[0]))
        if value.name == "bytes":
            return ByteTokenizer()
    if isinstance(value, str):
        return folders.resolve_model_source(value)
    raise EngineError("a tokenizer is a folder, or chars(...), words(...), bytes()")
