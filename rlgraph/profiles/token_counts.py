"""Counts the tokens of prompts and answers in a run's recording or in files of rows."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from rlgraph.backends.engines.errors import EngineError
from rlgraph.catalog.models.gguf import UnusableGguf
from rlgraph.columns import value_at, value_kind
from rlgraph.conversations import (
    RowFormat,
    example_of_format,
    format_of_columns,
    parse_content,
    template_options_of,
    tools_of,
)
from rlgraph.data import Row, Rows, files
from rlgraph.data.base import numbered_rows
from rlgraph.errors import NO_SPAN, Diagnostic, ProgramError, Source, Span, did_you_mean, quoted_list
from rlgraph.passes.cost.lengths import LONGEST
from rlgraph.profiles.censored_lengths import CensoredLengths
from rlgraph.runs.folder_lock import HOW
from rlgraph.user_code.files import SearchFolders
from rlgraph.user_code.spec import CallSpec

NOT_COUNTED = "E0947"

PROMPT, ANSWER, PAIR = "prompt", "response", ("chosen", "rejected")
"""Columns that are counted by default, beside those that `encode(rows)` takes."""
_OF_A_RUN = (HOW, "recording.json")
"""What a folder has that is one of a run or of a recording."""


class TokenCounts(NamedTuple):
    """The lengths that were counted; None for a missing column, but at least one of the two exists."""

    prompts: CensoredLengths | None
    answers: CensoredLengths | None


def count_recorded_tokens(folder: Path) -> TokenCounts:
    """Count what a run recorded: each prompt once, however often it was used; every answer, and those that were cut.

    Raise UsageMistake if the folder is no recording, RunError if it is damaged.
    """
    from rlgraph.backends.recording import recorded_lengths
    from rlgraph.runs.folder import recording_folder

    prompts: dict[str, int] = {}
    ended: list[int] = []
    cut: list[int] = []
    for row in recorded_lengths(recording_folder(folder)):
        (ended if row.finished else cut).append(row.response)
        if row.prompt is not None:
            prompts[row.prompt_hash] = row.prompt
    if not ended and not cut:
        raise _wrong(f"the recording in `{folder}` has no rows", NO_SPAN, "give one of a run that sampled something")
    return TokenCounts(CensoredLengths([*prompts.values()]) if prompts else None, CensoredLengths(ended, cut))


def has_row_files(path: Path) -> bool:
    """Return whether a folder has files of rows, and is no run and no recording."""
    if not path.is_dir() or any((path / name).exists() for name in _OF_A_RUN):
        return False
    return any(name.is_file() for name in path.iterdir())


def count_file_tokens(
    path: Path, prompt: str | None, answer: str | None, limit: int | None, model: str | None
) -> TokenCounts:
    """Count the rows of what `files(...)` reads. prompt, answer: columns of numbers of tokens, of lists of tokens, or
    of texts or messages that have to be tokenized. If none is named, they are what `encode(rows)` would take, both
    `chosen` and `rejected`, or `prompt` or `response` alone.

    limit: an answer that has so many tokens or more was cut. model: whose tokenizer, a name, a folder or a GGUF file.
    Raise RlgraphError.
    """
    span = _told(str(path))
    source = files.open_source(CallSpec("files", (str(path),), {}, span, {0: span}), SearchFolders(Path()))
    assert isinstance(source.rows, Rows)
    shapes = _shapes(str(path), source.columns or source.rows[0], prompt, answer)
    counter = _Counter(None if model is None else _codec(model), prompt, answer)
    prompts: list[int] = []
    answers: list[int] = []
    for place, row in numbered_rows(source):
        for number, shape in enumerate(shapes):
            asked, answered = counter.count_row_tokens(row, shape, f"row {place} of `{path}`")
            if asked is not None and number == 0:
                prompts.append(asked)
            if answered is not None:
                answers.append(answered)
    most = LONGEST + 1 if limit is None else limit
    return TokenCounts(
        CensoredLengths(prompts) if prompts else None,
        CensoredLengths([n for n in answers if n < most], [most for n in answers if n >= most]) if answers else None,
    )


def _shapes(path: str, has: Collection[str], prompt: str | None, answer: str | None) -> list[RowFormat]:
    """Return which columns are counted, once for each answer that a row has; of prompts alone there is no answer.
    has: the columns of the rows."""
    if answer is not None:
        named = format_of_columns({*has, answer}, answer) or RowFormat(answer)
        return [replace(named, prompt=prompt, paired="") if prompt else named]
    if prompt is not None:
        return [RowFormat(ANSWER if ANSWER in has else "", prompt)]
    if shape := format_of_columns(has):
        return [shape]
    if any(name in has for name in PAIR):
        return [shape for name in PAIR if (shape := format_of_columns(has, name))]
    if PROMPT in has or ANSWER in has:
        return [RowFormat(ANSWER if ANSWER in has else "", PROMPT if PROMPT in has else "")]
    message = f"`{path}` has no column that is known to hold prompts, answers or conversations"
    hint = f"say which they are with `--prompt COLUMN` and `--answer COLUMN`; it has {quoted_list([*has], 'and')}"
    raise _wrong(message, _told(path), hint)


@dataclass(frozen=True)
class _Counter:
    """Counts the tokens of rows."""

    codec: Any
    prompt: str | None
    answer: str | None
    """The columns that the command names."""

    def count_row_tokens(self, row: Row, shape: RowFormat, who: str) -> tuple[int | None, int | None]:
        """Return the tokens of a row's prompt and of its answer; None for what it has not. Raise ProgramError."""
        values = {name: self._value(row, name, who) for name in shape.columns}
        known = {name: number for name in values if (number := self._known(name, values[name], who)) is not None}
        if known:
            rest = [name for name in values if name not in known]
            known |= {
                name: self._text(RowFormat(name if name == shape.answer else "", name), {**row, **values}, who)
                for name in rest
            }
            return known.get(shape.prompt), known.get(shape.answer)
        if not shape.answer:
            return self._text(shape, {**row, **values}, who), None
        return self._example(shape, {**row, **values}, who)

    def _value(self, row: Row, name: str, who: str) -> Any:
        try:
            return value_at(row, name)
        except (KeyError, TypeError):
            hint = did_you_mean(name, row) or f"it has {quoted_list([*row], 'and')}"
            raise _wrong(f"{who} has no column `{name}`", self._span(name), hint) from None

    def _span(self, name: str) -> Span:
        """Return the place in the command that names a column."""
        option = "answer" if name == self.answer else "prompt" if name == self.prompt else "column"
        return _told(f"--{option} {name}" if option != "column" else f"the column {name}")

    def _known(self, name: str, value: Any, who: str) -> int | None:
        """Return the tokens of a value that says so itself."""
        if _whole(value):
            if not 0 <= value <= LONGEST:
                message = f"{who} has {value:,} tokens in `{name}`"
                raise _wrong(message, self._span(name), f"a length is 0 to {LONGEST:,} tokens")
            return int(value)
        if isinstance(value, list) and all(map(_whole, value)) and (value or name in (ANSWER, self.answer)):
            return len(value)
        if not isinstance(value, str) and value_kind(value) != "messages":
            message = f"{who} has {type(value).__name__} `{value!s:.40}` in `{name}`"
            raise _wrong(message, self._span(name), "a column has texts, messages, lists of tokens, or numbers of them")
        if self.codec is None:
            hint = "say whose tokens: `--model NAME`, as the program's `causal_lm(NAME)`, or the folder of a model"
            what = "text" if isinstance(value, str) else "conversation"
            message = f"{who} has a {what} in `{name}`, and how many tokens it has is a model's"
            raise _wrong(message, self._span(name), hint)
        return None

    def _text(self, shape: RowFormat, row: Row, who: str) -> int:
        """Return the tokens of a prompt, or of an answer of which nothing else is shown."""
        name = shape.prompt
        try:
            shown = parse_content(row[name], name)
            if shape.answer and isinstance(shown, str):
                return len(self.codec.encode_response(shown))
            return len(self.codec.encode_prompt(shown, tools_of(row), template_options_of(row)))
        except (ValueError, TypeError, KeyError) as error:  # also EngineError and OddRow
            raise self._unreadable(error, name, who) from None

    def _example(self, shape: RowFormat, row: Row, who: str) -> tuple[int | None, int]:
        """Return the tokens of a row that carry no loss, and of those that do; None for the first where nothing comes
        before the answer."""
        try:
            given = example_of_format(row, shape)
            if given.prompt is None and isinstance(given.answer, str):
                return None, len(self.codec.encode_response(given.answer))
            ids, learned = self.codec.encode_example(given)
        except (ValueError, TypeError, KeyError) as error:  # also EngineError and OddRow
            raise self._unreadable(error, shape.answer, who) from None
        return len(ids) - sum(learned), sum(learned)

    def _unreadable(self, error: Exception, name: str, who: str) -> ProgramError:
        return _wrong(f"{who} cannot be counted: {error}", self._span(name), getattr(error, "hint", ""))


def _codec(model: str) -> Any:
    """Return a model's tokenizer. Raise ProgramError if it cannot be loaded."""
    from rlgraph.backends.engines.gguf import dequantized_folder
    from rlgraph.backends.engines.sources import ModelSpec, load_codec

    try:
        folder = dequantized_folder(Path(model)) if model.endswith(".gguf") else model
        return load_codec(ModelSpec("causal_lm", str(folder)))
    except (EngineError, UnusableGguf, OSError) as error:
        raise _wrong(str(error), _told(f"--model {model}"), "") from None


def _whole(value: object) -> bool:
    """Return whether a value is an integer."""
    return isinstance(value, int) and not isinstance(value, bool)


def _told(words: str) -> Span:
    """Return the span of a part of the command."""
    shown = words if words.isprintable() else repr(words)
    return Span(Source("rlgraph lengths", shown), 1, 1, 1, len(shown) + 1)


def _wrong(message: str, span: Span, hint: str) -> ProgramError:
    return ProgramError(Diagnostic(NOT_COUNTED, message, span, hint))
