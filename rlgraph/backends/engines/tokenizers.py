"""Tokenizers: built in memory for models with random weights, or read from a model's folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from rlgraph.backends.engines.chat import (
    ChatOptions,
    SpecialTokenPlaceholders,
    TextPiece,
    check_options,
    make_conversation,
    placeholders_for,
)
from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.engines.left_out import left_out_parts
from rlgraph.backends.engines.pieces import beginning_tokens, encode_pieces, refuse_surrogates, refuse_unknown_tokens
from rlgraph.backends.engines.stop_texts import StopTexts, find_stop_texts
from rlgraph.backends.engines.turns import (
    ANSWER,
    different_structure_error,
    left_out_error,
    text_behind_answer,
    text_between_answers,
    text_until_last_answer,
    with_answer_placeholders,
)
from rlgraph.columns import utf8_bytes_bound
from rlgraph.conversations import Content, Example, Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

PAD, EOS, UNK = "<pad>", "<eos>", "<unk>"
"""The special tokens of a built tokenizer: ids 0, 1 and 2."""

_AS_WRITTEN: dict[str, Any] = {"clean_up_tokenization_spaces": False}
"""Some tokenizers are told to take blanks out of the text of their tokens, before a full stop for example."""
MOST_ENDS = 16
"""More special tokens than a tokenizer puts around a text."""


@dataclass(frozen=True)
class CharTokenizer:
    """A tokenizer with one token for each character of `alphabet`, from id 3 on."""

    alphabet: str


@dataclass(frozen=True)
class WordTokenizer:
    """A tokenizer with one token for each word of a text separated by blanks, from id 3 on."""

    words: str


@dataclass(frozen=True)
class ByteTokenizer:
    """A tokenizer with one token for each byte of the text in UTF-8, from id 3 on."""


TokenizerSpec = CharTokenizer | WordTokenizer | ByteTokenizer


def build_tokenizer(spec: TokenizerSpec) -> PreTrainedTokenizerFast:
    """Return a tokenizer with pad, eos and unk tokens that `save_pretrained` can write."""
    from transformers import PreTrainedTokenizerFast

    special = [PAD, EOS, UNK]
    match spec:
        case CharTokenizer(alphabet):
            backend = Tokenizer(models.WordLevel(_vocabulary(special, list(alphabet), "character"), unk_token=UNK))
            backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
            backend.decoder = decoders.Fuse()
        case WordTokenizer(words):
            backend = Tokenizer(models.WordLevel(_vocabulary(special, words.split(), "word"), unk_token=UNK))
            backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        case ByteTokenizer():
            letters = sorted(pre_tokenizers.ByteLevel.alphabet())
            backend = Tokenizer(models.BPE(_vocabulary(special, letters, "byte"), [], unk_token=UNK))
            backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
            backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNK,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )


def _vocabulary(special: list[str], tokens: list[str], kind: str) -> dict[str, int]:
    if not tokens:
        raise EngineError(f"a tokenizer needs at least one {kind}")
    duplicates = [token for index, token in enumerate(tokens) if token in special or token in tokens[:index]]
    if duplicates:
        raise EngineError(f"the {kind} {duplicates[0]!r} is in the tokenizer's list twice")
    return {token: index for index, token in enumerate([*special, *tokens])}


class Codec:
    """Turns text into token ids and back, with one model's tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, chat: ChatOptions | None = None) -> None:
        self.tokenizer = tokenizer
        self._stop_texts: dict[tuple[str, ...], StopTexts | None] = {}
        self._written: set[str] = set()
        """The roles of replies that the chat template is known to write."""
        self.chat = chat or ChatOptions()
        """How conversations are written."""
        self.rows: int | None = None
        """How many tokens the model has rows for, where the tokenizer makes others."""
        if self.chat.template is not None:
            tokenizer.chat_template = self.chat.template
        check_options(tokenizer, self.chat)

    @property
    def eos_id(self) -> int | None:
        """The token that ends a text."""
        return _token_id(self.tokenizer.eos_token_id)

    def text_end_ids(self, of_model: int | Sequence[int] | None) -> tuple[int, ...]:
        """Return the tokens that end a text: the tokenizer's, and those of the model's generation settings."""
        model_ids = [of_model] if isinstance(of_model, int) else of_model or []
        return tuple(sorted({*model_ids, *([] if self.eos_id is None else [self.eos_id])}))

    def end_token_ids(self, of_model: int | Sequence[int] | None) -> tuple[int, ...]:
        """Return the tokens that end a response: those that end a text, and the one with which the chat template ends
        an answer, which a base model does not name."""
        ends = special_tokens_in(self.tokenizer, self.end_of_answer)[:1]
        return tuple(sorted({*self.text_end_ids(of_model), *ends}))

    @property
    def pad_id(self) -> int:
        """The token that fills up rows: the tokenizer's own, or any, since padding is never looked at."""
        pad = _token_id(self.tokenizer.pad_token_id)
        return pad if pad is not None else (self.eos_id or 0)

    @property
    def start_id(self) -> int | None:
        """The token that replaces an empty prompt: the one that begins a text, or else the one that ends it."""
        bos = _token_id(self.tokenizer.bos_token_id)
        return bos if bos is not None else self.eos_id

    def encode_prompt(
        self,
        prompt: Content,
        tools: Sequence[Mapping[str, Any]] = (),
        options: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return the tokens of a prompt: a text behind the special tokens that the tokenizer begins texts with, or
        messages by the chat template. tools, options: what the template is given for this row alone."""
        return self._encode(self._prompt_pieces(prompt, tools, options), begins=isinstance(prompt, str))[0]

    def prompt_text(
        self, prompt: Content, tools: Sequence[Mapping[str, Any]], options: Mapping[str, Any] | None = None
    ) -> str:
        """Return a prompt as it is written before it is split into tokens."""
        return "".join(piece.text for piece in self._prompt_pieces(prompt, tools, options))

    def left_out_parts(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        options: Mapping[str, Any] | None = None,
        *,
        asks: bool = False,
    ) -> list[str]:
        """Return what of a conversation the chat template does not write, in words. asks: as it is written to be
        answered."""
        if self.tokenizer.chat_template is None:
            return []
        chat, before = make_conversation(self.tokenizer, self.chat, messages, tools, options)
        return left_out_parts(chat, before, asks=asks)

    def encode_between_answers(
        self,
        asked: Sequence[Message],
        replies: Sequence[Sequence[Message]],
        tools: Sequence[Mapping[str, Any]] = (),
        options: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return the tokens that the chat template puts behind an answer of the model's: its end, the messages that
        reply to it, and the header of the next turn. asked: the messages that the episode began with; replies: those
        that replied to each answer so far, the last ones to this.

        Raises ConversationError where the template writes no such piece.
        """
        messages, last = with_answer_placeholders(asked, replies, self.chat.goes_on_from(asked))
        hidden = self._hidden(messages)
        chat, before = make_conversation(self.tokenizer, self.chat, hidden.hide(messages), tools, options)
        text = text_between_answers(chat, last + before)
        if (roles := {message["role"] for message in replies[-1]}) - self._written:
            if parts := left_out_parts(chat, last + before + 1, asks=True, tools=False):
                raise left_out_error(parts[0])
            self._written |= roles
        return self._encode(hidden.split_pieces([TextPiece(text)]))[0]

    @cached_property
    def end_of_answer(self) -> list[int]:
        """The tokens that the chat template puts behind an answer that ends a conversation; none where there is no
        template, or none that writes a plain question and its answer."""
        asked = [{"role": "user", "content": "?"}, ANSWER]
        try:
            text = text_behind_answer(make_conversation(self.tokenizer, self.chat, asked)[0])
            return self._encode([TextPiece(text)])[0]
        except EngineError:
            return []

    def check_episode(
        self,
        written: Sequence[int],
        asked: Sequence[Message],
        replies: Sequence[Sequence[Message]],
        tools: Sequence[Mapping[str, Any]] = (),
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Raise ConversationError where an episode has not the special tokens that the template writes in its whole
        conversation. written: its tokens without the answers; asked, replies: as in `encode_between_answers`."""
        messages, _ = with_answer_placeholders(asked, [*replies, ()], self.chat.goes_on_from(asked))
        hidden = self._hidden(messages)
        chat, _ = make_conversation(self.tokenizer, self.chat, hidden.hide(messages), tools, options)
        text = text_until_last_answer(chat)
        whole = self._encode(hidden.split_pieces([TextPiece(text)]))[0]
        if special_tokens_in(self.tokenizer, whole) != special_tokens_in(self.tokenizer, written):
            raise different_structure_error(str(self.tokenizer.decode(list(written))), hidden.restore(text))

    def encode_example(self, example: Example) -> tuple[list[int], list[bool]]:
        """Return the tokens of a row, and which of them carry loss: those of a text that answers and of its end, or
        those that the assistant writes in a conversation.

        Raises ConversationError where the chat template does not say which those are.
        """
        return self._encode_example(example, self._example_pieces(example))

    def _encode_example(self, example: Example, pieces: Sequence[TextPiece]) -> tuple[list[int], list[bool]]:
        ids, learned = self._encode(pieces, begins=not _is_messages(example))
        if not isinstance(example.answer, str):
            return ids, learned
        if self.eos_id is not None and not (ids and learned[-1] and ids[-1] == self.eos_id):
            ids, learned = [*ids, self.eos_id], [*learned, True]
        if learned[0] and example.prompt is None:
            learned[0] = False  # Nothing comes before it from which it could be told.
        elif learned[0] and self.start_id is not None:
            ids, learned = [self.start_id, *ids], [False, *learned]  # An empty prompt is sampled from so.
        return ids, learned

    def prompt_length(
        self, prompt: Content, tools: Sequence[Mapping[str, Any]], options: Mapping[str, Any], most: int
    ) -> int:
        """Return how many tokens a prompt has; 0 where its text is so short that it has at most `most`."""
        pieces = self._prompt_pieces(prompt, tools, options)
        return 0 if self._is_short(pieces, most) else len(self._encode(pieces, begins=isinstance(prompt, str))[0])

    def example_length(self, example: Example, most: int) -> int:
        """Return how many tokens a row has; 0 where its text is so short that it has at most `most`."""
        pieces = self._example_pieces(example)
        return 0 if self._is_short(pieces, most) else len(self._encode_example(example, pieces)[0])

    def _is_short(self, pieces: Sequence[TextPiece], most: int) -> bool:
        """Return whether pieces have too few bytes for more tokens, with those that begin and end a text."""
        size = sum(utf8_bytes_bound(piece.text) for piece in pieces)
        return size * self.max_tokens_per_byte + MOST_ENDS <= most

    def _prompt_pieces(
        self, prompt: Content, tools: Sequence[Mapping[str, Any]], options: Mapping[str, Any] | None
    ) -> list[TextPiece]:
        if isinstance(prompt, str):
            return [TextPiece(prompt, literal=self.chat.special_tokens is False)]
        if not prompt:
            raise EngineError("it is a list of no messages")
        hidden = self._hidden(prompt)
        chat, _ = make_conversation(self.tokenizer, self.chat, hidden.hide(prompt), tools, options)
        # The template writes its special tokens itself.
        text = chat.rendered(asks=True, continues=self.chat.goes_on_from(prompt))
        return hidden.split_pieces([TextPiece(text)])

    def _example_pieces(self, example: Example) -> list[TextPiece]:
        prompt, answer = example.prompt, example.answer
        if isinstance(answer, str):
            given = self._prompt_pieces(prompt, example.tools, example.options) if prompt else []
            return [*given, TextPiece(answer, learned=True)]
        assert not isinstance(prompt, str)
        messages = [*(prompt or ()), *answer]
        hidden = self._hidden(messages)
        chat, before = make_conversation(
            self.tokenizer, self.chat, hidden.hide(messages), example.tools, example.options
        )
        answers = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
        first = max(answers) if example.last and answers else len(prompt or ())
        text, turns = chat.text_with_answer_spans(first + before if first else 0)
        return hidden.split_pieces(_pieces(text, turns))

    def _hidden(self, messages: Sequence[Message]) -> SpecialTokenPlaceholders:
        return SpecialTokenPlaceholders() if self.chat.special_tokens else placeholders_for(self.tokenizer, messages)

    def _encode(self, pieces: Sequence[TextPiece], *, begins: bool = False) -> tuple[list[int], list[bool]]:
        try:
            ids, learned = encode_pieces(self.tokenizer, pieces, begin=self._begin if begins else ())
            refuse_unknown_tokens(self.tokenizer, ids, self.rows)
            return ids, learned
        except (TypeError, UnicodeError):
            for piece in pieces:
                refuse_surrogates(piece.text)
            raise

    @cached_property
    def _begin(self) -> list[int]:
        return beginning_tokens(self.tokenizer)

    def prompt_lengths(self, prompts: Sequence[Content]) -> list[int]:
        """Return how many tokens each prompt has; texts are encoded many at a time."""
        if not prompts or not all(isinstance(prompt, str) for prompt in prompts):
            return [len(self.encode_prompt(prompt)) for prompt in prompts]
        literal = {"split_special_tokens": True} if self.chat.special_tokens is False else {}
        try:
            texts: Any = self.tokenizer(list(prompts), add_special_tokens=False, **literal)["input_ids"]
        except UnicodeError as error:
            raise EngineError(str(error)) from None
        size = len(self._begin)
        return [len(ids) + size * (ids[:size] != self._begin) for ids in texts]

    @property
    def max_tokens_per_byte(self) -> int:
        """The most tokens that a text has for each of its bytes in UTF-8, but for the special ones: the tokenizer may
        first have written it in another form of Unicode, which has up to 3 bytes for one (NFC) or 11 (NFKD)."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None:
            return 11
        kind = type(backend.normalizer).__name__
        return {"NoneType": 1, "NFC": 3}.get(kind, 11)

    def encode_text(self, text: str) -> list[int]:
        """Return the tokens of a text and nothing else: what a user or an environment adds to a row."""
        try:
            ids = list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
            refuse_unknown_tokens(self.tokenizer, ids, self.rows)
            return ids
        except (TypeError, UnicodeError):
            refuse_surrogates(text)
            raise

    def stop_texts(self, texts: tuple[str, ...]) -> StopTexts | None:
        """Return what finds these texts in answers; None where all are special tokens, of which only the token
        counts."""
        if texts not in self._stop_texts:
            special = {token.content for token in self.tokenizer.added_tokens_decoder.values() if token.special}
            only = special.issuperset(texts)
            self._stop_texts[texts] = None if only else find_stop_texts(texts, self.tokenizer)
        return self._stop_texts[texts]

    def encode_response(self, text: str) -> list[int]:
        """Return the tokens of a whole response, its end included: what supervised training and pairs are made of."""
        end = [] if self.eos_id is None else [self.eos_id]
        return self.encode_text(text) + end

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of some tokens, without special tokens."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True, **_AS_WRITTEN))

    def decode_with_special(self, ids: Sequence[int]) -> str:
        """Return the text of some tokens, with special tokens but for the one that ends it."""
        kept = ids[:-1] if special_tokens_in(self.tokenizer, ids[-1:]) else ids
        return str(self.tokenizer.decode(list(kept), skip_special_tokens=False, **_AS_WRITTEN))

    def save(self, folder: str | Path) -> None:
        """Write the tokenizer's files into a model folder."""
        self.tokenizer.save_pretrained(str(folder))


def special_tokens_in(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[int]:
    """Return the special tokens among tokens, in their order: the structure of a conversation."""
    special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    special.update(tokenizer.all_special_ids)
    return [number for number in ids if number in special]


def _is_messages(example: Example) -> bool:
    """Return whether a chat template writes the beginning of an example, with the tokens that begin a text."""
    return not isinstance(example.answer if example.prompt is None else example.prompt, str)


def _pieces(text: str, turns: Sequence[tuple[int, int]]) -> list[TextPiece]:
    """Return a text in pieces, of which the assistant's turns carry loss. turns: where each begins and ends."""
    pieces, done = [], 0
    for start, end in turns:
        pieces += [TextPiece(text[done:start]), TextPiece(text[start:end], learned=True)]
        done = end
    return [piece for piece in [*pieces, TextPiece(text[done:])] if piece.text]


def _token_id(value: object) -> int | None:
    return value if isinstance(value, int) else None
