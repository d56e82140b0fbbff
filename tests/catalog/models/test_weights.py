"""Filling an engine's tensors from files and from models, and back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from rlgraph.backends.engines.base import EngineError
from rlgraph.backends.engines.megatron import layout as megatron
from rlgraph.backends.engines.vllm import layout as vllm
from rlgraph.backends.engines.weights import FolderWeights, ModelWeights, WeightSource, fill_tensors
from rlgraph.backends.enginespec.layout_checks import layout_problems
from rlgraph.backends.enginespec.registry import engine
from rlgraph.backends.enginespec.spec import replicated_layout
from rlgraph.catalog.models.config_shape import shape_of
from rlgraph.catalog.models.families import parameter_shapes_by_layer
from rlgraph.ir.layout import LocalTensor, layer_tensor_name
from rlgraph.ir.mesh import Mesh, make_mesh
from tests.catalog.models.tiny import KINDS, OWN, SIZES, SPARSE, held, shape_of_model, tiny
from tests.suites import few

Layout = Callable[..., tuple[LocalTensor, ...]]


def named(layout: tuple[LocalTensor, ...]) -> list[tuple[str, tuple[int, ...]]]:
    """As an engine has them: one for each layer."""
    return [
        (layer_tensor_name(local.name, layer), local.shape["*" in local.name :])
        for local in layout
        for layer in range(local.shape[0] if "*" in local.name else 1)
    ]


def filled(layout: tuple[LocalTensor, ...], source: WeightSource) -> dict[str, Tensor]:
    """What was there before is not a number: it shows where it was left."""
    found = {name: torch.full(shape, torch.nan) for name, shape in named(layout)}
    fill_tensors(found, layout, source)
    return found


def put_back(layout: tuple[LocalTensor, ...], local_tensors: dict[str, Tensor], whole: dict[str, Tensor]) -> None:
    """Copy the pieces of one rank into global tensors; a second holder of a piece must say the same."""
    for local in layout:
        if not local.pieces:
            continue
        stack = "*" in local.name
        tensor = (
            torch.stack([local_tensors[layer_tensor_name(local.name, layer)] for layer in range(local.shape[0])])
            if stack
            else local_tensors[local.name]
        )
        for piece in local.pieces:
            part = tensor[tuple(slice(a, a + hi - lo) for a, (lo, hi) in zip(piece.at, piece.box, strict=True))]
            layers = range(*piece.box[0]) if stack else range(1)
            for index, layer in enumerate(layers):
                target = whole[layer_tensor_name(piece.name, layer)]
                there = target[tuple(slice(*bounds) for bounds in piece.box[stack:])]
                said = part[index] if stack else part
                assert torch.equal(torch.where(there.isnan(), said, there), said)
                there.copy_(said)


MESHES = {
    "megatron": (make_mesh(), make_mesh(1, 2, 2), make_mesh(2, 4, 1), make_mesh(1, 1, 4), make_mesh(1, 2, 2, ep=2)),
    "vllm": (make_mesh(), make_mesh(1, 1, 2), make_mesh(2, 1, 4)),
    "transformers": (make_mesh(2),),
}


def laid_out() -> Iterator[tuple[str, str, str, Mesh]]:
    """Families and kinds of models, with the engines that know them and what they can split them over."""
    for family, kind in KINDS:
        shape = shape_of({"model_type": family, **SIZES, **OWN.get(family, {})})
        for name, meshes in MESHES.items():
            yield from ((family, kind, name, over) for over in meshes if not layout_problems(shape, name, over, kind))


SPLIT = {"megatron": MESHES["megatron"][1], "vllm": MESHES["vllm"][2], "transformers": MESHES["transformers"][0]}
"""That `make test` has of each engine, and of models with experts the last of Megatron's, too."""


def each() -> Iterator[Any]:
    """Those with words' vectors of their own for the head, and with the same."""
    for family, kind, name, over in laid_out():
        for tied in (False, True):
            short = (kind == "causal_lm" or not tied) and (over == SPLIT[name] or over == MESHES["megatron"][4])
            yield pytest.param(
                *(family, kind, name, over, tied),
                id=f"{'tied' if tied else 'untied'}-{family}-{kind}-{name}-{over.axes}",
                marks=[] if short else pytest.mark.long,
            )


@pytest.mark.parametrize(("family", "kind", "name", "over", "tied"), list(each()))
def test_there_and_back_is_bit_for_bit_the_same(family: str, kind: Any, name: str, over: Mesh, tied: bool) -> None:
    layout: Layout = engine(name).layout
    model = tiny(family, kind, tie_word_embeddings=tied)
    shape = shape_of_model(model)
    whole = {tensor.name: torch.full(tensor.shape, torch.nan) for tensor in parameter_shapes_by_layer(shape, kind)}
    for rank in range(over.rank_count):
        mine = layout(shape, over, rank, kind)
        local_tensors = filled(mine, ModelWeights(model))
        assert not any(tensor.isnan().any() for tensor in local_tensors.values()), "padding is zeros"
        put_back(mine, local_tensors, whole)
    theirs = held(model)
    assert whole.keys() == theirs.keys()
    for each, tensor in whole.items():
        assert torch.equal(tensor, theirs[each]), each


@pytest.mark.parametrize(
    ("layout", "over"),
    [(megatron.layout, make_mesh(tp=2, ep=2)), (vllm.layout, make_mesh(tp=4)), (replicated_layout, make_mesh(4))],
    ids=["megatron", "vllm", "transformers"],
)
@pytest.mark.parametrize("family", few(SPARSE, "mixtral", "deepseek_v3"))
def test_experts_from_files_that_have_them_one_by_one(family: str, layout: Layout, over: Mesh, tmp_path: Path) -> None:
    model = tiny(family)
    model.save_pretrained(tmp_path)
    names = load_file(tmp_path / "model.safetensors")
    assert names.keys() != held(model).keys()
    shape = shape_of_model(model)
    if layout is vllm.layout and layout_problems(shape, "vllm", over):
        pytest.skip("it does not hold this family")
    whole = {tensor.name: torch.full(tensor.shape, torch.nan) for tensor in parameter_shapes_by_layer(shape)}
    for rank in range(4):
        mine = layout(shape, over, rank)
        put_back(mine, filled(mine, FolderWeights(tmp_path)), whole)
    theirs = held(model)
    assert whole.keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in whole.items())
    # As models in memory have them, and one that is not there.
    save_file(theirs, tmp_path / "model.safetensors")
    mine = layout(shape, over, 3)
    again, first = filled(mine, FolderWeights(tmp_path)), filled(mine, ModelWeights(model))
    assert all(torch.equal(tensor, first[name]) for name, tensor in again.items())
    lost = next(name for name in names if ".experts.3." in name)
    save_file({name: tensor for name, tensor in names.items() if name != lost}, tmp_path / "model.safetensors")
    with pytest.raises(EngineError, match=f"lack the tensor {lost}"):
        filled(mine, FolderWeights(tmp_path))


def test_padding_is_zeros() -> None:
    model = tiny("llama")
    shape = shape_of_model(model)
    last = filled(vllm.layout(shape, make_mesh(1, 1, 2), 1), ModelWeights(model))["lm_head.weight"]
    assert torch.equal(last[:18], model.lm_head.weight[32:])
    assert not last[18:].any()


@pytest.fixture(scope="module")
def language_model() -> PreTrainedModel:
    return tiny("qwen3")


@pytest.mark.parametrize("shard", ["1GB", "10KB"])
def test_a_folder_gives_what_the_model_gives(shard: str, language_model: PreTrainedModel, tmp_path: Path) -> None:
    language_model.save_pretrained(tmp_path, max_shard_size=shard)
    assert (tmp_path / "model.safetensors.index.json").exists() == (shard == "10KB")
    shape, over = shape_of_model(language_model), make_mesh(1, 2, 2)
    source = FolderWeights(tmp_path)
    for rank in range(over.rank_count):
        layout = megatron.layout(shape, over, rank)
        theirs = filled(layout, ModelWeights(language_model))
        for name, tensor in filled(layout, source).items():
            assert torch.equal(tensor, theirs[name]), name


def test_a_tied_folder_needs_no_output_layer(tmp_path: Path) -> None:
    model = tiny("qwen2", tie_word_embeddings=True)
    model.save_pretrained(tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    last = filled(megatron.layout(shape_of_model(model), make_mesh(1, 2), 1), FolderWeights(tmp_path))
    assert torch.equal(last["output_layer.weight"], model.model.embed_tokens.weight)


def test_weights_become_the_dtype_of_the_engine(language_model: PreTrainedModel, tmp_path: Path) -> None:
    language_model.to(torch.bfloat16).save_pretrained(tmp_path)
    language_model.float()
    layout = replicated_layout(shape_of_model(language_model), make_mesh(), 0)
    for name, tensor in filled(layout, FolderWeights(tmp_path)).items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor.bfloat16(), language_model.get_parameter(name).bfloat16())


def test_a_value_model_begins_as_a_language_model_with_a_head_of_zeros(
    language_model: PreTrainedModel, tmp_path: Path
) -> None:
    language_model.save_pretrained(tmp_path)
    layout = megatron.layout(shape_of_model(language_model), make_mesh(), 0, "value_lm")
    found = filled(layout, FolderWeights(tmp_path))
    assert not found["output_layer.weight"].any() and not found["output_layer.bias"].any()
    assert torch.equal(found["decoder.final_layernorm.weight"], language_model.model.norm.weight)


def test_a_bare_decoder_has_names_without_the_prefix(language_model: PreTrainedModel, tmp_path: Path) -> None:
    language_model.model.save_pretrained(tmp_path)
    assert "layers.0.mlp.up_proj.weight" in load_file(tmp_path / "model.safetensors")
    layout = replicated_layout(shape_of_model(language_model), make_mesh(), 0, "reward_lm")
    found = filled(layout, FolderWeights(tmp_path))
    name = "model.layers.2.mlp.up_proj.weight"
    assert torch.equal(found[name], language_model.get_parameter(name))
    with pytest.raises(EngineError, match="lack the tensor lm_head.weight"):
        filled(replicated_layout(shape_of_model(language_model), make_mesh(), 0), FolderWeights(tmp_path))


def test_what_a_folder_lacks_is_named(language_model: PreTrainedModel, tmp_path: Path) -> None:
    shape = shape_of_model(language_model)
    layout = replicated_layout(shape, make_mesh(), 0)
    with pytest.raises(EngineError, match="no config.json"):
        FolderWeights(tmp_path / "nowhere")
    language_model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    name = "model.layers.1.self_attn.k_norm.weight"
    save_file({each: tensor for each, tensor in weights.items() if each != name}, file)
    with pytest.raises(EngineError, match=f"lack the tensor {name}"):
        filled(layout, FolderWeights(tmp_path))
    save_file(weights | {name: torch.ones(9)}, file)
    with pytest.raises(EngineError, match=rf"the tensor {name} .* has the shape 9; .* should have 8"):
        filled(layout, FolderWeights(tmp_path))
    file.write_bytes(b"nothing")
    with pytest.raises(EngineError, match="cannot read the weights in .*model.safetensors"):
        FolderWeights(tmp_path)
    file.unlink()
    with pytest.raises(EngineError, match="no model.safetensors"):
        FolderWeights(tmp_path)


def test_the_engine_must_have_the_tensors_of_its_layout(language_model: PreTrainedModel) -> None:
    layout = replicated_layout(shape_of_model(language_model), make_mesh(), 0)
    source = ModelWeights(language_model)
    found = filled(layout, source)
    with pytest.raises(EngineError, match="tensor model.norm.weight has the shape 3, not 16"):
        fill_tensors(found | {"model.norm.weight": torch.zeros(3)}, layout, source)
    del found["model.layers.3.mlp.down_proj.weight"]
    with pytest.raises(EngineError, match="lacks the tensor model.layers.3.mlp.down_proj.weight"):
        fill_tensors(found, layout, source)


def test_a_model_of_another_kind_or_size_is_refused(language_model: PreTrainedModel) -> None:
    shape = shape_of_model(language_model)
    with pytest.raises(EngineError, match="lacks the tensor score.weight"):
        filled(replicated_layout(shape, make_mesh(), 0, "reward_lm"), ModelWeights(language_model))
    small = tiny("qwen3", vocab_size=40)
    with pytest.raises(EngineError, match="model.embed_tokens.weight is too small: its shape is 40 x 16"):
        filled(replicated_layout(shape, make_mesh(), 0), ModelWeights(small))


def test_the_sharded_index_says_where_a_tensor_is(language_model: PreTrainedModel, tmp_path: Path) -> None:
    language_model.save_pretrained(tmp_path, max_shard_size="10KB")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text("utf-8"))
    (tmp_path / index["weight_map"]["model.norm.weight"]).unlink()
    layout = replicated_layout(shape_of_model(language_model), make_mesh(), 0)
    with pytest.raises(EngineError, match="cannot read the weights in"):
        filled(layout, FolderWeights(tmp_path))
