"""The simulator fires what a run fires, and its account of the time adds up."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scheduled import apart, compiled, together
from test_exactness import PROGRAMS
from tiny import ALGORITHMS, compile_text, data_folder, shipped

import rlgraph
from rlgraph.api.compiled import Compiled
from rlgraph.backends.distributed import backend as placed_backend
from rlgraph.backends.enginespec.registry import engine
from rlgraph.backends.ray.backend import RayBackend
from rlgraph.backends.row_blocks import streams_blocks_by_node
from rlgraph.backends.sim.accounting import critical_path, pool_time, worker_pool_time
from rlgraph.backends.sim.backend import SimBackend
from rlgraph.backends.sim.fake_rows import FakeRows
from rlgraph.backends.sim.sampling_rows import SamplingRows
from rlgraph.backends.sim.works import Work
from rlgraph.backends.steps import SilentObserver, StepResult
from rlgraph.backends.worker.session import Settings
from rlgraph.errors import RunError
from rlgraph.explain.simulate import simulate
from rlgraph.ir.graph import Node, Program
from rlgraph.ir.mesh import make_mesh
from rlgraph.ir.plan import ModelHolding, Plan
from rlgraph.passes.cost.batch import Batch
from rlgraph.passes.cost.cost import Cost
from rlgraph.passes.cost.lengths import Lengths
from rlgraph.passes.cost.sampling import SamplingResult
from rlgraph.passes.cost.tasks import main_phase, phase_tasks
from rlgraph.passes.cost.workload import Workload
from tests.suites import few

WORKLOAD = Workload(Lengths((2.0, 4.0)), Lengths((1.0, 2.0, 3.0, 5.0)), kept=0.6)


class Fixed:
    """Seconds that are simple: a generated token of the longest row takes one, a row that is read or trained on one,
    too."""

    def __init__(self, woken: float = 0.0, overhead: float = 0.125) -> None:
        self.woken, self.overhead = woken, overhead

    def work_cost(self, model: str, operation: str, batches: Sequence[Batch], copies: int | None = None) -> Cost:
        if operation in ("generate", "interact"):
            return Cost(compute=batches[0].response.longest)
        return Cost(compute=sum(batch.rows for batch in batches))

    def sampling_result(
        self,
        model: str,
        operation: str,
        prompts: Sequence[float],
        answers: Sequence[float],
        samples: int,
        copy: int,
        *played: object,
    ) -> SamplingResult:
        return SamplingResult(Cost(compute=max(answers, default=0.0)), answers)

    def host_work_cost(self, op: str, count: float) -> Cost:
        return Cost(overhead=2 * self.overhead)

    def weight_sync_cost(self, model: str, source: str, target: str, copies: int | None = None) -> Cost:
        return Cost(communication=2.0)

    def row_transfer_cost(self, source: str, target: str, tokens: float, copies: int | None = None) -> Cost:
        return Cost(communication=tokens / 1024)

    def offload_round_trip_cost(self, model: str, group: str, operation: str, batches: Sequence[Batch]) -> Cost:
        return Cost(memory=self.woken)

    def request_cost(self, group: str, copies: int | None = None) -> Cost:
        return Cost(overhead=self.overhead)


class Fires(SilentObserver):
    """Which nodes were fired, in what order."""

    def __init__(self) -> None:
        self.names: list[tuple[str, str]] = []
        self.pools: list[tuple[str, str]] = []

    def node_started(self, node: Node, pool: str = "") -> None:
        self.names.append((node.op, node.name))
        self.pools.append((pool, node.name))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_folder(tmp_path_factory.mktemp("sim"))


def program(name: str, folder: Path, schedule: Callable[[Program], str], more: str = "") -> Compiled:
    swaps, changes = PROGRAMS[name]
    text = shipped(name, swaps)
    return compiled(text, changes, schedule(compile_text(text, changes)) + more, folder)


def simulated(
    made: Compiled, steps: int = 2, plan: Plan | None = None, workload: Workload = WORKLOAD, fixed: Fixed | None = None
) -> tuple[SimBackend, list[StepResult]]:
    threads = set(threading.enumerate())
    backend = SimBackend(made.program, plan or made.plan, fixed or Fixed(), workload)
    try:
        return backend, list(backend.run_steps(steps))
    finally:
        assert not set(threading.enumerate()) - threads  # others' threads may end meanwhile


def streams(plan: Plan, block: int) -> Plan:
    """With vLLM where rows are sampled, so that they come block by block."""
    sampling = {role.group for role in plan.roles if role.operation == "generate"}
    groups = tuple(replace(group, engine="vllm") if group.name in sampling else group for group in plan.groups)
    return replace(plan, groups=groups, blocks=(("rollout", block),))


@pytest.mark.parametrize("schedule", [apart, together])
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_algorithm(folder: Path, name: str, schedule: Callable[[Program], str]) -> None:
    made = program(name, folder, schedule)
    backend, steps = simulated(made)
    began = 0.0
    for step in steps:
        works = [work for work in backend.works if work.start < began + step.seconds]
        path = critical_path([work for work in works if work.end <= began + step.seconds], began)
        assert sum(work.seconds_within(began, began + step.seconds) for work in path) == pytest.approx(step.seconds)
        assert all(before.end == after.start for before, after in zip(path, path[1:], strict=False))
        for pool in made.plan.pools:
            found = pool_time(pool.name, works, began, began + step.seconds)
            assert found.busy + found.idle == pytest.approx(step.seconds)
            assert sum(seconds for _, seconds in found.waited) == pytest.approx(found.idle)
        began += step.seconds
    for pool in made.plan.pools:
        own = sorted((work.start, work.end) for work in backend.works if pool.name in work.pools)
        assert all(before[1] <= after[0] for before, after in zip(own, own[1:], strict=False))
    again, _ = simulated(made)
    assert [(w.name, w.start, w.end, w.rows, w.tokens) for w in again.works] == [
        (w.name, w.start, w.end, w.rows, w.tokens) for w in backend.works
    ]


@pytest.mark.parametrize(
    ("name", "schedule"),
    few(
        ((name, schedule) for name in PROGRAMS if name != "dapo" for schedule in (apart, together)),
        ("ppo", together),
        ("grpo", apart),
        ("sft", apart),
        ("agent", apart),
    ),
)
def test_it_fires_what_a_run_fires(folder: Path, name: str, schedule: Callable[[Program], str]) -> None:
    """All but what depends on the numbers, which `dapo` does. A run in one process is one thing after the other: what
    needs no model is fired in between there, and beside here. In a second step, who waits for weights lets others go
    first here."""
    for more in ("", "stream rollout(block=2)\n" if name not in ("sft", "reward_model", "dpo", "agent") else ""):
        made = program(name, folder, schedule, more)
        real, ours = Fires(), Fires()
        backend = RayBackend(made.program, made.plan, Settings(folder=folder), real, debug=True)
        try:
            run = backend.run_steps(2)
            next(run)
            first = [each for each in real.pools if each[0] != "host"]
            next(run)
        finally:
            backend.close()
        list(SimBackend(made.program, made.plan, Fixed(), WORKLOAD, observer=ours).run_steps(2))
        assert set(ours.names) == set(real.names)
        # Of what nobody works on with, all blocks are taken that are there: that is a matter of time.
        late = {
            (node.op, node.name)
            for phase in made.program.phases
            for node, handed in zip(phase.graph.nodes, streams_blocks_by_node(phase.graph), strict=True)
            if more and not handed
        }
        assert Counter(each for each in ours.names if each not in late) == Counter(
            each for each in real.names if each not in late
        )
        if not more:
            found = [each for each in ours.pools if each[0] != "host"]
            if made.program.phases[-1].staleness:
                # A step ahead samples meanwhile: each piece of work counts where it comes first.
                found, first = list(dict.fromkeys(found)), list(dict.fromkeys(first))
            assert found[: len(first)] == first


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_a_block_is_of_the_rows_of_its_table(folder: Path, engine: str) -> None:
    """Five prompts with four answers each: eight answers are those of two prompts. What has ended while the first ones
    are scored is scored at once."""
    made = program("grpo", folder, apart, "stream rollout(block=8)\n")
    backend, _ = simulated(made, 1, streams(made.plan, 8) if engine == "vllm" else made.plan)
    scored = [4, 8, 8] if engine == "transformers" else [8, 12]
    for name, rows in (("rollout", [4, 8, 8]), ("ref_logp", scored)):
        assert sorted(work.rows for work in backend.works if work.name == name) == rows, name


def test_streaming_shortens_a_step_and_changes_nothing_else(folder: Path) -> None:
    made = program("ppo", folder, apart)
    long = replace(WORKLOAD, response=Lengths((1.0, 1.0, 2.0, 5.0)))
    free = Fixed(overhead=0.0)
    whole, [before] = simulated(made, 1, replace(streams(made.plan, 1), blocks=()), long, free)
    for block in (1, 2, 4):
        parts, [after] = simulated(made, 1, streams(made.plan, block), long, free)
        assert after.seconds < before.seconds
        assert sum(work.tokens for work in parts.works) == sum(work.tokens for work in whole.works)
        for name in ("rollout", "score", "ref_logp", "train actor", "train critic"):
            rows = [sum(work.rows for work in backend.works if work.name == name) for backend in (parts, whole)]
            assert rows[0] == rows[1] > 0, name
    # The first block is there when its longest row has ended, the last one when all have.
    sampled = [work for work in parts.works if work.op == "generate"]
    assert sampled[-1].end == next(work for work in whole.works if work.op == "generate").end
    assert sampled[0].end < sampled[-1].end


def test_copies_of_a_model_end_apart(folder: Path) -> None:
    """Each by its own rows; the same rows on any plan."""

    class Asked(Fixed):
        def __init__(self) -> None:
            super().__init__()
            self.asked: list[list[float]] = []

        def sampling_result(
            self,
            model: str,
            operation: str,
            prompts: Sequence[float],
            answers: Sequence[float],
            samples: int,
            copy: int,
            *played: object,
        ) -> SamplingResult:
            self.asked.append(list(answers))
            return super().sampling_result(model, operation, prompts, answers, samples, copy, *played)

    def sampling(copies: int, block: int = 0) -> tuple[list[list[float]], list[Work]]:
        """The rows of each copy, and the works."""
        made, asked = program("grpo", folder, apart), Asked()
        plan = streams(made.plan, block) if block else made.plan
        over = {"mesh": make_mesh(copies), "devices": tuple(range(copies))}
        groups = tuple(replace(g, **over) if g.pool == "play" else g for g in plan.groups)
        pools = tuple(replace(pool, devices=copies) if pool.name == "play" else pool for pool in plan.pools)
        backend, _ = simulated(made, 1, replace(plan, pools=pools, groups=groups), fixed=asked)
        return asked.asked, [work for work in backend.works if work.op == "generate"]

    [alone], [whole] = sampling(1)
    rows, [work] = sampling(3)
    assert sum(rows, []) == alone and list(map(len, rows)) == [8, 8, 4], "the samples of a prompt stay together"
    longest = list(map(max, rows))
    assert len(set(longest)) > 1 and whole.idle == 0
    assert work.parts["compute"] == max(longest)
    assert work.idle == pytest.approx(max(longest) - sum(longest) / 3)
    told = pool_time("play", [work], work.start, work.end)
    assert told.busy + told.idle == pytest.approx(work.seconds) and told.idle == pytest.approx(work.idle)
    waited = {str(wait): seconds for wait, seconds in told.waited}
    assert waited == pytest.approx({"the slowest copy of rollout": told.idle})
    # Parts are dealt in turn, and each is there when its last row has ended.
    rows, parts = sampling(3, 4)
    assert rows == [alone[:4] + alone[12:16], alone[4:8] + alone[16:], alone[8:12]]
    sampled = [work for work in parts if "sampling" in work.parts]
    began = parts[0].start + parts[0].seconds - parts[0].parts["sampling"]
    ends = sorted(max(alone[first : first + 4]) for first in range(0, 20, 4))
    assert [work.end - began for work in sampled] == pytest.approx(ends)
    idle = sum(max(ends) - max(own) for own in rows) / 3
    assert sum(work.idle for work in sampled) == pytest.approx(idle) != 0


def test_functions_on_cpus_run_side_by_side_and_beside_sampling(folder: Path) -> None:
    """A function takes a second a row: on four cpus a quarter of what it takes on the host, and while rows stream most
    of it beside the sampling."""

    class Slow(Fixed):
        def host_work_cost(self, op: str, count: float) -> Cost:
            return Cost(overhead=count if op == "call" else 0.0)

        def request_cost(self, group: str, copies: int | None = None) -> Cost:
            return Cost()

        def row_transfer_cost(self, source: str, target: str, tokens: float, copies: int | None = None) -> Cost:
            return Cost()

    def called(more: str, block: int) -> tuple[float, float, list[Work]]:
        """Seconds from the end of the sampling to the last call's, and of all calls."""
        made = program("grpo", folder, apart, more)
        backend, _ = simulated(made, 1, replace(made.plan, blocks=(("rollout", block),)), fixed=Slow())
        calls = [work for work in backend.works if work.op == "call"]
        sampled = max(work.end for work in backend.works if work.op == "generate")
        return max(work.end for work in calls) - sampled, sum(work.seconds for work in calls), calls

    judges = "pool judges = 4 cpus\nplace correct on judges\n"
    alone, seconds, _ = called("", 1000)
    spread, also, calls = called(judges, 1000)
    streamed, _, _ = called(judges, 4)
    assert seconds == also == alone
    assert alone / 4 <= spread <= alone / 4 + 1
    assert streamed < spread
    workers = sorted({name for work in calls for name in work.groups})
    assert workers == [f"judges.python {cpu}" for cpu in range(4)]
    for who in workers:
        own = sorted((work.start, work.end) for work in calls if who in work.groups)
        assert all(before[1] <= after[0] for before, after in zip(own, own[1:], strict=False))
    told = worker_pool_time(
        "judges", {who: [cpu] for cpu, who in enumerate(workers)}, calls, 0.0, max(work.end for work in calls)
    )
    assert told.busy == pytest.approx(seconds / 4)


def test_a_copy_with_long_rows_takes_fewer(folder: Path) -> None:
    """Whoever is free takes the next block, so that none waits while there are rows."""
    swaps, changes = PROGRAMS["grpo"]
    text = shipped("grpo", swaps)
    placed = apart(compile_text(text, changes)).replace("= 1 devices", "= 2 devices")
    made = compiled(text, changes, f"{placed}stream rollout(block=1, deal=free)\n", folder)
    long = replace(WORKLOAD, response=Lengths((1.0, 1.0, 1.0, 5.0)))
    backend, [step] = simulated(made, 1, workload=long)
    sampled = [work for work in backend.works if work.op == "generate"]
    copies = [[work for work in backend.works if work.groups == (f"play.transformers {copy}",)] for copy in range(2)]
    counts = [sum(work.op == "generate" for work in own) for own in copies]
    assert sum(counts) == len(sampled) and counts[0] != counts[1]
    begun = max(work.start for work in sampled)
    for own in copies:
        some = [work for work in own if work.start <= begun]
        assert all(before.end == after.start for before, after in pairwise(some)), "no copy waits"
    scored = [work for work in backend.works if work.name == "ref_logp"]
    assert {name for work in scored for name in work.groups} == {f"play.transformers {copy}" for copy in range(2)}
    devices = {name: [int(name[-1])] for work in sampled for name in work.groups}
    told = worker_pool_time("play", devices, sampled, 0.0, step.seconds)
    assert told.busy == pytest.approx(sum(work.seconds for work in sampled) / 2)


def test_an_environment_answers_on_cpus_of_its_own(folder: Path) -> None:
    """A tenth of a second an action, on three cpus, while others are sampled."""

    class Slow(Fixed):
        def host_work_cost(self, op: str, count: float) -> Cost:
            return Cost(overhead=0.1 * count if op == "interact" else 0.0)

    made = program("agent", folder, apart, "pool judges = 3 cpus\nplace shell on judges\n")
    backend, _ = simulated(made, 1, fixed=Slow())
    acted = next(work for work in backend.works if work.op == "interact")
    answered = next(work for work in backend.works if work.name == "shell")
    turns = next(node for _, node in made.program.walk() if node.op == "interact").attr("max_turns")
    assert answered.groups == tuple(f"judges.python {cpu}" for cpu in range(3))
    assert answered.rows == acted.rows > 3 and (answered.start, answered.end) == (acted.start, acted.end)
    busy = 0.1 * turns * acted.rows / 3
    assert answered.seconds - answered.idle == pytest.approx(busy)
    assert next(work for work in backend.works if work.name == "train actor").start >= answered.end
    told = worker_pool_time(
        "judges", {who: [cpu] for cpu, who in enumerate(answered.groups)}, backend.works, 0.0, answered.end
    )
    assert told.busy == pytest.approx(busy)


def test_weights_follow_where_they_are_needed(folder: Path) -> None:
    backend, _ = simulated(program("grpo", folder, apart), 3)
    syncs = [work for work in backend.works if work.op == "sync"]
    assert [work.name for work in syncs] == ["sync actor"] * 2, "all begin with the same weights"
    assert all(set(work.pools) == {"learn", "play"} for work in syncs)
    backend, _ = simulated(program("grpo", folder, together), 3)
    assert not [work for work in backend.works if work.op == "sync"]
    backend, steps = simulated(program("async_grpo", folder, apart), 4)
    assert [
        sum(w.op == "sync" and w.end <= sum(s.seconds for s in steps[: n + 1]) for w in backend.works) for n in range(4)
    ] == [0, 1, 2, 3], (
        "each version goes there once: a step ahead samples with the weights that an older one scores with"
    )


def test_a_model_is_woken_when_another_one_has_worked_there(folder: Path) -> None:
    made = program("grpo", folder, together)
    held = tuple(ModelHolding(model, group.name, offload=True) for group in made.plan.groups for model in group.models)
    backend, _ = simulated(made, 1, replace(made.plan, holdings=held), fixed=Fixed(woken=1.0))
    found = [(work.name, work.parts.get("onload")) for work in backend.works if "compute" in work.parts]
    assert found == [("rollout", 1.0), ("ref_logp", 1.0), ("train actor", 1.0), ("train actor", None)]


def test_rows_that_were_sent_are_there(folder: Path) -> None:
    """Two passes over the rows: in the second one they need not travel."""
    backend, _ = simulated(program("ppo", folder, apart), 1)
    for name in ("train actor", "train critic"):
        assert ["transfer" in work.parts for work in backend.works if work.name == name] == [True, True, False, False]


def test_filters_keep_a_share(folder: Path) -> None:
    made = program("dapo", folder, together)
    _, all_kept = simulated(made, 1, workload=replace(WORKLOAD, kept=1.0))
    _, some_kept = simulated(made, 1, workload=replace(WORKLOAD, kept=0.3))
    assert all_kept[0].extra["rows"] == 30, "two batches of five prompts are begun"
    assert some_kept[0].extra["rows"] == 60, "where one of five is left, then one more and one more"
    with pytest.raises(RunError, match="were kept"):
        simulated(made, 1, workload=replace(WORKLOAD, kept=0.01))


def test_batches_that_are_begun_ahead_do_not_wait_for_each_other(folder: Path) -> None:
    """Two pools: the second batch is sampled while the first one's rows are judged, where it waited for the verdict."""
    made = program("dapo", folder, apart)
    whole = replace(WORKLOAD, kept=0.4)
    backend, [step] = simulated(made, 1, workload=whole, fixed=Fixed(overhead=3.0))
    sampled = sorted((work for work in backend.works if work.name == "rollout"), key=lambda work: work.start)
    judged = [work for work in backend.works if work.name == "hit"]
    assert len(sampled) == 2 and sampled[1].start < min(work.end for work in judged)
    assert step.extra["rows"] == 30
    # A surplus that nobody keeps has to be read again.
    phase = main_phase(made.program)
    [often] = {task.repetitions for task in phase_tasks(made.program, phase, whole) if task.op == "generate"}
    assert often == 2
    [often] = {
        task.repetitions
        for task in phase_tasks(made.program, phase, replace(whole, kept=0.35))
        if task.op == "generate"
    }
    assert often == 3


def test_lengths_are_those_of_the_workload(folder: Path) -> None:
    made = program("grpo", folder, together)
    _, [step] = simulated(made, 1)
    # 5 prompts of 2 to 4 tokens in evenly spread shares, 20 answers of a mean of 2.75 tokens.
    assert step.extra["rows"] == 20
    assert step.extra["tokens"] == pytest.approx(20 * (3 + 2.75), rel=0.05)


def test_samples_that_end_first(folder: Path) -> None:
    """Of five samples three: the shorter ones are left, and sampling is over when the longest of them ends."""
    made = program("distill", folder, together)
    _, [step] = simulated(made, 1)
    assert step.extra["rows"] == 5 * 3
    found = phase_tasks(made.program, main_phase(made.program), WORKLOAD)
    answers = WORKLOAD.answer_lengths(5)
    assert [(batch.rows, batch.response) for task in found for batch in task.batches] == [
        (25, answers.group_lengths_cut_after(3, 5)),
        *[(15, answers.shortest_of_groups(3, 5))] * 2,
    ]


ROUNDS = """
algorithm rounds
model actor  = causal_lm("Qwen/Qwen2.5-0.5B")
data prompts = jsonl("prompts.jsonl", batch=4)

step:
    collect prompts(8, ahead=1.5, rest=longest):
        rollout = actor.generate(prompts, n=3, first=2, max_tokens=1000)
    report length = mean(rollout.length)
    train actor(lr=0.01):
        minimize mean(-actor.logprobs(rollout))
"""
APART = """
pool learn = 1 devices
pool play = 1 devices
place actor.train on learn(engine=transformers)
place actor.generate on play(engine=vllm)
"""


@pytest.mark.parametrize("streamed", [True, False])
def test_the_longest_of_what_is_begun_come_later(folder: Path, streamed: bool) -> None:
    """Of twelve prompts that are begun eight are trained on; once eight wait, these alone are asked, and what makes
    their answers long is still so. Who samples gives the four up when the eight have ended, where it tells of them."""
    made = compiled(ROUNDS, {}, APART + ("stream rollout(block=2)" if streamed else ""), folder)
    lengths = Workload(Lengths((2.0,)), Lengths(tuple(float(each) for each in range(10, 1000, 10))), alike=0.99)
    backend, steps = simulated(made, 6, workload=lengths)
    assert [step.extra["rows"] for step in steps] == [24, 24, 16, 24, 24, 16]
    assert [step.extra["trained"] for step in steps] == [16.0] * 6
    took = [
        sum(work.seconds for work in backend.works if work.name == "rollout" and work.step == step + 1)
        for step in range(6)
    ]
    # A third of the prompts has more than 660 tokens; the shortest of them are taken with the other two thirds.
    assert min(took[2], took[5]) > 800
    assert all((seconds < 750) == streamed for at, seconds in enumerate(took) if at % 3 != 2)
    [asked] = [
        batch.rows for task in phase_tasks(made.program, main_phase(made.program), lengths) for batch in task.batches
    ][:1]
    # Two steps of three ask twelve prompts, and the third one eight.
    assert asked == pytest.approx(3 * (2 * 12 + 8) / 3)


@pytest.mark.parametrize("there", [0.1, 1.1, 7.3, 97.9])
def test_where_nobody_waits_nobody_is_idle(there: float) -> None:
    copy: Any = SimpleNamespace(result_alone=SimpleNamespace(end_times=(1.0,), cost=SimpleNamespace(seconds=1.0)))
    for count in range(1, 20):
        rows = SamplingRows([copy] * count, lambda _: 0.0, waited_until=there)
        rows.begin_part_wait(lambda _: there)
        assert rows.idle_seconds() == 0


def test_the_work_of_samples_that_are_given_up() -> None:
    lengths = np.array([3, 1, 2, 1, 9, 4, 4, 4, 4, 4])
    zeros = lengths * 0
    rows = FakeRows(
        "rollout", "play", np.arange(10), zeros + 1, lengths, zeros * 0.0, zeros, given_up=zeros, turns=zeros
    )
    kept = rows.shortest_rows_of_groups(3, 5)
    assert kept.numbers.tolist() == [1, 2, 3, 5, 6, 7]
    sampling = kept.sampling_cost_batch(3, 5)
    assert (sampling.rows, sampling.samples) == (10, 5)
    assert sampling.response == Lengths((1, 1, 2, 2, 2, 4, 4, 4, 4, 4))


def test_a_failure_comes_out(folder: Path) -> None:
    class Fails(Fixed):
        def work_cost(self, model: str, operation: str, batches: Sequence[Batch], copies: int | None = None) -> Cost:
            if operation == "train":
                raise LookupError("no rates for this engine")
            return super().work_cost(model, operation, batches)

    with pytest.raises(LookupError, match="no rates"):
        simulated(program("ppo", folder, apart), 1, fixed=Fails())


@pytest.mark.long
def test_a_copy_takes_rows_of_the_next_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where few answers are long, it is not empty while they end: a step of the same rows is shorter, by blocks that
    are dealt freely and by two tables that are sampled with the same weights."""
    rows, cluster = Workload(Lengths((300.0,)), Lengths.lognormal(mean=200, p99=1000)), "2x8:h100-80gb"
    program = (ALGORITHMS / "remax.rlf").read_text("utf-8").replace("batch=512", "batch=128")
    placed = """
pool learn = 8 devices
pool play = 2 devices
place actor.train, ref on learn(engine=megatron, tp=4, dp=2)
place reward on learn(engine=transformers, dp=8)
place actor.generate on play(engine=vllm, dp=2)
"""

    def measured(schedule: str, *, admits: bool) -> tuple[float, int, float]:
        """Seconds of a step, and of all steps tokens and seconds in which the copies sample."""
        known = replace(engine("vllm"), admits=admits)
        with monkeypatch.context() as patched:
            patched.setattr(placed_backend, "engine", lambda name: known if name == "vllm" else engine(name))
            made = rlgraph.compile(program, schedule=f"schedule remax{schedule}", cluster=cluster)
            found = simulate(made, cluster, steps=3, workload=rows)
        works = [work for work in found.works if work.op == "generate"]
        busy = worker_pool_time(
            "play", {name: [0] for work in works for name in work.groups}, works, 0.0, found.ends[-1]
        )
        return found.seconds, sum(work.tokens for work in works), busy.busy

    for schedule in (placed, f"{placed}stream rollout(block=32, deal=free)\n"):
        alone, together = (measured(schedule, admits=admits) for admits in (False, True))
        assert together[1] == alone[1]
        assert together[0] < alone[0] and together[2] < 0.9 * alone[2], schedule
