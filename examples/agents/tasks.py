"""Sums of three digits, which the model gets wrong in its head."""

import random
import re

SHOWN = [
    {"role": "user", "content": "What is 431-206?"},
    {
        "role": "assistant",
        "content": '<tool_call>\n{"name": "calculate", "arguments": {"expression": "431-206"}}\n</tool_call>',
    },
    {"role": "tool", "content": "225"},
    {"role": "assistant", "content": "431-206 = 225"},
]
"""What comes before each question: a model this small calls nothing that it has not seen called."""


def sums(count: int, seed: int = 0) -> list[dict]:
    """So many sums, with the answer as a text."""
    draw = random.Random(seed)
    pairs = [(draw.randint(100, 999), draw.randint(100, 999)) for _ in range(count)]
    return [
        {"prompt": [*SHOWN, {"role": "user", "content": f"What is {a}+{b}?"}], "answer": str(a + b)} for a, b in pairs
    ]


def right(completions: list[list[dict]], answer: list[str], calls: list[list[dict]]) -> list[float]:
    """Return 1 where the last message ends with the answer; less where only a call had it as its result, or where a
    call at least was not wrong."""
    return [
        1.0 if ends_with(messages[-1], wanted) else _called(made, wanted)
        for messages, wanted, made in zip(completions, answer, calls, strict=True)
    ]


def _called(calls: list[dict], wanted: str) -> float:
    return 0.3 * any(call["result"] == wanted for call in calls) + 0.1 * any(not call["failed"] for call in calls)


def ends_with(message: dict, wanted: str) -> bool:
    """Return whether a message of the model's that calls nothing has this as its last number."""
    numbers = re.findall(r"\d+", message["content"])
    return "tool_calls" not in message and message["role"] == "assistant" and numbers[-1:] == [wanted]
