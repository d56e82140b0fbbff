"""Sums as a user asks a chat model for them."""

ASKED = "What is {}+{}? Answer with just the number."


def sums(low: int, high: int) -> list[dict]:
    """A row for every two numbers from `low` to `high`, with the answer as a text."""
    numbers = range(low, high + 1)
    return [
        {"prompt": [{"role": "user", "content": ASKED.format(a, b)}], "answer": str(a + b)}
        for a in numbers
        for b in numbers
    ]
