"""Reads a model's configuration, its tokenizer, and where its weights are, before vLLM starts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers import AutoConfig, GenerationConfig, PretrainedConfig

from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.engines.sources import ModelSpec, load, load_codec, quiet_transformers
from rlgraph.backends.engines.tokenizers import Codec
from rlgraph.backends.engines.weights import FolderWeights, ModelWeights, WeightSource
from rlgraph.backends.enginespec.layout_checks import explain_unsupported, layout_problems
from rlgraph.catalog.models.config_shape import shape_of
from rlgraph.catalog.models.shape import Shape, UnsupportedModel
from rlgraph.ir.mesh import Mesh


@dataclass(frozen=True)
class VllmModelSource:
    """A model that vLLM can take."""

    codec: Codec
    config: PretrainedConfig
    shape: Shape
    eos_ids: tuple[int, ...]
    """The tokens that end a response: the tokenizer's, and those of the model's generation settings."""
    weights: WeightSource

    def write_config(self, folder: str) -> None:
        """Write the `config.json` that vLLM starts from; the weights go straight into its parameters."""
        if self.shape.routing:
            # vLLM needs to be told what this family always does, and transformers has no fields for it.
            self.config.topk_method, self.config.scoring_func = "noaux_tc", "sigmoid"
        self.config.save_pretrained(folder)


def read_model_source(spec: ModelSpec, mesh: Mesh) -> VllmModelSource:
    """Find the model of `spec`. Raises EngineError where there is none, or vLLM cannot spread it over the mesh."""
    local = isinstance(spec.source, str) and Path(spec.source).is_dir()
    codec, config, of_model, weights = (_from_folder if local else _from_transformers)(spec)
    try:
        shape = replace(shape_of(config.to_dict()), adapters=spec.adapters)
    except UnsupportedModel as error:
        raise EngineError(f"the engine vllm cannot take this model: {explain_unsupported(error, 'vllm')}") from error
    if faults := layout_problems(shape, "vllm", mesh, spec.kind):
        raise EngineError("; ".join(faults))
    return VllmModelSource(codec, config, shape, codec.end_token_ids(of_model), weights)


def _from_folder(spec: ModelSpec) -> tuple[Codec, PretrainedConfig, Any, WeightSource]:
    """Read a local folder, and no more weights than this rank has."""
    folder = str(spec.source)
    weights = FolderWeights(folder)
    with quiet_transformers():
        config = AutoConfig.from_pretrained(folder)
        try:
            settings = GenerationConfig.from_pretrained(folder)
        except OSError:  # The folder has none: the configuration's are used.
            settings = config
    return load_codec(spec), config, settings.eos_token_id, weights


def _from_transformers(spec: ModelSpec) -> tuple[Codec, PretrainedConfig, Any, WeightSource]:
    """Load the whole of a model that transformers has to make, or to find on the hub."""
    loaded = load(replace(spec, adapters=None))
    config = loaded.model.config
    config.architectures = [type(loaded.model).__name__]
    settings = getattr(loaded.model, "generation_config", None)  # Only models that generate have them.
    return loaded.codec, config, settings and settings.eos_token_id, ModelWeights(loaded.model)
