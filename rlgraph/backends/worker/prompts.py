"""Which rows a node samples answers for, and their prompts as tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.frame import Frame
from rlgraph.backends.rows import RowId, Rows, TableData
from rlgraph.backends.worker.columns import missing_column_error
from rlgraph.backends.worker.session import ModelState, engine_run_error, row_too_long_error
from rlgraph.columns import WORDS, value_at, value_kind
from rlgraph.errors import Diagnostic, RunError, count_phrase
from rlgraph.ir.graph import Node
from rlgraph.ir.types import Table


def rows_to_answer(
    node: Node, frame: Frame, place: int = 1, *, asks: bool = True
) -> tuple[Rows, Sequence[Any], Sequence[Any]]:
    """Return the rows to answer, the data rows they came from, and the prompts. place: of the input that these are;
    asks: whether a row without a prompt is an error."""
    name = node.inputs[place]
    value, kind = frame.values[name], frame.types[name]
    if isinstance(kind, Table):
        rows = frame.rows[kind.axis.key]
        if value.sequences is not None:
            return rows, value.data, value.prompts
        if asks:
            return rows, value.data, data_column(value, "prompt", rows, node)
        return rows, value.data, tuple(row.get("prompt", "") for row in value.data)
    axis = kind.axis  # type: ignore[union-attr]
    assert axis
    rows = frame.rows[axis.key]
    return rows, tuple({"prompt": prompt} for prompt in value), tuple(value)


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


def ids_of_samples(parents: Rows, count: int) -> tuple[RowId, ...]:
    """Return the identities of `count` samples of each row."""
    if count == 1:
        return parents.known_ids
    return tuple((*row, sample) for row in parents.known_ids for sample in range(count))


def encode_prompts(node: Node, model: ModelState, prompts: Sequence[Any], parents: Rows) -> list[list[int]]:
    """Return the tokens of each prompt. Raises RunError for prompts that cannot be used."""
    encoded = []
    for place, prompt in enumerate(prompts):
        who = parents.row_name(place)
        if not isinstance(prompt, (str, list)):
            raise RunError(
                Diagnostic(
                    "E0732", f"the prompt of {who} is no text and no list of messages: {prompt!r:.60}", node.span
                )
            )
        try:
            encoded.append(model.engine.codec.encode_prompt(prompt))
        except (EngineError, TypeError, KeyError) as error:
            raise engine_run_error(node, f"the prompt of {who} cannot be used", error) from None
        longest, most = model.max_row_tokens, node.attr("max_tokens")
        if longest is not None and len(encoded[-1]) + most > longest:
            asked = f"the prompt of {who} has {count_phrase(len(encoded[-1]), 'token')}"
            asked = f"{asked}: with the {most:,} of `max_tokens` more it is"
            raise row_too_long_error(node, asked, len(encoded[-1]) + most, model, longest)
    return encoded
