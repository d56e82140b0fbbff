"""The bytes of tokens that are kept with their probabilities, in what a plan counts. All of it takes a second."""

from __future__ import annotations

import pytest

import rlgraph
from rlgraph.api.target import workload
from rlgraph.dsl.check import check
from rlgraph.errors import Source
from rlgraph.explain.simulate import simulate
from rlgraph.ir.graph import Program
from rlgraph.passes.compilation.assumed_kept_tokens import assumed_kept_token_warnings
from rlgraph.passes.compilation.target import parse_workload
from rlgraph.passes.cost.batch import ROW_BYTES
from rlgraph.passes.cost.kept_tokens import ASSUMED_TOKENS
from rlgraph.passes.cost.task import Task
from rlgraph.passes.cost.tasks import main_phase, phase_tasks
from rlgraph.passes.cost.workload import Workload

LEARNED = """
algorithm learned
model actor = causal_lm("m")
model teacher = frozen(causal_lm("t"))
data prompts = jsonl("p.jsonl", batch=32)
func correct = python("f.py:f")
step:
    rollout = actor.generate(prompts, n=4, max_tokens=800, top_p=0.95, CUT)
    score = correct(rollout)
    keep rollout where score > 0
    p = teacher.likeliest(rollout, TOP)
    minibatch rollout(parts=2):
        train actor(lr=1e-6):
            q = actor.distribution(rollout)
            minimize mean(sum(p * log(p / q), vocab)) + LOSS
"""
WITHIN = "mean(actor.logprobs(rollout, within=rollout.support))"


def tasks(top: str, cut: str = "top_k=0", loss: str = "0") -> tuple[Program, dict[str, Task]]:
    text = LEARNED.replace("CUT", cut).replace("TOP", top).replace("LOSS", loss)
    program, _ = check(Source("p.rlf", text))
    listed = phase_tasks(program, main_phase(program), parse_workload("100", "600"))
    return program, {task.name: task for task in listed}


@pytest.mark.parametrize(
    ("top", "tokens"), [("top_k=64", 64), ("top_k=8, top_p=0.9", 8), ("min_p=0.1", ASSUMED_TOKENS)]
)
def test_kept_tokens_travel(top: str, tokens: int) -> None:
    """To the trainer, into a `minibatch`; nobody else reads them."""
    program, found = tasks(top)
    train = found["train actor"]
    [batch] = train.batches
    assert batch.kept_bytes == 12 + 8 * tokens
    assert batch.sent_bytes == pytest.approx(batch.rows * (700 * ROW_BYTES + 600 * (12 + 8 * tokens)))
    assert all(not batch.kept_bytes for name, task in found.items() if task is not train for batch in task.batches)
    told = [each.code for each in assumed_kept_token_warnings(program, Workload())]
    assert told == ["W0519"] * ("top_k" not in top)
    fetched = {read.maker: read.tokens for read in train.reads}
    assert fetched["teacher", "likeliest"] * ROW_BYTES == pytest.approx(batch.rows * 2 * 600 * (12 + 8 * tokens))


def test_what_the_sampler_kept_travels_beside_it() -> None:
    program, found = tasks("top_k=4", "top_k=20, support=keep", WITHIN)
    [batch] = found["train actor"].batches
    assert batch.kept_bytes == 12 + 8 * 4 + 12 + 8 * 20
    assert not [*assumed_kept_token_warnings(program, Workload())]
    program, _ = tasks("top_k=4", "support=keep", WITHIN)
    [told] = assumed_kept_token_warnings(program, Workload())
    assert "`top_p` keeps in a place of `rollout`" in told.message


def test_compiling_and_simulating_count_them_alike() -> None:
    """From the teacher's devices to the actor's: so many that they take longer than all else that travels."""
    text = LEARNED.replace("CUT", "top_k=0").replace("LOSS", "0").replace("top_p=0.95, ", "")
    text = text.replace('"m"', '"Qwen/Qwen2.5-0.5B"').replace('"t"', '"Qwen/Qwen2.5-0.5B"')
    apart = "schedule learned\npool one = 1 devices\npool two = 1 devices\nplace actor on one\nplace teacher on two\n"
    seconds = {}
    for top in (1, 4096):
        rows = workload("100", "600")
        found = text.replace("TOP", f"top_k={top}")
        made = rlgraph.compile(found, schedule=apart, cluster="1x2:h100-80gb", workload=rows)
        simulated = simulate(made, workload=rows)
        assert simulated.seconds == pytest.approx(made.choice.search_result.seconds, rel=0.03)
        [train] = [work for work in simulated.works if work.op == "train"][:1]
        seconds[top] = train.parts["transfer"]
    assert seconds[4096] > 100 * seconds[1] > 0
