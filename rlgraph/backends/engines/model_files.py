"""Writes a model's folder, but for its weights, as that of its base.

transformers refuses to write settings of generation in which it sees a mistake, such as a temperature without
`do_sample`, which many published models have. A run reads nothing of them but the tokens that end an answer, and those
who take the trained model expect what its base has: they are taken over as they are. The end of an answer in the chat
template is added: a base model that learned to chat would not stop at it elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlgraph.backends.engines.sources import ModelSpec, load_codec, model_without_weights, quiet_transformers
from rlgraph.backends.engines.tokenizers import Codec

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel


def write_model(model: PreTrainedModel, codec: Codec, folder: str | Path, **options: Any) -> None:
    """Write weights, configuration and tokenizer of a model into a folder, on any rank. options: of
    `save_pretrained`."""
    settings: GenerationConfig | None = getattr(model, "generation_config", None)
    with quiet_transformers(), _can_be_saved(model):
        model.save_pretrained(str(folder), **options)
    codec.save(folder)
    _write_settings(settings, codec, folder)


def write_config(spec: ModelSpec, folder: str | Path) -> None:
    """Write configuration and tokenizer of a model into a folder, without its weights."""
    from transformers import GenerationConfig

    model = model_without_weights(spec)
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(str(folder))
    settings: GenerationConfig | None = getattr(model, "generation_config", None)
    if settings is not None and isinstance(spec.source, str):
        # Many have no such file. Hubs and disks fail in ways of their own, of which loading the model tells.
        with quiet_transformers(), suppress(Exception):
            settings = GenerationConfig.from_pretrained(spec.source)
    codec = load_codec(spec)
    codec.save(folder)
    _write_settings(settings, codec, folder)


def _write_settings(settings: GenerationConfig | None, codec: Codec, folder: str | Path) -> None:
    """Write how a model generates, if it does."""
    if settings is None:
        return
    settings, ends = copy(settings), codec.end_token_ids(settings.eos_token_id)
    if {*ends} - {*codec.text_end_ids(settings.eos_token_id)}:
        settings.eos_token_id = [*ends]
    settings.to_json_file(Path(folder) / "generation_config.json", use_diff=True, keys_to_pop=["compile_config"])


@contextmanager
def _can_be_saved(model: PreTrainedModel) -> Iterator[None]:
    """Make a model save on any rank: where processes are ranks of torch's, transformers writes on the first one alone,
    which may be gone; and whatever settings of generation it has."""
    from transformers import GenerationConfig

    attributes: dict[str, object] = model.__dict__
    settings = attributes.get("generation_config")
    attributes["should_save_on_this_rank"] = lambda is_main_process: is_main_process
    if settings is not None:
        attributes["generation_config"] = GenerationConfig()
    try:
        yield
    finally:
        del attributes["should_save_on_this_rank"]
        if settings is not None:
            attributes["generation_config"] = settings
