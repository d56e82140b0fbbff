"""Sums over the vocabulary on Ray's processes, as objects in this one: the very numbers of the local backend, however
rows are shared out, and whatever sleeps meanwhile. A run takes about half a second."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from scheduled import apart, compiled, debug_metrics, together
from tiny import ALGORITHMS, STUDENT_AND_TEACHER, compile_text, data_folder, run_text, shipped, weights

import rlgraph
from rlgraph.errors import ProgramError, RunError
from rlgraph.ir.plan import ModelHolding

CAUSAL = 'causal_lm({}, dtype="float64")'
CHANGES = {
    "student": weights(0),
    "master": weights(5, hidden=16, layers=2),
    "actor": CAUSAL.format("student"),
    "teacher": f"frozen({CAUSAL.format('master')})",
    "prompts": 'jsonl("prompts.jsonl", batch=5)',
}
GKD_FILE = ALGORITHMS / "gkd.rlf"
GKD = shipped("gkd", {"max_tokens=512": "max_tokens=5", "lr=1e-5": "lr=0.02"})
OF_ONE = """
algorithm one
param student = 0
param master = 0
model actor = causal_lm(student)
model teacher = causal_lm(master)
data prompts = jsonl("prompts.jsonl", batch=5)
step:
    rollout = actor.generate(prompts, n=2, max_tokens=5, temperature=0.8)
    p = teacher.distribution(rollout)
    sure = sum(p * p, vocab) - mean(rollout.length * p * p, vocab)
    adv = mean(sure, by=prompts)
    train actor(lr=0.02, eps=1e-2):
        q = actor.distribution(rollout)
        spread = sum(adv * q * log(q), vocab) + max(exp(rollout.logprobs) * q, vocab)
        minimize mean(-actor.logprobs(rollout) * sure + 0.1 * spread)
    train teacher(lr=0.02, eps=1e-2):
        minimize mean(-teacher.logprobs(rollout))
    report sure = mean(sure)
"""


LIKELIEST = f"""
algorithm likeliest
{STUDENT_AND_TEACHER}step:
    rollout = actor.generate(prompts, n=2, max_tokens=5, temperature=0.8, top_k=4)
    p = teacher.likeliest(rollout, top_k=3)
    seen = actor.likeliest(rollout, top_k=4)
    old = actor.logprobs(rollout, within=seen)
    train actor(lr=0.02, eps=1e-2):
        q = actor.distribution(rollout)
        ratio = exp(actor.logprobs(rollout, within=seen) - old)
        pull = sum(p * log(p / q), vocab)
        minimize mean(pull - ratio)
    report kept = mean(sum(p, vocab)), pull = mean(pull), old = mean(old)
"""


SUPPORT = f"""
algorithm support
{STUDENT_AND_TEACHER}buffer past = fifo(capacity=20)
step async(lag=1):
    rollout = actor.generate(prompts, n=2, max_tokens=5, temperature=0.8, top_p=0.8, support=keep)
    push past(rollout)
    again = past.sample(6)
    old = actor.logprobs(rollout, within=rollout.support)
    pull = sum(again.support, vocab) + teacher.logprobs(again, within=again.support)
    train actor(lr=0.02, eps=1e-2):
        minimize mean(-exp(actor.logprobs(rollout, within=rollout.support) - old))
    train actor(lr=0.02, eps=1e-2):
        minimize mean(-exp(actor.logprobs(again, within=again.support)))
    report kept = mean(sum(rollout.support, vocab)), pull = mean(pull), old = mean(old)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_folder(tmp_path_factory.mktemp("plans"))


def metrics(text: str, folder: Path, changes: dict[str, str]) -> list[dict[str, float]]:
    return [dict(seen.metrics) for seen in run_text(text, folder, 3, changes)]


def test_sums_of_one_model_anywhere(folder: Path) -> None:
    changes = {**CHANGES, "teacher": CAUSAL.format("master")}
    expected = metrics(OF_ONE, folder, changes)
    for schedule in (apart, together):
        made = compiled(OF_ONE, changes, schedule(compile_text(OF_ONE, changes)), folder)
        assert debug_metrics(made, folder, 3) == expected


def test_two_models_in_the_same_processes(folder: Path) -> None:
    """That of the teacher follows the student's training where nothing is said of it."""
    expected = metrics(GKD, folder, CHANGES)
    alone = "pool learn = 1 devices\npool play = 1 devices\nplace actor.train on learn(engine=transformers)\n"
    alone += "place actor.generate on play(engine=transformers)\n"
    for schedule in (together(compile_text(GKD, CHANGES)), alone):
        made = compiled(GKD, CHANGES, schedule, folder)
        roles = {(role.model, role.operation): role.group for role in made.plan.roles}
        assert roles["teacher", "distribution"] == roles["actor", "train"]
        assert debug_metrics(made, folder, 3) == expected
        for found, right in zip(debug_metrics(made, folder, 3, block=2), expected, strict=True):
            assert found == pytest.approx(right, abs=1e-10)


def test_likeliest_tokens_travel(folder: Path) -> None:
    expected = metrics(LIKELIEST, folder, CHANGES)
    for schedule in (apart, together):
        made = compiled(LIKELIEST, CHANGES, schedule(compile_text(LIKELIEST, CHANGES)), folder)
        assert debug_metrics(made, folder, 3) == expected
        for found, right in zip(debug_metrics(made, folder, 3, block=2), expected, strict=True):
            assert found == pytest.approx(right, abs=1e-10)


MIXED = f"""
algorithm mixed
{STUDENT_AND_TEACHER}param b = 0.3
step:
    rival = actor**(1 - b) * teacher**b
    rollout = rival.generate(prompts, n=2, max_tokens=5, temperature=0.8)
    far = max(abs(rollout.logprobs - rival.logprobs(rollout)))
    p = rival.distribution(rollout)
    whole = mean(sum(p, vocab))
    sharp = mean((actor**1.5 / teacher**0.5).logprobs(rollout))
    train actor(lr=0.02, eps=1e-2):
        minimize -mean(rival.logprobs(rollout))
    report far = far, whole = whole, sharp = sharp, length = mean(rollout.length)
"""


def test_a_mixture_samples_where_both_models_are(folder: Path) -> None:
    """It has the log-probabilities that it sampled with, and where nothing is said it is put together."""
    expected = metrics(MIXED, folder, CHANGES)
    assert all(step["far"] < 1e-12 and step["whole"] == pytest.approx(1, abs=1e-12) for step in expected)
    alone = "pool learn = 1 devices\npool play = 1 devices\nplace actor.train on learn(engine=transformers)\n"
    alone += "place actor.generate on play(engine=transformers)\n"
    for schedule in (together(compile_text(MIXED, CHANGES)), alone):
        made = compiled(MIXED, CHANGES, schedule, folder)
        roles = {(role.model, role.operation): role.group for role in made.plan.roles}
        assert roles["teacher", "generate"] == roles["actor", "generate"]
        assert debug_metrics(made, folder, 3) == expected
        assert not any("mismatch" in name for step in expected for name in step)


@pytest.mark.parametrize(
    ("schedule", "code"),
    [
        ("pool a = 1 devices\npool b = 1 devices\nplace actor.generate on a\nplace teacher.generate on b\n", "E0317"),
        ("pool a = 1 devices\nplace actor.generate, teacher.generate on a(engine=vllm)\n", "E0318"),
    ],
)
def test_models_that_cannot_be_mixed(folder: Path, schedule: str, code: str) -> None:
    with pytest.raises(ProgramError) as caught:
        compiled(MIXED, CHANGES, schedule, folder)
    [found] = [diagnostic for diagnostic in caught.value.diagnostics if diagnostic.code == code]
    assert "to sample from a mixture" in found.message and found.span.line and "engine=transformers" in found.hint


def test_a_search_puts_a_mixture_together() -> None:
    made = rlgraph.compile(ALGORITHMS / "nash_md.rlf", {"base": '"Qwen/Qwen2.5-0.5B"'}, cluster="1x8:h100-80gb")
    roles = {(role.model, role.operation): role.group for role in made.plan.roles}
    assert roles["actor", "generate"] == roles["ref", "generate"]
    assert made.plan.group(roles["ref", "generate"]).engine == "transformers"


def test_a_mixture_of_models_with_other_tokens(folder: Path) -> None:
    other = weights(5).replace("abcd>", "abcde")
    changes = {**CHANGES, "teacher": f"frozen({CAUSAL.format(other)})"}
    with pytest.raises(RunError, match="E0893"):
        metrics(MIXED, folder, changes)


def test_what_a_sampler_chose_from_travels(folder: Path) -> None:
    """From the processes that sample to those that train, under `lag`, and back out of a buffer."""
    expected = metrics(SUPPORT, folder, CHANGES)
    for schedule in (apart, together):
        made = compiled(SUPPORT, CHANGES, schedule(compile_text(SUPPORT, CHANGES)), folder)
        assert debug_metrics(made, folder, 3) == expected
        for found, right in zip(debug_metrics(made, folder, 3, block=2), expected, strict=True):
            assert found == pytest.approx(right, abs=1e-10)


def test_a_teacher_that_follows_the_student(folder: Path) -> None:
    text = GKD.replace("    report jsd", "    update teacher from actor(ema=0.5)\n    report jsd")
    text = text.replace("minimize mean(jsd)", "minimize mean(jsd - actor.logprobs(rollout))")
    changes = {**CHANGES, "teacher": "frozen(actor)"}
    del changes["master"]
    text = text.replace('param master  = "Qwen/Qwen2.5-3B-Instruct"\n', "")
    schedule = "pool learn = 1 devices\npool play = 1 devices\nplace actor.train on learn(engine=transformers)\n"
    schedule += "place actor.generate on play(engine=transformers)\n"
    expected = metrics(text, folder, changes)
    assert expected[0]["jsd"] == pytest.approx(0, abs=1e-12) and expected[2]["jsd"] > 1e-6
    assert debug_metrics(compiled(text, changes, schedule, folder), folder, 3) == expected


def test_two_models_with_replicas(folder: Path) -> None:
    expected = metrics(GKD, folder, CHANGES)
    made = compiled(GKD, CHANGES, "pool all = 2 devices\nplace actor, teacher on all(engine=transformers)\n", folder)
    for found, right in zip(debug_metrics(made, folder, 3), expected, strict=True):
        assert found == pytest.approx(right, abs=1e-10)


def test_a_teacher_that_sleeps_is_awake_while_it_is_read(folder: Path) -> None:
    made = compiled(GKD, CHANGES, together(compile_text(GKD, CHANGES)), folder)
    group = made.plan.groups[-1].name
    holdings = tuple(ModelHolding(model, group, offload=True) for model in ("actor", "teacher"))
    asleep = replace(made, file=None)
    asleep.__dict__["placed"] = replace(made.placed, plan=replace(made.plan, holdings=holdings))
    assert debug_metrics(asleep, folder, 3) == metrics(GKD, folder, CHANGES)


@pytest.mark.parametrize(
    ("schedule", "code"),
    [
        ("pool a = 1 devices\npool b = 1 devices\nplace actor on a\nplace teacher on b\n", "E0317"),
        ("pool a = 2 devices\nplace actor.train, teacher on a(engine=transformers, fsdp=2)\n", "E0318"),
        ("pool a = 2 devices\nplace actor.train on a(engine=megatron, pp=2)\n", "E0318"),
    ],
)
def test_models_that_are_not_together(folder: Path, schedule: str, code: str) -> None:
    with pytest.raises(ProgramError) as caught:
        compiled(GKD, CHANGES, schedule, folder)
    assert code in {diagnostic.code for diagnostic in caught.value.diagnostics}


@pytest.mark.parametrize(
    ("cluster", "student", "master"),
    [("1x8:h100-80gb", "0.5B", "3B"), ("1x8:h100-80gb", "7B", "32B")],
)
def test_a_search_keeps_models_together_that_are_read_together(cluster: str, student: str, master: str) -> None:
    """Split alike, too: the small one as the large one needs it."""
    sizes = {"student": student, "master": master}
    made = rlgraph.compile(GKD_FILE, {n: f'"Qwen/Qwen2.5-{size}"' for n, size in sizes.items()}, cluster=cluster)
    roles = {(role.model, role.operation): role.group for role in made.plan.roles}
    assert roles["teacher", "distribution"] == roles["actor", "train"]


def test_models_whose_vocabularies_differ_have_no_plan() -> None:
    with pytest.raises(ProgramError, match="`actor` has 151936, `teacher` has 152064"):
        rlgraph.compile(GKD_FILE, {"master": '"Qwen/Qwen2.5-7B"'}, cluster="1x8:h100-80gb")
