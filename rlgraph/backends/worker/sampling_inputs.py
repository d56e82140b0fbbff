"""Which rows a node samples answers for, and their prompts as tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.frame import Frame
from rlgraph.backends.rows import RowId, Rows, TableData
from rlgraph.backends.worker.columns import missing_column_error
from rlgraph.backends.worker.session import Session, SessionModel, engine_run_error, row_too_long_error
from rlgraph.columns import WORDS, value_at, value_kind
from rlgraph.conversations import (
    Example,
    OddRow,
    RowFormat,
    example_of_format,
    example_of_row,
    format_of_row,
    messages_or_value,
    parse_content,
    template_options_of,
    tools_of,
)
from rlgraph.errors import Diagnostic, RunError, count_phrase
from rlgraph.ir.graph import Node
from rlgraph.ir.types import Table
from rlgraph.ops import attribute_value
from rlgraph.ops.nodes import prompt_column_of


def rows_to_answer(
    node: Node, frame: Frame, session: Session, place: int = 1, *, asks: bool = True
) -> tuple[Rows, Sequence[Any], Sequence[Any]]:
    """Return the rows to answer, the data rows they came from, and the prompts; where another column than `prompt` has
    these, they are the data's `prompt` from here on. place: of the input that these are; asks: whether a row without a
    prompt is an error."""
    name = node.inputs[place]
    value, kind = frame.values[name], frame.types[name]
    if isinstance(kind, Table):
        rows = frame.rows[kind.axis.key]
        if column := prompt_column_of(node):
            prompts = _messages_of_column(column, table_column(column, value, session, rows, node), rows, node)
            data = [{**row, "prompt": prompt} for row, prompt in zip(value.data, prompts, strict=True)]
            return rows, data, prompts
        if value.sequences is not None:
            return rows, value.data, tuple(map(prompt_of, value.prompts))
        if asks:
            return rows, value.data, data_column(value, "prompt", rows, node)
        return rows, value.data, tuple(row.get("prompt", "") for row in value.data)
    axis = kind.axis  # type: ignore[union-attr]
    assert axis
    rows = frame.rows[axis.key]
    # Texts that the program has computed.
    return rows, tuple({"prompt": prompt} for prompt in value), tuple(value)


def _messages_of_column(column: str, prompts: Iterable[Any], rows: Rows, node: Node) -> list[Any]:
    """Return prompts, of a column of conversations as messages. Raises RunError."""
    made = []
    for place, prompt in enumerate(prompts):
        try:
            made.append(messages_or_value(prompt, column))
        except OddRow as error:
            message = f"the prompt of {rows.row_name(place)} cannot be used: {error}"
            raise RunError(Diagnostic("E0732", message, node.span)) from None
    return made


def prompt_of(shown: Any) -> Any:
    """Return the text or the messages that a row with tokens begins with; an empty text where it begins with none.
    shown: its prompt, or of a row that was encoded, the whole example."""
    if not isinstance(shown, Example):
        return shown
    return "" if shown.prompt is None else shown.prompt


def rows_to_encode(node: Node, frame: Frame, rows: Rows) -> tuple[tuple[Mapping[str, Any], ...], tuple[Example, ...]]:
    """Return the rows of the data that a node encodes, and what a model is shown of each. Raises RunError for a row
    that shows nothing."""
    values = [frame.values[name] for name in node.inputs]
    answer, last = attribute_value(node, "answer"), attribute_value(node, "turns") == "last"
    whole = isinstance(frame.types[node.inputs[0]], Table)
    # The table gets the columns of the data, so that functions can be called on it.
    names = ("prompt", "response")[-len(values) :]
    data = values[0].data if whole else tuple(dict(zip(names, row, strict=True)) for row in zip(*values, strict=True))
    given = RowFormat("response", "prompt" if len(values) > 1 else "")
    examples = []
    for place, row in enumerate(data):
        try:
            examples.append(
                example_of_row(row, answer, last=last) if whole else example_of_format(row, given, last=last)
            )
        except OddRow as error:
            code = "E0771" if whole and format_of_row(row, answer) is None else "E0732"
            raise RunError(Diagnostic(code, f"{rows.row_name(place)} cannot be encoded: {error}", node.span)) from None
    return data, tuple(examples)


def table_column(name: str, table: TableData, session: Session, rows: Rows | None, node: Node) -> Any:
    """Return the column of a table that a node asks for, unless it depends on the step; `rows` tell which row
    lacks it."""
    if name in table.columns:
        return table.columns[name]
    if name == "turn" and "turns" in table.columns:
        turns: torch.Tensor = table.columns["turns"]
        return torch.arange(int(turns.sum())) - (turns.cumsum(0) - turns).repeat_interleave(turns)
    if table.sequences is not None:
        sequences = table.sequences
        if name == "tokens":
            return sequences.tokens[sequences.scored]
        if name == "length":
            return sequences.scored_counts()
        if name == "end":
            counts = sequences.scored_counts()
            end = torch.zeros(int(counts.sum()), dtype=torch.bool)
            end[counts.cumsum(0)[counts > 0] - 1] = True
            return end
        if name == "text":
            codec = session.models[table.owner].engine.codec
            return [codec.decode(row) for row in sequences.scored_tokens_by_row()]
    return list(data_column(table, name, rows, node))


def data_column(table: TableData, name: str, rows: Rows | None, node: Node) -> tuple[Any, ...]:
    """Return a column of the data that a table's rows came from, or what its objects hold under a name
    (`extra_info.answer`); the error names the row that lacks it."""
    values: list[Any] = []
    for place, row in enumerate(table.data):
        who = rows.row_name(place) if rows else f"row {place}"
        try:
            values.append(value_at(row, name))
        except KeyError:
            others = any(_has(other_row, name) for other_row in table.data)
            raise missing_column_error(who, name, node.span, () if others else tuple(row)) from None
        except TypeError as error:
            outer = str(error)
            what, inner = WORDS[value_kind(value_at(row, outer))], name.removeprefix(f"{outer}.")
            message = f"`{outer}` of {who} is {what}, which has no `{inner}`"
            raise RunError(Diagnostic("E0760", message, node.span, "write an object in every row")) from None
    return tuple(values)


def _has(row: Mapping[str, Any], name: str) -> bool:
    try:
        value_at(row, name)
    except (KeyError, TypeError):
        return False
    return True


def tokens_to_go_on_from(node: Node, frame: Frame, model: SessionModel, session: Session) -> list[list[int]] | None:
    """Return the tokens that a node goes on from, for each row that is asked; None where it is asked texts. Raises
    RunError for rows that are too long, or of another tokenizer."""
    kind, table = frame.types[node.inputs[1]], frame.values[node.inputs[1]]
    if not isinstance(kind, Table) or kind.start == "text" or prompt_column_of(node):
        return None
    codec, owner = model.engine.codec, session.models[table.owner].engine.codec
    if codec is not owner and codec.tokenizer.get_vocab() != owner.tokenizer.get_vocab():
        message = f"`{model.model.name}` and `{table.owner}` split texts into other tokens: it cannot go on from these"
        hint = "ask it with texts: `generate(rollout.text)`"
        raise RunError(Diagnostic("E0310", message, node.span, hint))
    begun: list[list[int]] = table.sequences.rows()
    if kind.start == "tokens":
        begun = [row[:start] for row, start in zip(begun, table.sequences.first_scored(), strict=True)]
    longest, most, ended = model.max_row_tokens, node.attr("max_tokens"), ended_rows(node, frame, session)
    for place, row in enumerate(begun):
        if longest is not None and not ended[place] and len(row) + most > longest:
            who = frame.rows[kind.axis.key].row_name(place)
            asked = (
                f"{who} goes on from {count_phrase(len(row), 'token')}: with the {most:,} of `max_tokens` more it is"
            )
            raise row_too_long_error(node, asked, len(row) + most, model, longest)
    return begun


def ended_rows(node: Node, frame: Frame, session: Session) -> list[bool]:
    """Return for each row that is asked whether it has ended already: it goes on with nothing."""
    kind, table = frame.types[node.inputs[1]], frame.values[node.inputs[1]]
    if not isinstance(kind, Table) or kind.start != "row" or prompt_column_of(node):
        return [False] * len(rows_to_answer(node, frame, session)[2])
    if kind.sampled:
        return list(table.columns["finished"].tolist())
    end = session.models[table.owner].engine.codec.eos_id
    return [
        bool(row) and scored[-1] and row[-1] == end
        for row, scored in zip(table.sequences.rows(), table.sequences.scored_by_row(), strict=True)
    ]


def check_read_from_texts(node: Node, table: TableData, kind: Table, rows: Rows, owner: Any, model: str) -> None:
    """Raise RunError for a row that is more than its prompt and one answer, which a model with another tokenizer is to
    read. owner: the codec that made its tokens."""
    assert table.sequences is not None
    sequences = table.sequences
    by_row = zip(sequences.rows(), sequences.scored_by_row(), sequences.first_scored(), strict=True)
    for place, (tokens, scored, start) in enumerate(by_row):
        prompt, row = parse_content(prompt_of(table.prompts[place]), "prompt"), table.data[place]
        asked = owner.encode_prompt(prompt, tools_of(row), template_options_of(row))
        if not all(scored[start:]) or tokens[:start] != asked:
            message = f"{rows.row_name(place)} is made of pieces, and `{model}` splits texts into other tokens"
            hint = "let it read one text of the pieces: `encode` of a prompt and an answer"
            raise RunError(Diagnostic("E0310", message, node.span, hint))


def ids_of_samples(parents: Rows, count: int) -> tuple[RowId, ...]:
    """Return the identities of `count` samples of each row."""
    if count == 1:
        return parents.known_ids
    return tuple((*row, sample) for row in parents.known_ids for sample in range(count))


def encode_prompts(
    node: Node,
    model: SessionModel,
    prompts: Sequence[Any],
    parents: Rows,
    data: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] = (),
) -> list[list[int]]:
    """Return the tokens of each prompt. data: the rows that they came from, with their tools; tools: those that all
    rows have besides. Raises RunError for prompts that cannot be used."""
    encoded = []
    for place, (prompt, row) in enumerate(zip(prompts, data, strict=True)):
        who = parents.row_name(place)
        if not isinstance(prompt, (str, list)):
            raise RunError(
                Diagnostic(
                    "E0732", f"the prompt of {who} is no text and no list of messages: {prompt!r:.60}", node.span
                )
            )
        try:
            asked, codec = parse_content(prompt, "prompt"), model.engine.codec
            encoded.append(codec.encode_prompt(asked, [*tools, *tools_of(row)], template_options_of(row)))
            if not encoded[-1] and codec.start_id is None:
                raise EngineError("it is empty, and the tokenizer has no token that a text begins with")
        except OddRow as error:
            raise RunError(Diagnostic("E0732", f"the prompt of {who} cannot be used: {error}", node.span)) from None
        except (EngineError, TypeError, KeyError) as error:
            raise engine_run_error(node, f"the prompt of {who} cannot be used", error) from None
        longest, most = model.max_row_tokens, node.attr("max_tokens")
        if longest is not None and len(encoded[-1]) + most > longest:
            asked = f"the prompt of {who} has {count_phrase(len(encoded[-1]), 'token')}"
            asked = f"{asked}: with the {most:,} of `max_tokens` more it is"
            raise row_too_long_error(node, asked, len(encoded[-1]) + most, model, longest)
    return encoded
