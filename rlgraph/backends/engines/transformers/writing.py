"""Writes a model of transformers into a folder, from a rank that has all of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor
from transformers import PreTrainedModel

from rlgraph.backends.engines.adapters import base_location, is_adapter, save
from rlgraph.backends.engines.model_files import write_model
from rlgraph.backends.engines.sources import ModelSpec, quiet_transformers
from rlgraph.backends.engines.tokenizers import Codec


def save_model(
    model: PreTrainedModel,
    held: Mapping[str, Tensor],
    tensors: Mapping[str, Tensor],
    spec: ModelSpec,
    codec: Codec,
    folder: Path,
) -> None:
    """Write model and tokenizer as a folder that `from_pretrained` and a model source can read; for a model with
    adapters only these, as PEFT does. held: all its tensors, wherever they are now. tensors: those that travel."""
    with quiet_transformers():
        if spec.adapters is None:
            write_model(model, codec, folder, state_dict=dict(held))
        else:
            base = _base(model, held, spec, codec, folder)
            save(model, tensors, spec.adapters, spec.kind, base, folder)
            codec.save(folder)


def _base(model: PreTrainedModel, held: Mapping[str, Tensor], spec: ModelSpec, codec: Codec, folder: Path) -> str:
    """Return where the base of saved adapters is; one that was made here is saved beside them."""
    base, writes_base = base_location(spec.source, folder)
    if writes_base:
        weights = {name: tensor for name, tensor in held.items() if not is_adapter(name)}
        write_model(model, codec, base, state_dict=weights)
    return base
