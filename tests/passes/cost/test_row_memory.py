"""Rows in the memory of hosts, kept tokens among them: against the tensors of a run, and where a plan has them. All of
it takes some seconds."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import rlgraph
from rlgraph.api.target import workload
from rlgraph.backends.rows import TableData
from rlgraph.explain.chosen_plan import chosen_plan_lines
from rlgraph.explain.simulate import simulate
from rlgraph.passes.compilation.assumed_workload import assumed_workload
from rlgraph.passes.compilation.choose_plan import plan_prediction
from rlgraph.passes.compilation.host_rows import fullest_host_rows
from rlgraph.passes.cost.lengths import Lengths
from rlgraph.passes.cost.row_bytes import HeldRows
from rlgraph.passes.cost.row_memory import rows_by_host
from rlgraph.passes.cost.tasks import made_rows, main_phase
from rlgraph.passes.cost.workload import Workload
from tests.backends.tiny import Run, compile_text

MODEL = (
    'random("qwen3_moe", hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, '
    "num_key_value_heads=2, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, "
    'initializer_range=0.3, max_position_embeddings=64, experts_implementation="eager", '
    'tokenizer=words("red green blue black white"))'
)
SMALL = """
algorithm small
model actor  = causal_lm({model}, dtype="float32")
model ref    = frozen(actor)
data prompts = jsonl("prompts.jsonl", batch=2)
buffer past  = fifo(capacity=4)
step:
    rollout = actor.generate(prompts, n=2, max_tokens=6, top_k=3, support=keep, routing=replay)
    seen    = ref.likeliest(rollout, top_k=2)
    old     = ref.logprobs(rollout)
    push past(rollout)
    whole   = mean(old, token)
    train actor(lr=1e-1):
        q = actor.distribution(rollout)
        minimize mean(-actor.logprobs(rollout, within=rollout.support) * whole + sum(seen * log(seen / q), vocab))
"""


def tensor_bytes(value: Any) -> int:
    """Of all tensors in a value."""
    if isinstance(value, torch.Tensor):
        return value.nbytes
    if isinstance(value, dict):
        return sum(map(tensor_bytes, value.values()))
    return sum(tensor_bytes(getattr(value, field.name)) for field in fields(value)) if is_dataclass(value) else 0


def test_rows_have_the_bytes_of_their_tensors(tmp_path: Path) -> None:
    """Of each value that a step makes, and of a buffer, where lengths are those of the step."""
    rows = [json.dumps({"prompt": text}) + "\n" for text in ("red", "green blue")]
    (tmp_path / "prompts.jsonl").write_text("".join(rows), "utf-8")
    program = compile_text(SMALL.format(model=MODEL))
    run = Run(program, tmp_path)
    [seen] = run.steps(1)
    table: TableData = seen.values["rollout"]
    assert table.sequences is not None
    sampled = float(table.sequences.scored.sum()) / len(table.sequences)
    asked = float((~table.sequences.scored).sum()) / len(table.sequences)
    lengths = Workload(prompt=Lengths((asked,)), response=Lengths((sampled,)))
    _, made = made_rows(program, main_phase(program), lengths, {"actor": 2.0 * 2 * 2})
    names = {each.value for each in made}
    assert {"rollout", "old", "whole", "past@1"} <= names and len(names & {"seen", "seen.kept", "seen.sum"}) >= 1
    for each in made:
        if each.value != "prompts":
            assert each.held.bytes == tensor_bytes(seen.values[each.value]), each
    kept = {each.value: each.held.kept for each in made if each.held.kept}
    places = int(table.sequences.scored.sum())
    assert kept["rollout"] == kept["past@1"] == places * (8 + 8 * 3) and places * (8 + 8 * 2) in kept.values()


NAMES = (("node", "bytes"), ("kept", "kept"))
PLACED = """
algorithm placed
model actor = causal_lm("Qwen/Qwen2.5-0.5B")
data prompts = jsonl("p.jsonl", batch=32)
buffer past = fifo(capacity=1024)
func correct = python("f.py:f")
step ASYNC:
    rollout = actor.generate(prompts, n=4, max_tokens=800, top_p=0.95, CUT support=keep)
    score = correct(rollout)
    again = past.sample(8)
    push past(rollout)
    report again = mean(again.length)
    train actor(lr=1e-6):
        minimize mean(-actor.logprobs(rollout, within=rollout.support) * score)
"""
SCHEDULE = """schedule placed
pool learn = 2 devices
pool play = 2 devices
place actor.train on learn(engine=megatron, tp=2)
place actor.generate on play(engine=vllm, dp=2)
"""


def placed(step: str = "", cut: str = "top_k=20,", host: str = "", **more: Any) -> rlgraph.Compiled:
    text = PLACED.replace(" ASYNC", step).replace("CUT", cut)
    schedule = SCHEDULE.replace("2 devices", "8 devices").replace("tp=2", "tp=2, dp=4").replace("dp=2)", "dp=8)")
    lengths = workload("100", "600", **more)
    return rlgraph.compile(text, schedule=schedule, cluster=f"2x8:h100-80gb{host}", workload=lengths)


def held(made: rlgraph.Compiled) -> dict[int, HeldRows]:
    asked = made.choice.question
    return rows_by_host(asked.program, made.plan, asked.workload, asked.cluster, asked.shapes)


def test_rows_are_where_they_are_made_and_read() -> None:
    """What is sampled is on its node; each of two ranks that train has what it reads; a buffer, and what the user's
    function reads and says, is on the first node."""
    made, found = placed(), held(placed())
    [learn, *_] = [pool.first for pool in made.plan.pools if pool.name == "learn"]
    assert learn == 0 and [*found] == [0, 1]
    rows, kept = 128 * (700 * 9 + 8 + 600 * 8 + 8 + 1), 128 * 600 * (8 + 160)
    asked = 32 * 100 * 20
    assert found[1] == HeldRows(rows + kept + asked, kept)
    trained, kept_of_trained = 128 * (700 * 20 + 600 * (12 + 160) + 20), 128 * 600 * (12 + 160)
    stored, drawn = 8 * (rows + kept), (rows + kept) / 16
    judged, said = 128 * 700 * 20, 128 * 4
    assert found[0].bytes == pytest.approx(2 * trained + stored + drawn + judged + said, rel=1e-3)
    assert found[0].kept == pytest.approx(2 * kept_of_trained + 8 * kept + kept / 16)


def test_steps_in_flight_have_theirs() -> None:
    now, later = held(placed()), held(placed(" async(lag=2)"))
    rows, kept = 128 * (700 * 9 + 8 + 600 * 8 + 8 + 1), 128 * 600 * (8 + 160)
    assert later[1].bytes == 3 * now[1].bytes
    assert later[0].bytes - now[0].bytes == pytest.approx(2 * (now[0].bytes - 8 * (rows + kept)))


def test_a_plan_says_them_and_where_there_is_no_room() -> None:
    """With as many tokens in a place as the user says, where the program has no bound."""
    roomy, unsaid = placed(), placed(cut="")
    assert fullest_host_rows(roomy.choice) is None and plan_prediction(roomy.choice)["rows"] is None
    assert [each.code for each in unsaid.diagnostics] == ["W0519"]
    told = placed(cut="", host="(host_memory=200MB)", kept_tokens=600)
    assert held(told)[1].kept == 128 * 600 * (8 + 8 * 600)
    [crowded] = told.diagnostics
    assert crowded.code == "W0521" and "of it kept tokens" in crowded.message and "`top_k`" in crowded.hint
    assert "\n --> <schedule>:1:1\n" in crowded.render()
    predicted = plan_prediction(told.choice)
    assert "rows in the hosts' memory: at most " in "\n".join(chosen_plan_lines(told.choice, predicted))
    assert predicted["rows"] == {name: round(getattr(held(told)[0], size)) for name, size in NAMES}


def test_a_plan_file_has_what_was_told(tmp_path: Path) -> None:
    told = placed(cut="", host="(host_memory=200MB)", kept_tokens=600)
    (tmp_path / "plan.json").write_text(told.plan_json(), "utf-8")
    again = rlgraph.load_plan(tmp_path / "plan.json")
    assert assumed_workload(again).kept_tokens == 600


def test_a_buffer_that_is_empty_at_first_is_simulated() -> None:
    """Whose rows a step draws before it has put any there."""
    assert simulate(placed(), steps=2).seconds > 0
