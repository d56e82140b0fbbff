"""What a row of data shows a model: what it is given, and what it learns to answer."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlgraph.columns import is_message

Message = Mapping[str, Any]
"""A chat message: `{"role": ..., "content": ...}`, or as ShareGPT has it, `{"from": ..., "value": ...}`."""

Content = str | Sequence[Message]
"""A text or a conversation."""

TOOLS, TEMPLATE_OPTIONS = "tools", "chat_template_kwargs"
"""The columns with the tools of a row's conversation, and with what else its chat template is given."""

TEMPLATE_NAMES = frozenset(
    (
        *("messages", "conversation", "tools", "documents", "chat_template", "add_generation_prompt"),
        *("continue_final_message", "tokenize", "tokenizer_kwargs", "padding", "truncation", "max_length"),
        *("return_tensors", "return_dict", "return_assistant_tokens_mask"),
    )
)
"""Names that an option of a chat template cannot have: what writes it takes them itself."""

_ROLES = {"human": "user", "gpt": "assistant", "bing": "assistant", "chatgpt": "assistant"}
"""Roles of ShareGPT's messages, in the words of chat templates."""
_CONVERSATIONS = frozenset({"messages", "conversations"})
"""Columns that hold conversations, also where a table has them as JSON."""
_PAIRED = {"chosen": "rejected", "rejected": "chosen"}
"""Columns whose conversations begin in common where a row has no prompt of its own."""


@dataclass(frozen=True, slots=True)
class RowFormat:
    """The columns of rows that are read as tokens."""

    answer: str
    """The column that carries loss; of a conversation, the assistant's turns."""
    prompt: str = ""
    """The column of what comes before; empty where there is none."""
    paired: str = ""
    """The column whose beginning in common with the answer is the prompt; empty where there is none."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that have to be there."""
        return tuple(name for name in (self.prompt, self.answer, self.paired) if name)


SHAPES = (
    RowFormat("messages"),
    RowFormat("conversations"),
    RowFormat("completion", "prompt"),
    RowFormat("response", "prompt"),
    RowFormat("text"),
)
"""What `encode(rows)` looks for, in this order."""


@dataclass(frozen=True, slots=True)
class Example:
    """A row as a model reads it."""

    answer: Content
    """What carries loss: a text with all its tokens, a conversation with the assistant's."""
    prompt: Content | None = None
    """What comes before; None: nothing does, and the answer is all."""
    tools: Sequence[Mapping[str, Any]] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    """What the chat template is given for this row alone."""
    last: bool = False
    """Whether only the last of the assistant's turns carries loss."""


class OddRow(ValueError):
    """A row that is no example."""


def format_of_columns(columns: Collection[str], answer: str | None = None) -> RowFormat | None:
    """Return the shape of rows with these columns; None where they have none. answer: the column of the answers, if
    the program names it."""
    if answer is None:
        return next((shape for shape in SHAPES if all(name in columns for name in shape.columns)), None)
    if answer not in columns:
        return None
    if "prompt" in columns:
        return RowFormat(answer, "prompt")
    paired = _PAIRED.get(answer, "")
    return RowFormat(answer, paired=paired if paired in columns else "")


def format_of_row(row: Mapping[str, Any], answer: str | None = None) -> RowFormat | None:
    """Return the shape of a row, by the columns in which it has a value."""
    return format_of_columns([name for name, value in row.items() if value is not None], answer)


def example_of_row(row: Mapping[str, Any], answer: str | None = None, *, last: bool = False) -> Example:
    """Return what a row shows. answer: the column of the answers, if the program names it; last: only the last turn
    carries loss. Raises OddRow."""
    shape = format_of_row(row, answer)
    if shape is None:
        what = f"no column `{answer}`" if answer else "no `messages`, no `prompt` with a `completion`, and no `text`"
        raise OddRow(f"it has {what}")
    return example_of_format(row, shape, last=last)


def example_of_format(row: Mapping[str, Any], shape: RowFormat, *, last: bool = False, whole: bool = True) -> Example:
    """Return what a row of a shape shows. whole: with the row's tools and the options of its template. Raises
    OddRow."""
    said = parse_content(row.get(shape.answer), shape.answer)
    given = parse_content(row.get(shape.prompt), shape.prompt) if shape.prompt else None
    if shape.paired:
        given, said = _common_beginning(said, parse_content(row.get(shape.paired), shape.paired))
    return make_example(
        said, given, tools_of(row) if whole else (), template_options_of(row) if whole else {}, last=last
    )


def make_example(
    answer: Content,
    prompt: Content | None = None,
    tools: Sequence[Mapping[str, Any]] = (),
    options: Mapping[str, Any] | None = None,
    *,
    last: bool = False,
) -> Example:
    """Return an example whose prompt and answer fit together: an answer that is a whole conversation may begin with
    the prompt, or with the user's message of which the prompt is the text."""
    if not isinstance(answer, str) and prompt is not None:
        if isinstance(prompt, str):
            begins = answer[0]["role"] != "assistant"
            prompt = _up_to_first_answer(answer) if begins else [{"role": "user", "content": prompt}]
            answer = answer[len(prompt) :] if begins else answer
        elif list(answer[: len(prompt)]) == list(prompt):
            answer = answer[len(prompt) :]
    return Example(answer, prompt, tools, options or {}, last)


def parse_content(value: Any, column: str) -> Content:
    """Return the value of a column as a text or as messages. Raises OddRow."""
    value = messages_or_value(value, column)
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple) and value:
        return [_message(item, column) for item in value]
    raise OddRow(f"`{column}` is no text and no list of messages: {value!r:.60}")


def conversation_text(messages: Sequence[Message], column: str) -> str:
    """Return a conversation as it stands in a text: what a lone message of the user's says; of any other each message
    behind its role, with the calls that it makes. Raises OddRow for what is no message that can be read."""
    read = [_message(item, column) for item in messages]
    if len(read) == 1 and read[0]["role"] == "user" and not read[0].get("tool_calls"):
        return str(read[0]["content"])
    return "\n\n".join(f"{message['role'].capitalize()}: {_said(message)}" for message in read)


def messages_or_value(value: Any, column: str) -> Any:
    """Return the messages that a column of conversations has as JSON, and any other value as it is. Raises OddRow."""
    if isinstance(value, str) and column in _CONVERSATIONS and value.lstrip().startswith("["):
        return _messages_of_json(value, column)
    return value


def tools_of(row: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the tools of a row, which are a list of objects or its JSON. Raises OddRow."""
    tools = row.get(TOOLS)
    if isinstance(tools, str):
        try:
            tools = json.loads(tools)
        except ValueError:
            raise OddRow(f"`{TOOLS}` is no list of tools, and no JSON of one: {tools!r:.60}") from None
    if not tools:
        return ()
    if not isinstance(tools, list | tuple) or not all(isinstance(tool, Mapping) for tool in tools):
        raise OddRow(f"`{TOOLS}` is no list of tools: {tools!r:.60}")
    return tools


def template_options_of(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what the chat template is given for a row alone."""
    options = row.get(TEMPLATE_OPTIONS)
    if not options:
        return {}
    if not isinstance(options, Mapping):
        raise OddRow(f"`{TEMPLATE_OPTIONS}` is no object: {options!r:.60}")
    taken = next((name for name in options if name in TEMPLATE_NAMES), None)
    if taken is not None:
        raise OddRow(f"`{TEMPLATE_OPTIONS}` has `{taken}`, which every template is given already")
    return options


def _message(value: Any, column: str) -> Message:
    """Return a message in the words of chat templates, without what a table fills up with null."""
    if not is_message(value):
        raise OddRow(f'`{column}` holds {value!r:.60}: a message is `{{"role": "user", "content": "..."}}`')
    if "role" not in value:
        value = {"role": value["from"], "content": value["value"]}
    role = value["role"]
    if not isinstance(role, str):
        raise OddRow(f"`{column}` has a message whose role is no text: {role!r:.60}")
    # Some data have ShareGPT's roles in messages that are otherwise those of chat templates.
    value = {**value, "role": _ROLES.get(role, role)}
    message = {name: item for name, item in value.items() if item is not None or name == "content"}
    content = message.get("content")
    if content is None and not message.get("tool_calls"):
        raise OddRow(f"`{column}` has a message of role {message['role']!r:.40} that says nothing: its content is null")
    return message if not isinstance(content, list | tuple) else {**message, "content": _text_of_parts(content, column)}


def _said(message: Message) -> str:
    """Return what a message says, and below it the calls that it makes, a line each: `search({"query": "rain"})`."""
    content, lines = message.get("content"), []
    for call in message.get("tool_calls") or ():
        made = call.get("function", call) if isinstance(call, Mapping) else {"name": str(call)}
        given = made.get("arguments", {})
        given = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        lines.append(f"{made.get('name', '')}({given})")
    return "\n".join([*([str(content)] if content else []), *lines])


def _messages_of_json(text: str, column: str) -> Sequence[Any]:
    """Return the messages that the cell of a table has as JSON. Raises OddRow."""
    try:
        messages = json.loads(text)
    except ValueError:
        messages = None
    if not isinstance(messages, list):
        raise OddRow(f"`{column}` is a text that begins as a list, and no JSON of messages: {text!r:.60}")
    return messages


def _text_of_parts(parts: Sequence[Any], column: str) -> str:
    """Return the text of a message whose content is in parts, `{"type": "text", "text": ...}`, which templates of
    models that only read write down as they stand. Raises OddRow for other parts."""
    for part in parts:
        if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, Mapping) else None
            raise OddRow(f"`{column}` has a message with a part that is no text: {kind or part!r:.60}")
    return "".join(part["text"] for part in parts)


def _up_to_first_answer(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the messages before the assistant's first one."""
    first = next((place for place, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
    return messages[:first]


def _common_beginning(answer: Content, other: Content) -> tuple[Content, Content]:
    """Return what two answers begin with in common, and the rest of the first. Raises OddRow where they are of two
    kinds."""
    if isinstance(answer, str) != isinstance(other, str):
        raise OddRow("one of `chosen` and `rejected` is a text, and the other a conversation")
    size = min(len(answer), len(other))
    shared = next((place for place in range(size) if answer[place] != other[place]), size)
    if isinstance(answer, str):
        # A word begins with its blank.
        shared -= 0 < shared < size and answer[shared - 1] == " "
    else:
        shared = min(shared, size - 1)
    return answer[:shared], answer[shared:]
