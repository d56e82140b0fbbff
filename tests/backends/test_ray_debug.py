"""The processes of a plan as objects in this one: what is computed are the very numbers of the local backend."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from scheduled import apart, compiled, together
from test_exactness import PROGRAMS
from tiny import compile_text, data_folder, shipped, weights

from rlgraph.backends.distributed.offload import OffloadedReplica
from rlgraph.backends.enginespec.registry import engine
from rlgraph.backends.exchange import exchange
from rlgraph.backends.exchange.exchange import TransferEndpoint
from rlgraph.backends.local.backend import LocalBackend
from rlgraph.backends.ray.backend import RayBackend
from rlgraph.backends.step import Step
from rlgraph.backends.steps import SilentObserver, StepResult
from rlgraph.backends.worker.session import Settings
from rlgraph.cli import run_command
from rlgraph.errors import NO_SPAN, RunError
from rlgraph.ir.graph import Program
from rlgraph.ir.plan import ModelHolding, Plan
from rlgraph.passes.compilation import default_plan
from tests.suites import few

STEPS = 3

Weights = dict[str, dict[str, torch.Tensor]]
"""Of each model, at the end."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_folder(tmp_path_factory.mktemp("debug"))


@cache
def local(name: str, folder: Path, block: int | None) -> tuple[list[StepResult], Weights]:
    swaps, changes = PROGRAMS[name]
    backend = LocalBackend(compile_text(shipped(name, swaps), changes), Settings(folder=folder, block=block))
    try:
        steps = list(backend.run_steps(STEPS))
        return steps, {model: state.engine.state() for model, state in backend.session.models.items()}
    finally:
        backend.close()


def debugged(
    name: str, folder: Path, block: int | None, schedule: Callable[[Program], str]
) -> tuple[list[StepResult], Weights]:
    """The weights are those of their owners."""
    swaps, changes = PROGRAMS[name]
    text = shipped(name, swaps)
    made = compiled(text, changes, schedule(compile_text(text, changes)), folder)
    backend = RayBackend(made.program, made.plan, Settings(folder=folder, block=block), debug=True)
    try:
        steps = list(backend.run_steps(STEPS))
        sessions = {group: worker.session for (group, _), worker in backend.processes.workers.items()}
        return steps, {model: dict(sessions[group].models[model].engine.tensors()) for model, group in made.plan.owners}
    finally:
        backend.close()


USUAL = [(apart, 3), (together, 2)]
OTHERS = [(apart, None), (apart, 1), (together, None)]
"""Of one block, which is less than several, and of as many as there are rows."""
CASES = [
    *((name, *case) for name in PROGRAMS for case in USUAL),
    *((name, *case) for name in ("ppo", "agent") for case in OTHERS),
]


KEPT = [
    ("ppo", together, 2),
    ("grpo", apart, 3),
    ("online_dpo", apart, 3),
    ("sft", apart, 3),
    ("agent", together, None),
]
"""Each kind of step: a critic, groups, pairs, data without samples, and episodes."""


@pytest.mark.parametrize(("name", "schedule", "block"), few(CASES, *KEPT))
def test_every_algorithm(folder: Path, name: str, schedule: Callable[[Program], str], block: int | None) -> None:
    steps, weights = local(name, folder, block)
    found, others = debugged(name, folder, block, schedule)
    assert [step.metrics for step in found] == [step.metrics for step in steps]
    for model, tensors in others.items():
        for key, tensor in tensors.items():
            assert torch.equal(tensor, weights[model][key]), (model, key)


def test_how_models_are_held(folder: Path) -> None:
    """Micro-batches of a row or two, and layers computed again: the sums of the same numbers, in another order."""
    swaps, changes = PROGRAMS["grpo"]
    text = shipped("grpo", swaps)
    made = compiled(text, changes, apart(compile_text(text, changes)), folder)
    held = [
        ModelHolding(model, group.name, micro_tokens=16, recompute=True)
        for group in made.plan.groups
        for model in group.models
    ]
    plan = replace(made.plan, holdings=tuple(held))
    backend = RayBackend(made.program, plan, Settings(folder=folder), debug=True)
    try:
        for found, expected in zip(backend.run_steps(STEPS), local("grpo", folder, None)[0], strict=True):
            assert found.metrics == pytest.approx(expected.metrics, rel=1e-9, abs=1e-9)
        workers = backend.processes.workers
        assert {workers[each.group, 0].session.models[each.model].engine._block_tokens for each in held} == {16}
    finally:
        backend.close()


def asleep(plan: Plan, *but: str) -> Plan:
    """The same, and all models are off-loaded, those of some groups aside."""
    held = [
        replace(plan.holding(model, group.name), offload=group.name not in but)
        for group in plan.groups
        for model in group.models
    ]
    return replace(plan, holdings=tuple(held))


@pytest.mark.parametrize(
    ("name", "schedule", "block"),
    few(
        (
            (name, *how)
            for name in ("ppo", "grpo", "online_dpo", "distill")
            for how in ((apart, None), (together, None), (together, 1))
        ),
        ("ppo", together, None),
        ("grpo", apart, None),
        ("grpo", together, 1),
    ),
)
def test_models_that_sleep_while_others_work(
    folder: Path, name: str, schedule: Callable[[Program], str], block: int | None
) -> None:
    """Those that share a pool are never awake together, and compute the very numbers all the same."""
    swaps, changes = PROGRAMS[name]
    text = shipped(name, swaps)
    made = compiled(text, changes, schedule(compile_text(text, changes)), folder)
    backend = RayBackend(made.program, asleep(made.plan), Settings(folder=folder, block=block), debug=True)
    steps, weights = local(name, folder, block)
    try:
        found = list(backend.run_steps(STEPS))
        workers = backend.processes.workers
        for model, group in made.plan.owners:
            for key, tensor in workers[group, 0].session.models[model].engine.tensors().items():
                assert torch.equal(tensor, weights[model][key]), (model, key)
    finally:
        backend.close()
    assert [step.metrics for step in found] == [step.metrics for step in steps]
    assert all(step.extra["sleep/bytes"] > 0 for step in found)
    for pool in made.plan.pools:
        engines = [
            state.engine
            for group in made.plan.groups
            for model, state in workers[group.name, 0].session.models.items()
            if group.pool == pool.name and model in group.models
        ]
        assert sum(not engine.offloader.asleep for engine in engines) <= 1


TWICE = f"""
algorithm twice
model actor = causal_lm({weights()})
model ref = frozen(actor)
data prompts = jsonl("prompts.jsonl", batch=3)
step:
    one = actor.generate(prompts, max_tokens=4)
    one_ref = ref.logprobs(one)
    two = actor.generate(prompts, max_tokens=5, temperature=0.7)
    two_ref = ref.logprobs(two)
    train actor(lr=0.01):
        minimize mean(mean(k3(actor.logprobs(one), one_ref), token))
    report far = mean(mean(two.logprobs - two_ref, token))
"""


class Brought(SilentObserver):
    """Counts weights that went from group to group."""

    times = 0

    def weights_sent(self, *_: object) -> None:
        self.times += 1


def test_weights_that_were_not_kept_are_brought_again(folder: Path) -> None:
    """The copy that samples sleeps while `ref` reads, before the step samples once more with the same weights."""
    made = compiled(TWICE, {}, apart(compile_text(TWICE, {})), folder)
    there = LocalBackend(made.program, Settings(folder=folder))
    seen = Brought()
    backend = RayBackend(made.program, asleep(made.plan), Settings(folder=folder), seen, debug=True)
    try:
        expected, found = list(there.run_steps(STEPS)), list(backend.run_steps(STEPS))
    finally:
        there.close()
        backend.close()
    assert [step.metrics for step in found] == [step.metrics for step in expected]
    # But for the first time: what was opened is there.
    assert seen.times == 2 * STEPS - 1


def test_weights_that_somebody_is_about_to_work_with_are_kept(folder: Path) -> None:
    """Others may have the devices between a transfer and the work that it was for."""
    made = compiled(TWICE, {}, apart(compile_text(TWICE, {})), folder)
    plan = asleep(made.plan)
    backend = RayBackend(made.program, plan, Settings(folder=folder), debug=True)
    try:
        node = next(node for _, node in made.program.walk() if node.op == "generate")
        bed = OffloadedReplica("actor", plan.group_of_role("actor", "generate"), 0)
        with backend.weights.lend_weights("actor", bed.group, node, Step(1, "step")):
            assert not backend.weights._forgets(bed)
        assert backend.weights._forgets(bed)
        owner = OffloadedReplica("actor", plan.group_of_role("actor", "train"), 0)
        assert not backend.weights._forgets(owner) and not backend.weights._forgets(replace(bed, model="ref"))
    finally:
        backend.close()


def test_an_engine_that_cannot_is_refused_before_anything_starts(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    swaps, changes = PROGRAMS["ppo"]
    text = shipped("ppo", swaps)
    made = compiled(text, changes, apart(compile_text(text, changes)), folder)
    document = json.loads(made.plan_json(folder))
    away = [("ref", "play"), ("actor", "learn"), ("actor", "play")]
    groups = {
        (group["pool"], model): group["name"] for group in document["plan"]["groups"] for model in group["models"]
    }
    document["plan"]["holdings"] = [
        {"model": model, "group": groups[pool, model], "offload": True} for model, pool in away
    ]
    file, out = folder / "plan.json", folder / "run"
    file.write_text(json.dumps(document))
    assert run_command(["run", str(file), "--backend", "ray", "--debug", "--steps", "1", "--out", str(out)]) == 0
    capsys.readouterr()
    monkeypatch.setattr(default_plan, "engine", lambda name: replace(engine(name), sleeps=False))
    assert run_command(["run", str(file), "--backend", "ray", "--debug", "--out", str(folder / "other")]) == 1
    said = capsys.readouterr().err
    assert "E0914" in said and "`actor` and `ref` in the host's memory" in said
    assert "the engine `transformers` does not say that it `sleeps`" in said
    assert run_command(["run", str(file), "--steps", "1", "--out", str(folder / "third")]) == 0


def test_weights_that_are_not_what_was_sent(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One number of one tensor changes on its way, in the second transfer only: a tenth of a second.

    Who asks for every transfer is told at once, who asks for every tenth is not.
    """
    swaps, changes = PROGRAMS["grpo"]
    text = shipped("grpo", swaps)
    made = compiled(text, changes, apart(compile_text(text, changes)), folder)
    store = exchange._store
    transfers: list[str] = []

    def damaged(view: torch.Tensor, arriving: torch.Tensor, ema: float | None) -> None:
        store(view, arriving, ema)
        if len(transfers) == 2 and view.dim() == 1:
            view[0] += 1e-3

    send = TransferEndpoint.run

    def counted(end: TransferEndpoint, source: Weights, destination: Weights, **options: object) -> object:
        if destination:
            transfers.append("")
        return send(end, source, destination, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(exchange, "_store", damaged)
    monkeypatch.setattr(TransferEndpoint, "run", counted)
    for verify_every, found in ((1, True), (10, False)):
        transfers.clear()
        backend = RayBackend(made.program, made.plan, Settings(folder=folder), debug=True, verify_every=verify_every)
        try:
            if found:
                with pytest.raises(RunError) as caught:
                    list(backend.run_steps(STEPS))
                [told] = caught.value.diagnostics
                assert told.code == "E0743" and told.span != NO_SPAN
                assert told.message.startswith("the weights of `actor` that rank 0 of ")
                assert " are not those that rank 0 of " in told.message and told.message.endswith(" differs")
            else:
                list(backend.run_steps(STEPS))
                assert len(transfers) == 2
        finally:
            backend.close()
