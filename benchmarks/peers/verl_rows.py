"""What rows cost on their way between verl's controller and its workers, in seconds for each GB of a padded batch.

The controller cuts a batch into one part for each replica and puts them into Ray's store, one after the other; a worker
takes its part before it works, and gives its answer back; the controller gets the answers of all workers, also of those
that have the same rows, and joins those of one in each replica (`func_generator` and `DataProto` of verl 0.4.0). All
numbers of a row go, padded to the longest prompt and answer that there may be. What is measured here is added to the
predictions of verl's phases (`../padded_rows.py`).

    pip install --no-deps --target /tmp/peers40 verl==0.4.0 tensordict==0.6.2 orjson
    PYTHONPATH=/tmp/peers40 .venv/bin/python benchmarks/peers/verl_rows.py

It needs Ray and torch, as rlgraph's own environment has them. Seconds are CPU time of the process that does it, so that
a busy machine changes them little; medians of the rounds are shown.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import ray
import torch
from verl.protocol import DataProto

PROMPT, ANSWER = 2048, 8192
"""Places of a padded row in the recipes of verl whose phases are known."""


@ray.remote
class Worker:
    """One of verl's, without a model: it has an answer ready."""

    def __init__(self, rows: int) -> None:
        self.answer = DataProto.from_dict({name: torch.rand(rows, ANSWER) for name in ("old_log_probs", "entropys")})

    def take(self, rows: DataProto) -> int:
        return len(rows)

    def give(self) -> DataProto:
        return self.answer

    def used(self) -> float:
        """CPU seconds by now, those before and after a call's own included."""
        return time.process_time()


def batch(rows: int) -> DataProto:
    """What is asked log-probabilities of, but for its scores."""
    places = dict.fromkeys(("input_ids", "attention_mask", "position_ids"), PROMPT + ANSWER)
    places |= {"prompts": PROMPT, "responses": ANSWER}
    return DataProto.from_dict({name: torch.randint(9, (rows, size)) for name, size in places.items()})


def bytes_of(rows: DataProto) -> int:
    return sum(each.nbytes for each in rows.batch.values())


def timed(used: Callable[[], float], does: Callable[[], Any]) -> tuple[float, Any]:
    began = used()
    found = does()
    return used() - began, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    ray.init(num_cpus=1, log_to_driver=False, include_dashboard=False)
    worker, rows = Worker.remote(arguments.rows), batch(arguments.rows)
    out, back = bytes_of(rows) / 1e9, arguments.rows * ANSWER * 2 * 4 / 1e9
    found: dict[str, list[float]] = {"put": [], "take": [], "give": [], "get": [], "join": []}
    here, there = time.process_time, lambda: ray.get(worker.used.remote())
    for _ in range(arguments.rounds):
        seconds, parts = timed(here, lambda: [ray.put(part) for part in rows.chunk(arguments.replicas)])
        found["put"].append(seconds / out)
        seconds, _ = timed(there, partial(lambda sent: ray.get([worker.take.remote(part) for part in sent]), parts))
        found["take"].append(seconds / out)
        seconds, given = timed(there, lambda: ray.wait([worker.give.remote()], fetch_local=False)[0][0])
        found["give"].append(seconds / back)
        seconds, answer = timed(here, partial(ray.get, given))
        found["get"].append(seconds / back)
        seconds, _ = timed(here, partial(DataProto.concat, [answer]))
        found["join"].append(seconds / back)
        del parts, given, answer
    sizes = f"{out:.2f} GB out in {arguments.replicas} parts, {back:.2f} GB back"
    print(f"{sizes}; CPU seconds a GB, median (least to most)")
    for name, each in found.items():
        print(f"  {name:5} {statistics.median(each):5.2f}  ({min(each):.2f} to {max(each):.2f})")


if __name__ == "__main__":
    main()
