"""A `def` of statements is what its statements are where it is called: the same graph as of the program written out."""

from __future__ import annotations

from pathlib import Path

from rlgraph.dsl.check import check
from rlgraph.dsl.format import format_source
from rlgraph.dsl.inline_uses import inline_used_programs
from rlgraph.errors import Source
from rlgraph.ir.text.program_text import program_text

HEAD = """algorithm shared
model actor = causal_lm("m")
model critic = value_lm("m")
data prompts = jsonl("p.jsonl", batch=4)
func correct = python("r.py:f")
state seen = 0.0
buffer past = fifo(capacity=64)
"""
DEFS = """
def sampled(n):
    rollout = actor.generate(prompts, n=n, max_tokens=8)
    keep rollout where rollout.finished
    return rollout

def fit(table, score, rate):
    value = critic.values(table)
    target = discount(score * table.end, 1.0)
    minibatch table(parts=4):
        train critic(lr=rate):
            minimize mean((critic.values(table) - target)**2)
    report value = mean(value)

def note_length(table):
    seen := seen + mean(table.length)

def learn(rollout, score, rate):
    fit(rollout, score, rate)
    note_length(rollout)
    push past(rollout, score=score)
"""
SHARED = """
phase warm(steps=10):
    answers = sampled(1)
    learn(answers, correct(answers), 2 * 1e-5)
    report seen

step:
    rollout = sampled(4)
    score = correct(rollout)
    learn(rollout, score, 1e-6)
    old = past.sample(4)
    train actor(lr=1e-6):
        minimize mean(-actor.logprobs(old) * old.score)
"""
WRITTEN = """
phase warm(steps=10):
    answers = actor.generate(prompts, n=1, max_tokens=8)
    keep answers where answers.finished
    score = correct(answers)
    value = critic.values(answers)
    target = discount(score * answers.end, 1.0)
    minibatch answers(parts=4):
        train critic(lr=2 * 1e-5):
            minimize mean((critic.values(answers) - target)**2)
    report value = mean(value)
    seen := seen + mean(answers.length)
    push past(answers, score=score)
    report seen

step:
    rollout = actor.generate(prompts, n=4, max_tokens=8)
    keep rollout where rollout.finished
    score = correct(rollout)
    value = critic.values(rollout)
    target = discount(score * rollout.end, 1.0)
    minibatch rollout(parts=4):
        train critic(lr=1e-6):
            minimize mean((critic.values(rollout) - target)**2)
    report value = mean(value)
    seen := seen + mean(rollout.length)
    push past(rollout, score=score)
    old = past.sample(4)
    train actor(lr=1e-6):
        minimize mean(-actor.logprobs(old) * old.score)
"""


def graph(text: str) -> str:
    program, warnings = check(Source("a.rlf", text))
    assert warnings == []
    return program_text(program)


def test_the_graph_is_that_of_the_program_written_out() -> None:
    assert graph(HEAD + DEFS + SHARED) == graph(HEAD + WRITTEN)


def test_names_inside_are_local() -> None:
    """The step has an `x` of its own, before and after the calls, and each call has one."""
    body = """
def louder(rollout, x):
    x = 2 * x
    keep rollout where x > 0
    y = x + 1
    report loud = mean(y)
    return y

step:
    rollout = actor.generate(prompts, max_tokens=8)
    x = rollout.length
    y = louder(rollout, x)
    report x = mean(x), y = mean(y)
"""
    written = """
step:
    rollout = actor.generate(prompts, max_tokens=8)
    x = rollout.length
    louder_x = x
    louder_x = 2 * louder_x
    keep rollout where louder_x > 0
    y = louder_x + 1
    report loud = mean(y)
    report x = mean(x), y = mean(y)
"""
    head = HEAD[: HEAD.index("model critic")] + HEAD[HEAD.index("data") : HEAD.index("func")]
    assert graph(head + body) == graph(head + written)


def test_a_used_program_has_another_def() -> None:
    """A def of the same name takes the place of the one of the used program."""
    base = HEAD + DEFS + SHARED
    text = """use "base.rlf"
algorithm other
def note_length(table):
    seen := seen + 2 * mean(table.length)
"""
    program, _ = check(Source("a.rlf", text), read=lambda path: base)
    changed = WRITTEN.replace("seen + mean(", "seen + 2 * mean(")
    assert program_text(program) == graph(HEAD + changed).replace("shared", "other", 1)


def test_the_formatter_leaves_it_as_it_is() -> None:
    text = DEFS.lstrip() + SHARED
    assert format_source(Source("a.rlf", text)) == text


CHANGED = """use "base.rlf"
algorithm shared
change sampled:
    keep rollout where rollout.length > 1
    after rollout:
        _cut = rollout.end
change fit:
    target = discount(2 * score * table.end, 1.0)
    before minibatch table:
        target = target - mean(target)
    minimize mean(abs(critic.values(table) - target))
    report error = mean(value - target), value = max(value)
change note_length:
    seen := seen + max(table.length)
change warm:
    answers = sampled(2)
    report seen = 2 * seen
"""


def test_statements_of_a_def_are_changed_where_it_is_used(tmp_path: Path) -> None:
    """And those of a phase: the program is the one that is written so."""
    written = HEAD + DEFS + SHARED
    for old, new in (
        (
            "    keep rollout where rollout.finished",
            "    _cut = rollout.end\n    keep rollout where rollout.length > 1",
        ),
        ("discount(score *", "discount(2 * score *"),
        ("    minibatch table(", "    target = target - mean(target)\n    minibatch table("),
        ("(critic.values(table) - target)**2", "abs(critic.values(table) - target)"),
        ("    report value = mean(value)", "    report error = mean(value - target), value = max(value)"),
        ("seen + mean(", "seen + max("),
        ("sampled(1)", "sampled(2)"),
        ("report seen", "report seen = 2 * seen"),
    ):
        assert written.count(old) == 1
        written = written.replace(old, new)
    (tmp_path / "base.rlf").write_text(HEAD + DEFS + SHARED)
    used = Source(str(tmp_path / "changed.rlf"), CHANGED)
    assert program_text(check(used)[0]) == program_text(check(Source("p.rlf", written))[0])
    flat = inline_used_programs(used)
    assert program_text(check(flat)[0]) == program_text(check(used)[0])
    assert format_source(used) == CHANGED


def test_a_return_is_changed(tmp_path: Path) -> None:
    base = (
        "def gain(x):\n    y = 2 * x\n    return y + 1\n\nstep:\n    rollout = actor.generate(prompts, max_tokens=8)\n"
    )
    end = "    report gain = gain(mean(rollout.length))\n"
    head = 'algorithm a\nmodel actor = causal_lm("m")\ndata prompts = jsonl("p.jsonl", batch=4)\n'
    (tmp_path / "base.rlf").write_text(head + base + end)
    changed = "change gain:\n    return z\n    before return:\n        z = y * y\n"
    used = Source(str(tmp_path / "p.rlf"), f'use "base.rlf"\nalgorithm a\n{changed}')
    written = head + base.replace("    return y + 1", "    z = y * y\n    return z") + end
    assert program_text(check(used)[0]) == program_text(check(Source("p.rlf", written))[0])
