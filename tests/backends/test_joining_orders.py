"""Orders that join others at a copy, whatever takes how long: what each is sampled with, and what that buys."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from scheduled import compiled
from tiny import data_folder, weights

from rlgraph.api.compiled import Compiled
from rlgraph.backends.distributed.backend import DistributedBackend
from rlgraph.backends.distributed.transport import Coming, NodeRequest, TransferCost, WeightTransfer
from rlgraph.backends.enginespec.registry import engines_by_name
from rlgraph.backends.sim.backend import SimBackend
from rlgraph.ir.step_edges import oldest_weights_age_versions
from rlgraph.ops.nodes import NODES
from rlgraph.passes.compilation import default_plan
from rlgraph.passes.cost.batch import Batch
from rlgraph.passes.cost.cost import Cost
from rlgraph.passes.cost.lengths import Lengths
from rlgraph.passes.cost.sampling import SamplingPace, SamplingResult
from rlgraph.passes.cost.workload import Workload
from tests.suites import few

STEPS = 10
ANSWERS = Lengths((1.0, 1.0, 2.0, 2.0, 3.0, 30.0))
WORKLOAD = Workload(Lengths((2.0,)), ANSWERS)
SOURCE = weights(hidden=64)

PROGRAM = f"""algorithm t
model actor = causal_lm({SOURCE}, dtype="float32")
data prompts = jsonl("prompts.jsonl", batch=6)
data more = jsonl("tasks.jsonl", batch=4)
env shell = python("envs.py:Shell")

step async(ASYNC):
    BEFORE
    likely  = actor.generate(more, max_tokens=30, temperature=0)
    train actor(lr=0.05):
        minimize mean(-actor.logprobs(rollout)) - mean(actor.logprobs(likely))
    report age = max(rollout.age)
"""
ROLLOUT = "rollout = actor.generate(prompts, n=2, max_tokens=30)"
EPISODES = "rollout = actor.interact(shell, prompts, n=2, max_turns=3, max_tokens=30)"
SCHEDULE = """
pool learn = 1 devices
pool play = COPIES devices
place actor.train on learn(engine=transformers)
place actor.generate on play(engine=vllm, dp=COPIES)
"""

CASES = {
    "a version a row": ("staleness=2", "", 1),
    "exact": ("lag=2", "", 1),
    "episodes": ("staleness=2", "", 1),
    "free": ("staleness=2", "stream rollout(block=2, deal=free)\n", 2),
    "newer": ("staleness=2, span=token", "refresh actor on play(by=keep)\n", 1),
    "newer, at once": ("staleness=1, span=token", "refresh actor on play(by=reread)\n", 2),
    "newer, by turns": ("staleness=3, span=token", "refresh actor on play(by=keep, each=replica)\n", 2),
    "newer, free": (
        "staleness=2, span=token",
        "refresh actor on play(by=keep)\nstream rollout(block=2, deal=free)\n",
        2,
    ),
    "newer episodes": ("staleness=2, span=token", "refresh actor on play(by=keep)\n", 1),
    "newer turns, apart": ("staleness=2, span=turn", "refresh actor on play(by=keep)\n", 1),
    "newer, as they end": ("staleness=2, span=token, late=drop, order=arrival", "refresh actor on play(by=keep)\n", 1),
}


class Chance:
    """Each work takes a random while; a token takes a second."""

    def __init__(self, seed: int | None) -> None:
        self.chance = None if seed is None else random.Random(seed)

    def seconds(self, most: float) -> float:
        return most / 2 if self.chance is None else most * self.chance.choice((0.05, 0.3, 1.0)) * self.chance.random()

    def work_cost(self, model: str, operation: str, batches: Sequence[Batch], copies: int | None = None) -> Cost:
        return Cost(compute=self.seconds(40.0))

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
        return SamplingResult(
            Cost(compute=max(answers, default=0.0)), answers, SamplingPace(0.0, 0.0, 1000, lambda rows: 1.0)
        )

    def host_work_cost(self, op: str, count: float) -> Cost:
        return Cost(compute=self.seconds(2.0))

    def weight_sync_cost(self, model: str, source: str, target: str, copies: int | None = None) -> Cost:
        return Cost(communication=self.seconds(4.0))

    def row_transfer_cost(self, source: str, target: str, tokens: float, copies: int | None = None) -> Cost:
        return Cost(compute=self.seconds(2.0))

    def offload_round_trip_cost(self, model: str, group: str, operation: str, batches: Sequence[Batch]) -> Cost:
        return Cost()

    def request_cost(self, group: str, copies: int | None = None) -> Cost:
        return Cost(overhead=self.seconds(2.0))


@dataclass(eq=False)
class Going:
    """An order that is sampled."""

    order: NodeRequest
    copies: range
    versions: dict[int, list[int]] = field(default_factory=dict)


class Watch:
    """Of each copy which weights it has, and who is sampled with them."""

    def __init__(self, backend: SimBackend) -> None:
        self.backend, self.versions = backend, backend.weight_versions
        self.there: defaultdict[int, int] = defaultdict(int)
        self.going: list[Going] = []
        self.over: list[Going] = []
        self.met: set[tuple[int, int]] = set()
        """Steps whose orders were sampled together, by how far they are apart, and by how far what they began with."""
        transport: Any = backend.transport
        self.sampling, self.move = transport.allow_newer_weights, transport.send_weights
        self.refresh = transport.refresh_weights
        transport.allow_newer_weights, transport.send_weights = self.sampled, self.moved
        transport.refresh_weights = self.refreshed

    def copies(self, each: NodeRequest | WeightTransfer) -> range:
        group = each.group if isinstance(each, NodeRequest) else each.receiver
        return range(group.mesh.axis_size("dp")) if each.copy is None else range(each.copy, each.copy + 1)

    def granted(self, order: NodeRequest) -> range:
        return self.versions.allowed_versions("actor", order.step, order.node)

    @contextmanager
    def sampled(self, order: NodeRequest, *rest: Any) -> Iterator[None]:
        if not NODES[order.node.op].generates:
            yield
            return
        going = Going(order, self.copies(order))
        for copy in going.copies:
            here = self.there[copy]
            assert here in self.granted(order), "neither too old, nor of weights that do not exist"
            told = (
                order.version if order.refresh_state is None else order.refresh_state.versions.get(copy, order.version)
            )
            assert told is not None and (told == here if order.refresh_state is None else told <= here)
            going.versions[copy] = [here]
            for other in self.going:
                if copy in other.copies:
                    steps = abs(other.order.step.number - order.step.number)
                    self.met.add((steps, here - other.versions[copy][0]))
        self.going.append(going)
        with self.sampling(order, *rest):
            yield
        self.going.remove(going)
        self.over.append(going)

    def moved(self, move: WeightTransfer) -> Coming:
        coming: Coming = self.move(move)
        for copy in self.copies(move):
            assert not any(copy in each.copies for each in self.going), "weights are brought to who does nothing"
            assert move.version is not None
            self.there[copy] = move.version
        return coming

    def refreshed(self, move: WeightTransfer, going: Any) -> TransferCost | None:
        @contextmanager
        def watched() -> Iterator[int | None]:
            with going as version:
                yield version
                for each in self.going if version is not None else ():
                    for copy in {*each.copies} & {*self.copies(move)}:
                        assert each.order.refresh_state is not None, "nobody asked for newer ones"
                        assert version in self.granted(each.order)
                        each.versions[copy].append(version)
                if version is not None:
                    self.there |= dict.fromkeys(self.copies(move), version)

        found: TransferCost | None = self.refresh(move, watched())
        return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_folder(tmp_path_factory.mktemp("joining"))


def program(folder: Path, name: str) -> Compiled:
    how, more, copies = CASES[name]
    rollout = EPISODES if "episodes" in name or name.startswith("newer turns") else ROLLOUT
    rollout = f"collect prompts(6, ahead=2):\n        {rollout}" if "order" in how else rollout
    text = PROGRAM.replace("ASYNC", how).replace("BEFORE", rollout)
    return compiled(text, {}, SCHEDULE.replace("COPIES", str(copies)) + more, folder)


KEPT = ["exact", "episodes", "free", "newer, at once", "newer, as they end", "newer turns, apart"]


@pytest.mark.parametrize("name", few(CASES, *KEPT))
def test_whatever_takes_how_long_orders_are_sampled_with_what_they_may_have(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where a schedule does not say, vLLM has a group of its own.
    monkeypatch.setattr(default_plan, "installed_engines", lambda: frozenset(engines_by_name()))
    made, met, spans = program(folder, name), set[tuple[int, int]](), 0
    for seed in range(6):
        backend = SimBackend(made.program, made.plan, Chance(seed), WORKLOAD)
        watch = Watch(backend)
        assert len(list(backend.run_steps(STEPS))) == STEPS
        met |= watch.met
        for each in watch.over:
            for versions in each.versions.values():
                assert all(before < after for before, after in pairwise(versions))
                assert versions[0] >= watch.versions.version_at(
                    "actor", each.order.step, 1 + oldest_weights_age_versions(each.order.node)
                )
                spans += len(versions) > 1
    apart = name.endswith("apart")
    assert bool(met) != apart and any(steps for steps, _ in met) != apart, "orders of several steps"
    assert (spans > 0) == name.startswith("newer")
    several = name.startswith("newer") and not apart
    assert any(versions for _, versions in met) == several, "that began with several versions"


@pytest.mark.parametrize(
    "name",
    few(
        ["a version a row", "episodes", "newer", "newer, at once", "newer episodes"],
        "a version a row",
        "newer, at once",
    ),
)
def test_copies_that_stay_full_sample_faster(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the same program where each order waits until the copy is empty."""
    made, seconds = program(folder, name), []
    for together in (True, False):
        if not together:
            monkeypatch.setattr(DistributedBackend, "_together", lambda *of: False)
        backend = SimBackend(made.program, made.plan, Chance(None), WORKLOAD)
        seconds.append(sum(step.seconds for step in list(backend.run_steps(2 * STEPS))[2:]))
    assert seconds[0] < 0.6 * seconds[1]
