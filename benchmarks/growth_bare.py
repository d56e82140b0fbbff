"""What a driver of bare Ray grows by in a call, beside `growth.py`: the same kinds of calls, without rlgraph.

    python benchmarks/growth_bare.py
    python benchmarks/growth_bare.py --calls 20000

call: to an actor; group: in another group of its threads; ref: with an argument that another call makes; thread: a new
thread, which asks for nothing; thread call, thread ref: in a new thread each time.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.growth import Grown, _size


class Actor:
    def answer(self, *given: Any) -> bytes:
        return b"x" * 500

    def rows(self) -> list[bytes]:
        return [b"y" * 2000]


def in_thread(work: Callable[[], None]) -> Callable[[], None]:
    def begin() -> None:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    return begin


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--calls", type=int, default=6000)
    given = options.parse_args()
    # As where rlgraph starts Ray.
    os.environ.setdefault("RAY_task_events_report_interval_ms", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
    import ray

    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    remote: Any = ray.remote
    kind = remote(concurrency_groups={"rows": 4})(Actor)
    one, other = (kind.options(num_cpus=0, enable_task_events=False).remote() for _ in range(2))

    def call() -> None:
        ray.get(one.answer.remote(b"z" * 300))

    def group() -> None:
        ray.get(one.answer.options(concurrency_group="rows").remote(b"z" * 300))

    def ref() -> None:
        ray.get(other.answer.remote(b"z" * 300, one.rows.remote()))

    cases = {"call": call, "group": group, "ref": ref, "thread": in_thread(lambda: None)}
    cases |= {"thread call": in_thread(call), "thread ref": in_thread(ref)}
    for name, work in cases.items():
        grown, began = Grown(name), time.perf_counter()
        for number in range(given.calls):
            work()
            if number % max(1, given.calls // 60) == 0:
                gc.collect()
                grown.points.append((number, _size(os.getpid())))
        slope, low, high = grown.slope()
        milliseconds = 1e3 * (time.perf_counter() - began) / given.calls
        print(f"{name:12} {slope:+8.1f} bytes each   {low:+8.1f} {high:+8.1f}   {milliseconds:.2f} ms")
    ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
