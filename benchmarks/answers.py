"""Whether `rlgraph compile` answers, and how fast: each program that ships, on 8, 64, 1,024 and 16,384 devices of three
kinds, with models of 7B and of 70B. An answer is a plan or a refusal.

    python benchmarks/answers.py                       # goes on where it was stopped
    python benchmarks/answers.py --only grpo,ppo       # these programs, --devices 8,64 these sizes
    python benchmarks/answers.py --models 30B-A3B,235B-A22B    # models with experts, of Qwen3
    python benchmarks/answers.py --table               # what is known by now, and nothing else

Seconds are those of a core, without the start of Python and the loading of the compiler (0.4 s): a busy machine changes
them little. The programs come in a mixed order, so that the first hundred answers tell of all. A line of JSON for each
stands in `build/answers.jsonl`; delete the file to begin anew. No data and no device is needed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import rlgraph
from rlgraph.api.summary import summary_text
from rlgraph.cli.listing import shipped_algorithms
from rlgraph.dsl.inline_uses import inline_used_programs
from rlgraph.errors import ProgramError, Source
from rlgraph.explain import chosen_plan
from rlgraph.passes.compilation import choose_plan

LOADED = (chosen_plan, choose_plan)
"""Loaded before seconds are counted."""

ALGORITHMS = Path(rlgraph.__file__).parent / "algorithms"
DEVICES = (8, 64, 1024, 16384)
KINDS = ("h100-80gb", "a100-80gb", "b200-180gb")
SETTINGS = {
    "7B": {"base": "Qwen/Qwen2.5-7B-Instruct", "student": "Qwen/Qwen2.5-7B-Instruct"},
    "70B": dict.fromkeys(("base", "judge", "student", "master"), "meta-llama/Llama-3.1-70B-Instruct"),
    "30B-A3B": {"base": "Qwen/Qwen3-30B-A3B", "student": "Qwen/Qwen3-30B-A3B"},
    "235B-A22B": {"base": "Qwen/Qwen3-235B-A22B", "student": "Qwen/Qwen3-30B-A3B", "master": "Qwen/Qwen3-235B-A22B"},
    "DeepSeek-V3": dict.fromkeys(("base", "judge", "student", "master"), "deepseek-ai/DeepSeek-V3"),
}
"""The parameters that are models, for each size; the others stay as they ship."""
USUAL = ("7B", "70B")
"""The sizes that are compiled unless others are asked for."""
BAR_S = 10.0
"""Seconds within which there has to be an answer."""
MOST_S = 120
"""Seconds of a core after which a search is ended without one."""
FILE = Path("build/answers.jsonl")

Case = tuple[str, int, str, str]
"""A program, the number of devices, their kind, the size of the models."""


def answer(case: Case) -> dict[str, Any]:
    """Return what the compiler answers: the seconds of a step and the gap, or the codes of a refusal."""
    name, devices, kind, size = case
    # A program may have its parameters from one that it uses.
    text = inline_used_programs(Source(f"{name}.rlf", shipped_algorithms()[name])).text
    set_ = {parameter: f'"{model}"' for parameter, model in SETTINGS[size].items() if f"param {parameter} " in text}
    try:
        compiled = rlgraph.compile(ALGORITHMS / f"{name}.rlf", set_, cluster=f"{devices // 8}x8:{kind}")
    except ProgramError as error:
        return {"refused": [fault.code for fault in error.diagnostics], "why": error.diagnostics[0].message}
    choice = compiled.choice
    result = choice.search_result
    return {
        "step_s": choice.simulated_step_s or result.seconds,
        "searched_s": result.seconds,
        "gap": result.gap,
        "simulated": choice.simulated_step_s is not None,
        "ranges": result.ranges_searched,
        "head": next(line for line in summary_text(compiled).splitlines() if " a step by " in line),
    }


def timed_answer(case: Case) -> dict[str, Any]:
    """Return the answer of a process of its own, with its seconds of a core."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (MOST_S, MOST_S + 5))
        status = 1
        try:
            with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):
                said = answer(case)
            with os.fdopen(writes, "w") as out:
                json.dump(said, out)
            status = 0
        finally:
            os._exit(status)
    os.close(writes)
    with os.fdopen(reads) as read:
        text = read.read()
    _, status, used = os.wait4(child, 0)
    seconds = used.ru_utime + used.ru_stime
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
        return {"seconds": seconds, "none": f"no answer in {MOST_S} s"}
    if status or not text:
        return {"seconds": seconds, "none": f"it ended with {status}"}
    return {"seconds": seconds, **json.loads(text)}


def cases(programs: Sequence[str], devices: Sequence[int], models: Sequence[str]) -> list[Case]:
    """Return the cases in a mixed order, which is the same each time."""
    mixed = list(product(programs, devices, KINDS, models))
    random.Random(0).shuffle(mixed)
    return mixed


def known_answers(file: Path) -> dict[Case, dict[str, Any]]:
    """Return the answers in a file, the last one of each case; a line that was cut off is left out."""
    known: dict[Case, dict[str, Any]] = {}
    for line in file.read_text().splitlines() if file.exists() else ():
        try:
            name, size, kind, models, said = json.loads(line)
        except ValueError:
            continue
        known[name, size, kind, models] = said
    return known


def table(known: dict[Case, dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of the summary: answers, refusals and seconds by devices, then the slowest, what has no answer,
    the refusals, and programs that are slower on more devices."""
    if not known:
        return
    late = f"> {BAR_S:.0f} s"
    yield f"{'devices':>8} {'plans':>6} {'refused':>8} {'none':>5} {'median s':>9} {'most s':>7} {late:>7}"
    for devices in sorted({case[1] for case in known}):
        those = [answers for case, answers in known.items() if case[1] == devices]
        seconds = [answers["seconds"] for answers in those]
        yield (
            f"{devices:>8,} {sum('step_s' in one for one in those):>6} {sum('refused' in one for one in those):>8} "
            f"{sum('none' in one for one in those):>5} {median(seconds):>9.2f} {max(seconds):>7.1f} "
            f"{sum(one > BAR_S for one in seconds):>7}"
        )
    yield "\nthe slowest:"
    for case, said in sorted(known.items(), key=lambda item: -item[1]["seconds"])[:15]:
        yield f"  {said['seconds']:>7.1f} s  {_named(case)}: {said.get('head') or said.get('why') or said.get('none')}"
    yield "\nrefused:"
    for case, said in sorted(known.items()):
        if "refused" in said:
            yield f"  {_named(case)}: {', '.join(said['refused'])}: {said['why']}"
    yield "\nslower on more devices:"
    for (name, devices, kind, size), said in sorted(known.items()):
        for more in DEVICES:
            other = known.get((name, more, kind, size), {})
            if more > devices and "step_s" in said and "step_s" in other and other["step_s"] > said["step_s"]:
                seconds, slower = (f"{one['step_s']:.4g}" for one in (said, other))
                yield f"  {name} {size} {kind}: {seconds} s on {devices:,}, {slower} s on {more:,}"


def _named(case: Case) -> str:
    return f"{case[0]} {case[3]} {case[1] // 8}x8:{case[2]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(sorted(path.stem for path in ALGORITHMS.glob("*.rlf"))))
    parser.add_argument("--devices", default=",".join(map(str, DEVICES)))
    parser.add_argument("--models", default=",".join(USUAL), help=", ".join(SETTINGS))
    parser.add_argument("--file", type=Path, default=FILE)
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args()
    asked.file.parent.mkdir(parents=True, exist_ok=True)
    models = asked.models.split(",")
    known = {case: said for case, said in known_answers(asked.file).items() if case[3] in models}
    devices = [int(size) for size in asked.devices.split(",")]
    for case in [] if asked.table else cases(asked.only.split(","), devices, models):
        if case in known:
            continue
        known[case] = timed_answer(case)
        with asked.file.open("a") as out:
            print(json.dumps([*case, known[case]]), file=out)
        print(f"{known[case]['seconds']:>7.1f} s  {_named(case)}", flush=True)
    print("\n".join(table(known)))


if __name__ == "__main__":
    main()
