"""A tournament as a program: a judge is asked of each ordered pair of answers, win rates become places, and places
advantages; beside a plain loop over what the judge wrote, in any block and on Ray."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scheduled import compiled, debug_metrics
from tiny import Run, compile_text, data_folder, weights

LETTERS = weights().replace('"abcd>"', '"abcd12>"')
TEXT = f"""algorithm tournament
model actor  = causal_lm({LETTERS}, dtype="float64")
model judge  = frozen(causal_lm({LETTERS.replace("seed=0", "seed=5")}, dtype="float64"))
data prompts = jsonl("prompts.jsonl", batch=5, shuffle=false)
step:
    rollout = actor.generate(prompts, n=4, max_tokens=5)
    p       = pairs(rollout, by=prompts)
    other   = p.other(rollout.text)
    duel    = judge.generate("{{prompts.prompt}}>{{rollout.text}}>{{other}}>", max_tokens=4)
    said    = otherwise(number(duel.text), 0)
    won     = where(said == 1, 1.0, where(said == 2, 0.0, 0.5))
    wins    = mean(won, by=rollout)
    place   = rank(wins, by=prompts)
    adv     = 1 - 2 * place / (size(wins, by=prompts) - 1)
    train actor(lr=0.01, eps=0.01):
        ratio = exp(actor.logprobs(rollout) - rollout.logprobs)
        minimize mean(-min(ratio * adv, clip(ratio, 0.8, 1.2) * adv))
    report best = mean(max(wins, by=prompts)), draws = mean(won == 0.5), paid = sum(adv * rollout.length)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return data_folder(tmp_path)


def verdict(text: str) -> float:
    """What a duel comes to for the answer that is shown first."""
    numbers = re.findall(r"\d+", text)
    return {"1": 1.0, "2": 0.0}.get(numbers[-1], 0.5) if numbers else 0.5


def test_a_tournament_is_what_a_plain_loop_says(folder: Path) -> None:
    assert len([line for line in TEXT.splitlines() if line.strip()]) <= 30
    run = Run(compile_text(TEXT), folder)
    codec = run.backend.session.models["judge"].engine.codec
    [seen] = run.steps(1)
    answers = [codec.decode(row) for row in seen.values["rollout"].sequences.scored_tokens_by_row()]
    verdicts = [verdict(codec.decode(row)) for row in seen.values["duel"].sequences.scored_tokens_by_row()]
    asked = [prompt for prompt in seen.values["duel"].prompts]
    lengths = seen.values["rollout"].sequences.scored_counts().tolist()
    assert len(verdicts) == 5 * 4 * 3 and len(set(verdicts)) == 3
    best, paid, number = [], 0.0, 0
    for group in range(0, 20, 4):
        wins = []
        for first in range(group, group + 4):
            won = []
            for second in range(group, group + 4):
                if first == second:
                    continue
                assert asked[number].endswith(f">{answers[first]}>{answers[second]}>")
                won.append(verdicts[number])
                number += 1
            wins.append(sum(won) / 3)
        best.append(max(wins))
        order = [row for _, row in sorted((-won, row) for row, won in enumerate(wins))]
        paid += sum((1 - 2 * order.index(row) / 3) * lengths[group + row] for row in range(4))
    assert seen.metrics["best"] == pytest.approx(sum(best) / 5)
    assert seen.metrics["draws"] == pytest.approx(verdicts.count(0.5) / 60)
    assert seen.metrics["paid"] == pytest.approx(paid)


def test_any_block_and_ray_say_the_same(folder: Path) -> None:
    program = compile_text(TEXT)
    whole = [dict(step.metrics) for step in Run(program, folder).steps(2)]
    found = [[dict(step.metrics) for step in Run(program, folder, block=block).steps(2)] for block in (1, 3)]
    schedule = "pool play = 1 devices\nplace actor on play(engine=transformers)\n"
    schedule += "pool desk = 1 devices\nplace judge on desk(engine=transformers)\n"
    found.append(debug_metrics(compiled(TEXT, {}, schedule, folder), folder, 2, block=3))
    for steps in found:
        assert [pytest.approx(step, rel=1e-9, abs=1e-9) for step in whole] == steps
