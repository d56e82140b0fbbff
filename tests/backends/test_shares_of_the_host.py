"""Mathematics between models on several processes of the host: the numbers are those of one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from scheduled import apart, compiled
from test_exactness import PROGRAMS
from test_sim import Fixed, program, simulated
from tiny import compile_text, data_folder, shipped

import rlgraph
from rlgraph.backends.local.backend import LocalBackend
from rlgraph.backends.ray.backend import RayBackend
from rlgraph.backends.worker.session import Settings
from rlgraph.ir.mesh import make_mesh
from rlgraph.ir.plan import HOST
from rlgraph.ops.nodes import works_on_shares
from rlgraph.passes.cost.cost import Cost
from tests.suites import few

STEPS, PROCESSES = 2, 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_folder(tmp_path_factory.mktemp("host"))


@pytest.mark.parametrize("block", [None, 2])
@pytest.mark.parametrize("name", few(sorted(PROGRAMS), "grpo", "ppo", "dapo"))
def test_several_processes_of_the_host_make_the_numbers_of_one(name: str, block: int | None, folder: Path) -> None:
    swaps, changes = PROGRAMS[name]
    text = shipped(name, swaps)
    program = compile_text(text, changes)
    local = LocalBackend(program, Settings(folder=folder, block=block))
    steps = [dict(step.metrics) for step in local.run_steps(STEPS)]
    made = compiled(text, changes, f"pool host = {PROCESSES} cpus\n" + apart(program), folder)
    several = RayBackend(made.program, made.plan, Settings(folder=folder, block=block), debug=True)
    done = dict[int, set[str]]()
    for rank in range(PROCESSES):
        store = several.processes.workers[HOST, rank].store  # type: ignore[attr-defined]

        def put(number: int, key: object, piece: object, rank: int = rank, put: object = store.put) -> None:
            done.setdefault(rank, set()).add(key[2])  # type: ignore[index]
            put(number, key, piece)  # type: ignore[operator]

        store.put = put
    try:
        assert [dict(step.metrics) for step in several.run_steps(STEPS)] == steps
        shared = {value.name for _, node in made.program.walk() if works_on_shares(node) for value in node.outputs}
        # The last process has mathematics to do, by row or by group, and nothing else.
        assert done.get(PROCESSES - 1, set()) <= shared
        assert done.get(PROCESSES - 1) or block or name not in ("grpo", "ppo", "dapo")
        sessions = {group: worker.session for (group, _), worker in several.processes.workers.items()}  # type: ignore[attr-defined]
        for model, group in made.plan.owners:
            for tensor, value in local.session.models[model].engine.state().items():
                assert torch.equal(value, sessions[group].models[model].engine.state()[tensor])
        assert not several.processes.workers[HOST, 1].session.readers  # type: ignore[attr-defined]
    finally:
        several.close()
        local.close()


def test_the_plan_has_a_process_for_each_cpu_of_the_host(folder: Path) -> None:
    swaps, changes = PROGRAMS["grpo"]
    text = shipped("grpo", swaps)
    one = "pool all = 1 devices\nplace actor, ref on all(engine=transformers)\n"
    plans = [compiled(text, changes, f"pool host = {count} cpus\n{one}", folder).plan for count in (1, 4)]
    assert plans[0] == compiled(text, changes, one, folder).plan
    assert plans[1].group(HOST).mesh == make_mesh(dp=4) and plans[1].group(HOST).devices == (0, 1, 2, 3)
    assert plans[1].pools[0].cpus == 4


def test_the_simulator_divides_the_rows_of_mathematics(folder: Path) -> None:
    """A row takes a second: one node of PPO works by row, and what is over the batch takes as long as before."""

    class ByRow(Fixed):
        def host_work_cost(self, op: str, count: float) -> Cost:
            return Cost(overhead=count if op == "tensor" else 0.0)

    found = {}
    for count in (1, 3):
        made = program("ppo", folder, apart, f"pool host = {count} cpus\n")
        works = simulated(made, 1, fixed=ByRow())[0].works
        found[count] = {work.name: work.parts["overhead"] for work in works if work.op == "tensor"}
        assert all(work.pools == (HOST,) for work in works if work.op == "tensor")
    assert found[1]["adv"] == 9 and found[3]["adv"] == 3
    assert found[3]["adv_w"] == found[1]["adv_w"]


def test_the_search_divides_them_too() -> None:
    text = (
        'algorithm small\nmodel actor = causal_lm("Qwen/Qwen2.5-7B-Instruct")\n'
        'model ref = frozen(actor)\ndata rows = jsonl("rows.jsonl", batch=64)\nstep:\n'
        "    rollout = actor.generate(rows, max_tokens=64)\n"
        "    far = mean(k1(rollout.logprobs, ref.logprobs(rollout)), by=rollout)\n"
        "    train actor(lr=1e-6):\n        minimize mean(-actor.logprobs(rollout) * far)\n"
        "    report far = mean(far)\n"
    )
    works = []
    for line in ("", "pool host = 4 cpus\n"):
        made = rlgraph.compile(text, schedule=f"schedule small\n{line}", cluster="1x8:h100-80gb", stream=False)
        problem = made.choice.problem
        works.append({t.name: s for t, s in zip(problem.tasks, problem.host_task_seconds, strict=True) if t.shared})
        assert made.plan.group(HOST).mesh.rank_count == (4 if line else 1)
    assert works[0].keys() == works[1].keys() and works[0]
    assert all(works[1][name] < seconds for name, seconds in works[0].items())
