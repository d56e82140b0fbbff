"""Whether the splits of devices that published systems found the best are the best here, too: one pool for everything,
or pools of their own for what samples and what trains.

    python benchmarks/split_points.py              a table, some minutes
    python benchmarks/split_points.py --only verl

A row has what the system trains on one pool (the synchronous program) and on its own pools, both simulated with the
splits of `asynchrony.py`, and what the search takes for the same cluster if nothing is said: for the program that runs
ahead, with streams. HybridFlow's split points are those of `placement.py shapes --paper-splits`. Nothing is run; the
table is that of docs/why/asynchrony.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parent)]

from asynchrony import EXPERIMENTS, Case

import rlgraph
from rlgraph.explain.simulation import Simulation

HEAD = """\
| who, devices | answers | together, rows/s | apart | rows/s | predicted | published | met | the search takes | rows/s |
|---|---|--:|---|--:|--:|--:|---|---|--:|"""


def rate(found: Simulation) -> float:
    """Rows that are trained on in a second."""
    return found.trained / (found.ends[-1] - found.began)


def pools(made: rlgraph.Compiled) -> str:
    """The pools of a plan, as the table has them."""
    sizes = [f"{pool.name} {pool.devices}" for pool in made.plan.pools if pool.devices]
    return ", ".join(sizes)


def rows(only: list[str]) -> Iterator[str]:
    for name, experiment in EXPERIMENTS.items():
        if only and name.split()[0] not in only or not name.startswith(("verl", "streamrl")):
            continue
        together, *others = experiment.cases
        for told, answers, alike in experiment.lengths:
            first = rate(together.simulated(experiment.prompts, answers, alike))
            searched: dict[object, tuple[str, float]] = {}
            for case in others:
                if not case.published:
                    continue
                found = rate(case.simulated(experiment.prompts, answers, alike))
                free = replace(case, schedule="", pools={})
                key = free.program, free.lag
                if key not in searched:
                    made, simulated = free.compiled_and_simulated(experiment.prompts, answers, alike)
                    searched[key] = pools(made), rate(simulated)
                taken, best = searched[key]
                gain = found / first
                met = "yes" if (gain > 1) == (least(case) > 1) else "no"
                yield (
                    f"| {name.split()[0]}, {case.cluster} | {told} | {first:.2f} | {described(case)} | {found:.2f} "
                    f"| {gain:.2f}x | {case.published} | {met} | {taken} | {best:.2f} |"
                )


def least(case: Case) -> float:
    """The least gain that is published of a case."""
    return min(float(part.strip().rstrip("x")) for part in case.published.split(",")[-1].split("to"))


def described(case: Case) -> str:
    return f"{case.plan}, lag {case.lag}" if case.lag else case.plan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], choices=("verl", "verl_fully", "streamrl"))
    options = parser.parse_args()
    print(HEAD)
    for row in rows(options.only):
        print(row, flush=True)


if __name__ == "__main__":
    main()
