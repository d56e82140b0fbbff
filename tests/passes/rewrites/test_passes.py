"""The runner, and rules about when a rewriting may happen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from rlgraph.dsl.check import check
from rlgraph.errors import Source
from rlgraph.ir.graph import Graph, Node, Program, RowUnit, tensor_node
from rlgraph.ir.verify import BrokenGraph
from rlgraph.passes.rewrites.pipeline import PIPELINE, BrokenPass, Pass, run_passes
from tests.passes.rewrites.test_passes_golden import HEADER

ROLLOUT = "    rollout = actor.generate(prompts, n=4, max_tokens=8)\n"


def program(body: str, step: str = "step:") -> Program:
    return check(Source("a.rlf", HEADER.replace("step:", step) + body))[0]


def nodes(body: str, step: str = "step:") -> list[Node]:
    return list(run_passes(program(body, step))[-1].program.phases[0].graph.walk())


# The runner


def swapped(broken: Program) -> Program:
    """A pass that puts the last node first."""
    phase = broken.phases[0]
    last, *others = reversed(phase.graph.nodes)
    return broken.with_graphs({phase.name: replace(phase.graph, nodes=(last, *reversed(others)))})


def failing(broken: Program) -> Program:
    raise KeyError("oops")


def test_a_broken_pass_is_named_and_its_change_is_shown() -> None:
    text = ROLLOUT + "    report length = mean(rollout.length)\n"
    with pytest.raises(BrokenPass) as caught:
        run_passes(program(text), (*PIPELINE, Pass(swapped, "exact")))
    said = str(caught.value)
    assert said.startswith("pass swapped: phase step: report: report.length used before it is made")
    assert "\n+  report(report.length)" in said and "\n-  report(report.length)" in said


def edited(name: str, op: str, change: Callable[[Node], Node]) -> Callable[[Program], Program]:
    """A pass that changes the nodes of one operation."""

    def inside(graph: Graph) -> Graph:
        nodes = [replace(node, regions=tuple(map(inside, node.regions))) for node in graph.nodes]
        return replace(graph, nodes=tuple(change(node) if node.op == op else node for node in nodes))

    def run(broken: Program) -> Program:
        return broken.with_graphs({phase.name: inside(phase.graph) for phase in broken.phases})

    run.__name__ = name
    return run


def without(name: str) -> Callable[[Node], Node]:
    return lambda node: replace(node, attrs=tuple(item for item in node.attrs if item[0] != name))


def joined(broken: Program) -> Program:
    """A pass that makes one of two tensor nodes that follow each other."""
    graph = broken.phases[0].graph
    at = next(at for at, node in enumerate(graph.nodes) if node.name == "centred")
    one, two = graph.nodes[at : at + 2]
    both = tensor_node(one.body + two.body, (one.name, two.name))
    nodes = (*graph.nodes[:at], both, *graph.nodes[at + 2 :])
    return broken.with_graphs({"step": replace(graph, nodes=nodes)})


TRAINS = (
    ROLLOUT
    + """    score = correct(rollout)
    centred = score - mean(score, by=prompts)
    adv = centred - max(centred, by=prompts)
    train actor(lr=0.1):
        minimize mean(-actor.logprobs(rollout) * adv)
"""
)

LATE: dict[str, tuple[int, Callable[[Program], Program], str]] = {
    "an attribute that a pass had written is gone": (
        2,
        edited("forgets", "train", without("micro")),
        "actor@2: train: lacks `micro`",
    ),
    "an attribute comes before its pass": (
        1,
        edited("hastens", "train", lambda node: replace(node, attrs=(*node.attrs, ("why", "")))),
        "actor@2: train: has `why`, which no pass has written yet",
    ),
    "an attribute that the checker wrote is gone": (
        1,
        edited("forgets", "generate", without("max_tokens")),
        "rollout: generate: lacks `max_tokens`",
    ),
    "an attribute that the record does not know": (
        1,
        edited("invents", "generate", lambda node: replace(node, attrs=(*node.attrs, ("beams", 4)))),
        "rollout: generate: has no attribute `beams`",
    ),
    "an axis that does not exist": (
        2,
        edited(
            "renames",
            "train",
            lambda node: replace(without("micro")(node), attrs=(*without("micro")(node).attrs, ("micro", "no"))),
        ),
        "actor@2: train: `micro` is an axis, and no axis is called 'no'",
    ),
    "a unit comes before its pass": (
        3,
        edited("hastens", "read", lambda node: replace(node, unit=RowUnit(None, "so"))),
        "prompts: has a unit, which no pass has written yet",
    ),
    "a unit is gone": (4, edited("forgets", "read", lambda node: replace(node, unit=None)), "prompts: has no unit"),
    "a unit of an axis that does not exist": (
        4,
        edited("renames", "call", lambda node: replace(node, unit=RowUnit("no"))),
        "score: works by no, which is no axis",
    ),
    "a barrier by row": (
        4,
        edited("hurries", "read", lambda node: replace(node, unit=RowUnit("prompts"))),
        "prompts: works by prompts, and read needs the whole batch",
    ),
    "a barrier without a reason": (
        4,
        edited("hides", "read", lambda node: replace(node, unit=RowUnit(None))),
        "prompts: is a barrier without a reason",
    ),
    "tensor nodes are one before their pass": (
        1,
        joined,
        "centred: makes several values, and no pass has fused nodes yet",
    ),
}


@pytest.mark.parametrize("case", LATE)
def test_what_passes_have_brought_about_has_to_stay(case: str) -> None:
    after, broken, problem = LATE[case]
    checked = program(TRAINS)
    run_passes(checked)
    with pytest.raises(BrokenPass) as caught:
        run_passes(checked, (*PIPELINE[:after], Pass(broken, "exact")))
    assert str(caught.value).startswith(f"pass {broken.__name__}: phase step: {problem}"), str(caught.value)


def test_a_pass_that_fails_is_named() -> None:
    with pytest.raises(BrokenPass, match="pass failing: KeyError: 'oops'"):
        run_passes(program(ROLLOUT + "    report length = mean(rollout.length)\n"), (Pass(failing, "exact"),))


def test_a_pass_that_says_that_a_graph_is_broken_is_named() -> None:
    def refusing(program: Program) -> Program:
        raise BrokenGraph(["phase step: it is broken"])

    with pytest.raises(BrokenPass) as caught:
        run_passes(program(ROLLOUT + "    report length = mean(rollout.length)\n"), (Pass(refusing, "exact"),))
    assert str(caught.value) == "pass refusing: phase step: it is broken"


def test_every_stage_is_kept_and_timed() -> None:
    stages = run_passes(program(ROLLOUT + "    report length = mean(rollout.length)\n"))
    assert [stage.name for stage in stages] == ["check", *(step.name for step in PIPELINE)]
    assert all(stage.seconds > 0 for stage in stages[1:])


# The sampler's log-probabilities

OLD = "    old = actor.logprobs(rollout)\n    report old = mean(old)\n"
TRAIN = "    train actor(lr=1):\n        minimize mean(actor.logprobs(rollout)**2)\n"
USED = {
    "at once": (ROLLOUT + OLD, True),
    "the same temperature": (ROLLOUT.replace("n=4", "n=4, temperature=0.7") + OLD, True),
    "another temperature": (ROLLOUT + OLD.replace("(rollout)", "(rollout, temperature=0.7)", 1), False),
    "greedy": (ROLLOUT.replace("n=4", "n=4, temperature=0") + OLD, False),
    "after an update": (ROLLOUT + TRAIN + OLD, False),
    "before an update": (ROLLOUT + OLD + TRAIN, True),
    "another model": (ROLLOUT + OLD.replace("actor", "ref"), False),
    "after new weights": (ROLLOUT + "    update actor from ref\n" + OLD, False),
    "after keep": (ROLLOUT + "    keep rollout where rollout.finished\n" + OLD, True),
    "picked": (ROLLOUT + "    rollout = pick(rollout, argmax(rollout.length, by=prompts))\n" + OLD, True),
    "after collect": (
        "    collect prompts(8):\n    "
        + ROLLOUT
        + "        keep prompts where any(rollout.finished, by=prompts)\n"
        + OLD,
        False,
    ),
    "in another slice": (
        ROLLOUT + "    minibatch prompts(parts=2):\n    " + TRAIN.replace("\n", "\n    ").rstrip() + "\n" + OLD,
        False,
    ),
    "beside the sampler's": (ROLLOUT + OLD + "    report drift = mean(old - rollout.logprobs)\n", False),
    "beside the sampler's in a loss": (
        ROLLOUT + OLD + TRAIN.replace("rollout)**2", "rollout)*rollout.logprobs"),
        False,
    ),
    "beside the sampler's of a part": (
        ROLLOUT
        + "    kept = pick(rollout, argmax(rollout.length, by=prompts))\n"
        + OLD
        + "    report p = mean(kept.logprobs)\n",
        False,
    ),
    "data": ("    rollout = encode(prompts.prompt, prompts.answer)\n" + OLD, False),
}


@pytest.mark.parametrize("case", USED)
def test_the_log_probabilities_of_the_sampler_are_used_where_they_are_the_same(case: str) -> None:
    body, same = USED[case]
    made = next(node for node in nodes(body) if any(value.name.split(".")[0] == "old" for value in node.outputs))
    assert (made.op == "column") == same


def test_they_are_not_used_for_rows_of_an_older_policy() -> None:
    made = [node.op for node in nodes(ROLLOUT + OLD, "step async(lag=1):")]
    assert "logprobs" in made


# Micro-batches

SPLIT = {
    "mean(logp)": "rollout",
    "mean(mean(logp, token))": "rollout",
    "sum(logp) / 64": "rollout",
    "mean(logp * adv) - 0.1 * mean(logp**2)": "rollout",
    "mean((row - mean(row, by=prompts))**2)": "prompts",
    "mean(mean(exp(row), by=prompts))": "prompts",
    "mean(best)": "prompts",
    "2 * mean(logp) + mean(adv)": "rollout",
    "log(mean(exp(logp)))": "`log` over the whole batch of what the model computes is not a sum over rows",
    "std(row)": "`std` over the whole batch of what the model computes is not a sum over rows",
    "max(row)": "`max` over the whole batch of what the model computes is not a sum over rows",
    "quantile(row, 0.5)": "`quantile` over the whole batch of what the model computes is not a sum over rows",
    "mean(logp) * mean(logp**2)": "the loss multiplies two numbers about the whole batch that depend on the model",
    "mean(adv) / mean(logp)": "the loss divides by a number about the whole batch that depends on the model",
    "mean(whiten(logp) * adv)": "each row uses `mean` over the whole batch of what the model computes",
    "mean(logp * detach(mean(logp)))": "each row uses `detach` over the whole batch of what the model computes",
    "mean(logp * total)": "each row uses `total`, a number about the whole batch that depends on the model",
}


@pytest.mark.parametrize("loss", SPLIT)
def test_the_unit_of_a_loss(loss: str) -> None:
    body = (
        ROLLOUT + "    adv = correct(rollout)\n    chosen = pick(rollout, argmax(adv, by=prompts))\n"
        "    train actor(lr=1):\n        logp = actor.logprobs(rollout)\n        row = sum(logp, token)\n"
        "        best = sum(actor.logprobs(chosen), token)\n        total = mean(logp)\n"
        f"        minimize {loss} + 0 * mean(row)\n"
    )
    if "best" not in loss:
        body = body.replace("        best = sum(actor.logprobs(chosen), token)\n", "")
    if "total" not in loss:
        body = body.replace("        total = mean(logp)\n", "")
    train = next(node for node in nodes(body) if node.op == "train")
    wanted = SPLIT[loss]
    found = train.attr("micro") or train.attr("why")
    assert found == wanted
    assert (train.attr("micro") is None) == (" " in wanted)
