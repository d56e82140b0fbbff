"""Formulas in LaTeX: rows as indices, reductions over the right ones, brackets where they are needed. 4 seconds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import rlgraph
from rlgraph.cli import run_command
from rlgraph.ops import NODES
from rlgraph.ops.tensor import TENSOR

HEAD = """algorithm shown
model actor = causal_lm("Qwen/Qwen2.5-0.5B")
model critic = value_lm("Qwen/Qwen2.5-0.5B")
data prompts = jsonl("prompts.jsonl", batch=8)
func score_of = python("rlgraph.rewards:exact_match", over=row)
state seen_so_far = 0.0
state won[prompt] = 0.5
step:
    rollout = actor.generate(prompts, n=4, max_tokens=8)
    x = score_of(rollout)
    v = critic.values(rollout)
"""
TRAINS = "    train actor(lr=1e-6):\n        minimize -mean(actor.logprobs(rollout) * y)\n"


def line_of(statements: str, name: str = "y") -> str:
    """Return the formula of a value of a step."""
    body = "".join(f"    {line}\n" for line in statements.splitlines())
    text = rlgraph.compile(HEAD + body + TRAINS).to_latex()
    lines = [line.removeprefix("& ").removesuffix(r" \\") for line in text.splitlines()]
    return next(line.partition("= ")[2] for line in lines if line.startswith(rf"\mathrm{{{name}}}"))


@pytest.mark.parametrize(
    ("written", "formula"),
    [
        ("y = x - mean(x, by=prompts)", r"x_{i,j} - \left(\operatorname*{mean}_{j} x_{i,j}\right)"),
        ("y = mean(x) + v", r"\left(\operatorname*{mean}_{i,j} x_{i,j}\right) + v_{i,j,t}"),
        ("y = mean(v, token)", r"\operatorname*{mean}_{t} v_{i,j,t}"),
        ("y = sum(v * x, token)", r"\sum_{t} \left(v_{i,j,t} \cdot x_{i,j}\right)"),
        ("y = mean(v)", r"\operatorname*{mean}_{i,j,t} v_{i,j,t}"),
        ("y = (x + 1) * 2", r"\left(x_{i,j} + 1\right) \cdot 2"),
        ("y = x + 1 * 2", r"x_{i,j} + 1 \cdot 2"),
        ("y = x - (x - 1)", r"x_{i,j} - \left(x_{i,j} - 1\right)"),
        ("y = (x + 1) / (x - 1)", r"\frac{x_{i,j} + 1}{x_{i,j} - 1}"),
        ("y = (-x)**2", r"{\left(- x_{i,j}\right)}^{2}"),
        ("y = x**(x + 1)", r"{x_{i,j}}^{x_{i,j} + 1}"),
        ("y = 1e-6 * x", r"10^{-6} \cdot x_{i,j}"),
        ("y = 5e-7 * x", r"5 \cdot 10^{-7} \cdot x_{i,j}"),
        ("y = next(v) - prev(v)", r"v_{i,j,t+1} - v_{i,j,t-1}"),
        ("y = cumsum(v)", r"\sum_{s \le t} v_{i,j,s}"),
        ("y = discount(v, 0.9) - v", r"\left(\sum_{s \ge t} {0.9}^{s-t} v_{i,j,s}\right) - v_{i,j,t}"),
        ("y = accumulate(v, 0.9)", r"\sum_{s \le t} {0.9}^{t-s} v_{i,j,s}"),
        ("y = discount(v + x, 0.9)", r"\operatorname{discount}\left(v_{i,j,t} + x_{i,j}, 0.9\right)"),
        ("y = where(x > 0.5, x, 0.0)", r"\begin{cases} x_{i,j} & x_{i,j} > 0.5 \\ 0.0 & \text{else} \end{cases}"),
        ("y = max(x, 0.0)", r"\max\left(x_{i,j}, 0.0\right)"),
        ("y = max(x, by=prompts)", r"\max_{j} x_{i,j}"),
        ("y = quantile(x, 0.5, by=prompts)", r"\operatorname*{quantile}_{j} \left(x_{i,j}, 0.5\right)"),
        ("y = mean(x, by=prompts.id)", r"\operatorname*{mean}_{i,j\,\mid\,prompts.id_{i}} x_{i,j}"),
        ("y = x * won[prompts.id]", r"x_{i,j} \cdot won[prompts.id_{i}]"),
        ("gamma = 0.5 * x\ny = 1 - gamma", r"1 - \gamma_{i,j}"),
    ],
)
def test_a_formula_says_over_which_rows_and_has_the_brackets_that_it_needs(written: str, formula: str) -> None:
    assert re.sub(r"\\mathrm\{(\w+(?:\.\w+)?)\}", r"\1", line_of(written)) == formula


def test_a_sum_over_the_vocabulary_has_its_formula_of_probabilities() -> None:
    formula = r"\sum_{v} \left(0.5 \cdot \pi_{\mathrm{teacher}}\left(v\right) \cdot \log\left(\frac{\pi_{\mathrm{teacher}}\left(v\right)}"
    assert formula in rlgraph.compile("gkd").to_latex()


def test_what_lives_across_steps_becomes_another_value() -> None:
    lines = rlgraph.compile(HEAD + "    y = x\n" + TRAINS + "    seen_so_far := seen_so_far + sum(x)\n").to_latex()
    assert (
        r"\mathrm{seen\_so\_far} \leftarrow \mathrm{seen\_so\_far} + \left(\sum_{i,j} \mathrm{x}_{i,j}\right)" in lines
    )


def test_a_trained_value_that_is_reported_stands_there_once() -> None:
    text = HEAD + TRAINS.replace("minimize", "y = 2 * x\n        minimize") + "    report y = mean(y)\n"
    assert rlgraph.compile(text).to_latex().count(r"\mathrm{y}_{i,j} =") == 1


def test_declared_forms_name_arguments_that_there_are() -> None:
    for op in TENSOR.values():
        assert all(int(number) <= op.args for number in re.findall(r"#(\d)", op.latex)), op.name
    for node in NODES.values():
        inputs = len(node.signature.partition("->")[0].split())
        assert all(int(number) <= inputs for number in re.findall(r"#(\d)", node.latex)), node.name


@pytest.mark.parametrize("name", ["grpo", "vapo", "safe_rlhf", "prime", "spo", "online_dpo"])
def test_formulas_of_programs_that_ship_are_whole(name: str) -> None:
    text = rlgraph.compile(name).to_latex()
    assert text.count("{") == text.count("}")
    assert len(re.findall(r"\\left(?![a-z])", text)) == len(re.findall(r"\\right(?![a-z])", text))
    assert text.count(r"\begin{aligned}") == text.count(r"\end{aligned}") == 1 + (name == "vapo")
    assert text.count("minimize") == Path(f"rlgraph/algorithms/{name}.rlf").read_text("utf-8").count("minimize ")
    assert "#" not in text and "report" not in text


def test_the_command_writes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["compile", "grpo", "--emit", "latex"]) == 0
    shown = capsys.readouterr().out
    assert r"\operatorname*{std}_{j}" in shown
    assert run_command(["compile", "grpo", "--emit", "latex", "--emit", "graph", "-o", str(tmp_path)]) == 0
    assert (tmp_path / "grpo.tex").read_text("utf-8") == shown
