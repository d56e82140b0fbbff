"""Nothing is kept for ever of what a run asks Ray for: `benchmarks/growth.py` measures it over thousands of steps."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import threading, time
from types import SimpleNamespace

import ray
from ray._private.state import state
from rlgraph.backends.ray.cluster import _connect
from rlgraph.backends.ray.daemons import Daemons

_connect(ray, None, SimpleNamespace(pools=()), print, Daemons())

@ray.remote(num_cpus=0, enable_task_events=False)
class Actor:
    def answer(self):
        return 1

actor = Actor.remote()
for number in range(30):
    thread = threading.Thread(target=lambda: ray.get(actor.answer.remote()))
    thread.start()
    thread.join()
# Records are sent each second.
time.sleep(3)
print(len(state._get_all_task_events()), "records")
ray.shutdown()
"""


@pytest.mark.long
def test_ray_keeps_no_record_of_who_asks() -> None:
    pytest.importorskip("ray.util")
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines()[-1:] == ["0 records"], done.stdout + done.stderr
