"""What an agent is answered: answers of a model as OpenAI's API writes them, whole or as a stream."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlgraph.backends.weight_versions import Runs
from rlgraph.backends.worker.agent_requests import AgentRequest
from rlgraph.user_code import ToolCall


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer of the model."""

    content: str
    calls: tuple[tuple[str, ToolCall], ...]
    """The calls of tools in it, each with its id."""
    reason: str
    """Why it ended: `stop`, `length` or `tool_calls`."""
    ids: Sequence[int]
    pieces: Sequence[str]
    """The texts of its tokens."""
    logprobs: Sequence[float]
    versions: Runs
    """Which versions of the weights made the tokens."""

    def message(self) -> dict[str, Any]:
        """Return it as a message."""
        said: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.calls:
            said |= {"content": self.content or None, "tool_calls": [_call(name, call) for name, call in self.calls]}
        return said


@dataclass(frozen=True, slots=True)
class AgentAnswer:
    """The answers to a request."""

    name: str
    """A name that no other answer of the episode has."""
    model: str
    prompt_ids: Sequence[int]
    choices: Sequence[Choice]


def answer_body(request: AgentRequest, answer: AgentAnswer) -> dict[str, Any]:
    """Return what is sent back for a request."""
    choices = []
    for index, choice in enumerate(answer.choices):
        said = {"message": choice.message()} if request.is_chat else {"text": choice.content}
        choices.append({"index": index, **said, **_of_choice(request, choice)})
    body = {**_head(request, answer), "choices": choices, "usage": _usage(answer)}
    return body | ({"prompt_token_ids": [*answer.prompt_ids]} if request.returns_ids else {})


def answer_events(request: AgentRequest, answer: AgentAnswer) -> Iterator[str]:
    """Yield the events of a stream: what a choice says, how it ended, and at last `[DONE]`."""
    head = _head(request, answer, ".chunk" if request.is_chat else "")
    for index, choice in enumerate(answer.choices):
        if not request.is_chat:
            yield _event({**head, "choices": [{"index": index, "text": choice.content, **_of_choice(request, choice)}]})
            continue
        said = choice.message()
        if "tool_calls" in said:
            said["tool_calls"] = [{"index": place, **call} for place, call in enumerate(said["tool_calls"])]
        yield _event({**head, "choices": [{"index": index, "delta": said, "finish_reason": None}]})
        yield _event({**head, "choices": [{"index": index, "delta": {}, **_of_choice(request, choice)}]})
    if request.tells_usage:
        yield _event({**head, "choices": [], "usage": _usage(answer)})
    yield "data: [DONE]\n\n"


def error_body(message: str, code: str) -> dict[str, Any]:
    """Return what is sent back in place of an answer."""
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}


def _head(request: AgentRequest, answer: AgentAnswer, part: str = "") -> dict[str, Any]:
    kind = "chat.completion" if request.is_chat else "text_completion"
    return {"id": answer.name, "object": f"{kind}{part}", "created": int(time.time()), "model": answer.model}


def _of_choice(request: AgentRequest, choice: Choice) -> dict[str, Any]:
    """Return what a choice has besides what it says."""
    more: dict[str, Any] = {"finish_reason": choice.reason, "logprobs": None}
    if request.logprobs:
        more["logprobs"] = _chat_logprobs(choice) if request.is_chat else _text_logprobs(choice)
    if request.returns_ids:
        more |= {"token_ids": [*choice.ids], "versions": [[*run] for run in choice.versions]}
    return more


def _chat_logprobs(choice: Choice) -> dict[str, Any]:
    tokens = zip(choice.pieces, choice.logprobs, strict=True)
    return {
        "content": [
            {"token": piece, "logprob": chance, "bytes": [*piece.encode("utf-8", "replace")], "top_logprobs": []}
            for piece, chance in tokens
        ],
        "refusal": None,
    }


def _text_logprobs(choice: Choice) -> dict[str, Any]:
    offsets = [0]
    for piece in choice.pieces:
        offsets.append(offsets[-1] + len(piece))
    return {
        "tokens": [*choice.pieces],
        "token_logprobs": [*choice.logprobs],
        "top_logprobs": None,
        "text_offset": offsets[:-1],
    }


def _usage(answer: AgentAnswer) -> dict[str, int]:
    prompt, made = len(answer.prompt_ids), sum(len(choice.ids) for choice in answer.choices)
    return {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made}


def _call(name: str, call: ToolCall) -> Mapping[str, Any]:
    written = {"name": call.name, "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)}
    return {"id": name, "type": "function", "function": written}


def _event(body: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(body)}\n\n"
