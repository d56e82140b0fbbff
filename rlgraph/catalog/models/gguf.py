"""Reads the configuration of a model from a GGUF file, in which llama.cpp keeps a whole model, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rlgraph.catalog.models.shape import UnsupportedModel

MAGIC = b"GGUF"
"""The first bytes of such a file."""

_FAMILIES = {"qwen2moe": "qwen2_moe", "qwen3moe": "qwen3_moe", "gemma3": "gemma3_text"}
"""The `model_type` of transformers for architectures that have another name in GGUF."""

_FIELDS = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "vocab_size": "vocab_size",
}
"""The fields of a `config.json` by the keys of GGUF, which begin with the architecture
(https://github.com/ggml-org/ggml/blob/master/docs/gguf.md)."""


class UnusableGguf(UnsupportedModel):
    """Raised for a GGUF file that no model can be made of; the message is what follows the file's name."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint
        """What to do."""


def gguf_config(file: Path) -> Mapping[str, Any]:
    """Return the fields of the `config.json` that a GGUF file stands for. Raises UnusableGguf, OSError."""
    status = file.stat()
    return _config(file, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=16)
def _config(file: Path, _changed: int, _size: int) -> Mapping[str, Any]:
    reader = _reader(file)
    contents = {name: field.contents() for name, field in reader.fields.items() if len(field.data) == 1}
    architecture = contents.get("general.architecture")
    if not isinstance(architecture, str):
        raise UnusableGguf(
            "does not say which architecture its model has", "it may hold a tokenizer or an adapter only"
        )
    config: dict[str, Any] = {"model_type": _FAMILIES.get(architecture, architecture)}
    config |= {
        name: contents[f"{architecture}.{key}"] for key, name in _FIELDS.items() if f"{architecture}.{key}" in contents
    }
    if "vocab_size" not in config and "tokenizer.ggml.tokens" in reader.fields:
        config["vocab_size"] = len(reader.fields["tokenizer.ggml.tokens"].data)
    config["tie_word_embeddings"] = all(tensor.name != "output.weight" for tensor in reader.tensors)
    return MappingProxyType(config)


def _reader(file: Path) -> Any:
    """Return the package's reader of a file, which has all of it."""
    with file.open("rb") as opened:
        if opened.read(len(MAGIC)) != MAGIC:
            raise UnusableGguf("is no GGUF file", f"one begins with the letters {MAGIC.decode()}")
    try:
        from gguf import GGUFReader
    except ImportError:
        raise UnusableGguf("cannot be read without the package `gguf`", "`pip install gguf`") from None
    try:
        return GGUFReader(file)
    # The package checks nothing, so that damage shows as an error of any kind.
    except Exception as error:
        message = f"is damaged or cut short: {type(error).__name__}: {error}"
        raise UnusableGguf(message, "compare its size with the original's, and copy it again") from None
