"""This module finds prompts that are too long before the first step: the run does not begin, leaves them out, or cuts
them.

What is too long is decided by the model (the positions that it has, less `max_tokens`) and by the program
(`max_prompt`). A text of few characters is not split into tokens: it cannot have more of them than bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

from rlgraph.backends.engines.errors import ConversationError, EngineError
from rlgraph.backends.engines.tokenizers import Codec
from rlgraph.columns import column_at, utf8_bytes_bound, value_at, value_or_none, with_value_at
from rlgraph.conversations import OddRow, RowFormat, example_of_format, parse_content, template_options_of, tools_of
from rlgraph.data import BatchReader, Row
from rlgraph.data.base import NO_ROWS, DataSource, TransformedRows, numbered_rows, require_full_batch
from rlgraph.dsl.columns import find_prompt_uses
from rlgraph.dsl.data_uses import PromptUse
from rlgraph.errors import Diagnostic, ProgramError, RunError, Span, count_phrase, quoted_list
from rlgraph.ir.graph import Program

TOO_LONG = "E0748"
_PROMPTS_AT_A_TIME = 4096
"""How many prompts are split into tokens at a time."""

Note = Callable[[str], None]


@dataclass(frozen=True)
class PromptLimit:
    """How long the prompts in a column of the data may be."""

    column: str
    codec: Codec
    max_tokens: int
    """Tokens of a prompt, at most."""
    span: Span
    """Where the program sets the limit."""
    model: str = ""
    """The model that takes no more; empty where it is the program that says how long a prompt may be."""
    max_row_tokens: int = 0
    """Tokens of a row of that model, at most."""
    shape: RowFormat | None = None
    """The columns of rows that are counted with their answers; None: the prompts alone are."""
    whole: bool = False
    """Whether the tools of a row are counted."""
    last: bool = False
    """Whether only the last turn of a conversation carries loss."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns whose tokens are counted."""
        return self.shape.columns if self.shape else (self.column,)

    @property
    def safe_bytes(self) -> int:
        """How many bytes a text may have before it could have more tokens than are allowed."""
        return self.max_tokens // self.codec.max_tokens_per_byte - 16


class OpenedModel(Protocol):
    """A model of the run, or a proxy of one in another process."""

    @property
    def engine(self) -> Any:
        """An engine, which has a `codec`."""
        ...

    @property
    def max_row_tokens(self) -> int | None:
        """Tokens of a row, at most; None: any number."""
        ...


def prompt_limits(
    program: Program, readers: Mapping[str, BatchReader], models: Mapping[str, OpenedModel]
) -> dict[str, list[PromptLimit]]:
    """Return how long the prompts of each data source may be, if there is a limit: for each column and tokenizer the
    lowest. A source whose rows come one after the other has none, since it cannot be read ahead."""
    columns = {name: reader.source.columns for name, reader in readers.items()}
    asks = find_prompt_uses(program, columns)
    limits_of: dict[str, list[PromptLimit]] = {}
    for name, reader in readers.items():
        if reader.source.row_numbers is None:
            continue
        lowest: dict[tuple[str, RowFormat | None, str], PromptLimit] = {}
        for limit, model in _limits(program, reader.source, [ask for ask in asks if ask.source == name], models):
            key = limit.column, limit.shape, program.original_model(program.model(model)).name
            if key not in lowest or limit.max_tokens < lowest[key].max_tokens:
                lowest[key] = limit
        if lowest:
            limits_of[name] = [*lowest.values()]
    return limits_of


def _limits(
    program: Program, source: DataSource, asks: Sequence[PromptUse], models: Mapping[str, OpenedModel]
) -> Iterator[tuple[PromptLimit, str]]:
    """Yield each limit with the name of the model whose tokens are counted."""
    max_prompt, span = source.max_prompt, source.spec.argument_span("max_prompt")
    for ask in asks:
        codec = models[ask.model].engine.codec
        if max_prompt is not None:
            # Of rows without a column of prompts all is counted.
            shape = ask.shape if ask.shape and ask.column == ask.shape.answer else None
            limit = PromptLimit(ask.column, codec, max_prompt, span)
            yield replace(limit, shape=shape, whole=ask.whole, last=ask.last), ask.model
        # A program that leaves rows out may leave out those that are too long.
        longest = None if ask.chosen else models[ask.model].max_row_tokens
        if longest is not None:
            most = longest - ask.node.attr("max_tokens", 0)
            limit = PromptLimit(ask.column, codec, most, ask.node.span, ask.model, longest)
            yield replace(limit, shape=ask.shape, whole=ask.whole, last=ask.last), ask.model
    if max_prompt is not None and not asks and program.models:
        # Prompts that no model is asked are encoded, with the tokenizer of the first model.
        first = program.models[0].name
        yield PromptLimit("prompt", models[first].engine.codec, max_prompt, span), first


def apply_prompt_limits(
    readers: Mapping[str, BatchReader], limits: Mapping[str, Sequence[PromptLimit]], note: Note
) -> list[str]:
    """Apply the limits of each data source, by name. Returns what was left out or cut, a sentence for each source.
    Raises `ProgramError`, with an error for each source whose rows are too long."""
    sentences: list[str] = []
    problems: list[Diagnostic] = []
    for name, source_limits in limits.items():
        reader = readers[name]
        try:
            sentences += _judge(reader, source_limits, note)
        except ProgramError as error:
            problems += error.diagnostics
    if problems:
        raise ProgramError(problems)
    return sentences


def _judge(reader: BatchReader, limits: Sequence[PromptLimit], note: Note) -> list[str]:
    """Apply the limits of one data source."""
    source, name = reader.source, reader.name
    assert source.row_numbers is not None
    longer = {limit: _longer(source, name, limit, note) for limit in limits if _may_be_longer(source, limit)}
    rows = sorted({number for lengths in longer.values() for number in lengths})
    if not rows:
        return []
    share = f"{len(rows):,} of the {count_phrase(len(source.row_numbers), 'row')} of `{name}`"
    if source.overlong == "drop":
        left = set(rows)
        rows_left = [number for number in source.row_numbers if number not in left]
        if not rows_left:
            message = f"the prompts of all rows of `{name}` are too long, and none is left"
            hint = "take a model of a longer context, fewer `max_tokens`, a larger `max_prompt`, or `overlong=cut`"
            raise ProgramError(Diagnostic(NO_ROWS, message, source.spec.span, hint))
        reader.source = require_full_batch(replace(source, kept=rows_left), f"`{name}`, without {share},")
        return [f"left out {share}: their prompts are too long"]
    if source.overlong == "cut":
        rules = {limit: frozenset(lengths) for limit, lengths in longer.items()}
        shortened = TransformedRows(source.rows, lambda number, row: _cut(name, rules, number, row))  # type: ignore[arg-type]
        reader.source = replace(source, rows=shortened)
        for number in rows:
            reader.source.rows[number]  # type: ignore[index]  # Prompts that cannot be cut raise now.
        return [f"cut the prompts of {share}, which are too long"]
    limit, lengths = next((limit, lengths) for limit, lengths in longer.items() if lengths)
    raise ProgramError(_too_long(name, limit, lengths, share))


def _may_be_longer(source: DataSource, limit: PromptLimit) -> bool:
    """Whether the rows have to be read: the longest text of the column may be too long."""
    longest = 0
    for name in limit.columns:
        column = column_at(source.columns or {}, name)
        if column is None or column.longest is None or set(column.first) - {"text", "missing", "null"}:
            return True
        longest += column.longest
    return longest > limit.safe_bytes


def _longer(source: DataSource, name: str, limit: PromptLimit, note: Note) -> dict[int, int]:
    """Return the numbers of the rows that are too long, and how many tokens their prompts have."""
    assert source.row_numbers is not None
    lengths: dict[int, int] = {}
    for part, done in _parts(source, limit):
        for number, tokens in zip(part, _tokens(name, limit, part), strict=True):
            if tokens > limit.max_tokens:
                lengths[number] = tokens
        note(f"counting the tokens of `{name}`: {done:,} of {count_phrase(len(source.row_numbers), 'row')}")
    return lengths


def _parts(source: DataSource, limit: PromptLimit) -> Iterator[tuple[dict[int, Row], int]]:
    """Yield rows to count by their number, so many at a time; and how many rows were read."""
    assert source.row_numbers is not None
    part: dict[int, Row] = {}
    for done, (number, row) in enumerate(numbered_rows(source), 1):
        values = [value_or_none(row, name) for name in limit.columns]
        sizes = [utf8_bytes_bound(value) if isinstance(value, str) else 0 for value in values]
        if any(isinstance(value, list | tuple) for value in values) or sum(sizes) > limit.safe_bytes:
            part[number] = row
        if len(part) == _PROMPTS_AT_A_TIME or done == len(source.row_numbers):
            yield part, done
            part = {}


def _tokens(name: str, limit: PromptLimit, part: Mapping[int, Row]) -> list[int]:
    """Return the number of tokens of each row's prompt, with what follows it. Raises ProgramError for a row that cannot
    be used."""
    prompts = [value_or_none(row, limit.column) for row in part.values()]
    if limit.shape is None and all(isinstance(prompt, str) for prompt in prompts):
        with suppress(EngineError, TypeError, KeyError):
            return limit.codec.prompt_lengths([str(prompt) for prompt in prompts])
    return [_tokens_of_row(name, limit, number, row) for number, row in part.items()]


def _tokens_of_row(name: str, limit: PromptLimit, number: int, row: Row) -> int:
    """Return the number of tokens of a row's prompt, with what follows it. Raises ProgramError where it cannot be
    used."""
    who = f"{name} row {number} cannot be used" if limit.shape else f"the prompt of {name} row {number} cannot be used"
    try:
        return _count(limit, row)
    except ConversationError as error:
        raise ProgramError(Diagnostic(error.code, f"{who}: {error}", limit.span, error.hint)) from None
    except OddRow as error:
        raise ProgramError(Diagnostic("E0732", f"{who}: {error}", limit.span)) from None
    except (EngineError, TypeError, KeyError) as error:
        hint = error.hint if isinstance(error, EngineError) else ""
        raise ProgramError(Diagnostic("E0731", f"{who}: {error}", limit.span, hint)) from None


def _count(limit: PromptLimit, row: Row) -> int:
    """Return the number of tokens that count of a row; 0 where it is too short for more than are allowed."""
    if limit.shape is not None:
        shown = example_of_format(row, limit.shape, last=limit.last, whole=limit.whole)
        return limit.codec.example_length(shown, limit.max_tokens)
    tools, options = (tools_of(row), template_options_of(row)) if limit.whole else ((), {})
    return limit.codec.prompt_length(
        parse_content(value_or_none(row, limit.column), limit.column), tools, options, limit.max_tokens
    )


def _too_long(name: str, limit: PromptLimit, lengths: Mapping[int, int], share: str) -> Diagnostic:
    """Return the error for prompts that are too long."""
    number, tokens = next(iter(lengths.items()))
    more = f" ({share} are too long)" if len(lengths) > 1 else ""
    row_length = f"the prompt of {name} row {number} has {count_phrase(tokens, 'token')}"
    ways = f"say what becomes of such rows, with `overlong=drop` or `overlong=cut` in `data {name}`"
    if limit.shape:
        columns = quoted_list([*limit.columns], "and")
        row_length = f"{name} row {number} has {count_phrase(tokens, 'token')} in {columns}"
    if not limit.model:
        message = f"{row_length}, more than the {limit.max_tokens:,} of `max_prompt`{more}"
        return Diagnostic(TOO_LONG, message, limit.span, ways)
    if limit.shape:
        message = f"{row_length}, more than the {limit.max_row_tokens:,} that a row of `{limit.model}` may have{more}"
        return Diagnostic(TOO_LONG, message, limit.span, ways)
    room = limit.max_row_tokens - limit.max_tokens
    message = f"{row_length}: with the {room:,} of `max_tokens` more it is longer than the "
    message += f"{limit.max_row_tokens:,} that a row of `{limit.model}` may have{more}"
    # A prompt that leaves no room by itself is helped by nothing but leaving it out, or cutting it.
    lower = "lower `max_tokens`, or " if max(lengths.values()) < limit.max_row_tokens else ""
    return Diagnostic(TOO_LONG, message, limit.span, f"{lower}{ways}")


def _cut(name: str, rules: Mapping[PromptLimit, frozenset[int]], number: int, row: Row) -> Row:
    """Return a row whose prompts are cut."""
    for limit, numbers in rules.items():
        if number in numbers:
            row = with_value_at(row, limit.column, _shortened(name, limit, number, row))
    return row


def _shortened(name: str, limit: PromptLimit, number: int, row: Row) -> Any:
    """Return a row's prompt without its beginning; of messages, without that of the last one that the user wrote."""
    place, prompt = None, value_at(row, limit.column)
    if isinstance(prompt, list):
        users = [position for position, message in enumerate(prompt) if message.get("role") == "user"]
        place = users[-1] if users else len(prompt) - 1
    text = prompt if place is None else prompt[place].get("content")

    def cut_at(start: int) -> Any:
        if place is None:
            return text[start:]
        return [*prompt[:place], {**prompt[place], "content": text[start:]}, *prompt[place + 1 :]]

    def fits(start: int) -> bool:
        return _count(limit, with_value_at(row, limit.column, cut_at(start))) <= limit.max_tokens

    paired = limit.shape is not None and bool(limit.shape.paired)
    if paired or not isinstance(text, str) or not fits(len(text)):
        message = f"the prompt of {name} row {number} cannot be cut to {count_phrase(limit.max_tokens, 'token')}: "
        message += "what is not the text of its last message is longer"
        if paired:
            message = f"the prompt of {name} row {number} cannot be cut: two conversations begin with it"
        raise RunError(Diagnostic(TOO_LONG, message, limit.span, "leave such rows out: `overlong=drop`"))
    low, high = 0, len(text)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle + 1, high)
    return cut_at(high)
