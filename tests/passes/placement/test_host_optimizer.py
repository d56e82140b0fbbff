"""Plans whose optimizer keeps its state in the host's memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

import rlgraph
from rlgraph.api.compiled import Compiled
from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.catalog.models.config_shape import shape_of
from rlgraph.catalog.models.configs import known_config
from rlgraph.errors import ProgramError
from rlgraph.ir.mesh import make_mesh
from rlgraph.passes.cost.constants import default_constants
from rlgraph.passes.cost.deployment import Deployment, ModelConfig
from rlgraph.passes.cost.optimizer_step import optimizer_step_cost_model
from rlgraph.passes.cost.predict import memory_model

BIG = "Qwen/Qwen3-235B-A22B"


def compiled(cluster: str, offload: bool = True, schedule: str | None = None, base: str = BIG) -> Compiled:
    program = (
        f'algorithm big\nmodel actor = causal_lm("{base}")\ndata rows = jsonl("rows.jsonl", batch=64)\nstep:\n'
        "    rollout = actor.generate(rows, max_tokens=64)\n    train actor(lr=1e-6):\n"
        "        minimize mean(-actor.logprobs(rollout))\n"
    )
    return rlgraph.compile(program, schedule=schedule, cluster=cluster, offload=offload, stream=False)


def test_the_search_takes_it_where_nothing_else_fits() -> None:
    made = compiled("4x8:h20-96gb")
    group = made.plan.group_of_role("actor", "train").name
    assert made.plan.holding("actor", group).optimizer == "host"
    with pytest.raises(ProgramError) as caught:
        compiled("4x8:h20-96gb", offload=False)
    assert "it fits here with optimizers in the host's memory" in str(caught.value.diagnostics[0].hint)
    small = compiled("1x8:h100-80gb", base="Qwen/Qwen2.5-7B-Instruct")
    assert not any(holding.optimizer for holding in small.plan.holdings)


def test_a_schedule_that_says_so_has_it_without_need() -> None:
    schedule = (
        "schedule big\npool one = 8 devices\nplace actor.train on one(engine=transformers, fsdp=8, optimizer=host)\n"
    )
    made = compiled("1x8:h100-80gb", False, schedule, "Qwen/Qwen2.5-7B-Instruct")
    group = made.plan.group_of_role("actor", "train").name
    assert made.plan.holding("actor", group).optimizer == "host"


def test_bytes_go_from_the_device_to_the_host_and_seconds_to_its_link() -> None:
    cluster = read_cluster("1x8:h100-80gb")
    config = ModelConfig("actor", shape_of(known_config("Qwen/Qwen2.5-7B-Instruct") or {}), "causal_lm", "bfloat16")
    there = Deployment("transformers", cluster.islands[0], make_mesh(fsdp=8))
    host = replace(there, optimizer="host")
    before, after = (memory_model("train", config, on, ()) for on in (there, host))
    weights = before.trained  # type: ignore[attr-defined]
    held, moved = (dict(model.replica_footprint(1).resident.parts) for model in (before, after))
    assert held["optimizer"] == 12 * weights == after.optimizer_host_bytes(1)
    assert "optimizer" not in moved and before.optimizer_host_bytes(1) == 0
    constants = default_constants("gpu")
    seconds = [optimizer_step_cost_model(config, on, constants).memory_seconds(1) for on in (there, host)]
    link, update = weights * 4 / (64e9 * constants.host_link), weights * 28 * 8 / constants.host_update
    assert link + update < seconds[1] < link + update + seconds[0]
