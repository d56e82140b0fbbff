"""Finds texts that end an answer, of however many tokens, as its tokens come."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
"""A token that is one byte, as SentencePiece names it."""


@dataclass(frozen=True, eq=False)
class StopTexts:
    """An automaton that reads an answer token by token and tells where one of some texts is complete (Aho and Corasick,
    doi 10.1145/360825.360855). Begins in state 0."""

    table: Tensor
    """int32 [states, tokens + 1]: for each state and token the next state, to which the number of states is added where
    the token completes a text. The last column is of tokens that have no text."""

    @property
    def states(self) -> int:
        """How many states it has."""
        return self.table.shape[0]

    def on(self, device: torch.device) -> StopTexts:
        """Return it on a device."""
        return StopTexts(self.table.to(device))

    def advance(self, states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the states behind a token of each row, int64 [N], and whether it completes a text, bool [N]. Does not
        wait for the device."""
        found = self.table[states, tokens.clamp(max=self.table.shape[1] - 1)].long()
        return found % self.states, found >= self.states

    def states_of(self, tokens: Sequence[int]) -> list[int]:
        """Return the state behind each token of an answer."""
        made, state = [], torch.zeros(1, dtype=torch.long)
        for token in tokens:
            state, _ = self.advance(state, torch.tensor([token]))
            made.append(int(state))
        return made


def find_stop_texts(texts: Sequence[str], tokenizer: Any) -> StopTexts:
    """Return what finds texts in the tokens of a tokenizer: in their bytes, so that it does not matter how a model
    splits a text, or what else is in its last token."""
    delta, accepts = _automaton([text.encode(errors="surrogatepass") for text in texts])
    pieces = token_bytes(tokenizer)
    longest_first = sorted(range(len(pieces)), key=lambda token: -len(pieces[token]))
    lengths = np.array([len(pieces[token]) for token in longest_first])
    state = np.repeat(np.arange(len(delta))[:, None], len(pieces) + 1, axis=1)
    done = np.zeros(state.shape, dtype=bool)
    for place in range(int(lengths.max(initial=0))):
        count = int((lengths > place).sum())
        letters = np.array([pieces[token][place] for token in longest_first[:count]])
        state[:, :count] = delta[state[:, :count], letters]
        done[:, :count] |= accepts[state[:, :count]]
    table = np.empty(state.shape, dtype=np.int32)
    table[:, [*longest_first, len(pieces)]] = state + len(delta) * done
    return StopTexts(torch.from_numpy(table))


def _automaton(texts: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Return for each state and byte the next state, int64 [S, 256], and which states have a text at their end, bool
    [S]. State 0 is that of no beginning."""
    beginnings = sorted({text[:length] for text in texts for length in range(len(text) + 1)}, key=len)
    numbers = {beginning: number for number, beginning in enumerate(beginnings)}
    delta = np.zeros((len(beginnings), 256), dtype=np.int64)
    for number, beginning in enumerate(beginnings):
        # The longest end of what was read that begins a text: that without the first byte is known by now.
        shorter = 0
        for letter in beginning[1:]:
            shorter = delta[shorter, letter]
        delta[number] = delta[shorter] if beginning else 0
        for letter in range(256):
            if (longer := numbers.get(beginning + bytes([letter]))) is not None:
                delta[number, letter] = longer
    accepts = np.array([any(beginning.endswith(text) for text in texts) for beginning in beginnings])
    return delta, accepts


def token_bytes(tokenizer: Any) -> list[bytes]:
    """Return what each token adds to a text, in UTF-8: of special ones their name."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    count = len(tokenizer)
    named = {number: token.content for number, token in tokenizer.added_tokens_decoder.items()}
    backend = getattr(tokenizer, "backend_tokenizer", None)
    names = tokenizer.convert_ids_to_tokens(list(range(count)))
    if backend is not None and type(backend.decoder).__name__ == "ByteLevel":
        letters = {letter: byte for byte, letter in bytes_to_unicode().items()}
        split = [_bytes_of_letters(name or "", letters) for name in names]
    else:
        # Behind another token, because some decoders drop the blank that a text begins with.
        before = tokenizer.encode("a", add_special_tokens=False)
        begun = tokenizer.decode(before, clean_up_tokenization_spaces=False)
        both = tokenizer.batch_decode([[*before, each] for each in range(count)], clean_up_tokenization_spaces=False)
        split = [text[len(begun) :].encode(errors="surrogatepass") for text in both]
        single = [_BYTE.fullmatch(name or "") for name in names]
        split = [bytes([int(each[1], 16)]) if each else piece for each, piece in zip(single, split, strict=True)]
    return [named[each].encode() if each in named else piece for each, piece in enumerate(split)]


def _bytes_of_letters(name: str, letters: dict[str, int]) -> bytes:
    """Return the bytes of a token's name; what is no letter of the tokenizer's stands for itself."""
    parts = groupby(name, key=letters.__contains__)
    return b"".join(
        bytes(letters[letter] for letter in run) if known else "".join(run).encode() for known, run in parts
    )
