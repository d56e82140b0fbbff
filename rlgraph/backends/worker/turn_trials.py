"""This module has chat templates write a turn of an episode before the first step, so that one which cannot is said at
once, and not after the first answers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rlgraph.backends.engines.errors import ConversationError, EngineError
from rlgraph.backends.engines.tokenizers import Codec
from rlgraph.backends.worker.function_trials import first_row
from rlgraph.backends.worker.prompt_limits import OpenedModel
from rlgraph.columns import value_or_none
from rlgraph.conversations import Message, OddRow, parse_content, template_options_of, tools_of
from rlgraph.data import BatchReader
from rlgraph.dsl.columns import find_episode_uses
from rlgraph.errors import NO_SPAN, Diagnostic, quoted_list
from rlgraph.ir.graph import Program
from rlgraph.ops import attribute_value
from rlgraph.user_code import Environment

_ASKED = {"role": "user", "content": "a"}


def try_turns(
    program: Program,
    readers: Mapping[str, BatchReader],
    models: Mapping[str, OpenedModel],
    environments: Mapping[str, Environment],
) -> list[Diagnostic]:
    """Return an error for each model whose template writes no piece between two turns, of the first row of the data
    with a made-up reply, or does not show the tools of an environment. Rows of a stream are passed over, which cannot
    be read ahead, and prompts that cannot be used: whoever asks them says what is wrong."""
    problems: dict[tuple[str, str], Diagnostic] = {}
    for use in find_episode_uses(program, {name: reader.source.columns for name, reader in readers.items()}):
        row = first_row(readers, use.source)
        prompt = None if row is None else value_or_none(row[1], use.column)
        environment = environments.get(use.node.attr("env"))
        if row is None or prompt is None or (environment is not None and environment.agent is not None):
            continue
        chats = attribute_value(use.node, "turns") == "chat" and isinstance(prompt, list)
        fault = None
        if chats:
            fault = _turn_fault(models[use.model].engine.codec, prompt, row[1], environment)
        elif environment is not None and environment.tools:
            message = "tools are called in a chat, and its episode is a text"
            fault = Diagnostic(
                "E0861", message, NO_SPAN, "make the prompt a list of messages, and leave out `turns=text`"
            )
        if fault is not None:
            message = f"the turns of {row[0]} cannot be written by `{use.model}`: {fault.message}"
            problems[use.source, use.model] = replace(fault, message=message, span=use.node.span)
    return [*problems.values()]


def _turn_fault(
    codec: Codec, prompt: Any, row: Mapping[str, Any], environment: Environment | None
) -> Diagnostic | None:
    """Return what is wrong with the turns of a row; None if nothing is, or who asks it says so."""
    tools = [] if environment is None else [*environment.tools]
    role = "user" if environment is None else environment.replies_as
    try:
        asked: list[Message] = [*parse_content(prompt, "prompt")]
        # Where the prompt ends with no question, the first observation asks it.
        begun = asked[-1]["role"] in ("user", "tool") or codec.chat.goes_on_from(asked)
        asked += [] if begun else [_ASKED]
        given = [*tools, *tools_of(row)], template_options_of(row)
        shown = codec.prompt_text(asked, *given)
        codec.encode_between_answers(asked, [[{"role": role, "content": "a"}]], *given)
    except ConversationError as error:
        return Diagnostic(error.code, str(error), NO_SPAN, error.hint)
    except EngineError as error:
        hint = 'give the model a template that writes messages of the role `tool`: `chat=chat(template="FILE.jinja")`'
        return Diagnostic("E0865", f"what a tool returns: {error}", NO_SPAN, hint) if tools else None
    except (OddRow, TypeError, KeyError):
        return None
    names = [tool["function"]["name"] for tool in tools]
    hidden = [name for name in names if not re.search(rf"\b{re.escape(name)}\b", shown)]
    if not hidden:
        return None
    hint = (
        'give the model a template that writes `tools`, `chat=chat(template="FILE.jinja")`, or say in the system\'s '
        "message what they are and how they are called"
    )
    return Diagnostic("E0865", f"the chat template shows nothing of {quoted_list(hidden, 'and')}", NO_SPAN, hint)
