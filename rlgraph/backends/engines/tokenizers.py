"""Tokenizers: built in memory for models with random weights, or read from a model's folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from rlgraph.backends.engines.errors import EngineError, first_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

PAD, EOS, UNK = "<pad>", "<eos>", "<unk>"
"""The special tokens of a built tokenizer: ids 0, 1 and 2."""

Message = Mapping[str, str]
"""A chat message: `{"role": ..., "content": ...}`."""


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

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer

    @property
    def eos_id(self) -> int | None:
        """The token that ends a text."""
        return _token_id(self.tokenizer.eos_token_id)

    def end_token_ids(self, of_model: int | Sequence[int] | None) -> tuple[int, ...]:
        """Return the tokens that end a response: the tokenizer's, and those of the model's generation settings."""
        model_ids = [of_model] if isinstance(of_model, int) else of_model or []
        return tuple(sorted({*model_ids, *([] if self.eos_id is None else [self.eos_id])}))

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

    def encode_prompt(self, prompt: str | Sequence[Message]) -> list[int]:
        """Return the tokens of a prompt: a text with the special tokens the tokenizer itself adds, or messages by the
        chat template."""
        if isinstance(prompt, str):
            return self._tokens(prompt)
        if self.tokenizer.chat_template is None:
            raise EngineError("the prompt is a list of messages, but the model's tokenizer has no chat template")
        messages = [dict(message) for message in prompt]
        try:
            rendered = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        # A template is a program by whoever made the model, and can fail in any way.
        except Exception as error:
            reason = f"{type(error).__name__}: {first_line(error)[:300]}"
            raise EngineError(f"the model's chat template fails: {reason}") from error
        # The template writes its special tokens itself.
        return self._tokens(str(rendered), add_special_tokens=False)

    def prompt_lengths(self, prompts: Sequence[str | Sequence[Message]]) -> list[int]:
        """Return how many tokens each prompt has; texts are encoded many at a time."""
        if not all(isinstance(prompt, str) for prompt in prompts):
            return [len(self.encode_prompt(prompt)) for prompt in prompts]
        try:
            return list(map(len, self.tokenizer(list(prompts))["input_ids"])) if prompts else []
        except UnicodeError as error:
            raise EngineError(str(error)) from None

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
        return self._tokens(text, add_special_tokens=False)

    def _tokens(self, text: str, **options: bool) -> list[int]:
        try:
            return list(self.tokenizer(text, **options)["input_ids"])
        except (TypeError, UnicodeError):
            if any("\ud800" <= character <= "\udfff" for character in text):
                raise EngineError(f"{text!r:.60} has half of a surrogate pair, which is no character") from None
            raise

    def encode_response(self, text: str) -> list[int]:
        """Return the tokens of a whole response, its end included: what supervised training and pairs are made of."""
        end = [] if self.eos_id is None else [self.eos_id]
        return self.encode_text(text) + end

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of some tokens, without special tokens."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def save(self, folder: str | Path) -> None:
        """Write the tokenizer's files into a model folder."""
        self.tokenizer.save_pretrained(str(folder))


def _token_id(value: object) -> int | None:
    return value if isinstance(value, int) else None
