"""Policy gradients with advantages of turns, run for three steps and replayed from their formulas
(`turn_formulas.py`). Each run takes about half a second."""

from __future__ import annotations

from pathlib import Path

import pytest
import turn_formulas
from formulas import Row
from replay import ACTOR, Replay, causal, groups_of, source
from tiny import Seen, data_folder, shipped, weights

from tests.suites import few

SIZES = {"max_tokens=4096": "max_tokens=12, turn_tokens=3", "lr=1e-6": "lr=0.02"}
SAYS_ALL = '''

class Silent(Shell):
    """Says the same whatever it is told: all turns began alike."""

    def step(self, action):
        return ">", *super().step(action)[1:]


class Counts(Shell):
    """Says each time something that it never said: no two turns began alike."""

    said = 0

    def reset(self, row):
        super().reset(row)
        return self.next()

    def step(self, action):
        return self.next(), *super().step(action)[1:]

    def next(self):
        Counts.said += 1
        return "".join("abcd"[Counts.said // 4**digit % 4] for digit in range(5))


class Drawn(Game):
    """Nobody wins."""

    def step(self, action):
        other, told, _, over = super().step(action)
        return other, told, 0.0, over
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = data_folder(tmp_path_factory.mktemp("turns"))
    with (folder / "envs.py").open("a") as file:
        file.write(SAYS_ALL)
    return folder


CASES: dict[str, dict[str, str]] = {
    "ragged": {},
    "one turn": {"max_turns=10": "max_turns=1"},
    "one episode of each task": {"n=8": "n=1"},
    "one state": {"envs.py:Shell": "envs.py:Silent"},
    "a state of each turn": {"envs.py:Shell": "envs.py:Counts", "max_tokens=4096": "max_tokens=24, turn_tokens=3"},
    "no turn at all": {"max_tokens=4096": "max_tokens=1"},
}


@pytest.mark.parametrize("case", CASES)
def test_gigpo(folder: Path, case: str) -> None:
    swaps = {**SIZES, "n=8": "n=4", **CASES[case]}
    changes = {**ACTOR, "tasks": source("tasks", 6), "omega": "0.7", "gamma": "0.9"}
    replay = Replay(shipped("gigpo", swaps), folder, changes)
    alike, turns = set[float](), set[int]()
    for seen in replay.steps:
        table = seen.table("episode")
        groups, prompts = groups_of(table), dict(zip(table.group, table.data, strict=True))
        turns |= {len(row.rewards) for group in groups for row in group}
        step = turn_formulas.gigpo(
            replay.models["actor"],
            replay.models["ref"],
            groups,
            [len(prompts[group]["prompt"]) for group in sorted(prompts)],
            eps=0.2,
            beta=0.01,
            gamma=0.9,
            omega=0.7,
            lr=0.02,
            parts=4,
        )
        replay.same(seen, step)
        alike.add(seen.metrics["alike"])
    expected = {"ragged": {0, 1, 2, 3}, "one turn": {0, 1}, "no turn at all": {0, 1}}
    assert turns >= expected.get(case, {1, 2}), turns
    assert max(alike) > 1 or case != "one state"
    assert alike == {1.0} or case != "a state of each turn"


def episodes(seen: Seen, name: str) -> list[Row]:
    """Those of a table that is not the first value of what made it."""
    table = seen.values[name]
    lengths, turns = table.sequences.lengths.tolist(), table.columns["turns"].tolist()
    scored, rewards = table.sequences.scored.split(lengths), table.columns["reward"].split(turns)
    return [
        Row(tokens, flags.tolist(), 0.0, of_row.tolist())
        for tokens, flags, of_row in zip(table.sequences.rows(), scored, rewards, strict=True)
    ]


@pytest.mark.parametrize("case", ["ragged", "one turn", "no turn at all"])
def test_archer(folder: Path, case: str) -> None:
    rates = {"lr=1e-6": "lr=0.02", "lr=1e-5": "lr=0.03", "past.sample(128)": "past.sample(18)"}
    swaps = {"max_tokens=4096": "max_tokens=12, turn_tokens=3", **rates, **CASES[case]}
    changes = {**ACTOR, "tasks": source("tasks", 6), "gamma": "0.9", "slow": "0.7"}
    changes |= {f"{name}_base": weights(seed) for name, seed in (("q", 3), ("v", 4))}
    text = shipped("archer", swaps)
    for name in ("q", "v"):
        text = text.replace("value_lm(base)", f'value_lm({name}_base, dtype="float64")', 1)
        text = text.replace("model actor", f"param {name}_base = 0\nmodel actor", 1)
    replay = Replay(text, folder, changes)
    past = 0
    for number, seen in enumerate(replay.steps):
        groups, old = groups_of(seen.table("episode")), episodes(seen, "old")
        new = [row.tokens for group in groups for row in group]
        past += sum(row.tokens not in new for row in old) if number else 0
        models = (replay.models[name] for name in ("actor", "q", "v", "slow_q", "slow_v"))
        step = turn_formulas.archer(*models, groups, old, gamma=0.9, slow=0.7, lr=0.02, lr_v=0.03, parts=4)
        replay.same(seen, step)
    assert past or case == "no turn at all", "episodes of earlier steps are learned from"


GAMES: dict[str, dict[str, str]] = {
    "ragged": {},
    "one turn": {"max_turns=10": "max_turns=1"},
    "all drawn": {"envs.py:Game": "envs.py:Drawn"},
    "no turn at all": {"max_tokens=4096": "max_tokens=1"},
}


@pytest.mark.parametrize("case", few(GAMES, "ragged", "one turn"))
def test_spiral(folder: Path, case: str) -> None:
    swaps = {"max_tokens=4096": "max_tokens=16, turn_tokens=3", "lr=1e-6": "lr=0.02", **GAMES[case]}
    changes = {"deals": source("tasks", 6), "decay": "0.7", "first": causal(), "base": weights(0)}
    changes |= {"second": f'causal_lm({weights(3)}, dtype="float64")'}
    replay = Replay(shipped("spiral", swaps), folder, changes)
    usual = {"white": 0.0, "black": 0.0}
    found = set[float]()
    lengths = {role: set[int]() for role in usual}
    for seen in replay.steps:
        tables = {"white": ("first", "games"), "black": ("second", "games.black")}
        players = {role: (replay.models[model], episodes(seen, name)) for role, (model, name) in tables.items()}
        replay.same(seen, turn_formulas.spiral(players, usual, decay=0.7, lr=0.02))
        for role, (_, rows) in players.items():
            lengths[role] |= {len(row.rewards) for row in rows}
            found |= {sum(row.rewards) for row in rows}
    if case == "ragged":
        assert found == {-1.0, 0.0, 1.0}, "won, lost and drawn"
        assert all({0, 1, 2} <= each for each in lengths.values()), lengths
        assert usual["white"] and usual["black"] and usual["white"] != usual["black"]
