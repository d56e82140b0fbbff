"""Steps are values: two of them side by side are what they are one after the other, and weights have versions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from scheduled import apart, compiled
from test_sim import WORKLOAD, Fixed
from tiny import compile_text, data_folder, weights

from rlgraph.backends.frame import Frame
from rlgraph.backends.local.backend import LocalBackend
from rlgraph.backends.ray.backend import RayBackend
from rlgraph.backends.recording import claim_folder
from rlgraph.backends.sim.backend import SimBackend
from rlgraph.backends.sim.works import Work
from rlgraph.backends.step import Step
from rlgraph.backends.steps import StepRunner
from rlgraph.backends.weight_versions import PastWeights, WeightVersions
from rlgraph.backends.worker.sampling import version_columns
from rlgraph.backends.worker.session import Settings
from rlgraph.ir.graph import Node, Program
from rlgraph.ir.step_edges import earlier_versions_kept, longest_step_distances, step_edges
from rlgraph.ir.types import OLDEST, Axis, StateHandle, Table
from tests.suites import few


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_folder(tmp_path_factory.mktemp("steps"))


HEAD = f"""algorithm t
model actor = causal_lm({weights()}, dtype="float64")
model twin = actor
data prompts = jsonl("prompts.jsonl", batch=5)
func spread = python("rewards.py:spread")
"""

AHEAD = (
    HEAD
    + """
step async(lag=LAG):
    rollout = actor.generate(prompts, n=2, max_tokens=4)
    score   = spread(rollout)
    minibatch prompts(parts=2, shuffle=true):
        train actor(lr=0.05):
            minimize mean(-actor.logprobs(rollout) * score)
        inside = sum(rollout.length)
    report age = mean(rollout.age), version = max(rollout.version), score = mean(score)
    report now = mean(actor.logprobs(rollout)), then = mean(rollout.logprobs)
"""
)


class Hand:
    """Fires the nodes of a step one by one, in their order."""

    def __init__(self, backend: StepRunner, number: int) -> None:
        (self.phase,) = backend.program.phases
        self.backend, self.frame = backend, backend.new_frame(self.phase, number)
        self.nodes = list(self.phase.graph.nodes)

    def give(self, values: dict[str, Any]) -> None:
        for value in self.phase.graph.inputs:
            assert isinstance(value.type, StateHandle)
            self.frame.values[value.name] = values[value.type.name]

    def left(self) -> dict[str, Any]:
        kinds = self.phase.graph.inputs
        return {
            value.type.name: self.frame.values[last]  # type: ignore[union-attr]
            for value, last in zip(kinds, self.phase.graph.outputs, strict=True)
            if last in self.frame.values
        }

    def fire(self) -> None:
        """The next node."""
        node = self.nodes.pop(0)
        with torch.no_grad():
            made = self.backend.fire(node, self.frame)
        for rows in made.rows:
            self.frame.add_rows(rows)
        self.frame.values.update(made.values)
        self.frame.metrics.update(made.metrics)


def recorded(folder: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for file in sorted(folder.glob("step-*")):
        found.setdefault(file.name.split(".")[0], []).extend(file.read_text().splitlines())
    return found


def table(frame: Frame) -> tuple[Any, ...]:
    made = frame.values["rollout"]
    return frame.rows["rollout"].ids, made.sequences.rows(), made.columns["logprobs"].tolist()


def ahead(backend: StepRunner, count: int) -> Iterator[tuple[Frame, dict[str, float]]]:
    """Runs steps whose rows are generated before the step before is trained, and between its nodes; their frames, each
    when its step is over, with what there is to say about the machine."""
    now = Hand(backend, 1)
    now.give(dict(backend.initial_things))
    for number in range(2, count + 2):
        later = Hand(backend, number)
        while now.nodes:
            if "rollout" not in now.frame.values:
                now.fire()
                continue
            if "rollout" not in later.frame.values:
                # A model is a name; the data goes on where this step has read it.
                later.give({**backend.initial_things, **now.left()})
                while "rollout" not in later.frame.values:
                    later.fire()
                assert any(node.regions for node in now.nodes), "this step is not trained yet"
            elif not later.nodes[0].regions:
                later.fire()
            now.fire()
        yield now.frame, backend.finish_step(now.frame.step, {**backend.initial_things, **now.left()})
        now = later


def in_turn(program: Program, folder: Path, record: Path, count: int) -> tuple[list[Any], list[Any], Any]:
    """Metrics, samples and the last weights of steps that are run one after the other."""
    metrics, samples = [], []
    with claim_folder(record, program.name, 0):
        backend = LocalBackend(program, Settings(folder=folder, record=record))
        try:
            for frame, _ in backend.iter_step_frames(backend.upcoming_steps(count)):
                metrics.append(frame.metrics)
                samples.append(table(frame))
            return metrics, samples, backend.session.models["actor"].engine.state()
        finally:
            backend.close()


@pytest.mark.parametrize("lag", few([1, 2], 2))
def test_two_frames_live_side_by_side(folder: Path, tmp_path: Path, lag: int) -> None:
    """The rows of a step are generated before the step before is trained, and between its nodes."""
    program = compile_text(AHEAD.replace("LAG", str(lag)))
    metrics, samples, last = in_turn(program, folder, tmp_path / "in turn", 3)
    with claim_folder(tmp_path / "ahead", program.name, 0):
        backend = LocalBackend(program, Settings(folder=folder, record=tmp_path / "ahead"))
        try:
            found = [frame for frame, _ in ahead(backend, 3)]
            weights_then = backend.session.models["actor"].engine.state()
        finally:
            backend.close()
    assert [frame.metrics for frame in found] == metrics
    assert [table(frame) for frame in found] == samples
    ahead_rows = recorded(tmp_path / "ahead")
    ahead_rows.pop("step-000004")
    assert ahead_rows == recorded(tmp_path / "in turn")
    assert [each["age"] for each in metrics] == [min(number, lag) for number in range(3)]
    assert all(torch.equal(weights_then[name], last[name]) for name in last)


@pytest.mark.parametrize("lag", few([1, 2], 2))
def test_two_frames_live_side_by_side_in_the_processes_of_a_plan(folder: Path, tmp_path: Path, lag: int) -> None:
    """What a process made or was sent for a step that goes on outlives the steps that are over."""
    text = AHEAD.replace("LAG", str(lag))
    program = compile_text(text)
    metrics, _, last = in_turn(program, folder, tmp_path / "in turn", 3)
    made = compiled(text, {}, apart(program), folder)
    with claim_folder(tmp_path / "ahead", program.name, 0):
        backend = RayBackend(made.program, made.plan, Settings(folder=folder, record=tmp_path / "ahead"), debug=True)
        try:
            found = []
            workers = {group: worker for (group, _), worker in backend.processes.workers.items()}
            for frame, _ in ahead(backend, 3):
                found.append(frame.metrics)
                over, stores = frame.step.number, [worker.store for worker in workers.values()]
                held = [(step, name) for store in stores for (*_, name), (step, _) in store._made.items()]
                assert {name for step, name in held if step <= over} <= {"prompts@1"}, "the data goes on there"
                assert {step for step, _ in held if step > over} == {over + 1}
                assert {step for store in stores for step in store._came} == {over + 1}
            then = workers[made.plan.owner("actor").name].session.models["actor"].engine.tensors()
        finally:
            backend.close()
    assert found == metrics
    ahead_rows = recorded(tmp_path / "ahead")
    ahead_rows.pop("step-000004")
    assert ahead_rows == recorded(tmp_path / "in turn")
    assert all(torch.equal(then[name], last[name]) for name in then)


def test_nothing_is_kept_of_versions_that_nobody_asks_for(folder: Path) -> None:
    """The controller of a run of a million steps would have each of them."""
    text = AHEAD.replace("LAG", "2")
    made = compiled(text, {}, apart(compile_text(text)), folder)
    backend = RayBackend(made.program, made.plan, Settings(folder=folder), debug=True)
    kept = []
    try:
        for _ in backend.run_steps(8):
            kept.append(sum(len(each) for each in vars(backend.weights).values() if isinstance(each, dict)))
    finally:
        backend.close()
    assert kept[3:] == kept[3:4] * 5


@pytest.mark.parametrize("lag", [1, 2])
def test_two_frames_live_side_by_side_in_a_simulation(folder: Path, lag: int) -> None:
    """The same rows, as many of them, and as long; each row travels as often."""
    text = AHEAD.replace("LAG", str(lag))
    made = compiled(text, {}, apart(compile_text(text)), folder)

    def told(frame: Frame, extra: dict[str, float]) -> tuple[Any, ...]:
        rollout = frame.values["rollout"]
        counts = extra["rows"], extra["tokens"]
        return rollout.numbers.tolist(), rollout.prompt.tolist(), rollout.response.tolist(), counts

    def simulation() -> SimBackend:
        return SimBackend(made.program, made.plan, Fixed(), WORKLOAD)

    in_turn, backend = simulation(), simulation()
    expected = [told(*found) for found in in_turn.iter_step_frames(in_turn.upcoming_steps(3))]
    assert [told(*found) for found in ahead(backend, 3)] == expected
    assert expected[0] != expected[1]

    def taken(works: Sequence[Work]) -> Counter[tuple[Any, ...]]:
        # When weights travel is another matter: who works ahead needs them at other times.
        named = ((work.name, work.rows, work.tokens, work.parts.get("transfer", 0.0)) for work in works)
        return Counter(each for each in named if not each[0].startswith("sync"))

    # A fourth step has begun.
    assert taken(backend.works) > taken(in_turn.works)


# Versions


EDGES = (
    HEAD
    + """
phase warm(steps=2):
    rollout = actor.generate(prompts, max_tokens=2)
    train twin(lr=0.1):
        minimize mean(-twin.logprobs(rollout))

step async(lag=2):
    rollout = actor.generate(prompts, max_tokens=2)
    every 3:
        train actor(lr=0.1):
            minimize mean(-actor.logprobs(rollout))
    update twin from actor
"""
)


def test_staleness_is_an_edge(folder: Path) -> None:
    program = compile_text(EDGES)
    [edge] = step_edges(program)
    assert (edge.model, edge.reader.op, edge.distance) == ("actor", "generate", 3)
    assert longest_step_distances(program) == {"actor": 3}


def test_versions_are_read_off_the_program() -> None:
    """Steps 1 and 2 train `twin`, the others update it; every third one trains `actor`."""
    versions = WeightVersions(compile_text(EDGES))
    assert [versions.version_after("actor", step) for step in range(10)] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]
    assert [versions.version_after("twin", step) for step in range(6)] == [0, 1, 2, 3, 4, 5]
    ninth = Step(9, "step")
    assert versions.version_at("actor", ninth) == 2 and versions.version_at("actor", ninth, 3) == 0
    assert versions.version_at("twin", ninth) == 8


@pytest.mark.parametrize("late", [False, True])
def test_weights_are_kept_until_no_step_needs_them(late: bool) -> None:
    """With a lag of 2 a step needs those of two steps before the last one, until it has generated; three where it
    changes them first."""
    text = AHEAD.replace("LAG", "2")
    program = compile_text(
        text + "    again = actor.generate(prompts, max_tokens=2)\n    report more = mean(again.length)\n"
        if late
        else text
    )
    versions = WeightVersions(program)
    past = PastWeights("actor", versions)
    assert earlier_versions_kept(program) == {"actor": 2 + late}

    def read(step: Step) -> list[int]:
        weights = past.get(versions.version_at("actor", step, 3))
        # Present ones where nothing has changed them.
        return [step.number, 0] if weights is None else weights["w"].tolist()

    for number in range(1, 7):
        step = Step(number, "step")
        assert read(step) == [max(1, number - 2), 0]
        for update in range(2):
            # While a copy is made there is none that nobody needs, either.
            copy = {"w": torch.tensor([number, update])}
            past.copy_before_change(step, lambda copy=copy: copy if len(past._past) < 2 + late else {})  # type: ignore[misc]
        assert past.get(number) is None, "these are the present ones"
        # Of a step the weights before its first update.
        assert not late or read(step) == [max(1, number - 2), 0]
        assert len(past._past) == min(number, 2 + late)
        past.drop_unneeded(step)
        assert sorted(past._past) == [version for version in (number - 2, number - 1) if version >= 0]


def test_a_run_keeps_as_many_copies_as_a_plan_counts(folder: Path) -> None:
    program = compile_text(AHEAD.replace("LAG", "2"))
    backend, most = LocalBackend(program, Settings(folder=folder)), 0
    past = backend.session.models["actor"].past

    def count(node: Node, frame: Frame) -> None:
        nonlocal most
        most = max(most, len({id(weights) for weights in past._past.values()}))

    backend.watch = count
    try:
        ages = [step.metrics["age"] for step in backend.run_steps(5)]
    finally:
        backend.close()
    assert ages == [0, 1, 2, 2, 2] and most == earlier_versions_kept(program)["actor"] == 2


def test_a_row_is_as_old_as_its_oldest_token() -> None:
    """Also one that has none."""
    rows = Axis("rollout", "rollout")
    kind = Table(rows, Axis("rollout.token", "token", rows, inner=True), sampled=True, spans=True)
    found = version_columns([((1, 2), (3, 1)), ((2, 0),)], kind)
    assert found["version"].tolist() == [1, 1, 3] and found[OLDEST].tolist() == [1, 2]


def test_a_model_that_no_later_step_reads_is_not_copied() -> None:
    past = PastWeights("twin", WeightVersions(compile_text(EDGES)))
    past.copy_before_change(Step(1, "warm"), lambda: pytest.fail("copied"))
    assert past.get(0) is None


def test_weights_of_before_the_first_step_are_the_first_ones(folder: Path) -> None:
    """Also where a step trains before it generates."""
    text = (
        HEAD
        + """
data held = jsonl("gsm8k.jsonl", batch=5)

step async(lag=1):
    first = actor.generate(prompts, max_tokens=4)
    train actor(lr=0.5):
        minimize mean(-actor.logprobs(first))
    second = actor.generate(held, max_tokens=4)
    report version = max(second.version), gap = max(abs(actor.logprobs(second) - second.logprobs))
"""
    )
    backend = LocalBackend(compile_text(text), Settings(folder=folder))
    try:
        [step] = backend.run_steps(1)
    finally:
        backend.close()
    assert step.metrics["version"] == 0 and step.metrics["gap"] > 1e-3


# Asked for steps again

AGAIN = (
    HEAD
    + """
state seen = 0

phase warm(steps=2):
    rollout = actor.generate(prompts, n=2, max_tokens=4)
    train actor(lr=0.05):
        minimize mean(-actor.logprobs(rollout))
    report score = mean(spread(rollout))

step:
    rollout = actor.generate(prompts, n=2, max_tokens=4)
    score   = spread(rollout)
    seen   := seen + sum(score)
    train actor(lr=0.05):
        minimize mean(-actor.logprobs(rollout) * score)
    report score = mean(score), then = mean(rollout.logprobs), seen = seen
"""
)


def test_steps_go_on_when_they_are_asked_for_again(folder: Path) -> None:
    """Also where the first ones were not all taken: data, states, random numbers and phases go on."""

    def run(*wanted: tuple[int, int]) -> list[tuple[int, str, dict[str, float]]]:
        backend = LocalBackend(compile_text(AGAIN), Settings(folder=folder))
        try:
            found = [step for steps, taken in wanted for step in islice(backend.run_steps(steps), taken)]
        finally:
            backend.close()
        return [(step.number, step.phase, step.metrics) for step in found]

    whole = run((3, 5))
    assert [(number, phase) for number, phase, _ in whole] == [*enumerate(["warm"] * 2 + ["step"] * 3, 1)]
    assert run((1, 3), (2, 2)) == whole
    assert run((1, 1), (1, 2), (5, 2)) == whole
