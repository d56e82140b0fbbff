"""This module finds what is hardly meant in prompts and conversations of the data: of chat templates one that writes
the date, so that the prompts of another day are others, and one with which a model never learns to end an answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlgraph.backends.engines.chat import make_conversation
from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.engines.sources import text_end_ids
from rlgraph.backends.engines.tokenizers import Codec
from rlgraph.backends.worker.plain_prompts import plain_prompt_warnings, uses_read_ahead
from rlgraph.backends.worker.prompt_limits import OpenedModel
from rlgraph.backends.worker.unread_parts import unread_part_warnings
from rlgraph.columns import value_or_none
from rlgraph.conversations import Example, Message, OddRow, example_of_format, parse_content
from rlgraph.data import BatchReader
from rlgraph.data.base import Row, numbered_rows
from rlgraph.dsl.data_uses import PromptUse
from rlgraph.dsl.lints import is_allowed
from rlgraph.errors import Diagnostic
from rlgraph.ir.graph import Program
from rlgraph.user_code import Environment

DATE, NO_END = "W0526", "W0527"
_CLOCK = "strftime_now"
"""What templates call to know the date."""
_WRITTEN = "\ue0a7\ue0b5\ue0a7"
"""Stands for the date while a template writes: characters that nobody has given a meaning."""


def conversation_warnings(
    program: Program,
    readers: Mapping[str, BatchReader],
    models: Mapping[str, OpenedModel],
    environments: Mapping[str, Environment],
) -> list[Diagnostic]:
    """Return all warnings about how models read the prompts and answers of the data."""
    parts = plain_prompt_warnings, unread_part_warnings, _template_warnings
    return [warning for part in parts for warning in part(program, readers, models, environments)]


def _template_warnings(
    program: Program,
    readers: Mapping[str, BatchReader],
    models: Mapping[str, OpenedModel],
    environments: Mapping[str, Environment],
) -> list[Diagnostic]:
    """Return a warning for each model whose template writes the date, and for each column of conversations of which it
    learns no end of an answer, by the first row that has one. Rows of a stream are passed over, which cannot be read
    ahead."""
    found: dict[tuple[str, str], Diagnostic] = {}
    for use, source in uses_read_ahead(program, readers, environments, lambda use: use.column):
        row = next((row for _, row in numbered_rows(source)), None)
        if row is not None:
            for code, message, hint in _odd(use, row, models[use.model].engine):
                of = use.model if code == DATE else use.column
                found.setdefault((code, of), Diagnostic(code, message, use.node.span, hint))
    return [warning for warning in found.values() if not is_allowed(warning)]


def _odd(use: PromptUse, row: Row, engine: Any) -> Iterator[tuple[str, str, str]]:
    """Yield what is odd as a code, a message and a hint. engine: has a `codec` and a `spec`."""
    codec: Codec = engine.codec
    try:
        if use.shape is None:
            asked = parse_content(value_or_none(row, use.column), use.column)
            messages: list[Message] = [] if isinstance(asked, str) else list(asked)
            example = None
        else:
            example = example_of_format(row, use.shape, last=use.last, whole=use.whole)
            messages = _messages(example)
        if messages and _writes_date(codec, messages, use.shape is None):
            yield (
                DATE,
                f"the chat template of `{use.model}` writes today's date: on another day prompts are others, and what "
                "is resumed or replayed is not the same",
                'keep one: `chat=chat(date_string="26 Jul 2024")` where the template reads that, else '
                f'`chat(template="FILE.jinja")`; where today\'s is meant, end the line with `# allow {DATE}`',
            )
        if example is None or not messages or not engine.spec.is_trained or engine.spec.kind != "causal_lm":
            return
        ids, learned = codec.encode_example(example)
    except (EngineError, OddRow):  # Whoever reads the row says what is wrong.
        return
    ends = {*codec.end_token_ids(None), *text_end_ids(engine.spec, codec)}
    if ends.isdisjoint(token for token, loss in zip(ids, learned, strict=True) if loss):
        yield (
            NO_END,
            f"`{use.model}` learns no end of an answer from `{use.column}` of `{use.source}`: its chat template writes "
            "none that carries loss, and it would go on to the last of `max_tokens`",
            "let the template write `{{ eos_token }}` behind what the assistant says, and before `{% endgeneration %}` "
            'if it has that: `chat=chat(template="FILE.jinja")`; where none is meant, end the line with '
            f"`# allow {NO_END}`",
        )


def _messages(example: Example) -> list[Message]:
    """Return the messages of a row; none where a part of it is a text."""
    if isinstance(example.prompt, str) or isinstance(example.answer, str):
        return []
    return [*(example.prompt or ()), *example.answer]


def _writes_date(codec: Codec, messages: Sequence[Message], asks: bool) -> bool:
    """Return whether the chat template writes what the clock says into a conversation. asks: as it is written to be
    answered."""
    if _CLOCK not in str(codec.tokenizer.chat_template):
        return False
    chat, _ = make_conversation(codec.tokenizer, codec.chat, messages, (), {_CLOCK: lambda _: _WRITTEN})
    return _WRITTEN in chat.rendered(asks=asks)
