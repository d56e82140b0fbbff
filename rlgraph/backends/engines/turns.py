"""What a chat template writes between two turns of the model: after what was sampled, up to the next answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rlgraph.backends.engines.chat import Conversation
from rlgraph.backends.engines.errors import ConversationError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SAMPLED = "\ue0a7\ue0b3\ue0a7"
"""Stands for the model's answer while a template writes: characters that nobody has given a meaning."""


def text_between(chat: Conversation, asked: int) -> str:
    """Return what the template writes from the end of an answer to the beginning of the next: end of turn, the messages
    after it, and the header of the model's turn. chat: the messages before the answer and those after it; asked: how
    many are before it.

    The answer itself is never rendered: a template that drops earlier thinking, or trims, writes the same after it.
    Raises ConversationError where the template does not write one thing there, or changes the special tokens before it.
    """
    answer = {"role": "assistant", "content": _SAMPLED}
    answered = replace(chat, messages=[*chat.messages[:asked], answer, *chat.messages[asked:]])
    opened = answered.rendered(asked, asks=True)
    alone = answered.rendered(asked + 1)
    whole = answered.rendered(asks=True)
    if alone.count(_SAMPLED) != 1 or whole.count(_SAMPLED) != 1:
        raise _refused("writes the model's answer not once", alone, whole)
    head, between = whole.split(_SAMPLED)
    end = alone.split(_SAMPLED)[1]
    if not between.startswith(end):
        raise _refused("ends an answer otherwise when more follows", end, between)
    if _specials(chat.tokenizer, head) != _specials(chat.tokenizer, opened):
        raise _refused("writes what is before an answer with other special tokens when more follows", opened, head)
    return between


def without_end(ids: Sequence[int], sampled: Sequence[int]) -> list[int]:
    """Return the tokens between turns without the end of turn, where the model has sampled it."""
    return list(ids[1:] if ids and sampled and ids[0] == sampled[-1] else ids)


def special_structure(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[int]:
    """Return the special tokens among tokens, in their order: the structure of a conversation."""
    special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    special.update(tokenizer.all_special_ids)
    return [number for number in ids if number in special]


def _specials(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return special_structure(tokenizer, list(tokenizer(text, add_special_tokens=False)["input_ids"]))


def _refused(what: str, alone: str, whole: str) -> ConversationError:
    same = next((place for place, (a, b) in enumerate(zip(alone, whole, strict=False)) if a != b), 0)
    start = max(0, same - 24)
    sides = [text[start : same + 40].replace(_SAMPLED, "(answer)") for text in (alone, whole)]
    message = f"the chat template {what}: alone {sides[0]!r}, with the next turn {sides[1]!r}"
    hint = (
        'give the model a template that only adds to what it wrote, `chat=chat(template="FILE.jinja")`, or put '
        "observations behind the answer as bare text: `turns=text`"
    )
    return ConversationError(message, "E0860", hint)
