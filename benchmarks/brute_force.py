"""Whether the search for a plan finds the one that the simulator prefers, of all that there are.

    python benchmarks/brute_force.py
    python benchmarks/brute_force.py --cases 100 --seed 0
    python benchmarks/brute_force.py --streams --cases 40

Random small programs (an actor that samples, with a reference, a critic, mini-batches, steps that overlap, values of
the actor that are read again) on random clusters of one to three devices, some over a slow link. All plans of the
choices that the search has are simulated: pools, who is read apart from training, splits, copies, recomputation, caches
(in a few sizes), and on one device who sleeps in the host's memory. A line for each: by how much the plan of `rlgraph
compile` is slower than the best one, the number of plans, and how much slower the worst one is. No data and no device
is needed.

`--streams`: programs with a reward model whose rollouts stream, half of them with a tail, both of which their schedules
leave to the plan, on two devices. All plans are simulated with all blocks and tails that the compiler tries, for a few
steps, and those of them that are the fastest and the plan that was found for more, since lengths differ from step to
step. The line says too what the best plan without streams would be slower by, with its best block and tail.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice, product
from math import prod
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import rlgraph
from rlgraph.backends.sim.backend import SimBackend
from rlgraph.backends.sim.steady_state import FEWEST, simulate_steps
from rlgraph.catalog.clusters.cluster import NodeGroup
from rlgraph.errors import ProgramError
from rlgraph.ir.plan import TailMove
from rlgraph.passes.compilation import stream_blocks as streamed
from rlgraph.passes.compilation import tails as moved
from rlgraph.passes.compilation.finalists import refine_block_sizes_and_tail_moves
from rlgraph.passes.compilation.overlap_simulation import make_simulator as in_time
from rlgraph.passes.compilation.target import parse_workload
from rlgraph.passes.cost.predict import Predictor
from rlgraph.passes.cost.workload import Workload
from rlgraph.passes.placement.choose import PlacementChoice, candidate_partitions, choose_placement
from rlgraph.passes.placement.plan_from_search import plan_from_search
from rlgraph.passes.placement.query import PlacementQuery, decomposed_problems
from rlgraph.passes.placement.search import kv_cache_sizes, strategies
from rlgraph.passes.placement.search.colocation import Blocks
from rlgraph.passes.placement.search.components import Component
from rlgraph.passes.placement.search.incumbent import SearchResult
from rlgraph.passes.placement.search.option import Option
from rlgraph.passes.placement.search.options import Options
from rlgraph.passes.placement.search.partitions import allowed_pool_sizes, can_pack_pools, devices_used_per_node_group
from rlgraph.passes.placement.search.problem import PlacementProblem
from rlgraph.passes.placement.search.strategy import Strategy
from rlgraph.passes.placement.tails import sampling_replica_count

MOST = 400
"""Plans of a problem; others are drawn again."""

NEAR = 0.03
"""By which the search's timetable and the simulator may differ."""

CLUSTERS = (
    *("1x1:h100-80gb", "1x1:rtx4090", "1x2:h100-80gb", "1x2:a100-80gb", "1x2:rtx4090", "2x1:h20-96gb", "1x3:h100-80gb"),
    *(
        "1x1:h100-80gb + 1x1:h20-96gb",
        "1x1:h100-80gb + 1x1:l4 ~ 2Gb/s, 100ms",
        "1x2:a100-80gb + 1x1:h100-80gb ~ 10Gb/s",
    ),
)


TWO = (
    *("1x2:h100-80gb", "1x2:a100-80gb", "1x2:rtx4090", "2x1:a100-80gb", "1x1:a100-80gb + 1x1:h100-80gb"),
    "1x1:h100-80gb + 1x1:h20-96gb ~ 10Gb/s",
)
"""Clusters of plans with streams and tails, of which there are several times as many."""

FEWER = 250
"""Plans of such a problem."""

SHARES = (0.2, 0.5)
"""Of the rows that move, as the compiler tries them in such problems, too."""

EQUAL = 0.01

TOO_LARGE = {"E0930", "E0933", "E0939"}
"""What is said of problems of which no plan fits, on the devices or the hosts: they are drawn again."""

BEST, LONG = 10, 16
"""So many of the plans that are the fastest in `FEWEST` steps are simulated for so many."""


@contextmanager
def coarse() -> Iterator[None]:
    """With fewer settings of each split: what is tried is where things are."""
    before = strategies.MICROS, kv_cache_sizes.STEP, moved.SHARES
    strategies.MICROS, kv_cache_sizes.STEP, moved.SHARES = (2,), 8.0, SHARES
    try:
        yield
    finally:
        strategies.MICROS, kv_cache_sizes.STEP, moved.SHARES = before


def every(choice: PlacementChoice, most: float = float("inf")) -> Iterator[PlacementChoice]:
    """All plans that fit: what is read apart from training, partitions, sizes of pools, options with any number of
    copies; on one device also who sleeps, where steps do not overlap. None where there are more than `most`."""
    asleep = choice.question.cluster.device_count == 1 and not choice.problem.staleness_steps
    asked = replace(choice.question, offload=asleep)
    problems = list(zip(*decomposed_problems(asked), strict=True))
    if sum(prod(map(len, own)) for each in problems for *_, own in shares(*each)) > most:
        return
    for question, problem in problems:
        for blocks, devices, own in shares(question, problem):
            for chosen in product(*own):
                pools = [[chosen[number] for number in block.components] for block in blocks]
                if all(
                    problem.can_share_pool(pool, problem.pool_node_group(at))
                    for pool, at in zip(pools, blocks, strict=True)
                ):
                    found = SearchResult(blocks, devices, chosen, 0.0, 0.0, 0.0, 0)
                    yield replace(choice, question=question, problem=problem, search_result=found)


def shares(
    question: PlacementQuery, problem: PlacementProblem
) -> Iterator[tuple[Blocks, tuple[int, ...], list[list[Option]]]]:
    """Partitions with sizes of their pools, and the options of each component."""
    islands = problem.cluster.islands
    for blocks in candidate_partitions(problem, question):
        for devices in product(*(allowed_pool_sizes(problem.pool_node_group(block)) for block in blocks)):
            taken = zip(devices_used_per_node_group(islands, blocks, devices), islands, strict=True)
            room = all(count <= island.device_count for count, island in taken)
            if room and can_pack_pools(islands, blocks, devices):
                own: list[list[Option]] = [[] for _ in problem.components]
                for block, count in zip(blocks, devices, strict=True):
                    for number in block.components:
                        own[number] = list(
                            options(problem, problem.components[number], problem.pool_node_group(block), count)
                        )
                yield blocks, devices, own


def options(problem: PlacementProblem, component: Component, island: NodeGroup, devices: int) -> Iterator[Option]:
    made = problem.options
    yield from _alike(problem, component, island, devices)
    if id(component) in made.parts:
        _, *halves = made.parts[id(component)]
        for trainer, reader in product(*(options(problem, half, island, devices) for half in halves)):
            yield from made.reading.options_of_trainer(component, trainer, [reader])


def _alike(problem: PlacementProblem, component: Component, island: NodeGroup, devices: int) -> Iterator[Option]:
    """With one split for all that it does."""
    made = problem.options
    if island.inner:
        # A pool over several islands has all but the last of them whole.
        yield from _alike(problem, component, island.inner, island.inner.device_count)
    for split in made.legal_deployments(component, island):
        for full in made.deployments_with_settings(component, split):
            for strategy, copies in _tried(made, component, made.strategy_with_caches(component, full), devices):
                for each in made.make_options(component, strategy, copies):
                    yield from (each.with_cache_range(cache, cache) for cache in range(each.high.cache + 1))


def _tried(made: Options, component: Component, plain: Strategy, devices: int) -> Iterator[tuple[Strategy, int]]:
    """With any number of copies, and in several parts with any that are faster than fewer, and by 1% than one part."""
    yield from ((plain, copies) for copies in range(plain.beyond + 1, plain.most_replicas(devices) + 1))
    every = range(plain.most_replicas(plain.deployment.island.device_count), 0, -1)
    for several in made.chunked_strategies(component, plain):
        yield from (
            (several, copies)
            for copies in several.improving_replica_counts(every)
            if copies <= plain.most_replicas(devices)
        )


def simulated(choice: PlacementChoice) -> float:
    """Seconds of a step in the middle of a run."""
    asked, plan = choice.question, plan_from_search(choice.question, choice.problem, choice.search_result)
    predictor = Predictor(plan, choice.model_configs, asked.cluster, asked.constants)
    steps = 2 if choice.problem.staleness_steps else 1
    return simulate_steps(SimBackend(asked.program, plan, predictor, asked.workload), steps).mean_step_seconds


def streaming(choice: PlacementChoice) -> Iterator[PlacementChoice]:
    """A plan with each block that is tried of the table `rollout`, and the whole batch, or with each block and each
    tail."""
    asked = choice.question
    plan, [line] = plan_from_search(asked, choice.problem, choice.search_result), asked.schedule.streams
    sizes: list[int | None] = [*streamed.block_sizes_to_try(choice, line)]
    tails: list[tuple[TailMove, ...]] = [()]
    if asked.schedule.tails:
        copies = sampling_replica_count(line.table, plan, asked.program)
        powers = [2**power for power in range(copies.bit_length()) if 2**power <= copies / 2]
        tails += [(TailMove(line.table, under, on),) for under, on in product(moved.SHARES, powers)]
    else:
        sizes.append(None)
    for rows, tail in product(sizes, tails):
        free = (line.table,) if line.free and rows is not None else ()
        blocks = () if rows is None else ((line.table, rows),)
        yield replace(choice, plan=replace(plan, blocks=blocks, free=free, tails=tail))


def seconds(choice: PlacementChoice, steps: int = FEWEST) -> float:
    """Of a step of a plan as it is, as the compiler tells them."""
    return simulate_steps(in_time(choice), steps).mean_step_seconds


def draw_streaming(dice: random.Random) -> tuple[str, str, str, Workload]:
    """A program, a schedule, a cluster, and how long rows are."""
    text = f'algorithm small\nmodel actor = causal_lm("Qwen/Qwen2.5-{dice.choice(("0.5B", "1.5B"))}")\n'
    text += f'model reward = frozen(reward_lm("Qwen/Qwen2.5-{dice.choice(("1.5B", "3B", "7B"))}"))\n'
    text += f'data prompts = jsonl("prompts.jsonl", batch={dice.choice((8, 32, 64))})\n'
    text += f"step:\n    rollout = actor.generate(prompts, n={dice.choice((1, 4))}, max_tokens=512)\n"
    text += "    score = reward.score(rollout)\n"
    text += f"    gain = score{dice.choice(('', '', ' - mean(score)'))}\n"
    text += f"    minibatch rollout(parts={dice.choice((1, 1, 2))}):\n"
    text += "        train actor(lr=1e-6):\n            minimize mean(-actor.logprobs(rollout) * gain)\n"
    lines = dice.choice(("stream rollout\n", "stream rollout(deal=free)\ntail rollout\n"))
    lengths = parse_workload(dice.choice(("100", "400")), dice.choice(("200", "mean=100,p99=400", "mean=200,p99=500")))
    return text, f"schedule small\n{lines}", dice.choice(TWO), lengths


def compared(dice: random.Random) -> Iterator[tuple[str, float, float]]:
    """Of random problems whose rows stream: what it is, by which share the plan of the compiler is slower than the best
    one with the best block and tail, and by which share the best plan without streams is with its own."""
    while True:
        text, schedule, cluster, rows = draw_streaming(dice)
        try:
            made = rlgraph.compile(text, schedule=schedule, cluster=cluster, workload=rows, offload=False)
            # Where the plan has no use for its lines they are tried all the same.
            choice = replace(made.choice, question=replace(made.choice.question, schedule=made.schedule))
        except ProgramError as error:
            if not {each.code for each in error.diagnostics} <= TOO_LARGE:
                raise
            continue
        plans = list(every(choice, FEWER))
        if len(plans) < 2:
            continue
        tried, own, alone = beside_all(choice, plans)
        kind = "tail" if choice.question.schedule.tails else "stream"
        yield f"{len(plans):>4} plans, {tried:>4} with a {kind} or none, on {cluster}", own, alone


def beside_all(
    choice: PlacementChoice, plans: Sequence[PlacementChoice], steps: int = FEWEST
) -> tuple[int, float, float]:
    """How many blocks and tails plans have together, by which share a choice is slower than the best of all of them,
    and by which share the best plan without streams is with its own. steps: in which the best are looked for."""
    tried = [each for plan in plans for each in streaming(plan)]
    best = sorted(tried, key=lambda each: seconds(each, steps))[:BEST]
    least = min(seconds(each, LONG) for each in best)
    alone = choose_placement(replace(choice.question, read_separately=()))
    assert alone
    return (
        len(tried),
        seconds(choice, LONG) / least - 1,
        seconds(refine_block_sizes_and_tail_moves(alone), LONG) / least - 1,
    )


def compare(cases: int, seed: int) -> None:
    """Prints a line for each problem, and how many plans are as fast as the best."""
    slower, before = list[float](), list[float]()
    for name, own, alone in islice(compared(random.Random(seed)), cases):
        slower.append(own)
        before.append(alone)
        print(f"{own:>+7.1%}, by whole batches {alone:>+7.1%} of {name}", flush=True)
    for told, found in (("the plan that was found", slower), ("the best plan by whole batches", before)):
        near = sum(each <= EQUAL for each in found)
        print(f"{told}: in {near} of {cases} within {EQUAL:.0%} of the best of all, at most {max(found):.1%} slower")


def draw(dice: random.Random) -> tuple[str, str, Workload]:
    """A program, a cluster, and how long rows are."""
    base = dice.choice(("Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-1.5B"))
    has = {name: dice.random() < share for name, share in (("ref", 0.4), ("critic", 0.3), ("again", 0.4))}
    lag = dice.choice(("", "", "", " async(lag=1)"))
    text = f'algorithm small\nmodel actor = causal_lm("{base}")\n'
    text += "model ref = frozen(actor)\n" * has["ref"] + f'model critic = value_lm("{base}")\n' * has["critic"]
    text += f'data prompts = jsonl("prompts.jsonl", batch={dice.choice((8, 32, 64))})\n'
    text += 'func correct = python("rlgraph.rewards:exact_match", over=row)\n'
    text += f"step{lag}:\n    rollout = actor.generate(prompts, n={dice.choice((1, 4))}, max_tokens=256)\n"
    text += "    score = correct(rollout)\n"
    text += "    old = ref.logprobs(rollout)\n" * has["ref"] + "    value = critic.values(rollout)\n" * has["critic"]
    text += "    again = actor.logprobs(rollout)\n" * has["again"]
    text += "    gain = score" + " + old * 0" * has["ref"] + " - value" * has["critic"] + "\n"
    text += f"    minibatch rollout(parts={dice.choice((1, 2))}):\n"
    text += "        train actor(lr=1e-6):\n            minimize mean(-actor.logprobs(rollout) * gain)\n"
    text += (
        "        train critic(lr=1e-6):\n            minimize mean((critic.values(rollout) - score)**2)\n"
        * has["critic"]
    )
    text += "    report moved = mean(again - rollout.logprobs)\n" * has["again"]
    return (
        text,
        dice.choice(CLUSTERS),
        parse_workload(dice.choice(("100", "400")), dice.choice(("100", "mean=100,p99=250"))),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--streams", action="store_true", help="rows stream, and have tails")
    asked = parser.parse_args()
    if asked.streams:
        with coarse():
            compare(asked.cases, asked.seed)
        return
    dice, worse = random.Random(asked.seed), dict[str, list[float]](alone=[], overlapping=[])
    with coarse():
        while sum(map(len, worse.values())) < asked.cases:
            text, cluster, rows = draw(dice)
            try:
                choice = rlgraph.compile(text, cluster=cluster, workload=rows, stream=False).choice
            except ProgramError as error:
                if not {each.code for each in error.diagnostics} <= TOO_LARGE:
                    raise
                continue
            tried = [simulated(each) for each in every(choice, MOST)]
            if len(tried) < 2:
                continue
            slower = simulated(choice) / min(tried) - 1
            worse["overlapping" if choice.problem.staleness_steps else "alone"].append(slower)
            lag = "one step off, " if choice.problem.staleness_steps else ""
            models = ", ".join(each.name for each in choice.problem.components)
            print(
                f"{slower:>+7.1%} of {len(tried):>4} plans, the worst {max(tried) / min(tried) - 1:>+7.0%}"
                f"  {lag}{models} on {cluster}",
                flush=True,
            )
    for kind, found in worse.items():
        if found:
            far = sum(each > NEAR for each in found)
            told = f"at most {max(found):.1%} slower than the best of all plans, {far} beyond {NEAR:.0%}"
            print(f"{len(found)} problems with steps {kind}: {told}")


if __name__ == "__main__":
    main()
