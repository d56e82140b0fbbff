"""What columns of the data hold, compared with how a program uses them: before a run, and once more when it begins."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytest

from rlgraph.columns import Column, ColumnInspector
from rlgraph.dsl.check import check
from rlgraph.dsl.columns import column_misuses
from rlgraph.errors import Diagnostic, ProgramError, Source
from rlgraph.ir.graph import ConstructorCall
from rlgraph.passes.rewrites.pipeline import run_passes

HEAD = """algorithm t
model actor = causal_lm(random("qwen2", tokenizer=chars("ab"))DTYPE)
data q = jsonl("q.jsonl", batch=2)
data held = jsonl("held.jsonl", batch=2)
func f = python("f.py:f")
state seen[key] = 0.0
buffer replay = fifo(capacity=8)
step:
    r = actor.generate(q, n=2, max_tokens=4)
"""


def columns(*rows: Mapping[str, Any]) -> dict[str, Column]:
    looked = ColumnInspector(lambda number: f"q.jsonl:{number}")
    for number, row in enumerate(rows, 1):
        looked.add_row({"prompt": "a", **row}, number)
    return looked.columns()


def said(
    lines: str, *rows: Mapping[str, Any], held: Mapping[str, Any] | None = None, dtype: str = ""
) -> list[Diagnostic]:
    """What the checker says of a step, where the data hold these rows. What a run says of the same program, after all
    passes, has to be the same."""
    known = {"q.jsonl": columns(*rows), "held.jsonl": columns(held or {})}

    def look(record: ConstructorCall) -> Mapping[str, Column] | None:
        return known[str(record.args[0])]

    text = HEAD.replace("DTYPE", f', dtype="{dtype}"' if dtype else "")
    text += "".join(f"    {line}\n" for line in lines.splitlines())
    try:
        check(Source("p.rlf", text), columns=look)
        found = []
    except ProgramError as error:
        found = list(error.diagnostics)
    program, _ = check(Source("p.rlf", text))
    again = column_misuses(run_passes(program)[-1].program, {"q": known["q.jsonl"], "held": known["held.jsonl"]})
    assert {each.message for each in again} == {each.message for each in found}
    return found


def one(lines: str, *rows: Mapping[str, Any], **more: Any) -> str:
    [found] = said(lines, *rows, **more)
    return found.render()


NUMBERS = {"answer": 4, "level": 0.5, "hard": True}
TEXTS = {"answer": "4"}


# Texts and numbers


@pytest.mark.parametrize("rows", ["r", "old", "kept", "best", "many"])
def test_a_text_is_never_equal_to_a_column_of_numbers(rows: str) -> None:
    """Whatever the rows went through."""
    lines = "push replay(r)\nold = replay.sample(4)\nmany = actor.generate(q, max_tokens=2)\nbest = pick(r, argmax(r.length, by=q))\n"
    lines += f"kept = many\nkeep kept where kept.length > 1\nreport a = mean({rows}.text == {rows}.answer)"
    assert one(lines, NUMBERS) == (
        f"error[E0304]: `{rows}.answer` holds whole numbers (q.jsonl:1), and is compared with a text: they are never equal\n"
        "  --> p.rlf:16:21\n   |\n"
        f"16 |     report a = mean({rows}.text == {rows}.answer)\n"
        f"   |                     {'^' * (2 * len(rows) + 16)}\n"
        'help: write texts in the data, as "answer": "4"; or compare numbers, in a function: '
        '`python("rlgraph.rewards:exact_match")` does'
    )
    assert not said(lines, TEXTS)


@pytest.mark.parametrize(
    ("row", "side", "message", "hint"),
    [
        (4, '"4"', "holds whole numbers (q.jsonl:1), and is compared with a text", "compare with a number: `4`"),
        (0.5, '"a"', "holds real numbers (q.jsonl:1), and is compared with a text", "write texts in the data"),
        (True, '"true"', "holds true or false (q.jsonl:1), and is compared with a text", "write texts in the data"),
        ("4", "4", "holds texts (q.jsonl:1), and is compared with a number", 'compare with a text: `"4"`'),
        ("4", "true", "holds texts (q.jsonl:1), and is compared with a number", 'compare with a text: `"true"`'),
        ("4", "r.length", "holds texts (q.jsonl:1), and is compared with a number", "compare with a column of texts"),
        ("4", "r.length + 1", "holds texts (q.jsonl:1), and is compared with a number", "write numbers in the data"),
        (
            ["4"],
            '"4"',
            "holds lists (q.jsonl:1), which is compared with nothing here",
            "a function is given",
        ),
        (2**63, "4", "holds a whole number of more than 64 bits in q.jsonl:1", "write it as a text"),
    ],
)
def test_both_sides_of_a_comparison_are_of_one_kind(row: Any, side: str, message: str, hint: str) -> None:
    for sides in (f"r.answer == {side}", f"{side} != r.answer"):
        [found] = said(f"report a = mean({sides})", {"answer": row})
        assert f"`r.answer` {message}" in found.message and hint in found.hint
        assert found.span.covered_text == sides


def test_two_columns_are_compared() -> None:
    lines = "report a = mean(r.answer == r.other)"
    assert "`r.answer` holds whole numbers" in one(lines, {"answer": 4, "other": "4"})
    assert not said(lines, {"answer": 4, "other": 4.5}) and not said(lines, {"answer": "4", "other": "5"})


def test_a_column_of_texts_and_numbers_is_compared_with_nothing() -> None:
    found = one('report a = mean(r.answer == "4")', {"answer": "4"}, {"answer": 5})
    assert "`r.answer` holds texts (q.jsonl:1) and whole numbers (q.jsonl:2), and is compared" in found


def test_nothing_is_equal_to_null() -> None:
    found = one('report a = mean(r.answer == "4")', {"answer": "4"}, {"answer": None})
    assert "error[E0735]: `r.answer` is null in q.jsonl:2, which is equal to no value" in found


def test_a_loop_hands_columns_on() -> None:
    lines = "collect held(4):\n    h = actor.generate(held, n=2, max_tokens=4)\n    keep held where any(h.length > 0, by=held)\n"
    lines += "minibatch h(parts=2):\n    own = h.answer\n    train actor(lr=0.1):\n"
    lines += "        minimize mean(-actor.logprobs(h) * (h.answer == h.text))\nreport a = mean(own == h.text)"
    found = said(lines, {}, held={"answer": 4})
    assert [each.code for each in found] == ["E0304", "E0304"]
    assert [each.span.covered_text for each in found] == ["(h.answer == h.text)", "own == h.text"]


# Calculating


@pytest.mark.parametrize(
    ("value", "shown", "hint"),
    [
        ("4", "a text", "numbers, `true` and `false` without quotes"),
        (None, "null", "a number in every row"),
        (float("nan"), "a number that is not finite", "NaN and infinity"),
        (float("inf"), "a number that is not finite", "NaN and infinity"),
        (1e39, "a number that 32 bits cannot hold", "divide"),
        (2**63, "a whole number of more than 64 bits", "as a text"),
        ([1], "a list", ""),
    ],
)
@pytest.mark.parametrize(
    "use",
    [
        "report a = mean(r.x)",
        "report a = mean(r.x + 1)",
        "keep q where q.x\nreport a = mean(r.length)",
        "seen[r.key] := r.x",
        "report a = mean(-r.x)",
    ],
)
def test_one_calculates_with_numbers(use: str, value: Any, shown: str, hint: str) -> None:
    [found] = said(use, {"x": 1, "key": "a"}, {"x": value, "key": "b"})
    assert (found.code, found.span.line) == ("E0735", 10)
    assert found.message.endswith(f".x` holds {shown} in q.jsonl:2, and one calculates with it") and hint in found.hint


def test_numbers_may_be_whole_real_or_truths_and_64_bits_hold_more() -> None:
    assert not said("report a = mean(r.x * 2)", {"x": 1}, {"x": 1.5}, {"x": True})
    assert not said("report a = mean(r.x * 2)", {"x": 1e39}, dtype="float64")


def test_what_is_computed_of_a_column_is_a_number() -> None:
    """It was taken for a column of texts."""
    with pytest.raises(ProgramError) as caught:
        check(Source("p.rlf", HEAD.replace("DTYPE", "") + '    x = r.id + 1\n    report a = mean(x == "4")\n'))
    assert "error[E0304]: one cannot calculate with a text" in str(caught.value)


# Prompts, keys, functions


@pytest.mark.parametrize(("value", "shown"), [(4, "a whole number"), (None, "null"), ([], "a list")])
def test_a_prompt_is_a_text_or_messages(value: Any, shown: str) -> None:
    [found] = said("report a = mean(r.length)", {}, {"prompt": value})
    assert (found.code, found.span.covered_text) == ("E0732", "actor.generate(q, n=2, max_tokens=4)")
    assert (
        f"the column `prompt` holds {shown} in q.jsonl:2, and a text or a list of messages is needed" in found.message
    )
    asked = "m = actor.generate(q.other, max_tokens=2)\nreport a = mean(m.length)"
    assert f"`other` holds {shown} in q.jsonl:2" in one(asked, {"other": "a"}, {"other": value})
    encoded = "m = encode(q.prompt, q.other)\nreport a = mean(m.length)"
    assert f"`other` holds {shown} in q.jsonl:2, and a text or a list of messages is needed here" in one(
        encoded, {"other": "a"}, {"other": value}
    )
    assert not said(asked, {"other": "a"}, {"other": [{"role": "user", "content": "a"}]})


def test_keys_are_all_texts_or_all_numbers() -> None:
    lines = "seen[r.key] := r.length\nh = actor.generate(held, max_tokens=2)\nreport a = mean(seen[h.key])"
    found = one(lines, {"key": "4"}, held={"key": 4})
    assert (
        "error[E0304]: `h.key` holds whole numbers (q.jsonl:1), and `r.key`, by which `seen` is kept too, texts"
        in found
    )
    assert not said(lines, {"key": "4"}, held={"key": "4"}) and not said(lines, {"key": 4}, held={"key": 4})
    mixed = one("seen[r.key] := r.length", {"key": "4"}, {"key": 4})
    assert "`r.key` holds texts (q.jsonl:1) and whole numbers (q.jsonl:2), and the keys of `seen` would be" in mixed
    assert "`r.key` is null in q.jsonl:2, and no key" in one("seen[r.key] := r.length", {"key": "4"}, {"key": None})
    for odd in ([4], {"a": 4}, float("nan"), float("inf")):
        for use in ("seen[r.key] := r.length", "report a = mean(seen[r.key])"):
            told = one(use, {"key": 4}, {"key": odd})
            assert "E0735" in told and "in q.jsonl:2, and no key" in told


class Asks:
    def __init__(self, *names: str) -> None:
        self.names = names

    def accepts_column(self, name: str) -> bool:
        return name in self.names

    def missing_columns(self, names: Collection[str]) -> list[str]:
        return [name for name in self.names if name not in names]


def test_answers_to_computed_texts_have_no_columns_of_the_data() -> None:
    lines = "    asked = actor.generate(user(q.prompt), n=2, max_tokens=4)\n    report a = mean(f(asked))\n"
    program, _ = check(Source("p.rlf", HEAD.replace("DTYPE", "") + lines))
    rows = {"q": columns({"prompt": "a", "answer": "b"})}
    assert column_misuses(program, rows, {"f": Asks("prompt")}) == []
    [told] = column_misuses(program, rows, {"f": Asks("prompt", "answer")})
    assert told.message == "`f` asks for a column 'answer', which answers to texts of the program do not have"
    assert told.hint == "give it by name: `f(asked, answer=q.answer)`" and told.span.covered_text == "f(asked)"
    given = lines.replace("f(asked)", "f(asked, answer=q.answer)")
    program, _ = check(Source("p.rlf", HEAD.replace("DTYPE", "") + given))
    assert column_misuses(program, rows, {"f": Asks("prompt", "answer")}) == []


@pytest.mark.parametrize("order", [1, -1])
def test_every_row_has_the_columns_that_are_used(order: int) -> None:
    rows = [{"answer": "a"}, {"other": "b"}][::order]
    lacks, other = (2, 1) if order == 1 else (1, 2)
    found = one('report a = mean(r.answer == "b")', *rows)
    assert f"error[E0711]: q.jsonl:{lacks} has no column `answer`, which other rows have" in found
    assert "with `null` where there is no value" in found and "^^^^^^^^" in found
    program, _ = check(Source("p.rlf", HEAD.replace("DTYPE", "") + "    report a = mean(f(r))\n"))
    known = {"q": columns(*rows)}
    assert column_misuses(program, known, {}) == [] and column_misuses(program, known, {"f": Asks("prompt")}) == []
    [told] = column_misuses(program, known, {"f": Asks("other")})
    assert f"q.jsonl:{other} has no column `other`" in told.message and told.span.covered_text == "f(r)"
    assert not said("report a = mean(r.length)", *rows), "what nobody uses may be missing"


def test_data_that_nobody_has_looked_at_are_not_judged() -> None:
    program, _ = check(Source("p.rlf", HEAD.replace("DTYPE", "") + '    report a = mean(r.answer == "4")\n'))
    assert column_misuses(program, {"q": None}) == [] and column_misuses(program, {}) == []


# What objects hold

VERL = {"reward_model": {"style": "rule", "ground_truth": "4"}, "extra_info": {"index": 3, "q": "a"}, "flat.x": 1}


def test_what_objects_hold_is_used_by_name() -> None:
    lines = (
        "h = actor.generate(q.extra_info.q, max_tokens=2)\nseen[r.extra_info.index] := r.extra_info.index + h.length\n"
    )
    lines += "report a = mean(r.text == r.reward_model.ground_truth), b = mean(f(r, info=r.extra_info, i=q.extra_info.index))\n"
    lines += 'report c = mean(r.flat.x), d = mean(r.extra_info.q.length)\ni = r.extra_info\nreport g = mean(i.index), e = mean(r.reward_model.style == "rule")'
    assert not said(lines, VERL)


@pytest.mark.parametrize(
    ("use", "row", "told"),
    [
        (
            "report a = mean(r.reward_model.truth == r.text)",
            {},
            "E0204]: no row has a `reward_model.truth`\n  --> p.rlf:10:21",
        ),
        ("report a = mean(r.extra_info.a.b)", {}, "help: `extra_info` has index, q"),
        (
            "report a = mean(r.extra_info.index)",
            {"extra_info": "{}"},
            "E0760]: `extra_info` holds a text in q.jsonl:2, which has no `index`",
        ),
        (
            "report a = mean(r.extra_info.q.z == r.text)",
            {},
            "E0760]: `extra_info.q` holds a text in q.jsonl:1, which has",
        ),
        (
            "report a = mean(r.extra_info.index)",
            {"extra_info": {"q": "a"}},
            "E0711]: q.jsonl:2 has no column `extra_info.index`, which other rows have",
        ),
        (
            "report a = mean(r.extra_info.index)",
            {"extra_info": None},
            "E0735]: `r.extra_info.index` holds null in q.jsonl:2, and one calculates with it",
        ),
        (
            "report a = mean(r.reward_model.ground_truth == 4)",
            {},
            "E0304]: `r.reward_model.ground_truth` holds texts (q.jsonl:1), and is compared with a number",
        ),
        ("report a = mean(r.extra_info)", {}, "help: name what is in it: `extra_info.index` or `extra_info.q`"),
        ("report a = mean(r.extra_info == r.text)", {}, "help: name what is in it"),
        ("seen[r.extra_info] := r.length", {}, "help: name what is in it"),
        ("h = actor.generate(q.extra_info, max_tokens=2)\nreport a = mean(h.length)", {}, "help: name what is in it"),
        ("report a = mean(r.extra_info.length)", {}, "E0732]: the column `extra_info` holds an object in q.jsonl:1"),
    ],
)
def test_what_objects_hold_has_to_fit_its_use(use: str, row: Mapping[str, Any], told: str) -> None:
    assert told in one(use, VERL, {**VERL, **row})


def test_objects_of_unknown_names_are_not_judged() -> None:
    assert not said("report a = mean(r.extra_info.x.y + 1)", {"extra_info": {str(n): n for n in range(300)}})


@pytest.mark.parametrize(
    ("names", "hint"),
    [
        (("instruction", "input", "output"), 'name both: `user("{q.instruction}\\n{q.input}")`'),
        (("id", "question", "answer"), "name the column: `q.question`"),
        (("system", "conversations"), "name the column: `q.conversations`"),
        (("goal", "answer"), "name the column: `q.goal`"),
        (("my goal",), "it has `my goal`: the first line of a csv file names its columns, such as `prompt`"),
    ],
)
def test_prompts_that_are_called_otherwise_are_named(names: tuple[str, ...], hint: str) -> None:
    """By the names that people publish them under; a question of two columns by both."""
    looked = ColumnInspector(str)
    looked.add_row(dict.fromkeys(names, "a"), 1)
    with pytest.raises(ProgramError) as refused:
        check(Source("p.rlf", HEAD.replace("DTYPE", "")), columns=lambda _: looked.columns())
    assert refused.value.diagnostics[0].hint == hint
    if hint.startswith("name"):
        asked = hint.partition("`")[2].removesuffix("`")
        check(
            Source("p.rlf", HEAD.replace("DTYPE", "").replace("(q,", f"({asked},")), columns=lambda _: looked.columns()
        )
