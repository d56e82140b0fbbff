"""How many lines each algorithm has that ships with rlgraph, and how many its file has in other systems.

    python benchmarks/lines.py                       the programs in rlgraph/algorithms
    python benchmarks/lines.py FILE...               these files
    python benchmarks/lines.py --wheels FOLDER       the files of other systems, from their wheels; written to
                                                     lines.json

A line counts if it is neither blank nor only a comment; in Python docstrings do not count either.
"""

from __future__ import annotations

import argparse
import ast
import json
import zipfile
from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

ALGORITHMS = Path(__file__).parent.parent / "rlgraph" / "algorithms"
KEPT = Path(__file__).with_name("lines.json")
"""What `--wheels` counted."""

OTHERS = {
    "TRL 1.16.0": {
        "async_grpo": ["trl/experimental/async_grpo/async_grpo_trainer.py"],
        "distill": ["trl/trainer/distillation_trainer.py"],
        "grpo": ["trl/trainer/grpo_trainer.py"],
        "online_dpo": ["trl/experimental/online_dpo/online_dpo_trainer.py"],
        "reward_model": ["trl/trainer/reward_trainer.py"],
        "sft": ["trl/trainer/sft_trainer.py"],
    },
    "verl 0.9.1": {
        "async_grpo": [
            "verl/experimental/fully_async_policy/fully_async_trainer.py",
            "verl/experimental/fully_async_policy/fully_async_rollouter.py",
        ],
        "grpo": ["verl/trainer/ppo/ray_trainer.py"],
        "ppo": ["verl/trainer/ppo/ray_trainer.py"],
        "sft": ["verl/trainer/sft_trainer.py"],
    },
}
"""The files that hold the training loop of an algorithm: what one edits to change it."""


class Count(NamedTuple):
    path: Path
    title: str
    """The comment that it begins with."""
    lines: int


def counts(paths: Iterable[Path] | None = None) -> list[Count]:
    """One for each program, by name."""
    return [_count(path) for path in sorted(ALGORITHMS.glob("*.rlf") if paths is None else paths)]


def others() -> dict[str, dict[str, int]]:
    """For each other system, the lines of each algorithm, as they were counted from its wheel."""
    return json.loads(KEPT.read_text("utf-8"))


def _count(path: Path) -> Count:
    text = path.read_text("utf-8")
    title = " ".join(line.lstrip("# ") for line in takewhile(lambda line: line.startswith("#"), text.splitlines()))
    return Count(path, title, lines(text, python=path.suffix == ".py"))


def lines(text: str, *, python: bool = False) -> int:
    """Lines of a text that say something."""
    silent = _docstrings(text) if python else set()
    numbered = enumerate(text.splitlines(), start=1)
    return sum(1 for number, line in numbered if number not in silent and line.strip() and line.lstrip()[0] != "#")


def _docstrings(text: str) -> set[int]:
    found: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        for field in getattr(node, "body", None) if isinstance(getattr(node, "body", None), list) else ():
            if (
                isinstance(field, ast.Expr)
                and isinstance(field.value, ast.Constant)
                and isinstance(field.value.value, str)
            ):
                assert field.end_lineno
                found.update(range(field.lineno, field.end_lineno + 1))
    return found


def count_wheels(folder: Path) -> dict[str, dict[str, int]]:
    """The lines of `OTHERS`, from the wheels in a folder."""
    found: dict[str, dict[str, int]] = {}
    for system, files in OTHERS.items():
        name, version = system.lower().split()
        with zipfile.ZipFile(next(folder.glob(f"{name}-{version}-*.whl"))) as wheel:
            found[system] = {
                algorithm: sum(lines(wheel.read(path).decode(), python=True) for path in paths)
                for algorithm, paths in files.items()
            }
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--wheels", type=Path, metavar="FOLDER", help="count other systems, from their wheels")
    options = parser.parse_args()
    if options.wheels:
        KEPT.write_text(json.dumps(count_wheels(options.wheels), indent=2) + "\n", "utf-8")
        print(KEPT.read_text("utf-8"), end="")
    else:
        for each in counts(options.files or None):
            print(f"{each.lines:5}  {each.path.stem:14}  {each.title}")
