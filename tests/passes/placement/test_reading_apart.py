"""Models that are read with another split than they are trained with, or in another pool: the search beside brute
force on random small problems, programs whose schedules say so, and what the simulator says of the plans."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import chain, combinations, product
from math import inf, prod
from pathlib import Path

import pytest
from test_search import CONSTANTS, EVEN, Case, allocations, attempted, coarse, sized, tried, valued

import rlgraph
from rlgraph.api.compiled import Compiled
from rlgraph.explain.chosen_plan import chosen_plan_lines
from rlgraph.explain.critical_path import critical_path
from rlgraph.explain.simulate import simulate
from rlgraph.passes.compilation.choose_plan import peak_memory_by_pool, plan_prediction
from rlgraph.passes.compilation.target import parse_workload
from rlgraph.passes.cost.weights import weight_sync_cost
from rlgraph.passes.placement.search.colocation import Blocks
from rlgraph.passes.placement.search.components import Component
from rlgraph.passes.placement.search.decompositions import Decompositions
from rlgraph.passes.placement.search.incumbent import SearchResult
from rlgraph.passes.placement.search.option import Option, SeparateReadingOption
from rlgraph.passes.placement.search.options import Options
from rlgraph.passes.placement.search.partitions import component_partitions
from rlgraph.passes.placement.search.problem import PlacementProblem
from rlgraph.passes.placement.search.search import Search
from rlgraph.passes.placement.search.separate_reading import FASTER
from tests.suites import few

__all__ = ["coarse"]

MOST = 20000
"""Plans that brute force looks at for one problem, in all ways."""


# Brute force


@cache
def several(seed: int, older: int = 0, over: bool = False) -> tuple[Decompositions, tuple[tuple[str, int], ...]]:
    """A random problem in which some models are read and trained, and its ways; the pools that are declared. over:
    pools may lie over several islands."""
    dice = random.Random(seed)
    while True:
        case = attempted(dice, EVEN, 1e9, 1, older, over=over)
        if case is None:
            continue
        old = case.problem
        # So much is read that it may be worth a transfer of weights.
        more = dice.choice((1, 8, 64))
        tasks = [
            replace(task, batches=tuple(replace(each, rows=more * each.rows) for each in task.batches))
            if task.op == "logprobs"
            else task
            for task in old.tasks
        ]
        parts = [part for each in old.components if (part := parted(each, [task.op for task in tasks])) is not None]
        if not parts:
            continue
        options = Options(tasks, CONSTANTS, old.options.settings, parts)
        first = PlacementProblem(old.components, old.cluster, options, old.goal, older=older)
        free = [part for part in parts if not part[0].pin]
        problems = [first]
        for size in range(1, len(free) + 1):
            for apart in combinations(free, size):
                own = {id(whole): own for whole, *own in apart}
                components = list(chain.from_iterable(own.get(id(each), [each]) for each in first.components))
                problems.append(PlacementProblem(components, *first.constructor_arguments[1:]))
        ways = Decompositions(problems)
        if 0 < count(ways, case.fixed, over) <= MOST:
            return ways, case.fixed


def parted(whole: Component, ops: list[str]) -> tuple[Component, Component, Component] | None:
    """What trains of a component, and what reads."""
    trains = tuple(at for at in whole.tasks if ops[at] == "train")
    reads = tuple(at for at in whole.tasks if ops[at] != "train")
    if whole.work != "train" or not trains or not reads:
        return None
    trainer = replace(whole, operations=("train",), tasks=trains, separated_by="chosen", extra_tasks=reads)
    read = tuple(dict.fromkeys(ops[at] for at in reads))
    return whole, trainer, replace(trainer, work="read", operations=read, tasks=reads, extra_tasks=trains)


def plans(
    ways: Decompositions, fixed: tuple[tuple[str, int], ...], over: bool = False
) -> Iterator[tuple[Case, Blocks, tuple[int, ...], list[list[Option]]]]:
    """Of each way, with the options of each component. Who reads apart is where anything else is done, too."""
    for problem in ways.problems:
        case = Case(problem, fixed)
        readers = {
            number for number, each in enumerate(problem.components) if each.separated_by and each.work == "read"
        }
        trainers = {target: source for source, target in problem.sync_pairs if target in readers}
        for blocks in component_partitions(problem.components, problem.cluster, fixed, over=over):
            home = {number: at for at, block in enumerate(blocks) for number in block.components}
            alone = any(readers >= {*block.components} and not block.devices for block in blocks)
            if alone or any(home[source] == home[target] for target, source in trainers.items()):
                continue
            for devices in allocations(case, blocks):
                own: list[list[Option]] = [[] for _ in problem.components]
                for block, size in zip(blocks, devices, strict=True):
                    for number in block.components:
                        own[number] = options_of(problem, number, block.islands, size)
                yield case, blocks, devices, own


@cache
def options_of(problem: PlacementProblem, number: int, islands: tuple[int, ...], devices: int) -> list[Option]:
    """All options of a component, and all pairs of options of what trains and what reads of it that are worth it."""
    component = problem.components[number]
    found = all_of(problem, component, islands, devices)
    if id(component) in problem.options.parts:
        _, *halves = problem.options.parts[id(component)]
        for trainer, reader in product(*(all_of(problem, half, islands, devices) for half in halves)):
            made = list(problem.options.reading.options_of_trainer(component, trainer, [reader]))
            assert [each.seconds for each in made] == worth_it(problem, component, trainer, reader)
            found += made
    return found


def worth_it(problem: PlacementProblem, whole: Component, trainer: Option, reader: Option) -> list[tuple[float, ...]]:
    """The seconds of all tasks, if some of what is read is there in less than `FASTER` of the time."""
    together = problem.options.make_strategy(whole, trainer.strategy.deployment).task_seconds(trainer.copies)
    ends = trainer.deployment, reader.deployment
    wait = weight_sync_cost(whole.config, *ends, True, problem.constants).seconds
    seconds, faster = [], False
    trained, read = iter(trainer.seconds), iter(reader.seconds)
    for number, task in enumerate(whole.tasks):
        if problem.tasks[task].op == "train":
            seconds.append(next(trained))
            continue
        seconds.append(next(read) + wait)
        faster |= seconds[-1] < FASTER * together[number] * problem.tasks[task].repetitions
        wait = 0.0
    return [tuple(seconds)] if faster and trainer.split != reader.split else []


def all_of(problem: PlacementProblem, component: Component, islands: tuple[int, ...], devices: int) -> list[Option]:
    island, options = problem.cluster.join_node_groups(islands), problem.options
    strategies = [
        options.strategy_with_caches(component, full)
        for split in options.legal_deployments(component, island)
        for full in options.deployments_with_settings(component, split)
    ]
    return [*(all_of(problem, component, islands[:-1], island.inner.device_count) if island.inner else [])] + [
        option
        for strategy, copies in tried(problem, component, strategies, devices)
        for made in options.options_of_replica_count(component, strategy, copies)
        for option in sized(made)
    ]


def count(ways: Decompositions, fixed: tuple[tuple[str, int], ...], over: bool = False) -> int:
    found = 0
    for *_, options in plans(ways, fixed, over):
        found += prod(map(len, options))
        if found > MOST:
            break
    return found


def brute(ways: Decompositions, fixed: tuple[tuple[str, int], ...], over: bool = False) -> float:
    return min(
        (
            valued(case, blocks, devices, chosen)
            for case, blocks, devices, options in plans(ways, fixed, over)
            for chosen in product(*options)
        ),
        default=inf,
    )


ELSEWHERE, OTHERWISE = (0,), (3,)
"""Problems whose best plans read apart: in another pool, and in the same one with another split."""
SEEDS = range(40)


@pytest.mark.parametrize("seed", few(SEEDS, *ELSEWHERE, *OTHERWISE, 9, 10, 13, 14, 15, 24, 28, 33, 34))
def test_no_plan_is_better(seed: int) -> None:
    compare(seed)


@pytest.mark.parametrize("seed", few((0, 1, 2, 3, 7, 8, 9, 10, 13, 25, 27), 13, 25, 27))
def test_no_plan_is_better_where_pools_lie_over_islands(seed: int) -> None:
    compare(seed, over=True)


def compare(seed: int, over: bool = False) -> None:
    ways, fixed = several(seed, max(0, seed % 4 - 2), over)
    least, found = brute(ways, fixed, over), searched(ways, fixed, over)
    assert (found is None) == (least == inf)
    if found is not None:
        assert found.value == pytest.approx(least, rel=1e-9)
        own = Case(ways.problems[found.problem_index], fixed)
        assert valued(own, found.blocks, found.devices, found.options) == pytest.approx(found.value, rel=1e-12)
        assert found.bound <= found.value * (1 + 1e-12)


@pytest.mark.parametrize("seed", [*ELSEWHERE, *OTHERWISE])
def test_some_of_these_plans_read_apart(seed: int) -> None:
    """What is compared with brute force above has such plans among its best ones."""
    found = searched(*several(seed, older=max(0, seed % 4 - 2)))
    assert found
    assert (found.problem_index > 0) == (seed in ELSEWHERE)
    assert any(isinstance(option, SeparateReadingOption) for option in found.options) == (seed in OTHERWISE)


def searched(ways: Decompositions, fixed: tuple[tuple[str, int], ...], over: bool = False) -> SearchResult | None:
    among = list(
        component_partitions(
            ways.fully_split_problem.components, ways.fully_split_problem.cluster, fixed, ways.reader_components, over
        )
    )
    return Search(ways.problems[0], among, 0.0, ways=ways).run()


# Plans of programs

LENGTHS = parse_workload("300", "mean=120, p99=400")
PPO = Path(rlgraph.__file__).parent / "algorithms" / "ppo.rlf"
BETWEEN = """\
schedule ppo
pool learn = 4 devices
pool play = 4 devices
place critic.train on learn
place critic.values on play
"""
WITHIN = """\
schedule ppo
pool learn = 8 devices
place critic.train on learn(tp=2, pp=4)
place critic.values on learn(tp=1)
"""
CROWDED = """\
schedule ppo
pool learn = 8 devices
pool play = 4 devices
place actor.train on learn
place actor.generate, reward on play
"""
"""The critic is trained where rows are sampled and judged, and read where there is time for it."""
TWO = "1x8:h100-80gb + 1x4:h100-80gb", "1.5B"
SAMPLED = """\
schedule small
pool learn = 4 devices
pool play = 4 devices
place actor.train on learn
place actor.logprobs, actor.generate on play(engine=transformers)
"""
SMALL = """\
algorithm small
model actor  = causal_lm("Qwen/Qwen2.5-1.5B")
data prompts = jsonl("prompts.jsonl", batch=256)
func correct = python("rlgraph.rewards:exact_match", over=row)
step:
    rollout = actor.generate(prompts, max_tokens=256)
    score   = correct(rollout)
    train actor(lr=1e-6):
        minimize mean(-actor.logprobs(rollout) * score)
    report moved = mean(actor.logprobs(rollout) - rollout.logprobs)
"""


def compiled(schedule: str | None, cluster: str = "1x8:h100-80gb", size: str = "1.5B", program: Path = PPO) -> Compiled:
    sets = {name: f'"Qwen/Qwen2.5-{size}"' for name in ("base", "judge")} if program is PPO else {}
    # What is compared with the search: whole batches.
    return rlgraph.compile(program, sets, cluster=cluster, workload=LENGTHS, schedule=schedule, stream=False)


@pytest.mark.parametrize("schedule", [BETWEEN, WITHIN, SAMPLED], ids=["two pools", "one pool", "with what samples"])
def test_a_schedule_may_read_apart(schedule: str, tmp_path: Path) -> None:
    """The search and the simulator agree about such a plan, and it is told whole."""
    program, model, read, title = PPO, "critic", "values", "critic.values"
    if schedule is SAMPLED:
        program, model, read, title = tmp_path / "small.rlf", "actor", "logprobs", "actor.generate"
        program.write_text(SMALL)
        (tmp_path / "prompts.jsonl").write_text('{"prompt": "1 + 1", "answer": "2"}\n')
    found = compiled(schedule, program=program)
    choice = found.choice
    trained, reads = choice.plan.group_of_role(model, "train"), choice.plan.group_of_role(model, read)
    assert trained.name != reads.name and reads.pool == ("learn" if schedule is WITHIN else "play")
    assert (model, trained.name, reads.name) in choice.plan.syncs()
    if schedule is SAMPLED:
        assert reads == choice.plan.group_of_role("actor", "generate")
    assert all(peak.fits for peak in peak_memory_by_pool(choice).values())
    seen = simulate(found, choice.question.cluster, workload=LENGTHS)
    assert seen.seconds == pytest.approx(choice.search_result.seconds, rel=0.05)
    told = "\n".join(chosen_plan_lines(choice, plan_prediction(choice)))
    assert re.search(rf"^  {title} .*", told, re.M)
    stretches = critical_path(choice.problem, choice.search_result)
    assert sum(each.seconds for each in stretches) == pytest.approx(choice.search_result.seconds, rel=1e-6)
    assert all(each.seconds == pytest.approx(sum(each.parts.values())) for each in stretches)


@pytest.mark.parametrize(
    ("cluster", "size", "schedule"),
    few([(*TWO, CROWDED), ("2x8:a100-80gb(memory=36GiB)", "14B", None)], "2x8:a100-80gb(memory=36GiB)"),
)
def test_a_plan_reads_apart_where_that_is_faster(cluster: str, size: str, schedule: str | None) -> None:
    """In another pool, and in the same one with another split."""
    found = compiled(schedule, cluster, size)
    choice = found.choice
    assert choice.plan.group_of_role("critic", "values").name != choice.plan.group_of_role("critic", "train").name
    assert all(peak.fits for peak in peak_memory_by_pool(choice).values())
    seen = simulate(found, choice.question.cluster, workload=LENGTHS)
    assert seen.seconds == pytest.approx(choice.search_result.seconds, rel=0.03)
    for each in critical_path(choice.problem, choice.search_result):
        assert each.seconds == pytest.approx(sum(each.parts.values()))


def test_what_is_pinned_as_a_whole_is_read_where_it_is_trained() -> None:
    plan = compiled("schedule ppo\npool learn = 8 devices\nplace critic on learn\n", "1x8:h100-80gb + 2x8:l4-24gb").plan
    assert plan.group_of_role("critic", "values").pool == plan.group_of_role("critic", "train").pool == "learn"


@pytest.mark.long
def test_explain_tells_of_a_plan_that_reads_apart() -> None:
    """Beside the ways of others, which do not, and with what would help it."""
    found = compiled(CROWDED, *TWO)
    told = found.explain()
    chosen = next(each for each in told.alternatives if each.chosen)
    assert chosen.name == "what was chosen" and "critic.values" in chosen.pools
    others = [each.seconds for each in told.alternatives if not each.chosen and each.seconds]
    assert all(each >= found.choice.search_result.seconds for each in others)
    assert [each for each in told.changes if each.saves > 0]
    assert found.what_if("devices=12").points[0].seconds == pytest.approx(found.choice.search_result.seconds)
