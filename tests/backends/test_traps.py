"""The traps of the zoo: places in which systems that ship differ, each as a program whose meaning is one of them.

Named after the trap. What a program means is written here as a loop over rows and tokens.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import formulas
import pytest
import torch
from tiny import EPS, Run, Seen, compile_text, data_folder, run_text, weights

from rlgraph.dsl.check import check
from rlgraph.errors import Source
from tests.suites import few


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_folder(tmp_path_factory.mktemp("traps"))


MODEL = f'model actor = causal_lm({weights()}, dtype="float64")\nmodel ref = frozen(causal_lm({weights(3)}, dtype="float64"))\n'
DATA = 'data prompts = jsonl("prompts.jsonl", batch=5, shuffle=false)\n'
HEAD = (
    "algorithm t\n"
    + MODEL
    + DATA
    + 'func spread = python("rewards.py:spread")\nfunc ones = python("rewards.py:ones")\n'
)


def step(n: int, lines: str, folder: Path, temperature: float = 1.0, **settings: Any) -> Seen:
    text = f"""
step:
    rollout = actor.generate(prompts, n={n}, max_tokens=5, temperature={temperature})
    score   = spread(rollout)
    lp      = ref.logprobs(rollout)
    mu      = rollout.logprobs
"""
    if n == 1:
        text = text.replace("generate(prompts, n=1", "generate(prompts")
    # Each value is used, so that no warning of an unused one is in the way.
    lines += "    report unused = mean(score) + mean(lp) + mean(mu)\n"
    return run_text(HEAD + text + lines, folder, **settings)[0]


def rows(values: torch.Tensor, seen: Seen) -> list[list[float]]:
    """A value with tokens, as a list for each row."""
    counts = [sum(flags) for table in seen.sampled if table.name == "rollout" for flags in table.scored]
    return [part.tolist() for part in values.split(counts)]


def groups(seen: Seen, n: int) -> list[list[float]]:
    return [part.tolist() for part in torch.cat(seen.scores)[: 5 * n].split(n)]


def test_trap_1_a_group_of_one_has_no_advantage(folder: Path) -> None:
    """verl gives R, RLinf NaN; here the group's mean is the row itself and its spread is 0."""
    seen = step(
        1,
        """    grpo = (score - mean(score, by=prompts)) / (std(score, by=prompts) + 1e-6)
    rloo = leave_one_out(score, prompts)
    norm = normalize(score, prompts, 1e-6)
    report grpo = max(abs(grpo)), rloo = max(abs(rloo)), norm = max(abs(norm)), raw = max(abs(score))
""",
        folder,
    )
    assert (seen.metrics["grpo"], seen.metrics["rloo"], seen.metrics["norm"]) == (0, 0, 0)
    assert seen.metrics["raw"] > 0.1


def test_trap_2_leave_one_out_is_another_baseline(folder: Path) -> None:
    seen = step(
        3,
        "    loo = leave_one_out(score, prompts)\n    cen = center(score, prompts)\n    report loo = sum(loo**2), cen = sum(cen**2)\n",
        folder,
    )
    expected = sum((r - (sum(g) - r) / 2) ** 2 for g in groups(seen, 3) for r in g)
    assert seen.metrics["loo"] == pytest.approx(expected, abs=1e-12)
    assert seen.metrics["cen"] == pytest.approx(expected * (2 / 3) ** 2, abs=1e-12)


@pytest.mark.parametrize("eps", few([1e-9, 1e-6, 1e-4, 0.5], 1e-4, 0.5))
def test_trap_3_the_epsilon_stands_beside_an_unbiased_deviation(folder: Path, eps: float) -> None:
    seen = step(3, f"    adv = normalize(score, prompts, {eps})\n    report sum = sum(abs(adv))\n", folder)
    expected = sum(abs(a) for g in groups(seen, 3) for a in formulas.group_advantages(g, eps))
    assert seen.metrics["sum"] == pytest.approx(expected, abs=1e-10)


LOSSES = {
    "token mean": "mean(x)",
    "mean of sequence means": "mean(mean(x, token))",
    "mean of sequence sums": "mean(sum(x, token))",
    "Dr.GRPO": "mean(sum(x, token)) / 20",
    "token sum": "sum(x)",
    "mean of prompt means": "mean(mean(x, by=prompts))",
}


def aggregated(name: str, x: list[list[float]]) -> float:
    flat = [v for row in x for v in row]
    prompts = [[v for row in x[at : at + 2] for v in row] for at in range(0, len(x), 2)]
    return {
        "token mean": sum(flat) / len(flat),
        "mean of sequence means": sum(sum(row) / len(row) for row in x) / len(x),
        "mean of sequence sums": sum(map(sum, x)) / len(x),
        "Dr.GRPO": sum(map(sum, x)) / len(x) / 20,
        "token sum": sum(flat),
        "mean of prompt means": sum(sum(p) / len(p) for p in prompts) / len(prompts),
    }[name]


@pytest.mark.parametrize("micro", few([1, 3, 100], 3))
@pytest.mark.parametrize("name", LOSSES)
def test_trap_4_every_denominator_is_that_of_the_whole_mini_batch(folder: Path, name: str, micro: int) -> None:
    """The loss that the optimizer sees, whatever the micro-batches; ROLL and old verl forget the 1/B of Dr.GRPO."""
    lines = f"""    train actor(lr=0.0):
        x = -actor.logprobs(rollout) * score
        minimize {LOSSES[name]}
"""
    seen = step(2, lines, folder, micro_rows=micro)
    mu = rows(seen.sampled[0].columns["logprobs"], seen)
    x = [[-v * s for v in row] for row, s in zip(mu, torch.cat(seen.scores).tolist(), strict=True)]
    loss, norm = seen.losses["actor"][0]
    assert loss == pytest.approx(aggregated(name, x), abs=1e-11)
    whole = step(2, lines, folder, micro_rows=100).losses["actor"][0]
    assert norm == pytest.approx(whole[1], abs=1e-11)


def test_trap_5_the_cap_of_cispo_is_what_the_program_says(folder: Path) -> None:
    """TRL's number is the cap itself, verl's what is added to 1; the program writes it out."""
    lines = "    w = min(exp(lp - mu), 1 + 0.2)\n    c = min(exp(lp - mu), 0.2)\n    report w = sum(w), c = sum(c)\n"
    seen = step(2, lines, folder)
    ratio = [math.exp(v) for v in (seen.values["lp"] - seen.sampled[0].columns["logprobs"]).tolist()]
    assert seen.metrics["w"] == pytest.approx(sum(min(r, 1.2) for r in ratio), abs=1e-11)
    assert seen.metrics["c"] == pytest.approx(sum(min(r, 0.2) for r in ratio), abs=1e-11)


def test_trap_6_a_ratio_and_its_logarithm_have_one_gradient_inside_of_the_mask_alone(folder: Path) -> None:
    """DPPO's mask: verl's form is of log-probabilities times the ratio without a gradient, SkyRL's of the ratio."""
    forms = {"ratio": "exp(now - mu)", "log": "detach(exp(now - mu)) * now", "cut": "min(exp(now - mu), 1.0)"}
    lines = """    train actor(lr=0.0):
        now = actor.logprobs(rollout, temperature=0.7)
        inside = detach(exp(now - mu)) < 1.0
        minimize mean(FORM * score)
"""
    norm = {
        (form, mask): step(2, lines.replace("FORM", f"where(inside, {text}, {rest})"), folder).losses["actor"][0][1]
        for form, text in forms.items()
        for mask, rest in {"masked": "0.0", "whole": text}.items()
    }
    assert norm["ratio", "masked"] == pytest.approx(norm["log", "masked"], abs=1e-11)
    assert norm["ratio", "whole"] == pytest.approx(norm["log", "whole"], abs=1e-11)
    # A minimum has no gradient beyond its cap: where the mask is gone the forms part.
    assert norm["cut", "masked"] == pytest.approx(norm["ratio", "masked"], abs=1e-11)
    assert norm["cut", "whole"] != pytest.approx(norm["ratio", "whole"], abs=1e-6)


def test_trap_7_k1_as_a_loss_is_warned_of(folder: Path) -> None:
    text = (
        HEAD
        + """
step:
    rollout = actor.generate(prompts, n=2, max_tokens=5)
    ref_lp = ref.logprobs(rollout)
    train actor(lr=0.1):
        minimize mean(k1(actor.logprobs(rollout), ref_lp))
    report score = mean(spread(rollout)) + mean(ones(rollout))
"""
    )
    _, warnings = check(Source("p.rlf", text), {})
    assert [warning.code for warning in warnings] == ["W0501"]


def test_trap_8_a_log_ratio_is_a_sum_or_a_mean_as_written(folder: Path) -> None:
    lines = "    report sums = mean(sum(lp - mu, token)), means = mean(mean(lp - mu, token))\n"
    seen = step(2, lines, folder)
    d = rows(seen.values["lp"] - seen.sampled[0].columns["logprobs"], seen)
    assert seen.metrics["sums"] == pytest.approx(sum(map(sum, d)) / 10, abs=1e-11)
    assert seen.metrics["means"] == pytest.approx(sum(sum(r) / len(r) for r in d) / 10, abs=1e-11)


EPISODES = (
    HEAD
    + """
model critic = value_lm(WEIGHTS, dtype="float64")
data tasks = jsonl("tasks.jsonl", batch=8, shuffle=false)
env shell = python("envs.py:Shell")

step:
    rollout = actor.interact(shell, tasks, n=2, max_turns=3, max_tokens=14)
    value   = critic.values(rollout)
    score   = sum(rollout.reward, turn)
    adv     = gae(score * rollout.end, value, 0.9, 0.8)
    gain    = discount(score * rollout.end, 0.9)
    old     = ref.logprobs(rollout)
    s       = exp(mean(old - rollout.logprobs, token))
    report adv = sum(adv), gain = sum(gain), s = mean(s), other = mean(ones(rollout)) + mean(spread(rollout))
"""
)


@pytest.mark.parametrize("block", few([None, 3], 3))
def test_trap_9_and_19_tokens_of_a_tool_are_skipped(folder: Path, block: int | None) -> None:
    """Advantages run from action to action, and GSPO's ratio is a mean over actions only (slime's GAE does not
    skip)."""
    seen = run_text(EPISODES.replace("WEIGHTS", weights(4)), folder, block=block)[0]
    whole = run_text(EPISODES.replace("WEIGHTS", weights(4)), folder)[0]
    table = whole.table("rollout")
    value, old = (rows(whole.values[name], whole) for name in ("value", "old"))
    mu = rows(table.columns["logprobs"], whole)
    rewards = [sum(part.tolist()) for part in table.columns["reward"].split(table.columns["turns"].tolist())]
    adv = [formulas.gae(formulas.at_end(r, len(v)), v, 0.9, 0.8) for r, v in zip(rewards, value, strict=True)]
    gain = [formulas.rewards_to_come(formulas.at_end(r, len(v)), 0.9) for r, v in zip(rewards, value, strict=True)]
    ratios = [math.exp(formulas.mean([a - b for a, b in zip(o, m, strict=True)])) for o, m in zip(old, mu, strict=True)]
    holes = [flags for flags in table.scored if [True, False, True] in [flags[at : at + 3] for at in range(len(flags))]]
    assert holes or any(flags.count(True) and False in flags[flags.index(True) :] for flags in table.scored)
    torch.testing.assert_close(
        whole.values["adv"], torch.tensor(formulas.flat(adv), dtype=torch.float64), atol=1e-11, rtol=0
    )
    assert seen.metrics["adv"] == pytest.approx(math.fsum(formulas.flat(adv)), abs=1e-10)
    assert seen.metrics["gain"] == pytest.approx(math.fsum(formulas.flat(gain)), abs=1e-10)
    assert seen.metrics["s"] == pytest.approx(formulas.mean(ratios), abs=1e-10)


def test_trap_10_the_two_sides_of_a_ratio_are_named(folder: Path) -> None:
    lines = "    report k = mean(k1(mu, lp)), other = mean(k1(lp, mu)), k3 = mean(k3(mu, lp)), k2 = mean(k2(mu, lp))\n"
    seen = step(2, lines, folder)
    d = (seen.sampled[0].columns["logprobs"] - seen.values["lp"]).tolist()
    assert seen.metrics["k"] == pytest.approx(sum(d) / len(d), abs=1e-12) == -seen.metrics["other"]
    assert seen.metrics["k3"] == pytest.approx(sum(math.exp(-x) + x - 1 for x in d) / len(d), abs=1e-11)
    assert seen.metrics["k2"] == pytest.approx(sum(x * x / 2 for x in d) / len(d), abs=1e-11)


def test_trap_11_an_importance_weight_is_on_what_the_program_multiplies(folder: Path) -> None:
    """swift weighs the KL term, too, others the policy's term alone."""
    lines = (
        "    w = min(exp(lp - mu), 2)\n    report one = mean(w * mu + k3(mu, lp)), both = mean(w * (mu + k3(mu, lp)))\n"
    )
    seen = step(2, lines, folder)
    pairs = list(zip(seen.sampled[0].columns["logprobs"].tolist(), seen.values["lp"].tolist(), strict=True))
    weights_, kl = [min(math.exp(q - p), 2) for p, q in pairs], [math.exp(q - p) + p - q - 1 for p, q in pairs]
    one = sum(w * p + k for w, (p, _), k in zip(weights_, pairs, kl, strict=True)) / len(pairs)
    both = sum(w * (p + k) for w, (p, _), k in zip(weights_, pairs, kl, strict=True)) / len(pairs)
    assert (seen.metrics["one"], seen.metrics["both"]) == pytest.approx((one, both), abs=1e-11)


@pytest.mark.parametrize("block", [None, 2])
def test_trap_17_a_soft_mean_is_of_the_rows_that_by_names(folder: Path, block: int | None) -> None:
    """SPPO's log-mean-exp of rewards: of a prompt's answers, where verl takes the whole batch."""
    lines = "    report own = mean(log(mean(exp(score), by=prompts))), all = log(mean(exp(score)))\n"
    seen = step(2, lines, folder, block=block)
    own = [math.log(sum(map(math.exp, group)) / 2) for group in groups(seen, 2)]
    assert seen.metrics["own"] == pytest.approx(sum(own) / 5, abs=1e-11)
    flat = [math.exp(score) for group in groups(seen, 2) for score in group]
    assert seen.metrics["all"] == pytest.approx(math.log(sum(flat) / 10), abs=1e-11)


@pytest.mark.parametrize("micro", [1, 100])
def test_trap_12_a_rejected_token_stays_in_the_denominator_unless_its_row_is_dropped(folder: Path, micro: int) -> None:
    masked = """    train actor(lr=0.0):
        x = where(score > 0.5, -actor.logprobs(rollout), 0)
        minimize mean(x)
"""
    dropped = """    keep rollout where score > 0.5
    train actor(lr=0.0):
        minimize mean(-actor.logprobs(rollout))
"""
    one, other = (step(2, lines, folder, micro_rows=micro) for lines in (masked, dropped))
    mu = rows(one.sampled[0].columns["logprobs"], one)
    good = [row for row, score in zip(mu, torch.cat(one.scores).tolist(), strict=True) if score > 0.5]
    total = -math.fsum(v for row in good for v in row)
    assert one.losses["actor"][0][0] == pytest.approx(total / sum(map(len, mu)), abs=1e-11)
    assert other.losses["actor"][0][0] == pytest.approx(total / sum(map(len, good)), abs=1e-11)


STATISTICS = {
    "whiten": "whiten(lp - mu)",
    "quantile": "where(lp - mu > quantile(lp - mu, 0.6), lp - mu, 0)",
    "of the model": "where(now > quantile(detach(now), 0.5), 1, 0)",
    "whitened model": "whiten(detach(now) - lp)",
}


@pytest.mark.parametrize("name", few(STATISTICS, "quantile", "whitened model"))
def test_trap_13_a_statistic_is_over_the_mini_batch_and_not_over_a_micro_batch(folder: Path, name: str) -> None:
    """verl's clip_cov and kl_cov take the quantile of a micro-batch, so that the result depends on its size."""
    lines = f"""    train actor(lr=0.05, eps={EPS}):
        now = actor.logprobs(rollout)
        a = {STATISTICS[name]}
        minimize mean(-a * now)
"""
    whole = step(2, lines, folder, micro_rows=100)
    for settings in ({"micro_rows": 1}, {"micro_rows": 3}, {"block": 2}, {"threads": 2, "micro_rows": 2}):
        found = step(2, lines, folder, **settings)
        assert found.losses["actor"][0] == pytest.approx(whole.losses["actor"][0], abs=1e-11)
        torch.testing.assert_close(found.weights["actor"], whole.weights["actor"], atol=1e-10, rtol=0)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_trap_14_a_log_probability_is_taken_at_the_temperature_of_the_draw(folder: Path, temperature: float) -> None:
    lines = """    again = actor.logprobs(rollout)
    plain = actor.logprobs(rollout, temperature=1.0)
    report gap = max(abs(again - mu)), plain = max(abs(plain - mu))
    train actor(lr=0.0):
        ratio = exp(actor.logprobs(rollout) - mu)
        minimize mean(ratio * score)
    report off = max(abs(ratio - 1))
"""
    metrics = step(2, lines, folder, temperature).metrics
    assert metrics["gap"] < 1e-12 and metrics["off"] < 1e-12
    assert (metrics["plain"] > 1e-3) == (temperature != 1.0)


def test_trap_15_whitening_a_single_token_is_no_error(folder: Path) -> None:
    text = (
        HEAD.replace("batch=5", "batch=1")
        + """
step:
    rollout = actor.generate(prompts, max_tokens=1)
    white = whiten(rollout.logprobs)
    report white = max(abs(white)), n = sum(rollout.length), other = mean(ones(rollout)) + mean(spread(rollout)) + mean(ref.logprobs(rollout))
"""
    )
    metrics = run_text(text, folder)[0].metrics
    assert (metrics["white"], metrics["n"]) == (0, 1)


@pytest.mark.parametrize("block", [None, 2])
def test_trap_16_a_group_is_known_by_its_prompt_and_not_by_its_place(folder: Path, block: int | None) -> None:
    """Group statistics inside a shuffled loop are those of before it."""
    lines = """    before = score - mean(score, by=prompts)
    minibatch prompts(parts=3, epochs=2, shuffle=true):
        inside = score - mean(score, by=prompts)
        train actor(lr=0.01):
            minimize mean(-actor.logprobs(rollout) * inside)
    report off = max(abs(before - inside)), size = max(abs(before))
"""
    metrics = step(3, lines, folder, block=block).metrics
    assert metrics["off"] == 0 and metrics["size"] > 0.1


def test_trap_18_the_filter_sees_the_raw_reward_and_the_advantage_the_shaped_one(folder: Path) -> None:
    lines = """    raw = ones(rollout)
    shaped = raw - rollout.length / 10
    keep prompts where std(raw, by=prompts) == 0
    adv = shaped - mean(shaped, by=prompts)
    report rows = size(adv), size = max(abs(adv))
"""
    metrics = step(3, lines, folder).metrics
    assert metrics["rows"] == 15 and metrics["size"] > 0


def test_trap_20_the_samplers_log_probabilities_are_reused_only_where_they_are_the_trainers(folder: Path) -> None:
    """Before the first update they are, afterwards not, and not in a program that compares both."""
    lines = """    old = actor.logprobs(rollout)
    train actor(lr=0.1):
        minimize mean(-actor.logprobs(rollout) * score)
    new = actor.logprobs(rollout)
    report same = max(abs(old - mu)), other = max(abs(new - mu))
"""
    text = f"""
step:
    rollout = actor.generate(prompts, n=2, max_tokens=5)
    score   = spread(rollout)
    lp      = ref.logprobs(rollout)
    mu      = rollout.logprobs
{lines}    report unused = mean(lp) + mean(ones(rollout))
"""
    program = compile_text(HEAD + text)
    asked = [
        node
        for phase in program.phases
        for node in phase.graph.walk()
        if node.op == "logprobs" and "actor" in node.inputs[0]
    ]
    assert len(asked) == 3, "what samples may be another engine than what trains, and the program reads both"
    (seen,) = Run(program, folder).steps(1)
    assert seen.metrics["same"] < 1e-12 and seen.metrics["other"] > 1e-2
    alone = compile_text(HEAD + text.replace("    mu      = rollout.logprobs\n", "").replace("- mu", "- old"))
    asked = [node for phase in alone.phases for node in phase.graph.walk() if node.op == "logprobs"]
    assert sum("actor" in node.inputs[0] for node in asked) == 2, "in the loss and after it: the first one is saved"


def test_trap_20_greedy_rows_are_scored_at_temperature_one(folder: Path) -> None:
    lines = """    top = actor.generate(prompts, max_tokens=4, temperature=0)
    report gap = max(abs(actor.logprobs(top) - top.logprobs)), most = max(top.logprobs)
"""
    metrics = step(2, lines, folder).metrics
    assert metrics["gap"] < 1e-12 and metrics["most"] < 0
