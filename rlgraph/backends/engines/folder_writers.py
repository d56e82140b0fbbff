"""Writes Hugging Face folders part by part, so that no process ever holds all of a model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from rlgraph.backends.engines.model_files import write_config, write_model
from rlgraph.backends.engines.sources import ModelSpec, load, load_codec, model_without_weights, quiet_transformers
from rlgraph.backends.engines.weights import tensors_for_file
from rlgraph.catalog.models.adapters import Adapters
from rlgraph.catalog.models.configs import find_config


def open_folder(spec: ModelSpec, folder: Path) -> ModelFolder | AdapterFolder:
    """Return a folder that a model source can name once it is closed; for a model with adapters, a folder of these."""
    return ModelFolder(spec, folder) if spec.adapters is None else AdapterFolder(spec, spec.adapters, folder)


class AdapterFolder:
    """Writes adapters, which are small, and the path of their base model, as PEFT files."""

    def __init__(self, spec: ModelSpec, adapters: Adapters, folder: Path) -> None:
        self._spec, self._adapters, self._folder = spec, adapters, folder
        self._tensors: dict[str, Tensor] = {}

    def write(self, tensors: Mapping[str, Tensor]) -> None:
        """Collect more of the adapters' tensors."""
        self._tensors |= _by_layer(tensors)

    def close(self) -> None:
        """Write the adapters, and the base model if only this run has it."""
        # Imported late: it imports transformers' models, which takes seconds, and every process imports this file.
        from rlgraph.backends.engines.adapters import base_location, save

        base, made = base_location(self._spec.source, self._folder)
        with quiet_transformers():
            if made:
                loaded = load(replace(self._spec, adapters=None))
                write_model(loaded.model, loaded.codec, base)
            save(model_without_weights(self._spec), self._tensors, self._adapters, self._spec.kind, base, self._folder)
        load_codec(self._spec).save(self._folder)


class ModelFolder:
    """Writes all weights of a model."""

    def __init__(self, spec: ModelSpec, folder: Path) -> None:
        """Create the folder. The tensors of an unknown model family are saved under the names that they have."""
        self._spec, self._folder = spec, folder
        self._files: dict[str, str] = {}
        self._size = 0
        folder.mkdir(parents=True, exist_ok=True)
        write_config(spec, folder)
        self._family = str((find_config(str(folder)) or {}).get("model_type", ""))

    def write(self, tensors: Mapping[str, Tensor]) -> None:
        """Write one more file."""
        name = f"model-{len(set(self._files.values())) + 1:05d}.safetensors"
        files = {
            file: part
            for key, tensor in _by_layer(tensors).items()
            for file, part in tensors_for_file(self._family, key, tensor)
        }
        save_file({key: tensor.contiguous() for key, tensor in files.items()}, self._folder / name, {"format": "pt"})
        self._files |= dict.fromkeys(files, name)
        self._size += sum(tensor.nbytes for tensor in tensors.values())

    def close(self) -> None:
        """Write the index of the files."""
        index = {"metadata": {"total_size": self._size}, "weight_map": self._files}
        (self._folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))


def _by_layer(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Remove the layer dimension, of size 1, from tensors of a single layer."""
    return {key: tensor.squeeze(0) if ".layers." in key else tensor for key, tensor in tensors.items()}
