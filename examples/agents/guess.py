"""A game of several turns: find a number by what is said of each guess."""

import re

MOST = 7
"""The largest number: who halves what is left finds each in three guesses."""
SHOWN = [
    {"role": "system", "content": "Play."},
    {"role": "user", "content": f"Guess a number from 1 to {MOST}."},
    {"role": "assistant", "content": "4"},
    {"role": "user", "content": "More."},
    {"role": "assistant", "content": "6"},
    {"role": "user", "content": "Less."},
    {"role": "assistant", "content": "5"},
    {"role": "user", "content": f"Yes! Guess another number from 1 to {MOST}."},
]
"""A game that was won comes before each, so that the model sees how guesses look."""


def secrets() -> list[dict]:
    """One game for each number."""
    return [{"prompt": SHOWN, "secret": number} for number in range(1, MOST + 1)]


class Guess:
    def reset(self, row: dict) -> str:
        """What is said before the first guess: nothing, the prompt says it all."""
        self.secret = row["secret"]
        return ""

    def step(self, action: str) -> tuple[str, float, bool]:
        """What is said of a guess, its reward, and whether the game is over."""
        guess = re.fullmatch(rf"\s*([1-{MOST}])\.?\s*", action)
        if guess is None:
            return "A number!", -0.1, False
        if int(guess[1]) == self.secret:
            return "Yes!", 1.0, True
        return "More." if int(guess[1]) < self.secret else "Less.", 0.0, False
