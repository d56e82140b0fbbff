"""Programs made of other programs by small accidents: what a checker has to survive."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import AnyStr

from rlgraph.dsl.check import check
from rlgraph.errors import ProgramError, Source
from rlgraph.ir.text.parse import parse_program
from rlgraph.ir.text.program_text import program_text
from rlgraph.passes.rewrites.pipeline import run_passes

HERE = Path(__file__).parent
SHIPPED = sorted((HERE.parents[1] / "rlgraph" / "algorithms").glob("*.rlf"))

# Everything of the language that the shipped programs do not use.
RICH = """algorithm rich

param n = 4
param words = "a text"
model actor = causal_lm(random("qwen2", seed=3, tokenizer=chars("abc")), dtype="float64")
model ref = frozen(actor)
model slow = frozen(ref)
model critic = value_lm("m")
model reward = frozen(reward_lm("r"))
model learned = reward_lm("r")
data prompts = jsonl("rows.jsonl", batch=8, shuffle=true)
data others = parquet("others.parquet", batch=4)
func correct = python("f.py:f", timeout=3)
env shell = python("e.py:E", root="/tmp")
state k = 0.5
state base[agent] = 0.0
buffer replay = fifo(capacity=64)

def tilt(x, group):
    spread = std(x, by=group)
    return center(x, group) / (spread + 1e-6)

def both(model_rows):
    return learned.score(model_rows) + reward.score(model_rows)

phase warm(steps=3):
    rollout = slow.generate(others, max_tokens=4, n=2)
    value = critic.values(rollout)
    train critic(lr=cosine(1e-3, steps=10, warmup=2)):
        minimize mean((critic.values(rollout) - value)**2)

step async(lag=1):
    rollout = actor.generate(prompts, n=n, max_tokens=8, top_p=0.9, stop=["a", "b"])
    episode = actor.interact(shell, others, n=2, max_turns=3, max_tokens=9)
    score = correct(rollout, hint=rollout.answer, length=rollout.length) + both(rollout)
    gain = sum(episode.reward, turn)
    keep prompts where std(score, by=prompts) > 0 and any(score > 0, by=prompts)
    best = pick(rollout, argmax(score, by=prompts))
    worst = pick(rollout, argmin(score, by=prompts))
    keep rollout where rollout.finished or not (rollout.length < quantile(rollout.length, 0.9))
    adv = tilt(score, prompts) - base[rollout.agent]
    base[rollout.agent] := 0.9 * base[rollout.agent] + 0.1 * score
    k := max(0, k + mean(adv)) // 1 % 7
    push replay(rollout, adv=adv, late=next(rollout.logprobs))
    old = replay.sample(16)
    entropy = mean(actor.entropy(rollout, temperature=0.7))
    minibatch rollout(parts=2, epochs=2, shuffle=true):
        train actor(lr=linear(1e-6, steps=9), clip_norm=1.0):
            logp = actor.logprobs(rollout)
            ratio = exp(logp - rollout.logprobs)
            bonus = mean(actor.entropy(rollout))
            gap = sum(logp, token) - sum(detach(logp), token)
            minimize mean(-where(adv > 0, ratio, clip(ratio, 0.8, 1.2)) * adv) - k * bonus + mean(gap**2) / 3
        train learned(lr=1e-3):
            minimize mean(-logsigmoid(learned.score(rollout) - 0.5))
        report kl = mean(logp - rollout.logprobs)
    train actor(lr=1e-6):
        minimize mean(-old.adv * actor.logprobs(old)) + log(mean(exp(actor.logprobs(best)))) + std(actor.logprobs(worst))
    every 3:
        update ref from actor(ema=0.9)
        trial = actor.generate(prompts, max_tokens=4, temperature=0)
        report trial = max(trial.length), good = all(trial.finished)
    report score = mean(score), gain = mean(gain), version = min(old.version), age = mean(old.late), k = k, entropy

schedule:
    pool learn = 2 * n devices
    pool play  = 8 devices
    place actor.train, critic on learn(engine=megatron, tp=2, pp=2)
    place actor.generate on play(engine=vllm, tp=2)
    place slow, reward on play
    stream rollout(block=4)
"""

USING = """algorithm using
use "grpo.rlf"
param beta = 0.5
def k3(p, q):
    return abs(p - q)
change:
    adv = leave_one_out(score, prompts)
    minimize mean(pg) + beta * mean(kl)
    report spread = std(score)
"""
PAIR = """algorithm pair
model actor = causal_lm("m")
data one = jsonl("rows.jsonl", batch=8)
data two = jsonl("rows.jsonl", batch=8)
step:
    a = encode(one.prompt, one.answer)
    b = actor.generate(two, max_tokens=3)
    c = actor.generate(two.prompt, n=3, max_tokens=3)
    collect one(3):
        d = encode(one.prompt, one.answer)
        keep one where d.length > 3
    x = prev(cumsum(c.logprobs)) + discount(c.logprobs, 0.5)
    train actor(lr=1):
        minimize mean(actor.logprobs(a)) * mean(actor.logprobs(b)) + sum(actor.logprobs(d)) + quantile(actor.logprobs(c), 0.3)
    report x = mean(x)
""".replace("    a = encode(one.prompt, one.answer)\n", "    a = encode(two.prompt, two.answer)\n")

PROGRAMS = [path.read_text("utf-8") for path in SHIPPED] + [RICH, USING, PAIR]
_TOKEN = re.compile(r'"[^"\n]*"|\w+|[^\w\s]|[ \t]+|\n')
_NAME = re.compile(r"\b[A-Za-z_]\w*\b")
NUMBERS = ("0", "1", "-1", "2", "0.5", "1e-6", "1e308", "9" * 18, "true", '"a"', "16", "[1, 2]", "[]", "''")
NAMES = sorted({name for text in PROGRAMS for name in _NAME.findall(text)})
LINES = [line for text in PROGRAMS for line in text.splitlines() if line.strip()]


def mutant(seed: int) -> str:
    """A program with one to four accidents; the same for the same seed."""
    rng = random.Random(seed)
    text = rng.choice(PROGRAMS)
    for _ in range(rng.choice((1, 1, 2, 2, 3, 4))):
        text = rng.choice(ACCIDENTS)(text, rng)
    return text


def _tokens(text: str, rng: random.Random) -> str:
    tokens = _TOKEN.findall(text)
    solid = [at for at, token in enumerate(tokens) if token.strip()]
    one, two = rng.choice(solid), rng.choice(solid)
    kind = rng.randrange(4)
    if kind == 0:
        tokens[one] = ""
    elif kind == 1:
        tokens[one], tokens[two] = tokens[two], tokens[one]
    elif kind == 2:
        tokens[one] = tokens[two]
    else:
        tokens[one] += " " + tokens[one]
    return "".join(tokens)


def _rename(text: str, rng: random.Random) -> str:
    """One use of a name, or all of them, becomes another name."""
    found = list(_NAME.finditer(text))
    match = rng.choice(found)
    new = rng.choice([other[0] for other in found] if rng.random() < 0.7 else NAMES)
    if rng.random() < 0.3:
        return re.sub(rf"\b{match[0]}\b", new, text)
    return text[: match.start()] + new + text[match.end() :]


def _number(text: str, rng: random.Random) -> str:
    found = list(re.finditer(r"\b\d[\w.-]*", text))
    match = rng.choice(found) if found else None
    return text[: match.start()] + rng.choice(NUMBERS) + text[match.end() :] if match else text


def _line(text: str, rng: random.Random) -> str:
    lines = text.splitlines()
    disturb(lines, rng, "    ", lambda at, to: lines.insert(to, rng.choice(LINES)))
    return "\n".join(lines) + "\n"


def disturb(lines: list[AnyStr], rng: random.Random, indent: AnyStr, otherwise: Callable[[int, int], object]) -> None:
    """A line is lost, doubled, moved or indented otherwise. otherwise: a fifth accident, given the places of two lines."""
    at, to = rng.randrange(len(lines)), rng.randrange(len(lines))
    kind = rng.randrange(5)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines.insert(to, lines[at])
    elif kind == 2:
        lines.insert(to, lines.pop(at))
    elif kind == 3:
        lines[at] = indent + lines[at] if rng.random() < 0.5 else lines[at].removeprefix(indent)
    else:
        otherwise(at, to)


def _fit(text: str, rng: random.Random) -> str:
    """A line of some program, at the indentation of the place."""
    lines = text.splitlines()
    at = rng.randrange(len(lines))
    indent = re.match(" *", lines[at])
    assert indent
    lines.insert(at, indent[0] + rng.choice(LINES).strip())
    return "\n".join(lines) + "\n"


def _wrap(text: str, rng: random.Random) -> str:
    """Some name becomes a call with it."""
    found = list(re.finditer(r"\b[a-z_]\w*(\.\w+)*\b(?![ ]*[(=:])", text))
    match = rng.choice(found) if found else None
    if not match:
        return text
    before = rng.choice(
        (
            "mean(",
            "sum(",
            "-",
            "std(",
            "detach(",
            "exp(",
            "whiten(",
            "argmax(",
            "log(",
            "not ",
            "actor.logprobs(",
            "where(true, 1, ",
            "center(",
            "max(",
            "next(",
            "quantile(0.5, ",
            "rank(",
            "top(",
            "uniform(",
        )
    )
    after = (
        rng.choice((")", ", token)", ", by=prompts)", ", by=rollout)", ", 2)", ""))
        if before.endswith(("(", " "))
        else ""
    )
    return text[: match.start()] + before + match[0] + after + text[match.end() :]


ACCIDENTS = (_tokens, _rename, _rename, _rename, _number, _line, _line, _fit, _fit, _wrap, _wrap)


def compile_fully(text: str) -> bool:
    """Whether a text is a program; if it is, all passes run on it and every graph is printed and read back."""
    try:
        program, warnings = check(Source("a.rlf", text), columns=lambda record: None)
    except ProgramError as error:
        assert error.diagnostics and all(d.message and d.span.line >= 1 for d in error.diagnostics)
        str(error)
        return False
    for warning in warnings:
        assert warning.severity == "warning"
        warning.render()
    for stage in run_passes(program):
        assert parse_program(program_text(stage.program)) == stage.program, stage.name
    return True
