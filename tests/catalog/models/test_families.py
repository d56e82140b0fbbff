"""Parameters and numbers of a model: as transformers has them."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoConfig

from rlgraph.catalog.models.config_shape import FAMILIES, SPARSE, max_row_tokens, shape_of
from rlgraph.catalog.models.families import parameter_count, parameter_shapes, parameter_shapes_by_layer
from rlgraph.catalog.models.shape import Shape, UnsupportedModel
from tests.catalog.models.tiny import DENSE, KINDS, OWN, SIZES, held, shape_of_model, tiny


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize(("family", "kind"), KINDS)
def test_names_and_shapes_are_those_of_the_model(family: str, kind: Any, tied: bool) -> None:
    model = tiny(family, kind, tie_word_embeddings=tied)
    theirs = held(model)
    shape = shape_of_model(model)
    assert {tensor.name: tensor.shape for tensor in parameter_shapes_by_layer(shape, kind)} == {
        name: tuple(tensor.shape) for name, tensor in theirs.items()
    }
    assert parameter_count(shape, kind) == sum(tensor.numel() for tensor in theirs.values())


def test_a_tensor_of_every_layer_has_the_layer_as_its_first_dimension() -> None:
    shape = shape_of({"model_type": "llama", **SIZES})
    stacked = {parameter.name: parameter.shape for parameter in parameter_shapes(shape)}
    assert stacked["model.layers.*.self_attn.k_proj.weight"] == (4, 16, 16)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_configuration_leaves_out_means_what_it_means_to_transformers(family: str) -> None:
    # A model with a window, as Mistral's has where nothing is said, is not known.
    said = {"sliding_window": None} if family == "mistral" else {}
    config = AutoConfig.for_model(family, **said)
    assert shape_of({"model_type": family, "vocab_size": config.vocab_size, **said}) == shape_of(config.to_dict())


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        {"rope_theta": 5e5, "rope_scaling": {"type": "llama3", **LLAMA3}},
        {"rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", **LLAMA3}},
    ],
    ids=["two fields", "type", "one field"],
)
def test_rotary_positions_are_read_in_every_spelling(fields: dict[str, Any]) -> None:
    shape = shape_of({"model_type": "llama", **SIZES, **fields})
    assert shape.rope_theta == 5e5
    assert shape.rope_scaling == tuple(sorted({"rope_type": "llama3", **LLAMA3}.items()))


def test_plain_rotary_positions_are_no_scaling() -> None:
    for fields in (
        {"rope_theta": 1e6, "rope_scaling": None},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    ):
        shape = shape_of({"model_type": "qwen2", **SIZES, **fields})
        assert (shape.rope_theta, shape.rope_scaling) == (1e6, ())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "gpt2"}, "family `gpt2` are not known: there are llama, mistral, qwen2, qwen3, granite"),
        ({"vocab_size": None}, "has no `vocab_size`"),
        ({"hidden_size": "16"}, "`hidden_size` in the model's configuration is '16'"),
        ({"num_hidden_layers": 0}, "`num_hidden_layers` in the model's configuration is 0"),
        ({"num_key_value_heads": 3}, "3, which does not divide the 4 attention heads"),
        ({"attention_bias": True}, "llama model has biases in its attention (`attention_bias`)"),
        ({"hidden_act": "gelu"}, "another activation than SiLU"),
        ({"model_type": "qwen2", "use_sliding_window": True}, "sliding-window attention"),
        ({"model_type": "gemma2", "hidden_activation": "relu"}, "another activation than GELU"),
        ({"model_type": "gemma2", "sliding_window": -1}, "`sliding_window` in the model's configuration is -1"),
        ({"model_type": "gemma2", "layer_types": ["full_attention"]}, "should be a list of 4 words"),
        ({"model_type": "mixtral", "sliding_window": 8}, "sliding-window attention (`sliding_window`)"),
        ({"model_type": "qwen3_moe", "mlp_only_layers": [0]}, "layers without experts (`mlp_only_layers`)"),
        ({"model_type": "qwen2_moe", "decoder_sparse_step": 2}, "layers without experts (`decoder_sparse_step`)"),
        ({"model_type": "qwen2_moe", "qkv_bias": False}, "no biases in its attention"),
        ({"num_hidden_layers": 10**9}, "it should be a whole number from 1 to 10,000"),
        ({"vocab_size": 10**18}, "it should be a whole number from 1 to 1,073,741,824"),
        (
            {"num_attention_heads": 4096, "head_dim": None},
            "hidden_size is 16, less than the 4096 attention heads that share it",
        ),
        ({"rope_scaling": [3]}, "nothing that makes sense of its positions"),
        ({"model_type": "mixtral", "num_local_experts": 1}, "num_experts_per_tok is 2, but there are 1 experts"),
        ({"model_type": "deepseek_v3"}, "head_dim is 8, but 64 numbers rotate (qk_rope_head_dim)"),
        (
            {"model_type": "deepseek_v3", "head_dim": 64, "first_k_dense_replace": 4},
            "a whole number below the 4 layers",
        ),
        (
            {"model_type": "deepseek_v3", "head_dim": 64, "n_group": 3},
            "n_group is 3 and topk_group 4, which does not go with 256",
        ),
        ({"model_type": "deepseek_v3", "qk_rope_head_dim": 3}, "qk_rope_head_dim is 3: numbers rotate two by two"),
        ({"model_type": "deepseek_v3", "scoring_func": "softmax"}, "another choice of experts (`scoring_func`)"),
        ({"model_type": "deepseek_v3", "rope_interleave": False}, "positions in another order (`rope_interleave`)"),
    ],
)
def test_what_is_not_known_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        shape_of({"model_type": "llama", **SIZES, **fields})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("rope", "tokens"),
    [
        (None, 4096),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}, 16384),
        # Where the configuration has counted the factor already.
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}, 4096),
        ({"type": "linear", "factor": 2}, 8192),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 512}, 4096),
        ({"rope_type": "yarn", "factor": "x"}, 4096),
    ],
)
def test_how_far_positions_reach(rope: dict[str, Any] | None, tokens: int) -> None:
    assert max_row_tokens({"max_position_embeddings": 4096, "rope_scaling": rope}) == tokens
    assert max_row_tokens({"rope_scaling": rope}) is None


def test_biases_and_norms_of_the_families() -> None:
    def has(shape: Shape) -> tuple[bool, bool]:
        return shape.qkv_bias, shape.qk_norm

    found = {family: has(shape_of({"model_type": family, **SIZES, **OWN.get(family, {})})) for family in FAMILIES}
    assert found == {
        "llama": (False, False),
        "granite": (False, False),
        "phi3": (False, False),
        "gemma2": (False, False),
        "gemma3_text": (False, True),
        "mistral": (False, False),
        "mixtral": (False, False),
        "qwen2": (True, False),
        "qwen2_moe": (True, False),
        "qwen3": (False, True),
        "qwen3_moe": (False, True),
        "deepseek_v3": (False, False),
    }


@pytest.mark.parametrize(
    ("fields", "window", "windowed"),
    [
        ({"model_type": "llama", "sliding_window": 8}, 0, 0),
        ({"model_type": "mistral", "sliding_window": None}, 0, 0),
        ({"model_type": "mistral"}, 4096, 4),
        ({"model_type": "phi3", "sliding_window": 9}, 9, 4),
        ({"model_type": "gemma2"}, 4096, 2),
        ({"model_type": "gemma3_text", "num_hidden_layers": 7}, 4096, 6),
        ({"model_type": "gemma3_text", "sliding_window_pattern": 2}, 4096, 2),
        ({"model_type": "gemma2", "layer_types": ["full_attention"] * 4}, 0, 0),
    ],
)
def test_layers_with_a_window(fields: dict[str, Any], window: int, windowed: int) -> None:
    shape = shape_of({**SIZES, **fields})
    assert (shape.window, shape.windowed_layer_count) == (window, windowed)
    theirs = AutoConfig.for_model(**{**SIZES, **fields}).to_dict().get("layer_types") or []
    assert shape.family not in ("gemma2", "gemma3_text") or theirs.count("sliding_attention") == windowed
    narrow = tuple(layer for layer, kind in enumerate(theirs) if kind == "sliding_attention")
    assert shape.family not in ("gemma2", "gemma3_text") or shape.narrow == narrow


def test_what_a_family_computes_beyond_a_plain_decoder() -> None:
    shapes = {family: shape_of({"model_type": family, **SIZES, **OWN.get(family, {})}) for family in FAMILIES}
    assert not any(shape.beyond for shape in shapes.values())
    assert {family for family, shape in shapes.items() if shape.gelu} == {"gemma2", "gemma3_text"}
    two, three = (AutoConfig.for_model(family, **SIZES) for family in ("gemma2", "gemma3_text"))
    shape = shapes["gemma2"]
    assert (shape.score_cap, shape.logits_cap) == (two.attn_logit_softcapping, two.final_logit_softcapping)
    assert (shape.score_scale, shape.embedding_scale) == (two.query_pre_attn_scalar**-0.5, two.hidden_size**0.5)
    shape, turns = shapes["gemma3_text"], three.rope_parameters
    assert shape.rope_theta == turns["full_attention"]["rope_theta"]
    assert shape.narrow_theta == turns["sliding_attention"]["rope_theta"] and not shape.has_soft_cap
    scaled = {"embedding_multiplier": 12, "residual_multiplier": 0.22, "attention_multiplier": 0.1, "logits_scaling": 8}
    shape = shape_of({"model_type": "granite", **SIZES, **scaled})
    assert (shape.embedding_scale, shape.residual_scale, shape.score_scale, shape.logits_scale) == (12, 0.22, 0.1, 8)
    assert shapes["granite"].score_scale == 1
    partial = {"model_type": "phi3", **SIZES, "partial_rotary_factor": 0.75}
    assert shape_of(partial).beyond == ("heads of which a part rotates",)


def test_factors_of_rotary_positions_can_be_lists() -> None:
    scaling = {"rope_type": "longrope", "short_factor": [1.0, 1.5], "long_factor": [2.0, 3.0]}
    shape = shape_of({"model_type": "phi3", **SIZES, "rope_scaling": scaling})
    assert hash(shape) and dict(shape.rope_scaling)["long_factor"] == (2.0, 3.0)


def test_experts_of_the_families() -> None:
    def experts(family: str) -> tuple[int, int, int, int]:
        shape = shape_of({"model_type": family, **SIZES, **OWN.get(family, {})})
        return shape.experts, shape.experts_per_token, shape.ffn, shape.shared_ffn

    assert {experts(family) for family in DENSE} == {(0, 0, 24, 0)}
    assert {family: experts(family) for family in SPARSE} == {
        "mixtral": (4, 2, 24, 0),
        "qwen2_moe": (4, 4, 12, 20),
        "qwen3_moe": (4, 3, 12, 0),
        "deepseek_v3": (6, 3, 12, 24),
    }
