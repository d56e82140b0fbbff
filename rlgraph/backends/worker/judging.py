"""Prompts that are too long, found before the first step: the run does not begin, leaves them out, or cuts them.

What is too long is the model's to say (the positions that it has, less `max_tokens`) and the program's (`max_prompt`).
A text of few characters is not split into tokens: there cannot be more of them than its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from rlgraph.backends.engines.base import EngineError
from rlgraph.backends.engines.tokenizers import Codec
from rlgraph.columns import most_bytes
from rlgraph.data import Reader, Row
from rlgraph.data.base import NO_ROWS, DataSource, Fitted, enough, in_order
from rlgraph.dsl.columns import Asked, asked
from rlgraph.errors import Diagnostic, ProgramError, RunError, Span, counted
from rlgraph.ir.graph import Program

TOO_LONG = "E0748"
_TOGETHER = 4096
"""So many prompts are split into tokens at a time."""

Note = Callable[[str], None]


@dataclass(frozen=True)
class Limit:
    """How long the prompts in a column of the data may be."""

    column: str
    codec: Codec
    most: int
    """Tokens of a prompt."""
    span: Span
    """Where that is said."""
    model: str = ""
    """The model that does not take more; empty where it is the program that says how long a prompt may be."""
    longest: int = 0
    """Tokens of a row of that model."""
    answer: str = ""
    """The column of what stands behind a prompt, and is counted with it."""

    @property
    def fits_unread(self) -> int:
        """A text of so many bytes has no more tokens than are allowed, whatever it says."""
        return self.most // self.codec.most_tokens_a_byte - 16


class Opened(Protocol):
    """A model of the run, or a stand-in for one that is elsewhere."""

    @property
    def engine(self) -> Any:
        """It has a `codec`."""
        ...

    @property
    def longest(self) -> int | None:
        """Most tokens of a row; None: any number."""
        ...


def limits(program: Program, readers: Mapping[str, Reader], models: Mapping[str, Opened]) -> dict[str, list[Limit]]:
    """How long the prompts of each data source may be, where anything says so: for each column and tokenizer the lowest
    limit. A source whose rows come one after the other has none: nobody can look ahead."""
    known = {name: reader.source.columns for name, reader in readers.items()}
    asks = asked(program, known)
    found: dict[str, list[Limit]] = {}
    for name, reader in readers.items():
        if reader.source.numbers is None:
            continue
        lowest: dict[tuple[str, str, str], Limit] = {}
        for limit, model in _limits(program, reader.source, [ask for ask in asks if ask.source == name], models):
            key = limit.column, limit.answer, program.original(program.model(model)).name
            if key not in lowest or limit.most < lowest[key].most:
                lowest[key] = limit
        if lowest:
            found[name] = [*lowest.values()]
    return found


def _limits(
    program: Program, source: DataSource, asks: Sequence[Asked], models: Mapping[str, Opened]
) -> Iterator[tuple[Limit, str]]:
    """Each with the name of the model whose tokens are counted."""
    said, at = source.max_prompt, source.spec.at("max_prompt")
    for ask in asks:
        codec = models[ask.model].engine.codec
        if said is not None:
            yield Limit(ask.column, codec, said, at), ask.model
        # Whoever leaves rows out may leave out those that are too long.
        longest = None if ask.chosen else models[ask.model].longest
        if longest is not None:
            most = longest - ask.node.attr("max_tokens", 0)
            yield Limit(ask.column, codec, most, ask.node.span, ask.model, longest, ask.answer), ask.model
    if said is not None and not asks and program.models:
        # What is not asked is encoded, with the tokenizer of the first model.
        first = program.models[0].name
        yield Limit("prompt", models[first].engine.codec, said, at), first


def judge(readers: Mapping[str, Reader], limits: Mapping[str, Sequence[Limit]], note: Note) -> list[str]:
    """Applies the limits of each data source, by name. What was left out or cut, a sentence for each source. Raises
    `ProgramError`, with an error for each source whose rows are too long."""
    told: list[str] = []
    problems: list[Diagnostic] = []
    for name, found in limits.items():
        reader = readers[name]
        try:
            told += _judge(reader, found, note)
        except ProgramError as error:
            problems += error.diagnostics
    if problems:
        raise ProgramError(problems)
    return told


def _judge(reader: Reader, limits: Sequence[Limit], note: Note) -> list[str]:
    source, name = reader.source, reader.name
    assert source.numbers is not None
    longer = {limit: _longer(source, name, limit, note) for limit in limits if _may_be_longer(source, limit)}
    rows = sorted({number for found in longer.values() for number in found})
    if not rows:
        return []
    share = f"{len(rows):,} of the {counted(len(source.numbers), 'row')} of `{name}`"
    if source.overlong == "drop":
        left = set(rows)
        kept = [number for number in source.numbers if number not in left]
        if not kept:
            message = f"the prompts of all rows of `{name}` are too long, and none is left"
            hint = "take a model of a longer context, fewer `max_tokens`, a larger `max_prompt`, or `overlong=cut`"
            raise ProgramError(Diagnostic(NO_ROWS, message, source.spec.span, hint))
        reader.source = enough(replace(source, kept=kept), f"`{name}`, without {share},")
        return [f"left out {share}: their prompts are too long"]
    if source.overlong == "cut":
        rules = {limit: frozenset(found) for limit, found in longer.items()}
        reader.source = replace(source, rows=Fitted(source.rows, lambda number, row: _cut(name, rules, number, row)))  # type: ignore[arg-type]
        for number in rows:
            reader.source.rows[number]  # type: ignore[index]  # What cannot be cut is said now.
        return [f"cut the prompts of {share}, which are too long"]
    limit, found = next((limit, found) for limit, found in longer.items() if found)
    raise ProgramError(_too_long(name, limit, found, share))


def _may_be_longer(source: DataSource, limit: Limit) -> bool:
    """Whether a look at the rows is needed: the longest text of the column may be too long."""
    longest = 0
    for name in filter(None, (limit.column, limit.answer)):
        column = (source.columns or {}).get(name)
        if column is None or column.longest is None or set(column.first) - {"text", "missing", "null"}:
            return True
        longest += column.longest
    return longest > limit.fits_unread


def _longer(source: DataSource, name: str, limit: Limit, note: Note) -> dict[int, int]:
    """The numbers of the rows that are too long, and how many tokens their prompts have."""
    assert source.numbers is not None
    found: dict[int, int] = {}
    for part, done in _parts(source, limit):
        for number, tokens in zip(part, _tokens(name, limit, part), strict=True):
            if tokens > limit.most:
                found[number] = tokens
        note(f"counting the tokens of `{name}`: {done:,} of {counted(len(source.numbers), 'row')}")
    return found


def _parts(source: DataSource, limit: Limit) -> Iterator[tuple[dict[int, tuple[Any, str]], int]]:
    """Prompts to count, with the answers that stand behind them, by the number of their row, so many at a time; and how
    many rows were looked at."""
    assert source.numbers is not None
    part: dict[int, tuple[Any, str]] = {}
    for done, (number, row) in enumerate(in_order(source), 1):
        prompt, answer = row.get(limit.column), _answer(limit, row)
        size = most_bytes(prompt) + most_bytes(answer) if isinstance(prompt, str) else None
        if isinstance(prompt, list) or size is not None and size > limit.fits_unread:
            part[number] = prompt, answer
        if len(part) == _TOGETHER or done == len(source.numbers):
            yield part, done
            part = {}


def _answer(limit: Limit, row: Row) -> str:
    """What stands behind a row's prompt; nothing, where the model makes it."""
    answer = row.get(limit.answer) if limit.answer else ""
    return answer if isinstance(answer, str) else ""


def _behind(limit: Limit, answer: str) -> int:
    """The tokens of what stands behind a prompt."""
    return len(limit.codec.encode_response(answer)) if limit.answer else 0


def _tokens(name: str, limit: Limit, part: Mapping[int, tuple[Any, str]]) -> list[int]:
    try:
        prompts = limit.codec.prompt_lengths([prompt for prompt, _ in part.values()])
        return [tokens + _behind(limit, answer) for tokens, (_, answer) in zip(prompts, part.values(), strict=True)]
    except (EngineError, TypeError, KeyError):
        # One of them: which is found by trying one at a time.
        return [_alone(name, limit, number, *texts) for number, texts in part.items()]


def _alone(name: str, limit: Limit, number: int, prompt: Any, answer: str) -> int:
    try:
        return len(limit.codec.encode_prompt(prompt)) + _behind(limit, answer)
    except (EngineError, TypeError, KeyError) as error:
        message = f"the prompt of {name} row {number} cannot be used: {error}"
        raise ProgramError(Diagnostic("E0731", message, limit.span)) from None


def _too_long(name: str, limit: Limit, found: Mapping[int, int], share: str) -> Diagnostic:
    number, tokens = next(iter(found.items()))
    more = f" ({share} are too long)" if len(found) > 1 else ""
    said = f"the prompt of {name} row {number} has {counted(tokens, 'token')}"
    ways = f"say what becomes of such rows, with `overlong=drop` or `overlong=cut` in `data {name}`"
    if not limit.model:
        message = f"{said}, more than the {limit.most:,} of `max_prompt`{more}"
        return Diagnostic(TOO_LONG, message, limit.span, ways)
    if limit.answer:
        said = f"{name} row {number} has {counted(tokens, 'token')} in `{limit.column}` and `{limit.answer}`"
        message = f"{said}, more than the {limit.longest:,} that a row of `{limit.model}` may have{more}"
        return Diagnostic(TOO_LONG, message, limit.span, ways)
    room = limit.longest - limit.most
    message = f"{said}: with the {room:,} of `max_tokens` more it is longer than the {limit.longest:,} that a row of "
    message += f"`{limit.model}` may have{more}"
    return Diagnostic(TOO_LONG, message, limit.span, f"lower `max_tokens`, or {ways}")


def _cut(name: str, rules: Mapping[Limit, frozenset[int]], number: int, row: Row) -> Row:
    for limit, numbers in rules.items():
        if number in numbers:
            column = limit.column
            row = {**row, column: _shortened(name, limit, number, row[column], _behind(limit, _answer(limit, row)))}
    return row


def _shortened(name: str, limit: Limit, number: int, prompt: Any, behind: int) -> Any:
    """A prompt without its beginning; of messages, without that of the last one that the user wrote. behind: tokens of
    what follows."""
    place = None
    if isinstance(prompt, list):
        users = [at for at, message in enumerate(prompt) if message.get("role") == "user"]
        place = users[-1] if users else len(prompt) - 1
    text = prompt if place is None else prompt[place]["content"]

    def made(start: int) -> Any:
        if place is None:
            return text[start:]
        return [*prompt[:place], {**prompt[place], "content": text[start:]}, *prompt[place + 1 :]]

    def fits(start: int) -> bool:
        return len(limit.codec.encode_prompt(made(start))) + behind <= limit.most

    if not isinstance(text, str) or not fits(len(text)):
        message = f"the prompt of {name} row {number} cannot be cut to {counted(limit.most, 'token')}: what is not the "
        message += "text of its last message is longer"
        raise RunError(Diagnostic(TOO_LONG, message, limit.span, "leave such rows out: `overlong=drop`"))
    low, high = 0, len(text)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle + 1, high)
    return made(high)
