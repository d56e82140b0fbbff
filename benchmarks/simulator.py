"""What a simulation of a large agent takes: CPU seconds of `rlgraph simulate`, on one core.

    python benchmarks/simulator.py
    python benchmarks/simulator.py --copies 100 --workers 1000 --steps 20
    python benchmarks/simulator.py --json

The agent that ships, a model of 7B: so many copies generate, on a device each, 512 devices train, and so many cpus run
the environment (1,000 and 10,000, the size of the largest runs that SRL tells of: arXiv 2306.16688). A batch has 2,048
tasks with 8 episodes of 10 turns.

    cpu       CPU seconds, from the text to the prediction
    step      seconds of a step that are predicted
    agent     seconds of it in which the copies that generate are at work; worlds: the cpus
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import rlgraph
from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.explain.simulate import simulate

PROGRAM = Path(__file__).resolve().parents[1] / "rlgraph" / "algorithms" / "agent.rlf"
TASKS, TRAINING, NODE = 2048, 512, 8

SCHEDULE = """schedule agent
pool learn  = {training} devices
pool play   = {copies} devices
pool worlds = {workers} cpus
place actor.train on learn(engine=megatron, tp=4)
place actor.interact on play(engine=vllm, tp=1)
place shell on worlds
"""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--copies", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=1, help="that are simulated after those of warm-up")
    parser.add_argument("--json", action="store_true", help="print a line of JSON")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    text, found = re.subn(r"(data tasks +=.*batch=)\d+", rf"\g<1>{TASKS}", PROGRAM.read_text())
    assert found == 1
    schedule = SCHEDULE.format(training=TRAINING, copies=options.copies, workers=options.workers)
    cluster = f"{-(-(TRAINING + options.copies) // NODE)}x{NODE}:h100-80gb"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / PROGRAM.name
        path.write_text(text)
        for name in ("tasks", "unseen"):
            path.with_name(f"{name}.jsonl").write_text('{"prompt": "ls"}\n')
        path.with_name("envs.py").write_text("class Shell: ...\n")
        began = time.process_time()
        made = simulate(
            rlgraph.compile(path, schedule=schedule, cluster=cluster), read_cluster(cluster), steps=options.steps
        )
        cpu = time.process_time() - began
    busy = {pool.pool: pool.busy / options.steps for pool in made.pools}
    result = {
        "copies": options.copies,
        "workers": options.workers,
        "steps": options.steps,
        "cpu_s": cpu,
        "step_s": made.seconds,
        "agent_s": busy["play"],
        "worlds_s": busy["worlds"],
    }
    if options.json:
        print(json.dumps({"what": "simulator", **result}))
        return
    print("".join(f"{name:>12}" for name in ("copies", "workers", "steps", "cpu s", "step s", "agent s", "worlds s")))
    shown = (f"{value:>12.2f}" if isinstance(value, float) else f"{value:>12}" for value in result.values())
    print("".join(shown))


if __name__ == "__main__":
    main()
