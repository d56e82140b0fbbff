"""A model that is a GGUF file is the model that was written, and a file that cannot be used says why, at its place."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from transformers import AutoTokenizer

import rlgraph
from rlgraph.backends.engines import gguf
from rlgraph.backends.engines.sources import ModelSpec, load
from rlgraph.catalog.models.gguf import UnusableGguf
from rlgraph.errors import Diagnostic, ProgramError
from tests.gguf_file import write

pytest.importorskip("gguf")

PROGRAM = """algorithm filed
param base   = gguf("model.gguf")
model actor  = causal_lm(base)
data prompts = jsonl("prompts.jsonl", batch=2, shuffle=false)
step:
    rollout = actor.generate(prompts, n=2, max_tokens=4)
    train actor(lr=1e-3):
        minimize mean(-actor.logprobs(rollout))
    report length = mean(rollout.length)
"""
ROWS = '{"prompt": [{"role": "user", "content": "2+2?"}]}\n' * 2


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own; the folder in which folders of models are."""
    monkeypatch.setattr(constants, "HF_ASSETS_CACHE", str(tmp_path / "assets"))
    return tmp_path / "assets" / "rlgraph" / "gguf"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The folder of a program that names `model.gguf`."""
    (tmp_path / "filed").mkdir()
    (tmp_path / "filed" / "filed.rlf").write_text(PROGRAM)
    (tmp_path / "filed" / "prompts.jsonl").write_text(ROWS)
    return tmp_path / "filed"


@pytest.mark.parametrize(
    ("family", "tied", "packed"),
    [("llama", True, ""), ("llama", False, "ffn_up"), ("qwen2", True, "token_embd"), ("qwen3", False, "")],
)
def test_the_weights_are_those_that_were_written(tmp_path: Path, family: str, tied: bool, packed: str) -> None:
    written = write(tmp_path / "model.gguf", family, tied=tied, packed=packed)
    loaded = load(ModelSpec("causal_lm", str(gguf.dequantized_folder(tmp_path / "model.gguf"))))
    found, wanted = loaded.model.state_dict(), written.state_dict()
    assert found.keys() == wanted.keys() and loaded.new_parameters == ()
    assert [name for name in wanted if not torch.equal(found[name], wanted[name])] == []
    ids = torch.tensor([[1, 2, 3, 4]])
    with torch.no_grad():
        assert torch.allclose(loaded.model(ids).logits, written.eval()(ids).logits, atol=1e-5)


def test_the_tokenizer_has_the_template_of_the_file(tmp_path: Path) -> None:
    write(tmp_path / "model.gguf")
    tokenizer = AutoTokenizer.from_pretrained(gguf.dequantized_folder(tmp_path / "model.gguf"))
    asked = tokenizer.apply_chat_template([{"role": "user", "content": "ab"}], tokenize=False)
    assert asked == "<|im_start|>user\nab<|im_end|>\n"
    assert tokenizer.eos_token == "<|im_end|>" and tokenizer.decode(tokenizer("a b").input_ids) == "a b"


def test_what_lies_beside_the_file_is_not_read(tmp_path: Path) -> None:
    write(tmp_path / "model.gguf")
    (tmp_path / "chat_template.jinja").write_text("another one")
    (tmp_path / "config.json").write_text("no JSON")
    folder = gguf.dequantized_folder(tmp_path / "model.gguf")
    assert "another one" not in "".join(file.read_text() for file in folder.glob("*.j*"))


def test_it_is_read_once_for_all_copies_and_again_when_it_changes(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, reads = tmp_path / "model.gguf", []
    read = gguf._read
    monkeypatch.setattr(gguf, "_read", lambda file: reads.append(file) or read(file))
    write(file)
    with ThreadPoolExecutor(2) as two:
        first, second = two.map(gguf.dequantized_folder, [file, file])
    assert first == second == gguf.dequantized_folder(file) and len(reads) == 1
    write(file, "qwen2")
    assert gguf.dequantized_folder(file) != first and len(reads) == 2
    assert {entry.name for entry in cache.iterdir()} == {".lock", first.name, gguf.dequantized_folder(file).name}


def test_a_process_that_was_killed_leaves_nothing_that_counts(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "model.gguf")
    folder = gguf.dequantized_folder(tmp_path / "model.gguf")
    folder.rename(folder.with_name(f".{folder.name}"))  # As far as it came before it could be given its name.
    (folder.with_name(f".{folder.name}") / "half").write_text("")
    assert gguf.dequantized_folder(tmp_path / "model.gguf") == folder and not (folder / "half").exists()
    assert {entry.name for entry in cache.iterdir()} == {".lock", folder.name}


def test_a_program_trains_it(program: Path) -> None:
    write(program / "model.gguf")
    run = rlgraph.compile(program / "filed.rlf").run(1, progress=False)
    assert run.metrics[0]["length"] > 0


def test_the_file_is_a_setting(program: Path) -> None:
    write(program / "other.gguf")
    run = rlgraph.compile(program / "filed.rlf", set={"base": 'gguf("other.gguf")'}).run(1, progress=False)
    assert run.metrics[0]["length"] > 0


def refused(program: Path) -> Diagnostic:
    """What a run says of the program's model."""
    with pytest.raises(ProgramError) as caught:
        rlgraph.compile(program / "filed.rlf").run(1, progress=False)
    (found,) = caught.value.diagnostics
    assert (found.span.line, found.span.covered_text) == (2, '"model.gguf"')
    return found


def test_a_file_that_is_not_there(program: Path) -> None:
    write(program / "modell.gguf")
    found = refused(program)
    assert (found.code, found.hint) == ("E0703", "did you mean `modell.gguf`?")
    assert found.message.startswith("there is no model file 'model.gguf' in ")


def test_a_file_of_another_kind(program: Path) -> None:
    (program / "model.gguf").write_bytes(b"PK\3\4")
    found = refused(program)
    assert (found.code, found.message) == ("E0756", "'model.gguf' is no GGUF file")


def test_a_file_that_is_cut_short(program: Path) -> None:
    write(program / "model.gguf")
    whole = (program / "model.gguf").read_bytes()
    (program / "model.gguf").write_bytes(whole[: len(whole) // 2])
    found = refused(program)
    assert found.code == "E0756" and "is damaged or cut short" in found.message
    assert found.hint == "compare its size with the original's, and copy it again"


def test_an_architecture_that_is_not_known(program: Path) -> None:
    write(program / "model.gguf", architecture="strange")
    found = refused(program)
    assert found.code == "E0756" and "architecture strange is not supported" in found.message
    assert found.hint == "take the Hugging Face folder that it was made of"


def test_a_file_that_lacks_weights(program: Path) -> None:
    write(program / "model.gguf", without="ffn_down")
    found = refused(program)
    assert found.code == "E0756" and "'model.gguf' lacks the weights model.layers.0.mlp.down_proj" in found.message


def test_without_the_package(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(program / "model.gguf")
    monkeypatch.setitem(sys.modules, "gguf", None)
    found = refused(program)
    assert (found.code, found.hint) == ("E0756", "`pip install gguf`")


def test_a_cache_that_cannot_be_written(program: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(program / "model.gguf")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(gguf.fcntl, "flock", refuse)
    found = refused(program)
    assert found.message == f"'model.gguf' cannot be kept in {str(cache)!r}: permission denied"
    assert found.hint.startswith("the environment variable `HF_HOME`")


def test_a_cache_that_cannot_be_written_and_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "model.gguf")
    folder = gguf.dequantized_folder(tmp_path / "model.gguf")
    monkeypatch.delattr(gguf, "_write")
    monkeypatch.delattr(gguf.fcntl, "flock")
    assert gguf.dequantized_folder(tmp_path / "model.gguf") == folder


def test_a_disk_that_is_full_leaves_nothing(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "model.gguf")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gguf.os, "replace", full)
    with pytest.raises(UnusableGguf, match="cannot be kept in .*: no space left on device"):
        gguf.dequantized_folder(tmp_path / "model.gguf")
    assert [entry.name for entry in cache.iterdir()] == [".lock"]
