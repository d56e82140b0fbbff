"""Writes the model of a run as a Hugging Face folder: from a folder that the run saved, or from a checkpoint."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rlgraph.backends.saved_models import SavedModel, checking_damage
from rlgraph.catalog.clusters.processor import processor_flags
from rlgraph.catalog.models.adapters import BASE, CONFIG, adapter_matrix_names, find_adapter
from rlgraph.catalog.models.families import ModelKind
from rlgraph.passes.compilation.compilation import Compilation
from rlgraph.passes.compilation.compile import resolve_auto_autocast, with_default_dtypes

if TYPE_CHECKING:
    from torch import Tensor

    from rlgraph.backends.engines.sources import ModelSpec
    from rlgraph.backends.engines.tensor_files import StoredTensors

BUCKET = 256 << 20
"""Bytes of a file of weights, as far as one tensor is not larger."""


def copy_folder(source: Path, folder: Path) -> None:
    """Copy a folder that a run saved. Raise OSError."""
    shutil.copytree(source, folder, dirs_exist_ok=True)


def write_saved_model(saved: SavedModel, model: str, compiled: Compilation, folder: Path) -> None:
    """Write a model of a checkpoint, as wide as its weights are there. Raise EngineError, OSError, and UsageMistake for
    a checkpoint that is damaged."""
    from rlgraph.backends.engines.folder_writers import open_folder
    from rlgraph.backends.engines.tensor_files import StoredTensors

    with checking_damage(saved):
        stored = StoredTensors(saved.files_of_kind("weights"))
        spec = replace(spec_of(compiled, model), dtype=_dtype(stored))
        opened = open_folder(spec, folder)
        for part in _parts(stored):
            opened.write(part)
    opened.close()


def spec_of(compiled: Compilation, model: str) -> ModelSpec:
    """Return where a model of a program comes from. Raise RlgraphError, EngineError."""
    from rlgraph.backends.worker.model_sources import model_spec

    program = resolve_auto_autocast(with_default_dtypes(compiled.program, False), processor_flags())
    return model_spec(program, program.model(model), compiled.folders)


def _dtype(stored: StoredTensors) -> str:
    sample = next(iter(stored.names))
    return str(stored.read(sample, stored.full_box(sample)).dtype).removeprefix("torch.")


def _parts(stored: StoredTensors) -> Iterator[dict[str, Tensor]]:
    """Yield the tensors in parts of about a bucket."""
    part: dict[str, Tensor] = {}
    size = 0
    for name in sorted(stored.names):
        tensor = stored.read(name, stored.full_box(name))
        if part and size + tensor.nbytes > BUCKET:
            yield part
            part, size = {}, 0
        part[name] = tensor
        size += tensor.nbytes
    if part:
        yield part


def name_base(folder: Path, final: Path) -> None:
    """Have the adapters of a folder name the base that lies in it by where the folder will be: PEFT looks nowhere else.
    Raise OSError."""
    file = folder / CONFIG
    if file.is_file() and (folder / "base").is_dir():
        config = json.loads(file.read_text("utf-8"))
        config[BASE] = str(final.resolve() / "base")
        file.write_text(json.dumps(config, indent=2) + "\n", "utf-8")


def merge_adapters(adapter: Path, folder: Path, kind: ModelKind) -> bool:
    """Write the model that a folder of adapters makes of its base, as a folder of its own; return whether the folder
    has adapters at all. Raise EngineError, OSError."""
    found = find_adapter(str(adapter))
    if found is None:
        return False
    import torch
    from transformers.pytorch_utils import Conv1D

    from rlgraph.backends.engines.adapters import load_adapter
    from rlgraph.backends.engines.model_files import write_model
    from rlgraph.backends.engines.sources import ModelSpec, load, load_codec

    base, adapters = found
    dtype = _base_dtype(base)
    loaded = load(ModelSpec(kind, base, dtype))
    factors = load_adapter(str(adapter))
    parameters = dict(loaded.model.named_parameters())
    modules = dict(loaded.model.named_modules())
    with torch.no_grad():
        for name in sorted({key.rpartition(".lora_")[0] for key in factors if ".lora_" in key}):
            a, b = (factors[key].float() for key in adapter_matrix_names(name))
            change = b @ a * adapters.scale
            # The layers of GPT-2 have their weights the other way round.
            weight = parameters[f"{name}.weight"]
            weight.add_((change.T if isinstance(modules[name], Conv1D) else change).to(weight.dtype))
        for name, tensor in factors.items():
            if ".lora_" not in name:
                parameters[name].copy_(tensor)
    # The adapters may have been trained with a tokenizer of their own.
    own = (adapter / "tokenizer_config.json").is_file()
    write_model(loaded.model, load_codec(ModelSpec(kind, base, dtype, str(adapter))) if own else loaded.codec, folder)
    return True


def _base_dtype(base: str) -> str:
    """Return the dtype of a base's weights, where it is one that is computed with; else float32."""
    from rlgraph.catalog.models.configs import find_config

    config = find_config(base) or {}
    named = str(config.get("dtype", config.get("torch_dtype", "float32"))).removeprefix("torch.")
    return named if named in ("float32", "float64", "bfloat16") else "float32"
