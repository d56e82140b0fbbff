"""What a GPU has to show, with PyTorch and transformers alone: no Ray, no vLLM, no network.

    make gpu
    python -m benchmarks.gpu correctness memory --json gpu.json

Each part is a process of its own, which has ten minutes. With `--device cpu --small` the parts go through the same
motions anywhere.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.gpu.measure import Row, Setting, Skipped

PARTS = (
    "correctness",
    "megatron",
    "links",
    "memory",
    "sleeping",
    "throughput",
    "predictions",
    "demo",
    "beside_trl",
)
LIMIT_S = 600
ROOT = Path(__file__).parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all if none is named")
    parser.add_argument("--device", default="cuda", help="as torch names it")
    parser.add_argument("--small", action="store_true", help="tiny models, to try the parts themselves")
    parser.add_argument("--json", type=Path, help="write what was found to this file")
    parser.add_argument("--only", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if unknown := [name for name in asked.parts if name not in PARTS]:
        parser.error(f"no part is called {unknown[0]}: there are {', '.join(PARTS)}")
    setting = Setting(asked.device, asked.small)
    if asked.only:
        return part(asked.parts[0], setting, asked.only)
    told = machine(setting)
    if told is None:
        print(f"there is no device `{asked.device}` here: `--device cpu --small` tries the parts", file=sys.stderr)
        return 2
    print(", ".join(f"{name} {value}" for name, value in told.items()))
    found = {name: alone(name, setting) for name in asked.parts or PARTS}
    if asked.json:
        asked.json.write_text(json.dumps({"machine": told, "parts": found}, indent=1) + "\n")
    bad = [name for name, each in found.items() if each["error"] or not all(row["good"] for row in each["rows"])]
    print(f"\n{len(found)} parts: " + (f"not as it should be: {', '.join(bad)}" if bad else "all as it should be"))
    return int(bool(bad))


def machine(setting: Setting) -> dict[str, str] | None:
    """What it is measured on; None if there is no such device."""
    import torch
    import transformers

    versions = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    if not setting.gpu:
        return {"device": setting.device, **versions}
    if not torch.cuda.is_available():
        return None
    return {"device": torch.cuda.get_device_name(setting.device), **versions}


def alone(name: str, setting: Setting) -> dict[str, Any]:
    """A part in a process of its own; what it found is printed and returned."""
    with TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        command = [sys.executable, "-m", "benchmarks.gpu", name, "--device", setting.device, "--only", str(out)]
        began, error = time.perf_counter(), ""
        try:
            code = subprocess.run(
                [*command, *(["--small"] if setting.small else [])], cwd=ROOT, timeout=LIMIT_S
            ).returncode
            error = f"ended with status {code}" if code else ""
        except subprocess.TimeoutExpired:
            error = f"took more than {LIMIT_S} s"
        rows, skipped = json.loads(out.read_text()) if out.exists() else ([], "")
    found = {"seconds": time.perf_counter() - began, "error": error, "skipped": skipped, "rows": rows}
    print(f"\n## {name}, {found['seconds']:.0f} s{f': {error}' if error else ''}\n")
    print(f"left out: {skipped}" if skipped else "\n".join(table(rows)), flush=True)
    return found


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Markdown."""
    lines = ["| what | measured | asked | |", "|---|--:|--:|---|"]
    for row in rows:
        bounds = [f"at least {row['least']:.4g}"] if row["least"] is not None else []
        bounds += [f"at most {row['most']:.4g}"] if row["most"] is not None else []
        verdict = ("ok" if row["good"] else "**no**") if bounds else ""
        lines.append(f"| {row['what']} | {row['measured']:.4g} {row['unit']} | {', '.join(bounds)} | {verdict} |")
    return lines


def part(name: str, setting: Setting, out: Path) -> int:
    """Does a part here, and writes after each row what there is."""
    rows: list[dict[str, Any]] = []
    try:
        for row in import_module(f"benchmarks.gpu.{name}").rows(setting):
            assert isinstance(row, Row)
            rows.append({**asdict(row), "good": row.good})
            out.write_text(json.dumps([rows, ""]))
    except Skipped as why:
        out.write_text(json.dumps([rows, str(why)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
