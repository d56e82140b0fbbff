"""Training on one side of a slow link and generating on the other, by time and by price, beside one kind of device.

    python benchmarks/slow_link.py
    python benchmarks/slow_link.py --json

The program is `asynchrony/streamrl.rlf`, one step off; where everything runs is searched for, with no schedule. Of the
machines that a row offers a plan may leave some out: it pays for those that it takes. The seconds are the simulator's,
with the default constants, but for vLLM as it was then (`older_vllm.py`), and prices those of
rlgraph/catalog/clusters/devices.toml. Nothing is run. The table is that of docs/why/streaming.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import rlgraph
from benchmarks.older_vllm import older_vllm
from rlgraph.passes.compilation.target import parse_workload
from rlgraph.passes.placement.choose import PlacementChoice

PROGRAM = Path(__file__).resolve().parent / "asynchrony" / "streamrl.rlf"
MODELS = ("Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-32B", "Qwen/Qwen2.5-72B")
PROMPTS, ANSWERS = "150", "mean=2500,p99=10240"
ALONE = "8x8:h800-80gb"
CLUSTERS = (
    ALONE,
    "4x8:h800-80gb + 8x8:h20-96gb ~ 80Gb/s, 5ms",
    "4x8:h800-80gb + 8x8:h20-96gb ~ 10Gb/s, 5ms",
)
GOALS: tuple[Literal["time", "cost"], ...] = ("time", "cost")
HEAD = """| model | machines | for the least | training on, generating on | step, s | $ a step | rows a dollar |
|---|---|---|---|--:|--:|--:|"""


def rows(models: tuple[str, ...] = MODELS) -> Iterator[dict[str, Any]]:
    for model in models:
        for goal in GOALS:
            first = None
            for cluster in CLUSTERS:
                found = row(model, cluster, goal)
                first = first or found["rows_per_dollar"]
                yield {**found, "gain": found["rows_per_dollar"] / first}


@older_vllm()
def row(model: str, cluster: str, goal: Literal["time", "cost"]) -> dict[str, Any]:
    lengths = parse_workload(PROMPTS, ANSWERS, 1.0)
    made = rlgraph.compile(PROGRAM, {"base": f'"{model}"'}, cluster=cluster, workload=lengths, minimize=goal)
    choice = made.choice
    seconds = made.plan_file_sections["predicted"]["seconds"]
    dollars = seconds * choice.problem.dollars_per_second(choice.search_result.blocks, choice.search_result.devices)
    batch = next(task for task in choice.problem.tasks if task.op == "generate").batches
    where = [choice.plan.group_of_role("actor", op) for op in ("train", "generate")]
    pools = {pool.name: pool for pool in choice.plan.pools}
    devices = [f"{pools[group.pool].devices} {device(pools[group.pool].first, choice)}" for group in where]
    return {
        "model": model,
        "machines": cluster,
        "goal": goal,
        "pools": ", ".join(devices if where[0].pool != where[1].pool else [f"{devices[0]} in turn"]),
        "seconds": seconds,
        "dollars": dollars,
        "rows_per_dollar": sum(each.rows for each in batch) / dollars,
    }


def device(first: int, choice: PlacementChoice) -> str:
    """What kind it is, as people call it."""
    cluster = choice.question.cluster
    return cluster.islands[cluster.node_group_number(first)].device.name.partition("-")[0].upper()


def shown(found: dict[str, Any]) -> str:
    cells = (
        found["model"].partition("/")[2],
        found["machines"],
        found["goal"],
        found["pools"],
        f"{found['seconds']:.1f}",
        f"{found['dollars']:.2f}",
        f"{found['rows_per_dollar']:.0f}, {found['gain']:.2f}x",
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="a line of JSON for each row instead of the table")
    options = parser.parse_args()
    if not options.json:
        print(HEAD)
    for found in rows():
        print(json.dumps(found) if options.json else shown(found), flush=True)


if __name__ == "__main__":
    main()
