"""A text in pieces: each token belongs to one, and begins where a sampler would begin."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from rlgraph.backends.engines.chat import ChatOptions, TextPiece
from rlgraph.backends.engines.pieces import beginning_tokens, encode_pieces
from rlgraph.backends.engines.tokenizers import Codec, WordTokenizer, build_tokenizer
from rlgraph.conversations import Example

MERGES = [("Ċ", "Ċ"), ("a", "b"), ("Ġ", "c")]


def bpe(*, regex: bool = True, trims: bool = False, around: str = "<s> $A") -> PreTrainedTokenizerFast:
    """A tokenizer with a token for each letter, and for `\\n\\n`, `ab` and ` c`. regex: it looks at what follows a
    blank, as GPT-2's does; trims: the places of tokens are without the blanks that these begin with; around: what it
    puts around a text."""
    letters = ["<s>", "Ċ", "Ġ", *"abcx", *("".join(pair) for pair in MERGES)]
    backend = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, MERGES))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex)
    parts = [
        processors.ByteLevel(trim_offsets=trims),
        processors.TemplateProcessing(around, special_tokens=[("<s>", 0)]),
    ]
    backend.post_processor = processors.Sequence(parts)
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>")


def tokens(tokenizer: PreTrainedTokenizerFast, *pieces: str, begins: bool = False) -> list[list[str]]:
    """The tokens of each piece; every other one carries loss."""
    made = [TextPiece(text, place % 2 == 1) for place, text in enumerate(pieces)]
    ids, learned = encode_pieces(tokenizer, made, begin=beginning_tokens(tokenizer) if begins else ())
    names = tokenizer.convert_ids_to_tokens(ids)
    split: list[list[str]] = [[]]
    for place, name in enumerate(names):
        if place and learned[place] != learned[place - 1]:
            split.append([])
        split[-1].append(name)
    return split


def test_pieces_are_split_together() -> None:
    assert tokens(bpe(), "xab", " cx", "\n", "ab") == [["x", "ab"], ["Ġc", "x"], ["Ċ"], ["ab"]]
    assert tokens(bpe(), "x", "ab", begins=True) == [["<s>", "x"], ["ab"]]


def test_a_text_begins_once() -> None:
    """Where it is written with the tokens that begin a text, and where a tokenizer would end it, too, as those of
    embeddings do: behind an end nothing is to be asked."""
    for around in ("<s> $A", "<s> $A <s>"):
        made = Codec(bpe(around=around))
        ids = made.encode_prompt("xab")
        assert made.tokenizer.convert_ids_to_tokens(ids) == ["<s>", "x", "ab"]
        assert made.encode_prompt("<s>xab") == ids
        assert made.prompt_lengths(["xab", "<s>xab", "<s>", ""]) == [3, 3, 1, 1]
        answer = made.encode_example(Example("x", ""))
        assert answer == made.encode_example(Example("x", "<s>")) == ([0, 6], [False, True])
    assert Codec(bpe(around="$A <s>")).encode_prompt("x") == [6]
    literal = Codec(bpe(), ChatOptions(special_tokens=False))
    with_text = literal.encode_prompt("<s>x")
    assert with_text[:1] == [0] and 0 not in with_text[1:] and literal.prompt_lengths(["<s>x"]) == [len(with_text)]


def test_no_token_reaches_from_one_piece_into_the_next() -> None:
    assert tokens(bpe(regex=False), "xabab") == [["x", "ab", "ab"]]
    assert tokens(bpe(regex=False), "xa", "bab", begins=True) == [["<s>", "x", "a"], ["b", "ab"]]
    assert tokens(bpe(regex=False), "xa", "ba", "b") == [["x", "a"], ["b", "a"], ["b"]]


@pytest.mark.parametrize("trims", [False, True])
def test_a_blank_before_a_piece_stays_with_its_own(trims: bool) -> None:
    assert tokens(bpe(trims=trims), "x c") == [["x", "Ġc"]]
    assert tokens(bpe(trims=trims), "x ", "c") == [["x", "Ġ"], ["c"]]


def test_a_tokenizer_that_looks_ahead_sees_the_end_of_a_piece() -> None:
    """Two line breaks are one token where a prompt ends, and two before what follows."""
    assert tokens(bpe(), "x\n\na") == [["x", "Ċ", "Ċ", "a"]]
    assert tokens(bpe(), "x\n\n", "a") == [["x", "ĊĊ"], ["a"]]


def test_a_tokenizer_that_drops_blanks() -> None:
    assert tokens(build_tokenizer(WordTokenizer("add 1 2")), "add 1 ", "2") == [["add", "1"], ["2"]]


def test_a_text_has_the_blanks_of_its_tokens() -> None:
    """Whatever the files of a tokenizer say: what a reward reads is what was sampled, and where a stop text is sought."""
    made = Codec(build_tokenizer(WordTokenizer("it 's . n't")))
    made.tokenizer.clean_up_tokenization_spaces = True
    ids = made.encode_text("it 's . n't")
    assert made.decode(ids) == made.decode_with_special(ids) == "it 's . n't"
