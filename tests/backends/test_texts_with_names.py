"""Texts with names in braces: a model judges what another one wrote, with the same numbers in any block, on Ray, from a
recording and after an interruption."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from scheduled import compiled, debug_metrics
from tiny import Run, Seen, compile_text, data_folder, weights

import rlgraph
from rlgraph.backends.recording import claim_folder
from rlgraph.backends.samples import sampled_tables
from rlgraph.errors import RlgraphError
from rlgraph.ops.texts import format_entry

MODEL = weights().replace('chars("abcd>")', 'chars("abcd>0123456789.-{} ")')
JUDGE = weights(3).replace('chars("abcd>")', 'chars("abcd>0123456789.-{} ")')
TEXT = f"""algorithm judged
param mark = "d"
model actor  = causal_lm({MODEL}, dtype="float64")
model judge  = frozen(causal_lm({JUDGE}, dtype="float64"))
data prompts = jsonl("prompts.jsonl", batch=5, shuffle=false)
step:
    rollout = actor.generate(prompts, n=4, max_tokens=5)
    share   = mean(rollout.length, by=prompts) / 3
    verdict = judge.generate("{{prompts.inside.task}}{{mark}}>{{rollout.text}} {{share:.2f}} {{{{{{prompts.place}}}}}}", n=1, max_tokens=4)
    score   = otherwise(number(verdict.text), 0.5)
    votes   = judge.generate("{{rollout.text}}>", n=3, max_tokens=4)
    vote    = mean(otherwise(number(votes.text), 0), by=rollout)
    adv     = center(score + vote, prompts)
    train actor(lr=0.01, eps=0.01):
        minimize mean(-actor.logprobs(rollout) * clip(adv, -1, 1))
    report score = mean(score), vote = mean(vote), then = mean(actor.logprobs(rollout))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = data_folder(tmp_path)
    write_rows(folder, "inside", [{"task": "abcd"[place % 4]} for place in range(10)])
    return folder


def write_rows(folder: Path, name: str, values: list[object]) -> None:
    """Give each row of the data a column."""
    rows = [json.loads(line) for line in (folder / "prompts.jsonl").read_text().splitlines()]
    lines = [json.dumps({**row, name: value}) for row, value in zip(rows, values, strict=True)]
    (folder / "prompts.jsonl").write_text("\n".join(lines) + "\n")


def numbers(seen: list[Seen]) -> list[dict[str, float]]:
    return [dict(step.metrics) for step in seen]


def test_the_text_of_each_row_is_written_by_the_axes(folder: Path) -> None:
    [seen] = Run(compile_text(TEXT), folder).steps(1)
    rows = [json.loads(line) for line in (folder / "prompts.jsonl").read_text().splitlines()][:5]
    written, share = seen.values["rollout.text"], seen.values["share"].tolist()
    wanted = [
        f"{rows[at // 4]['inside']['task']}d>{text} {share[at // 4]:.2f} {{{at // 4}}}"
        for at, text in enumerate(written)
    ]
    assert seen.values["text"] == wanted
    assert seen.values["verdict"].prompts == tuple(wanted)
    found = [re.findall(r"[-+]?\d+(?:\.\d+)?", text) for text in seen.values["verdict.text"]]
    assert any(found) and not all(found)
    assert seen.values["score"].shape == (20,) and seen.values["vote"].shape == (20,)


def test_what_is_read_in_a_verdict_is_a_score_of_the_rows_that_are_judged() -> None:
    [phase] = compile_text(TEXT).phases
    tables = {table.name: table for table in sampled_tables(phase.graph)}
    # The last one is the sum of both, which the program gives to `center`.
    assert [name for name, _ in tables["rollout"].scores] == ["score", "vote", "adv.x"]
    assert not tables["verdict"].scores and not tables["votes"].scores


def test_any_block_ray_and_a_recording_judge_the_same(folder: Path) -> None:
    program = compile_text(TEXT)
    record = folder / "recording"
    with claim_folder(record, program.name, 0):
        whole = numbers(Run(program, folder, record=record).steps(2))
    assert whole[0]["score"] != whole[1]["score"]
    found = [numbers(Run(compile_text(TEXT), folder, block=block).steps(2)) for block in (1, 3)]
    found += [numbers(Run(compile_text(TEXT), folder, token_budget=40).steps(2))]
    found += [numbers(Run(compile_text(TEXT), folder, replay=record, block=block).steps(2)) for block in (None, 3)]
    schedule = "pool play = 2 devices\nplace actor on play(engine=transformers)\npool court = 1 devices\n"
    schedule += "place judge on court(engine=transformers)\n"
    made = compiled(TEXT, {}, schedule, folder)
    found += [debug_metrics(made, folder, 2, block=block) for block in (None, 3)]
    for steps in found:
        assert [pytest.approx(step, rel=1e-9, abs=1e-9) for step in whole] == steps


def test_a_run_that_goes_on_judges_as_the_whole_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    Path("judged.rlf").write_text(TEXT)
    whole = rlgraph.compile("judged.rlf").run(steps=3, threads=1)
    rlgraph.compile("judged.rlf").run(steps=2, threads=1, out="cut", save_every=1)
    rest = rlgraph.compile("judged.rlf").run(steps=3, threads=1, resume="cut")
    ends = [run.models["actor"].engine.tensors() for run in (whole, rest)]
    assert all(torch.equal(tensor, ends[1][name]) for name, tensor in ends[0].items())


def test_a_row_that_cannot_stand_in_a_text_is_named(folder: Path) -> None:
    write_rows(folder, "inside", [{"task": "a"}] * 3 + [{"task": None}] * 7)
    with pytest.raises(RlgraphError) as raised:
        Run(compile_text(TEXT), folder).steps(1)
    assert "E0872" in str(raised.value) and "`inside.task` holds null in prompts.jsonl:4" in str(raised.value)
    assert "^^^^^^^^^^^^^^^^^^^\n" in str(raised.value)


def test_a_format_that_does_not_fit_a_row_names_the_row(folder: Path) -> None:
    write_rows(folder, "inside", [{"task": 1}] * 3 + [{"task": "b"}] * 7)
    with pytest.raises(RlgraphError) as raised:
        Run(compile_text(TEXT.replace("inside.task}", "inside.task:.1f}")), folder).steps(1)
    assert "E0871" in str(raised.value) and "prompts row 3" in str(raised.value)


@pytest.mark.parametrize(
    ("value", "how", "text"),
    [
        ("a", "", "a"),
        ("a", ">3", "  a"),
        (True, "", "true"),
        (np.bool_(False), "", "false"),
        (3, "", "3"),
        (np.int64(3), "03d", "003"),
        (0.1, "", "0.1"),
        (np.float32(0.1), "", "0.1"),
        (np.float32(0.1), ".3f", "0.100"),
        (2.0, "", "2.0"),
        (0.25, ".0%", "25%"),
    ],
)
def test_an_entry_is_written_with_the_fewest_digits_or_by_its_format(value: object, how: str, text: str) -> None:
    assert format_entry(value, how) == text


def test_texts_that_are_taken_as_written_have_braces_as_they_please(folder: Path) -> None:
    (folder / "prompts.jsonl").rename(folder / "{rollout}.jsonl")
    text = f"""algorithm plain
param folded = "[ab]{{1}}"
model actor  = causal_lm({MODEL})
data prompts = jsonl("{{rollout}}.jsonl", batch=5, shuffle=false)
step:
    rollout = actor.generate(prompts, n=4, max_tokens=5)
    pair    = "[abcd]{{2}}"
    report a = mean(matches(rollout.text, "[ab]{{1}}")), b = mean(matches(rollout.text, pair))
    report c = mean(contains(rollout.text, "{{rollout}}")), d = mean(matches(rollout.text, folded))
    report e = mean(prompts.prompt != "{{2}}")
"""
    [seen] = Run(compile_text(text), folder).steps(1)
    texts = seen.values["rollout.text"]
    wanted = {"a": r"[ab]", "b": r"[abcd]{2}", "d": r"[ab]"}
    assert seen.metrics["c"] == 0 and seen.metrics["e"] == 1
    assert all(
        seen.metrics[name] == pytest.approx(sum(bool(re.search(how, text)) for text in texts) / 20)
        for name, how in wanted.items()
    )


def test_a_function_is_given_texts_and_messages(folder: Path) -> None:
    (folder / "rewards.py").write_text(
        "def both(completions, rubric, asked, **columns):\n"
        "    wanted = [[{'role': 'system', 'content': 'be brief'}, {'role': 'user', 'content': text}] for text in rubric]\n"
        "    return [float(asked[i] == wanted[i] and rubric[i] == f'<{completions[i]}>') for i in range(len(rubric))]\n"
    )
    text = f"""algorithm given
model actor  = causal_lm({MODEL})
data prompts = jsonl("prompts.jsonl", batch=5, shuffle=false)
func both    = python("rewards.py:both")
step:
    rollout = actor.generate(prompts, n=2, max_tokens=5)
    rubric  = "<{{rollout.text}}>"
    report same = mean(both(rollout, rubric=rubric, asked=user(rubric, system="be brief")))
"""
    [seen] = Run(compile_text(text), folder).steps(1)
    assert seen.metrics["same"] == 1
