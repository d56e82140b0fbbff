"""A column of the data that has the name of one of the episode's is told of, where the program uses it."""

from __future__ import annotations

from pathlib import Path

import rlgraph

PROGRAM = """algorithm t
model actor = causal_lm("m")
data rows = jsonl("rows.jsonl", batch=1)
env game = python("game.py:Game")
step:
    e = actor.interact(game, rows, n=4, max_turns=3, max_tokens=40)
    keep e where sum(e.reward, turn) > 0
    report a = mean(e.level + rows.reward), d = mean(e.turn)
    train actor(lr=0.1):
        minimize mean(-actor.logprobs(e) * sum(e.reward, turn))
"""


def warned(folder: Path, row: str, text: str = PROGRAM) -> list[str]:
    (folder / "rows.jsonl").write_text(row + "\n", "utf-8")
    (folder / "game.py").write_text("class Game:\n    def reset(self, row): ...\n    def step(self, action): ...\n")
    (folder / "t.rlf").write_text(text, "utf-8")
    return [f"{found.code} {found.span.line}: {found.message}" for found in rlgraph.check(folder / "t.rlf")]


def test_a_column_that_the_episode_hides_is_told_of_once(tmp_path: Path) -> None:
    reward = "W0515 7: `e.reward` is the episode's, and hides the column `reward` of `rows`"
    turn = "W0515 8: `e.turn` is the episode's, and hides the column `turn` of `rows`"
    row = '{"prompt": "a", "level": 2, "reward": 1, "turn": 3, "observation": "x"}'
    assert warned(tmp_path, row) == [reward, turn]
    allowed = PROGRAM.replace("> 0\n", "> 0  # allow W0515\n")
    assert warned(tmp_path, row, allowed) == [turn]


def test_other_columns_are_not(tmp_path: Path) -> None:
    assert not warned(tmp_path, '{"prompt": "a", "level": 2, "rewards": 1}', PROGRAM.replace("rows.reward", "1"))
    assert not warned(tmp_path, '{"prompt": "a", "level": 2, "turns": 1}', PROGRAM.replace("rows.reward", "1"))
