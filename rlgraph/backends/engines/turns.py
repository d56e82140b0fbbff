"""What a chat template writes between two turns of the model: after what was sampled, up to the next answer."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rlgraph.backends.engines.chat import Conversation, special_token_texts
from rlgraph.backends.engines.errors import ConversationError
from rlgraph.conversations import Message

_SAMPLED, _EARLIER = "\ue0a7\ue0b3\ue0a7", "\ue0a7\ue0b4\ue0a7"
"""Stand for the model's answer, and for each of its earlier ones, while a template writes: characters that nobody has
given a meaning."""
ANSWER: Message = {"role": "assistant", "content": _SAMPLED}
"""Any answer of the model's."""


def with_answer_placeholders(
    asked: Sequence[Message], replies: Sequence[Sequence[Message]], continues: bool
) -> tuple[list[Message], int]:
    """Return the messages of an episode, with a placeholder for each answer that the model sampled, and the place of
    the last one. asked: what it began with; replies: what each answer of the model's was answered with; continues:
    whether the first answer is the rest of the last message that it began with."""
    messages, last = list(asked), len(asked)
    for place, reply in enumerate(replies):
        begun = messages.pop() if continues and not place else {"role": "assistant", "content": ""}
        last = len(messages)
        sign = _SAMPLED if place == len(replies) - 1 else _EARLIER
        messages += [{**begun, "content": f"{begun['content']}{sign}"}, *reply]
    return messages, last


def text_between_answers(chat: Conversation, last: int) -> str:
    """Return what the template writes from the end of an answer to the beginning of the next: end of turn, the messages
    after it, and the header of the model's turn. chat: the messages of `with_answer_placeholders`; last: the place of
    that answer.

    No answer is ever rendered itself: a template that drops earlier thinking, or trims, writes the same after it.
    Raises ConversationError where the template does not write one thing there, or changes the special tokens before it.
    """
    alone = chat.rendered(last + 1)
    # What a message that was gone on from begins with is not the template's.
    goes_on = chat.messages[last]["content"] != _SAMPLED
    opened = alone.split(_SAMPLED)[0] if goes_on else chat.rendered(last, asks=True)
    whole = chat.rendered(asks=True)
    if alone.count(_SAMPLED) != 1 or whole.count(_SAMPLED) != 1:
        raise _refused("writes the model's answer not once", alone, whole)
    head, between = whole.split(_SAMPLED)
    end = alone.split(_SAMPLED)[1]
    if not between.startswith(end):
        raise _refused("ends an answer otherwise when more follows", end, between)
    if _specials(chat, head) != _specials(chat, opened):
        raise _refused("writes what is before an answer with other special tokens when more follows", opened, head)
    return between


def text_behind_answer(chat: Conversation) -> str:
    """Return what the template writes behind the last of the messages, which is `ANSWER`."""
    return chat.rendered().partition(_SAMPLED)[2]


def text_until_last_answer(chat: Conversation) -> str:
    """Return what the template writes in a whole conversation up to the model's last answer, without the answers."""
    return chat.rendered().split(_SAMPLED)[0].replace(_EARLIER, "")


def without_end_of_turn(ids: Sequence[int], sampled: Sequence[int]) -> list[int]:
    """Return the tokens between turns without the end of turn, where the model has sampled it."""
    return list(ids[1:] if ids and sampled and ids[0] == sampled[-1] else ids)


def different_structure_error(alone: str, whole: str) -> ConversationError:
    """Return the error for an episode that has not the special tokens which the template writes in the whole
    conversation. alone: the text of the episode; whole: that of the conversation."""
    return _refused(
        "writes a whole conversation with other special tokens than its turns",
        alone,
        whole,
        ("turn by turn", "whole"),
        "E0862",
    )


def left_out_error(part: str) -> ConversationError:
    """Return the error for a template that does not write what replies to the model. part: it in words."""
    hint = 'reply as `user`, or give the model a template that writes it: `chat=chat(template="FILE.jinja")`'
    return ConversationError(f"the chat template leaves out {part} of what replies to the model", "E0860", hint)


def _specials(chat: Conversation, text: str) -> list[str]:
    """Return the texts of the special tokens in a text, in their order: the structure of a conversation."""
    return re.findall("|".join(map(re.escape, special_token_texts(chat.tokenizer))), text)


def _refused(
    what: str, alone: str, whole: str, names: tuple[str, str] = ("alone", "with the next turn"), code: str = "E0860"
) -> ConversationError:
    same = next((place for place, (a, b) in enumerate(zip(alone, whole, strict=False)) if a != b), 0)
    start = max(0, same - 24)
    sides = [
        text[start : same + 40].replace(_SAMPLED, "(answer)").replace(_EARLIER, "(answer)") for text in (alone, whole)
    ]
    message = f"the chat template {what}: {names[0]} {sides[0]!r}, {names[1]} {sides[1]!r}"
    hint = (
        'give the model a template that only adds to what it wrote, `chat=chat(template="FILE.jinja")`, or put '
        "observations behind the answer as bare text: `turns=text`"
    )
    return ConversationError(message, code, hint)
