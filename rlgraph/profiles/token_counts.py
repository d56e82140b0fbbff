"""Counts the tokens of prompts and answers in a run's recording or in a file of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rlgraph.backends.engines.errors import EngineError
from rlgraph.data import jsonl, parquet
from rlgraph.data.base import Rows
from rlgraph.errors import NO_SPAN, Diagnostic, ProgramError, Source, Span, did_you_mean, quoted_list
from rlgraph.passes.cost.lengths import LONGEST
from rlgraph.profiles.censored_lengths import CensoredLengths
from rlgraph.user_code.files import Folders
from rlgraph.user_code.spec import CallSpec

NOT_COUNTED = "E0947"

SOURCES = {".jsonl": jsonl, ".parquet": parquet}
"""The readers of files, by their endings."""
PROMPT, ANSWER = "prompt", "response"
"""The columns that are counted by default."""


class TokenCounts(NamedTuple):
    """The lengths that were counted; None for a missing column, but at least one of the two exists."""

    prompts: CensoredLengths | None
    answers: CensoredLengths | None


def count_recorded(folder: Path) -> TokenCounts:
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


def count_file(path: Path, prompt: str | None, answer: str | None, limit: int | None, model: str | None) -> TokenCounts:
    """Count a file of rows. prompt, answer: columns of numbers of tokens, of lists of tokens, or of text that has to be
    tokenized (for prompts also messages). None means `prompt` and `response`, as far as they exist.

    limit: an answer that has so many tokens or more was cut. model: whose tokenizer, a name or a folder. Raise
    ProgramError.
    """
    span = _told(str(path))
    module = SOURCES.get(path.suffix)
    if module is None:
        hint = f"give the folder of a run or of a recording, or a file that ends in {quoted_list([*SOURCES], 'or')}"
        raise _wrong(f"nothing can be counted in `{path}`", span, hint)
    rows = module.open_source(CallSpec(path.suffix[1:], (str(path),), {}, span, {0: span}), Folders(Path())).rows
    assert isinstance(rows, Rows)
    has = rows[0]
    wanted = {"prompt": prompt or (PROMPT if PROMPT in has else None)}
    wanted["answer"] = answer or (ANSWER if ANSWER in has else None)
    if not any(wanted.values()):
        message = f"`{path}` has no column `{PROMPT}` and no column `{ANSWER}`"
        hint = f"say which they are with `--prompt COLUMN` and `--answer COLUMN`; it has {quoted_list([*has], 'and')}"
        raise _wrong(message, span, hint)
    read = _reader(model)
    counts: dict[str, list[int]] = {}
    for what, column in wanted.items():
        if column is not None:
            counts[what] = [read(rows[place], column, what, f"row {place} of `{path}`") for place in range(len(rows))]
    most = LONGEST + 1 if limit is None else limit
    answers = counts.get("answer")
    return TokenCounts(
        CensoredLengths(counts["prompt"]) if "prompt" in counts else None,
        CensoredLengths([n for n in answers if n < most], [most for n in answers if n >= most]) if answers else None,
    )


def _reader(model: str | None) -> Callable[[Any, str, str, str], int]:
    """Return a function that counts the tokens in a column of a row: its arguments are the row, the column, `prompt`
    or `answer`, and how the row is called."""
    codec = None if model is None else _codec(model)

    def read(row: Any, column: str, what: str, where: str) -> int:
        span = _told(f"--{what} {column}")
        if column not in row:
            hint = did_you_mean(column, row) or f"it has {quoted_list([*row], 'and')}"
            raise _wrong(f"{where} has no column `{column}`", span, hint)
        value = row[column]
        if _whole(value):
            if not 0 <= value <= LONGEST:
                message = f"{where} has {value:,} tokens in `{column}`"
                raise _wrong(message, span, f"a length is 0 to {LONGEST:,} tokens")
            return int(value)
        if isinstance(value, list) and all(map(_whole, value)) and (value or what == "answer"):
            return len(value)
        if not isinstance(value, str) and not (what == "prompt" and _messages(value)):
            message = f"{where} has {type(value).__name__} `{value!s:.40}` in `{column}`"
            raise _wrong(message, span, "a column has texts, lists of tokens, or numbers of tokens")
        if codec is None:
            hint = "say whose tokens: `--model NAME`, as the program's `causal_lm(NAME)`, or the folder of a model"
            raise _wrong(f"{where} has a text in `{column}`, and how many tokens it has is a model's", span, hint)
        try:
            return len(codec.encode_prompt(value) if what == "prompt" else codec.encode_response(value))
        except ValueError as error:  # also EngineError
            raise _wrong(f"{where}: {error}", span, "") from None

    return read


def _codec(model: str) -> Any:
    """Return a model's tokenizer. Raise ProgramError if it cannot be loaded."""
    from rlgraph.backends.engines.sources import ModelSpec, load_codec

    try:
        return load_codec(ModelSpec("causal_lm", model))
    except EngineError as error:
        raise _wrong(str(error), _told(f"--model {model}"), "") from None


def _whole(value: object) -> bool:
    """Return whether a value is an integer."""
    return isinstance(value, int) and not isinstance(value, bool)


def _messages(value: object) -> bool:
    """Return whether a value is a list of messages."""
    return isinstance(value, Sequence) and bool(value) and all(isinstance(message, dict) for message in value)


def _told(words: str) -> Span:
    """Return the span of a part of the command."""
    shown = words if words.isprintable() else repr(words)
    return Span(Source("rlgraph lengths", shown), 1, 1, 1, len(shown) + 1)


def _wrong(message: str, span: Span, hint: str) -> ProgramError:
    return ProgramError(Diagnostic(NOT_COUNTED, message, span, hint))
