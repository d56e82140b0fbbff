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

_ROLES = {
    **{"human": "user", "gpt": "assistant", "bing": "assistant", "chatgpt": "assistant"},
    **{"function_call": "assistant", "observation": "tool"},
}
"""Roles of ShareGPT's messages, in the words of chat templates."""
_CALLS = "function_call"
"""The role of ShareGPT's messages that are the JSON of a call, or of several."""
_CONVERSATIONS = ("messages", "conversations")
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
    """The column whose beginning in common with the answer is the prompt, where that has none of its own; empty where
    there is none."""
    asked: bool = False
    """Whether the prompt is made of `ASKED`, and the column of the prompt is the first of these."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that have to be there."""
        return tuple(name for name in (self.prompt, self.answer, self.paired) if name)


ASKED = ("instruction", "input", "system", "history")
"""The columns that Alpaca's rows, and LLaMA-Factory's, have of what comes before an answer: what is to be done, with
what, what the system says, and questions and answers before that."""
SHAPES = (
    RowFormat("messages"),
    RowFormat("conversations"),
    RowFormat("completion", "prompt"),
    RowFormat("response", "prompt"),
    RowFormat("text"),
    RowFormat("output", ASKED[0], asked=True),
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
    if ASKED[0] in columns:
        return RowFormat(answer, ASKED[0], asked=True)
    paired = _PAIRED.get(answer, "")
    if paired not in columns:
        return RowFormat(answer)
    return RowFormat(answer, next((name for name in _CONVERSATIONS if name in columns), ""), paired)


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
    if shape.asked:
        before, given = _asked(row)
        said = [{"role": "assistant", "content": said}] if isinstance(said, str) else said
        # Of single answers those of the history are learned, too, as in any conversation.
        whole_chat = before and shape.answer not in _PAIRED
        said, given = ([*before, *given, *said], None) if whole_chat else (said, [*before, *given])
    if shape.paired and (given is None or isinstance(given, str) or given[-1]["role"] == "assistant"):
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
    if is_message(value):
        value = [value]
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
    """Return the tools of a row, which are a list of objects or its JSON; an empty text has none. Raises OddRow."""
    tools = row.get(TOOLS)
    if isinstance(tools, str) and tools.strip():
        try:
            tools = json.loads(tools)
        except ValueError:
            raise OddRow(f"`{TOOLS}` is no list of tools, and no JSON of one: {tools!r:.60}") from None
    if not tools or isinstance(tools, str):
        return ()
    if not isinstance(tools, list | tuple) or not all(isinstance(tool, Mapping) for tool in tools):
        raise OddRow(f"`{TOOLS}` is no list of tools: {tools!r:.60}")
    # ShareGPT's are bare functions, and templates read what OpenAI's client takes.
    bare = [{"name", "parameters"} <= tool.keys() and not {"type", "function"} & tool.keys() for tool in tools]
    return [{"type": "function", "function": tool} if at else tool for tool, at in zip(tools, bare, strict=True)]


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


def _asked(row: Mapping[str, Any]) -> tuple[list[Message], list[Message]]:
    """Return what comes before the last question of a row as Alpaca has it, and that question. Raises OddRow."""
    instruction, given, system, history = (row.get(name) for name in ASKED)
    for name, text in zip(ASKED, (instruction, given, system), strict=False):
        if text is not None and not isinstance(text, str):
            raise OddRow(f"`{name}` is no text: {text!r:.60}")
    before: list[Message] = [{"role": "system", "content": system}] if system else []
    for turn in history or ():
        if not isinstance(turn, list | tuple) or len(turn) != 2 or not all(isinstance(text, str) for text in turn):
            raise OddRow(f"`{ASKED[3]}` is no list of questions with their answers, two texts each: {turn!r:.60}")
        before += [{"role": role, "content": text} for role, text in zip(("user", "assistant"), turn, strict=True)]
    return before, [{"role": "user", "content": "\n".join(text for text in (instruction, given) if text)}]


def _message(value: Any, column: str) -> Message:
    """Return a message in the words of chat templates, without what a table fills up with null."""
    if not is_message(value):
        raise OddRow(f'`{column}` holds {value!r:.60}: a message is `{{"role": "user", "content": "..."}}`')
    if "role" not in value:
        others = {name: item for name, item in value.items() if name not in ("from", "value")}
        value = {"role": value["from"], "content": value["value"], **others}
    role = value["role"]
    if not isinstance(role, str):
        raise OddRow(f"`{column}` has a message whose role is no text: {role!r:.60}")
    if role == _CALLS:
        value = {**value, "content": None, "tool_calls": _written_calls(value.get("content"), column)}
    # Some data have ShareGPT's roles in messages that are otherwise those of chat templates.
    value = {**value, "role": _ROLES.get(role, role)}
    message = _with_weight(
        {name: item for name, item in value.items() if item is not None or name == "content"}, column
    )
    content = message.get("content")
    if content is None and not message.get("tool_calls"):
        called = "; a call is in `tool_calls`" if "function_call" in message else ""
        raise OddRow(
            f"`{column}` has a message of role {message['role']!r:.40} that says nothing: its content is null{called}"
        )
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


def _written_calls(content: Any, column: str) -> list[Mapping[str, Any]]:
    """Return the calls that a message of ShareGPT's has as JSON, one or a list. Raises OddRow."""
    try:
        calls = json.loads(content) if isinstance(content, str) else content
    except ValueError:
        calls = None
    calls = calls if isinstance(calls, list) and calls else [calls]
    if not all(isinstance(call, Mapping) and isinstance(call.get("name"), str) for call in calls):
        example = '{"name": "search", "arguments": {"query": "rain"}}'
        raise OddRow(f"`{column}` has a message of role '{_CALLS}' that is no JSON as {example}: {content!r:.60}")
    return [{"type": "function", "function": call} for call in calls]


def _with_weight(message: dict[str, Any], column: str) -> dict[str, Any]:
    """Return a message that has `"weight": 0` where it is not learned, as which Axolotl's data have `"train": false`.
    Raises OddRow for others than the assistant's that are to be learned, and for parts of a message."""
    if message.get("train_detail"):
        raise OddRow(f"`{column}` has a message with `train_detail`: a message is learned whole, or not at all")
    train = message.get("train")
    if train is True and message["role"] != "assistant":
        raise OddRow(
            f"`{column}` has a message of role {message['role']!r:.40} with `train`: only the assistant's are learned"
        )
    return {**message, "weight": 0} if train is False else message


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
