"""This module has chat templates write a turn of an episode before the first step, so that one which cannot is said at
once, and not after the first answers."""

from __future__ import annotations

from collections.abc import Mapping

from rlgraph.backends.engines.errors import ConversationError, EngineError
from rlgraph.backends.worker.prompt_limits import OpenedModel
from rlgraph.backends.worker.trials import first_row
from rlgraph.columns import value_or_none
from rlgraph.conversations import OddRow, content, options_of, tools_of
from rlgraph.data import BatchReader
from rlgraph.dsl.columns import find_episode_uses
from rlgraph.errors import Diagnostic
from rlgraph.ir.graph import Program
from rlgraph.ops import attribute_value

_MADE_UP = {"role": "user", "content": "a"}


def try_turns(
    program: Program, readers: Mapping[str, BatchReader], models: Mapping[str, OpenedModel]
) -> list[Diagnostic]:
    """Return an error for each model whose template writes no piece between two turns, of the first row of the data
    with a made-up reply. Rows of a stream are passed over, which cannot be read ahead, and prompts that cannot be
    used: whoever asks them says what is wrong."""
    problems: dict[tuple[str, str], Diagnostic] = {}
    for use in find_episode_uses(program, {name: reader.source.columns for name, reader in readers.items()}):
        row = first_row(readers[use.source]) if use.source in readers else None
        prompt = None if row is None else value_or_none(row[1], use.column)
        if row is None or not isinstance(prompt, list) or attribute_value(use.node, "turns") != "chat":
            continue
        try:
            asked = list(content(prompt, use.column))
            # Where the prompt ends with no question, the first observation asks it.
            asked += [] if asked[-1]["role"] in ("user", "tool") else [_MADE_UP]  # type: ignore[index]
            models[use.model].engine.codec.encode_turn(asked, [[_MADE_UP]], tools_of(row[1]), options_of(row[1]))
        except ConversationError as error:
            message = f"the turns of {use.source} row {row[0]} cannot be written by `{use.model}`: {error}"
            problems[use.source, use.model] = Diagnostic(error.code, message, use.node.span, error.hint)
        except (EngineError, OddRow, TypeError, KeyError):
            continue
    return [*problems.values()]
