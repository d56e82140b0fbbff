"""Pools over several groups of a cluster, each copy of a model in one of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import rlgraph
from rlgraph.api.compiled import Compiled
from rlgraph.catalog.clusters.cluster import Cluster
from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.errors import ProgramError
from rlgraph.explain.chosen_plan import chosen_plan_lines
from rlgraph.explain.simulate import simulate
from rlgraph.ir.mesh import make_mesh
from rlgraph.ir.plan import Plan
from rlgraph.passes.compilation.choose_plan import peak_memory_by_pool, plan_prediction
from rlgraph.passes.compilation.target import parse_workload
from rlgraph.passes.cost.constants import default_constants
from rlgraph.passes.cost.deployment import Deployment
from rlgraph.passes.cost.peak_memory import usable_device_bytes
from rlgraph.passes.cost.predict import NodeGroupsTaskCostModel, TaskCostModel, task_cost_model
from rlgraph.passes.placement.search.colocation import PartitionBlock
from rlgraph.passes.placement.search.partitions import can_pack_pools, pool_locations
from tests.suites import few

pytestmark = pytest.mark.usefixtures("slow_rows")

GRPO = Path(rlgraph.__file__).parent / "algorithms" / "grpo.rlf"
LENGTHS = parse_workload("300", "mean=120, p99=400")
UNLIKE = "1x8:h100-80gb + 1x8:a100-80gb"
ALL = """schedule grpo
pool all = {devices} devices
place actor.train on all(engine=megatron, tp={tp})
place actor.generate, ref on all
"""


def compiled(cluster: str, schedule: str, stream: bool = True) -> Compiled:
    base = '"Qwen/Qwen2.5-1.5B"'
    return rlgraph.compile(GRPO, {"base": base}, schedule=schedule, cluster=cluster, workload=LENGTHS, stream=stream)


def islands_of(plan: Plan, cluster: Cluster, group: str) -> list[set[int]]:
    """Of each copy the numbers of those that it lies on."""
    own, first = plan.group(group), next(pool.first for pool in plan.pools if pool.name == plan.group(group).pool)
    size = own.mesh.replica_size
    return [
        {cluster.node_group_number(first + device) for device in own.devices[at : at + size]}
        for at in range(0, len(own.devices), size)
    ]


@pytest.mark.parametrize(
    ("cluster", "devices", "tp", "first", "kinds"),
    few(
        [
            ("1x2:h100-80gb + 1x2:a100-80gb", 4, 1, 0, [2, 2]),
            (UNLIKE, 16, 2, 0, [8, 8]),
            ("1x8:h100-80gb + 2x4:a100-80gb", 12, 4, 0, [8, 4]),
            ("2x8:h100-80gb + 1x4:a100-80gb", 20, 4, 0, [16, 4]),
            ("1x6:h100-80gb + 1x8:a100-80gb", 14, 2, 0, [6, 8]),
            ("1x4:h100-80gb + 1x4:a100-80gb + 1x4:a800-80gb", 12, 2, 0, [4, 4, 4]),
        ],
        "1x2:h100-80gb + 1x2:a100-80gb",
    ),
)
def test_a_pool_that_is_larger_than_a_group_lies_over_several(
    cluster: str, devices: int, tp: int, first: int, kinds: list[int]
) -> None:
    found = compiled(cluster, ALL.format(devices=devices, tp=tp))
    plan, where = found.plan, read_cluster(cluster)
    pool = next(pool for pool in plan.pools if pool.name == "all")
    on = [where.node_group_number(pool.first + device) for device in range(devices)]
    assert (pool.first, pool.devices) == (first, devices) and [on.count(each) for each in sorted({*on})] == kinds
    for group in plan.groups:
        if group.models:
            copies = islands_of(plan, where, group.name)
            assert all(len(each) == 1 for each in copies)
            assert len(set(group.devices)) == group.mesh.rank_count
    seen = simulate(found, where, workload=LENGTHS)
    assert seen.seconds == pytest.approx(plan_prediction(found.choice)["seconds"], rel=0.05)
    assert all(peak.fits for peak in peak_memory_by_pool(found.choice).values())
    counts = [f"{count} {island.device.name}" for count, island in zip(kinds, where.islands, strict=True)]
    assert any(
        f"in `all` ({' and '.join(counts)})" in line
        for line in chosen_plan_lines(found.choice, plan_prediction(found.choice))
    )


def test_the_plan_file_of_such_a_pool_is_read_again_and_no_copy_may_lie_on_two_groups(tmp_path: Path) -> None:
    found = compiled(UNLIKE, ALL.format(devices=16, tp="2, dp=8"), stream=False)
    path = tmp_path / "plan.json"
    path.write_text(found.plan_json(tmp_path))
    again = rlgraph.load_plan(path)
    assert again.plan.groups == found.plan.groups
    document = json.loads(path.read_text())
    trained = next(each for each in document["plan"]["groups"] if each["engine"] == "megatron")
    assert trained["mesh"]["tp"] == 2 and trained["devices"] == "0-15"
    trained["devices"] = "0-6,8,7,9-15"
    path.write_text(json.dumps(document))
    with pytest.raises(ProgramError) as caught:
        rlgraph.load_plan(path)
    assert [each.code for each in caught.value.diagnostics] == ["E0956"]
    assert "lies on two groups of the cluster, of h100-80gb and a100-80gb" in caught.value.diagnostics[0].message


def test_the_slowest_copy_decides_and_gradients_go_over_the_link_between_groups() -> None:
    found = compiled(UNLIKE, ALL.format(devices=16, tp=1), stream=False)
    component = next(each for each in found.choice.problem.components if each.work == "train")
    batches = next(own for op, own in component.operation_batches(found.choice.problem.tasks) if op == "train")

    def model(island: int | None, cluster: Cluster) -> TaskCostModel:
        where = cluster.join_node_groups((0, 1)) if island is None else cluster.islands[island]
        deployment = Deployment("megatron", where, make_mesh(), 2048)
        return task_cost_model("train", component.config, deployment, default_constants("gpu"), batches)

    near = read_cluster(UNLIKE)
    both, *alone = (model(island, near) for island in (None, 0, 1))
    assert isinstance(both, NodeGroupsTaskCostModel) and both.update
    passes = [each.passes.seconds(each.rows_of_fullest_replica(16)) for each in alone if each.passes]
    assert both.work_cost(16).seconds > max(passes) > 1.5 * min(passes)
    assert both.seconds(16) >= max(each.seconds(16) for each in alone) - 1e-9
    slow = model(None, read_cluster(UNLIKE + " ~ 1Gb/s"))
    assert slow.update
    sent = slow.update.sent
    # Of eight copies in a row one ring has the links of all.
    assert slow.update.communication_seconds(16) > 15 / 16 * sent / (8 * 0.125e9)
    assert slow.update.communication_seconds(16) > 10 * both.update.communication_seconds(16)
    # Eight copies have room in one group, and do not use the link.
    problem, cluster = found.choice.problem, found.choice.question.cluster
    own = problem.options.undominated_options(component, cluster.join_node_groups((0, 1)), 16)
    assert all(bool(option.island.parts) == (option.copies * option.strategy.size > 8) for option in own)


def test_memory_is_that_of_each_device() -> None:
    """A cache of the smaller device; and what lies on the larger one alone may be larger."""
    cluster = "1x2:h100-80gb + 1x2:h200-141gb"
    found = compiled(cluster, ALL.format(devices=4, tp=1), stream=False)
    [peak] = peak_memory_by_pool(found.choice).values()
    where = read_cluster(cluster)
    assert peak.device == "h100-80gb" and peak.capacity == usable_device_bytes(
        where.islands[0], found.choice.question.constants
    )
    plan = found.plan
    only = tuple(
        replace(group, devices=(2, 3), mesh=make_mesh(dp=2)) if group.models else group for group in plan.groups
    )
    choice = replace(found.choice, plan=replace(plan, groups=only))
    [peak] = peak_memory_by_pool(choice).values()
    assert peak.device == "h200-141gb" and peak.capacity == usable_device_bytes(
        where.islands[1], found.choice.question.constants
    )


def test_pools_beside_one_that_lies_over_two_groups_begin_behind_it() -> None:
    islands = read_cluster("1x8:h100-80gb + 2x8:a100-80gb").islands
    blocks = (PartitionBlock((0,), 1, "", 0, (0,)), PartitionBlock((1,), 1), PartitionBlock((2,), 1))
    assert pool_locations(islands, blocks, (10, 8, 4)) == [[(0, 0, 8), (1, 0, 2)], [(1, 8, 8)], [(1, 2, 4)]]
    before = (PartitionBlock((0,), 0, "", 0, (1,)), PartitionBlock((1,), 0))
    assert pool_locations(islands, before, (18, 4)) == [[(0, 6, 2), (1, 0, 16)], [(0, 0, 4)]]
    uneven = read_cluster("1x2:h100-80gb + 2x3:a100-80gb").islands
    assert can_pack_pools(uneven, blocks[:2], (4, 3)) and can_pack_pools(uneven, blocks, (4, 2, 1))
    assert not can_pack_pools(uneven, blocks, (4, 2, 2))


def test_a_search_takes_a_pool_over_two_groups_where_that_is_faster() -> None:
    """It samples on both, and reads and trains where devices are faster."""
    found = rlgraph.compile(GRPO, cluster=UNLIKE, stream=False)
    one = rlgraph.compile(GRPO, cluster="1x8:h100-80gb", stream=False)
    assert found.choice.search_result.value < 0.99 * one.choice.search_result.value
    where = read_cluster(UNLIKE)
    [pool] = [pool for pool in found.plan.pools if pool.devices]
    assert pool.devices == 16
    used = {
        role.operation: set().union(*islands_of(found.plan, where, role.group))
        for role in found.plan.roles
        if role.model == "actor"
    }
    assert used["generate"] == {0, 1} and used["train"] == {0}
