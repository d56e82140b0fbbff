"""Every code is explained, with an example that has it and one that has not.

The examples of `checker.md` are pieces of a program: the rest of it is here.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rlgraph.dsl.check import check
from rlgraph.dsl.parse import parse, parse_expression
from rlgraph.dsl.schedule import check_schedule
from rlgraph.errors import ProgramError, Source
from rlgraph.errors.codes import all_codes
from tests.dsl.test_check_wrong import data_columns

SECTIONS = {code.name: code.section for code in all_codes().values() if code.page == "checker.md"}

HEADER = """\
model actor = causal_lm("base")
model ref = frozen(actor)
model critic = value_lm("base")
model reward = frozen(reward_lm("judge"))
data prompts = jsonl("prompts.jsonl", batch=8)
data others = jsonl("others.jsonl", batch=8)
func correct = python("rewards.py:exact_match")
buffer replay = fifo(capacity=64)
"""
BEGIN = "rollout = actor.generate(prompts, n=4, max_tokens=8)\nscore = correct(rollout)\n"
END = "train actor(lr=1e-6):\n    minimize mean(-actor.logprobs(rollout) * score)\n"
TOP = re.compile(r"^(param|model|data|func|env|buffer|state|def) (\w+)|^(step|phase)\b", re.MULTILINE)


def whole(piece: str) -> str:
    """The program that a piece belongs to."""
    if re.search("^algorithm ", piece, re.MULTILINE):
        return piece
    own = {match[2] for match in TOP.finditer(piece)}
    header = "".join(line + "\n" for line in HEADER.splitlines() if line.split()[1] not in own)
    if not TOP.search(piece):
        piece = "step:\n" + "".join(f"    {line}\n" for line in (BEGIN + piece).splitlines())
    elif not re.search("^step", piece, re.MULTILINE):
        piece += "step:\n" + "".join(f"    {line}\n" for line in (BEGIN + END).splitlines())
    return f"algorithm example\n{header}{piece}"


def codes(piece: str) -> set[str]:
    """What is said about a piece; that something is not used belongs to pieces."""
    changes = {
        name: parse_expression(Source("--set", value)) for name, value in re.findall(r"--set (\w+)=(\S+)", piece)
    }
    program = piece if not piece.startswith("schedule ") else END
    text = whole(program)
    Path("example.rlf").write_text(text, "utf-8")
    try:
        checked, warnings = check(Source("example.rlf", text), changes, columns=data_columns)
        if piece.startswith("schedule "):
            source = Source("example.rls", piece)
            check_schedule(parse(source), checked, source)
            return set()
    except ProgramError as error:
        return {d.code for d in error.diagnostics}
    own = {line.split()[1] for line in HEADER.splitlines()} | {"rollout", "score"}
    return {d.code for d in warnings if d.span.covered_text not in own}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text(json.dumps({"prompt": "1 + 1 =", "answer": "2"}) + "\n", "utf-8")


@pytest.mark.parametrize("code", SECTIONS)
def test_the_examples_of_a_code(code: str) -> None:
    wrong, right = re.findall("```rlf\n(.*?)```", SECTIONS[code], flags=re.DOTALL)
    ignored = {"W0201"} - {code}
    # What only a run can tell is no mistake here.
    assert codes(wrong) - ignored == (set() if re.match("E07[0-7]", code) else {code})
    assert codes(right) - ignored == set()
