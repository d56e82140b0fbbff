"""`rlgraph profile` of this machine, and what is predicted with it beside what is measured."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.gpu.measure import Row, Setting, Skipped

PROGRAM = Path(__file__).parents[1] / "prediction.py"
NEAR = 0.15
"""Median error of a step's seconds that is asked for."""
LINE = re.compile(r"\| (?P<case>[^|]+) \| (?P<predicted>\d+) \| (?P<measured>\d+) \| ")


def rows(setting: Setting) -> Iterator[Row]:
    if setting.small:
        raise Skipped("it has one size")
    with TemporaryDirectory() as folder:
        saved = str(Path(folder) / "here.json")
        command = [sys.executable, str(PROGRAM), "--local", "--save", saved]
        told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    print(told, file=sys.stderr)
    errors = []
    for found in LINE.finditer(told):
        errors.append(abs(int(found["predicted"]) / int(found["measured"]) - 1))
        yield Row(f"{found['case']}: predicted / measured", int(found["predicted"]) / int(found["measured"]))
    yield Row("median error", sorted(errors)[len(errors) // 2], most=NEAR)
