"""Which losses are added up while their rows are still to come, and what keeps the others waiting."""

from __future__ import annotations

import pytest

import rlgraph
from rlgraph.api.compiled import Compiled
from rlgraph.ir.text.program_text import program_text
from rlgraph.passes.rewrites.accumulate import streamed_trainings, with_accumulation
from rlgraph.passes.rewrites.pipeline import verify_passes

HEAD = """algorithm a
model actor  = causal_lm(random("llama", hidden_size=8, intermediate_size=16, num_hidden_layers=1,
                                num_attention_heads=2, num_key_value_heads=1, tokenizer=chars("ab")))
data prompts = jsonl("p.jsonl", batch=8)
func correct = python("f.py:f")
step:
    rollout = actor.generate(prompts, n=4, max_tokens=8)
    score   = correct(rollout)
    adv     = center(score, prompts)
"""

TRAIN = """    train actor(lr=0.1, clip_norm=1.0):
        logp  = actor.logprobs(rollout)
        ratio = exp(logp - rollout.logprobs)
        minimize {}
    report score = mean(score)
"""

APART = """schedule a
pool learn = 1 devices
pool play = 1 devices
place actor.train on learn(engine=transformers)
place actor.generate on play(engine=transformers)
stream rollout(block=4)
"""


def made(loss: str, schedule: str = APART, head: str = HEAD) -> Compiled:
    return rlgraph.compile(head + TRAIN.format(loss), schedule=schedule)


def told(compiled: Compiled) -> list[str]:
    return [training.why for training in streamed_trainings(compiled.program, compiled.plan)]


@pytest.mark.parametrize(
    ("loss", "region", "scale"),
    [
        ("mean(-ratio * adv)", "sum(-ratio * adv)", "1.0 / maximum(size, 1)"),
        ("mean(-ratio * adv) + 0.1 * mean(logp)", "sum(-ratio * adv) + 0.1 * sum(logp)", "1.0 / maximum(size, 1)"),
        ("-sum(ratio * adv) / sum(rollout.length)", "-sum(ratio * adv)", "1.0 / "),
        ("sum(score) * mean(-ratio * adv) * 2", "sum(-ratio * adv) * 2", "1.0 / maximum(size, 1) * "),
        ("mean(mean(-ratio * adv, by=rollout))", "sum(mean(-ratio * adv", "1.0 / maximum(size, 1)"),
        ("sum(-ratio * adv) / 64", "sum(-ratio * adv) / 64", "1.0"),
    ],
)
def test_a_sum_is_added_up_and_divided_at_the_end(loss: str, region: str, scale: str) -> None:
    compiled = made(loss)
    assert told(compiled) == [""]
    program = with_accumulation(compiled.program, compiled.plan)
    verify_passes(program)
    text = program_text(program)
    for name in ("actor.loss.rollout.token.size", "actor.loss.rollout.size"):
        text = text.replace(name, "size")
    added = next(line for line in text.splitlines() if "actor.loss.part.sum: float =" in line)
    assert region in added and "size" not in added
    assert f"scale: float = {scale}" in text
    assert "apply(actor@0, actor@2.scale) {lr=0.1, clip_norm=1.0," in text and " train(" not in text


@pytest.mark.parametrize(
    ("loss", "why"),
    [
        ("mean(-ratio * adv) + mean(mean(logp, by=rollout))", "the terms of its loss"),
        ("mean(-ratio * whiten(adv))", "`mean` is over the whole batch"),
        ("mean(-ratio * adv / mean(score))", "`mean` is over the whole batch"),
        ("mean(-ratio * adv) + std(logp)", "`std` over the whole batch of what the model computes"),
    ],
)
def test_why_a_training_waits(loss: str, why: str) -> None:
    compiled = made(loss)
    [found] = told(compiled)
    assert why in found
    assert with_accumulation(compiled.program, compiled.plan) == compiled.program


def test_where_nothing_goes_on_meanwhile_a_step_stays_whole() -> None:
    together = "schedule a\npool all = 1 devices\nplace actor on all(engine=transformers)\nstream rollout(block=4)\n"
    quick = HEAD.replace("correct(rollout)", "float(rollout.length)")
    for schedule, head, expected in (
        (APART.replace("stream rollout(block=4)\n", ""), HEAD, []),
        (together, quick, []),
        (together, HEAD, [""]),
    ):
        compiled = made("mean(-ratio * adv)", schedule, head)
        assert told(compiled) == expected
        assert (with_accumulation(compiled.program, compiled.plan) == compiled.program) == (not expected)
