"""`mix(a, b, weights=...)`: shares, epochs of each source, a run that is resumed, and what cannot be mixed."""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import rlgraph
from rlgraph.columns import column_at
from rlgraph.data import BatchReader, Cursor, check_source, open_source, source_columns
from rlgraph.data.mixture import Turns
from rlgraph.data.sources import source_files
from rlgraph.errors import NO_SPAN, ProgramError
from rlgraph.user_code import Workers
from rlgraph.user_code.files import SearchFolders
from rlgraph.user_code.spec import CallSpec


def part(path: str, kind: str = "jsonl", **options: Any) -> dict[str, Any]:
    return {"kind": kind, "args": (path,), "options": options, "span": NO_SPAN, "spans": {}}


def mix(*parts: Any, **options: Any) -> CallSpec:
    return CallSpec("mix", parts, options, NO_SPAN)


def written(folder: Path, **counts: int) -> SearchFolders:
    """Files of so many rows, which are called after them: a0, a1, ..."""
    for name, count in counts.items():
        rows = [{"prompt": f"{name}{row}"} for row in range(count)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return SearchFolders(folder)


def prompts(
    spec: CallSpec, folders: SearchFolders, count: int, cursor: Cursor | None = None, seed: int = 0
) -> list[str]:
    rows, ids, _ = BatchReader(open_source(spec, folders), "d", seed).read_batch(cursor or Cursor(), count)
    assert len(ids) == len(set(ids)), "every row has an identity of its own"
    return [row["prompt"] for row in rows]


AB = (part("a.jsonl"), part("b.jsonl"))


@pytest.mark.parametrize(
    "weights", [[0.8, 0.2], [0.5, 0.5], [1 / 3, 1 / 3, 1 / 3], [0.7, 0.1, 0.15, 0.05], [0.999, 0.001], [0.3, 0.3, 0.4]]
)
def test_each_source_has_its_share_at_every_place(weights: list[float]) -> None:
    exact = [Fraction(str(weight)) for weight in weights]
    turns = Turns([weight / sum(exact) for weight in exact])
    counts = [0] * len(weights)
    for place in range(3000):
        assert (
            turns.counts_before(place) == counts and Turns(turns.weights).counts_before(place) == counts
            if place % 97 == 0
            else True
        )
        assert all(abs(count - weight * place) < len(weights) for count, weight in zip(counts, weights, strict=True))
        counts[turns.source_at(place)] += 1


def test_a_source_that_ends_begins_again_by_itself(tmp_path: Path) -> None:
    folders = written(tmp_path, a=8, b=3)
    in_order = mix(*AB, weights=[0.8, 0.2], batch=5, shuffle=False)
    turns = "a0 a1 b0 a2 a3 a4 a5 b1 a6 a7 a0 a1 b2 a2 a3 a4 a5 b0 a6 a7"
    assert " ".join(prompts(in_order, folders, 20)) == turns
    got = prompts(mix(*AB, weights=[0.8, 0.2]), folders, 120)
    for name, size in (("a", 8), ("b", 3)):
        own = [prompt for prompt in got if prompt[0] == name]
        epochs = [own[at : at + size] for at in range(0, len(own), size)]
        assert all(len(set(epoch)) == len(epoch) for epoch in epochs), "no row comes again before all others have come"
        assert len({tuple(epoch) for epoch in epochs}) > 1, "each epoch has another order"
    held = mix(part("a.jsonl", shuffle=False), AB[1], weights=[0.8, 0.2])
    assert [p for p in prompts(held, folders, 20) if p[0] == "a"] == [f"a{n % 8}" for n in range(16)]


def test_without_weights_all_rows_are_read_equally_often(tmp_path: Path) -> None:
    folders = written(tmp_path, a=8, b=3)
    got = prompts(mix(*AB), folders, 33)
    assert all(
        Counter(got[at : at + 11]) == Counter([f"a{n}" for n in range(8)] + ["b0", "b1", "b2"]) for at in (0, 11)
    )
    assert set(Counter(got).values()) == {3}
    assert open_source(mix(*AB), folders).row_count == 11


def test_a_stored_cursor_goes_on_with_the_same_rows(tmp_path: Path) -> None:
    folders = written(tmp_path, a=8, b=3, c=5)
    spec = mix(*AB, part("c.jsonl", limit=4), weights=[0.55, 0.35, 0.1], batch=7)
    reader, cursor = BatchReader(open_source(spec, folders), "d", 3), Cursor()
    for _ in range(40):
        again = BatchReader(open_source(spec, folders), "d", 3).read_batch(cursor)
        got = reader.read_batch(cursor)
        assert got == again
        cursor = got[2]
    assert cursor == Cursor(0, 280)
    whole = BatchReader(open_source(spec, folders), "d", 3).read_batch(Cursor(), 280)[0]
    assert {row["prompt"] for row in whole if row["prompt"][0] == "c"} == {"c0", "c1", "c2", "c3"}, "of c four rows"
    assert prompts(spec, folders, 50, seed=1) != prompts(spec, folders, 50, seed=2)
    # Stored runs rely on it: the order must not change between versions.
    assert prompts(spec, folders, 7) == PINNED


PINNED = ["a7", "b0", "a3", "b1", "a1", "c3", "a2"]


def test_columns_are_those_of_all_sources(tmp_path: Path, workers: Workers) -> None:
    """With a default for what a source lacks; a source may be of any kind that has a list of rows."""
    rows = {"a": {"prompt": "a", "x": 1, "o": {"p": 1}}, "b": {"prompt": "b", "x": "t", "y": 2, "o": {"q": 1}}}
    for name, row in rows.items():
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    folders = SearchFolders(tmp_path)
    for known in (source_columns(mix(*AB), folders), open_source(mix(*AB), folders).columns):
        assert known is not None
        assert known["x"].first == {"whole": "a.jsonl:1", "text": "b.jsonl:1"}
        assert known["y"].first == {"missing": "every row of 'a.jsonl'", "whole": "b.jsonl:1"}
        inner = column_at(known, "o.q")
        assert inner is not None and inner.first == {"missing": "every row of 'a.jsonl'", "whole": "b.jsonl:1"}
        assert (
            known["prompt"].first == {"text": "a.jsonl:1"} and known["prompt"].longest == 1 and known["x"].longest == 1
        )
    filled = mix(*AB, defaults={"y": 0}, shuffle=False)
    assert (source_columns(filled, folders) or {})["y"].first == {"whole": "b.jsonl:1"}
    assert [row["y"] for row in BatchReader(open_source(filled, folders), "d", 0).read_batch(Cursor())[0]] == [0, 2]
    assert [file.name for file in source_files(mix(*AB), folders)] == ["a.jsonl", "b.jsonl"]
    (tmp_path / "tasks.py").write_text("def f(n):\n    return [{'prompt': i} for i in range(n)]\n")
    spec = mix(AB[0], part("tasks.py:f", "python", n=3), shuffle=False)
    assert source_columns(spec, folders) is None
    got = BatchReader(open_source(spec, folders, workers), "d", 0).read_batch(Cursor())[0]
    assert [row["prompt"] for row in got] == [0, "a", 1, 2]


WRONG: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    ((AB[0],), {}, "E0702]: `mix` takes two or more data sources"),
    (("a.jsonl", "b.jsonl"), {}, "E0702]: `mix` takes two or more data sources"),
    (AB, {"limit": 3}, "E0702]: `mix` has no option 'limit'"),
    (AB, {"weights": 0.5}, "E0766]: `weights` is a list of numbers"),
    (AB, {"weights": [0.5, "a"]}, "E0766]: `weights` is a list of numbers"),
    (AB, {"weights": [0.5, True]}, "E0766]: `weights` is a list of numbers"),
    (AB, {"weights": [1.0]}, "E0766]: 1 weight for 2 sources"),
    (AB, {"weights": [1.5, -0.5]}, "E0766]: a weight is above 0, and one of these is -0.5"),
    (AB, {"weights": [1, 0]}, "help: leave the source out"),
    (AB, {"weights": [8, 2]}, "come to 10, and not to 1\nhelp: the same shares are `[0.8, 0.2]`"),
    ((AB[0], {**part(""), "kind": "mix", "args": AB}), {}, "E0767]: a mixture cannot be mixed once more"),
    ((AB[0], part("b.jsonl", overlong="drop")), {}, "E0767]: `overlong` of 'b.jsonl' is not looked at"),
    ((AB[0], part("b.jsonl", btch=3)), {}, "E0702]: `jsonl` has no option 'btch'"),
]


@pytest.mark.parametrize(("parts", "options", "said"), WRONG)
def test_what_is_wrong_is_said_before_a_run(parts: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ProgramError) as told:
        check_source(mix(*parts, **options))
    assert said in str(told.value), str(told.value)


def test_what_is_wrong_with_the_sources_is_said(tmp_path: Path, workers: Workers) -> None:
    folders = written(tmp_path, a=2, b=0)
    (tmp_path / "tasks.py").write_text("def f():\n    yield {}\n")
    for spec, said in [
        (mix(*AB), "E0707]: 'b.jsonl' has no rows"),
        (mix(AB[0], part("no.jsonl")), "E0703]: there is no data file 'no.jsonl'"),
        (mix(AB[0], part("tasks.py:f", "python")), "E0766]: 'tasks.py:f' yields its rows one after the other"),
        (mix(AB[0], AB[0], batch=5), "E0708]: a batch of 5 rows is more than 'a.jsonl' and 'a.jsonl' has: 4 rows"),
    ]:
        with pytest.raises(ProgramError) as told:
            open_source(spec, folders, workers)
        assert said in str(told.value), str(told.value)


PROGRAM = """algorithm mixed
model actor = causal_lm("m")
data a = jsonl("a.jsonl")
data all = mix(a, jsonl("b.jsonl"), {options})
step:
    rollout = actor.generate(all, max_tokens=4)
    report x = mean(rollout.x)
"""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("weights=[0.8, 0.3], batch=2", "E0766]: the weights come to 1.1, and not to 1\n --> p.rlf:4:37"),
        ("batch=2", "E0711]: every row of 'b.jsonl' has no column `x`, which other rows have\n --> p.rlf:7:21"),
        ('batch=2, defaults=columns(x="t")', "`rollout.x` holds a text"),
    ],
)
def test_the_checker_sees_into_a_mixture(tmp_path: Path, options: str, said: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "a", "x": 1}\n')
    (tmp_path / "b.jsonl").write_text('{"prompt": "b"}\n')
    (tmp_path / "p.rlf").write_text(PROGRAM.format(options=options))
    told = "\n".join(found.render() for found in rlgraph.check(tmp_path / "p.rlf"))
    assert said in told.replace(str(tmp_path / "p.rlf"), "p.rlf"), told
    (tmp_path / "p.rlf").write_text(PROGRAM.format(options="batch=2, defaults=columns(x=0)"))
    assert not rlgraph.check(tmp_path / "p.rlf"), "what is only a part is used"
