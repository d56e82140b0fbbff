"""What is read of a model before vLLM starts: its configuration, its tokenizer, and where its weights are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers import AutoConfig, GenerationConfig, PretrainedConfig

from rlgraph.backends.engines.base import EngineError
from rlgraph.backends.engines.sources import ModelSpec, load, load_codec, quiet
from rlgraph.backends.engines.tokenizers import Codec
from rlgraph.backends.engines.weights import FolderWeights, ModelWeights, Weights
from rlgraph.backends.enginespec.legal import held, problems
from rlgraph.catalog.models.shape import Shape, UnsupportedModel, shape_of
from rlgraph.ir.mesh import Mesh


@dataclass(frozen=True)
class Source:
    """A model that vLLM can take."""

    codec: Codec
    config: PretrainedConfig
    shape: Shape
    eos_ids: tuple[int, ...]
    """The tokens that end a response: the tokenizer's, and those of the model's generation settings."""
    weights: Weights

    def describe(self, folder: str) -> None:
        """Write the `config.json` that vLLM starts from; the weights go straight into its parameters."""
        if self.shape.routing:
            # What this family always does, vLLM wants to be told, and transformers has no fields for it.
            self.config.topk_method, self.config.scoring_func = "noaux_tc", "sigmoid"
        self.config.save_pretrained(folder)


def read(spec: ModelSpec, mesh: Mesh) -> Source:
    """Find the model of `spec`. Raises EngineError where there is none, or vLLM cannot spread it over the mesh."""
    local = isinstance(spec.source, str) and Path(spec.source).is_dir()
    codec, config, settings, weights = (_folder if local else _made)(spec)
    try:
        shape = replace(shape_of(config.to_dict()), adapters=spec.adapters)
    except UnsupportedModel as error:
        raise EngineError(f"the engine vllm cannot take this model: {held(error, 'vllm')}") from error
    if wrong := problems(shape, "vllm", mesh, spec.kind):
        raise EngineError("; ".join(wrong))
    listed = [settings] if isinstance(settings, int) else list(settings or [])
    own = [] if codec.eos_id is None else [codec.eos_id]
    return Source(codec, config, shape, tuple(sorted({*own, *listed})), weights)


def _folder(spec: ModelSpec) -> tuple[Codec, PretrainedConfig, Any, Weights]:
    """Of a local folder no more weights are read than this rank has."""
    folder = str(spec.source)
    weights = FolderWeights(folder)
    with quiet():
        config = AutoConfig.from_pretrained(folder)
        try:
            settings = GenerationConfig.from_pretrained(folder)
        except OSError:  # The folder has none: the model's own hold.
            settings = config
    return load_codec(spec), config, settings.eos_token_id, weights


def _made(spec: ModelSpec) -> tuple[Codec, PretrainedConfig, Any, Weights]:
    """What transformers has to make, or to find on the hub, it makes whole."""
    loaded = load(replace(spec, adapters=None))
    config = loaded.model.config
    config.architectures = [type(loaded.model).__name__]
    settings = getattr(loaded.model, "generation_config", None)  # Only what generates has them.
    return loaded.codec, config, settings and settings.eos_token_id, ModelWeights(loaded.model)
