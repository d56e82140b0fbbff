"""Whether `rlgraph compile` and `rlgraph simulate` say the same of a step.

    python benchmarks/agreement.py
    python benchmarks/agreement.py --cases 50 --seed 0 --json

Random triples of a program that ships, a schedule and a cluster: models of 1.5B to 8B, 8 to 64 devices, everything left
to the search or pools that are pinned, blocks that stream, shares of the rows that are kept, lengths of several kinds.
What `compile` tells is compared with the mean of four steps in the middle of a run, as `simulate --steps 4` has it. Of
what overlaps (rows stream, steps run ahead) both are the simulator's; of all else the search's timetable and the
simulator are two ways to reckon. Triples that do not fit are drawn again. No data and no device is needed.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import rlgraph
from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.errors import ProgramError
from rlgraph.explain.simulate import simulate
from rlgraph.passes.compilation.target import parse_workload

ALGORITHMS = Path(rlgraph.__file__).parent / "algorithms"
PROGRAMS = ("grpo", "ppo", "dapo", "remax", "online_dpo", "async_grpo", "distill", "safe_rlhf")
MODELS = ("Qwen/Qwen2.5-1.5B", "Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen3-8B", "meta-llama/Llama-3.1-8B")
DEVICES = ("h100-80gb", "a100-80gb", "h20-96gb", "mi300x-192gb")
NEAR = 0.03


@dataclass(frozen=True)
class Triple:
    """What is compiled and simulated."""

    program: str
    changes: dict[str, str]
    schedule: str | None
    cluster: str
    prompts: str
    answers: str | None
    kept: float

    @property
    def title(self) -> str:
        blocks = (self.schedule or "").partition("block=")[2].partition(")")[0]
        pinned = f"blocks of {blocks}" if blocks else "two pools" if self.schedule else "searched"
        kept = f", {self.kept:.0%} kept" if self.kept < 1 else ""
        return f"{self.program} on {self.cluster}, {pinned}{kept}"


def draw(dice: random.Random) -> Triple:
    program = dice.choice(PROGRAMS)
    text = (ALGORITHMS / f"{program}.rlf").read_text()
    sized = {name: f'"{dice.choice(MODELS)}"' for name in ("base", "judge") if f"\nparam {name} " in text}
    nodes = dice.choice((1, 2, 2, 4, 8))
    schedule = None
    if dice.random() < 0.6:
        half = 4 * nodes
        schedule = f"schedule {program}\npool learn = {half} devices\npool play = {half} devices\n"
        if program != "distill":
            schedule += "place actor.train on learn\nplace actor.generate on play\n"
        if dice.random() < 0.5 and program != "distill":
            schedule += f"stream rollout(block={dice.choice((64, 128, 256))}{dice.choice(('', ', deal=free'))})\n"
    kept = dice.choice((1.0, 0.3, 0.5, 0.8)) if "keep " in text else 1.0
    prompts, answers = dice.choice(("512", "mean=200,p99=800")), dice.choice((None, "mean=400,p99=1500"))
    return Triple(program, sized, schedule, f"{nodes}x8:{dice.choice(DEVICES)}", prompts, answers, kept)


def measured(triples: Iterator[Triple]) -> Iterator[tuple[Triple, float, float]]:
    """Of those that fit the seconds that `compile` and `simulate` say."""
    for triple in triples:
        rows = parse_workload(triple.prompts, triple.answers, triple.kept)
        given: dict[str, Any] = {"schedule": triple.schedule, "cluster": triple.cluster, "workload": rows}
        try:
            made = rlgraph.compile((ALGORITHMS / f"{triple.program}.rlf").read_text(), triple.changes, **given)
        except ProgramError:
            continue
        found = simulate(made, read_cluster(triple.cluster), steps=4, workload=rows)
        yield triple, made.plan_file_sections["predicted"]["seconds"], found.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each triple")
    options = parser.parse_args()
    dice, apart = random.Random(options.seed), []
    coming = measured(draw(dice) for _ in iter(int, 1))
    for _ in range(options.cases):
        triple, told, simulated = next(coming)
        apart.append(told / simulated - 1)
        if options.json:
            print(json.dumps({**vars(triple), "compile_s": told, "simulate_s": simulated}), flush=True)
        else:
            print(f"{told:>10.2f}{simulated:>10.2f}{apart[-1]:>+8.1%}  {triple.title}", flush=True)
    if apart and not options.json:
        size = [abs(each) for each in apart]
        print(
            f"apart: median {median(size):.1%}, most {max(size):.1%}; {sum(s > NEAR for s in size)} beyond {NEAR:.0%}"
        )


if __name__ == "__main__":
    main()
