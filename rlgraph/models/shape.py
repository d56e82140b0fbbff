"""The numbers of a decoder, from the configuration that Hugging Face writes beside its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class UnsupportedModel(ValueError):
    """An architecture whose parameters are not known here, or a configuration that makes no sense; the message names the
    family or the field."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder with grouped-query attention, rotary positions, RMS norms and a gated SiLU network."""

    family: str
    """transformers' `model_type`: `llama`, `qwen2`, `qwen3`."""
    vocab: int
    hidden: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    tied: bool = False
    """The output layer is the embedding."""
    qkv_bias: bool = False
    qk_norm: bool = False
    """Queries and keys are normalized, each head by itself."""
    rope_theta: float = 10000.0
    rope_scaling: tuple[tuple[str, Any], ...] = ()
    """The fields that `rope_type` needs, and itself, in alphabetical order; empty for the plain embedding."""
    norm_eps: float = 1e-6
    positions: int = 4096
    """Longest row, in tokens."""
    pad_id: int | None = None
    """A token whose embedding transformers never trains."""


_DEFAULTS: dict[str, dict[str, int]] = {
    "llama": {
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
    },
    "qwen2": {
        "hidden_size": 4096,
        "intermediate_size": 22016,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "max_position_embeddings": 32768,
    },
}
_DEFAULTS["qwen3"] = _DEFAULTS["qwen2"] | {"head_dim": 128}
"""What transformers takes for a field that a configuration leaves out; null means: as many key-value heads as heads, and heads
that share the hidden size."""

FAMILIES = tuple(_DEFAULTS)

_PLAIN = {
    "hidden_act": ("silu", "another activation than SiLU"),
    "mlp_bias": (False, "biases in its feed-forward network"),
    "use_sliding_window": (False, "sliding-window attention"),
    "quantization_config": (None, "quantized weights"),
}
"""Fields that change what a model computes, the value that is known here, and what another one means."""


def shape_of(config: Mapping[str, Any]) -> Shape:
    """From the content of a `config.json`. A field that is missing means what it means to transformers, but the vocabulary has
    to be there. Raises UnsupportedModel."""
    family = str(config.get("model_type", ""))
    if family not in FAMILIES:
        raise UnsupportedModel(f"models of the family `{family}` are not known: there are {', '.join(FAMILIES)}")
    _refuse_unusual(family, config)
    config = {**_DEFAULTS[family], **config}
    heads = _number(config, "num_attention_heads")
    kv_heads = _number(config, "num_key_value_heads", heads)
    if heads % kv_heads:
        raise UnsupportedModel(f"num_key_value_heads is {kv_heads}, which does not divide the {heads} attention heads")
    hidden = _number(config, "hidden_size")
    theta, scaling = _rope(config)
    return Shape(
        family=family,
        vocab=_number(config, "vocab_size"),
        hidden=hidden,
        ffn=_number(config, "intermediate_size"),
        layers=_number(config, "num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=_number(config, "head_dim", hidden // heads),
        tied=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=family == "qwen2",
        qk_norm=family == "qwen3",
        rope_theta=theta,
        rope_scaling=scaling,
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        positions=_number(config, "max_position_embeddings"),
        pad_id=config.get("pad_token_id"),
    )


def _refuse_unusual(family: str, config: Mapping[str, Any]) -> None:
    # In Qwen2 there is no such field: queries, keys and values have biases, the output has none.
    unusual = _PLAIN | ({} if family == "qwen2" else {"attention_bias": (False, "biases in its attention")})
    for field, (plain, what) in unusual.items():
        # Files leave a field out, or say null, for its plain value.
        if config.get(field) not in (plain, None):
            raise UnsupportedModel(f"this {family} model has {what} (`{field}`), which is not known here")


def _number(config: Mapping[str, Any], field: str, default: int | None = None) -> int:
    value = config.get(field)
    if value is None and default is not None:
        return default
    if value is None:
        raise UnsupportedModel(f"the model's configuration has no `{field}`")
    if type(value) is not int or value < 1:
        raise UnsupportedModel(
            f"`{field}` in the model's configuration is {value!r}: it should be a whole number above 0"
        )
    return value


def _rope(config: Mapping[str, Any]) -> tuple[float, tuple[tuple[str, Any], ...]]:
    """Base and scaling of the rotary positions: in one field since transformers 5, before in two, with `type` for
    `rope_type` in the oldest files."""
    fields = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = float(fields.pop("rope_theta", None) or config.get("rope_theta") or 10000.0)
    if fields.get("partial_rotary_factor", config.get("partial_rotary_factor")) not in (1, None):
        raise UnsupportedModel(
            "this model rotates a part of each head (`partial_rotary_factor`), which is not known here"
        )
    kind = fields.pop("type", "default")
    fields.setdefault("rope_type", kind)
    return theta, () if fields["rope_type"] == "default" else tuple(sorted(fields.items()))
