"""An episode as it grows: its tokens, and where a chat template writes its turns, its messages."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.engines.tokenizers import Codec
from rlgraph.backends.engines.turns import without_end_of_turn
from rlgraph.backends.worker.action_sampling import SampledTurn
from rlgraph.backends.worker.session import engine_run_error
from rlgraph.conversations import Message, parse_content
from rlgraph.errors import Diagnostic, RunError
from rlgraph.ir.graph import Node
from rlgraph.user_code import ToolCall
from rlgraph.user_code.child import Observation


class GrowingEpisode:
    """The tokens of an episode so far, and what the model and its environment have said."""

    def __init__(
        self,
        node: Node,
        name: str,
        codec: Codec,
        prompt: list[int],
        asked: Any,
        chat: bool,
        tools: Sequence[Mapping[str, Any]],
        options: Mapping[str, Any],
        reads_special: bool,
    ) -> None:
        """prompt: the tokens of what is asked; chat: whether messages are replied to with messages; tools, options:
        what the chat template is given besides; reads_special: whether actions are shown with their special tokens."""
        self.node = node
        self.name = name
        self.codec = codec
        self.given = tools, options
        self.reads_special = reads_special
        self.asked: list[Message] | None = None if isinstance(asked, str) or not chat else _messages(asked)
        """What the episode begins with, where its turns are written by the chat template."""
        self.begun = 0
        """How many of these messages are the environment's."""
        self.actions: list[Message] = []
        self.action_tokens: list[int] = []
        """How many tokens each action has."""
        self.observations: list[str] = []
        """What the environment has said before each action."""
        self._said = ""
        """What it has said since the last action."""
        self.calls: list[tuple[ToolCall, ...]] = []
        """The calls of tools in each action."""
        self.replies: list[list[Message]] = []
        """What the environment has replied to each action that it let go on, as messages."""
        self.written: list[int] = list(prompt)
        """The tokens that the chat template writes: all but the actions, with the ends of turns that were sampled."""
        self.tokens = prompt
        self.scored = [False] * len(prompt)
        self.prompt = len(prompt)
        self.logprobs: list[float] = []
        self.versions: list[tuple[int, int]] = []
        self.routes: Tensor | None = None
        """The experts of the tokens up to the last action, as `Sequences.routes`; None where they are not kept."""
        self.rewards: list[float] = []
        self.over = False
        """Whether the environment has ended it."""
        self.full = False
        """Whether there was no room for what came next."""

    def add_first_observation(self, said: Observation) -> None:
        """Add the first observation: messages continue those of the prompt, before the model's turn is opened."""
        if not said:
            return
        self._said = _text_of(said)
        if self.asked is None:
            self._add(self.codec.encode_text(self._text(said)))
            return
        first = _as_messages(said)
        self.asked += first
        self.begun = len(first)
        self.tokens = self._encoded(lambda: self.codec.encode_prompt(self.asked or (), *self.given))
        self.written, self.scored = list(self.tokens), [False] * len(self.tokens)

    def add_action(self, made: SampledTurn) -> str:
        """Add an action, which carries loss, and return its text."""
        ids = made.ids
        self.tokens += ids
        if made.routes is not None:
            # Without a prompt the engine has begun with a token of its own.
            self.routes = _first_known(self.routes, made.routes[-len(self.tokens) :])
        self.scored += [True] * len(ids)
        self.action_tokens.append(len(ids))
        self.observations.append(self._said)
        self._said = ""
        self.logprobs += made.logprobs
        self.versions += made.versions
        text = self.codec.decode(ids)
        self.actions.append({"role": "assistant", "content": text})
        return self.codec.decode_with_special(ids) if self.reads_special else text

    def record_tool_calls(self, calls: tuple[ToolCall, ...]) -> None:
        """Add the calls of tools in the last action."""
        self.calls.append(calls)
        if calls:
            made = [{"name": call.name, "arguments": dict(call.arguments)} for call in calls]
            self.actions[-1] = {
                **self.actions[-1],
                "tool_calls": [{"type": "function", "function": call} for call in made],
            }

    def function_arguments(self) -> dict[str, Any]:
        """Return what functions are given of the episode: the messages after the prompt, where it has any, and the
        calls of tools."""
        calls = [
            {"name": call.name, "arguments": dict(call.arguments), "result": call.result, "failed": call.failed}
            for of_turn in self.calls
            for call in of_turn
        ]
        if self.asked is None:
            return {"messages": None, "calls": calls}
        messages = list(self.asked[len(self.asked) - self.begun :])
        for place, action in enumerate(self.actions):
            messages += [action, *(self.replies[place] if place < len(self.replies) else ())]
        return {"messages": messages, "calls": calls}

    def add_observation(self, said: Observation, most: int) -> None:
        """Add what the environment replies to an action: with a chat template all that it writes up to the next one.
        What does not fit into so many tokens could not be answered: the episode ends with the action."""
        asked = self.asked
        replies = [*self.replies, [] if asked is None else _as_messages(said)]
        if asked is None:
            piece = behind = self.codec.encode_text(self._text(said))
        else:
            piece = self._encoded(lambda: self.codec.encode_between_answers(asked, replies, *self.given))
            behind = without_end_of_turn(piece, self.tokens)
        if len(behind) >= self.tokens_left(most):
            self.full = True
            return
        self._said = _text_of(said)
        self.replies = replies
        self.written += piece
        self._add(behind)

    def observe_tokens(self, ids: Sequence[int], most: int) -> None:
        """Add tokens that others than the model wrote, as `observe` adds a text."""
        if len(ids) >= self.tokens_left(most):
            self.full = True
            return
        self._said = self.codec.decode(list(ids))
        self._add(list(ids))

    def fork(self) -> GrowingEpisode:
        """Return a copy that goes on otherwise."""
        other = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, list):
                setattr(other, name, list(value))
        return other

    def check_special_tokens(self) -> None:
        """Raise RunError where the chat template writes the whole conversation with other special tokens."""
        asked = self.asked
        if asked is not None and self.replies:
            self._encoded(lambda: self.codec.check_episode(self.written, asked, self.replies, *self.given))

    def tokens_left(self, most: int) -> int:
        """Return how many tokens may still come; none when it is over, or full."""
        return 0 if self.over or self.full else most - (len(self.tokens) - self.prompt)

    def _add(self, ids: list[int]) -> None:
        """Add tokens that carry no loss."""
        self.tokens += ids
        self.scored += [False] * len(ids)

    def _text(self, said: Observation) -> str:
        if isinstance(said, str):
            return said
        message = f"the environment answers {self.name} with messages, and the episode is a text: {said!r:.60}"
        hint = "return the text alone, or make the prompt a list of messages and leave out `turns=text`"
        raise RunError(Diagnostic("E0861", message, self.node.span, hint))

    def _encoded(self, encode: Callable[[], Any]) -> Any:
        try:
            return encode()
        except (EngineError, TypeError, KeyError) as error:
            raise engine_run_error(self.node, f"the turns of {self.name} cannot be written", error) from None


def _first_known(before: Tensor | None, now: Tensor) -> Tensor:
    """Return the experts of an episode's tokens, int16 [tokens, layers, k], from those that were known before a turn
    and those of all tokens that were read for it: a token that was read again keeps those that it was first read
    with."""
    if before is None:
        return now
    joined, known = now.clone(), before[:, 0, 0] >= 0
    joined[: before.shape[0]][known] = before[known]
    return joined


def _messages(asked: Any) -> list[Message]:
    """Return the messages of a prompt that has been encoded."""
    given = parse_content(asked, "prompt")
    assert not isinstance(given, str)
    return list(given)


def _text_of(said: Observation) -> str:
    """Return an observation as one text: of messages what they say, one below the other."""
    if isinstance(said, str):
        return said
    return "\n".join(str(message.get("content") or "") for message in said)


def _as_messages(said: Observation) -> list[Message]:
    """Return an observation as messages: a text is a user's turn, an empty one too; no messages at all open the model's
    turn again."""
    return [{"role": "user", "content": said}] if isinstance(said, str) else list(said)
