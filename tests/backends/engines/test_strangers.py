"""Folders of models that a stranger made, or that were not copied to their end: told, never obeyed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from rlgraph.backends.engines.base import EngineError
from rlgraph.backends.engines.sources import ModelSpec, RandomWeights, load, load_codec
from rlgraph.backends.engines.tokenizers import CharTokenizer
from rlgraph.conversations import Example

SHAPE = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
}
WEIGHTS = "model.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = load(ModelSpec("causal_lm", RandomWeights("qwen2", SHAPE, CharTokenizer("abcd>"))))
    made.model.save_pretrained(tmp_path / "model")
    made.codec.save(tmp_path / "model")
    return tmp_path / "model"


def edited(file: Path, **fields: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def cut(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-100])


def nothing(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(b"\xff" * 1000)


def narrower(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    tensors["model.embed_tokens.weight"] = tensors["model.embed_tokens.weight"][:, :8].clone()
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})


def pickled(folder: Path) -> None:
    """What torch's files can do where they are read without care."""
    (folder / WEIGHTS).unlink()

    class Evil:
        def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
            return os.mkdir, (str(folder / "obeyed"),)

    torch.save({"model.embed_tokens.weight": Evil()}, folder / "pytorch_model.bin")


def code(folder: Path) -> None:
    own = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    edited(folder / "config.json", model_type="evil", auto_map=own)
    (folder / "evil.py").write_text(f"import os\nos.mkdir({str(folder / 'obeyed')!r})\n")


def deep(folder: Path) -> None:
    (folder / "config.json").write_text("[" * 100_000)


def negative(folder: Path) -> None:
    edited(folder / "config.json", hidden_size=-3)


def no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")


def forgotten_tokenizer(folder: Path) -> None:
    """What `save_pretrained` of a model alone leaves behind."""
    for file in folder.glob("*token*"):
        file.unlink()


def forgotten_tokens(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def end_without_a_row(folder: Path) -> None:
    """Tokens that were added to the tokenizer alone."""
    codec = load_codec(ModelSpec("causal_lm", str(folder)))
    codec.tokenizer.add_special_tokens({"eos_token": "<|im_end|>"})
    codec.save(folder)


def larger_tokenizer(folder: Path) -> None:
    load(ModelSpec("causal_lm", RandomWeights("qwen2", SHAPE, CharTokenizer("abcdefgh>")))).codec.save(folder)


def no_index(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / f"{WEIGHTS}.index.json").write_text('{"weight_map": {"x": "../../etc/passwd"}}')


@pytest.mark.parametrize(
    ("hurt", "said"),
    [
        (cut, "file not fully covered"),
        (nothing, "header"),
        (narrower, "other shapes than its config.json says"),
        (pickled, "its weights are in pytorch_model.bin, and only safetensors are read"),
        (code, "computed by Python code of its own, which is never run"),
        (deep, "RecursionError"),
        (negative, "negative dimension"),
        (no_tokenizer, "cannot load the tokenizer"),
        (forgotten_tokenizer, "has no tokenizer: what is there knows no tokens"),
        (forgotten_tokens, "it has no tokenizer.json, nor what one could be made from"),
        (end_without_a_row, "ends a text with token 8, and the model has rows for 8 tokens"),
        (larger_tokenizer, "its tokenizer has 12 tokens, and the model 8: it is another model's"),
        (no_index, "cannot load the model"),
    ],
)
def test_a_folder_that_cannot_be_loaded_is_told(
    hurt: Callable[[Path], None], said: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurt(folder)
    # Who asks on the terminal whether to run code would get a yes.
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(EngineError, match=said):
        load(ModelSpec("causal_lm", str(folder)))
    assert not (folder / "obeyed").exists()


def test_a_folder_around_models_names_them(folder: Path) -> None:
    """That of a run or of a trainer, taken for its model's."""
    (folder.parent / "run" / "models").mkdir(parents=True)
    folder.rename(folder.parent / "run" / "models" / "actor")
    (folder.parent / "run" / "small.gguf").touch()
    with pytest.raises(EngineError, match="holds no model, nor a tokenizer: it has no config.json") as refused:
        load(ModelSpec("causal_lm", str(folder.parent / "run")))
    run = folder.parent / "run"
    assert refused.value.hint == f'models in it: `{run}/models/actor`, `gguf("{run}/small.gguf")`'
    with pytest.raises(EngineError) as refused:
        load(ModelSpec("causal_lm", str(run / "models" / "actor" / "..")))
    assert "/actor`" in refused.value.hint


@pytest.mark.parametrize(
    ("template", "said"),
    [("{{ raise_exception('no') }}", "TemplateError: no"), ("{{ 1 + }}", "SyntaxError"), ("{{ m.a.b }}", "undefined")],
)
def test_a_chat_template_that_fails_is_told(template: str, said: str, folder: Path) -> None:
    edited(folder / "tokenizer_config.json", chat_template=template)
    codec = load_codec(ModelSpec("causal_lm", str(folder)))
    with pytest.raises(EngineError, match=f"chat template fails: .*{said}"):
        codec.encode_prompt([{"role": "user", "content": "a"}])


def test_a_token_without_a_row_is_told_where_it_is_read(folder: Path) -> None:
    """Not as an index that is out of range, and by the tokenizer alone, as all engines open it."""
    codec = load_codec(ModelSpec("causal_lm", str(folder)))
    known = codec.encode_prompt("ab")
    codec.tokenizer.add_tokens(["<seen>"])
    codec.save(folder)
    added = load_codec(ModelSpec("causal_lm", str(folder)))
    assert added.encode_prompt("ab") == known
    for read in (added.encode_prompt, added.encode_text, lambda text: added.encode_example(Example(text, "a"))):
        with pytest.raises(EngineError, match="it has '<seen>', token 8, and the model has rows for 8 tokens"):
            read("a<seen>")


def test_half_of_a_surrogate_pair_is_told(folder: Path) -> None:
    codec = load_codec(ModelSpec("causal_lm", str(folder)))
    for encode in (codec.encode_prompt, codec.encode_text, codec.encode_response):
        with pytest.raises(EngineError, match="half of a surrogate pair"):
            encode("a\ud800")
