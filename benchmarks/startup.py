"""How long the commands take that one waits for: seconds on a core of the whole process, the least of some runs.

python benchmarks/startup.py
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import rlgraph

ALGORITHMS = Path(rlgraph.__file__).parent / "algorithms"
PPO = str(ALGORITHMS / "ppo.rlf")
LARGE = [f'--set={name}="meta-llama/Llama-2-70b-hf"' for name in ("base", "judge")]
COMMANDS = {
    "check": ["check", PPO],
    "compile": ["compile", PPO],
    "16 devices": ["compile", PPO, "--cluster", "2x8:a100-80gb"],
    "128 devices": ["compile", PPO, "--cluster", "16x8:a100-80gb"],
    "four 70B, 1,024 devices": ["compile", PPO, "--cluster", "128x8:a100-80gb", *LARGE],
    "four 70B, 16,384 devices": ["compile", PPO, "--cluster", "2048x8:a100-80gb", *LARGE],
}
RUNS = 3


def taken(arguments: list[str]) -> float:
    """Seconds on a core."""
    before = os.times()
    subprocess.run([sys.executable, "-m", "rlgraph", *arguments], check=True, capture_output=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def main() -> None:
    for name, arguments in COMMANDS.items():
        print(f"{name:<26} {min(taken(arguments) for _ in range(RUNS)):.2f} s", flush=True)


if __name__ == "__main__":
    main()
