"""What is drawn of a program, apart from how."""

from __future__ import annotations

import pytest

from rlgraph.ir.text.program_text import program_text
from rlgraph.ir.verify import UNIT, verify
from rlgraph.ops import NODES, infer_type
from rlgraph.viz import captions
from rlgraph.viz.boxes import Body, Box, walk_boxes
from rlgraph.viz.scene import to_scene
from tests.viz.programs import ALL, EMPTY, GRPO, LOOPS, PPO, program


def boxes(text: str) -> list[Box]:
    return list(to_scene(program(text)).walk_boxes())


def box(text: str, title: str, kind: str = "") -> Box:
    return next(b for b in boxes(text) if b.title == title and kind in ("", b.kind))


@pytest.mark.parametrize("name", ["ppo", "grpo"])
def test_the_test_programs_are_well_formed(name: str) -> None:
    verify(program(ALL[name]), NODES, infer_type, {UNIT})


@pytest.mark.parametrize("name", list(ALL))
def test_every_node_has_a_box(name: str) -> None:
    found = program(ALL[name])
    texts = "\n".join(b.text for b in to_scene(found).walk_boxes())
    for phase in found.phases:
        for node in phase.graph.walk():
            first = next(line for line in program_text(found).splitlines() if node.name in line)
            assert first
            assert all(value.name in texts for value in node.outputs), node


@pytest.mark.parametrize("name", list(ALL))
def test_links_join_what_is_there(name: str) -> None:
    def check(body: Body, above: Box | None) -> None:
        known = {b.id: b for b in body.boxes}
        for link in body.links:
            if link.source:
                assert link.out in {port.value for port in known[link.source].outputs}
            else:
                assert above and link.out in {port.inside for port in above.inputs}
            if link.target:
                assert link.into in {port.value for port in known[link.target].inputs}
            else:
                assert above and link.into in {port.inside for port in above.outputs}
        for inner in body.boxes:
            if inner.body:
                check(inner.body, inner)

    for section in to_scene(program(ALL[name])).sections:
        check(section.body, None)


def test_a_model_holds_its_operations() -> None:
    actor = box(PPO, "actor", "model")
    assert actor.body and [b.title for b in actor.body.boxes] == ["generate", "logprobs"]
    assert actor.role == "policy"
    assert box(PPO, "ref", "model").role == "policy frozen"
    assert box(PPO, "critic", "model").role == "critic"
    assert box(PPO, "reward", "model").role == "reward frozen"


def test_a_training_step_is_a_container_of_its_model() -> None:
    step = box(GRPO, "train actor")
    assert step.role == "policy" and step.note == "lr=1e-06, clip_norm=1.0"
    assert step.body and [b.kind for b in step.body.boxes] == [
        "op",
        "tensor",
        "tensor",
        "tensor",
        "tensor",
        "minimize",
    ]


def test_loops_say_how_often() -> None:
    assert box(PPO, "minibatch prompts").note == "8 parts, 2 epochs"
    assert box(GRPO, "minibatch prompts").note == "4 parts"
    assert box(LOOPS, "collect prompts").note == "until 8 prompts are kept"
    assert box(LOOPS, "every 20 steps").note == ""


def test_barriers_say_why() -> None:
    adv = box(GRPO, "adv")
    assert adv.waits == "waits for its group of prompts"
    assert adv.reason == "mean(score, by=prompts) needs all of a prompt's rollouts"
    assert box(PPO, "adv_w").waits == "waits for the batch"
    assert box(PPO, "target").waits == ""


def test_a_metric_is_a_tag_with_its_mathematics() -> None:
    assert [b.title for b in boxes(GRPO) if b.kind == "report"] == [
        "reward = mean(score)",
        "length = mean(rollout.length)",
        "kl = mean(kl)",
    ]
    assert [b.title for b in boxes(LOOPS) if b.kind == "report"] == ["hit = mean(hit)", "scale"]


def test_weights_go_from_version_to_version() -> None:
    section = to_scene(program(PPO)).sections[0]
    weights = {(link.source.split("_")[-1], link.out) for link in section.body.links if link.line == "weights"}
    assert ("actor", "actor@0") in weights and ("critic", "critic@0") in weights
    assert {link.role for link in section.body.links if link.out == "critic@1"} == {"critic"}


def test_a_model_has_two_containers_where_one_would_make_a_circle() -> None:
    text = """
program circle
axis rows
axis rows.token inside rows
model m = causal_lm("a")
func f = python("f.py:f")
data rows = jsonl("r.jsonl", batch=2)

phase step(m@0: model<m>, rows@0: cursor<rows>):
  rows: table[rows; data=?], rows@1: cursor<rows> <- read(rows@0)
  one: table[rows; token=rows.token; sampled=1.0; data=?] <- generate(m@0, rows)
  score: text[rows] <- call(one) {func="f"}
  two: table[rows; token=rows.token; sampled=1.0; data=?] <- generate(m@0, score)
  yield m@0, rows@1
"""
    assert len([b for b in boxes(text) if b.kind == "model"]) == 2


def test_phases_are_sections() -> None:
    sections = to_scene(program(LOOPS)).sections
    assert [(s.title, s.note) for s in sections] == [("warmup", "100 steps"), ("step", "async, lag 2")]


def test_an_empty_graph_is_an_empty_section() -> None:
    assert not list(walk_boxes(to_scene(program(EMPTY)).sections[0].body))


def test_formulas_break_where_few_brackets_are_open() -> None:
    text = "-minimum(ratio * adv, clip(ratio, 1 - 0.2, 1 + 0.2) * adv)"
    assert captions.wrap_formula(text, 44) == ["-minimum(ratio * adv,", "  clip(ratio, 1 - 0.2, 1 + 0.2) * adv)"]
    assert captions.wrap_formula("a" * 100, 44) == ["a" * 44, "  " + "a" * 42, "  " + "a" * 14]


def test_long_formulas_are_cut_and_whole_in_the_tooltip() -> None:
    long = " + ".join(f"x.{at}" for at in range(60))
    given = ", ".join(f"x.{at}: float" for at in range(60))
    found = box(f"program p\nphase step({given}):\n  y: float = {long}\n  yield\n", "y")
    assert len(found.lines) == captions.FORMULA_LINES and found.lines[-1].endswith("…")
    assert long in found.tooltip
