"""Beyond how many tokens nobody need go on, where only those are wanted that end first."""

from __future__ import annotations

import random

from rlgraph.backends.distributed.length_limit import LengthLimit


def test_the_limit_is_that_of_the_last_one_that_is_taken() -> None:
    race = LengthLimit(2)
    assert not race.note_ended_rows([7]) and race.token_limit is None
    assert not race.note_ended_rows([0]), "one that was given up is none of those that ended"
    assert race.note_ended_rows([9]) and race.token_limit == 9
    assert not race.note_ended_rows([9, 12]) and race.token_limit == 9
    assert race.note_ended_rows([3]) and race.token_limit == 7


def test_nobody_who_is_taken_is_given_up() -> None:
    """Copies that are ahead of each other by any number of tokens: whoever is among the first goes on to the end."""
    for seed in range(200):
        chance = random.Random(seed)
        tokens = [chance.randrange(1, 12) for _ in range(10)]
        pace = [chance.choice((1, 2, 5)) for _ in tokens]
        race, ended, now = LengthLimit(4), dict[int, int](), [0] * len(tokens)
        for _ in range(12):
            for row, length in enumerate(tokens):
                if row in ended:
                    continue
                now[row] = min(now[row] + pace[row], length)
                if now[row] == length:
                    ended[row] = length
                    race.note_ended_rows([length])
                elif race.token_limit is not None and now[row] >= race.token_limit:
                    ended[row] = 0
        taken = sorted((row for row in ended if ended[row]), key=lambda row: (ended[row], row))[:4]
        assert taken == sorted(range(10), key=lambda row: (tokens[row], row))[:4]
