"""Megatron trains and scores, vLLM generates, each in actors: the numbers are those of one process."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("ray.util")
pytest.importorskip("megatron.core")
pytest.importorskip("vllm")

import ray.cloudpickle
from actors import REPLAYED, Local, OnActors, Span, on_actors, rows, run_local, saved, trained
from tiny import data_folder
from transformers import AutoModelForCausalLM

from rlgraph.backends.engines.base import Sampling
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.engines.weights import tensors_for_file
from rlgraph.backends.mismatch import KL, MAX
from rlgraph.backends.ray.calls import Calls, replicas_of
from rlgraph.backends.ray.transfer_ends import WeightsReport
from rlgraph.backends.ray.worker import Worker
from rlgraph.backends.step import Step
from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.catalog.models.adapters import find_adapter
from rlgraph.explain.simulate import model_configs
from rlgraph.passes.cost.constants import default_constants
from rlgraph.passes.cost.lengths import Lengths
from rlgraph.passes.cost.peak_memory import pool_peaks
from rlgraph.passes.cost.tasks import main_phase, phase_tasks
from rlgraph.passes.cost.workload import Workload
from tests.suites import few

# Actors cannot import what pytest imports.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
ray.cloudpickle.register_pickle_by_value(sys.modules["actors"])

CLOSE = 1e-5
DRIFTED = 1e-4
"""Between log-probabilities by weights that two engines trained: the last digits of the weights differ, and each logit
adds many of them up."""

TOKENS = 24
"""Padded tokens: two or three rows, so that there are several micro-batches."""
CACHE = 1 << 20


@dataclass(frozen=True)
class Case:
    program: str
    schedule: str
    holds: Mapping[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)
    """How some roles hold their model, where the plan is to say so. It changes no number."""
    together: frozenset[str] = frozenset()
    """Pools that train at the same time."""


PLANS = {
    "ppo: one pool, critic apart": Case(
        "ppo",
        """
pool all = 2 devices
pool judge = 2 devices
place actor.train, actor.logprobs, ref on all(engine=megatron, tp=2)
place actor.generate on all(engine=vllm)
place critic.train, reward on judge(engine=megatron, cp=2)
place critic.values on all(engine=megatron, tp=2)
""",
        together=frozenset({"all", "judge"}),
    ),
    "ppo: copies, held": Case(
        "ppo",
        """
pool all = 2 devices
place actor, critic, ref, reward on all(engine=transformers, dp=2)
""",
        {
            ("ref", "logprobs"): {"micro_tokens": TOKENS, "offload": True},
            **{role: {"offload": True} for role in (("actor", "train"), ("critic", "train"), ("reward", "score"))},
        },
    ),
    "ppo: in turn, asleep": Case(
        "ppo",
        """
pool all = 1 devices
place actor.train, actor.logprobs, critic, ref, reward on all(engine=megatron)
place actor.generate on all(engine=vllm)
""",
        {
            ("actor", "generate"): {"kv_bytes": CACHE, "offload": True},
            **{
                role: {"offload": True}
                for role in (("actor", "train"), ("critic", "train"), ("ref", "logprobs"), ("reward", "score"))
            },
        },
    ),
    "experts: ep2 to two with whole experts": Case(
        "experts",
        """
pool learn = 2 devices
pool play = 2 devices
place actor.train, ref on learn(engine=megatron, ep=2)
place actor.generate on play(engine=vllm, ep=2)
""",
    ),
    "deep: pp2 in two parts to two": Case(
        "deep",
        """
pool learn = 2 devices
pool play = 2 devices
place actor.train, ref on learn(engine=megatron, pp=2, chunks=2)
place actor.generate on play(engine=vllm)
""",
        {("actor", "train"): {"micro_tokens": TOKENS}},
    ),
    "deep: pp3 of unlike stages to two": Case(
        "deep",
        """
pool learn = 3 devices
pool play = 2 devices
place actor.train, ref on learn(engine=megatron, pp=3)
place actor.generate on play(engine=vllm)
""",
        {("actor", "train"): {"micro_tokens": TOKENS}},
    ),
    "ppo: pp2, fused": Case(
        "ppo",
        """
pool all = 2 devices
place actor.train, actor.logprobs, critic, ref, reward on all(engine=megatron, pp=2)
place actor.generate on all(engine=vllm)
fuse actor.train, critic.train
""",
        {("actor", "train"): {"micro_tokens": TOKENS}, ("critic", "train"): {"micro_tokens": TOKENS}},
    ),
    "ppo: pp2 and dp2, fused": Case(
        "ppo",
        """
pool all = 2 devices
place actor.train, actor.logprobs, ref, reward on all(engine=megatron, pp=2)
place critic on all(engine=megatron, dp=2)
place actor.generate on all(engine=vllm)
fuse actor.train, critic.train
""",
        {("actor", "train"): {"micro_tokens": TOKENS}, ("critic", "train"): {"micro_tokens": TOKENS}},
    ),
    "ppo: tp2 x pp2 and dp2 x pp2, fused": Case(
        "ppo",
        """
pool learn = 4 devices
pool play = 1 devices
place actor.train, actor.logprobs, ref, reward on learn(engine=megatron, tp=2, pp=2)
place critic on learn(engine=megatron, dp=2, pp=2)
place actor.generate on play(engine=vllm)
fuse critic.train, actor.train
""",
        {("actor", "train"): {"micro_tokens": TOKENS}, ("critic", "train"): {"micro_tokens": TOKENS}},
    ),
    "lora: tp2 of one base": Case(
        "lora",
        """
pool all = 2 devices
place actor, ref on all(engine=transformers, tp=2)
""",
    ),
    "lora: pp2 of one base to one": Case(
        "lora",
        """
pool learn = 2 devices
pool play = 1 devices
place actor.train, ref on learn(engine=megatron, pp=2)
place actor.generate on play(engine=vllm)
""",
        {("actor", "train"): {"micro_tokens": TOKENS}},
    ),
    "lora: dp2 to two, beside": Case(
        "lora",
        """
pool learn = 2 devices
pool play = 2 devices
place actor.train, ref on learn(engine=transformers, dp=2)
place actor.generate on play(engine=vllm, adapters=apart)
""",
    ),
    "ppo: tp2 and fsdp2 to tp2, held": Case(
        "ppo",
        """
pool learn = 2 devices
pool play = 2 devices
place actor.train, actor.logprobs, reward on learn(engine=transformers, tp=2)
place critic, ref on learn(engine=transformers, fsdp=2)
place actor.generate on play(engine=transformers, tp=2)
""",
        {("actor", "train"): {"micro_tokens": TOKENS}, ("critic", "train"): {"gather": "update"}},
    ),
    "grpo: tp2 x pp2 to two": Case(
        "grpo",
        """
pool learn = 4 devices
pool play = 2 devices
place actor.train, ref on learn(engine=megatron, tp=2, pp=2)
place actor.generate on play(engine=vllm)
stream rollout(block=2)
""",
    ),
    "grpo: tp2 x dp2 to tp2, held": Case(
        "grpo",
        """
pool learn = 4 devices
pool play = 2 devices
place actor.train, ref on learn(engine=megatron, tp=2, dp=2)
place actor.generate on play(engine=vllm, tp=2)
""",
        {
            ("actor", "train"): {"micro_tokens": TOKENS, "recompute": True},
            ("actor", "generate"): {"kv_bytes": CACHE},
        },
    ),
}


KEPT = ("ppo: one pool, critic apart", "ppo: copies, held", "ppo: pp2, fused", "grpo: tp2 x dp2 to tp2, held")
"""Those that `make test` has: every axis of Megatron's but experts, vLLM with and without a split, work that queues and
pools that work side by side, models that sleep, trainings that share a pipeline."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_folder(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def local(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Local]:
    """A program in this process, run once for all of its plans."""
    made = tmp_path_factory.mktemp("local")
    return cache(lambda name: run_local(name, folder, made))


@pytest.fixture(scope="module")
def run(
    request: pytest.FixtureRequest,
    kept: None,
    folder: Path,
    local: Callable[[str], Local],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[OnActors]:
    case = PLANS[request.param]
    data = folder, tmp_path_factory.mktemp("run")
    with on_actors(case.program, case.schedule, local(case.program), *data, case.holds, case.together) as found:
        yield found


def plans(*wanted: str) -> pytest.MarkDecorator:
    """Those whose name has one of some words; the actors of a plan are started once for all tests."""
    names = [name for name in PLANS if any(word in name for word in wanted)]
    return pytest.mark.parametrize("run", few(names, *(name for name in names if name in KEPT)), indirect=True)


@plans("")
def test_metrics(run: OnActors) -> None:
    assert len(run.steps) == len(run.local.steps)
    for found, expected in zip(run.steps, run.local.steps, strict=True):
        assert found.metrics == pytest.approx(expected.metrics, rel=0, abs=CLOSE)


@plans("")
def test_sampler_and_trainer_agree(run: OnActors) -> None:
    """Every step has tokens that one engine sampled and another one trained on at the same weights. Weights of another
    step would be 1e-3 apart, as the test below sees."""
    for step in run.steps:
        assert 0 <= step.extra[MAX] < DRIFTED and 0 <= step.extra[KL] < CLOSE


@plans("")
def test_what_is_sampled(run: OnActors) -> None:
    """Sampling is by row: the same tokens, whoever samples them."""
    for step in range(REPLAYED + 1, len(run.steps) + 1):
        found, expected = rows(run.sampled, step), rows(run.local.recording, step)
        assert found.keys() == expected.keys()
        for row, line in expected.items():
            assert found[row]["tokens"] == line["tokens"], row
            assert found[row]["logprobs"] == pytest.approx(line["logprobs"], rel=0, abs=DRIFTED), row


@plans("to two", "to tp2", "one pool")
def test_log_probabilities_before_and_after_a_sync(run: OnActors) -> None:
    """The last step ended with training: only now do its weights go to where the next one would generate."""
    before, stale = sampled_and_scored(run)
    assert (before - stale).abs().max() > 1e-3
    node = next(node for node in run.compiled.graph.walk() if node.op == "generate")
    step = Step(len(run.steps) + 1, "step")
    with run.backend.weights.lend_weights(
        "actor", run.compiled.plan.group_of_role("actor", "generate"), node, step
    ) as lent:
        # Orders come behind them; this asks each process itself.
        lent.wait_for_arrival()
        after, fresh = sampled_and_scored(run)
    torch.testing.assert_close(after, fresh, rtol=0, atol=CLOSE)


def sampled_and_scored(run: OnActors) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of tokens that each rank that generates sampled, [ranks, tokens], by itself and by the trainer."""
    answers = run.each(run.group("actor", "generate"), sample)
    assert all(tokens == answers[0][0] for tokens, _ in answers)
    scores = [scored for scored in run.each(run.group("actor", "train"), score, *answers[0][0]) if scored is not None]
    own = torch.stack([logprobs for _, logprobs in answers])
    return own, torch.stack(scores[:1]).expand_as(own)


def sample(worker: Any) -> tuple[tuple[list[list[int]], list[list[int]]], torch.Tensor]:
    """Prompts and responses, and the responses' log-probabilities."""
    prompts, keys = [[3, 4, 5], [6], [4, 4, 7, 3]], np.arange(12, dtype=np.uint64)
    sampling = Sampling(max_tokens=8, min_tokens=8)
    made = worker.session.models["actor"].engine.generate(Sequences.from_lists(prompts), 4, sampling, keys)
    return ([prompt for prompt in prompts for _ in range(4)], made.sequences.scored_tokens_by_row()), made.logprobs


def score(worker: Any, prompts: list[list[int]], responses: list[list[int]]) -> torch.Tensor | None:
    engine = worker.session.models["actor"].engine
    with torch.no_grad():
        found = engine.logprobs(Sequences.from_pairs(prompts, responses))
    return found if engine.has_results else None


@plans("grpo: tp2 x dp2 to tp2, held")
def test_what_is_ordered_behind_a_sync_comes_after_it_on_every_rank(run: OnActors) -> None:
    """Also where the rank that leads a copy is late to pass the sync on, and another of its threads has the next order
    for the others."""
    group = run.compiled.plan.group_of_role("actor", "generate")
    [copy] = replicas_of(group)
    node = next(node for node in run.compiled.graph.walk() if node.op == "generate")
    before = run.each(group.name, taken)
    run.each(group.name, late)
    run.backend.weights.forget_held_weights()
    with run.backend.weights.lend_weights("actor", group, node, Step(len(run.steps) + 1, "step")) as lent:
        calls = Calls[WeightsReport](run.backend.processes)
        calls.call_replica(copy, Worker.report_weights, "actor")
        told = [each.change_count for found in calls.get("what it has") for each in found]
        lent.wait_for_arrival()
    run.each(group.name, on_time)
    assert told == [count + 1 for count in before]


def taken(worker: Any) -> int:
    """How often new weights have come to a rank."""
    return worker.changes["actor"]


class Late(dict[int, Any]):
    """Other ranks, the first of whom to be called is found once another one has been called, or after a while."""

    def __init__(self, others: Mapping[int, Any]) -> None:
        super().__init__(others)
        self.asked = itertools.count()
        self.next = threading.Event()

    def __getitem__(self, rank: int) -> Any:
        if next(self.asked):
            self.next.set()
        elif self.next.wait(LATE):
            time.sleep(SLEEP)
        return super().__getitem__(rank)


LATE, SLEEP = 3.0, 0.5
"""Seconds in which the next order comes, and in which it is passed on."""


def late(worker: Any) -> None:
    worker.others = Late(worker.others)


def on_time(worker: Any) -> None:
    worker.others = dict(worker.others)


@plans("")
def test_trained_models_are_saved(run: OnActors, tmp_path: Path) -> None:
    for model in trained(run.compiled.program):
        run.backend.save(model, tmp_path / model)
        found, expected = saved(tmp_path / model), saved(run.local.models / model)
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            torch.testing.assert_close(found[name], tensor, rtol=0, atol=CLOSE, msg=lambda text, n=name: f"{n}: {text}")
    if run.local.models.name.startswith("lora"):
        one, other = (find_adapter(str(folder / "actor")) for folder in (tmp_path, run.local.models))
        assert one and other and replace(one[1], start="") == replace(other[1], start="")
        assert saved(Path(one[0])).keys() == saved(Path(other[0])).keys()
        return
    opened = AutoModelForCausalLM.from_pretrained(tmp_path / "actor")
    family = opened.config.model_type
    stored = dict(part for name, each in opened.state_dict().items() for part in tensors_for_file(family, name, each))
    assert all(torch.equal(stored[name], tensor) for name, tensor in saved(tmp_path / "actor").items())


# How a plan's groups hold their models


@plans("grpo: tp2 x dp2 to tp2, held")
def test_megatron_and_vllm_hold_what_the_plan_says(run: OnActors) -> None:
    assert run.each(run.group("actor", "train"), micro_batches) == [(TOKENS, "full")] * 4
    assert run.each(run.group("actor", "generate"), cache_bytes) == [CACHE] * 2


@plans("ppo: copies, held")
def test_transformers_holds_what_the_plan_says(run: OnActors) -> None:
    assert run.each(run.group("ref", "logprobs"), blocks) == [TOKENS] * 2


def micro_batches(worker: Any) -> tuple[int, str]:
    engine = worker.session.models["actor"].engine
    return engine._options.block_tokens, engine.model.config.recompute_granularity


def blocks(worker: Any) -> int:
    return worker.session.models["ref"].engine._block_tokens


def cache_bytes(worker: Any) -> int:
    """Bytes of the tensors that vLLM has for keys and values."""
    runner = worker.session.models["actor"].engine._engine.model_executor.driver_worker.worker.model_runner
    storages = (tensor.untyped_storage() for tensor in runner.kv_caches)
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


# Sleep


@plans("copies, held", "asleep")
def test_models_that_share_devices_are_awake_one_at_a_time(run: OnActors) -> None:
    names = [group.name for group in run.compiled.plan.groups if group.pool == "all"]
    switched = [span for span in run.watcher.spans if span.category == "sleep"]
    assert {span.name for span in switched} >= {f"{what} {model}" for what in ("wake", "sleep") for model in MODELS}
    assert all(step.extra["sleep/bytes"] > 0 < step.extra["sleep/seconds"] for step in run.steps)
    copies = [sum(each, Counter()) for each in zip(*(run.each(name, awake) for name in names), strict=True)]
    assert all(found.total() <= 1 for found in copies), copies
    # Every rank of one copy has as many models; wake and sleep alternate, one model at a time.
    for rank in {span.rank for span in switched}:
        own = [span.name.split() for span in sorted(switched, key=lambda span: span.start) if span.rank == rank]
        assert [what for what, _ in own] == ["wake", "sleep"] * (len(own) // 2) + ["wake"] * (len(own) % 2)
        assert all(one == other for (_, one), (_, other) in zip(own[::2], own[1::2], strict=False))


@plans("asleep")
def test_the_hosts_memory_is_as_full_as_planned(run: OnActors) -> None:
    plan, cluster, program = run.backend.plan, read_cluster("1x1:cpu(memory=24GiB)"), run.compiled.program
    laid = phase_tasks(program, main_phase(program), Workload(Lengths((4.0,)), Lengths((5.0,))))
    planned = pool_peaks(plan, laid, model_configs(run.compiled), cluster, default_constants("cpu"))["all"]
    [learns] = run.each(plan.group_of_role("actor", "train").name, arenas)
    assert learns.host.peak == pytest.approx(planned.host, rel=0.05)


MODELS = ("actor", "critic", "ref", "reward")


def awake(worker: Any) -> Counter[str]:
    held = worker.spec.group.models
    return Counter(name for name in held if not worker.session.models[name].engine.offloader.asleep)


def arenas(worker: Any) -> Any:
    return worker.arenas


# Turns


@plans("one pool")
def test_in_one_pool_work_queues(run: OnActors) -> None:
    groups = {group.name for group in run.compiled.plan.groups if group.pool == "all"}
    assert len(groups) == 2
    for one, other in combinations([span for span in run.watcher.spans if span.pool == "all"], 2):
        assert not overlap(one, other) or one.name == other.name


@plans("apart")
def test_pools_work_at_the_same_time(run: OnActors) -> None:
    """Each of the first two trainings was held until the other had begun."""
    assert run.watcher.together == {"all", "judge"}


def overlap(one: Span, other: Span) -> bool:
    return one.start < other.end and other.start < one.end
