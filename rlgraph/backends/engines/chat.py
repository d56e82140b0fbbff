"""Conversations as text: what a chat template writes, and which parts of that are the assistant's."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from rlgraph.backends.engines.call_forms import message_forms
from rlgraph.backends.engines.errors import ConversationError, EngineError, first_line
from rlgraph.columns import WORDS, value_kind
from rlgraph.conversations import Message
from rlgraph.errors import count_phrase, did_you_mean, quoted_list

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

T = TypeVar("T")
_MARKS = re.compile(r"\{%-?\s*generation\s*-?%\}")
_TAGS = re.compile(r"\{%-?\s*(end)?generation\s*-?%\}")
_KNOWN_ROLES = {"system", "developer", "user", "assistant", "tool"}
_GIVEN = {"messages", "tools", "documents", "add_generation_prompt", "raise_exception", "strftime_now"}
"""What every template is given."""
_PRIVATE = (0xF0000, 0x100000)
"""Where the planes of Unicode begin whose characters nobody has given a meaning."""


@dataclass(frozen=True)
class ChatOptions:
    """How a model's conversations are written."""

    template: str | None = None
    """A Jinja template in place of the tokenizer's own."""
    system: str | None = None
    """What the system says to conversations in which it says nothing."""
    special_tokens: bool | None = None
    """Whether the text of a special token in a prompt is that token; None: only in a prompt that is a plain text."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What the template is given besides: `enable_thinking`."""
    file: str = ""
    """The path of the template; empty where it is the tokenizer's own."""
    continues: bool = False
    """Whether the model goes on from a last message of the assistant's, in place of beginning another one."""

    def goes_on_from(self, messages: Sequence[Message]) -> bool:
        """Return whether what the model is to write is the rest of the last of these messages."""
        return self.continues and bool(messages) and messages[-1]["role"] == "assistant"


def check_options(tokenizer: PreTrainedTokenizerBase, chat: ChatOptions) -> None:
    """Raise ConversationError for a template that is none, or that does not know an option that it is given."""
    if not chat.options and chat.template is None or not tokenizer.chat_template:
        return
    from jinja2 import Environment, TemplateSyntaxError, meta

    templates = tokenizer.chat_template
    texts = list(templates.values()) if isinstance(templates, dict) else [templates]
    names: set[str] = set()
    for text in texts:
        try:
            parsed = Environment(extensions=["jinja2.ext.loopcontrols"]).parse(_TAGS.sub("", text))
        except TemplateSyntaxError as error:
            message = f"the chat template is none: line {error.lineno}: {error.message}"
            raise ConversationError(message, "E0773") from None
        names |= meta.find_undeclared_variables(parsed)
    unknown = next((name for name in chat.options if name not in names), None)
    if unknown is not None:
        others = sorted(names - _GIVEN - set(tokenizer.special_tokens_map))
        hint = did_you_mean(unknown, others) or (f"it knows {quoted_list(others, 'and')}" if others else "leave it out")
        raise ConversationError(f"the chat template has no option `{unknown}`", "E0773", hint)


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A part of a row's text."""

    text: str
    learned: bool = False
    """Whether its tokens carry loss."""
    literal: bool = False
    """Whether the texts of special tokens in it are only texts."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages that a chat template writes, with all that it is given."""

    tokenizer: PreTrainedTokenizerBase
    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]]
    options: Mapping[str, Any]

    def rendered(self, count: int | None = None, *, asks: bool = False, continues: bool = False) -> str:
        """Return the text of the first messages. asks: with the beginning of the answer that the model is to write;
        continues: without the end of the last one."""

        def write(messages: list[dict[str, Any]], tools: list[Any] | None) -> str:
            return str(
                self.tokenizer.apply_chat_template(
                    messages,
                    tools=tools,
                    add_generation_prompt=asks and not continues,
                    continue_final_message=continues,
                    tokenize=False,
                    **self.options,
                )
            )

        return self._written(self.messages[:count], write)

    def _written(self, messages: Sequence[Message], write: Callable[[list[dict[str, Any]], list[Any] | None], T]) -> T:
        """Return what `write` makes of messages and tools, in the first form of calls that the template takes. Raises
        EngineError where it takes none."""
        tools: list[Any] | None = [dict(tool) for tool in self.tools] or None
        failed: Exception | None = None
        for form in message_forms(messages):
            try:
                return write(form, tools)
            # A template is a program by whoever made the model, and can fail in any way.
            except Exception as error:
                failed = failed or error
        assert failed is not None
        raise _template_failed(failed, messages) from failed

    def text_with_answer_spans(self, first: int) -> tuple[str, list[tuple[int, int]]]:
        """Return the whole text, and where in it the assistant's messages are, those from number `first` on: by the
        template's own marks where it has them, and else by the difference of renderings. Those of weight 0, as OpenAI's
        files have it, are left out."""
        places = [place for place, message in enumerate(self.messages) if message["role"] == "assistant"]
        silent = {place for place in places if self.messages[place].get("weight") == 0}
        places, before = [place for place in places if place >= first and place not in silent], len(places)
        if not places:
            raise _nothing_to_learn(self.messages, first)
        template = self.tokenizer.get_chat_template(tools=[dict(tool) for tool in self.tools] or None)
        if _MARKS.search(template):
            text, marked = self._marked(template)
            if silent and len(marked) == before:
                turns = (place for place, message in enumerate(self.messages) if message["role"] == "assistant")
                marked = [span for span, place in zip(marked, turns, strict=True) if place not in silent]
            elif silent:
                raise ConversationError("the chat template marks parts of turns, and some have weight 0", "E0772")
            begin = self._end(text, first, asks=True) if first else 0
            spans = [(max(start, begin), end) for start, end in marked if end > begin]
            if not spans:
                raise ConversationError("the chat template marks nothing in it as the assistant's", "E0772")
            return text, spans
        text = self.rendered()
        return text, [(self._end(text, place, asks=True), self._end(text, place + 1)) for place in places]

    def _end(self, text: str, count: int, *, asks: bool = False) -> int:
        """Return where in the whole text the first messages end. Raises ConversationError where the template writes
        them otherwise when more follow."""
        if not count:
            hint = "leave such rows out of the data, or their first message"
            raise ConversationError("it begins with the assistant, whom nobody has asked", "E0772", hint)
        alone = self.rendered(count, asks=asks)
        if not text.startswith(alone):
            later = any(message["role"] == "assistant" for message in self.messages[count + asks :])
            raise _rewritten(alone, text, count, later)
        return len(alone)

    def _marked(self, template: str) -> tuple[str, list[tuple[int, int]]]:
        """Return the whole text, and the parts of it that the template marks as generated."""
        from transformers.utils.chat_template_utils import render_jinja_template

        given: dict[str, Any] = {**self.tokenizer.special_tokens_map, **self.options}
        render: Any = render_jinja_template  # Its annotation says that it returns a text.
        texts, marked = self._written(
            self.messages,
            lambda messages, tools: render(
                [messages], tools=tools, chat_template=template, return_assistant_tokens_mask=True, **given
            ),
        )
        return texts[0], [(int(start), int(end)) for start, end in marked[0] if end > start]


def _nothing_to_learn(messages: Sequence[Message], first: int) -> ConversationError:
    """Return the error for a conversation without a message of the assistant's from number `first` on."""
    odd = next((role for message in messages[first:] if (role := message["role"]) not in _KNOWN_ROLES), None)
    hint = "leave such rows out of the data"
    if odd is not None and odd.lower() in _KNOWN_ROLES:
        hint = f"roles are written in small letters: `{odd.lower()}`, not {odd!r}"
    elif odd is not None:
        hint = f"what is learned has the role `assistant`, and here is one called {odd!r:.40}: write `assistant` for it"
    return ConversationError("it has no message of the assistant's to learn from", "E0772", hint)


def make_conversation(
    tokenizer: PreTrainedTokenizerBase,
    chat: ChatOptions,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] = (),
    options: Mapping[str, Any] | None = None,
) -> tuple[Conversation, int]:
    """Return the conversation that a template is to write, and how many messages were put before the given ones: the
    system's, where it says nothing."""
    if tokenizer.chat_template is None:
        raise ConversationError(
            "it is a list of messages, but the model's tokenizer has no chat template",
            "E0731",
            'give it one: `chat=chat(template="FILE.jinja")`, as an option of the model',
        )
    before = 0
    if chat.system is not None and messages[0].get("role") != "system":
        messages, before = [{"role": "system", "content": chat.system}, *messages], 1
    return Conversation(tokenizer, messages, tools, {**chat.options, **(options or {})}), before


@dataclass(frozen=True, slots=True)
class SpecialTokenPlaceholders:
    """Texts of special tokens, in whose place stand characters without a meaning while a template writes."""

    names: tuple[str, ...] = ()
    base: int = 0

    def hide(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages; in those that are not the assistant's no text is that of a special token."""
        return [message if message["role"] == "assistant" else self._replaced(message) for message in messages]

    def _replaced(self, value: Any) -> Any:
        if isinstance(value, str):
            for number, name in enumerate(self.names):
                value = value.replace(name, chr(self.base + number))
            return value
        if isinstance(value, Mapping):
            return {name: item if name == "role" else self._replaced(item) for name, item in value.items()}
        return [self._replaced(item) for item in value] if isinstance(value, list | tuple) else value

    def restore(self, text: str) -> str:
        """Return a text with the texts of special tokens in their places."""
        for number, name in enumerate(self.names):
            text = text.replace(chr(self.base + number), name)
        return text

    def split_pieces(self, pieces: Sequence[TextPiece]) -> list[TextPiece]:
        """Return pieces in which each that has a hidden text is literal: it reaches from one special token of the
        template's to the next."""
        if not self.names:
            return list(pieces)
        hidden = re.compile(f"[{chr(self.base)}-{chr(self.base + len(self.names) - 1)}]")
        special = re.compile(f"({'|'.join(map(re.escape, self.names))})")
        parted: list[TextPiece] = []
        for piece in pieces:
            plain = ""
            for part in special.split(piece.text):
                if not hidden.search(part):
                    plain += part
                    continue
                parted += [TextPiece(plain, piece.learned), TextPiece(self.restore(part), piece.learned, True)]
                plain = ""
            parted.append(TextPiece(plain, piece.learned))
        return [piece for piece in parted if piece.text]


def placeholders_for(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> SpecialTokenPlaceholders:
    """Return the texts of special tokens that stand in what others than the assistant say."""
    texts = "\n".join(_texts([message for message in messages if message["role"] != "assistant"]))
    names = special_token_texts(tokenizer)
    if not any(name in texts for name in names):
        return SpecialTokenPlaceholders()
    free = (start for start in _PRIVATE if not any(start <= ord(sign) < start + len(names) for sign in texts))
    base = next(free, None)
    if base is None:
        raise EngineError("its text has characters of both of Unicode's private planes")
    return SpecialTokenPlaceholders(names, base)


def special_token_texts(tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
    """Return the texts of a tokenizer's special tokens, the longest first."""
    added = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    return tuple(sorted({*added, *map(str, tokenizer.all_special_tokens)}, key=lambda name: (-len(name), name)))


def _texts(value: Any) -> list[str]:
    """Return all texts in a value."""
    if isinstance(value, str):
        return [value]
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return [text for item in items for text in _texts(item)]


def _template_failed(error: Exception, messages: Sequence[Message]) -> EngineError:
    reason = f"{type(error).__name__}: {first_line(error)[:300]}"
    silent = next((message["role"] for message in messages if message.get("content") is None), None)
    hint = (
        f'a message of role {silent!r:.40} has no text, and some templates need one: `"content": ""`' if silent else ""
    )
    odd = next((message for message in messages if not isinstance(message.get("content"), str | None)), None)
    if not hint and odd is not None:
        kind = WORDS[value_kind(odd["content"])]
        hint = f"the content of a message of role {odd['role']!r:.40} is {kind}: most templates take texts"
    return EngineError(f"the model's chat template fails: {reason}", hint)


def _rewritten(alone: str, whole: str, count: int, later: bool) -> ConversationError:
    """Return the error for a template that writes the first messages otherwise when more follow. later: there are
    turns of the assistant's after the one that is looked for."""
    same = next((place for place, (a, b) in enumerate(zip(alone, whole, strict=False)) if a != b), len(whole))
    start = max(0, same - 24)
    sides = [f"{'...' if start else ''}{text[start : same + 40]}" for text in (alone, whole)]
    message = (
        f"the chat template writes its first {count_phrase(count, 'message')} otherwise when more follow: alone "
        f"{sides[0]!r}, in the whole {sides[1]!r}"
    )
    hint = "the model would be asked in other words than it learns to answer: change the template or its options"
    if later:
        hint = (
            "learn from the last turn alone, `encode(rows, turns=last)`, or take a template that marks what the "
            'assistant says with `{% generation %}`: `causal_lm(..., chat=chat(template="FILE.jinja"))`'
        )
    return ConversationError(message, "E0770", hint)
