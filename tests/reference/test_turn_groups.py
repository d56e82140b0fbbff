"""Policy gradients with advantages of turns, run for three steps and replayed from their formulas
(`turn_formulas.py`). Each run takes about half a second."""

from __future__ import annotations

from pathlib import Path

import pytest
import turn_formulas
from formulas import Row
from replay import ACTOR, Replay, groups_of, source
from tiny import Seen, data_folder, shipped, weights

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


def drawn(seen: Seen) -> list[Row]:
    """The past episodes of a step."""
    table = seen.values["old"]
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
        groups, old = groups_of(seen.table("episode")), drawn(seen)
        new = [row.tokens for group in groups for row in group]
        past += sum(row.tokens not in new for row in old) if number else 0
        models = (replay.models[name] for name in ("actor", "q", "v", "slow_q", "slow_v"))
        step = turn_formulas.archer(*models, groups, old, gamma=0.9, slow=0.7, lr=0.02, lr_v=0.03, parts=4)
        replay.same(seen, step)
    assert past or case == "no turn at all", "episodes of earlier steps are learned from"
