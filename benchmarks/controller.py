"""What the controller of a run on Ray adds to a step: GRPO on the toy task of peers/ with 2, 4 and 8 actors, half of
which train and half generate, both with the transformers engine; the host process comes on top.

    python benchmarks/controller.py
    python benchmarks/controller.py --actors 2 4 --steps 10

    nobody    milliseconds of a step in which no process works: what the controller, Ray and the wait for them add
    share     of the step
    driver    CPU milliseconds of the controller's process in a step, Ray's threads in it included

The model is small, so the share says little of large ones; the milliseconds are the same for them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--actors", type=int, nargs="*", default=[2, 4, 8])
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--out", default="", help="append the results to this file")
    return parser.parse_args()


def measured(actors: int, steps: int) -> dict[str, float]:
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
            str(steps),
            "--out",
            str(out),
        ]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        return json.loads(out.read_text())


def main() -> None:
    options = arguments()
    print(
        "".join(
            f"{name:>12}" for name in ("actors", "step ms", "nobody ms", "share", "driver ms", "samples/s", "host busy")
        )
    )
    for actors in options.actors:
        found = measured(actors, options.steps)
        step, nobody, driver = (1e3 * found[name] for name in ("step_s", "nobody_s", "driver_cpu_s"))
        print(
            f"{actors:>12}{step:>12.1f}{nobody:>12.1f}{nobody / step:>12.1%}{driver:>12.1f}"
            f"{found['samples_per_s']:>12.1f}{found['host_busy']:>12.2f}",
            flush=True,
        )
        if options.out:
            with open(options.out, "a") as file:
                file.write(json.dumps({**found, "what": "controller", "actors": actors}) + "\n")


if __name__ == "__main__":
    main()
