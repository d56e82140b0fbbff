"""A run beside its replay from formulas, for the tests of all families of algorithms."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import formulas
import torch
from formulas import Model, Row
from tiny import Run, Sampled, Seen, compile_text, weights
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoModelForTokenClassification

CLOSE = 1e-9
"""Of numbers of the size of 1: absolute, or relative where they are larger."""

SPLITS: dict[str, dict[str, Any]] = {"whole": {}, "by row": {"micro_rows": 1}, "blocks of three": {"block": 3}}
"""What rows are computed together."""

AUTO = {
    "causal_lm": AutoModelForCausalLM,
    "value_lm": AutoModelForTokenClassification,
    "reward_lm": AutoModelForSequenceClassification,
}


class Replay:
    """A run, and beside it plain models that begin with its first weights."""

    def __init__(self, text: str, folder: Path, changes: dict[str, str], path: str = "p.rlf", **settings: Any) -> None:
        self.run = Run(compile_text(text, changes, path), folder, **settings)
        self.models = {name: self.plain(name) for name in self.run.models}
        self.steps = self.run.steps(3)
        assert len(self.steps) >= 3, "and those of its phases"

    def plain(self, name: str) -> Model:
        """A model of transformers, with its most literal attention."""
        state = self.run.backend.session.models[name]
        config = state.engine.model.config
        # A copy: transformers writes into the configuration that it is given how attention is computed.
        net = AUTO[state.model.kind].from_config(deepcopy(config), attn_implementation="eager").double().eval()
        net.load_state_dict(self.run.initial[name])
        return Model(net)

    def same(self, seen: Seen, step: formulas.Step) -> None:
        """Compares a step of the run with the replay's."""
        close("metrics", seen.metrics, step.metrics)
        assert seen.losses.keys() == step.losses.keys()
        for name, found in step.losses.items():
            close(f"losses of {name}", seen.losses[name], found)
        for name, value in step.values.items():
            close(name, seen.values[name].tolist(), value)
        for name, model in self.models.items():
            own = model.weights()
            assert own.keys() == seen.weights[name].keys()
            for key, value in seen.weights[name].items():
                torch.testing.assert_close(
                    value, own[key], rtol=CLOSE, atol=CLOSE, msg=lambda m, k=key, n=name: f"{n}: {k}: {m}"
                )


def close(what: str, found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), what
        for name, value in expected.items():
            close(f"{what}: {name}", found[name], value)
        return
    torch.testing.assert_close(
        torch.tensor(found, dtype=torch.float64),
        torch.tensor(expected, dtype=torch.float64),
        rtol=CLOSE,
        atol=CLOSE,
        msg=lambda m: f"{what}: {m}",
    )


def rows_of(table: Sampled, scores: Any = None) -> list[Row]:
    """The rows of a table, with what a function of the user's said of them."""
    given = [0.0] * len(table.tokens) if scores is None else scores.tolist()
    turns = table.columns["turns"].tolist() if "turns" in table.columns else None
    rewards = [[]] * len(given) if turns is None else [part.tolist() for part in table.columns["reward"].split(turns)]
    return [
        Row(tokens, scored, score, reward)
        for tokens, scored, score, reward in zip(table.tokens, table.scored, given, rewards, strict=True)
    ]


def all_rows_of(seen: Seen, name: str) -> list[Row]:
    """The rows of a table in all blocks in which it was made."""
    return [row for table in seen.sampled if table.name == name for row in rows_of(table)]


def groups_of(table: Sampled, scores: Any = None) -> list[list[Row]]:
    groups: dict[int, list[Row]] = {}
    for row, at in zip(rows_of(table, scores), table.group, strict=True):
        groups.setdefault(at, []).append(row)
    return [groups[at] for at in sorted(groups)]


def causal(kind: str = "base") -> str:
    return f'causal_lm({kind}, dtype="float64")'


def source(name: str, batch: int) -> str:
    return f'jsonl("{name}.jsonl", batch={batch})'


ACTOR = {"base": weights(0), "actor": causal()}
JUDGE = {"judge": weights(7), "reward": 'frozen(reward_lm(judge, dtype="float64"))'}
DISTILLED = {
    "student": weights(0),
    "master": weights(5, hidden=16, layers=2),
    "actor": causal("student"),
    "teacher": f"frozen({causal('master')})",
    "prompts": source("prompts", 5),
}
