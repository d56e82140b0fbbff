"""Whether the splits of devices that published systems found the best are the best here, too: one pool for everything,
or pools of their own for what samples and what trains.

    python benchmarks/split_points.py              a table, a minute or some
    python benchmarks/split_points.py --only verl

Each row has rows a second of what the system does on one pool (the synchronous program) and on pools of its own, with
the splits of `asynchrony.py`, and of what the search takes on the same cluster without a schedule, for the program on
pools of its own. HybridFlow's split points are those of `placement.py shapes --paper-splits`. Nothing is run; the table
is that of docs/why/split-points.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import rlgraph
from benchmarks.asynchrony import EXPERIMENTS, Case, Experiment
from rlgraph.explain.simulation import Simulation

WHO = ("verl", "verl_fully", "streamrl")
HEAD = """\
| who, devices | answers | pools | together | apart | gain | published | met | the search takes | rows/s |
|---|---|---|--:|--:|--:|---|---|---|--:|"""

Lengths = tuple[str, str, float]
"""The answers as a table has them, as they are given, and how alike those to one prompt are."""


def compared(only: Sequence[str] = WHO) -> Iterator[tuple[str, Lengths, Experiment, Case]]:
    """Yield each case on pools of its own for which a gain is published, with the first cells of its row."""
    for name, experiment in EXPERIMENTS.items():
        who = name.split()[0]
        for lengths in experiment.lengths if who in only else ():
            for case in experiment.cases[1:]:
                if case.published:
                    plan = f"{case.plan}, lag {case.lag}" if case.lag else case.plan
                    yield f"| {who}, {case.cluster} | {lengths[0]} | {plan} |", lengths, experiment, case


def rows(only: Sequence[str] = WHO) -> Iterator[str]:
    """Yield the rows of the table. The same program on the same devices is searched for once."""
    known: dict[str, tuple[str, float]] = {}

    def found(case: Case, experiment: Experiment, lengths: Lengths) -> tuple[str, float]:
        key = f"{case} {experiment.prompts} {lengths}"
        if key not in known:
            made, simulated = case.compiled_and_simulated(experiment.prompts, *lengths[1:])
            known[key] = pools(made), rows_per_second(simulated)
        return known[key]

    for cells, lengths, experiment, case in compared(only):
        _, together = found(experiment.cases[0], experiment, lengths)
        _, apart = found(case, experiment, lengths)
        taken, best = found(replace(case, schedule="", pools={}, plan="", published=""), experiment, lengths)
        met = "yes" if (apart > together) == (least_published(case) > 1) else "no"
        yield (
            f"{cells} {together:.2f} | {apart:.2f} | {apart / together:.2f}x | {case.published} | {met} "
            f"| {taken} | {best:.2f} |"
        )


def rows_per_second(found: Simulation) -> float:
    """Return the rows that are trained on in a second."""
    return found.trained / (found.ends[-1] - found.began)


def pools(made: rlgraph.Compiled) -> str:
    """Return the pools of a plan, as the table has them."""
    return ", ".join(f"{pool.name} {pool.devices}" for pool in made.plan.pools if pool.devices)


def least_published(case: Case) -> float:
    """Return the least gain that is published of a case."""
    return min(float(part.strip().rstrip("x")) for part in case.published.split(",")[-1].split("to"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=WHO, choices=WHO)
    print(HEAD)
    for row in rows(parser.parse_args().only):
        print(row, flush=True)


if __name__ == "__main__":
    main()
