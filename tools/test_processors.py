"""Runs the tests that compare numbers as other processors would compute them, and reports all.

Libraries choose their code by the processor that they find, and are told here to take what older ones have. Each sums
in another order, so a test that passes on one machine alone shows itself.

    python tools/test_processors.py [what pytest takes]
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
NUMBERS = [
    "tests/backends",
    "tests/backends/engines",
    "tests/catalog/models",
    "tests/ops",
    "tests/reference",
    "tests/test_notebook.py",
    "--ignore=tests/backends/ray",
]
PROCESSORS: dict[str, dict[str, str]] = {
    "this machine": {},
    "AVX2": {"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "SSE": {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41"},
    "torch without vectors": {"ATEN_CPU_CAPABILITY": "default"},
    "torch with all, MKL with none": {"MKL_CBWR": "COMPATIBLE"},
}
"""What each is told; torch, its matrix products and its convolutions choose on their own, so two are mixed."""


def main(arguments: list[str]) -> int:
    said = {}
    for processor, told in PROCESSORS.items():
        print(f"{processor}: {' '.join(f'{name}={value}' for name, value in told.items()) or 'as it is'}", flush=True)
        start = time.monotonic()
        run = subprocess.run(
            [sys.executable, "-m", "pytest", *(arguments or NUMBERS)], cwd=ROOT, env=os.environ | told, check=False
        )
        said[processor] = run.returncode, time.monotonic() - start
    for processor, (status, seconds) in said.items():
        print(f"{processor:32} {'passed' if status == 0 else 'FAILED'} in {seconds:.0f} s")
    return int(any(status for status, _ in said.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
