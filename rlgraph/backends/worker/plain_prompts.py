"""This module finds plain texts that a chat model is asked: it learned to answer what its chat template writes, and
goes on from a plain text as from any page."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.engines.sources import response_end_ids
from rlgraph.backends.engines.tokenizers import Codec, special_tokens_in
from rlgraph.backends.worker.function_trials import first_row
from rlgraph.backends.worker.prompt_limits import OpenedModel
from rlgraph.columns import value_or_none
from rlgraph.conversations import Example, OddRow, example_of_format
from rlgraph.data import BatchReader
from rlgraph.dsl.columns import find_episode_uses, find_prompt_uses
from rlgraph.dsl.data_uses import PromptUse
from rlgraph.dsl.lints import is_allowed
from rlgraph.errors import Diagnostic
from rlgraph.ir.graph import Program
from rlgraph.ops import NODES, attribute_value
from rlgraph.user_code import Environment

PLAIN_PROMPT = "W0520"
_CONTENT = "a question"
_SHOWN = 40
"""How many characters of a prompt are shown."""


def plain_prompt_warnings(
    program: Program,
    readers: Mapping[str, BatchReader],
    models: Mapping[str, OpenedModel],
    environments: Mapping[str, Environment],
) -> list[Diagnostic]:
    """Return a warning for each chat model and each column of plain texts that it is asked or trained on, by the first
    row of the data. Rows of a stream are passed over, which cannot be read ahead."""
    known = {name: reader.source.columns for name, reader in readers.items()}
    uses: list[PromptUse] = find_prompt_uses(program, known)
    for use in find_episode_uses(program, known):
        environment = environments.get(use.node.attr("env"))
        # An agent asks what it likes, and `turns=text` says that a text is meant.
        if attribute_value(use.node, "turns") == "chat" and (environment is None or environment.agent is None):
            uses.append(use)
    found: dict[tuple[str, str, str], Diagnostic | None] = {}
    for use in uses:
        key = use.source, use.column, program.original_model(program.model(use.model)).name
        row = first_row(readers, use.source)
        if key not in found and row is not None:
            found[key] = plain_prompt_warning(use, row[1], models[use.model].engine)
    return [warning for warning in found.values() if warning is not None]


def plain_prompt_warning(use: PromptUse, row: Mapping[str, Any], engine: Any) -> Diagnostic | None:
    """Return the warning for the prompt of a row; None where it is no plain text, or the model is not one that chats.
    engine: has a `codec` and a `spec`."""
    prompt = _prompt(use, row)
    if not isinstance(prompt, str):
        return None
    codec: Codec = engine.codec
    if not _chats(codec, response_end_ids(engine.spec, codec)) or _is_written(codec, prompt):
        return None
    text = json.dumps(prompt if len(prompt) <= _SHOWN else f"{prompt[:_SHOWN]}...", ensure_ascii=False)
    hint = f'write messages, {{"{use.column}": [{{"role": "user", "content": {text}}}]}}{_call_with_message(use)}'
    warning = Diagnostic(
        PLAIN_PROMPT,
        f"`{use.model}` is a chat model, and `{use.column}` of `{use.source}` is plain text: its chat template is not "
        "used",
        use.node.span,
        f"{hint}; where plain text is meant, end the line with `# allow {PLAIN_PROMPT}`",
    )
    return None if is_allowed(warning) else warning


def _call_with_message(use: PromptUse) -> str:
    """Return how the program itself makes a message of the texts; empty where it cannot."""
    message = f"user({use.source}.{use.column})"
    if use.shape is not None:
        return f", or `encode({message}, {use.source}.{use.shape.answer})` in the program"
    return "" if NODES[use.node.op].foreign else f", or ask `{message}` in the program"


def _prompt(use: PromptUse, row: Mapping[str, Any]) -> Any:
    """Return what the model reads before its answer; None where there is nothing. A text whose answer is messages is
    read as a message itself."""
    if use.shape is None:
        return value_or_none(row, use.column)
    if use.column != use.shape.prompt:
        return None
    try:
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


def _is_written(codec: Codec, prompt: str) -> bool:
    """Return whether a text is a conversation that is written out already: it has special tokens, or a line that the
    template writes around what is asked."""
    try:
        if special_tokens_in(codec.tokenizer, codec.encode_text(prompt)):
            return True
        before, _, after = codec.prompt_text([{"role": "user", "content": _CONTENT}], ()).rpartition(_CONTENT)
    except EngineError:
        return True  # Whoever asks it says what is wrong.
    around = (after.strip() or before.strip()).replace(str(codec.tokenizer.eos_token), "\n")
    return any(line.strip() in prompt for line in around.splitlines() if line.strip())
