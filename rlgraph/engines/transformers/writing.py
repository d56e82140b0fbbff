"""A model of transformers on its way into a folder, from a rank that has all of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor
from transformers import PreTrainedModel

from rlgraph.engines.adapters import is_adapter, save
from rlgraph.engines.sources import ModelSpec, quiet
from rlgraph.engines.tokenizers import Codec


def write(
    model: PreTrainedModel,
    held: Mapping[str, Tensor],
    tensors: Mapping[str, Tensor],
    spec: ModelSpec,
    codec: Codec,
    folder: Path,
) -> None:
    """Model and tokenizer as a folder that `from_pretrained` and a model source can read; of a model with adapters
    these, as PEFT does. held: all that it has, wherever that is now. tensors: those that travel."""
    with quiet(), _on_any_rank(model):
        if spec.adapters is None:
            model.save_pretrained(str(folder), state_dict=dict(held))
        else:
            base = _base(model, held, spec, codec, folder)
            save(model, tensors, spec.adapters, spec.kind, base, folder)
        codec.save(folder)


def _base(model: PreTrainedModel, held: Mapping[str, Tensor], spec: ModelSpec, codec: Codec, folder: Path) -> str:
    """Where the base of saved adapters is; one that was made here is saved beside them."""
    if isinstance(spec.source, str):
        return str(Path(spec.source).resolve()) if Path(spec.source).is_dir() else spec.source
    base = folder.resolve() / "base"
    weights = {name: tensor for name, tensor in held.items() if not is_adapter(name)}
    model.save_pretrained(str(base), state_dict=weights)
    codec.save(base)
    return str(base)


@contextmanager
def _on_any_rank(model: PreTrainedModel) -> Iterator[None]:
    """Where processes are ranks of torch's, transformers writes on the first one alone, which may be gone."""
    here: dict[str, object] = model.__dict__
    here["should_save_on_this_rank"] = lambda is_main_process: is_main_process
    try:
        yield
    finally:
        del here["should_save_on_this_rank"]
