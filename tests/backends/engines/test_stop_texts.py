"""Texts that end answers, of however many tokens."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rlgraph.backends.engines.base import Sampling
from rlgraph.backends.engines.stop_texts import StopTexts, find_stop_texts, token_bytes
from rlgraph.backends.engines.tokenizers import ByteTokenizer, CharTokenizer, Codec, WordTokenizer, build_tokenizer
from tests.backends.engines.models import PAIRS, engine
from tests.backends.engines.test_pace import RAGGED


def merged() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer, some of whose tokens are several characters."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [("<", "/"), ("a", "b"), (">", "a"), ("b", "a"), ("ab", "ba")]
    vocabulary = {token: place for place, token in enumerate(["<end>", *letters, *map("".join, pairs)])}
    backend = Tokenizer(models.BPE(vocabulary, pairs))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>")


def places(found: StopTexts, tokens: list[int]) -> list[int]:
    """After which tokens a text is complete."""
    state, ends = torch.zeros(1, dtype=torch.long), []
    for place, token in enumerate(tokens):
        state, complete = found.advance(state, torch.tensor([token]))
        ends += [place] if complete else []
    return ends


def test_texts_are_found_however_they_are_split() -> None:
    tokenizer, draw = merged(), random.Random(0)
    pieces, texts = token_bytes(tokenizer), ("</ab>", "aba", "é", "b<end>")
    found = find_stop_texts(texts, tokenizer)
    common = [token for token, piece in enumerate(pieces) if set(piece) <= set("</ab>é".encode()) or piece == b"<end>"]
    seen = 0
    for _ in range(300):
        tokens, text, expected = draw.choices(common, k=12), b"", []
        for place, token in enumerate(tokens):
            longer = text + pieces[token]
            ends = range(len(text) + 1, len(longer) + 1)
            if any(longer[:end].endswith(each.encode()) for each in texts for end in ends):
                expected.append(place)
            text = longer
        assert places(found, tokens) == expected
        seen += len(expected)
    assert seen > 200
    assert places(found, [10_000, *tokenizer("aba")["input_ids"]]), "a token without a text changes nothing"


@pytest.mark.parametrize("spec", [CharTokenizer("ab c"), WordTokenizer("a b c"), ByteTokenizer()])
def test_what_tokens_add_to_a_text(spec: Any) -> None:
    codec = Codec(build_tokenizer(spec))
    pieces = token_bytes(codec.tokenizer)
    assert b"".join(pieces[token] for token in codec.encode_text("b c a")).strip() == b"b c a"
    assert codec.stop_texts(("<eos>",)) is None, "of a special token only the token counts"
    assert codec.stop_texts(("b c",)) is codec.stop_texts(("b c",))


def test_an_answer_ends_with_the_token_that_completes_a_text() -> None:
    model, keys = engine(), np.arange(20, dtype=np.uint64)
    made = model.generate(RAGGED, 4, Sampling(40, stop_texts=PAIRS, min_tokens=3), keys)
    late = model.generate(RAGGED, 4, Sampling(40, min_tokens=3), keys)
    ended = 0
    for answer, whole, finished in zip(
        made.sequences.scored_tokens_by_row(), late.sequences.scored_tokens_by_row(), made.finished, strict=True
    ):
        ends = [place for place in places(PAIRS, whole) if place >= 3]
        assert answer == whole[: ends[0] + 1 if ends else None]
        assert bool(finished) == bool(ends or len(whole) < 40 or whole[-1] in (1, 3))
        ended += bool(ends)
    assert ended > 5
