"""Reads the sizes of a decoder from the `config.json` that Hugging Face stores with its weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlgraph.catalog.models.latent_attention import ExpertRouting, LatentAttention
from rlgraph.catalog.models.shape import NORMS, Shape, UnknownFamily, UnsupportedModel

_LARGEST, _LAYERS = 1 << 30, 10_000
"""Limits of a configuration's fields and of its layers: a thousand times what models have."""

_MORE_NORMS = ("pre_feedforward_layernorm", "post_feedforward_layernorm")
_LLAMA = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
}

_QWEN2 = _LLAMA | {"intermediate_size": 22016, "num_key_value_heads": 32, "max_position_embeddings": 32768}
_MISTRAL = _LLAMA | {"intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 131072}
_CAPS = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
_GEMMA = {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "sliding_window": 4096,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "pad_token_id": 0,
}

_QWEN_MOE = {"hidden_size": 2048, "num_hidden_layers": 24, "max_position_embeddings": 32768}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": _LLAMA,
    "mistral": _MISTRAL | {"sliding_window": 4096},
    "qwen2": _QWEN2,
    "qwen3": _QWEN2 | {"head_dim": 128},
    "granite": _LLAMA,
    "phi3": _LLAMA
    | {
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "pad_token_id": 32000,
    },
    "gemma2": _GEMMA | _CAPS | {"max_position_embeddings": 8192},
    "gemma3_text": _GEMMA | {"max_position_embeddings": 131072, "rope_theta": 1e6},
    "mixtral": _MISTRAL | {"rms_norm_eps": 1e-5, "rope_theta": 1e6, "num_local_experts": 8, "num_experts_per_tok": 2},
    "qwen2_moe": _QWEN_MOE
    | {
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
    },
    "qwen3_moe": _QWEN_MOE
    | {
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
    },
    "deepseek_v3": {
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "n_shared_experts": 1,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "n_group": 8,
        "topk_group": 4,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "first_k_dense_replace": 3,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "max_position_embeddings": 4096,
    },
}
"""The defaults of transformers for fields that a configuration leaves out. Null means as many key-value heads as heads,
and heads that split the hidden size."""

FAMILIES = tuple(_DEFAULTS)
SPARSE = tuple(family for family, fields in _DEFAULTS.items() if "num_experts_per_tok" in fields)
"""The families whose layers have experts."""

_FUSED = ("phi3",)
_SANDWICHED = ("gemma2", "gemma3_text")
"""The families that also normalize the outputs of attention and network, with their own kind of norm."""

_WINDOWS: dict[str, int] = {"mistral": 1, "phi3": 1, "gemma2": 2, "gemma3_text": 6}
"""Families whose layers have a window if `sliding_window` is given: n = 1 means all layers, otherwise all but each n-th
where `layer_types` does not list them."""

_Plain = dict[str, tuple[object, str]]
_PLAIN: _Plain = {
    "hidden_act": ("silu", "another activation than SiLU"),
    "mlp_bias": (False, "biases in its feed-forward network"),
    "use_sliding_window": (False, "sliding-window attention"),
    "quantization_config": (None, "quantized weights"),
    "mlp_only_layers": ([], "layers without experts"),
    "decoder_sparse_step": (1, "layers without experts"),
}
"""Fields that change what a model computes, with the supported value and what another one means."""

_NO_BIAS: _Plain = {"attention_bias": (False, "biases in its attention")}
_GEMMA_PLAIN: _Plain = {
    "hidden_activation": ("gelu_pytorch_tanh", "another activation than GELU"),
    "use_bidirectional_attention": (False, "attention to later tokens"),
}

_PLAIN_OF: dict[str, _Plain] = {
    # There is no such field in Qwen2: queries, keys and values have biases, the output has none.
    "qwen2": {},
    "qwen2_moe": {"qkv_bias": (True, "no biases in its attention")},
    "mixtral": _NO_BIAS | {"sliding_window": (None, "sliding-window attention")},
    "gemma2": _NO_BIAS | _GEMMA_PLAIN,
    "gemma3_text": _NO_BIAS | _GEMMA_PLAIN,
    "deepseek_v3": _NO_BIAS
    | {
        "rope_interleave": (True, "rotary positions in another order"),
        "topk_method": ("noaux_tc", "another choice of experts"),
        "scoring_func": ("sigmoid", "another choice of experts"),
        "moe_layer_freq": (1, "layers without experts"),
    },
}
"""More such fields of single families; `_NO_BIAS` holds for the others."""


def shape_of(config: Mapping[str, Any]) -> Shape:
    """Return the shape for the content of a `config.json`. Missing fields have the defaults of transformers, but the
    vocabulary is required. Raises UnsupportedModel."""
    family = str(config.get("model_type", ""))
    if family not in FAMILIES:
        raise UnknownFamily(family, FAMILIES)
    config = {**_DEFAULTS[family], **config}
    _refuse_unusual(family, config)
    heads = _number(config, "num_attention_heads")
    latent = _latent(config) if family in _LATENT else None
    kv_heads = _number(config, "num_key_value_heads", heads) if latent is None else heads
    if heads % kv_heads:
        raise UnsupportedModel(f"num_key_value_heads is {kv_heads}, which does not divide the {heads} attention heads")
    hidden = _number(config, "hidden_size")
    if config.get("head_dim") is None and hidden < heads and latent is None:
        raise UnsupportedModel(f"hidden_size is {hidden}, less than the {heads} attention heads that share it")
    theta, scaling = _rope(config)
    layers = _number(config, "num_hidden_layers")
    window, narrow = _window(family, config, layers)
    return Shape(
        family=family,
        vocab=_number(config, "vocab_size"),
        hidden=hidden,
        ffn=_number(config, "moe_intermediate_size" if "moe_intermediate_size" in config else "intermediate_size"),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=latent.plain + latent.turned if latent else _number(config, "head_dim", hidden // heads),
        latent=latent,
        tied=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=family.startswith("qwen2"),
        qk_norm=family.startswith(("qwen3", "gemma3")),
        rope_theta=theta,
        rope_scaling=scaling,
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        positions=max_row_tokens(config) or _number(config, "max_position_embeddings"),
        pad_id=config.get("pad_token_id"),
        fused=family in _FUSED,
        norms=NORMS + _MORE_NORMS if family in _SANDWICHED else NORMS,
        wide_norms=family in _SANDWICHED,
        gelu=family in _SANDWICHED,
        **_scales(family, config, hidden),
        window=window,
        narrow=narrow,
        narrow_theta=_narrow_theta(config) if family == "gemma3_text" and narrow else 0.0,
        beyond=_beyond(config),
        **(_experts(config, layers) if family in SPARSE else {}),
    )


def max_row_tokens(config: Mapping[str, Any]) -> int | None:
    """Return the longest row in tokens; None where the configuration does not say. Scaled rotary positions reach
    further by their factor: with YaRN, that of `original_max_position_embeddings`."""
    positions = config.get("max_position_embeddings")
    if type(positions) is not int or not 0 < positions <= _LARGEST:
        return None
    fields = config.get("rope_parameters") or config.get("rope_scaling")
    rope = fields if isinstance(fields, Mapping) else {}
    kind, factor = rope.get("rope_type") or rope.get("type"), rope.get("factor")
    if kind not in ("linear", "dynamic", "yarn"):
        return positions
    original = (rope.get("original_max_position_embeddings") if kind == "yarn" else None) or positions
    if type(original) is not int or not isinstance(factor, (int, float)) or not 0 < original * factor <= _LARGEST:
        return positions
    return max(positions, int(original * factor))


def _experts(config: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """Return the fields of Shape about experts; configurations have different names for their number."""
    names = ("n_routed_experts", "num_local_experts", "num_experts")
    experts = _number(config, next((name for name in names if name in config), names[-1]))
    chosen = _number(config, "num_experts_per_tok")
    if chosen > experts:
        raise UnsupportedModel(f"num_experts_per_tok is {chosen}, but there are {experts} experts")
    shared = "shared_expert_intermediate_size"
    fields = {
        "experts": experts,
        "experts_per_token": chosen,
        # Mixtral, which always normalizes, has no such field.
        "norm_topk": config["model_type"] == "mixtral" or bool(config.get("norm_topk_prob", False)),
        "shared_ffn": _number(config, shared) if shared in config else 0,
    }
    return fields | (_routing(config, experts, chosen, layers) if "n_shared_experts" in config else {})


def _routing(config: Mapping[str, Any], experts: int, chosen: int, layers: int) -> dict[str, Any]:
    groups, best = _number(config, "n_group", 1), _number(config, "topk_group", 1)
    if experts % groups or experts // groups < 2 or best > groups or chosen > best * (experts // groups):
        raise UnsupportedModel(
            f"n_group is {groups} and topk_group {best}, which does not go with {experts} experts of which a token has"
            f" {chosen}"
        )
    dense = config.get("first_k_dense_replace") or 0
    if type(dense) is not int or not 0 <= dense < layers:
        raise UnsupportedModel(
            f"`first_k_dense_replace` in the model's configuration is {dense!r:.40}: it should be a whole number below"
            f" the {layers} layers"
        )
    return {
        "routing": ExpertRouting(groups, best, _real(config, "routed_scaling_factor", 1.0)),
        "shared_ffn": _number(config, "n_shared_experts") * _number(config, "moe_intermediate_size"),
        "dense": dense,
        "dense_ffn": _number(config, "intermediate_size") if dense else 0,
    }


_LATENT = ("deepseek_v3",)


def _latent(config: Mapping[str, Any]) -> LatentAttention:
    plain, turned = _number(config, "qk_nope_head_dim"), _number(config, "qk_rope_head_dim")
    if turned % 2:
        raise UnsupportedModel(f"qk_rope_head_dim is {turned}: numbers rotate two by two")
    if config.get("head_dim") not in (None, turned):
        raise UnsupportedModel(
            f"head_dim is {config['head_dim']!r:.40}, but {turned} numbers rotate (qk_rope_head_dim)"
        )
    queries = 0 if config.get("q_lora_rank") is None else _number(config, "q_lora_rank")
    return LatentAttention(queries, _number(config, "kv_lora_rank"), plain, turned, _number(config, "v_head_dim"))


def _beyond(config: Mapping[str, Any]) -> tuple[str, ...]:
    rope = config.get("rope_parameters") or {}
    partial = rope.get("partial_rotary_factor", config.get("partial_rotary_factor")) not in (1, None)
    return ("heads of which a part rotates",) * partial


_GRANITE = {
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "score_scale": "attention_multiplier",
    "logits_scale": "logits_scaling",
}


def _scales(family: str, config: Mapping[str, Any], hidden: int) -> dict[str, Any]:
    """Return the fields of Shape that are scales and soft caps."""
    if family == "granite":
        return {name: _real(config, field, 1.0) for name, field in _GRANITE.items()}
    if family not in _SANDWICHED:
        return {}
    return {
        "embedding_scale": hidden**0.5,
        "score_scale": _real(config, "query_pre_attn_scalar", 256.0) ** -0.5,
        "score_cap": _real(config, "attn_logit_softcapping", 0.0),
        "logits_cap": _real(config, "final_logit_softcapping", 0.0),
    }


def _real(config: Mapping[str, Any], field: str, default: float) -> float:
    value = config.get(field)
    if value is None or value == 0 == default:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= _LARGEST:
        raise UnsupportedModel(
            f"`{field}` in the model's configuration is {value!r:.40}: it should be a positive number"
        )
    return float(value)


def _window(family: str, config: Mapping[str, Any], layers: int) -> tuple[int, tuple[int, ...]]:
    """Return the sliding window in tokens and the layers that have it; 0 and none where no layer has."""
    window, period = config.get("sliding_window"), _WINDOWS.get(family)
    if window is None or period is None:
        return 0, ()
    window = _number(config, "sliding_window")
    types = config.get("layer_types")
    if types is not None:
        if not isinstance(types, list) or len(types) != layers:
            raise UnsupportedModel(f"`layer_types` in the model's configuration should be a list of {layers} words")
        narrow = tuple(layer for layer, kind in enumerate(types) if kind == "sliding_attention")
    else:
        period = config.get("sliding_window_pattern") or period
        narrow = tuple(layer for layer in range(layers) if period == 1 or (layer + 1) % period)
    return (window, narrow) if narrow else (0, ())


def _refuse_unusual(family: str, config: Mapping[str, Any]) -> None:
    for field, (usual, what) in (_PLAIN | _PLAIN_OF.get(family, _NO_BIAS)).items():
        # Files omit a field, or set it to null, for its usual value.
        if config.get(field) not in (usual, None):
            raise UnsupportedModel(f"this {family} model has {what} (`{field}`), which is not known here")


def _number(config: Mapping[str, Any], field: str, default: int | None = None) -> int:
    value = config.get(field)
    if value is None and default is not None:
        return default
    if value is None:
        raise UnsupportedModel(f"the model's configuration has no `{field}`")
    limit = _LAYERS if field == "num_hidden_layers" else _LARGEST
    if type(value) is not int or not 0 < value <= limit:
        raise UnsupportedModel(
            f"`{field}` in the model's configuration is {value!r:.40}: it should be a whole number from 1 to {limit:,}"
        )
    return value


def _rope(config: Mapping[str, Any]) -> tuple[float, tuple[tuple[str, Any], ...]]:
    """Return base and scaling of the rotary positions. Since transformers 5 they are in one field, before in two; the
    oldest files have `type` for `rope_type`."""
    try:
        fields = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
        # Where layers with a window have other positions, those of full attention are meant.
        fields = dict(fields.get("full_attention", fields))
        theta = float(fields.pop("rope_theta", None) or config.get("rope_theta") or 10000.0)
        fields.pop("partial_rotary_factor", None)
        kind = fields.pop("type", "default")
        fields.setdefault("rope_type", kind)
    except (TypeError, ValueError, OverflowError):
        raise UnsupportedModel("the model's configuration says nothing that makes sense of its positions") from None
    return theta, () if fields["rope_type"] == "default" else tuple(sorted(_frozen(fields).items()))


def _narrow_theta(config: Mapping[str, Any]) -> float:
    """Return the base of the rotary positions of layers with a window, where they have their own."""
    fields = config.get("rope_parameters") or {}
    sliding = fields.get("sliding_attention") or {}
    return float(sliding.get("rope_theta") or config.get("rope_local_base_freq") or 10000.0)


def _frozen(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields with lists (factors for each pair of columns) as tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
