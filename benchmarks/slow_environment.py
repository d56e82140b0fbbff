"""What slow environments cost a step: episodes are played on this machine, and predicted from what is told of them.

    python benchmarks/slow_environment.py
    python benchmarks/slow_environment.py --calibration here.json      # of `rlgraph profile here.json`
    python benchmarks/slow_environment.py --ray

A tiny random model acts up to four times in an episode, and an environment waits for as long as its case says before it
answers. How many tokens and turns episodes have is taken from the run, as a user knows them from a log; how long an
environment takes is told in the words of `--environment-seconds`. Nothing else is: the model's seconds are those of the
calibration. *added* is what a step takes longer than where the environment answers at once, in the same run.

In this process (transformers) all turns of a round are sampled together; on Ray (`--ray`, vLLM) each turn begins when
its observation comes.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import rlgraph
from benchmarks import prediction
from rlgraph.api.compiled import Compiled
from rlgraph.backends.recording import claim_folder
from rlgraph.passes.cost.calibration import Calibration
from rlgraph.passes.cost.lengths import Lengths, parse_lengths
from rlgraph.passes.cost.workload import Workload
from rlgraph.profiles.calibration import read_calibration
from rlgraph.profiles.profile import ROUNDS, profile_machine, undisturbed_seconds
from rlgraph.profiles.timed_run import observe_run
from rlgraph.runs.options import LOCAL, RAY, RunOptions

WARM, ROWS = 1, 32
CASES = [("0.001", 1), ("0.05", 1), ("0.05", 8), ("0.5", 8), ("mean=0.2,p99=1", 8), ("mean=0.2,p99=1", 32)]
"""Seconds of an answer, and processes that answer."""

ENVIRONMENT = '''
import json
import time
import zlib


class Slow:
    """Ends after one to four turns, and takes as long for each as a list says."""

    def __init__(self, seconds):
        self.seconds = json.loads(seconds)

    def reset(self, row):
        self.begun, self.turn, self.turns = row["prompt"], 0, len(row["prompt"]) % 4 + 1
        return ""

    def step(self, action):
        self.turn += 1
        place = zlib.crc32(f"{self.begun} {self.turn} {action}".encode()) % len(self.seconds)
        time.sleep(self.seconds[place])
        return "abc", float(len(action) % 3), self.turn == self.turns
'''

PROGRAM = """
algorithm slow
model actor = causal_lm({model})
data tasks  = jsonl("prompts.jsonl", batch={batch})
env  game   = python("slow.py:Slow", seconds={seconds}, workers={workers})
step:
    episode = actor.interact(game, tasks, n=4, max_turns=4, max_tokens=64, temperature=1.0)
    gain    = sum(episode.reward, turn)
    train actor(lr=1e-4):
        minimize mean(-actor.logprobs(episode) * center(gain, tasks))
    report gain = mean(gain), turns = mean(episode.turns)
"""


@dataclass(frozen=True)
class Result:
    """What a case takes."""

    answer: str
    workers: int
    predicted: float
    measured: float


def compiled(folder: Path, answer: str, workers: int, ray: bool) -> Compiled:
    """Return the program of a case, with a schedule where it runs on Ray."""
    points = [round(each, 4) for each in parse_lengths(answer).quantile_points(100)]
    text = PROGRAM.format(
        model=prediction.SMALL, batch=ROWS // 4, seconds=json.dumps(json.dumps(points)), workers=workers
    )
    engines = ("megatron", "vllm") if ray else ("transformers", "transformers")
    schedule = (
        "schedule slow\npool all = 1 devices\n"
        f"place actor.train on all(engine={engines[0]})\n"
        f"place actor.interact on all(engine={engines[1]})\n"
    )
    path = folder / "slow.rlf"
    path.write_text(text)
    return rlgraph.compile(path, schedule=schedule)


def workload(folder: Path, kept: Path, answer: str) -> Workload:
    """Return what a user knows of the episodes that a run has kept."""
    episodes = defaultdict[str, list[int]](list)
    for file in kept.glob("step-*"):
        for line in map(json.loads, file.read_text().splitlines()):
            episodes[f"{file.name} {line['row']}"].append(len(line["tokens"]))
    prompts = [json.loads(line) for line in (folder / "prompts.jsonl").read_text().splitlines()]
    return Workload(
        Lengths.from_lengths(len(row["prompt"]) for row in prompts),
        Lengths.from_lengths(map(sum, episodes.values())),
        turns=Lengths.from_lengths(map(len, episodes.values())),
        environment_s=parse_lengths(answer),
        observation=Lengths((3.0,)),
    )


def results(folder: Path, calibration: Calibration, ray: bool) -> Iterator[Result]:
    """Yield what each case takes, and was predicted to."""
    for number, (answer, workers) in enumerate(CASES):
        made, kept = compiled(folder, answer, workers, ray), folder / f"kept-{number}"
        options = RunOptions(backend=(RAY if ray else LOCAL).name, threads=1, timeout=300, record=kept)
        with claim_folder(kept, made.name, 0), observe_run(made, options) as run:
            run.run_steps(WARM + ROUNDS)
        known = workload(folder, kept, answer)
        case = prediction.Case("slow", "transformers", 0 if ray else 1)
        told = prediction.simulation(case, made, calibration, known)
        seconds = undisturbed_seconds([step.seconds for step in run.timed_steps[WARM:]])
        yield Result(answer, workers, told.seconds, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calibration", help="of this machine, taken before; without it, it is taken now")
    parser.add_argument("--ray", action="store_true", help="on Ray, with vLLM")
    options = parser.parse_args()
    if options.ray:
        import ray

        ray.init("local", num_cpus=32, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    calibration = (
        read_calibration(options.calibration)
        if options.calibration
        else profile_machine(
            ["transformers", "megatron", "vllm"] if options.ray else ["transformers"],
            quick=True,
            note=lambda text: print(f"  {text}", file=sys.stderr, flush=True),
        )
    )
    print("| an answer takes, s | processes | predicted / measured, s | added predicted / measured, s | error of it |")
    print("|---|--:|--:|--:|--:|")
    first: Result | None = None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prediction.data(folder)
        (folder / "slow.py").write_text(ENVIRONMENT)
        for found in results(folder, calibration, options.ray):
            first = first or found
            added = [found.predicted - first.predicted, found.measured - first.measured]
            error = "" if found is first else f"{added[0] / added[1] - 1:+.0%}"
            print(
                f"| {found.answer} | {found.workers} | {found.predicted:.2f} / {found.measured:.2f} "
                f"| {added[0]:.2f} / {added[1]:.2f} | {error} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
