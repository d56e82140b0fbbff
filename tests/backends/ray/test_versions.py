"""Which weights are used when, where models lie in different processes: the numbers of one process, to the last
digits. Some of these processes are late at random; `benchmarks/delays.py` draws many such runs."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("ray.util")

from scheduled import compiled, traced
from tiny import EPS, compile_text, data_folder, weights

from rlgraph.api.compiled import Compiled
from rlgraph.backends.local.backend import LocalBackend
from rlgraph.backends.ray.backend import RayBackend
from rlgraph.backends.recording import claim_folder
from rlgraph.backends.steps import SilentObserver, StepResult
from rlgraph.backends.worker.session import Settings
from rlgraph.ir.graph import Node
from rlgraph.runs.trace_check import TraceCheck
from tests.waits import NEVER

STEPS = 5
PROGRAM = f"""
algorithm versions
model actor  = causal_lm({weights(0)}, dtype="float64")
model ref    = frozen(actor)
model target = frozen(actor)
data prompts = jsonl("prompts.jsonl", batch=5)

step async(lag=2):
    rollout = actor.generate(prompts, n=3, max_tokens=5)
    now     = actor.logprobs(rollout)
    old     = ref.logprobs(rollout)
    slow    = target.logprobs(rollout)
    weight  = min(exp(now - rollout.logprobs), 5.0)
    minibatch prompts(parts=2):
        train actor(lr=0.02, eps={EPS}):
            ratio = exp(actor.logprobs(rollout) - now)
            minimize mean(weight * ratio * (1 - old + slow))
    every 2:
        update ref from actor
    update target from actor(ema=0.75)
    report age = mean(rollout.age), sampler = mean(rollout.logprobs), now = mean(now), old = mean(old), slow = mean(slow)
"""
SCHEDULE = """
pool learn = 1 devices
pool play = 1 devices
pool judge = 1 devices
place actor.train, actor.logprobs on learn(engine=transformers)
place actor.generate on play(engine=transformers)
place ref, target on judge(engine=transformers)
send actor to play(delta=true)
"""


class Fires(SilentObserver):
    """The operations that were begun, in their order, and with how many rows of others one was sampled at most."""

    def __init__(self) -> None:
        self.ops: list[str] = []
        self.beside = 0
        self.ahead = threading.Event()
        """A second step has begun to generate."""

    def node_started(self, node: Node, pool: str = "") -> None:
        self.ops.append(node.op)
        if self.ops.count("generate") == 2:
            self.ahead.set()
        if node.op == "train":
            assert self.ahead.wait(NEVER), "no other step generates while the first one is trained on"

    def add_span(
        self, pool: str, rank: int | str, name: str, category: str, start: float, end: float, **args: object
    ) -> int:
        beside = args.get("beside", 0)
        assert isinstance(beside, int)
        self.beside = max(beside, self.beside)
        return 0


def test_staleness_copies_and_averages(kept: None, tmp_path: Path) -> None:
    settings = Settings(folder=data_folder(tmp_path))
    local = LocalBackend(compile_text(PROGRAM), settings)
    try:
        expected = [step.metrics for step in local.run_steps(STEPS)]
    finally:
        local.close()
    made = compiled(PROGRAM, {}, SCHEDULE, tmp_path)
    fires = Fires()
    backend = RayBackend(made.program, made.plan, settings, fires, seconds=120)
    try:
        found = [step.metrics for step in backend.run_steps(STEPS)]
    finally:
        backend.close()
    # The next steps generate while the first one's rows are scored and trained on.
    assert fires.ahead.is_set()
    assert [metrics["age"] for metrics in expected] == [0, 1, 2, 2, 2]
    assert len({round(metrics["slow"] - metrics["old"], 6) for metrics in expected}) == STEPS
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, rel=0, abs=1e-12)


BOUND = f"""
algorithm bounded
model actor  = causal_lm({weights(0)}, dtype="float64")
model before = frozen(actor)
model first  = frozen(actor)
data prompts = jsonl("prompts.jsonl", batch=5)
data more    = jsonl("tasks.jsonl", batch=4)
func late    = python("late.py:late")

step async(staleness=2, late=again):
    rollout = actor.generate(prompts, n=3, max_tokens=5)
    collect more(1):
        extra = actor.generate(more, n=2, max_tokens=5)
    score   = late(rollout)
    now     = actor.logprobs(rollout)
    then    = where(rollout.age == 0, now, where(rollout.age == 1, before.logprobs(rollout), first.logprobs(rollout)))
    update first from before
    update before from actor
    weight  = min(exp(now - rollout.logprobs), 5.0)
    minibatch prompts(parts=2):
        train actor(lr=0.02, eps={EPS}):
            weights = min(exp(actor.logprobs(extra) - extra.logprobs), 5.0)
            minimize mean(-weight * actor.logprobs(rollout) * score) + mean(weights)
    report age = max(rollout.age), gap = max(abs(then - rollout.logprobs)), far = max(abs(now - rollout.logprobs))
    report oldest = max(extra.age)
"""
LATE = """
import random, time

def late(prompts, completions):
    time.sleep(random.choice([0.0, 0.0, 0.3]))
    return [float(len(text)) for text in completions]
"""


@pytest.mark.long
def test_rows_of_a_bounded_age_are_of_the_version_that_they_say(engines: None, kept: None, tmp_path: Path) -> None:
    """Whatever takes how long: two models keep the weights of one and of two steps ago. Of four rows one is used in each
    step, and what is too old then is asked again."""
    rows = tmp_path / "rows"
    settings = Settings(folder=data_folder(tmp_path), record=rows)
    (tmp_path / "late.py").write_text(LATE)
    schedule = SCHEDULE.replace("ref, target", "before, first").replace("=transformers", "=late_transformers")
    made = compiled(BOUND, {}, schedule, tmp_path)
    fires = Fires()
    steps = recorded_steps(made, settings, fires, 8)
    found = [step.metrics for step in steps]
    assert fires.ahead.is_set()
    assert [metrics["age"] <= min(2, number) for number, metrics in enumerate(found)] == [True] * 8
    assert max(metrics["age"] for metrics in found) > 0, "rows were made while others were trained on"
    for metrics in found:
        assert metrics["gap"] < 1e-12
        assert (metrics["far"] > 1e-6) == (metrics["age"] > 0)
    checked = checked_and_replayed(made, steps, replace(settings, record=None, replay=rows), tmp_path, 1e-12)
    assert checked.trained == 8 * (15 + 2) and max(checked.ages) == 2
    assert checked.late == 2 * sum(metrics["more.late"] for metrics in found) > 0
    assert max(metrics["oldest"] for metrics in found) == 2


def recorded_steps(made: Compiled, settings: Settings, fires: Fires, count: int) -> list[StepResult]:
    """So many steps on Ray, recorded where the settings say."""
    assert settings.record is not None
    with claim_folder(settings.record, made.name, 0):
        backend = RayBackend(made.program, made.plan, settings, fires, seconds=120)
        try:
            return list(backend.run_steps(count))
        finally:
            backend.close()


def checked_and_replayed(
    made: Compiled, steps: list[StepResult], settings: Settings, path: Path, bound: float
) -> TraceCheck:
    """What the checker says of a run: it accepts it, and what a replay in one process reports is the same. Batches that
    were under way at the end are not sampled again."""
    checked = traced(made, steps, path / "run")
    assert checked.accepted, [each.render() for each in checked.diagnostics]
    local = LocalBackend(made.program, settings)
    try:
        again = list(local.run_steps(len(steps)))
    finally:
        local.close()
    for one, other in zip(again, steps, strict=True):
        assert one.metrics == pytest.approx(other.metrics, rel=0, abs=bound)
    replayed = traced(made, again, path / "again")
    assert replayed == replace(checked, sampled=replayed.sampled, left=replayed.left)
    ended = any((step.trace or {}).get("ended") for step in steps)
    assert replayed.sampled <= checked.sampled if ended else replayed == checked
    return checked


SPANNING = """
algorithm spanning
model actor  = causal_lm(random("qwen2", hidden_size=64, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
                                num_key_value_heads=1, max_position_embeddings=256, initializer_range=0.1,
                                tokenizer=chars("abcd>")), dtype="float32")
model before = frozen(actor)
model first  = frozen(actor)
data prompts = jsonl("prompts.jsonl", batch=4)
func late    = python("late.py:late")

step async(staleness=2, span=token):
    rollout = actor.generate(prompts, n=3, max_tokens=160, min_tokens=120)
    score   = late(rollout)
    now     = actor.logprobs(rollout)
    then    = where(rollout.age == 0, now, where(rollout.age == 1, before.logprobs(rollout), first.logprobs(rollout)))
    update first from before
    update before from actor
    weight  = min(exp(now - rollout.logprobs), 5.0)
    train actor(lr=0.01, eps=EPS):
        minimize mean(-weight * actor.logprobs(rollout) * score)
    spans   = max(rollout.version, by=rollout) - min(rollout.version, by=rollout)
    report age = max(rollout.age), spans = max(spans), gap = max(abs(then - rollout.logprobs))
    report far = max(abs(now - rollout.logprobs))
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("engine", "split", "each"),
    [("late_transformers", "dp=2", "replica"), ("late_vllm", "tp=2", "all")],
    ids=lambda each: each,
)
def test_tokens_are_of_the_version_that_they_say(
    engines: None, kept: None, tmp_path: Path, engine: str, split: str, each: str
) -> None:
    """Rows go on with the weights of updates that end meanwhile: each token has the log-probability that the weights of
    its version give it, however long each process takes for a token, an update or a transfer, and whether copies take
    them one after the other or the ranks of one together. The trace is accepted, and a replay in one process is the
    run."""
    pytest.importorskip(engine.removeprefix("late_"))
    recorded, folder = tmp_path / "recorded", data_folder(tmp_path)
    (tmp_path / "late.py").write_text(LATE)
    schedule = f"""
pool learn = 1 devices
pool play = 2 devices
place actor.train, actor.logprobs, before, first on learn(engine=late_transformers)
place actor.generate on play(engine={engine}, {split})
refresh actor on play(by=reread, each={each})
"""
    text = SPANNING.replace("EPS", str(EPS))
    made, fires = compiled(text, {}, schedule, tmp_path), Fires()
    steps = recorded_steps(made, Settings(folder=folder, record=recorded), fires, 5)
    # With vLLM rows of a step may be sampled together with those of the next one: whether any are is a matter of time.
    assert engine == "late_vllm" or not fires.beside
    found = [step.metrics for step in steps]
    assert [metrics["age"] <= min(2, number) for number, metrics in enumerate(found)] == [True] * 5
    assert max(metrics["spans"] for metrics in found) > 0, "some rows are of several versions"
    for metrics in found:
        assert metrics["gap"] < 1e-5
        assert (metrics["far"] > 1e-3) == (metrics["age"] > 0)
    checked_and_replayed(made, steps, Settings(folder=folder, replay=recorded), tmp_path, 1e-5)


FLOWING = """
algorithm flowing
model actor  = causal_lm(random("qwen2", hidden_size=64, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
                                num_key_value_heads=1, max_position_embeddings=256, initializer_range=0.1,
                                tokenizer=chars("abcd>")), dtype="float32")
data prompts = jsonl("prompts.jsonl", batch=2)
func late    = python("late.py:late")

step async(staleness=2, span=token, order=arrival):
    collect prompts(4, ahead=2):
        rollout = actor.generate(prompts, n=3, max_tokens=160, min_tokens=20)
        score   = late(rollout)
    weight  = min(exp(actor.logprobs(rollout) - rollout.logprobs), 5.0)
    train actor(lr=0.01, eps=EPS):
        minimize mean(-weight * actor.logprobs(rollout) * score)
    spans   = max(rollout.version, by=rollout) - min(rollout.version, by=rollout)
    report age = max(rollout.age), spans = max(spans), score = mean(score), length = mean(rollout.length)
"""


@pytest.mark.long
def test_a_copy_samples_all_the_time(engines: None, kept: None, tmp_path: Path) -> None:
    """Batches that are taken as they end are sampled together, of several steps, and go on with newer weights; functions
    judge them on cpus of their own meanwhile."""
    pytest.importorskip("vllm")
    recorded, folder = tmp_path / "recorded", data_folder(tmp_path)
    (tmp_path / "late.py").write_text(LATE)
    schedule = """
pool learn = 1 devices
pool play = 1 devices
pool judges = 2 cpus
place actor.train, actor.logprobs on learn(engine=late_transformers)
place actor.generate on play(engine=late_vllm)
place late on judges
refresh actor on play(by=keep)
"""
    made = compiled(FLOWING.replace("EPS", str(EPS)), {}, schedule, tmp_path)
    steps = recorded_steps(made, Settings(folder=folder, record=recorded), Fires(), 7)
    found = [step.metrics for step in steps]
    assert [metrics["age"] <= min(2, number) for number, metrics in enumerate(found)] == [True] * 7
    assert max(metrics["spans"] for metrics in found) > 0
    ended = [(step.number, batch) for step in steps for batch in (step.trace or {}).get("ended", ())]
    assert any(began < step for step, (_, began, _) in ended), "some batches are trained on in a later step"
    checked_and_replayed(made, steps, Settings(folder=folder, replay=recorded), tmp_path, 1e-5)
