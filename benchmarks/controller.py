"""What the controller of a run on Ray adds to a step.

    python benchmarks/controller.py
    python benchmarks/controller.py --actors 2 4 --steps 10
    python benchmarks/controller.py --lag 1
    python benchmarks/controller.py --ranks
    python benchmarks/controller.py --ranks 257 1025 --block 64
    python benchmarks/controller.py --rows 8192 --tokens 8192 --host 1 2

With processes: GRPO on the toy task of peers/ with 2, 4 and 8 actors, half of which train and half generate, both with
the transformers engine; the host process comes on top.

    nobody    milliseconds of a step in which no process works: what the controller, Ray and the wait for them add
    share     of the step
    late      milliseconds in which an actor is idle though all that its next work needs has been made, because it waits
              for its order and rows: of the actor that does so longest, and the share of the step. With `--lag 1` steps
              overlap, and this is what the controller costs: others work meanwhile
    core      milliseconds in which an actor is ready to run and has no core, by Linux's `schedstat`: of the one that is
              longest so. Where there are more actors than cores it is much, and a part of `late` is this
    driver    CPU milliseconds of the controller's process in a step, Ray's threads in it included

The model is small, so the share says little of large ones; the milliseconds are the same for them.

With `--ranks` (257, 1,025 and 4,097, where none are named): processes that answer at once. GRPO of a model of 70B with
16,384 rows and 8 mini-batches; half of the ranks train (tp=8, pp=4), half generate (tp=8), and one is the host process.

    cpu       seconds of the controller's process in a step, the least of several; without the answers, and without Ray
    bound     the seconds that it may take
    calls     that the controller makes
    sent      kilobytes in them
    first     CPU seconds of the step in which the ways of the weights are planned, beyond those of another one

With `--rows`: PPO's mathematics between models on so many rows of half to all of `--tokens`, by one process of the host
or by several (`--host`), on Ray; models answer at once (`rows_between.py`).

    adv s     seconds from the request for advantages and targets to their answers
    math s    seconds of mathematics in it, of the process that takes longest
    taking s  seconds in which the processes of the host unpack what they got, of the one that takes longest
    packing s seconds in which others pack it
    MB        that came to the processes of the host
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import torch

from benchmarks.at_once import HEADS, STAGES, grpo

BOUNDS = {257: 0.2, 1025: 0.5, 4097: 2.0}
"""CPU seconds of a step, by ranks."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--actors", type=int, nargs="*", default=[2, 4, 8])
    parser.add_argument("--steps", type=int, help="that are measured: 15, and 3 with `--ranks`")
    parser.add_argument("--lag", type=int, default=0, help="steps that the weights that generate are behind")
    parser.add_argument("--ranks", type=int, nargs="*", help="count so many processes that answer at once")
    parser.add_argument("--rows", type=int, default=0, help="whose mathematics between models is measured")
    parser.add_argument("--tokens", type=int, default=8192, help="of `--rows`: those of the longest one")
    parser.add_argument("--host", type=int, nargs="*", default=[1, 2], help="of `--rows`: processes of the host")
    parser.add_argument("--block", type=int, default=0, help="of `--ranks`: rows that are streamed together")
    parser.add_argument("--out", default="", help="append the results to this file")
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each result")
    return parser.parse_args()


def measured(actors: int, steps: int, lag: int) -> dict[str, float]:
    """The result of `peers/rlgraph_bench.py`."""
    half = actors // 2
    schedule = (
        f"schedule toy_grpo\npool learn = {half} devices\npool play = {half} devices\n"
        f"place actor.train on learn(engine=transformers, dp={half})\n"
        f"place actor.generate on play(engine=transformers, dp={half})\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        plan, out = Path(folder) / "plan.rls", Path(folder) / "out.jsonl"
        plan.write_text(schedule)
        command = [
            sys.executable,
            str(HERE / "peers" / "rlgraph_bench.py"),
            "--plan",
            str(plan),
            "--threads",
            "1",
            "--steps",
            str(steps + lag),
            "--lag",
            str(lag),
            "--out",
            str(out),
        ]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        found: dict[str, float] = json.loads(out.read_text())
        return found


def counted(ranks: int, steps: int, block: int) -> dict[str, float]:
    """Of processes that answer at once."""
    half = ranks // 2
    run = grpo(half // (HEADS * STAGES), half // HEADS, block=block)
    found, coming = [], run.run_steps(2 + steps)
    for _ in range(2 + steps):
        run.processes.forget()
        began = time.process_time()
        next(coming)
        found.append(time.process_time() - began - run.processes.seconds)
    least = min(found[2:])
    return {
        "ranks": ranks,
        "block": block,
        "cpu_s": least,
        "bound_s": BOUNDS.get(ranks, math.nan),
        "calls": run.processes.calls.total(),
        "sent_bytes": run.processes.sent.total(),
        "first_s": max(0.0, found[1] - least),
    }


def count(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    names = ("ranks", "cpu s", "bound s", "calls", "sent kB", "first s")
    if not options.json:
        print("".join(f"{name:>12}" for name in names))
    for ranks in options.ranks or BOUNDS:
        found = counted(ranks, options.steps or 3, options.block)
        if not options.json:
            print(
                f"{ranks:>12}{found['cpu_s']:>12.3f}{found['bound_s']:>12.1f}{found['calls']:>12}"
                f"{found['sent_bytes'] / 1e3:>12.0f}{found['first_s']:>12.2f}",
                flush=True,
            )
        tell(options, {**found, "what": "controller"})


def tell(options: argparse.Namespace, found: Mapping[str, Any]) -> None:
    if options.json:
        print(json.dumps(found), flush=True)
    if options.out:
        with open(options.out, "a") as file:
            file.write(json.dumps(found) + "\n")


def between_models(options: argparse.Namespace) -> None:
    """Each number of processes in a process of its own, so that Ray is started anew."""
    names = ("host", "adv s", "math s", "taking s", "packing s", "MB")
    if not options.json:
        print("".join(f"{name:>12}" for name in names))
    for host in options.host:
        size = str(options.rows), str(options.tokens), str(host), str(options.steps or 2)
        command = [sys.executable, str(HERE / "rows_between.py"), *size]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        found = json.loads(done.stdout)
        numbers = [found[name] for name in ("adv_s", "math_s", "taking_s", "packing_s", "received_mb")]
        if not options.json:
            print(f"{host:>12}" + "".join(f"{number:>12.2f}" for number in numbers), flush=True)
        tell(options, {**found, "what": "controller"})


def main() -> None:
    options = arguments()
    if options.rows:
        between_models(options)
        return
    if options.ranks is not None:
        count(options)
        return
    names = [
        "actors",
        "step ms",
        "nobody ms",
        "share",
        "late ms",
        "share",
        "core ms",
        "driver ms",
        "samples/s",
        "host busy",
    ]
    if not options.json:
        print("".join(f"{name:>12}" for name in names))
    for actors in options.actors:
        found = measured(actors, options.steps or 15, options.lag)
        step, nobody, late, core, driver = (
            1e3 * found[name] for name in ("step_s", "nobody_s", "late_s", "core_s", "driver_cpu_s")
        )
        if not options.json:
            print(
                f"{actors:>12}{step:>12.1f}{nobody:>12.1f}{nobody / step:>12.1%}{late:>12.1f}"
                f"{late / step:>12.1%}{core:>12.1f}{driver:>12.1f}"
                f"{found['samples_per_s']:>12.1f}{found['host_busy']:>12.2f}",
                flush=True,
            )
        tell(options, {**found, "what": "controller", "actors": actors})


if __name__ == "__main__":
    main()
