"""The numbers of a decoder, from the configuration that Hugging Face writes beside its weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rlgraph.catalog.models.adapters import Adapters
from rlgraph.catalog.models.latent import Latent, Routing

_LARGEST, _LAYERS = 1 << 30, 10_000
"""Of a field of a configuration, and of its layers: a thousand times what models have."""

_NORMS = ("input_layernorm", "post_attention_layernorm")
_MORE_NORMS = ("pre_feedforward_layernorm", "post_feedforward_layernorm")


class UnsupportedModel(ValueError):
    """An architecture whose parameters are not known here, or a configuration that makes no sense; the message names
    the family or the field."""


class UnknownFamily(UnsupportedModel):
    """A family of models that is not known; the message names those that are."""

    def __init__(self, family: str, known: Iterable[str]) -> None:
        self.family = family
        super().__init__(f"models of the family `{family}` are not known: there are {', '.join(known)}")


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder with grouped-query attention, rotary positions, RMS norms and a gated network, or many of which each
    token takes a few: its experts."""

    family: str
    """transformers' `model_type`: `llama`, `qwen3_moe`."""
    vocab: int
    hidden: int
    ffn: int
    """Columns of the feed-forward network; of each expert's, where there are experts."""
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
    experts: int = 0
    """In each layer; 0 where all tokens take the same feed-forward network."""
    experts_per_token: int = 0
    norm_topk: bool = False
    """What a token's experts say is weighed by shares that add up to 1, not by theirs among all experts."""
    shared_ffn: int = 0
    """Columns of the expert that every token takes beside its own, where there is one."""
    routing: Routing | None = None
    """How a token gets its experts; None: those with the largest shares of a softmax, and every token's has a gate."""
    dense: int = 0
    """The first layers that have no experts, where others have some."""
    dense_ffn: int = 0
    """Columns of the feed-forward network of these."""
    latent: Latent | None = None
    """Where keys and values are made of a few numbers a token; `head_dim` is then that of queries and keys."""
    fused: bool = False
    """Queries, keys and values are one tensor, in this order, and so are gate and up."""
    norms: tuple[str, ...] = _NORMS
    """Of each layer, over its hidden states, by their names."""
    wide_norms: bool = False
    """Norms multiply by one more than their weight, in float32."""
    gelu: bool = False
    """Its networks have GELU, by tanh, where others have SiLU."""
    embedding_scale: float = 1.0
    """Embeddings are multiplied with it."""
    residual_scale: float = 1.0
    """The same of what attention and network say, before it is added to what went in."""
    score_scale: float = 0.0
    """The same of scores; 0: 1 by the root of the numbers of a head."""
    logits_scale: float = 1.0
    """Logits are divided by it."""
    score_cap: float = 0.0
    """Scores are between this number and its negative; 0: they are anything."""
    logits_cap: float = 0.0
    """The same of logits."""
    window: int = 0
    """In layers that see but the last tokens, how many; 0 where all layers see all."""
    narrow: tuple[int, ...] = ()
    """Which layers those are."""
    narrow_theta: float = 0.0
    """Base of their rotary positions, which are not scaled; 0: theirs are those of all layers."""
    beyond: tuple[str, ...] = ()
    """What it computes beside all of this, as it goes on after `compute`: `heads of which a part rotates`."""
    adapters: Adapters | None = None
    """Where they are trained, and not the model itself."""

    @property
    def windowed(self) -> int:
        """How many layers have a window."""
        return len(self.narrow)

    @property
    def value_dim(self) -> int:
        """Numbers of a head's value."""
        return self.latent.values if self.latent else self.head_dim

    @property
    def widest(self) -> int:
        """Numbers of a head's query, key and value where these are as wide as each other, if need be with zeros behind
        them: kernels that keep no scores want that."""
        return max(self.head_dim, self.value_dim)

    @property
    def sparse(self) -> int:
        """How many layers have experts."""
        return self.layers - self.dense if self.experts else 0

    @property
    def shared(self) -> str:
        """By what name a layer has the expert that every token takes."""
        return "shared_experts" if self.routing else "shared_expert"

    @property
    def capped(self) -> bool:
        """Scores or logits are."""
        return bool(self.score_cap or self.logits_cap)

    def __hash__(self) -> int:
        # Every table of the cost model is asked by the shape, and these numbers tell one from another.
        return hash((self.vocab, self.hidden, self.ffn, self.layers, self.heads))


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
"""What transformers takes for a field that a configuration leaves out; null means: as many key-value heads as heads,
and heads that share the hidden size."""

FAMILIES = tuple(_DEFAULTS)
SPARSE = tuple(family for family, fields in _DEFAULTS.items() if "num_experts_per_tok" in fields)
"""Those whose layers have experts."""

_FUSED = ("phi3",)
_SANDWICHED = ("gemma2", "gemma3_text")
"""Those that normalize what comes out of attention and network, too, with norms of their own kind."""

_WINDOWS: dict[str, int] = {"mistral": 1, "phi3": 1, "gemma2": 2, "gemma3_text": 6}
"""Families whose layers have a window where `sliding_window` says so: all of them; or all but each second or sixth,
where `layer_types` does not say which."""

_Plain = dict[str, tuple[object, str]]
_PLAIN: _Plain = {
    "hidden_act": ("silu", "another activation than SiLU"),
    "mlp_bias": (False, "biases in its feed-forward network"),
    "use_sliding_window": (False, "sliding-window attention"),
    "quantization_config": (None, "quantized weights"),
    "mlp_only_layers": ([], "layers without experts"),
    "decoder_sparse_step": (1, "layers without experts"),
}
"""Fields that change what a model computes, the value that is known here, and what another one means."""

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
"""The same of single families; of those that are not there, `_NO_BIAS`."""


def shape_of(config: Mapping[str, Any]) -> Shape:
    """From the content of a `config.json`. A field that is missing means what it means to transformers, but the
    vocabulary has to be there. Raises UnsupportedModel."""
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
        positions=reach(config) or _number(config, "max_position_embeddings"),
        pad_id=config.get("pad_token_id"),
        fused=family in _FUSED,
        norms=_NORMS + _MORE_NORMS if family in _SANDWICHED else _NORMS,
        wide_norms=family in _SANDWICHED,
        gelu=family in _SANDWICHED,
        **_scales(family, config, hidden),
        window=window,
        narrow=narrow,
        narrow_theta=_narrow_theta(config) if family == "gemma3_text" and narrow else 0.0,
        beyond=_beyond(config),
        **(_experts(config, layers) if family in SPARSE else {}),
    )


def reach(config: Mapping[str, Any]) -> int | None:
    """How many tokens a row may have; None where the configuration does not say. Rotary positions that are scaled reach
    further, by their factor: where positions follow YaRN, from `original_max_position_embeddings` on."""
    said = config.get("max_position_embeddings")
    if type(said) is not int or not 0 < said <= _LARGEST:
        return None
    found = config.get("rope_parameters") or config.get("rope_scaling")
    rope = found if isinstance(found, Mapping) else {}
    kind, factor = rope.get("rope_type") or rope.get("type"), rope.get("factor")
    if kind not in ("linear", "dynamic", "yarn"):
        return said
    first = (rope.get("original_max_position_embeddings") if kind == "yarn" else None) or said
    if type(first) is not int or not isinstance(factor, (int, float)) or not 0 < first * factor <= _LARGEST:
        return said
    return max(said, int(first * factor))


def _experts(config: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """The fields of Shape that say what experts there are; newer configurations call their number by another name."""
    names = ("n_routed_experts", "num_local_experts", "num_experts")
    experts = _number(config, next((name for name in names if name in config), names[-1]))
    chosen = _number(config, "num_experts_per_tok")
    if chosen > experts:
        raise UnsupportedModel(f"num_experts_per_tok is {chosen}, but there are {experts} experts")
    shared = "shared_expert_intermediate_size"
    found = {
        "experts": experts,
        "experts_per_token": chosen,
        # There is no such field in Mixtral, which always does it.
        "norm_topk": config["model_type"] == "mixtral" or bool(config.get("norm_topk_prob", False)),
        "shared_ffn": _number(config, shared) if shared in config else 0,
    }
    return found | (_routing(config, experts, chosen, layers) if "n_shared_experts" in config else {})


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
        "routing": Routing(groups, best, _real(config, "routed_scaling_factor", 1.0)),
        "shared_ffn": _number(config, "n_shared_experts") * _number(config, "moe_intermediate_size"),
        "dense": dense,
        "dense_ffn": _number(config, "intermediate_size") if dense else 0,
    }


_LATENT = ("deepseek_v3",)


def _latent(config: Mapping[str, Any]) -> Latent:
    plain, turned = _number(config, "qk_nope_head_dim"), _number(config, "qk_rope_head_dim")
    if turned % 2:
        raise UnsupportedModel(f"qk_rope_head_dim is {turned}: numbers rotate two by two")
    if config.get("head_dim") not in (None, turned):
        raise UnsupportedModel(
            f"head_dim is {config['head_dim']!r:.40}, but {turned} numbers rotate (qk_rope_head_dim)"
        )
    queries = 0 if config.get("q_lora_rank") is None else _number(config, "q_lora_rank")
    return Latent(queries, _number(config, "kv_lora_rank"), plain, turned, _number(config, "v_head_dim"))


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
    """The fields of Shape that say what numbers are multiplied with, and what they are capped at."""
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
    """How far a window reaches, and which layers have it; 0 and none where none has."""
    window, every = config.get("sliding_window"), _WINDOWS.get(family)
    if window is None or every is None:
        return 0, ()
    window = _number(config, "sliding_window")
    types = config.get("layer_types")
    if types is not None:
        if not isinstance(types, list) or len(types) != layers:
            raise UnsupportedModel(f"`layer_types` in the model's configuration should be a list of {layers} words")
        narrow = tuple(layer for layer, kind in enumerate(types) if kind == "sliding_attention")
    else:
        every = config.get("sliding_window_pattern") or every
        narrow = tuple(layer for layer in range(layers) if every == 1 or (layer + 1) % every)
    return (window, narrow) if narrow else (0, ())


def _refuse_unusual(family: str, config: Mapping[str, Any]) -> None:
    for field, (plain, what) in (_PLAIN | _PLAIN_OF.get(family, _NO_BIAS)).items():
        # Files leave a field out, or say null, for its plain value.
        if config.get(field) not in (plain, None):
            raise UnsupportedModel(f"this {family} model has {what} (`{field}`), which is not known here")


def _number(config: Mapping[str, Any], field: str, default: int | None = None) -> int:
    value = config.get(field)
    if value is None and default is not None:
        return default
    if value is None:
        raise UnsupportedModel(f"the model's configuration has no `{field}`")
    most = _LAYERS if field == "num_hidden_layers" else _LARGEST
    if type(value) is not int or not 0 < value <= most:
        raise UnsupportedModel(
            f"`{field}` in the model's configuration is {value!r:.40}: it should be a whole number from 1 to {most:,}"
        )
    return value


def _rope(config: Mapping[str, Any]) -> tuple[float, tuple[tuple[str, Any], ...]]:
    """Base and scaling of the rotary positions: in one field since transformers 5, before in two, with `type` for
    `rope_type` in the oldest files."""
    try:
        fields = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
        # Where layers with a window rotate otherwise, those count that see all.
        fields = dict(fields.get("full_attention", fields))
        theta = float(fields.pop("rope_theta", None) or config.get("rope_theta") or 10000.0)
        fields.pop("partial_rotary_factor", None)
        kind = fields.pop("type", "default")
        fields.setdefault("rope_type", kind)
    except (TypeError, ValueError, OverflowError):
        raise UnsupportedModel("the model's configuration says nothing that makes sense of its positions") from None
    return theta, () if fields["rope_type"] == "default" else tuple(sorted(_frozen(fields).items()))


def _narrow_theta(config: Mapping[str, Any]) -> float:
    """Base of the rotary positions of layers with a window, where they rotate otherwise."""
    fields = config.get("rope_parameters") or {}
    own = fields.get("sliding_attention") or {}
    return float(own.get("rope_theta") or config.get("rope_local_base_freq") or 10000.0)


def _frozen(fields: Mapping[str, Any]) -> dict[str, Any]:
    """With lists, of factors for each pair of columns, as tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
