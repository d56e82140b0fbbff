"""What an agent asks in an episode, and the tokens that become of it: the tree of its requests.

A request that goes on from an answer, by what was said before it, is the next turn of that answer's line: what was
sampled stays as it is, and what is new is put behind it. Another one begins a line of its own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.engines.tokenizers import Codec
from rlgraph.backends.worker.action_sampling import SampledTurn, turn_room
from rlgraph.backends.worker.agent_answers import AgentAnswer, Choice
from rlgraph.backends.worker.agent_requests import AgentRequest, RequestRefused, is_same_message
from rlgraph.backends.worker.growing_episode import GrowingEpisode
from rlgraph.backends.worker.turn_sampling import NextTurn, cut_to_room
from rlgraph.conversations import Content, Message, OddRow, template_options_of
from rlgraph.errors import RunError, count_phrase
from rlgraph.ir.graph import Node
from rlgraph.user_code import ToolCall
from rlgraph.user_code.tool_calls import FORMATS, written_calls

_NO_ROOM = "context_length_exceeded"
"""The code of OpenAI's API for a conversation that is too long."""


@dataclass(eq=False, slots=True)
class _Answered:
    """An answer, and all that was said up to it."""

    line: GrowingEpisode
    request: AgentRequest
    heard: tuple[Message, ...]
    """The conversation with the answer; empty where the prompt was no conversation."""
    text: str
    """The prompt with the answer, where the prompt was a text."""
    tail: str
    """What was sampled behind the answer: the text at which it stops."""
    calls: tuple[tuple[str, ToolCall], ...]
    parent: _Answered | None
    """The answer that its request goes on from."""
    continued: bool = False
    """Whether another request goes on from it."""


@dataclass(frozen=True, slots=True)
class AgentLine:
    """What leads to one answer: a row to learn from."""

    episode: GrowingEpisode
    shared: int
    """How many of its first answers are learned from in another line."""
    asked: Any
    """What it begins with: messages, or a text."""


@dataclass(slots=True)
class AnswerCount:
    """How many answers an episode has, of all its models, or are being sampled."""

    answers: int = 0


class AgentTree:
    """The requests of one episode to one of its models, with their answers."""

    def __init__(
        self,
        node: Node,
        name: str,
        codec: Codec,
        row: Mapping[str, Any],
        branches: Literal["refuse", "skip", "all"],
        longest: int | None,
        count: AnswerCount,
    ) -> None:
        """name: of the episode, in messages; longest: the most tokens that a row of the model may have; count: of the
        answers that the episode has of all its models."""
        self.node, self.name, self.codec = node, name, codec
        self.options = template_options_of(row)
        self.branches, self.longest = branches, longest
        self.most_turns, self.most_tokens = node.attr("max_turns"), node.attr("max_tokens")
        self.count = count
        self._answered: list[_Answered] = []
        self._last: _Answered | None = None
        self._parents: dict[int, _Answered] = {}
        """The answers that turns go on from which are being sampled, by the number of the turn."""

    @property
    def line(self) -> AgentLine | None:
        """The line of the last answer; None where nothing was asked."""
        return _agent_line(self._last.line, 0) if self._last else None

    @property
    def first_request(self) -> AgentRequest | None:
        """The first request that was answered; None where nothing was asked."""
        return self._answered[0].request if self._answered else None

    @property
    def lines(self) -> list[AgentLine]:
        """All lines, in the order in which they begin: each goes to an answer that nothing goes on from. Where several
        go on from an answer, that is learned from in the first of them."""
        lines: list[list[_Answered]] = []
        for answered in self._answered:
            line = next((line for line in lines if line[-1] is answered.parent), None)
            if line is None:
                lines.append(line := [])
            line.append(answered)
        return [_agent_line(line[-1].line, len(line[-1].line.actions) - len(line)) for line in lines]

    def begin_turns(self, request: AgentRequest) -> list[NextTurn]:
        """Return what is to be sampled for a request. Raises RequestRefused, and RunError where the model's template
        cannot go on."""
        if self.count.answers + request.choices > self.most_turns:
            message = f"the episode may have {count_phrase(self.most_turns, 'answer')}: `max_turns` of its `interact`"
            raise RequestRefused(message, "max_turns")
        parent = self._parent(request)
        goes_on = parent is self._last and not (parent and parent.continued) and request.choices == 1
        if not goes_on and self.branches == "refuse":
            raise RequestRefused(self._branch(request, parent), "branch")
        lines = [self._continued(parent, request) if parent else self._begun(request) for _ in range(request.choices)]
        turns = [
            NextTurn(line, self.count.answers + place, self._room(line, request)) for place, line in enumerate(lines)
        ]
        self.count.answers += len(turns)
        if parent is not None:
            parent.continued = True
            self._parents |= {turn.number: parent for turn in turns}
        return turns

    def end_turns(
        self, request: AgentRequest, turns: Sequence[NextTurn], sampled: Sequence[SampledTurn], model: str
    ) -> AgentAnswer:
        """Take in what was sampled for a request, and return its answer. model: the name by which it is told."""
        prompt_ids = list(turns[0].line.tokens)
        choices = [self._add(request, turn, made) for turn, made in zip(turns, sampled, strict=True)]
        self._last = self._answered[-len(turns)]
        kind = "chatcmpl" if request.is_chat else "cmpl"
        return AgentAnswer(f"{kind}-{turns[0].number}", model, prompt_ids, choices)

    def _add(self, request: AgentRequest, turn: NextTurn, made: SampledTurn) -> Choice:
        made = cut_to_room(made, turn.room)
        ids, finished = list(made.ids), made.finished
        whole = self.codec.decode(ids)
        content = until_stop(whole, request.stop)
        if len(content) < len(whole):
            made, finished = cut_to_room(made, self._tokens_with(ids, whole, content, request.stop)), True
            ids = list(made.ids)
        tail = self.codec.decode(ids)[len(content) :]
        line = turn.line
        line.add_action(made)
        calls: tuple[tuple[str, ToolCall], ...] = ()
        if request.tools:
            written = self.codec.decode_with_special(ids)
            made_calls = [_as_tool_call(call) for call in written_calls(until_stop(written, request.stop))]
            line.record_tool_calls(tuple(made_calls))
            right = [call for call in made_calls if not call.failed]
            calls = tuple((f"c{turn.number % 10**5:05}{place % 1000:03}", call) for place, call in enumerate(right))
            content = before_calls(content) if calls else content
        else:
            line.record_tool_calls(())
        line.actions[-1] = {**line.actions[-1], "content": content}
        reason = "tool_calls" if calls else "stop" if finished else "length"
        pieces = [str(self.codec.tokenizer.decode([token])) for token in ids]
        choice = Choice(content, calls, reason, ids, pieces, list(made.logprobs), made.versions)
        answer = {"role": "assistant", "content": content}
        if calls:
            functions = [{"name": call.name, "arguments": dict(call.arguments)} for _, call in calls]
            answer["tool_calls"] = [{"type": "function", "function": function} for function in functions]  # type: ignore[assignment]
        heard = (*request.messages, answer) if request.messages is not None else ()
        text = request.prompt + content if isinstance(request.prompt, str) else ""
        self._answered.append(_Answered(line, request, heard, text, tail, calls, self._parents.pop(turn.number, None)))
        return choice

    def _tokens_with(self, ids: Sequence[int], whole: str, content: str, stops: Sequence[str]) -> int:
        """Return how many tokens have the answer and the text at which it stops."""
        stop = next(stop for stop in stops if whole.startswith(stop, len(content)))
        reached = len(content) + len(stop)
        return 1 + bisect_left(
            range(1, len(ids)), True, key=lambda count: len(self.codec.decode(ids[:count])) >= reached
        )

    def _parent(self, request: AgentRequest) -> _Answered | None:
        """Return the answer that a request goes on from: the longest of them, and the last one that nothing goes on
        from yet."""
        fitting = [answered for answered in self._answered if self._goes_on(answered, request)]
        return max(fitting, key=lambda answered: (len(answered.line.tokens), not answered.continued), default=None)

    def _goes_on(self, answered: _Answered, request: AgentRequest) -> bool:
        if (answered.request.tools, answered.request.options) != (request.tools, request.options):
            return False
        if request.messages is not None:
            heard = answered.heard
            pairs = zip(heard, request.messages, strict=False)
            return 0 < len(heard) <= len(request.messages) and all(is_same_message(*pair) for pair in pairs)
        if answered.request.is_chat:
            return False
        if isinstance(request.prompt, str):
            return bool(answered.text) and request.prompt.startswith(answered.text)
        return list(request.prompt[: len(answered.line.tokens)]) == answered.line.tokens

    def _branch(self, request: AgentRequest, parent: _Answered | None) -> str:
        """Return why a request is refused that does not go on from the last answer."""
        if request.choices > 1:
            what = f"it asks for {request.choices} answers, and an episode goes on from one"
        elif parent is not None:
            what = "it goes on from an earlier answer than the last one"
        else:
            what = "it does not begin with what was said up to the last answer, or has other tools"
        return f"this request does not go on: {what}; `branches=all` in the declaration of the agent keeps all lines"

    def _begun(self, request: AgentRequest) -> GrowingEpisode:
        """Return a new line with what a request asks."""
        options = {**self.options, **request.options}
        if request.continues and not self.codec.chat.continues:
            raise RequestRefused(
                "`continue_final_message` is an option of the model here: `chat=chat(continue_final_message=true)`"
            )
        asked: Content = "" if request.messages is None else [*request.messages]
        try:
            if isinstance(request.prompt, str):
                ids = self.codec.encode_prompt(asked or request.prompt, request.tools, options)
            else:
                ids = self._known(request.prompt)
        except (EngineError, OddRow, TypeError, KeyError) as error:
            raise RequestRefused(f"the prompt cannot be used: {error}") from None
        if not ids and self.codec.start_id is not None:
            ids = [self.codec.start_id]
        return GrowingEpisode(
            self.node, self.name, self.codec, ids, asked, request.is_chat, request.tools, options, False
        )

    def _known(self, ids: Sequence[int]) -> list[int]:
        size = len(self.codec.tokenizer)
        odd = next((token for token in ids if not 0 <= token < size), None)
        if odd is not None:
            raise RequestRefused(f"the tokenizer has no token {odd}")
        return list(ids)

    def _continued(self, parent: _Answered, request: AgentRequest) -> GrowingEpisode:
        """Return the line of an answer with what a request has behind it."""
        line = parent.line.fork()
        if request.messages is not None:
            replies = [*request.messages[len(parent.heard) :]]
            results = {reply.get("tool_call_id"): reply["content"] for reply in replies if reply["role"] == "tool"}
            if parent.calls:
                named = {id(call): name for name, call in parent.calls}
                line.calls[-1] = tuple(
                    replace(call, result=str(results.get(named.get(id(call)), call.result))) for call in line.calls[-1]
                )
            self._observe(line, replies)
        elif isinstance(request.prompt, str):
            # What was sampled at the stop is there already.
            line.add_observation(request.prompt[len(parent.text) :].removeprefix(parent.tail), self.most_tokens)
        else:
            line.observe_tokens(self._known(request.prompt[len(line.tokens) :]), self.most_tokens)
        if line.full:
            message = f"there is no room for it: an episode has {count_phrase(self.most_tokens, 'token')}, `max_tokens`"
            raise RequestRefused(f"{message} of its `interact`", _NO_ROOM)
        return line

    def _observe(self, line: GrowingEpisode, replies: list[Message]) -> None:
        try:
            line.add_observation([dict(reply) for reply in replies], self.most_tokens)
        except RunError as error:
            [found] = error.diagnostics
            if found.code != "E0731":
                raise
            # The template refuses what the agent says: a role, or an order of them.
            raise RequestRefused(found.message) from None

    def _room(self, line: GrowingEpisode, request: AgentRequest) -> int:
        """Return how many tokens the next answer of a line may have. Raises RequestRefused where it may have none."""
        room = turn_room(self.node, line.tokens_left(self.most_tokens))
        if self.longest is not None:
            room = min(room, self.longest - len(line.tokens))
        if room <= 0:
            tokens = count_phrase(len(line.tokens), "token")
            raise RequestRefused(f"there is no room for an answer: the prompt has {tokens}", _NO_ROOM)
        return min(room, request.max_tokens or room)


def _agent_line(line: GrowingEpisode, shared: int) -> AgentLine:
    begun = line.asked if line.asked is not None else line.codec.decode(line.tokens[: line.prompt])
    return AgentLine(line, shared, begun)


def until_stop(text: str, stops: Sequence[str]) -> str:
    """Return a text up to the first of the texts at which it stops."""
    return text[: min((place for stop in stops if (place := text.find(stop)) >= 0), default=len(text))]


def before_calls(text: str) -> str:
    """Return what an answer says before its first call of a tool."""
    places = [place for form in FORMATS.values() if (place := text.find(form.sign)) >= 0]
    return text[: min(places)].strip() if places else ""


def _as_tool_call(call: Any) -> ToolCall:
    """Return a call as it was written; one that cannot be read is failed."""
    wrong = call.error or ("" if isinstance(call.arguments, Mapping) else "the arguments are no JSON object")
    arguments = call.arguments if isinstance(call.arguments, Mapping) else {}
    return ToolCall(call.name, arguments, f"error: {wrong}" if wrong else "", bool(wrong))
