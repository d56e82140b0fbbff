"""Tokenizers built in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from rlgraph.backends.engines.base import EngineError
from rlgraph.backends.engines.tokenizers import (
    ByteTokenizer,
    CharTokenizer,
    Codec,
    TokenizerSpec,
    WordTokenizer,
    build_tokenizer,
)


@pytest.mark.parametrize(
    ("spec", "text", "ids"),
    [
        (CharTokenizer("ab \n1"), "a b\n1", [3, 5, 4, 6, 7]),
        (WordTokenizer("add 1 2"), "2 add 1", [5, 3, 4]),
        (ByteTokenizer(), "é a\n", None),
    ],
)
def test_text_round_trip(spec: TokenizerSpec, text: str, ids: list[int] | None, tmp_path: Path) -> None:
    codec = Codec(build_tokenizer(spec))
    encoded = codec.encode_text(text)
    assert ids is None or encoded == ids
    assert codec.decode(encoded) == text
    assert codec.decode([*encoded, 1, 0]) == text
    assert codec.encode_response(text) == [*encoded, 1]
    assert (codec.pad_id, codec.eos_id, codec.start_id) == (0, 1, 1)
    codec.save(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path)(text)["input_ids"] == encoded


def test_bytes_have_a_token_each() -> None:
    codec = Codec(build_tokenizer(ByteTokenizer()))
    assert len(codec.tokenizer) == 259
    assert len(codec.encode_text("é")) == 2 and 2 not in codec.encode_text("".join(map(chr, range(300))))


def test_unknown_characters() -> None:
    assert Codec(build_tokenizer(CharTokenizer("ab"))).encode_text("axb") == [3, 2, 4]


@pytest.mark.parametrize(
    "spec", [CharTokenizer("aba"), WordTokenizer("x y x"), WordTokenizer(""), WordTokenizer("<eos>")]
)
def test_bad_lists(spec: TokenizerSpec) -> None:
    with pytest.raises(EngineError):
        build_tokenizer(spec)


def test_messages_need_a_template() -> None:
    codec = Codec(build_tokenizer(CharTokenizer("abc:")))
    with pytest.raises(EngineError, match="chat template"):
        codec.encode_prompt([{"role": "user", "content": "a"}])
    codec.tokenizer.chat_template = "{% for m in messages %}{{ m.content }}:{% endfor %}"
    assert codec.encode_prompt([{"role": "user", "content": "a"}]) == codec.encode_prompt("a:")
