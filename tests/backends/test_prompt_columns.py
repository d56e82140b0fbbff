"""Answers to a column of a table come from its rows, and have their columns: in every backend, and after everything that
rows go through."""

from __future__ import annotations

from pathlib import Path

import pytest
from scheduled import apart, compiled
from test_columns import HEAD, written
from tiny import compile_text, run_text

from rlgraph.backends.ray.backend import RayBackend
from rlgraph.backends.worker.session import Settings
from rlgraph.errors import ProgramError

ROWS = [
    {
        "question": text,
        "prompt": "dd",
        "answer": place,
        "extra_info": {"question": text * 2},
        "options": [{"role": "user", "content": text}],
    }
    for place, text in enumerate(["a", "b", "c", "ab", "ba", "cc"])
]
SCORE = """
def score(prompts, completions, question, prompt, answer, number, **columns):
    assert prompts == prompt == question and answer == number, (prompts, prompt, question, answer)
    return [1.0] * len(answer)

def hint(completions, answer):
    return [{"score": float(number), "text": "a" * (number + 1)} for number in answer]
"""
DATA = 'data q = jsonl("q.jsonl", batch=3, shuffle=false)\nfunc score = python("judge.py:score")\n'
HINTS = 'func hint = python("judge.py:hint", returns="score", texts="text")\n'
STEP = """buffer replay = fifo(capacity=16)
step:
    collect q(3):
        asked = q.question
        keep q where q.answer != 1
        r = actor.generate(asked, n=2, max_tokens=3)
    again = actor.generate(r.text, max_tokens=2)
    nested = actor.generate(q.extra_info.question, max_tokens=2)
    late = actor.generate(asked, max_tokens=2)
    push replay(r)
    old = replay.sample(6)
    train actor(lr=0.1):
        minimize mean(mean(-actor.logprobs(r), token) * r.answer)
    report judged = mean(score(r, number=r.answer)), number = mean(r.answer == q.answer), said = mean(r.prompt == asked)
    report more = mean(again.answer - r.answer), text = mean(again.prompt == r.text), word = mean(old.prompt == "dd")
    report nested = mean(nested.answer - q.answer), deep = mean(nested.prompt == q.extra_info.question)
    report late = mean(late.answer - q.answer), sum = sum(r.answer)
"""
WANTED = {
    "judged": 1, "number": 1, "said": 1, "more": 0, "text": 1, "word": 0, "nested": 0, "deep": 1, "late": 0
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "judge.py").write_text(SCORE)
    return written(tmp_path, *ROWS)


@pytest.mark.parametrize("block", [None, 2])
def test_answers_to_a_column_have_the_columns_of_its_rows(folder: Path, block: int | None) -> None:
    """After a filter, a loop and a buffer too; `prompt` is what was asked, whatever the data call so."""
    seen = run_text(HEAD + DATA + STEP, folder, steps=2, block=block)
    for step, rows in zip(seen, [(0, 2, 3), (4, 5, 0)], strict=True):
        assert {name: step.metrics[name] for name in WANTED} == WANTED
        assert step.metrics["sum"] == 2 * sum(rows)


def test_they_have_them_in_other_processes(folder: Path) -> None:
    text = HEAD + DATA + STEP
    local = run_text(text, folder, steps=2)
    made = compiled(text, {}, apart(compile_text(text)), folder)
    backend = RayBackend(made.program, made.plan, Settings(folder=folder), debug=True)
    try:
        far = list(backend.run_steps(2))
    finally:
        backend.close()
    assert [{name: step.metrics[name] for name in (*WANTED, "sum")} for step in far] == [
        {name: step.metrics[name] for name in (*WANTED, "sum")} for step in local
    ]


def test_what_a_function_writes_has_no_columns(folder: Path) -> None:
    """It is said before the run, with the place."""
    text = HEAD + DATA.splitlines()[0] + "\n" + HINTS
    text += "step:\n    r = actor.generate(q.question, max_tokens=2)\n    hints = hint(r)\n"
    text += (
        "    again = actor.generate(hints.text, max_tokens=2)\n    report s = mean(hints.score), n = mean(again.length)"
    )
    (seen,) = run_text(text + ", p = mean(again.prompt == hints.text)\n", folder)
    assert seen.metrics["p"] == 1
    with pytest.raises(ProgramError) as error:
        compile_text(text + ", a = mean(again.answer)\n")
    said = str(error.value)
    assert "E0204]: the table has no column `answer`" in said and "^^^^^^" in said
    assert "its prompts are texts of a function: name it in the table that they are about" in said
