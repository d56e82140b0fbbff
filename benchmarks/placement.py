"""How good and how fast the search for a placement is, beside other ways to place the same models.

    hybridflow   HybridFlow's algorithms 1 and 2
    real         ReaL's Metropolis search, for as long as `--limit` says
    ours         this project's search

All use the same times of single pieces of work, and their plans are compared by the same step time. The programs,
models and machines are those of HybridFlow's evaluation (arXiv 2409.19256), and so is vLLM (`older_vllm.py`);
`planners/` has the details.

    python benchmarks/placement.py searches            a table: seconds of a step, and seconds of searching
    python benchmarks/placement.py searches --limit 60
    python benchmarks/placement.py shapes              the best plan of each shape, and which one is chosen
    python benchmarks/placement.py shapes --paper-splits    the same with training split as in the paper
    python benchmarks/placement.py systems             beside the placements that other systems always take
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from math import inf
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.older_vllm import older_vllm
from benchmarks.planners.fixed import deepspeed, nemo, openrlhf
from benchmarks.planners.hybridflow import hybridflow
from benchmarks.planners.problems import Case, PaperOptions
from benchmarks.planners.real import real
from benchmarks.planners.shapes import SHAPES, named
from rlgraph.passes.placement.search.colocation import Blocks
from rlgraph.passes.placement.search.incumbent import SearchResult
from rlgraph.passes.placement.search.options import Options
from rlgraph.passes.placement.search.partitions import component_partitions
from rlgraph.passes.placement.search.problem import PlacementProblem
from rlgraph.passes.placement.search.search import Search

SIZES = ("7B", "13B", "34B", "70B")
DEVICES = (16, 32, 64, 96, 128)
PROGRAMS = ("ppo", "remax", "safe_rlhf")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=("searches", "shapes", "systems"))
    parser.add_argument("--programs", nargs="*", default=PROGRAMS)
    parser.add_argument("--sizes", nargs="*", default=SIZES)
    parser.add_argument("--devices", nargs="*", type=int)
    parser.add_argument("--limit", type=float, default=10.0, help="seconds that the Metropolis search has")
    parser.add_argument("--gap", type=float, default=0.005, help="how far from the best plan is near enough for ours")
    parser.add_argument("--paper-splits", action="store_true", help="of `shapes`: training is split as in the paper")
    options = parser.parse_args()
    with older_vllm():
        {"searches": searches, "shapes": shapes, "systems": systems}[options.table](options)


def found(problem: PlacementProblem, gap: float, among: Sequence[Blocks] | None = None) -> SearchResult | None:
    """Our search, among all partitions or among some."""
    every = list(component_partitions(problem.components, problem.cluster, ()))
    return Search(problem, [blocks for blocks in every if among is None or blocks in among], gap).run()


def cases(options: argparse.Namespace, devices: Sequence[int]) -> Iterator[Case]:
    for program in options.programs:
        for size in options.sizes:
            for count in options.devices or devices:
                yield Case(program, size, count)


# Searches


def searches(options: argparse.Namespace) -> None:
    print(f"{'':>24}{'seconds of a step':^30}{'seconds of searching':^30}")
    print(
        f"{'problem':<24}{'ours':>10}{'hybridflow':>10}{'real':>10}{'ours':>10}{'hybridflow':>10}{'real':>10}"
        f"{'gap':>8}  worse"
    )
    for case in cases(options, (8, *DEVICES)):
        problem = case.problem()
        begin = time.perf_counter()
        ours = found(problem, options.gap)
        took = time.perf_counter() - begin
        if ours is None:
            print(f"{case.title:<24} nothing fits", flush=True)
            continue
        problem = case.problem()
        begin = time.perf_counter()
        plan = hybridflow(problem)
        theirs = time.perf_counter() - begin
        paper = plan.seconds(problem) if plan else inf
        walked = real(case.problem(), options.limit)
        worse = [name for name, step in (("hybridflow", paper), ("real", walked.seconds)) if step < ours.seconds]
        print(
            f"{case.title:<24}{ours.seconds:>10.2f}{paper:>10.2f}{walked.seconds:>10.2f}"
            f"{took:>10.2f}{theirs:>10.2f}{min(walked.after, options.limit):>10.2f}{ours.gap:>8.2%}"
            f"  {', '.join(f'ours than {name}' for name in worse)}",
            flush=True,
        )


# Shapes


def shapes(options: argparse.Namespace) -> None:
    print(f"{'problem':<24}" + "".join(f"{name:>14}" for name in SHAPES) + "  chosen among `paper`; among `any`")
    wanted = [Case("ppo", size, count) for size in options.sizes for count in options.devices or DEVICES]
    wanted += [Case("ppo", "13B", count, "70B") for count in options.devices or DEVICES[1:]]
    for case in wanted:
        problem = case.problem(PaperOptions if options.paper_splits else Options)
        every = list(component_partitions(problem.components, problem.cluster, ()))
        best = {
            name: found(problem, options.gap, [b for b in every if belongs(problem, b)])
            for name, belongs in SHAPES.items()
        }
        cells = "".join(f"{each.seconds:>14.2f}" if each else f"{'-':>14}" for each in best.values())
        print(f"{case.title:<24}{cells}  {named(problem, best['paper'])}; {named(problem, best['any'])}", flush=True)


# Systems


def systems(options: argparse.Namespace) -> None:
    print(f"{'problem':<24}{'ours':>10}{'deepspeed':>16}{'openrlhf':>16}{'nemo':>16}")
    for case in cases(options, DEVICES):
        problem = case.problem()
        ours = found(problem, options.gap)
        if ours is None:
            print(f"{case.title:<24} nothing fits", flush=True)
            continue
        cells = ""
        for place in (deepspeed, openrlhf, nemo):
            step = place(problem)
            cells += f"{step:>9.2f} {step / ours.seconds:>5.2f}x" if step < inf else f"{'-':>16}"
        print(f"{case.title:<24}{ours.seconds:>10.2f}{cells}", flush=True)


if __name__ == "__main__":
    main()
