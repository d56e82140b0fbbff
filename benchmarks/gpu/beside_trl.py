"""The same GRPO step as TRL's trainer, on the device: benchmarks/peers has the task."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.gpu.measure import Row, Setting, Skipped

PEERS = Path(__file__).parents[1] / "peers"
ROUNDS = 3


def rows(setting: Setting) -> Iterator[Row]:
    if find_spec("trl") is None:
        raise Skipped("trl is not installed")
    steps = "6" if setting.small else "15"
    found: dict[str, list[float]] = {"trl_bench.py": [], "rlgraph_bench.py": []}
    for _ in range(1 if setting.small else ROUNDS):
        for name, rates in found.items():
            with TemporaryDirectory() as folder:
                out = Path(folder) / "out.jsonl"
                more = ["--algo", "grpo"] if name.startswith("trl") else []
                command = [sys.executable, str(PEERS / name), "--device", setting.device, "--threads", "1"]
                subprocess.run([*command, "--steps", steps, "--out", str(out), *more], check=True, stdout=sys.stderr)
                rates.append(json.loads(out.read_text())["samples_per_s"])
    trl, ours = (statistics.median(rates) for rates in found.values())
    yield Row("TRL", trl, "samples/s")
    yield Row("rlgraph", ours, "samples/s")
    yield Row("rlgraph / TRL", ours / trl, "x", least=1.0)
