"""Loads a model from a folder or the Hugging Face hub, or makes one with random weights of a given shape."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rlgraph.backends.engines.chat import ChatOptions
from rlgraph.backends.engines.errors import EngineError, HubError, MissingHead, first_line
from rlgraph.backends.engines.pieces import NO_ROW
from rlgraph.backends.engines.tokenizers import Codec, TokenizerSpec, build_tokenizer
from rlgraph.catalog.models import hub_availability
from rlgraph.catalog.models.adapters import Adapters
from rlgraph.catalog.models.config_shape import max_row_tokens
from rlgraph.catalog.models.configs import find_config
from rlgraph.catalog.models.families import ModelKind
from rlgraph.catalog.models.shape import UnsupportedModel
from rlgraph.errors import closest_match, quoted_list

# transformers' models take seconds to import, and neither the controller of a cluster nor a worker for the user's
# functions has one: what is needed of it is imported where it is used.
if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

_AUTO: Mapping[ModelKind, str] = {
    "causal_lm": "AutoModelForCausalLM",
    "value_lm": "AutoModelForTokenClassification",
    "reward_lm": "AutoModelForSequenceClassification",
}
_NO_REMOTE_CODE = {"trust_remote_code": False}
"""Where this is not set, transformers asks on the terminal whether the model's own Python may run."""
_DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class RandomWeights:
    """Random weights, always the same for the same seed; models of different kinds have the same backbone."""

    family: str
    """transformers' `model_type`: "qwen2", "llama", "gpt2"."""
    config: Mapping[str, Any]
    """The configuration by its own field names; `vocab_size` may be left out: it is the tokenizer's."""
    tokenizer: TokenizerSpec | str
    """How to build the tokenizer, or the folder or hub name of one."""
    seed: int = 0


@dataclass(frozen=True)
class ModelSpec:
    """A model to load."""

    kind: ModelKind
    """A language model, one with a scalar for each token, or one with a scalar for each row."""
    source: str | RandomWeights
    """A local folder, a hub name, or random weights."""
    dtype: str = "float32"
    autocast: str | None = field(default=None, kw_only=True)
    """What products of its weights are computed in, `bfloat16`; None: as they are."""
    tokenizer: TokenizerSpec | str | None = None
    """A tokenizer in place of the source's own."""
    generates: bool = True
    """It is asked to continue rows, for which an architecture needs more than for reading them."""
    keeps_routes: bool = field(default=False, kw_only=True)
    """The rows that it continues come with the experts of their tokens (`Sampling.keeps_routes`)."""
    adapters: Adapters | None = None
    """What is trained in place of the model itself; the source is their base."""
    is_trained: bool = True
    """It is trained, or a copy of it: a head that the source does not have begins with 0. Else the source has to have
    one."""
    chat: ChatOptions | None = None
    """How its conversations are written; None: as the tokenizer says."""

    @property
    def needs_saved_head(self) -> bool:
        """Whether a value or reward model's head has to be in the files of its source; that of a saved adapter is
        beside it."""
        return (
            self.kind != "causal_lm" and not self.is_trained and (self.adapters is None or self.adapters.start is None)
        )


@dataclass(frozen=True)
class LoadedModel:
    """A model, its tokenizer, and what the source did not have."""

    model: PreTrainedModel
    codec: Codec
    new_parameters: tuple[str, ...] = field(default=())
    """Parameters that the source's files do not hold: the head of a value model made from a language model, set to
    0."""


def load(spec: ModelSpec, device: str = "cpu") -> LoadedModel:
    """Load or make a model; a source that cannot be used raises `EngineError`."""
    dtype = dtype_of(spec)
    new: tuple[str, ...] = ()
    with quiet_transformers():
        codec = load_codec(spec)
        if isinstance(spec.source, RandomWeights):
            model = _random(spec.kind, spec.source, codec)
            model = model.to(dtype)  # type: ignore[arg-type]  # transformers' decorator hides its types
        else:
            model, new = _pretrained(spec.kind, spec.source, dtype)
            if spec.needs_saved_head and {*_head(model)} <= {*new}:
                raise MissingHead(spec.kind, spec.source)
    if spec.adapters is not None:
        from rlgraph.backends.engines.adapters import attach_adapters

        attach_adapters(model, spec.adapters, spec.kind)
    # Dropout would make the log-probability of a row depend on the pass that computes it.
    return LoadedModel(model.eval().to(device), codec, new)


def dtype_of(spec: ModelSpec) -> torch.dtype:
    """Return the dtype of a model's weights. Raises EngineError where it has no such name."""
    if spec.dtype not in _DTYPES:
        raise EngineError(f"no dtype is called {spec.dtype!r}: there are {', '.join(_DTYPES)}")
    return _DTYPES[spec.dtype]


_COPY_TOKENIZER = "copy `tokenizer.json` and `tokenizer_config.json` of the base model into its folder"


def load_codec(spec: ModelSpec) -> Codec:
    """Return the tokenizer of a model, without its weights. Raises ConversationError where its chat template does not
    know what it is given."""
    default = spec.source.tokenizer if isinstance(spec.source, RandomWeights) else spec.source
    chosen = default if spec.tokenizer is None else spec.tokenizer
    if not isinstance(chosen, str):
        return Codec(build_tokenizer(chosen), spec.chat)
    with quiet_transformers():
        tokenizer = _read(chosen, "tokenizer", _tokenizer_class(chosen))
        if len(tokenizer) <= len(tokenizer.all_special_tokens):
            # Where a folder has no files of a tokenizer, transformers makes one of the family that knows no text.
            message = f"the folder {chosen!r} has no tokenizer: what is there knows no tokens"
            raise EngineError(message, _COPY_TOKENIZER)
        codec = Codec(tokenizer, spec.chat)
    if isinstance(spec.source, str):
        _fit_vocabulary(codec, spec.source)
    return codec


def text_end_ids(spec: ModelSpec, codec: Codec) -> tuple[int, ...]:
    """Return the tokens that end a text, from the model's files alone."""
    of_model = None
    if isinstance(spec.source, str):
        from transformers import GenerationConfig

        # Many have no such file. Hubs and disks fail in ways of their own, of which loading the model tells.
        with quiet_transformers(), suppress(Exception):
            of_model = GenerationConfig.from_pretrained(spec.source).eos_token_id
    return codec.text_end_ids(of_model)


def max_positions(spec: ModelSpec) -> int | None:
    """Return the most tokens of a row of a model, from its configuration alone; None where that does not say."""
    with quiet_transformers():
        if isinstance(spec.source, RandomWeights):
            config = random_config(spec.source, load_codec(spec), spec.kind)
        else:
            from transformers import AutoConfig

            config = _read(spec.source, "model", AutoConfig)
    return max_positions_in_config(config)


def max_positions_in_config(config: PretrainedConfig) -> int | None:
    """Return the most tokens of a row from a configuration, which knows the names that GPT-2 and others have for it."""
    text_config = config.get_text_config()
    return max_row_tokens(
        {name: getattr(text_config, name, None) for name in ("max_position_embeddings", "rope_parameters")}
    )


def model_without_weights(spec: ModelSpec) -> PreTrainedModel:
    """Return the model of a source without its weights, and without adapters."""
    from transformers import AutoConfig

    with quiet_transformers(), torch.device("meta"):
        if isinstance(spec.source, RandomWeights):
            config = random_config(spec.source, load_codec(spec), spec.kind)
        else:
            labels = {} if spec.kind == "causal_lm" else {"num_labels": 1}
            config = _read(spec.source, "model", AutoConfig, **labels)
        model: PreTrainedModel = _auto(spec.kind).from_config(config, dtype=dtype_of(spec))
    return model


def _auto(kind: ModelKind) -> Any:
    """Return transformers' class that makes models of a kind."""
    import transformers

    return getattr(transformers, _AUTO[kind])


def _tokenizer_class(folder: str) -> Any:
    """Return AutoTokenizer, but for a folder that asks for the plain class, in whose place it would take the model
    family's own."""
    import transformers

    try:
        with open(os.path.join(folder, "tokenizer_config.json"), encoding="utf-8") as file:
            class_name = json.load(file).get("tokenizer_class")
    except (OSError, ValueError):
        class_name = None
    plain = class_name in ("TokenizersBackend", "PreTrainedTokenizerFast")
    return transformers.PreTrainedTokenizerFast if plain else transformers.AutoTokenizer


def _pretrained(kind: ModelKind, source: str, dtype: torch.dtype) -> tuple[PreTrainedModel, tuple[str, ...]]:
    labels = {} if kind == "causal_lm" else {"num_labels": 1}
    options = {"dtype": dtype, "output_loading_info": True, "use_safetensors": True, **labels}
    model, info = _read(source, "model", _auto(kind), **options)
    new = tuple(sorted(info["missing_keys"]))
    missing = new if kind == "causal_lm" else tuple(name for name in new if name not in _head(model))
    if missing:
        is_none = ": it is no causal language model" if kind == "causal_lm" else ""
        raise EngineError(f"the model {source!r} lacks the weights {', '.join(missing[:3])}{is_none}")
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name in new:
            # transformers draws them from the global generator; zeros are neutral, and always the same.
            parameters[name].zero_()
    return model, new


def _fit_vocabulary(codec: Codec, source: str) -> None:
    """Raise EngineError for a tokenizer whose tokens the model of a source does not have. Those that were added to it
    may lie outside, as a text model of a family that sees has no row for the token of a picture: they are refused where
    a row has them."""
    config: Mapping[str, Any] = {}
    with suppress(UnsupportedModel):  # Loading the model tells of it.
        config = find_config(source) or {}
    rows = (config.get("text_config") or {}).get("vocab_size", config.get("vocab_size"))
    if not isinstance(rows, int) or len(codec.tokenizer) <= rows:
        return
    tokens = codec.tokenizer.vocab_size
    if tokens > rows:
        message = f"its tokenizer has {tokens:,} tokens, and the model {rows:,}: it is another model's"
        raise EngineError(message, _COPY_TOKENIZER)
    if codec.eos_id is not None and codec.eos_id >= rows:
        message = f"its tokenizer ends a text with token {codec.eos_id:,}, and the model has rows for {rows:,} tokens"
        raise EngineError(message, NO_ROW)
    codec.rows = rows


def _head(model: PreTrainedModel) -> list[str]:
    """Return the names of a model's parameters that are not its decoder's."""
    return [name for name, _ in model.named_parameters() if not name.startswith(f"{model.base_model_prefix}.")]


def _read(source: str, what: str, reader: Any, **options: Any) -> Any:
    """Return what a class of transformers reads from a source; errors are explained in the user's terms."""
    # A folder with an adapter has a tokenizer, and no model.
    files = {"config.json", f"{what}_config.json"}
    is_folder = os.path.isdir(source)
    if is_folder and not any(os.path.exists(os.path.join(source, name)) for name in files):
        missing = "model" if what == "model" else f"model, nor a {what}"
        raise EngineError(f"the folder {source!r} holds no {missing}: it has no config.json", _models_below(source))
    place = "in the folder" if is_folder else "as a local folder or on the Hugging Face hub"
    try:
        path = source if is_folder else hub_availability.readable_source(source)
    except hub_availability.NotReadable as error:
        raise HubError(f"cannot load the {what} {source!r}: {error.message}", error.hint) from None
    try:
        return reader.from_pretrained(path, **options, **_NO_REMOTE_CODE)
    # Files from elsewhere can make the code that reads them fail in any way.
    except Exception as error:
        message = f"cannot load the {what} {source!r} {place}: {_explain(error, source)}"
        hint = _COPY_TOKENIZER if what == "tokenizer" else ""
        raise (
            EngineError(message, hint) if is_folder else HubError(message, hub_availability.loading_hint(source))
        ) from error


def _models_below(folder: str) -> str:
    """Return where models are in the folder of a run, of a trainer or of a package; empty where there are none."""
    names = ("config.json", "adapter_config.json", "*.gguf")
    below = (found for depth in ("", "*/", "*/*/") for name in names for found in Path(folder).glob(f"{depth}{name}"))
    models = sorted({f'gguf("{path}")' if path.suffix == ".gguf" else str(path.parent) for path in below})
    more = f" and {len(models) - 3} more" if len(models) > 3 else ""
    return f"models in it: {', '.join(f'`{model}`' for model in models[:3])}{more}" if models else ""


def _explain(error: Exception, source: str) -> str:
    if "trust_remote_code" in str(error):
        return "it is computed by Python code of its own, which is never run"
    if "Couldn't instantiate the backend tokenizer" in str(error):
        return "it has no tokenizer.json, nor what one could be made from"
    if "ignore_mismatched_sizes" in str(error):
        return "its weights have other shapes than its config.json says"
    if os.path.isdir(source) and not any(name.endswith(".safetensors") for name in os.listdir(source)):
        pickled = next((name for name in os.listdir(source) if name.endswith((".bin", ".pt", ".pth"))), None)
        if pickled is not None and "safetensors" in str(error):
            return f"its weights are in {pickled}, and only safetensors are read, in which nothing can be executed"
    first = first_line(error)[:300]
    return first if isinstance(error, (OSError, ValueError)) and first else f"{type(error).__name__}: {first}"


def random_config(source: RandomWeights, codec: Codec, kind: ModelKind = "causal_lm") -> Any:
    """Return the configuration of a random model; raises EngineError for one that there cannot be."""
    from transformers import AutoConfig

    fields = dict(source.config)
    size = fields.setdefault("vocab_size", len(codec.tokenizer))
    if size < len(codec.tokenizer):
        raise EngineError(f"vocab_size is {size}, but the tokenizer has {len(codec.tokenizer)} tokens")
    fields.setdefault("pad_token_id", codec.pad_id)
    fields.setdefault("bos_token_id", None)
    fields.setdefault("eos_token_id", codec.eos_id)
    labels = {} if kind == "causal_lm" else {"num_labels": 1}
    try:
        config = AutoConfig.for_model(source.family, **fields, **labels)
    except Exception as error:
        raise EngineError(f"cannot make a random {source.family!r} model: {error}") from error
    names = [attribute.name for attribute in dataclasses.fields(config)]
    for name in source.config:
        similar = [candidate for candidate in names if name in candidate] or [
            *filter(None, [closest_match(name, names, 0.8)])
        ]
        if name not in names and name not in config.attribute_map and similar and not _reads_attribute(config, name):
            raise EngineError(
                f"the configuration of {source.family!r} has no {name}; did you mean {quoted_list(similar, 'or')}?"
            )
    return config


def _reads_attribute(config: Any, name: str) -> bool:
    """Return whether the code of a configuration, or of its model, reads an attribute that is none of its fields, as
    some do: transformers keeps any name."""
    folder = Path(inspect.getfile(type(config))).parent
    pattern = re.escape(name)
    access = re.compile(rf"config\.{pattern}\b|(?:getattr|hasattr|pop|get)\([^()]*[\"']{pattern}[\"']")
    return any(access.search(file.read_text()) for file in folder.glob("*.py"))


def _random(kind: ModelKind, source: RandomWeights, codec: Codec) -> PreTrainedModel:
    """Make a model whose backbone depends on the seed and the configuration alone, the same for each kind."""
    try:
        base = _seeded("causal_lm", random_config(source, codec), source.seed)
        if kind == "causal_lm":
            return base
        model = _seeded(kind, random_config(source, codec, kind), source.seed + 1)
    except EngineError:
        raise
    except Exception as error:
        raise EngineError(f"cannot make a random {source.family!r} model: {error}") from error
    model.base_model.load_state_dict(base.base_model.state_dict())
    return model


def _seeded(kind: ModelKind, config: Any, seed: int) -> PreTrainedModel:
    """Make a model of this configuration in float32, without touching the global random generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = _auto(kind).from_config(config, dtype=torch.float32)
    return model


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep transformers' warnings and progress bars off the screen while a model is loaded; errors still raise."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
