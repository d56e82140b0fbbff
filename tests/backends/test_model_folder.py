"""Folders that are written part by part."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

pytest.importorskip("ray")

from rlgraph.backends.engines.folder_writers import ModelFolder
from rlgraph.backends.engines.sources import ModelSpec, RandomWeights, load, text_end_ids
from rlgraph.backends.engines.tokenizers import ByteTokenizer, Codec, build_tokenizer
from rlgraph.backends.engines.transformers.engine import TransformersEngine
from rlgraph.backends.engines.vllm.source import read_model_source
from rlgraph.backends.engines.weights import ModelWeights
from rlgraph.backends.enginespec.spec import replicated_layout
from rlgraph.backends.ray.folder_parts import split_parameters
from rlgraph.backends.ray.transfer_ends import WeightsReport
from rlgraph.catalog.models.adapters import Adapters
from rlgraph.catalog.models.config_shape import FAMILIES, shape_of
from rlgraph.ir.mesh import make_mesh
from rlgraph.runs.checkpoint.model_folders import merge_adapters
from tests.backends.engines.models import WORDS
from tests.catalog.models.tiny import OWN, SIZES


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_is_as_transformers_writes_it(family: str, tmp_path: Path) -> None:
    fields = {name: value for name, value in (SIZES | OWN.get(family, {})).items() if name != "vocab_size"}
    spec = ModelSpec("causal_lm", RandomWeights(family, fields, WORDS))
    model = load(spec).model
    layout = replicated_layout(shape_of(model.config.to_dict()), make_mesh(), 0)
    folder = ModelFolder(spec, tmp_path / "ours")
    for part in split_parameters([WeightsReport(layout, torch.float32, "")], 4, 20_000):
        tensors = {}
        for local in part:
            name, stacked = local.name, ".layers." in local.name
            tensors[name] = torch.empty(local.shape[stacked:])
            box = tuple((0, size) for size in tensors[name].shape)
            tensors[name].copy_(ModelWeights(model).read(name, box))
            tensors[name] = tensors[name][None] if stacked else tensors[name]
        folder.write(tensors)
    folder.close()
    model.save_pretrained(tmp_path / "theirs", max_shard_size="20KB")
    index = "model.safetensors.index.json"
    ours, theirs = (json.loads((tmp_path / each / index).read_text())["weight_map"] for each in ("ours", "theirs"))
    assert ours.keys() == theirs.keys() and len({*ours.values()}) > 2
    again = dict(AutoModelForCausalLM.from_pretrained(tmp_path / "ours").named_parameters())
    assert all(torch.equal(tensor, again[name]) for name, tensor in model.named_parameters())


def test_settings_of_generation_are_those_of_the_base(tmp_path: Path) -> None:
    """Whoever writes the folder, the tokens that end an answer among them, and also such as transformers refuses to
    write: a temperature without `do_sample`, as published models have it."""
    fields = {name: value for name, value in SIZES.items() if name != "vocab_size"}
    base = tmp_path / "base"
    TransformersEngine.open(ModelSpec("causal_lm", RandomWeights("llama", fields, WORDS))).save(base)
    given = {"eos_token_id": [1, 5], "temperature": 0.6, "top_p": 0.9}
    (base / "generation_config.json").write_text(json.dumps(given))
    spec = ModelSpec("causal_lm", str(base))
    engine = TransformersEngine.open(spec)
    engine.save(tmp_path / "at_once")
    assert engine.model.generation_config.temperature == 0.6
    ModelFolder(spec, tmp_path / "by_parts").close()
    TransformersEngine.open(ModelSpec("causal_lm", str(base), adapters=Adapters(1, 1.0))).save(tmp_path / "adapters")
    assert merge_adapters(tmp_path / "adapters", tmp_path / "merged", "causal_lm")
    for folder in ("at_once", "by_parts", "merged"):
        written = json.loads((tmp_path / folder / "generation_config.json").read_text())
        assert given.items() <= written.items(), folder


def test_a_base_model_ends_an_answer_as_its_chat_template_does(tmp_path: Path) -> None:
    """With every engine, and after it is saved: a base model comes with the template of its chat model, and names only
    what ends a text. Before it has learned to chat plain texts are no mistake (W0520)."""
    tokenizer = build_tokenizer(ByteTokenizer())
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>\n{% endfor %}"
    Codec(tokenizer).save(tmp_path / "tokenizer")
    text_end, turn_end = tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|im_end|>")
    fields = {name: value for name, value in SIZES.items() if name != "vocab_size"}
    base = load(ModelSpec("causal_lm", RandomWeights("llama", fields, str(tmp_path / "tokenizer"))))
    base.model.save_pretrained(tmp_path / "base")
    base.codec.save(tmp_path / "base")
    spec = ModelSpec("causal_lm", str(tmp_path / "base"))
    engine = TransformersEngine.open(spec)
    assert engine.eos_ids == read_model_source(spec, make_mesh()).eos_ids == (text_end, turn_end)
    assert text_end_ids(spec, engine.codec) == (text_end,)
    engine.save(tmp_path / "at_once")
    ModelFolder(spec, tmp_path / "by_parts").close()
    for folder in ("at_once", "by_parts"):
        written = json.loads((tmp_path / folder / "generation_config.json").read_text())
        assert written["eos_token_id"] == [text_end, turn_end]
