"""This module finds prompts that a chat model did not learn to answer: plain texts, from which it goes on as from any
page, and conversations that end with the assistant's own message, behind which another one begins."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from rlgraph.backends.engines.chat import special_token_texts
from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.engines.sources import text_end_ids
from rlgraph.backends.engines.tokenizers import Codec
from rlgraph.backends.worker.prompt_limits import OpenedModel
from rlgraph.columns import column_at, value_or_none
from rlgraph.conversations import Content, Example, OddRow, example_of_format, parse_content
from rlgraph.data import BatchReader
from rlgraph.data.base import DataSource, Rows, numbered_rows
from rlgraph.dsl.columns import find_episode_uses, find_prompt_uses
from rlgraph.dsl.data_uses import PromptUse
from rlgraph.dsl.lints import is_allowed
from rlgraph.errors import Diagnostic
from rlgraph.ir.graph import Program
from rlgraph.ops import NODES, attribute_value
from rlgraph.user_code import Environment

PLAIN_PROMPT, ANSWERED_PROMPT = "W0520", "W0524"
_CONTENT = "a question"
_MESSAGES = re.compile(r"\s*\[\s*\{\s*(['\"])(role|content|from|value)\1\s*:")
"""Begins a list of messages that is a text."""
_SHOWN = 40
"""How many characters of a prompt are shown."""


def plain_prompt_warnings(
    program: Program,
    readers: Mapping[str, BatchReader],
    models: Mapping[str, OpenedModel],
    environments: Mapping[str, Environment],
) -> list[Diagnostic]:
    """Return a warning for each chat model and each column with plain texts that it is asked or trained on, and for
    each with conversations that it is asked and that end with its own message, where it is not told to go on from
    that, by the first row that has one. Rows of a stream are passed over, which cannot be read ahead."""
    found: list[Diagnostic] = []
    for use, source in uses_read_ahead(program, readers, environments, lambda use: use.column):
        engine = models[use.model].engine
        begins = use.shape is None and not (_is_episode(use) or engine.codec.chat.continues)
        found += [*_plain(use, source, engine), *(_answered(use, source) if begins else ())]
    return [warning for warning in found if not is_allowed(warning)]


def uses_read_ahead(
    program: Program,
    readers: Mapping[str, BatchReader],
    environments: Mapping[str, Environment],
    columns: Callable[[PromptUse], str],
) -> Iterator[tuple[PromptUse, DataSource]]:
    """Yield where models read prompts of the data, those of episodes too, whose turns a chat template writes, with the
    data: of each source that can be read ahead the first use of each model and of what `columns` returns."""
    known = {name: reader.source.columns for name, reader in readers.items()}
    uses: list[PromptUse] = find_prompt_uses(program, known)
    for use in find_episode_uses(program, known):
        environment = environments.get(use.node.attr("env"))
        # An agent asks what it likes, and `turns=text` says that a text is meant.
        if attribute_value(use.node, "turns") == "chat" and (environment is None or environment.agent is None):
            uses.append(use)
    seen = set[tuple[str, str, str]]()
    for use in uses:
        key = use.source, columns(use), program.original_model(program.model(use.model)).name
        source = readers[use.source].source if use.source in readers else None
        if key not in seen and source is not None and isinstance(source.rows, Rows):
            seen.add(key)
            yield use, source


def _is_episode(use: PromptUse) -> bool:
    return use.node.attr("env", None) is not None


def _plain(use: PromptUse, source: DataSource, engine: Any) -> Iterator[Diagnostic]:
    """Yield the warning for the first prompt that is a plain text, if the model chats. engine: has a `codec` and a
    `spec`."""
    codec: Codec = engine.codec
    if not _may_hold(source, use, "text") or not _chats(codec, text_end_ids(engine.spec, codec)):
        return
    marks = _marks(codec)
    for number, row in numbered_rows(source):
        prompt, messages = _prompt(use, row), _column_of_messages_as_text(use, row)
        if messages or isinstance(prompt, str) and not any(mark in prompt for mark in marks):
            yield _plain_prompt(use, number, messages, str(row[messages] if messages else prompt))
            return


def _plain_prompt(use: PromptUse, number: int, messages: str, prompt: str) -> Diagnostic:
    """Return the warning for a row. messages: the column in which they are a text; empty where there are none."""
    text = json.dumps(prompt if len(prompt) <= _SHOWN else f"{prompt[:_SHOWN]}...", ensure_ascii=False)
    hint = f'write messages, {{"{use.column}": [{{"role": "user", "content": {text}}}]}}{_call_with_message(use)}'
    if messages:
        hint = f"these are messages, written as a text: write the list itself: {text}"
    return Diagnostic(
        PLAIN_PROMPT,
        f"`{use.model}` is a chat model, and `{messages or use.column}` of `{use.source}` is plain text"
        f"{f' in row {number:,}' if number else ''}: its chat template is not used",
        use.node.span,
        f"{hint}; where plain text is meant, end the line with `# allow {PLAIN_PROMPT}`",
    )


def _answered(use: PromptUse, source: DataSource) -> Iterator[Diagnostic]:
    """Yield the warning for the first prompt that ends with a message of the assistant's."""
    if not _may_hold(source, use, "messages"):
        return
    for number, row in numbered_rows(source):
        prompt = _prompt(use, row)
        if prompt and not isinstance(prompt, str) and prompt[-1]["role"] == "assistant":
            yield Diagnostic(
                ANSWERED_PROMPT,
                f"`{use.column}` of `{use.source}` ends with a message of the assistant's in row {number:,}: "
                f"`{use.model}` begins another one behind it",
                use.node.span,
                f"to have `{use.model}` go on from it, declare it with `chat=chat(continue_final_message=true)`; where "
                f"another one is meant, end the line with `# allow {ANSWERED_PROMPT}`",
            )
            return


def _may_hold(source: DataSource, use: PromptUse, kind: str) -> bool:
    """Return whether a column, or what it is read with, may have values of a kind."""
    column = column_at(source.columns, use.column) if source.columns is not None else None
    # A text may be the JSON of messages, and a text whose answer is messages is read as a message.
    return column is None or use.shape is not None or bool({kind, "text"}.intersection(column.first))


def _column_of_messages_as_text(use: PromptUse, row: Mapping[str, Any]) -> str:
    """Return the column in which a row has messages as JSON, or as Python shows them, that are read as a text."""
    for column in (use.column,) if use.shape is None else use.shape.columns:
        value = value_or_none(row, column)
        if isinstance(value, str) and _MESSAGES.match(value):
            with suppress(OddRow):
                if isinstance(parse_content(value, column), str):
                    return column
    return ""


def _call_with_message(use: PromptUse) -> str:
    """Return how the program itself makes a message of the texts; empty where it cannot."""
    message = f"user({use.source}.{use.column})"
    if use.shape is not None:
        return f", or `encode({message}, {use.source}.{use.shape.answer})` in the program"
    return "" if NODES[use.node.op].foreign else f", or ask `{message}` in the program"


def _prompt(use: PromptUse, row: Mapping[str, Any]) -> Content | None:
    """Return what the model reads before its answer; None where there is nothing. A text whose answer is messages is
    read as a message itself."""
    if use.shape is not None and use.column != use.shape.prompt and not use.shape.paired:
        return None
    try:
        if use.shape is None:
            return parse_content(value_or_none(row, use.column), use.column)
        return example_of_format(row, use.shape, whole=use.whole).prompt
    except OddRow:  # Whoever reads it says what is wrong.
        return None


def _chats(codec: Codec, ends: Iterable[int]) -> bool:
    """Return whether a model answers in its chat template: it was given one, or ends what it says as the template does.
    Many base models come with the template of their chat models, and end a text otherwise."""
    if codec.tokenizer.chat_template is None:
        return False
    if codec.chat.template is not None:
        return True
    asked, answer = ({"role": role, "content": _CONTENT} for role in ("user", "assistant"))
    try:
        ids, learned = codec.encode_example(Example([answer], [asked]))
    except EngineError:  # Templates differ in what they refuse.
        return False
    return any(token in ends for token, loss in zip(ids, learned, strict=True) if loss)


def _marks(codec: Codec) -> list[str]:
    """Return the texts that a conversation has which is written out already: special tokens, and the lines that the
    template writes around what is asked."""
    before, _, after = codec.prompt_text([{"role": "user", "content": _CONTENT}], ()).rpartition(_CONTENT)
    around = (after.strip() or before.strip()).replace(str(codec.tokenizer.eos_token), "\n")
    return [*special_token_texts(codec.tokenizer), *filter(None, map(str.strip, around.splitlines()))]
