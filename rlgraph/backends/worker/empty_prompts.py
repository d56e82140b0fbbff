"""This module finds empty prompts in the data before the first step: a model goes on from no question there, and where
its tokenizer has nothing to begin with, it cannot."""

from __future__ import annotations

from collections.abc import Mapping

from rlgraph.backends.engines.tokenizers import Codec
from rlgraph.backends.worker.prompt_limits import OpenedModel
from rlgraph.columns import EmptyValues, column_at
from rlgraph.data import BatchReader
from rlgraph.dsl.columns import find_prompt_uses, find_written_uses
from rlgraph.dsl.data_uses import PromptUse
from rlgraph.dsl.lints import is_allowed
from rlgraph.errors import Diagnostic, count_phrase
from rlgraph.ir.graph import Program

EMPTY_PROMPT = "W0523"


def empty_prompt_diagnostics(
    program: Program, readers: Mapping[str, BatchReader], models: Mapping[str, OpenedModel]
) -> list[Diagnostic]:
    """Return a warning for each column with empty prompts and each model that reads them, or an error where the model
    cannot. Rows of a stream are passed over, which cannot be read ahead."""
    known = {name: reader.source.columns for name, reader in readers.items()}
    found: dict[tuple[str, str, str], Diagnostic] = {}
    for use in [*find_prompt_uses(program, known), *find_written_uses(program, known)]:
        columns = known.get(use.source)
        column = column_at(columns, use.column) if columns and not _is_answer(use) else None
        # A program that leaves rows out may leave out those without a prompt.
        if column is not None and column.empty and not use.chosen:
            key = use.source, use.column, program.original_model(program.model(use.model)).name
            rows = count_phrase(readers[use.source].source.row_count or 0, "row")
            found.setdefault(key, _diagnostic(use, column.empty, rows, models[use.model].engine.codec))
    return [diagnostic for diagnostic in found.values() if not is_allowed(diagnostic)]


def _is_answer(use: PromptUse) -> bool:
    return use.shape is not None and use.column != use.shape.prompt


def _diagnostic(use: PromptUse, empty: Mapping[str, EmptyValues], rows: str, codec: Codec) -> Diagnostic:
    count, first = sum(held.count for held in empty.values()), next(iter(empty.values())).first
    where = f"`{use.column}` is empty in {count:,} of the {rows} of `{use.source}`, first in {first}"
    hint = f"write a prompt in every row; where an empty one is meant, end the line with `# allow {EMPTY_PROMPT}`"
    if use.as_message or "text" not in empty:
        return Diagnostic(EMPTY_PROMPT, f"{where}: `{use.model}` is asked an empty message there", use.node.span, hint)
    begins = codec.encode_prompt("") or ([] if codec.start_id is None else [codec.start_id])
    if not begins:
        message = f"{where}: `{use.model}` cannot begin there, since its tokenizer has no token that a text begins with"
        hint = f'leave such rows out: `keep {use.source} where {use.source}.{use.column} != ""`'
        return Diagnostic("E0731", message, use.node.span, hint)
    read = codec.tokenizer.decode(begins)
    return Diagnostic(EMPTY_PROMPT, f"{where}: `{use.model}` reads only `{read}` there", use.node.span, hint)
