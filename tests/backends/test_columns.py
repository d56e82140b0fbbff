"""Columns of the data in a run: whole numbers stay whole wherever they go, and what came one by one is judged, too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import run_text, weights

from rlgraph.backends.worker.columns import column_tensor, finite_numbers
from rlgraph.errors import NO_SPAN, ProgramError, RunError

BIG = 2**24
"""The next number is none that 32 bits hold as a real one."""
HUGE = 2**53
"""Nor are the next ones here any that 64 bits hold so."""
HEAD = f"algorithm t\nmodel actor = causal_lm({weights()})\n"
STEP = "state seen[key] = 0.0\nbuffer replay = fifo(capacity=16)\nstep:\n    r = actor.generate(q, n=2, max_tokens=3)\n"
ROWS = [{"prompt": "a", "id": BIG}, {"prompt": "b", "id": BIG + 1}, {"prompt": "c", "id": HUGE + 1}]

FILES = {
    "jsonl": 'data q = jsonl("q.jsonl", batch=3, shuffle=false)\n',
    "parquet": 'data q = parquet("q.parquet", batch=3, shuffle=false)\n',
    "list": 'data q = python("rows.py:listed", batch=3, shuffle=false)\n',
    "stream": 'data q = python("rows.py:yielded", batch=3)\n',
}
"""Sources of the same rows."""

REPORTS = {
    f"mean(r.id == {BIG})": 1 / 3,
    f"mean(q.id != {BIG + 1})": 2 / 3,
    f"mean(r.id == {BIG}.0)": 1 / 3,
    f"mean(r.id < {BIG}.5)": 1 / 3,
    f"mean({BIG} < r.id)": 2 / 3,
    f"max(where(r.id < {HUGE}, r.id, 0))": BIG + 1,
    f"mean(r.id - {HUGE} == 1)": 1 / 3,
    "mean(r.id % 2)": 2 / 3,
    f"mean(r.id * 2 == {2 * BIG + 2})": 1 / 3,
    f"sum(where(r.id < {HUGE}, r.id, 0)) - {4 * BIG}": 2,
    f"mean(old.id == {BIG})": 1 / 3,
    f"mean(old.more - 1 == old.id) + mean(old.more == {BIG + 1})": 4 / 3,
    "mean(seen[r.id] == r.id % 7)": 1,
}
LINES = "    more = r.id + 1\n    push replay(r, more=more)\n    old = replay.sample(6)\n    seen[r.id] := r.id % 7\n"


def written(folder: Path, *rows: Mapping[str, Any]) -> Path:
    (folder / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = (
        f"nan = float('nan')\n\ndef listed():\n    return {list(rows)!r}\n\ndef yielded():\n    yield from listed()\n"
    )
    (folder / "rows.py").write_text(text)
    return folder


def reported() -> str:
    named = [f"m{place} = {expr}" for place, expr in enumerate(REPORTS)]
    return f"    report {', '.join(named)}\n"


@pytest.mark.parametrize(
    ("source", "block"), [("jsonl", None), ("jsonl", 2), ("parquet", 1), ("list", None), ("stream", None)]
)
def test_whole_numbers_stay_whole(tmp_path: Path, source: str, block: int | None) -> None:
    """In comparisons, mathematics, keys, buffers and metrics."""
    if source == "parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "q.parquet")
    text = HEAD + FILES[source] + STEP + LINES + reported()
    (seen,) = run_text(text, written(tmp_path, *ROWS), block=block)
    assert seen.metrics == pytest.approx({f"m{place}": value for place, value in enumerate(REPORTS.values())}, abs=1e-6)


def refused(folder: Path, lines: str, source: str = "stream", rows: Any = ROWS) -> str:
    text = HEAD + FILES[source] + STEP + lines
    with pytest.raises((RunError, ProgramError)) as caught:
        run_text(text, written(folder, *rows))
    return str(caught.value)


@pytest.mark.parametrize(
    ("lines", "rows", "said"),
    [
        ('report a = mean(r.x == "4")', [{"x": 4}], "compared with a text: they are never equal"),
        ("report a = mean(r.text == r.x)", [{"x": 4}], "compared with a text: they are never equal"),
        ('report a = mean(r.x == "4")', [{"x": "4"}, {"x": 4}], "row 1"),
        ('report a = mean(r.x == "4")', [{"x": "4"}, {"x": None}], "null"),
        ("report a = mean(r.x)", [{"x": 4}, {"x": float("nan")}], "a number that is not finite"),
        ("report a = mean(r.x)", [{"x": 4.5}, {"x": 1e39}], "row 1"),
        ("report a = mean(r.x)", [{"x": 4}, {"x": 2**63}], "a whole number of more than 64 bits"),
        ("report a = mean(r.x == 4)", [{"x": "4"}], "compared with a number: they are never equal"),
        ("report a = mean(5 != r.x)", [{"x": "4"}], "compared with a number: they are never equal"),
        ("report a = mean(r.x == true)", [{"x": "true"}], "compared with a number: they are never equal"),
        ("seen[r.x] := r.length", [{"x": 4}, {"x": None}], "is null, and no key"),
        ("seen[r.x] := r.length", [{"x": 4}, {"x": "4"}], "is a text, and other keys are numbers"),
        ("seen[r.x] := r.length", [{"x": "4"}, {"x": 4.5}], "is a real number, and other keys are texts"),
        ("seen[r.x] := r.length", [{"x": 4.0}, {"x": float("nan")}], "is a number that is not finite, and no key"),
        ("seen[r.x] := r.length", [{"x": "4"}, {"x": ["4"]}], "is a list, and no key"),
        ("report a = mean(seen[r.x])", [{"x": 4}, {"x": "4"}], "is a text, and other keys are numbers"),
        ("seen[r.prompt] := r.x", [{"x": 4}, {"x": "5"}], "a text"),
        ("keep q where q.x\n    report a = mean(r.length)", [{"x": True}, {"x": "false"}], "a text"),
    ],
)
def test_what_comes_one_by_one_and_does_not_fit_its_use_is_refused(
    tmp_path: Path, lines: str, rows: Any, said: str
) -> None:
    """With the row that came. `tests/dsl/test_check_columns.py` has what is said where all rows are there."""
    whole = [{"prompt": "a", **row} for row in (*rows, *rows, *rows)[:3]]
    text = refused(tmp_path, f"    {lines}\n", "stream", whole)
    assert said in text and "^^^" in text and "E0735" in text


def test_whole_numbers_that_become_too_large_are_refused(tmp_path: Path) -> None:
    """They would begin again at the other end."""
    rows = [{"prompt": "a", "id": 2**62}] * 3
    for expr in ("r.id * 4", "r.id + r.id", "-r.id - r.id - r.id"):
        text = refused(tmp_path, f"    report a = max({expr})\n", "jsonl", rows)
        assert "E0731" in text and "comes to whole numbers of more than 64 bits" in text and "float(x)" in text
    assert "64 bits" in refused(tmp_path, "    report a = sum(r.id)\n", "jsonl", rows)
    (seen,) = run_text(HEAD + FILES["jsonl"] + STEP + "    report a = max(float(r.id) * 4)\n", tmp_path)
    assert seen.metrics["a"] == 2.0**64


@pytest.mark.parametrize("source", ["jsonl", "stream"])
@pytest.mark.parametrize("expr", ["-r.id", "abs(r.id)", "r.id // -1", "r.id // r.minus", "cumsum(r.big * ones)"])
def test_the_least_whole_number_has_no_other_sign(tmp_path: Path, source: str, expr: str) -> None:
    """It was itself again. Nor has it, or two of the others, a place in a sum along the tokens."""
    rows = [{"prompt": "a", "id": number, "minus": -1, "big": 2**62} for number in (-(2**63), 2**62, 2**62)]
    lines = f"    ones = r.tokens * 0 + 1\n    report a = max({expr})\n"
    assert "comes to whole numbers of more than 64 bits" in refused(tmp_path, lines, source, rows)


@pytest.mark.parametrize("ids", [(2**63 - 1, 0, 0), (-(2**63), 0, 0), (2**63 - 1, 2**63 - 1, 1 - 2**63)])
def test_a_sum_of_whole_numbers_may_be_all_that_64_bits_hold(tmp_path: Path, ids: Any) -> None:
    """It was refused, as what comes to one more is. A sum on the way does not count."""
    rows = [{"prompt": "a", "id": number} for number in ids]
    text = HEAD + FILES["jsonl"] + STEP + "    report a = sum(q.id), b = mean(sum(q.id, by=q) == q.id)\n"
    (seen,) = run_text(text, written(tmp_path, *rows))
    assert seen.metrics == {"a": float(sum(ids)), "b": 1}


def test_all_other_whole_numbers_have_the_other_sign(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "id": number, "one": 1} for number in (1 - 2**63, 2, -(2**62))]
    exprs = {
        "max(-q.id)": 2**63 - 1,
        "max(abs(q.id))": 2**63 - 1,
        "max(q.id // -1)": 2**63 - 1,
        "min(q.id // 2)": -(2**62),
    }
    exprs |= {"min(q.id - q.one)": -(2**63), "max(-q.id + 0)": 2**63 - 1, "min((q.id - 1) * 1)": -(2**63)}
    exprs |= {"max(-q.one)": -1, "mean(-(q.id / 2.0) > 0)": 2 / 3, "mean(abs(q.one - 0.5))": 0.5}
    named = ", ".join(f"m{place} = {expr}" for place, expr in enumerate(exprs))
    (seen,) = run_text(HEAD + FILES["jsonl"] + STEP + f"    report {named}\n", written(tmp_path, *rows))
    assert seen.metrics == pytest.approx({f"m{place}": value for place, value in enumerate(exprs.values())})


def test_keys_of_one_step_are_of_the_kind_of_those_before(tmp_path: Path) -> None:
    """Rows that come one by one: nobody could look at all of them."""
    rows = [{"prompt": "a", "x": each} for each in (1, 2, True, "1", "2", "3")]
    text = HEAD + FILES["stream"] + STEP + "    seen[r.x] := r.length\n"
    with pytest.raises(RunError) as caught:
        run_text(text, written(tmp_path, *rows), steps=2)
    assert "is a text, and other keys are numbers" in str(caught.value) and "row 3" in str(caught.value)


def test_whole_numbers_are_not_divided_by_0(tmp_path: Path) -> None:
    """It was an internal error."""
    written(tmp_path, *ROWS)
    for expr in ("r.id % (r.id - r.id)", "r.id // (r.id - r.id)", "r.length % (r.length - r.length)"):
        text = refused(tmp_path, f"    report a = mean({expr})\n", "jsonl")
        assert "error[E0731]" in text and "divides a whole number by 0" in text and "^^^" in text


# Rows without a column


@pytest.mark.parametrize("rows", [[{"answer": "a"}, {}, {"answer": "c"}], [{}, {"answer": "a"}, {"answer": "c"}]])
@pytest.mark.parametrize("source", ["jsonl", "stream"])
def test_a_function_is_never_given_what_a_row_lacks(tmp_path: Path, source: str, rows: Any) -> None:
    """It was given None, or it was said that the data have no such column, as the first row of the batch was."""
    (tmp_path / "f.py").write_text("def f(completions, answer, **more):\n    return [1.0] * len(completions)\n")
    text = HEAD + FILES[source] + 'func f = python("f.py:f")\n' + STEP + "    report a = mean(f(r))\n"
    lacks = next(place for place, row in enumerate(rows) if not row)
    with pytest.raises((RunError, ProgramError)) as caught:
        run_text(text, written(tmp_path, *({"prompt": "a", **row} for row in rows)))
    place = f"q.jsonl:{lacks + 1}" if source == "jsonl" else f"row {lacks} "
    assert "E0711" in str(caught.value) and place in str(caught.value) and "no column" in str(caught.value)
    written(tmp_path, *({"prompt": "a", "answer": None, **row} for row in rows))
    assert run_text(text, tmp_path)[0].metrics == {"a": 1}


def test_columns_that_a_function_does_not_name_may_be_missing(tmp_path: Path) -> None:
    (tmp_path / "f.py").write_text("def f(completions, answer):\n    return [float(len(each)) for each in answer]\n")
    rows = [{"prompt": "a", "answer": "a", "other": 1}, {"prompt": "b", "answer": "abc"}, {"prompt": "c", "answer": ""}]
    text = HEAD + FILES["jsonl"] + 'func f = python("f.py:f")\n' + STEP + "    report a = max(f(r))\n"
    assert run_text(text, written(tmp_path, *rows))[0].metrics == {"a": 3}


# Numbers of Python


def test_a_reward_is_finite_in_the_width_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "f.py").write_text("def f(completions, id):\n    return [1e39 if each % 2 else 1.0 for each in id]\n")
    text = HEAD + FILES["jsonl"] + 'func f = python("f.py:f")\n' + STEP + "    report a = max(f(r))\n"
    with pytest.raises(RunError) as caught:
        run_text(text, written(tmp_path, *ROWS))
    assert "E0725" in str(caught.value) and "`f` gives for q row 1, sample 0 is 1e+39" in str(caught.value)
    wide = text.replace(weights() + ")", weights() + ', dtype="float64")')
    assert run_text(wide, tmp_path)[0].metrics["a"] == 1e39


def test_a_reward_of_an_environment_is_finite_in_the_width_of_the_run(tmp_path: Path) -> None:
    env = "class E:\n    def reset(self, row):\n        self.id = row['id']\n        return 'a'\n"
    env += "    def step(self, action):\n        return 'a', 1e39 if self.id % 2 else 1.0, True\n"
    (tmp_path / "e.py").write_text(env)
    text = (
        HEAD
        + FILES["jsonl"]
        + 'env e = python("e.py:E")\nstep:\n    r = actor.interact(e, q, max_tokens=4, max_turns=2)\n'
    )
    with pytest.raises(RunError) as caught:
        run_text(text + "    report a = mean(sum(r.reward, turn))\n", written(tmp_path, *ROWS))
    assert "E0725" in str(caught.value) and "a reward of q row 1 is 1e+39" in str(caught.value)


def test_numbers_of_a_column_have_a_kind_of_their_own() -> None:
    def made(*values: Any) -> torch.Tensor:
        return column_tensor(values, "x", str, NO_SPAN, torch.float32)

    assert made(1, 2).dtype == torch.int64 and made(1, True).tolist() == [1, 1]
    assert made(True, False).dtype == torch.bool and made(1, 2.5).dtype == torch.float32
    assert torch.cat([made(), made(1)]).dtype == torch.int64, "a block without rows changes nothing"
    assert finite_numbers([1e38], str, NO_SPAN, torch.float32).isfinite().all()


INFO = [
    {"reward_model": {"style": "rule", "ground_truth": "a"}, "extra_info": {"index": BIG, "q": "b"}},
    {"reward_model": {"style": "rule", "ground_truth": "b"}, "extra_info": {"index": BIG + 1, "q": "a"}},
    {"reward_model": {"style": "rule", "ground_truth": "c"}, "extra_info": {"index": HUGE + 1, "q": "c"}},
]
JUDGE = """
def judge(completions, reward_model, extra_info, truth, info):
    assert [row["ground_truth"] for row in reward_model] == truth and extra_info == info
    return [float(row["index"] % 7) for row in info]
"""


@pytest.mark.parametrize("source", FILES)
def test_what_objects_hold_is_read_by_name(tmp_path: Path, source: str) -> None:
    """In comparisons, as a key, a prompt, a weight of a loss, from a buffer, after `collect`, and by functions: it is
    what a flat column of the same values is."""
    rows = [{"prompt": "a", **row} for row in INFO]
    if source == "parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "q.parquet")
    written(tmp_path, *rows)
    (tmp_path / "judge.py").write_text(JUDGE)
    text = HEAD + 'func judge = python("judge.py:judge")\n' + FILES[source] + STEP.rpartition("    r =")[0]
    text += """    collect q(3):
        r = actor.generate(q, n=2, max_tokens=3)
        keep q where any(r.reward_model.style == "rule", by=q)
    score = judge(r, truth=r.reward_model.ground_truth, info=r.extra_info)
    push replay(r)
    old = replay.sample(6)
    seen[r.extra_info.index] := r.extra_info.index % 7
    again = actor.generate(q.extra_info.q, max_tokens=2)
    info = q.extra_info
    train actor(lr=0.1):
        minimize mean(mean(-actor.logprobs(r), token) * r.extra_info.index)
    report a = mean(old.reward_model.ground_truth == "b"), b = mean(score), c = mean(seen[r.extra_info.index] == score)
    report d = mean(q.extra_info.index - info.index), e = mean(again.length > 0), f = mean(q.extra_info.q.length)
"""
    (seen,) = run_text(text, tmp_path)
    mean = sum(row["extra_info"]["index"] % 7 for row in INFO) / 3
    wanted = {"a": 1 / 3, "b": mean, "c": 1, "d": 0, "e": 1, "f": 1}
    assert {name: value for name, value in seen.metrics.items() if name in wanted} == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"index": 1}, "E0711]: q row 1, sample 0 has no column `extra_info.q`, which other rows have"),
        (None, "null: None, and"),
        ("{}", "E0760]: `extra_info` of q row 1"),
    ],
)
def test_what_an_object_that_came_lacks_is_said(tmp_path: Path, change: Any, said: str) -> None:
    rows = [{"prompt": "a", "extra_info": info} for info in ({"q": "a"}, change, {"q": "a"})]
    text = refused(tmp_path, '    report a = mean(r.extra_info.q == "a")\n', "stream", rows)
    assert said in text and "^^^" in text, text


def test_a_mixture_trains_as_its_rows_do(tmp_path: Path) -> None:
    """Of its sources, the one by its name and the other as a call, each has its share of every batch."""
    written(tmp_path, *({"prompt": "a", "of": "q", "id": n} for n in range(6)))
    (tmp_path / "other.jsonl").write_text('{"prompt": "b", "of": "other", "id": 10}\n')
    text = HEAD + 'data q = jsonl("q.jsonl")\ndata all = mix(q, jsonl("other.jsonl"), weights=[0.75, 0.25], batch=4)\n'
    text += """step:
    r = actor.generate(all, n=2, max_tokens=3)
    train actor(lr=0.1):
        minimize mean(mean(-actor.logprobs(r), token) * r.id)
    report other = mean(r.of == "other"), id = max(r.id), rows = size(all.id)
"""
    seen = run_text(text, tmp_path, steps=3)
    assert [step.metrics["other"] for step in seen] == [0.25] * 3 and seen[0].metrics["rows"] == 4
