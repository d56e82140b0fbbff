"""The search beside brute force over the simulator: all plans of small problems are stepped in virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

import rlgraph
from rlgraph.backends.sim.backend import SimBackend
from rlgraph.backends.sim.steady import run_steps
from rlgraph.cost.lengths import Lengths
from rlgraph.cost.predict import Predictor
from rlgraph.cost.tasks import Workload
from rlgraph.placement.choose import Choice, Question, candidates, planned, ways
from rlgraph.placement.search import caches
from rlgraph.placement.search import options as searched
from rlgraph.placement.search.components import Component
from rlgraph.placement.search.options import Option
from rlgraph.placement.search.partitions import packed, sizes
from rlgraph.placement.search.problem import Problem
from rlgraph.placement.search.search import Found

ONLINE = """algorithm small
model actor  = causal_lm("Qwen/Qwen2.5-1.5B")
data prompts = jsonl("prompts.jsonl", batch=32)
func correct = python("rlgraph.rewards:exact_match")
step:
    rollout = actor.generate(prompts, n=4, max_tokens=256)
    score   = correct(rollout)
    minibatch prompts(parts=2):
        train actor(lr=1e-6):
            minimize mean(-actor.logprobs(rollout) * score)
"""
COLLECTED = """algorithm small
model actor  = causal_lm("Qwen/Qwen2.5-1.5B")
data prompts = jsonl("prompts.jsonl", batch=16)
func correct = python("rlgraph.rewards:exact_match")
step:
    collect prompts(16, rest=drop):
        rollout = actor.generate(prompts, n=4, max_tokens=256)
        hit     = correct(rollout)
        keep prompts where std(hit, by=prompts) > 0
    train actor(lr=1e-6):
        minimize mean(-actor.logprobs(rollout) * hit)
"""
WITH_A_REFERENCE = (
    ONLINE.replace("data", "model ref = frozen(actor)\ndata", 1)
    .replace("    score ", "    old = ref.logprobs(rollout)\n    score ", 1)
    .replace("* score)", "* score + old * 0)")
)
SUPERVISED = """algorithm small
model actor = causal_lm("Qwen/Qwen2.5-1.5B")
data texts  = jsonl("prompts.jsonl", batch=64)
step:
    answer = encode(texts.prompt, texts.answer)
    train actor(lr=1e-6):
        minimize mean(-actor.logprobs(answer))
"""
READ_AGAIN = ONLINE + "    report moved = mean(actor.logprobs(rollout) - rollout.logprobs)\n"
SLOW = "1x2:h100-80gb + 1x1:h200-141gb ~ 2Gb/s, 100ms"
ROWS = Workload(Lengths((200.0,)), Lengths.lognormal(mean=100, p99=250), kept=0.5)

PROBLEMS = {
    "one device": (ONLINE, "1x1:h100-80gb"),
    "one device, with a reference": (WITH_A_REFERENCE, "1x1:h100-80gb"),
    "an uneven node": (ONLINE, "1x3:h100-80gb"),
    "uneven nodes": (SUPERVISED, "2x3:rtx4090"),
    "a slow link": (ONLINE, SLOW),
    "optimizers shared out": (ONLINE, "1x2:rtx4090"),
    "read by whom one likes": (READ_AGAIN, "1x1:h100-80gb + 1x1:h200-141gb ~ 2Gb/s, 100ms"),
    "collect": (COLLECTED, "1x2:h100-80gb"),
    "a slow link, one step off": (ONLINE.replace("step:", "step async(lag=1):"), SLOW),
}


def every(choice: Choice) -> Iterator[Choice]:
    """All plans that fit: what is read apart from training, partitions, sizes of pools, options with any number of
    copies; on one device also who sleeps."""
    asked = replace(choice.question, offload=choice.question.cluster.devices == 1)
    for question, problem in zip(*ways(asked), strict=True):
        for found in plans(question, problem):
            yield replace(choice, question=question, problem=problem, found=found)


def plans(question: Question, problem: Problem) -> Iterator[Found]:
    islands = problem.cluster.islands
    for blocks in candidates(problem, question):
        for devices in product(*(sizes(islands[block.island]) for block in blocks)):
            used = [0] * len(islands)
            for block, count in zip(blocks, devices, strict=True):
                used[block.island] += count
            room = all(count <= island.devices for count, island in zip(used, islands, strict=True))
            if not room or not packed(islands, blocks, devices):
                continue
            own: list[list[Option]] = [[] for _ in problem.components]
            for block, count in zip(blocks, devices, strict=True):
                for number in block.components:
                    own[number] = list(options(problem, problem.components[number], block.island, count))
            for chosen in product(*own):
                pools = [[chosen[number] for number in block.components] for block in blocks]
                if all(problem.fits(pool, problem.island(at)) for pool, at in zip(pools, blocks, strict=True)):
                    yield Found(blocks, devices, chosen, 0.0, 0.0, 0.0, 0)


def options(problem: Problem, component: Component, island: int, devices: int) -> Iterator[Option]:
    made = problem.options
    for split in made.splits(component, problem.cluster.islands[island]):
        for full in made.knobs(component, split):
            strategy = made.whole(component, full)
            for copies in range(1, strategy.room(devices) + 1):
                for each in made.options(component, strategy, copies):
                    yield from (each.between(cache, cache) for cache in range(each.high.cache + 1))
    if id(component) in made.parts:
        _, *halves = made.parts[id(component)]
        for trainer, reader in product(*(options(problem, half, island, devices) for half in halves)):
            yield from made.beside(component, trainer, [reader])


def simulated(choice: Choice) -> float:
    """Seconds of a step in the middle of a run."""
    asked, plan = choice.question, planned(choice.question, choice.problem, choice.found)
    predictor = Predictor(plan, choice.configs, asked.cluster, asked.constants)
    steps = 2 if choice.problem.older else 1
    return run_steps(SimBackend(asked.program, plan, predictor, asked.workload), steps).seconds


@pytest.mark.parametrize("name", PROBLEMS)
def test_no_plan_is_simulated_to_be_faster(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Fewer settings of each split: what is tried is where things are.
    monkeypatch.setattr(searched, "MICROS", (2,))
    monkeypatch.setattr(caches, "STEP", 8.0)
    text, cluster = PROBLEMS[name]
    program = tmp_path / "small.rlf"
    program.write_text(text)
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "1 + 1", "answer": "2"}\n')
    choice = rlgraph.compile(program, cluster=cluster, workload=ROWS).choice
    tried = [simulated(each) for each in every(choice)]
    assert max(tried) > 1.05 * min(tried)
    assert simulated(choice) <= 1.03 * min(tried)
