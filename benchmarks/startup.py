"""How long the commands take that one waits for: seconds on a core of the whole process, and by the clock, the least of
some runs.

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
SAFE = str(ALGORITHMS / "safe_rlhf.rlf")
GRPO = str(ALGORITHMS / "grpo.rlf")
JUDGES = [f'--set={name}="Qwen/Qwen2.5-7B"' for name in ("helpful", "harmful")]
LARGE = [f'--set={name}="meta-llama/Llama-2-70b-hf"' for name in ("base", "judge")]
COMMANDS = {
    "check": ["check", PPO],
    "compile": ["compile", PPO],
    "16 devices": ["compile", PPO, "--cluster", "2x8:a100-80gb"],
    "128 devices": ["compile", PPO, "--cluster", "16x8:a100-80gb"],
    "four 70B, 1,024 devices": ["compile", PPO, "--cluster", "128x8:a100-80gb", *LARGE],
    "four 70B, 16,384 devices": ["compile", PPO, "--cluster", "2048x8:a100-80gb", *LARGE],
    "Safe RLHF, 16 devices": ["compile", SAFE, "--cluster", "2x8:a100-80gb", *JUDGES],
    "Safe RLHF, 128 devices": ["compile", SAFE, "--cluster", "16x8:a100-80gb", *JUDGES],
    "128 devices, --explain": ["compile", PPO, "--cluster", "16x8:a100-80gb", "--explain"],
    "128 devices, --minimize cost": ["compile", PPO, "--cluster", "16x8:a100-80gb", "--minimize", "cost"],
    "32 + 32 unlike devices": ["compile", PPO, "--cluster", "4x8:a100-80gb + 4x8:h100-80gb"],
    "GRPO, 8,000 devices": ["compile", GRPO, "--cluster", "1000x8:a100-80gb"],
}
RUNS = 3


def taken(arguments: list[str]) -> tuple[float, float]:
    """Seconds on a core, and by the clock."""
    # What is installed has its byte code beside it.
    with_code = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = os.times()
    subprocess.run([sys.executable, "-m", "rlgraph", *arguments], check=True, capture_output=True, env=with_code)
    after = os.times()
    worked = after.children_user + after.children_system - before.children_user - before.children_system
    return worked, after.elapsed - before.elapsed


def main() -> None:
    for name, arguments in COMMANDS.items():
        worked, waited = map(min, zip(*(taken(arguments) for _ in range(RUNS)), strict=True))
        print(f"{name:<28} {worked:.2f} s, {waited:.2f} s by the clock", flush=True)


if __name__ == "__main__":
    main()
