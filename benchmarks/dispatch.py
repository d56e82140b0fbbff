"""What it costs to give work to N processes and hear that it is done, beside bare Ray and, if it is installed, verl.

The payload is 1 KiB in all (256 float32 numbers), shared out over 2, 4 and 8 actors of one Ray cluster. The ways take
turns, and medians are shown. One process after another is never measured alone: a machine that is busy is so for all of
them.

    rows here     rlgraph: `Dispatch.fire` of `exp(2 x + 1)` on N copies that have their rows: an order each, a receipt
                  each
    rows away     rlgraph: the same where another process has the rows, and each copy gets its own from there first
    ray ack       bare Ray: each actor gets its numbers from the driver, and answers with how many they are
    ray echo      bare Ray: each actor sends its numbers back, and the driver puts them together
    ray away      bare Ray: another actor cuts the numbers; each actor gets the reference to its own, and answers with
                  how many
    verl ack      verl's RayWorkerGroup, dispatch by `make_nd_compute_dataproto_dispatch_fn`: numbers out, one back
    verl echo     the same with the numbers back

    python benchmarks/dispatch.py
    python benchmarks/dispatch.py --workers 4 --profile

In rlgraph the numbers never pass the driver: `rows here` is to be compared with `ray ack`, `rows away` with `ray away`.
`peers/README.md` says how an environment with verl is made; without verl its columns are left out.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import logging
import os
import pstats
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_USAGE_STATS_ENABLED": "0"}
os.environ.setdefault("VERL_LOGGING_LEVEL", "ERROR")
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE / "peers")]

import clock
import numpy as np
import ray

import rlgraph
from rlgraph.backends.distributed.transport import NodeRequest
from rlgraph.backends.ray.backend import RayBackend
from rlgraph.backends.ray.failures import CallContext
from rlgraph.backends.ray.worker import Worker
from rlgraph.backends.worker.session import Settings
from rlgraph.ir.mesh import make_mesh
from rlgraph.ir.plan import HOST, Group, Plan, Pool

ROWS = 256
PROGRAM = f"""
algorithm rows
model actor  = causal_lm(random("qwen2", hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
                                num_key_value_heads=1, tokenizer=chars("ab")))
data samples = python("rows.py:rows", batch={ROWS})
func value   = python("rows.py:value")

step:
    texts = encode(samples.prompt, samples.response)
    x = value(texts)
    y = exp(2 * x + 1)
    report total = sum(y)
"""
FUNCTIONS = f"""
def rows():
    return [{{"prompt": "a", "response": "b"}}] * {ROWS}

def value(completions, **columns):
    return [1.0] * len(completions)
"""

Way = Callable[[], object]
"""What is timed."""


class Bare:
    """An actor that has nothing of ours."""

    def ack(self, numbers: np.ndarray) -> int:
        return len(numbers)

    def echo(self, numbers: np.ndarray) -> np.ndarray:
        return numbers

    def cut(self, start: int, stop: int) -> np.ndarray:
        return np.zeros(ROWS, dtype=np.float32)[start:stop]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="*", default=[2, 4, 8])
    parser.add_argument("--reps", type=int, default=60, help="rounds in which each way is timed once")
    parser.add_argument(
        "--profile", action="store_true", help="print what the driver does in `rows here` and `rows away`"
    )
    parser.add_argument("--out", default="", help="append the results to this file")
    return parser.parse_args()


class Ours:
    """A backend with the most copies that are asked for, and the first nodes of its program done in the host
    process."""

    def __init__(self, most: int) -> None:
        folder = Path(tempfile.mkdtemp())
        (folder / "rows.py").write_text(FUNCTIONS)
        (folder / "rows.rlf").write_text(PROGRAM)
        program = rlgraph.compile(folder / "rows.rlf").program
        host = Group(HOST, HOST, HOST, make_mesh(), ())
        plan = Plan(program.name, (Pool(HOST, 0), Pool("all", most)), (host, self.copies(most)), (), ())
        self.backend = RayBackend(program, plan, Settings(folder=folder), seconds=120)
        graph = self.backend.program.phases[-1].graph
        self.frame = self.backend.new_frame(self.backend.program.phases[-1], 1)
        for value in graph.inputs:
            self.frame.values[value.name] = self.backend.initial_things[value.name.rsplit("@", 1)[0]]
        for self.node in graph.walk():
            if self.node.op == "tensor":
                break
            made = self.backend.transport.run_request(NodeRequest(self.node, self.frame, host))
            for rows in made.rows:
                self.frame.add_rows(rows)
            self.frame.values.update(made.values)

    def copies(self, count: int) -> Group:
        return Group("copies", "all", "transformers", make_mesh(dp=count), tuple(range(count)))

    def ways(self, count: int) -> dict[str, Way]:
        copies = self.copies(count)

        def fire() -> object:
            return self.backend.transport.run_request(NodeRequest(self.node, self.frame, copies))

        # In this order: after the first the rows are here.
        return {"rows away": fire, "rows here": fire}

    def forget(self, count: int) -> None:
        """Lets the copies lack their rows again."""
        self.backend.orders.dispatch.ledger.forget_step(self.frame.step)
        asked = CallContext(tuple(("copies", rank) for rank in range(count)), "forgetting a step")
        self.backend.processes.call_all(asked, Worker.forget_step_except, self.frame.step, [])


def bare(actors: list[Any], other: Any) -> dict[str, Way]:
    numbers = np.zeros(ROWS, dtype=np.float32)
    cuts = [(ROWS * i // len(actors), ROWS * (i + 1) // len(actors)) for i in range(len(actors))]

    def ack() -> object:
        return ray.get(
            [actor.ack.remote(numbers[start:stop]) for actor, (start, stop) in zip(actors, cuts, strict=True)]
        )

    def echo() -> object:
        parts = ray.get([actor.echo.remote(numbers[a:b]) for actor, (a, b) in zip(actors, cuts, strict=True)])
        return np.concatenate(parts)

    def away() -> object:
        return ray.get([actor.ack.remote(other.cut.remote(*cut)) for actor, cut in zip(actors, cuts, strict=True)])

    return {"ray ack": ack, "ray echo": echo, "ray away": away}


def verl(count: int) -> tuple[dict[str, Way], list[Any]]:
    """verl's ways and its actors; none where it is not installed."""
    try:
        import verl_workers
    except ModuleNotFoundError:
        return {}, []
    return verl_workers.ways(count, ROWS)


def main() -> None:
    options = arguments()
    path = os.pathsep.join([str(HERE.parent), str(HERE / "peers"), os.environ.get("PYTHONPATH", "")])
    ray.init(
        address="local",
        num_cpus=64,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=1 << 30,
        runtime_env={"env_vars": {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}},
    )
    ours = Ours(max(options.workers))
    bare_kind: Any = ray.remote(Bare)
    other, actors = bare_kind.remote(), [bare_kind.remote() for _ in range(max(options.workers))]
    results = []
    try:
        for count in options.workers:
            theirs, workers = verl(count)
            ways = ours.ways(count) | bare(actors[:count], other) | theirs
            results.append({"workers": count, **measure(ways, options.reps, lambda n=count: ours.forget(n))})
            show(results[-1], header=len(results) == 1)
            if options.profile:
                for name in ("rows away", "rows here"):
                    profile(
                        name,
                        ways[name],
                        options.reps,
                        lambda n=count, k=name: ours.forget(n) if k == "rows away" else None,
                    )
            for worker in workers:
                ray.kill(worker)
    finally:
        ours.backend.close()
        ray.shutdown()
    if options.out:
        with open(options.out, "a") as file:
            file.write(
                json.dumps({"what": "dispatch", "bytes": 4 * ROWS, "results": results, "env": clock.stamp()}) + "\n"
            )


def measure(ways: dict[str, Way], reps: int, prepare: Callable[[], None]) -> dict[str, Any]:
    """Milliseconds: for each way the median and the fastest. `prepare` comes before each round, and is not timed."""
    for _ in range(3):
        prepare()
        for way in ways.values():
            way()
    times: dict[str, list[float]] = {name: [] for name in ways}
    clock.quiet()
    before = clock.host_busy()
    for _ in range(reps):
        prepare()
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            times[name].append(1e3 * (time.perf_counter() - began))
    after = clock.host_busy()
    median = {name: statistics.median(found) for name, found in times.items()}
    return {
        "median": median,
        "least": {name: min(found) for name, found in times.items()},
        "here_over_bare": median["rows here"] / median["ray ack"],
        "away_over_bare": median["rows away"] / median["ray away"],
        "busy": (after[0] - before[0]) / max(1, after[1] - before[1]),
    }


def show(found: dict[str, Any], *, header: bool) -> None:
    if header:
        print(
            "milliseconds, median (least)\n"
            + f"{'actors':>6}"
            + "".join(f"{name:>16}" for name in found["median"])
            + "    here/ack   away/away"
        )
    cells = [f"{found['median'][name]:.2f} ({found['least'][name]:.2f})" for name in found["median"]]
    print(
        f"{found['workers']:>6}"
        + "".join(f"{cell:>16}" for cell in cells)
        + f"{found['here_over_bare']:>12.2f}{found['away_over_bare']:>12.2f}",
        flush=True,
    )


def profile(name: str, way: Way, reps: int, prepare: Callable[[], None]) -> None:
    profiler = cProfile.Profile()
    for _ in range(reps):
        prepare()
        profiler.enable()
        way()
        profiler.disable()
    print(f"\n{name}, {reps} times")
    pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
