"""Whatever is written: a program, or diagnostics; never another exception, never a hang."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlgraph.dsl.check import check
from rlgraph.errors import ProgramError, Source
from tests.counting import grows_with_its_size
from tests.dsl.mutants import PROGRAMS, compile_fully, mutant
from tests.suites import few


@pytest.mark.parametrize("text", PROGRAMS, ids=lambda text: text.split("algorithm ")[1].split("\n")[0])
def test_a_program_goes_through_all_passes(text: str) -> None:
    assert compile_fully(text)


@given(st.integers(0, 2**40))
@settings(max_examples=200)
def test_a_program_with_accidents_is_explained_or_goes_through_all_passes(seed: int) -> None:
    compile_fully(mutant(seed))


HEAD = 'algorithm a\nmodel actor = causal_lm("m")\ndata prompts = jsonl("p.jsonl", batch=4)\n'
STEP = "step:\n    rollout = actor.generate(prompts, max_tokens=8)\n    x = rollout.logprobs\n"


@pytest.mark.parametrize("line", few(["x = x + 1", "x = x * x - x", "x = exp(x) - mean(x)"], "x = exp(x) - mean(x)"))
def test_a_long_program_takes_no_longer_by_line(line: str) -> None:
    def work(lines: int) -> None:
        text = HEAD + STEP + f"    {line}\n" * lines + "    report x = mean(x)\n"
        text += "    train actor(lr=1):\n        y = actor.logprobs(rollout)\n"
        text += f"        {line}\n".replace("x", "y").replace("eyp", "exp") * lines + "        minimize mean(y)\n"
        assert compile_fully(text)

    assert grows_with_its_size(work, 40)


def test_defs_that_double_do_not_explode() -> None:
    defs = "def f0(x):\n    return x + x\n"
    defs += "".join(f"def f{n}(x):\n    return f{n - 1}(f{n - 1}(x))\n" for n in range(1, 40))
    with pytest.raises(ProgramError) as caught:
        check(Source("a.rlf", HEAD + defs + STEP + "    report x = mean(f39(x))\n"))
    assert [d.code for d in caught.value.diagnostics] == ["E0210"]


LOOP = """    minibatch rollout(parts=2):
        train actor(lr=1):
            gap = mean(actor.logprobs(rollout) * rollout.age - actor.entropy(rollout) * rollout.length)
            minimize gap
    report gap = gap
"""


def test_a_program_is_the_same_graph_in_every_process() -> None:
    script = (
        "import sys; from rlgraph.dsl.check import check; from rlgraph.errors import Source; "
        "from rlgraph.ir.text.program_text import program_text; print(program_text(check(Source('a.rlf', sys.argv[1]))[0]))"
    )
    made = set()
    for seed in ("0", "1", "2", "3"):
        command = [sys.executable, "-c", script, HEAD + STEP + LOOP]
        env = os.environ | {"PYTHONHASHSEED": seed}
        made.add(subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout)
    assert len(made) == 1


DEEP = {
    "signs": "-" * 190 + "x",
    "sum": "+".join(["x"] * 150),
    "powers": "**".join(["x"] * 150),
    "calls": "exp(" * 95 + "x" + ")" * 95,
    "too deep to be understood": "+".join(["x"] * 199),
}


@pytest.mark.parametrize("name", DEEP)
def test_a_deep_expression_goes_through_all_passes(name: str) -> None:
    assert compile_fully(HEAD + STEP + f"    report x = mean({DEEP[name]})\n") == ("too deep" not in name)


@pytest.mark.parametrize("inner", ["f{}({}x)", "{1}f{0}(x)"])
def test_defs_that_call_each_other_deeply(inner: str) -> None:
    signs = "-" * 100
    defs = "def f0(x):\n    return x\n"
    defs += "".join(f"def f{n}(x):\n    return {inner.format(n - 1, signs)}\n" for n in range(1, 60))
    compile_fully(HEAD + defs + STEP + "    report x = mean(f59(x))\n")


@pytest.mark.parametrize("twice", ["p{0} + p{0}", "[p{0}, p{0}]", 'random("q", a=p{0}, b=p{0})'])
def test_constants_that_double_do_not_explode(twice: str) -> None:
    params = 'param p0 = "text"\n' + "".join(f"param p{n} = {twice.format(n - 1)}\n" for n in range(1, 60))
    with pytest.raises(ProgramError) as caught:
        check(Source("a.rlf", HEAD + params + STEP + "    report x = mean(x)\n"))
    assert [d.code for d in caught.value.diagnostics] == ["E0403"]
