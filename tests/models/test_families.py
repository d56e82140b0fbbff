"""Parameters and numbers of a model: as transformers has them."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoConfig

from rlgraph.models.families import count, parameters, tensors
from rlgraph.models.shape import FAMILIES, SPARSE, Shape, UnsupportedModel, shape_of
from tests.models.tiny import AUTO, DENSE, OWN, SIZES, shape_of_model, tiny


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("kind", AUTO)
@pytest.mark.parametrize("family", FAMILIES)
def test_names_and_shapes_are_those_of_the_model(family: str, kind: Any, tied: bool) -> None:
    model = tiny(family, kind, tie_word_embeddings=tied)
    theirs = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    shape = shape_of_model(model)
    assert {tensor.name: tensor.shape for tensor in tensors(shape, kind)} == theirs
    assert count(shape, kind) == sum(parameter.numel() for parameter in model.parameters())


def test_a_tensor_of_every_layer_has_the_layer_as_its_first_dimension() -> None:
    shape = shape_of({"model_type": "llama", **SIZES})
    stacked = {parameter.name: parameter.shape for parameter in parameters(shape)}
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
        ({"model_type": "gpt2"}, "family `gpt2` are not known: there are llama, mistral, qwen2, qwen3, mixtral"),
        ({"vocab_size": None}, "has no `vocab_size`"),
        ({"hidden_size": "16"}, "`hidden_size` in the model's configuration is '16'"),
        ({"num_hidden_layers": 0}, "`num_hidden_layers` in the model's configuration is 0"),
        ({"num_key_value_heads": 3}, "3, which does not divide the 4 attention heads"),
        ({"attention_bias": True}, "llama model has biases in its attention (`attention_bias`)"),
        ({"hidden_act": "gelu"}, "another activation than SiLU"),
        ({"model_type": "qwen2", "use_sliding_window": True}, "sliding-window attention"),
        ({"partial_rotary_factor": 0.5}, "rotates a part of each head"),
        ({"model_type": "mistral"}, "sliding-window attention (`sliding_window`)"),
        ({"model_type": "qwen3_moe", "mlp_only_layers": [0]}, "layers without experts (`mlp_only_layers`)"),
        ({"model_type": "qwen2_moe", "decoder_sparse_step": 2}, "layers without experts (`decoder_sparse_step`)"),
        ({"model_type": "qwen2_moe", "qkv_bias": False}, "no biases in its attention"),
        ({"model_type": "mixtral", "num_local_experts": 1}, "num_experts_per_tok is 2, but there are 1 experts"),
    ],
)
def test_what_is_not_known_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        shape_of({"model_type": "llama", **SIZES, **fields})
    assert message in str(caught.value)


def test_biases_and_norms_of_the_families() -> None:
    def has(shape: Shape) -> tuple[bool, bool]:
        return shape.qkv_bias, shape.qk_norm

    found = {family: has(shape_of({"model_type": family, **SIZES, **OWN.get(family, {})})) for family in FAMILIES}
    assert found == {
        "llama": (False, False),
        "mistral": (False, False),
        "mixtral": (False, False),
        "qwen2": (True, False),
        "qwen2_moe": (True, False),
        "qwen3": (False, True),
        "qwen3_moe": (False, True),
    }


def test_experts_of_the_families() -> None:
    def experts(family: str) -> tuple[int, int, int, int]:
        shape = shape_of({"model_type": family, **SIZES, **OWN.get(family, {})})
        return shape.experts, shape.experts_per_token, shape.ffn, shape.shared_ffn

    assert {experts(family) for family in DENSE} == {(0, 0, 24, 0)}
    assert {family: experts(family) for family in SPARSE} == {
        "mixtral": (4, 2, 24, 0),
        "qwen2_moe": (4, 4, 12, 20),
        "qwen3_moe": (4, 3, 12, 0),
    }
