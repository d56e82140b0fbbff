"""The search for a plan beside brute force: all partitions, all sizes of pools, all options, on random small
problems."""

from __future__ import annotations

import io
import random
import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields, replace
from functools import cache
from itertools import chain, product, repeat
from itertools import count as count_up
from math import inf, prod
from operator import mul
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from rlgraph.backends.enginespec.layout_checks import layout_problems
from rlgraph.catalog.clusters.cluster import Cluster, Device, NodeGroup
from rlgraph.catalog.models.shape import Shape
from rlgraph.errors import ProgramError
from rlgraph.ir.mesh import make_mesh
from rlgraph.ir.schedule import PlacementLine
from rlgraph.passes.cost.batch import Batch
from rlgraph.passes.cost.constants import default_constants
from rlgraph.passes.cost.deployment import ModelConfig
from rlgraph.passes.cost.fused_pipelines import estimated_seconds
from rlgraph.passes.cost.lengths import Lengths
from rlgraph.passes.cost.peak_memory import TIGHT, usable_device_bytes
from rlgraph.passes.cost.task import ReadValue, Task
from rlgraph.passes.cost.timetable import TaskOrder
from rlgraph.passes.placement.search import depth_first, kv_cache_sizes, progress
from rlgraph.passes.placement.search.allocation_boxes import AllocationBoxes, Box
from rlgraph.passes.placement.search.bounds import Bounds
from rlgraph.passes.placement.search.colocation import Blocks, PartitionBlock
from rlgraph.passes.placement.search.components import Component
from rlgraph.passes.placement.search.depth_first import FEW_TRIES, LONG, MOST_TRIES, AllocationSearch, TryBudget
from rlgraph.passes.placement.search.dominance import undominated_in_pipeline
from rlgraph.passes.placement.search.fused_pipelines import Taken, exact_pipeline_seconds
from rlgraph.passes.placement.search.host_memory import hosts_have_room
from rlgraph.passes.placement.search.incumbent import Incumbent, SearchResult
from rlgraph.passes.placement.search.job_stage_bounds import JobStageBounds
from rlgraph.passes.placement.search.offload import partitions_worth_offloading
from rlgraph.passes.placement.search.option import Option
from rlgraph.passes.placement.search.options import Options
from rlgraph.passes.placement.search.partitions import (
    allowed_pool_sizes,
    can_pack_pools,
    component_partitions,
    devices_used_per_node_group,
)
from rlgraph.passes.placement.search.problem import PlacementProblem, device_peak_bytes
from rlgraph.passes.placement.search.search import Search
from rlgraph.passes.placement.search.search_settings import SearchSettings
from rlgraph.passes.placement.search.strategy import Strategy
from tests.suites import few

GPU = default_constants("gpu")
CONSTANTS = replace(
    GPU,
    rates={work: replace(rates, gradient=0.0, stepped=0.0) for work, rates in GPU.rates.items()},
    reserved=0,
    process={"megatron": 10 << 20, "vllm": 20 << 20, "transformers": 5 << 20},
    communicator=5 << 20,
)
"""With processes as small as the models. Training is without its bytes of weights: else stages have no parts, and nothing
is read apart, in nearly all problems as small as these."""
MOST = 6000
"""Choices of options that brute force looks at for one problem."""

Nodes = tuple[tuple[int, int], ...]
"""How many there are in an island, and devices in each."""

EVEN: Nodes = ((1, 2), (1, 2), (1, 4), (2, 1), (2, 2), (1, 8), (2, 4), (3, 1), (1, 1))
SOME = range(20, 40)
"""Random problems that the fast suite has, too."""
PARTED = (87, 116, 117, 131, 150, 152, 168)
"""Problems in whose best plans stages have several parts of a model."""
UNLIKE = (137, 149, 246, 285, 314)
"""Problems in whose best plans stages have unlike numbers of layers."""
STAGED: Nodes = ((1, 2), (2, 1), (1, 2), (1, 3))
"""Of problems in which trainings share a pipeline."""
UNEVEN: Nodes = ((1, 3), (1, 5), (1, 6), (1, 7), (2, 3), (2, 3), (1, 1))

WORK = {
    "learner": ("generate", "train"),
    "rival": ("generate", "train"),
    "critic": ("train",),
    "judge": ("read",),
    "guide": ("generate",),
}
"""The components of each kind of model."""
PUPIL = {"pupil": ("train",)}
"""Another one, of problems in which trainings share a pipeline."""
EVERY = WORK | PUPIL

ENGINES = (("megatron", "vllm"), ("megatron", "vllm"), ("vllm",), ())

TASKS = {
    "train": (("train",), ("logprobs", "train")),
    "read": (("score",), ("score", "score")),
    "generate": (("generate",),),
}
"""What a component does in a step."""


@dataclass(frozen=True)
class Case:
    """A problem, the pools that it declares, and the engines that may be chosen."""

    problem: PlacementProblem
    fixed: tuple[tuple[str, int], ...]
    over: bool = False
    """Pools may lie over several islands."""

    @property
    def candidates(self) -> list[Blocks]:
        return list(component_partitions(self.problem.components, self.problem.cluster, self.fixed, over=self.over))


@pytest.fixture(autouse=True, scope="module")
def coarse() -> Iterator[None]:
    """Few sizes of caches, so that brute force looks at all of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kv_cache_sizes, "STEP", 4.0)
        yield


# Random problems


@cache
def random_case(
    seed: int,
    nodes: Nodes = EVEN,
    between: float = 1e9,
    longer: int = 1,
    older: int = 0,
    fuses: bool = False,
    small: bool = False,
    over: bool = False,
    deep: int = 0,
) -> Case:
    """A random problem that brute force can solve. deep: models have so many times as many layers, and devices are slow. over: pools may lie over several islands. longer: so many times as long are its rows. older: steps that are
    under way beside one. fuses: some trainings may share a pipeline. small: hosts have little memory."""
    dice = random.Random(seed)
    while True:
        case = attempted(dice, nodes, between, longer, older, fuses, over, deep)
        if case is not None and small:
            case = with_small_hosts(dice, case)
        if case is not None and 0 < count(case) <= MOST:
            return case


def with_small_hosts(dice: random.Random, case: Case) -> Case | None:
    """The same where what sleeps in the best plan has mostly no room; None where nothing does."""
    problem = case.problem
    best = Search(problem, case.candidates, 0.0).run()
    if best is None or not any(option.host for option in best.options):
        return None
    room = sum(option.host for option in best.options) * dice.uniform(0.3, 1.1) / CONSTANTS.asleep
    islands = tuple(
        replace(each, device=replace(each.device, host_memory=room / each.per_node)) for each in problem.cluster.islands
    )
    options = Options(problem.tasks, CONSTANTS, replace(problem.options.settings, fuses=()))
    small = PlacementProblem(problem.components, replace(problem.cluster, islands=islands), options, problem.goal)
    return Case(small, case.fixed, case.over)


def attempted(
    dice: random.Random,
    nodes: Nodes,
    between: float,
    longer: int,
    older: int,
    fuses: bool = False,
    over: bool = False,
    deep: int = 0,
) -> Case | None:
    names = dice.sample(sorted(WORK), dice.randint(1, 3))
    if fuses:
        names = ["critic", "pupil", *(["judge"] if dice.random() < 0.3 else [])]
    if not 2 <= sum(len(EVERY[name]) for name in names) <= 4:
        return None
    step = tasks(dice, names, longer)
    fixed: tuple[tuple[str, int], ...] = ()
    islands = tuple(
        island(dice, nodes, slow=fuses, weak=bool(deep)) for _ in range(dice.choice((2, 2, 3) if over else (1, 1, 2)))
    )
    cluster = Cluster(islands, between, 1e4 / between, "random")
    if cluster.device_count > 8:
        return None
    if dice.random() < (0.8 if deep else 0.3):
        most = cluster.device_count if over else min(each.device_count for each in islands)
        fixed = (
            ("pinned", dice.choice([size for size in ((1, 2, 3, 4, 6, 8) if over else (1, 2, 4)) if size <= most])),
        )
    found = [
        component(dice, name, work, step, fixed, deep=deep or (2 if fuses else 1))
        for name in names
        for work in EVERY[name]
    ]
    pairs = [frozenset(names[:2])] if fuses else []
    if fixed and not any(each.pin for each in found) or pairs and not beside(*names[:2], step):
        return None
    engines = ("megatron", "vllm") if fuses else dice.choice(ENGINES)
    goal = dice.choice(("time", "time", "cost"))
    need = memory(dice, PlacementProblem(found, cluster, Options(step, CONSTANTS, SearchSettings(engines)), goal))
    rooms = [int(need * (dice.choice((1.0, 1.0, 1.5)) if over else 1.0)) for _ in islands]
    islands = tuple(
        replace(each, device=replace(each.device, memory=room)) for each, room in zip(islands, rooms, strict=True)
    )
    cluster = replace(cluster, islands=islands)
    settings = SearchSettings(engines, apart=len(islands) > 1, fuses=names[:2] if fuses else ())
    options = Options(step, CONSTANTS, settings)
    return Case(PlacementProblem(found, cluster, options, goal, older=older, pairs=pairs), fixed, over)


def beside(one: str, other: str, step: Sequence[Task]) -> bool:
    """Whether two trainings can begin together, and are done as often."""
    first, second = (
        [at for at, task in enumerate(step) if (task.model, task.op) == (each, "train")] for each in (one, other)
    )
    order = TaskOrder.from_dependencies([task.waits_for for task in step])
    a, b = first[0], second[0]
    return a not in order.above[b] and b not in order.above[a] and step[a].repetitions == step[b].repetitions


def island(dice: random.Random, shapes: Nodes, slow: bool = False, weak: bool = False) -> NodeGroup:
    """slow: stages are faster than copies, which exchange gradients. weak: work takes longer than orders."""
    nodes, per_node = dice.choice(shapes)
    device = Device(
        name="toy",
        memory=1 << 60,
        flops=(("float32", dice.choice((1e9, 1e10) if weak else (1e12, 4e12))),),
        bandwidth=dice.choice((1e11, 4e11)),
        link=dice.choice((1e7, 1e8) if slow else (1e8, 1e9, 1e11)),
        network=1e9,
        host=dice.choice((1e7, 1e9, 1e11)),
        price=dice.choice((1.0, 3.0)),
    )
    return NodeGroup(nodes, per_node, device, dice.choice((1e8, 1e9)), 1e-6, 1e-5)


def tasks(dice: random.Random, names: Sequence[str], longer: int) -> list[Task]:
    """Of the models and the host, in a random order, each after some that stand before it."""
    wanted: list[tuple[str, str | None]] = [
        (op, name) for name in names for work in EVERY[name] for op in dice.choice(TASKS[work])
    ]
    wanted += [("call", None)] * dice.randint(0, 2)
    dice.shuffle(wanted)
    found: list[Task] = []
    for op, model in wanted:
        before = range(len(found))
        after = tuple(sorted(dice.sample(before, min(len(found), dice.choice((0, 1, 1, 2))))))
        rows = float(dice.choice((1, 4, 16, 64)))
        prompt, least, most = dice.choice((16, 128)), 32, dice.choice((32, 256))
        lengths = Lengths((float(longer * prompt),)), Lengths((float(longer * least), float(longer * most)))
        batch = Batch(rows, *lengths)
        batches = (batch,) if model else ()
        times = dice.choice((1.0, 1.0, 2.0)) if op == "train" else 1.0
        makers = {(each.model or "", each.op == "generate"): each.op for each in map(found.__getitem__, after)}
        reads = tuple(
            ReadValue(f"{name} {len(found)}", (name, makers[name, own]) if name else None, batch.tokens().tokens, times)
            for name, own in sorted(makers)
            if name != model
        )
        found.append(Task(f"{op} {model}", op, model, batches, dice.choice((1.0, 500.0)), times, after, reads=reads))
    return found


def drawn(task: Task) -> tuple[object, ...]:
    """What a task is drawn as, without names of classes and fields, nor what values say beside these four, and batches
    beside these seven: cases outlive that."""
    few = {
        "reads": tuple(astuple(value)[:4] for value in task.reads),
        "batches": tuple(astuple(batch)[:7] for batch in task.batches),
    }
    members = zip(fields(task), astuple(task), strict=True)
    return tuple(few.get(member.name, value) for member, value in members)


def component(
    dice: random.Random,
    name: str,
    work: str,
    step: Sequence[Task],
    fixed: Sequence[tuple[str, int]],
    deep: int = 1,
) -> Component:
    # All components of a model have one shape.
    own = random.Random(f"{name} {[*map(drawn, step)]}")
    heads, layers, hidden = own.choice((1, 1, 2)), own.choice((1, 1, 2)), own.choice((256, 1024))
    layers *= deep
    shape = Shape("llama", 512, hidden, 2 * hidden, layers, heads, heads, hidden // heads)
    kind = "value_lm" if name == "critic" else "reward_lm" if name == "judge" else "causal_lm"
    numbers = tuple(
        at for at, task in enumerate(step) if task.model == name and (task.op == "generate") == (work == "generate")
    )
    said: tuple[tuple[str, int], ...] = (("pp", 2),) if deep > 2 and work == "train" else (("tp", 1),)
    pin = PlacementLine((), "pinned", None, dice.choice(((), said))) if fixed and dice.random() < 0.6 else None
    operations = tuple(dict.fromkeys(step[at].op for at in numbers))
    return Component(
        ModelConfig(name, shape, kind),
        work,
        operations,
        numbers,
        "train" in EVERY[name],
        pin,
        "generate" in EVERY[name],
    )


def memory(dice: random.Random, problem: PlacementProblem) -> float:
    """Bytes of a device, so that some plans fit and others do not."""
    least = [
        min(
            (option.peak for option in everything(problem, number, (0,), problem.cluster.islands[0].device_count)),
            default=0.0,
        )
        for number in range(len(problem.components))
    ]
    return 1.06 * dice.choice((max(least), max(least), sum(least))) * dice.uniform(1.0, 1.5)


# Brute force


@cache
def everything(problem: PlacementProblem, number: int, islands: tuple[int, ...], devices: int) -> list[Option]:
    """All options of a component on so many devices of an island, with every number of copies. Of several islands all
    but the last one are whole: there are those that lie on these alone, too."""
    inner = problem.cluster.join_node_groups(islands).inner
    fewer = everything(problem, number, islands[:-1], inner.device_count) if inner else []
    return fewer + [
        option
        for strategy, copies in tried(
            problem, problem.components[number], strategies(problem, number, islands), devices
        )
        for made in problem.options.options_of_replica_count(problem.components[number], strategy, copies)
        for option in sized(made)
    ]


def tried(
    problem: PlacementProblem, component: Component, plain: Sequence[Strategy], devices: int
) -> Iterator[tuple[Strategy, int]]:
    """Strategies with every number of copies. A model that is trained in stages may have several parts of the layers on
    each, as many as are fastest, with copies that are faster than fewer, and by 1% than one part."""
    for one in plain:
        fastest = inf
        several = in_parts(problem, component, one)
        for copies in range(one.beyond + 1, one.most_replicas(devices) + 1):
            yield one, copies
            totals = [total(problem, component, each, copies) for each in several]
            if totals and min(totals) < fastest * (1 - 1e-12):
                fastest = min(totals)
                best = next(each for each, own in zip(several, totals, strict=True) if own <= fastest * (1 + 1e-12))
                if total(problem, component, best, copies) < 0.99 * total(problem, component, one, copies):
                    yield best, copies


def in_parts(problem: PlacementProblem, component: Component, one: Strategy) -> list[Strategy]:
    """The same split in any number of parts, two or more."""
    found, split = [], one.deployment.mesh
    if component.work == "train" and split.axis_size("pp") > 1:
        for chunks in range(2, component.config.shape.layers + 1):
            divided = make_mesh(**(dict(split.axes) | {"chunks": chunks}))
            if not layout_problems(component.config.shape, one.deployment.engine, divided, component.config.kind):
                found.append(problem.options.make_strategy(component, replace(one.deployment, mesh=divided)))
                found[-1].fuses = False
    return found


def total(problem: PlacementProblem, component: Component, strategy: Strategy, copies: int) -> float:
    """Seconds of a step."""
    often = [problem.tasks[number].repetitions for number in component.tasks]
    return sum(map(mul, strategy.task_seconds(copies), often))


def sized(option: Option) -> list[Option]:
    """With each of its caches."""
    return [option.with_cache_range(cache, cache) for cache in range(option.strategy.cache, option.high.cache + 1)]


@cache
def strategies(problem: PlacementProblem, number: int, islands: tuple[int, ...]) -> list[Strategy]:
    """Of a component on an island, also those that do not fit there."""
    component, options = problem.components[number], problem.options
    splits = options.legal_deployments(component, problem.cluster.join_node_groups(islands))
    return [
        options.strategy_with_caches(component, full)
        for split in splits
        for full in options.deployments_with_settings(component, split)
    ]


def allocations(case: Case, blocks: Blocks) -> Iterator[tuple[int, ...]]:
    """Every number of devices of each pool of a partition."""
    islands = case.problem.cluster.islands
    own = [case.problem.pool_node_group(block) for block in blocks]
    choices = [
        (block.devices,) if block.devices else allowed_pool_sizes(each) for block, each in zip(blocks, own, strict=True)
    ]
    for found in product(*choices):
        taken = zip(devices_used_per_node_group(islands, blocks, found), islands, strict=True)
        if all(count <= whole.device_count for count, whole in taken) and can_pack_pools(islands, blocks, found):
            yield found


def plans(case: Case) -> Iterator[tuple[Blocks, tuple[int, ...], list[list[Option]]]]:
    """Every partition and allocation, and all options of each component there."""
    for blocks in case.candidates:
        for devices in allocations(case, blocks):
            options: list[list[Option]] = [[] for _ in case.problem.components]
            for block, size in zip(blocks, devices, strict=True):
                for number in block.components:
                    options[number] = everything(case.problem, number, block.islands, size)
            yield blocks, devices, options


def count(case: Case) -> int:
    return sum(prod(map(len, options)) for _, _, options in plans(case))


def valued(
    case: Case, blocks: Blocks, devices: tuple[int, ...], chosen: Sequence[Option], taken: Taken | None = None
) -> float:
    """What a plan takes or costs; infinite if it does not fit. taken: what trainings take that share a pipeline, if
    they may."""
    problem = case.problem
    for block in blocks:
        if not problem.can_share_pool([chosen[number] for number in block.components], problem.pool_node_group(block)):
            return inf
    if not hosts_have_room(problem, blocks, devices, chosen):
        return inf
    colocation = problem.make_colocation(blocks)
    syncs = [
        problem.pair_sync_seconds(
            (a, b), chosen[a], chosen[b], colocation.pool_of_component[a] == colocation.pool_of_component[b]
        )
        for a, b in problem.sync_pairs
    ]
    copies = {number: option.copies for number, option in enumerate(chosen)}
    steps = []
    for pieces in problem.possible_pipeline_sharings(blocks, chosen) if taken else [()]:
        durations = problem.fusing.component_task_seconds(chosen, pieces, taken or exact_pipeline_seconds)
        steps.append(problem.step_seconds(durations, syncs, colocation, copies, pieces))
    return problem.objective_value(min(steps), blocks, devices)


def brute(case: Case) -> dict[Blocks, float]:
    """The least value of all plans of each partition."""
    best = dict.fromkeys(case.candidates, inf)
    for blocks, devices, options in plans(case):
        for chosen in product(*options):
            best[blocks] = min(best[blocks], valued(case, blocks, devices, chosen))
    return best


@pytest.mark.parametrize("seed", few(range(100), *SOME, 40, 57, 68))
def test_no_plan_is_better(seed: int) -> None:
    compare(random_case(seed))


@pytest.mark.parametrize("seed", few(range(40), *range(6), 15, *range(24, 32), 33))
def test_no_plan_is_better_on_uneven_nodes_and_slow_links(seed: int) -> None:
    """Nodes of three, five, six and seven devices, and of one; weights between islands take seconds."""
    compare(random_case(seed, UNEVEN, 1e5))


@pytest.mark.parametrize("seed", few(range(60), 3, 4, *range(17, 20), 22, 27, 41, 48, 55, 58))
def test_no_plan_is_better_where_pools_lie_over_islands(seed: int) -> None:
    """Two or three unlike islands, of even and uneven nodes; pools of one and of several among the choices."""
    compare(random_case(seed, EVEN + UNEVEN * (seed % 2), (1e9, 1e7)[seed % 3 == 0], over=True))


@pytest.mark.parametrize("seed", few(range(30), 3, 4, 5, 9, 14, 17, 18, 24, 25, 26))
def test_no_plan_is_better_for_long_rows(seed: int) -> None:
    compare(random_case(seed, longer=64))


@pytest.mark.parametrize("seed", few(range(60), 2, 5, 6, 8, 17, 18, 24, 26, 29, 31, 34, 42, 45, 53, 55))
def test_no_plan_is_better_where_hosts_have_little_memory(seed: int) -> None:
    compare(random_case(seed, small=True))


def test_pools_on_one_node_share_its_hosts_memory() -> None:
    """Each of two has room for what sleeps there; both have on two nodes, and not on one."""
    problem = random_case(0, small=True).problem
    own = [everything(problem, number, (0,), 1) for number in range(len(problem.components))]
    option = next(option for options in own for option in options if option.host)
    first, cluster = problem.cluster.islands[0], problem.cluster
    blocks = (PartitionBlock((0,), 0), PartitionBlock((1,), 0))

    def fits(nodes: int, per_node: int, devices: tuple[int, int]) -> bool:
        device = replace(first.device, host_memory=1.5 * option.host / CONSTANTS.asleep / per_node)
        islands = (replace(first, nodes=nodes, per_node=per_node, device=device),)
        found = PlacementProblem(
            problem.components, replace(cluster, islands=islands), *problem.constructor_arguments[2:]
        )
        assert all(found.can_share_pool([option], islands[0]) for _ in blocks)
        return hosts_have_room(found, blocks, devices, (option, option))

    assert not fits(1, 4, (2, 2)) and not fits(1, 4, (1, 2))
    assert fits(2, 2, (2, 2)) and fits(2, 4, (2, 2)) and fits(2, 4, (4, 4)) and fits(2, 4, (4, 2))


@pytest.mark.parametrize("seed", few([1, 10, *range(20, 30)], 10, 24, 26))
def test_fewer_copies_on_a_node_put_less_to_sleep_there(seed: int) -> None:
    """Of seeds 1 and 10 no plan fits with as many copies as there is room for, and as are faster."""
    compare(random_case(seed, nodes=((1, 8), (1, 4)), small=True))


@pytest.mark.parametrize("seed", few(range(60), 18, *range(20, 37)))
def test_no_plan_is_better_where_steps_overlap(seed: int) -> None:
    compare(random_case(seed, older=1 + seed % 2))


@pytest.mark.parametrize(
    "seed",
    few([*range(30), 39, 55, 75, 92, 97, 99, 104, 111], 2, 7, *range(10, 14), 15, 21, 23, 24, 25, 39, 92, 97, 99),
)
def test_no_plan_is_better_where_trainings_share_a_pipeline(seed: int) -> None:
    """None of those whose options no other ones beat, by lists that are made at once; and none at all, by the lists
    that ranks make, is better than what is proven."""
    case = fused_case(seed)
    least = min(
        valued(case, *plan, chosen, exact_pipeline_seconds) for *plan, own in plans(case) for chosen in product(*own)
    )
    found = Search(case.problem, case.candidates, 0.0).run()
    assert (found is None) == (least == inf)
    if found is not None:
        assert found.bound <= least * (1 + 1e-9)
        best = min(
            valued(case, *plan, chosen, estimated_seconds) for *plan, own in unbeaten(case) for chosen in product(*own)
        )
        assert found.value == pytest.approx(best, rel=1e-9)
        again = case.problem.step_seconds_with_options(found.blocks, found.options, found.pieces, estimated_seconds)
        assert found.value == pytest.approx(case.problem.objective_value(again, found.blocks, found.devices), rel=1e-9)


@pytest.mark.long
def test_trainings_share_pipelines_where_that_is_faster() -> None:
    better = 0
    for case in map(fused_case, range(30, 120)):
        found = Search(case.problem, case.candidates, 0.0).run()
        if found is not None and found.pieces:
            alone = (valued(case, *plan, chosen) for *plan, own in plans(case) for chosen in product(*own))
            better += found.value < min(alone) * 0.999
    assert better > 4


def fused_case(seed: int) -> Case:
    return random_case(seed, STAGED, longer=4, older=seed % 2, fuses=True)


def unbeaten(case: Case) -> Iterator[tuple[Blocks, tuple[int, ...], list[Sequence[Option]]]]:
    """Every partition and allocation, and the options of each component there that no other one beats."""
    for blocks, devices, _ in plans(case):
        options: list[Sequence[Option]] = [()] * len(case.problem.components)
        for block, size in zip(blocks, devices, strict=True):
            for number in block.components:
                component, island = case.problem.components[number], case.problem.pool_node_group(block)
                alone = case.problem.options.undominated_options(component, island, size)
                shared = case.problem.options.pipeline_sharing_options(component, island, size).values()
                options[number] = *alone, *chain(*(undominated_in_pipeline(own) for own in shared))
        yield blocks, devices, options


@pytest.mark.long
def test_where_steps_overlap_other_plans_are_better() -> None:
    """They share pools in other ways than those whose step alone is the fastest."""
    alone, steady = (
        [
            Search(case.problem, case.candidates, 0.0).run()
            for case in (random_case(seed, older=k) for seed in range(100))
        ]
        for k in (0, 2)
    )
    assert sum(a.blocks != b.blocks for a, b in zip(alone, steady, strict=True) if a and b) > 3


@pytest.mark.long
def test_long_rows_are_split_by_tokens() -> None:
    """Where that is faster plans do it; short ones are not."""
    cases = [random_case(seed, longer=64) for seed in range(30)]
    tried = {option.deployment.cp for case in cases for option in everything(case.problem, 0, (0,), 8)}
    assert tried == {1, 2}
    assert all(option.deployment.cp == 1 for option in everything(random_case(0).problem, 0, (0,), 8))
    found = [Search(case.problem, case.candidates, 0.0).run() for case in cases]
    assert any(option.deployment.cp > 1 for each in found if each for option in each.options)


@pytest.mark.parametrize("seed", few([*range(10), *PARTED], 0, 5, 9, *PARTED))
def test_no_plan_is_better_where_stages_have_parts(seed: int) -> None:
    compare(random_case(seed, STAGED, deep=4))


@pytest.mark.parametrize("seed", few([*range(10), *UNLIKE], *UNLIKE))
def test_no_plan_is_better_where_stages_have_unlike_numbers_of_layers(seed: int) -> None:
    case = random_case(seed, STAGED, deep=3)
    compare(case)
    found = Search(case.problem, case.candidates, 0.0).run()
    unlike = [
        each.config.shape.layers % option.deployment.pp
        for each, option in zip(case.problem.components, found.options if found else (), strict=False)
    ]
    assert any(unlike) or seed not in UNLIKE


def test_some_stages_have_parts() -> None:
    cases = [random_case(seed, STAGED, deep=4) for seed in PARTED]
    found = [Search(case.problem, case.candidates, 0.0).run() for case in cases]
    assert all(each and any(option.deployment.chunks_per_stage > 1 for option in each.options) for each in found)


def compare(case: Case) -> None:
    """The search, of all and of each partition, with brute force."""
    best = brute(case)
    for candidates in (case.candidates, *([blocks] for blocks in case.candidates)):
        found = Search(case.problem, candidates, 0.0).run()
        least = min(best[blocks] for blocks in candidates)
        if found is None:
            assert least == inf
            continue
        assert found.value == pytest.approx(least, rel=1e-9)
        assert valued(case, found.blocks, found.devices, found.options) == pytest.approx(found.value, rel=1e-12)
        assert found.bound <= found.value * (1 + 1e-12)


@pytest.mark.parametrize("seed", few(range(0, 200, 5), *SOME[::5], *range(100, 200, 10)))
def test_no_option_needs_less_than_what_is_known_of_it_early(seed: int) -> None:
    """What another option beats by its floor alone is dropped before its bytes are counted."""
    problem = random_case(seed).problem
    for component in problem.components:
        for island in problem.cluster.islands:
            for option in problem.options.all_options(component, island, island.device_count):
                assert all(low <= high for low, high in zip(option.floor, option.key, strict=True))


@pytest.mark.parametrize("seed", few(range(0, 200, 5), *SOME[::5], *range(100, 200, 10)))
def test_the_gap_is_kept(seed: int) -> None:
    case = random_case(seed)
    found = Search(case.problem, case.candidates, 0.1).run()
    least = min(brute(case).values())
    if found is not None:
        assert found.bound <= least * (1 + 1e-9)
        assert found.value * 0.9 <= least
        assert found.gap <= 0.1


def test_partitions_in_which_sleeping_pays_are_known_by_bounds() -> None:
    """None is left out in which it does, and some are left out."""
    paying = left_out = 0
    for seed in range(0, 200, 5):
        case = random_case(seed)
        problem, best = awake(case.problem), brute(case)
        found = Search(problem, case.candidates, 0.0).run()
        if found is None:
            continue
        could, bound, _ = partitions_worth_offloading(problem, case.candidates, found, 0.01, inf, "none")
        for blocks in case.candidates:
            assert blocks in could or best[blocks] > bound * (1 - 1e-9), (seed, blocks)
        better = [blocks for blocks in case.candidates if best[blocks] < 0.99 * found.value * (1 - 1e-9)]
        assert {*better} <= {*could}, seed
        assert bound > 0.99 * found.value * (1 - 1e-9)
        paying, left_out = paying + len(better), left_out + len(case.candidates) - len(could)
    assert paying > 2 and left_out > 50, (paying, left_out)


def awake(problem: PlacementProblem) -> PlacementProblem:
    """The same where no model may sleep."""
    options = Options(problem.tasks, CONSTANTS, replace(problem.options.settings, offload=False, fuses=()))
    return PlacementProblem(problem.components, problem.cluster, options, problem.goal, older=problem.staleness_steps)


@pytest.mark.parametrize("seed", few(range(0, 200, 2), *SOME[::2], *range(100, 140, 10)))
def test_a_plan_leaves_memory_where_that_costs_little(seed: int) -> None:
    case = random_case(seed)
    calm, full = least(case, TIGHT), least(case, 1.0)
    found = Search(case.problem, case.candidates, 0.0, spare=0.2).run()
    if found is not None:
        assert found.is_tight == (calm * 0.8 > full)
        assert found.value == pytest.approx(full if found.is_tight else calm, rel=1e-9)
        assert found.bound <= full * (1 + 1e-12)


def test_what_is_given_up_for_memory_is_the_spare_and_not_the_gap() -> None:
    cases = map(random_case, range(100))
    found = next(plan for case in cases if (plan := Search(case.problem, case.candidates, 0.0).run()))
    full, calm = replace(found, value=1.0, is_tight=True), replace(found, value=1.04, is_tight=False)
    for spare, taken in ((0.0, full), (0.03, full), (0.05, calm)):
        known = Incumbent(0.5, spare)
        known.keep_if_better(full)
        known.keep_if_better(calm)
        assert (
            known.best is taken
            and known.proven_bound() == 0.0
            and known.least_pruned_bound == (1.0 if taken is calm else 1.04)
        )


@pytest.mark.long
def test_some_plans_leave_memory_and_others_do_not() -> None:
    cases = [random_case(seed) for seed in range(0, 200, 2)]
    found = [Search(case.problem, case.candidates, 0.0, spare=spare).run() for case in cases for spare in (0.0, 0.2)]
    pairs = [(exact, calm) for exact, calm in zip(found[::2], found[1::2], strict=True) if exact and calm]
    assert sum(exact.is_tight and not calm.is_tight for exact, calm in pairs) > 5
    assert sum(calm.is_tight for _, calm in pairs) > 5


def least(case: Case, share: float) -> float:
    """The least value of all plans that need so much of what a device has at most."""
    islands = case.problem.cluster.islands
    rooms = [share * usable_device_bytes(island, case.problem.constants) for island in islands]
    return min(
        (
            valued(case, blocks, devices, chosen)
            for blocks, devices, options in plans(case)
            for chosen in product(*options)
            if all(
                device_peak_bytes([chosen[number] for number in each.components]) <= rooms[each.island]
                for each in blocks
            )
        ),
        default=inf,
    )


@pytest.mark.parametrize("seed", few(range(0, 200, 10), *range(20, 40, 10), *range(100, 200, 10)))
def test_a_search_that_is_ended_says_how_far_it_is(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look takes a second, so that searches end early and late on every machine."""
    case = random_case(seed)
    least = min(brute(case).values())
    for seconds in (2, 4, 8, 16, 64):
        monkeypatch.setattr(progress, "monotonic", count_up().__next__)
        try:
            found = Search(case.problem, case.candidates, 0.0, seconds).run()
        except ProgramError as error:
            assert [each.code for each in error.diagnostics] == ["E0938"]
            continue
        assert (found is None) == (least == inf)
        if found is not None:
            assert found.bound <= least * (1 + 1e-9) <= found.value * (1 + 2e-9)


def test_a_range_of_sizes_is_looked_at_as_a_whole_where_its_best_options_have_room() -> None:
    """With more devices than the fewest of the range: it has not to be halved down to each of its sizes."""
    looked = 0
    for seed in range(10):
        case = random_case(seed)
        for blocks in case.candidates if case.problem.goal == "time" else ():
            boxes = AllocationBoxes(case.problem.cluster, case.candidates)
            low, high = (boxes.pool_device_counts(blocks, end) for end in boxes.full_box(blocks))
            bounds = Bounds(case.problem, Incumbent(0.0))
            if len(blocks) > 1 or low == high or bounds.candidates_by_component(blocks, high) is None:
                continue
            assert AllocationSearch(boxes, bounds, progress.SearchProgress(inf), blocks, low, high).run()
            best, known = bounds.incumbent.best, Search(case.problem, [blocks], 0.0).run()
            assert (best.value if best else inf) == pytest.approx(known.value if known else inf, rel=1e-9)
            looked += best is not None and best.devices != low
    assert looked


def test_a_range_in_which_a_pool_never_holds_its_components_is_empty() -> None:
    """As of Qwen3-235B on 128 devices, with too few for its training beside a pool that samples."""
    problem = SimpleNamespace(goal="time")
    bounds = SimpleNamespace(
        problem=problem, incumbent=SimpleNamespace(best="a plan"), candidates_by_component=lambda *_: None
    )
    boxes = SimpleNamespace(rounded_up=lambda _, box: box[1], pool_device_counts=lambda *_: (8, 120))
    assert JobStageBounds(boxes, bounds).tighten_box((), ((0, 0), (1, 9))) is None  # type: ignore[arg-type]


def test_only_what_has_caches_has_them_halved() -> None:
    """A training has other seconds in a shared pipeline than alone, by more than any cache gains."""

    class Part(NamedTuple):
        has_fixed_cache: bool
        cache_gain_s: float
        with_largest_cache: Part | None = None

    parts = [Part(True, 9.0), Part(False, 0.1), Part(False, 0.2)]
    choices = {number: SimpleNamespace(options=[part]) for number, part in enumerate(parts)}
    blocks = (PartitionBlock((0, 1, 2), 0),)
    search = SimpleNamespace(blocks=blocks, pool_room_bytes=(1.0,))
    for needed, found in ((2.0, 2), (0.5, None)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(depth_first, "device_peak_bytes", lambda _, needed=needed: needed)
            assert AllocationSearch.component_with_cache_to_halve(search, {}, choices) == found  # type: ignore[arg-type]


def test_ranges_that_are_given_up_again_and_again_are_looked_at_for_longer() -> None:
    tries = TryBudget()
    for _ in range(LONG - 1):
        tries.note_given_up()
        assert tries.max_tries == FEW_TRIES
    tries.note_given_up()
    assert tries.max_tries == MOST_TRIES
    tries.note_given_up()
    assert tries.max_tries == FEW_TRIES


@pytest.mark.parametrize("seed", few(range(40), 2, 7, 15))
def test_allocations_of_which_not_all_choices_were_tried_come_up_again(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlgraph.passes.placement.search.search.MOST_TRIES", 2)
    compare(random_case(seed))


@pytest.mark.parametrize(
    "limit", [{"patience": 0}, {"most_work": progress.Work(20)}], ids=["gains nothing", "worked enough"]
)
def test_a_search_ends_with_what_it_has_whatever_the_clock_says(
    limit: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    early = 0
    for seed in (7, 8, 42, 76, 90, 99):
        case, ends = random_case(seed), []
        known = Search(case.problem, case.candidates, 0.0).run()
        for second in (1, 1000):
            monkeypatch.setattr(progress, "monotonic", count_up(0, second).__next__)
            found = Search(case.problem, case.candidates, 0.0, **limit).run()
            ends.append(found and (found.value, found.bound, found.ranges_searched))
            assert (found is None) == (known is None)
            if found is not None and known is not None:
                assert found.bound <= known.value * (1 + 1e-9) <= found.value * (1 + 2e-9)
                early += found.gap > 0
        assert ends[0] == ends[1]
    assert early


def test_a_long_search_says_how_far_it_is_now_and_then_where_that_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a file, or in a pipe."""
    case, shown = random_case(2), io.StringIO()
    monkeypatch.setattr(progress, "monotonic", count_up(0, 10).__next__)
    monkeypatch.setattr(progress, "QUIET_S", 1.0)
    monkeypatch.setattr("sys.stderr", shown)
    Search(case.problem, case.candidates, 0.0).run()
    first, second, *others = shown.getvalue().splitlines()
    assert first == "searching, 10 s: no plan yet" and second.startswith("searching, 40 s: ")
    last = [second, *others][-1]
    assert re.fullmatch(r"searching, \d+ s: (\$[\d.]+|[\d.]+ m?s) a step, at most [\d.]+% from the best there is", last)


def test_a_bound_that_is_not_there_yet_is_no_share() -> None:
    by_time, by_cost = progress.SearchProgress(1.0), progress.SearchProgress(1.0, goal="cost")
    assert by_time._described(None, 1.0) == "no plan yet"
    assert by_time._described(11.4, 1.0) == "11.4 s a step, and nothing is proven of others yet"
    assert by_cost._described(11.4, 0.25) == "$11.4 a step, at most 25.0% from the best there is"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_long_search_says_how_far_it_is_and_takes_the_line_away(monkeypatch: pytest.MonkeyPatch) -> None:
    case, shown = random_case(2), Terminal()
    monkeypatch.setattr(progress, "monotonic", count_up().__next__)
    monkeypatch.setattr(progress, "QUIET_S", 1.0)
    monkeypatch.setattr("sys.stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    Search(case.problem, case.candidates, 0.0).run()
    first, *others, last = shown.getvalue().split("\r\x1b[K")[1:]
    assert first == "searching, 1 s: no plan yet" and last == ""
    assert re.fullmatch(
        r"searching, \d+ s: (\$[\d.]+|[\d.]+ m?s) a step, at most [\d.]+% from the best there is", others[-1]
    )


class Stopped(AllocationBoxes):
    """Ctrl-C once there is a plan."""

    def __init__(self, search: Search) -> None:
        super().__init__(search.problem.cluster, search.candidates)
        self.incumbent = search.incumbent

    def halve_box(self, blocks: Blocks, box: Box) -> list[Box]:
        if self.incumbent.best is not None:
            signal.raise_signal(signal.SIGINT)
        return super().halve_box(blocks, box)


def test_ctrl_c_gives_the_best_there_is_and_says_how_to_get_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in range(40):
        # Most end before there is a range to halve behind the first plan.
        monkeypatch.setattr(progress, "monotonic", chain([100.0], repeat(141.5)).__next__)
        case, control = random_case(seed), progress.SearchControl()
        search = Search(case.problem, case.candidates, 0.0, control=control)
        search.boxes = Stopped(search)
        found = search.run()
        if control.stopped:
            break
    least = min(brute(case).values())
    assert found is not None and control.stopped
    assert found.bound <= least * (1 + 1e-9) <= found.value * (1 + 2e-9)
    said = r"interrupted: after 41.5 s .*: .* a step, at most .* from the best there is; `--search-seconds 42` gives"
    assert re.search(said, capsys.readouterr().err)
    # Searches that end together with it do not begin.
    with pytest.raises(progress.OutOfTime):
        Search(case.problem, case.candidates, 0.0, control=control).run_or_time_out()


def test_ctrl_c_before_there_is_a_plan_gives_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "monotonic", chain([100.0], repeat(141.5)).__next__)
    case = random_case(3)
    search = Search(case.problem, case.candidates, 0.0)
    monkeypatch.setattr(search, "search_partitions", lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt, match=r"interrupted after 41.5 s of searching: no plan yet"):
        search.run()


def tight(case: Case, best: SearchResult | None) -> bool:
    """Whether the best plan would be better with more memory."""
    islands = tuple(replace(each, device=replace(each.device, memory=1 << 60)) for each in case.problem.cluster.islands)
    old = case.problem
    options = Options(old.tasks, CONSTANTS, replace(old.options.settings, fuses=()))
    cluster = replace(old.cluster, islands=islands)
    free = Search(PlacementProblem(old.components, cluster, options, old.goal), case.candidates, 0.0).run()
    return free is not None and (best is None or best.value > free.value * (1 + 1e-9))


@pytest.mark.long
def test_the_random_problems_are_of_all_kinds() -> None:
    """Memory binds in many of them; pools are shared and split; some have pins, two islands, several models that are
    sampled."""
    cases = [random_case(seed) for seed in range(200)]
    found = [Search(case.problem, case.candidates, 0.0).run() for case in cases]
    assert sum(len(each.blocks) > 1 for each in found if each) > 30
    assert sum(any(option.offload for option in each.options) for each in found if each) > 30
    assert sum(not all(option.offload for option in each.options) for each in found if each) > 30
    assert sum(tight(case, each) for case, each in zip(cases, found, strict=True)) > 60
    assert sum(bool(case.fixed) for case in cases) > 30
    assert sum(len(case.problem.cluster.islands) > 1 for case in cases) > 15
    apart = [
        case
        for case in cases
        if any(case.problem.make_colocation(blocks).group_transfers for blocks in case.candidates)
    ]
    assert len(apart) > 15
    assert sum(case.problem.goal == "cost" for case in cases) > 30
    assert sum(bool(case.problem.sync_pairs) for case in cases) > 60
