"""The program of docs/how-to/questions.md beside plain loops: votes, what a question is worth, and both losses."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from scheduled import compiled, debug_metrics
from tiny import Run, compile_text, weights

ROOT = Path(__file__).parents[2]
SIZES = {
    "batch=2": "batch=3",
    "max_tokens=256": "max_tokens=5",
    "max_tokens=1024": "max_tokens=3",
    "lr=1e-6": "lr=0.01, eps=0.01",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files of the page, where any two letters are a question."""
    page = (ROOT / "docs/how-to/questions.md").read_text()
    code = re.search(r"```python questions.py\n(.*?)```", page, re.DOTALL)
    assert code and "<question>(.+?)</question>" in code[1]
    (tmp_path / "questions.py").write_text(code[1].replace("<question>(.+?)</question>", r"(\S.*\S)"))
    (tmp_path / "asks.jsonl").write_text("".join(f'{{"prompt": "{text}"}}\n' for text in ("12", "3", "231")))
    return tmp_path


def program() -> str:
    page = (ROOT / "docs/how-to/questions.md").read_text()
    text = re.search(r"```rlf\n(.*?)```", page, re.DOTALL)
    assert text and len([line for line in text[1].splitlines() if line.strip()]) <= 30
    out = text[1]
    for old, new in SIZES.items():
        assert old in out
        out = out.replace(old, new)
    for seed, name in enumerate(("challenger", "solver")):
        made = weights(seed).replace("abcd>", "123 ")
        line = re.search(rf"model {name} +=.*", out)
        assert line
        out = out.replace(line[0], f'model {name} = causal_lm({made}, dtype="float64")')
    return out


def standard(values: list[float]) -> list[float]:
    """Less their mean, over their spread, as GRPO has it."""
    at = torch.tensor(values, dtype=torch.float64)
    return ((at - at.mean()) / (at.std() + 1e-6)).tolist()


def number(text: str) -> float | None:
    found = re.findall(r"\d+", text)
    return float(found[-1]) if found else None


def reference(
    questions: list[str], answers: list[str], lengths: tuple[list[int], list[int]], alike: list[float]
) -> dict[str, Any]:
    """R-Zero by plain loops. lengths: tokens of questions, and of answers. Returns rewards of questions, shares of the
    largest votes, and losses of challenger and solver where ratios are 1: None where nothing is learned."""
    agreed, rewards, learned = [], [], []
    for at, question in enumerate(questions):
        said = [number(text) for text in answers[8 * at : 8 * at + 8]]
        votes = Counter(one for one in said if one is not None)
        most = max(votes.values(), default=0)
        label = next((one for one in said if one is not None and votes[one] == most), None)
        agreed.append(most / 8)
        rewards.append(max(1 - 2 * abs(most / 8 - 0.5) - alike[at], 0.0) if question else 0.0)
        if question and abs(most / 8 - 0.5) <= 0.25:
            right = standard([float(one is not None and one == label) for one in said])
            learned += [*zip(right, lengths[1][8 * at : 8 * at + 8], strict=True)]
    asked = [one for at in range(0, len(rewards), 4) for one in standard(rewards[at : at + 4])]
    losses = (
        -sum(adv * length for adv, length in part) / max(sum(length for _, length in part), 1)
        for part in ([*zip(asked, lengths[0], strict=True)], learned)
    )
    return {"agreed": agreed, "rewards": rewards, "learned": len(learned), "losses": [*losses]}


def test_rewards_and_losses_are_those_of_plain_loops(folder: Path) -> None:
    code: dict[str, Any] = {}
    exec((folder / "questions.py").read_text(), code)
    learned = []
    for seen in Run(compile_text(program()), folder).steps(4):
        task, answer = seen.table("task"), seen.table("answer")
        questions = [text for _, text in code["question"](None, None, seen.values["task.text"])]
        lengths = tuple([sum(flags) for flags in table.scored] for table in (task, answer))
        alike = code["alike"](None, None, questions)
        plain = reference(questions, seen.values["answer.text"], lengths, alike)
        assert seen.metrics["reward"] == pytest.approx(sum(plain["rewards"]) / 12, abs=1e-12)
        assert seen.metrics["agreed"] == pytest.approx(sum(plain["agreed"]) / 12, abs=1e-12)
        assert seen.metrics["learned"] == plain["learned"]
        for name, loss in zip(("challenger", "solver"), plain["losses"], strict=True):
            assert seen.losses[name][0][0] == pytest.approx(loss, abs=1e-12)
        learned.append(plain["learned"])
    assert len({*learned}) > 1, "questions are kept and left out"


def test_any_block_and_ray_say_the_same(folder: Path) -> None:
    made = compile_text(program())
    whole = [dict(step.metrics) for step in Run(made, folder).steps(3)]
    ways = [[dict(step.metrics) for step in Run(made, folder, block=block).steps(3)] for block in (1, 3)]
    schedule = "pool ask = 1 devices\npool play = 1 devices\nplace challenger on ask(engine=transformers)\n"
    schedule += "place solver on play(engine=transformers)\n"
    ways.append(debug_metrics(compiled(program(), {}, schedule, folder), folder, 3))
    for way in ways:
        assert [pytest.approx(step, rel=1e-9, abs=1e-9) for step in whole] == way
