"""The configuration of a model that is a GGUF file: as transformers reads it, without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rlgraph.catalog.models.config_shape import shape_of
from rlgraph.catalog.models.gguf import UnusableGguf, gguf_config
from tests.gguf_file import write

pytest.importorskip("gguf")

PROGRAM = """algorithm filed
model actor  = causal_lm(gguf("model.gguf"))
data prompts = jsonl("prompts.jsonl", batch=8)
step:
    rollout = actor.generate(prompts, n=4, max_tokens=64)
    train actor(lr=1e-6):
        minimize mean(-actor.logprobs(rollout))
    report length = mean(rollout.length)
"""


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_the_shape_is_that_of_the_model_that_was_written(tmp_path: Path, family: str, tied: bool) -> None:
    model = write(tmp_path / "model.gguf", family, tied=tied)
    found = shape_of(gguf_config(tmp_path / "model.gguf"))
    wanted = shape_of(model.config.to_dict())
    assert found.norm_eps == pytest.approx(wanted.norm_eps)  # A file holds it as float32.
    fields = [name for name in found.__slots__ if name != "norm_eps"]
    assert {name: getattr(found, name) for name in fields} == {name: getattr(wanted, name) for name in fields}


def test_a_family_that_is_not_known_is_named(tmp_path: Path) -> None:
    write(tmp_path / "model.gguf", architecture="strange")
    assert gguf_config(tmp_path / "model.gguf")["model_type"] == "strange"


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    write(file, "llama")
    assert gguf_config(file)["model_type"] == "llama"
    write(file, "qwen2")
    assert gguf_config(file)["model_type"] == "qwen2"


def test_a_plan_is_made_without_torch(tmp_path: Path) -> None:
    write(tmp_path / "model.gguf")
    (tmp_path / "filed.rlf").write_text(PROGRAM)
    script = (
        "import sys, rlgraph\n"
        "placed = rlgraph.compile('filed.rlf', cluster='1x2:a100-80gb')\n"
        "assert placed.choice.search_result.seconds > 0\n"
        "print([name for name in ('torch', 'transformers') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"PK\3\4")
    with pytest.raises(UnusableGguf, match="is no GGUF file"):
        gguf_config(tmp_path / "model.gguf")


def test_a_file_without_an_architecture(tmp_path: Path) -> None:
    from gguf import GGUFWriter

    writer = GGUFWriter(tmp_path / "model.gguf", "")
    writer.kv_data[0].clear()
    writer.add_name("nothing else")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnusableGguf, match="does not say which architecture"):
        gguf_config(tmp_path / "model.gguf")


@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 0.99])
def test_a_file_that_is_cut_short(tmp_path: Path, share: float) -> None:
    file = tmp_path / "model.gguf"
    write(file)
    whole = file.read_bytes()
    file.write_bytes(whole[: max(5, int(len(whole) * share))])
    with pytest.raises(UnusableGguf, match="is damaged or cut short"):
        gguf_config(file)


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "model.gguf")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(UnusableGguf, match="without the package `gguf`") as caught:
        gguf_config(tmp_path / "model.gguf")
    assert caught.value.hint == "`pip install gguf`"
