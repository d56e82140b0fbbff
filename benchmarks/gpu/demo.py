"""`make demo-small` on the device: whether the small model learns there, too."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.gpu.measure import Row, Setting, Skipped

PROGRAM = Path(__file__).parents[2] / "examples" / "spell_backward" / "demo.py"
NEEDED = ("reasoning_gym", "matplotlib")
"""Of the extra `demo`."""


def rows(setting: Setting) -> Iterator[Row]:
    if lacking := [name for name in NEEDED if find_spec(name) is None]:
        raise Skipped(f"{' and '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} not installed")
    if setting.small:
        raise Skipped("it has one size")
    with TemporaryDirectory() as place:
        began = time.perf_counter()
        subprocess.run([sys.executable, PROGRAM, "--out", place, "--device", setting.device], check=True)
        took = time.perf_counter() - began
        found = json.loads((Path(place) / "summary.json").read_text())
    yield Row("reward of samples, first ten steps", found["reward_first"])
    yield Row("reward of samples, last ten steps", found["reward_last"], least=found["reward_first"] + 0.15)
    yield Row("held-out accuracy, warmed up", found["accuracy_before"])
    yield Row("held-out accuracy, at the end", found["accuracy_after"], least=found["accuracy_before"] + 0.1)
    yield Row("the whole demo", took, "s")
