"""Episodes whose environment is slow hold back no others, and when it answers changes nothing of what is sampled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny import Run, compile_text, weights

from rlgraph.backends.worker import turn_play
from rlgraph.errors import RunError
from tests.waits import NEVER

WAITS = """
import time
from pathlib import Path

HERE = Path(__file__).parent

class Shell:
    def __init__(self, waits=True):
        self.waits = waits

    def reset(self, row):
        self.slow, self.turn = bool(row["slow"]), 0
        return ">"

    def step(self, action):
        self.turn += 1
        if not self.slow:
            (HERE / f"done{self.turn}").touch()
        while self.waits and self.slow and not (HERE / "done3").exists():
            time.sleep(0.01)
        return f"{len(action)}>", len(action) / 4, False

class Game:
    def __init__(self, waits=True):
        self.shell = Shell(waits)

    def reset(self, row):
        return "white", self.shell.reset(row)

    def step(self, action):
        told, reward, over = self.shell.step(action)
        return ("black" if self.shell.turn % 2 else "white"), told, reward, over
"""
ROWS = [{"prompt": "ab", "slow": 1}, {"prompt": "c", "slow": 0}, {"prompt": "dab", "slow": 0}]
PLAYED = {
    "Shell": "episode = actor.interact(game, rows, n=1, max_turns=3, max_tokens=40)",
    "Game": "episode = interact(game, rows, white=actor, black=rival, n=1, max_turns=3, max_tokens=40).white",
}
PROGRAM = f"""algorithm t
model actor = causal_lm({weights()}, dtype="float64")
model rival = causal_lm({weights(1)}, dtype="float64")
data rows = jsonl("rows.jsonl", batch=3, shuffle=false)
env game = python("shell.py:KIND", workers=3, waits=WAITS, timeout={NEVER}, trial=false)
step:
    PLAYED
    report reward = mean(sum(episode.reward, turn)), off = max(max(abs(actor.logprobs(episode) - episode.logprobs), token))
    train actor(lr=0.01, eps=0.01):
        minimize mean(-actor.logprobs(episode) * sum(episode.reward, turn))
"""


def played(folder: Path, kind: str, waits: str) -> list[dict[str, float]]:
    folder.mkdir()
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS), "utf-8")
    (folder / "shell.py").write_text(WAITS, "utf-8")
    text = PROGRAM.replace("KIND", kind).replace("WAITS", waits).replace("PLAYED", PLAYED[kind])
    return [seen.metrics for seen in Run(compile_text(text), folder).steps(2)]


@pytest.mark.parametrize("kind", ["Shell", "Game"])
def test_others_come_to_their_ends_while_one_waits(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of one episode answers when the others have had all their turns: turn by turn that is never."""
    monkeypatch.setattr(turn_play, "QUIET_S", 0.0)
    late = played(tmp_path / "late", kind, "true")
    monkeypatch.setattr(turn_play, "QUIET_S", NEVER)
    for found, right in zip(late, played(tmp_path / "at_once", kind, "false"), strict=True):
        assert found == pytest.approx(right, abs=1e-10)
    assert late[0]["off"] < 1e-12 and late[0]["reward"] != late[1]["reward"]


def test_those_that_answer_soon_are_sampled_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many tokens each may still have."""
    monkeypatch.setattr(turn_play, "QUIET_S", NEVER)
    sampled: list[int] = []

    def counted(sampling: Any, wanted: Any, sample: Any = turn_play.sample_turns) -> Any:
        sampled.append(len(wanted))
        return sample(sampling, wanted)

    monkeypatch.setattr(turn_play, "sample_turns", counted)
    played(tmp_path / "at_once", "Shell", "false")
    assert sampled[0] == 3 and len(sampled) <= 2 * 3


def test_an_error_ends_the_calls_of_others(tmp_path: Path) -> None:
    """Those that would never answer too."""
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS), "utf-8")
    text = WAITS.replace('(HERE / f"done{self.turn}").touch()', "raise ValueError('no such command')")
    (tmp_path / "shell.py").write_text(text, "utf-8")
    program = PROGRAM.replace("KIND", "Shell").replace("WAITS", "true").replace("PLAYED", PLAYED["Shell"])
    with pytest.raises(RunError, match="no such command"):
        Run(compile_text(program), tmp_path).steps(1)
