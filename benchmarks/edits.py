"""Whether a change of a plan's caches and micro-batches beats the plan by more than its gap.

    python benchmarks/edits.py
    python benchmarks/edits.py --json

Programs that ship are compiled for a cluster. In the plan file each cache and each micro-batch is made 0.25 to 4 times
as large, one at a time; what does not fit is refused when it is read, and the others are simulated, with the same rows
as the plan. `best` is the fastest of them beside the plan, `gap` how far the plan says that it may be from the best
there is. A step's rows are drawn: `--steps` says of how many the mean is.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import rlgraph
from rlgraph.errors import ProgramError

ALGORITHMS = Path(rlgraph.__file__).parent / "algorithms"
FACTORS = (0.25, 0.5, 0.67, 0.8, 1.25, 1.5, 2, 3, 4)
SETTINGS = ("kv_bytes", "micro_tokens")
PLANS = (
    ("grpo", "Qwen/Qwen2.5-3B", "1x8:rtx4090"),
    ("grpo", "Qwen/Qwen2.5-7B", "1x8:h100-80gb"),
    ("grpo", "Qwen/Qwen2.5-14B", "2x8:h20-96gb"),
    ("dapo", "Qwen/Qwen2.5-32B", "4x8:h100-80gb"),
    ("ppo", "Qwen/Qwen2.5-7B", "2x8:a100-80gb"),
    ("remax", "Qwen/Qwen2.5-7B", "1x8:h100-80gb"),
    ("online_dpo", "Qwen/Qwen2.5-7B", "2x8:h100-80gb"),
    ("ppo", "meta-llama/Llama-2-70b-hf", "16x8:a100-80gb"),
)
BESIDE = 0.001
"""By which share more than the gap a plan may be beaten: rows of whole tokens, whole rows at a time."""


@dataclass(frozen=True)
class Edit:
    """One number of a plan file, and what becomes of it."""

    model: str
    setting: str
    value: int
    factor: float

    def __str__(self) -> str:
        return f"{self.setting} {self.value} of {self.model} x {self.factor}"


def edits(file: dict[str, Any]) -> Iterator[tuple[Edit, dict[str, Any]]]:
    """Of a plan file, and the file then."""
    for place, holding in enumerate(file["plan"]["holdings"]):
        for setting in SETTINGS:
            for factor in FACTORS if holding.get(setting) else ():
                other = json.loads(json.dumps(file))
                other["plan"]["holdings"][place][setting] = max(1, int(holding[setting] * factor))
                yield Edit(holding["model"], setting, holding[setting], factor), other


def seconds(file: dict[str, Any], folder: Path, steps: int) -> float | None:
    """Of a step; None: it does not fit."""
    path = folder / "edited.json"
    path.write_text(json.dumps(file))
    try:
        return rlgraph.simulate(rlgraph.load_plan(path), steps=steps).seconds
    except ProgramError:
        return None


def tried(program: str, model: str, cluster: str, steps: int, folder: Path) -> dict[str, Any]:
    """The best edit of one plan."""
    made = rlgraph.compile(ALGORITHMS / f"{program}.rlf", {"base": f'"{model}"'}, cluster=cluster, stream=False)
    file = json.loads(made.plan_json(folder))
    whole = seconds(file, folder, steps)
    assert whole is not None, "the plan that was chosen fits"
    found = [(edit, seconds(other, folder, steps)) for edit, other in edits(file)]
    fit = [(took, str(edit)) for edit, took in found if took is not None]
    took, edit = min(fit, default=(whole, ""))
    return {
        "program": program,
        "model": model,
        "cluster": cluster,
        "predicted_s": file["predicted"]["seconds"],
        "simulated_s": whole,
        "gap": file["predicted"]["gap"],
        "edits": len(found),
        "fit": len(fit),
        "saves": 1 - took / whole,
        "best": edit,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each plan")
    options = parser.parse_args()
    beaten = 0
    with TemporaryDirectory() as folder:
        for plan in PLANS:
            row = tried(*plan, options.steps, Path(folder))
            beaten += row["saves"] > row["gap"] + BESIDE
            if options.json:
                print(json.dumps(row), flush=True)
                continue
            print(
                f"{row['program']} {row['model']} {row['cluster']}: {row['predicted_s']:.2f} s, simulated "
                f"{row['simulated_s']:.2f}; gap {row['gap']:.1%}, {row['fit']} of {row['edits']} edits fit, the best "
                f"saves {row['saves']:.2%}: {row['best']}",
                flush=True,
            )
    if not options.json:
        print(f"{beaten} of {len(PLANS)} plans are beaten by more than their gap and {BESIDE:.1%}")


if __name__ == "__main__":
    main()
