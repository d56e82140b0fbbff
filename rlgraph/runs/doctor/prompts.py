"""Shows the first prompt of the data as its model will read it, and calls the functions of a program on made-up
answers to it."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlgraph.backends.engines.errors import ConversationError, EngineError
from rlgraph.backends.engines.tokenizers import Codec
from rlgraph.backends.worker.function_trials import FunctionTrial
from rlgraph.backends.worker.prompt_limits import OpenedModel
from rlgraph.columns import value_at, value_or_none
from rlgraph.conversations import OddRow, example_of_format, parse_content, template_options_of, tools_of
from rlgraph.data import BatchReader, Cursor
from rlgraph.dsl.data_uses import PromptUse
from rlgraph.errors import count_phrase
from rlgraph.ir.graph import Program
from rlgraph.ir.types import StateHandle, Table
from rlgraph.ops import NODES
from rlgraph.runs.doctor.finding import Finding

MADE_UP = "This is a made-up answer: 42."
SHOWN_TOKENS = 60
"""How many tokens of a prompt are shown at most, half of them from its end."""
SHOWN_CHARACTERS = 2000
_WIDTH = 100

Rows = Mapping[str, Sequence[Mapping[str, Any]]]
"""The first rows of each data source."""


def first_rows(reader: BatchReader) -> list[dict[str, Any]]:
    """Return the rows of the first step of a run with seed 0. Raises ProgramError, RunError."""
    return reader.read_batch(Cursor())[0]


def prompt_findings(
    program: Program, uses: Sequence[PromptUse], rows: Rows, models: Mapping[str, OpenedModel]
) -> Iterator[Finding]:
    """Yield for each column of prompts and each tokenizer the first prompt as the model reads it."""
    done = set()
    for use in uses:
        key = use.source, use.column, use.shape, program.original_model(program.model(use.model)).name
        if key in done or not rows.get(use.source) or use.model not in models:
            continue
        done.add(key)
        row, codec = rows[use.source][0], models[use.model].engine.codec
        subject, place = f"{use.source}.{use.column}", str(use.node.span)
        try:
            prompt = value_at(row, use.column)
        except (KeyError, TypeError):
            continue  # The comparison of columns has said so.
        try:
            ids, learned = _read(codec, use, row, prompt)
        except ConversationError as error:
            yield Finding("fails", subject, f"the first row cannot be used: {error}", error.hint, place)
            continue
        except (EngineError, OddRow, TypeError, KeyError) as error:
            hint = "`prompt` is a text, or a list of messages with `role` and `content`"
            yield Finding("fails", subject, f"the first prompt cannot be used: {error}", hint, place)
            continue
        what = "row" if use.shape else "prompt"
        more = f", {count_phrase(learned, 'token')} of them with loss" if use.shape else ""
        message = f"the first {what} as `{use.model}` reads it, {count_phrase(len(ids), 'token')}{more}:"
        yield Finding("ok", subject, message, shown=(*_text(codec, ids), *_tokens(codec, ids)))


def _read(codec: Codec, use: PromptUse, row: Mapping[str, Any], prompt: Any) -> tuple[list[int], int]:
    """Return the tokens that a model reads of a row, and how many of them carry loss. Raises EngineError, OddRow,
    TypeError, KeyError for a row that cannot be used."""
    if use.shape is None:
        tools, options = (tools_of(row), template_options_of(row)) if use.whole else ((), {})
        return codec.encode_prompt(parse_content(prompt, use.column), tools, options), 0
    ids, learned = codec.encode_example(example_of_format(row, use.shape, last=use.last, whole=use.whole))
    return ids, sum(learned)


def tokenizer_mismatch_findings(
    program: Program, rows: Rows, codecs: Mapping[str, Codec], prompts: Mapping[str, str]
) -> Iterator[Finding]:
    """Yield the models that read what others wrote, and cannot read the first prompt: one of another tokenizer writes
    it anew, by a template of its own. prompts: the column of prompts of each data source."""
    done = set()
    for phase in program.phases:
        types = phase.graph.value_types()
        for node in phase.graph.walk():
            if not NODES[node.op].uses_model or len(node.inputs) < 2:
                continue
            model, table = types[node.inputs[0]], types[node.inputs[1]]
            source = table.axis.root_axis.name if isinstance(table, Table) else ""
            if not isinstance(model, StateHandle) or model.name not in codecs or not rows.get(source):
                continue
            prompt = value_or_none(rows[source][0], prompts.get(source, "prompt"))
            if prompt is None or (source, model.name) in done:
                continue
            done.add((source, model.name))
            try:
                codecs[model.name].encode_prompt(prompt)
            except (EngineError, TypeError, KeyError) as error:
                hint = "write prompts as texts, or take a model whose tokenizer has a chat template"
                message = f"`{model.name}` cannot read the first prompt of `{source}`: {error}"
                yield Finding("fails", model.name, message, hint, str(node.span))


def _text(codec: Codec, ids: list[int]) -> list[str]:
    """Return the text of tokens, special ones too, line by line."""
    text = str(codec.tokenizer.decode(ids, skip_special_tokens=False))
    if len(text) > SHOWN_CHARACTERS:
        text = f"{text[: SHOWN_CHARACTERS // 2]}\n...\n{text[-SHOWN_CHARACTERS // 2 :]}"
    return [f"| {line}" for line in text.split("\n")]


def _tokens(codec: Codec, ids: list[int]) -> list[str]:
    """Return tokens with their numbers, in lines."""
    half = SHOWN_TOKENS // 2
    left_out = len(ids) - SHOWN_TOKENS
    parts = ids if left_out <= 0 else [*ids[:half], None, *ids[-half:]]
    shown = [f"... {left_out:,} more ..." if part is None else _token(codec, part) for part in parts]
    return textwrap.wrap(" ".join(shown), _WIDTH, break_long_words=False, break_on_hyphens=False)


def _token(codec: Codec, token: int) -> str:
    """Return a token with its number, its blanks as signs so that lines break between tokens."""
    text = json.dumps(str(codec.tokenizer.decode([token], skip_special_tokens=False)), ensure_ascii=False)
    return f"{token}:{text.replace(' ', '·')}"


def reward_findings(
    program: Program, name: str, trial: FunctionTrial | None, rows: Rows, codecs: Mapping[str, Codec]
) -> Iterator[Finding]:
    """Yield what a function gives for two answers to the first row: a made-up one, and an empty one. trial: how it is
    called; None where it cannot be. Raises RunError where it fails."""
    if trial is None:
        yield Finding("note", name, _why_not_called(program, name, rows))
        return
    source, codec = trial.use.source, next(iter(codecs.values()), None)
    answers = [MADE_UP, *[""] * (trial.answer_count - 1)]
    called = [f"{kind} answer to {trial.row}" for kind in ("a made-up", *["an empty"] * (len(answers) - 1))]
    judged = trial.call_function(answers, called, codec.encode_text if codec else None)
    given = zip(answers[:2], judged.columns[0], judged.states, strict=False)
    shown = ", ".join(f"{answer!r}: {value if state >= 0 else 'no number'}" for answer, value, state in given)
    yield Finding("ok", name, f"called on made-up answers to the first row of `{source}`: {shown}")
    for failure in judged.failures[:1]:
        yield Finding("note", name, f"failed {failure}; a run goes on, and counts how often it does")


def _why_not_called(program: Program, name: str, rows: Rows) -> str:
    """Return a sentence on a function for which there is nothing to call it with."""
    calls = [
        (node, phase.graph.value_types())
        for phase in program.phases
        for node in phase.graph.walk()
        if node.attr("func", None) == name
    ]
    if not calls:
        return "is loaded, and nothing calls it"
    node, types = calls[0]
    table = types[node.inputs[0]]
    source = table.axis.root_axis.name if isinstance(table, Table) else ""
    if source in rows and not rows[source]:
        return f"is loaded; it was not called, because `{source}` has no row to show it"
    why = "it says `trial=false`, or nothing can be made up that is like an answer of the program"
    return f"is loaded; it was not called, because {why}"
