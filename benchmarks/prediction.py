"""How well the cost model predicts: programs and plans are run on this machine, and simulated with a calibration of it.

    python benchmarks/prediction.py
    python benchmarks/prediction.py --local --save here.json
    python benchmarks/prediction.py --calibration here.json --only grpo

The models are random and tiny (on a GPU, small), of other sizes than those of the profile. Of steps, and of the
repetitions of the profile, the time counts that three tenths of them need at most: others may be at work on the
machine. So that they disturb both alike, the profile is taken here, and the runs go on between its repetitions; with
`--calibration` they go on alone. How long answers are is taken from a run in this process, which samples the same
ones; nothing else is.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import rlgraph
from rlgraph.api.compiled import Compiled
from rlgraph.backends.engines.device import choose_visible_device
from rlgraph.backends.recording import claim_folder
from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.explain.simulate import model_configs, simulate_plan
from rlgraph.explain.simulation import Simulation
from rlgraph.ops import model_work_of
from rlgraph.ops.program_work import model_operations
from rlgraph.passes.cost.calibration import Calibration
from rlgraph.passes.cost.lengths import Lengths
from rlgraph.passes.cost.predict import OneProcessPredictor, Predictor
from rlgraph.passes.cost.workload import Workload
from rlgraph.profiles.calibration import read_calibration
from rlgraph.profiles.profile import ALONE, COPIES, ONE, RANKS, ROUNDS, profile_machine, undisturbed_seconds
from rlgraph.profiles.timed_run import TimedRun, TimedStep, observe_run
from rlgraph.runs.options import LOCAL, RAY, RunOptions

ALGORITHMS = Path(rlgraph.__file__).parent / "algorithms"
WARM = 1

REWARDS = """
def exact_match(prompts, completions, completion_ids, **columns):
    return [(3 * sum(ids) + len(ids)) % 5 / 4 for ids in completion_ids]
"""


GPU = choose_visible_device(None) != "cpu"


def model(hidden: int, layers: int, vocab: int, seed: int = 1) -> str:
    if GPU:
        # Small ones would only show what a call takes.
        hidden, layers, vocab = 8 * hidden, 2 * layers, 256 * vocab
    return (
        f'random("qwen2", seed={seed}, hidden_size={hidden}, intermediate_size={3 * hidden}, '
        f"num_hidden_layers={layers}, "
        f"num_attention_heads={hidden // 32}, num_key_value_heads={hidden // 32}, max_position_embeddings=512, "
        f'tokenizer=chars("abcdefghijkl"), vocab_size={vocab})'
    )


DTYPE = {False: "float32", True: "bfloat16"}
MADE = re.compile(r"(?:causal|value|reward)_lm\(\w+")
"""A model that a program makes, but for its end."""


@dataclass(frozen=True)
class Program:
    """An algorithm that ships, made small."""

    algorithm: str
    swaps: Mapping[str, str]
    """Pieces of its text."""
    set: Mapping[str, str]

    def compiled(self, folder: Path, schedule: str) -> Compiled:
        text = (ALGORITHMS / f"{self.algorithm}.rlf").read_text().replace("rlgraph.rewards:", "rewards.py:")
        for old, new in self.swaps.items():
            assert old in text, old
            text = text.replace(old, new)
        text = MADE.sub(rf'\g<0>, dtype="{DTYPE[GPU]}"', text)
        path = folder / f"{self.algorithm}.rlf"
        path.write_text(text)
        return rlgraph.compile(path, set=self.set, schedule=f"schedule {self.algorithm}\n{schedule}")


MEDIUM, SMALL, LARGE, JUDGE = model(192, 3, 64), model(96, 3, 64), model(320, 2, 64), model(128, 3, 64, seed=2)

PROGRAMS = {
    "grpo": Program(
        "grpo",
        {"max_tokens=1024": "max_tokens=40", "parts=4": "parts=2"},
        {"base": MEDIUM, "n": "4", "prompts": 'jsonl("prompts.jsonl", batch=12)'},
    ),
    "grpo-large": Program(
        "grpo",
        {"max_tokens=1024": "max_tokens=20", "parts=4": "parts=2"},
        {"base": LARGE, "n": "4", "prompts": 'jsonl("prompts.jsonl", batch=16)'},
    ),
    "ppo": Program(
        "ppo",
        {"max_tokens=512": "max_tokens=32", "parts=8": "parts=2", "epochs=2": "epochs=1"},
        {"base": SMALL, "judge": JUDGE, "prompts": 'jsonl("prompts.jsonl", batch=32)'},
    ),
    "sft": Program("sft", {}, {"base": MEDIUM, "pairs": 'jsonl("sft.jsonl", batch=48)'}),
    "reward_model": Program("reward_model", {}, {"base": MEDIUM, "pairs": 'jsonl("preferences.jsonl", batch=24)'}),
    "distill": Program(
        "distill",
        {"max_tokens=1024": "max_tokens=24"},
        {"student": SMALL, "master": LARGE, "prompts": 'jsonl("prompts.jsonl", batch=12)'},
    ),
    "online_dpo": Program(
        "online_dpo",
        {"max_tokens=512": "max_tokens=24", "parts=4": "parts=2", "every 200": "every 1000"},
        {"base": MEDIUM, "judge": JUDGE, "prompts": 'jsonl("prompts.jsonl", batch=12)'},
    ),
    "remax": Program(
        "remax",
        {"max_tokens=512": "max_tokens=24"},
        {"base": SMALL, "judge": JUDGE, "prompts": 'jsonl("prompts.jsonl", batch=24)'},
    ),
}


@dataclass(frozen=True)
class Case:
    """A program and a plan; `PLANS` makes the schedule."""

    program: str
    plan: str
    threads: int = 0
    """Of a run in this process; 0: on Ray."""

    def __str__(self) -> str:
        return f"{self.program}, {self.plan}"


CASES = [
    *(
        Case(name, "local", 1)
        for name in ("grpo", "ppo", "sft", "reward_model", "distill", "online_dpo", "remax", "grpo-large")
    ),
    Case("grpo", "local, 2 threads", 2),
    Case("ppo", "local, 2 threads", 2),
    Case("grpo", "megatron, vllm"),
    Case("grpo", "transformers"),
    Case("ppo", "megatron dp2, transformers dp2"),
    Case("distill", "megatron | vllm"),
    Case("reward_model", "megatron tp2"),
]

PLANS = {
    "megatron, vllm": (1, "megatron", "", "vllm", ""),
    "transformers": (1, "transformers", "", "transformers", ""),
    "megatron tp2, vllm tp2": (2, "megatron", ", tp=2", "vllm", ", tp=2"),
    "megatron dp2, transformers dp2": (2, "megatron", ", dp=2", "transformers", ", dp=2"),
    "megatron tp2": (2, "megatron", ", tp=2", "vllm", ""),
}
"""Devices of the one pool; engine and split of training and reading, and of generation."""


def schedule(case: Case, work: Mapping[str, Iterable[str]]) -> str:
    """`|`: generation has a pool of its own."""
    name = "transformers" if case.threads else case.plan.replace(" |", ",")
    devices, trains, split, samples, spread = PLANS[name]
    apart = "|" in case.plan
    pools = [f"pool all = {devices} devices", *(["pool play = 1 devices"] if apart else [])]
    lines = []
    for model_name, does in work.items():
        for operation in does:
            generates = model_work_of(operation) == "generates"
            where, engine, how = (
                ("play" if apart and generates else "all"),
                *((samples, spread) if generates else (trains, split)),
            )
            lines.append(f"place {model_name}.{operation} on {where}(engine={engine}{how})")
    return "\n".join([*pools, *lines]) + "\n"


def data(folder: Path) -> None:
    rng = random.Random(5)

    def text(least: int, most: int) -> str:
        return "".join(rng.choice("abcdefghijkl") for _ in range(rng.randint(least, most)))

    rows = [
        {"prompt": text(6, 20), "response": text(4, 40), "chosen": text(4, 30), "rejected": text(4, 30)}
        for _ in range(96)
    ]
    for name in ("prompts", "sft", "preferences"):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "rewards.py").write_text(REWARDS)


# Lengths


def workload(case: Case, compiled: Compiled, folder: Path) -> Workload:
    """Of the data, and of the answers that a run in this process samples."""
    rows = [json.loads(line) for line in (folder / "prompts.jsonl").read_text().splitlines()]
    prompt = Lengths.from_lengths(len(row["prompt"]) for row in rows)
    if case.program == "sft":
        return Workload(prompt, Lengths.from_lengths(len(row["response"]) + 1 for row in rows))
    if case.program == "reward_model":
        return Workload(
            prompt, Lengths.from_lengths(len(row[name]) + 1 for row in rows for name in ("chosen", "rejected"))
        )
    kept = folder / f"kept-{case.program}"
    if not kept.exists():
        with claim_folder(kept, compiled.name, 0), observe_run(compiled, RunOptions(record=kept)) as run:
            run.run_steps(WARM + ROUNDS)
    lines = [json.loads(line) for file in kept.glob("step-*") for line in file.read_text().splitlines()]
    return Workload(prompt, Lengths.from_lengths(len(line["tokens"]) for line in lines))


# Prediction and measurement


def simulation(case: Case, compiled: Compiled, calibration: Calibration, known: Workload) -> Simulation:
    plan, first = compiled.plan, 0
    pools = []
    for pool in plan.pools:
        pools.append(replace(pool, first=first))
        first += pool.devices
    plan = replace(plan, pools=tuple(pools))
    cluster = calibration.with_measured_rates(read_cluster(f"1x{first}:{calibration.device.name}"))
    kind = OneProcessPredictor if case.threads else Predictor
    predictor = kind(plan, model_configs(compiled), cluster, calibration.constants, case.threads or 1)
    return simulate_plan(compiled, plan, cluster, predictor, known, steps=4)


PHASES = ("generate", "read", "train", "sync", "host")


def phase_of(op: str) -> str:
    if model_work_of(op) == "generates":
        return "generate"
    return "read" if model_work_of(op) == "scores" else op if op in ("train", "sync") else "host"


def phases_measured(seen: Sequence[TimedStep]) -> dict[str, float]:
    """Seconds of each phase in a step, added up over pools."""
    return {
        phase: undisturbed_seconds(
            [sum(each.seconds for each in step.done if phase_of(each.op) == phase) for step in seen]
        )
        for phase in PHASES
    }


def phases_predicted(found: Simulation) -> dict[str, float]:
    return {
        phase: sum(work.seconds for work in found.works if phase_of(work.op) == phase) / found.steps for phase in PHASES
    }


@dataclass(frozen=True)
class Result:
    case: Case
    predicted: float
    measured: float
    parts: Mapping[str, tuple[float, float]]
    """For each phase both."""

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


@dataclass
class Trial:
    """A case whose run goes on."""

    case: Case
    compiled: Compiled
    workload: Workload
    run: TimedRun

    def result(self, calibration: Calibration) -> Result:
        seen = self.run.timed_steps[WARM:]
        told = simulation(self.case, self.compiled, calibration, self.workload)
        measured, predicted = phases_measured(seen), phases_predicted(told)
        parts = {phase: (predicted[phase], measured[phase]) for phase in PHASES}
        return Result(self.case, told.seconds, undisturbed_seconds([step.seconds for step in seen]), parts)


class Trials:
    """Opens the runs of the cases, those of one kind at a time."""

    def __init__(self, cases: Sequence[Case], folder: Path) -> None:
        self.cases, self.folder = cases, folder
        self.open = ExitStack()
        self.all: list[Trial] = []

    def beside(self, what: str) -> list[TimedRun]:
        """The runs that are like what is profiled next."""
        self.open.close()
        begun = [self.begin(case) for case in self.cases if kind_of(case) == what]
        self.all += begun
        return [trial.run for trial in begun]

    def begin(self, case: Case) -> Trial:
        program = PROGRAMS[case.program]
        work = model_operations(program.compiled(self.folder, "").program)
        compiled = program.compiled(self.folder, schedule(case, work))
        known = workload(case, compiled, self.folder)
        backend = LOCAL if case.threads else RAY
        options = RunOptions(backend=backend.name, threads=case.threads or 1, timeout=300)
        return Trial(case, compiled, known, self.open.enter_context(observe_run(compiled, options)))


def kind_of(case: Case) -> str:
    """What the profile has that is like it."""
    if case.threads:
        return ALONE
    return RANKS if "tp2" in case.plan else COPIES if "dp2" in case.plan else ONE


# Shown


def line(found: Result) -> str:
    cells = [f"{1e3 * a:.0f} / {1e3 * b:.0f}" if max(a, b) > 5e-5 else "" for a, b in found.parts.values()]
    return (
        f"| {found.case} | {1e3 * found.predicted:.0f} | {1e3 * found.measured:.0f} | {found.error:+.0%} | "
        + " | ".join(cells)
        + " |"
    )


def head() -> Iterator[str]:
    yield f"| program, plan | predicted | measured | error | {' | '.join(PHASES)} |"
    yield "|---|--:|--:|--:|" + "--:|" * len(PHASES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calibration", help="of this machine, taken before; without it, it is taken now")
    parser.add_argument("--save", help="write the calibration that is taken")
    parser.add_argument("--only", default="", help="cases whose name has this text")
    parser.add_argument("--engines", help="measure only these, and the cases beside them")
    parser.add_argument("--quick", action="store_true", help="a quick profile: nothing that is split or copied")
    parser.add_argument("--local", action="store_true", help="leave those on Ray out")
    options = parser.parse_args()
    cases = [case for case in CASES if options.only in str(case) and (case.threads or not options.local)]
    if not cases:
        sys.exit(f"no case has {options.only!r} in its name")
    if not options.local:
        import ray

        ray.init("local", num_cpus=32, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        data(Path(folder))
        trials = Trials(cases, Path(folder))
        with trials.open:
            calibration = taken(trials, options)
        found = [trial.result(calibration) for trial in trials.all]
    print("milliseconds of a step, and of its phases: predicted / measured\n")
    print("\n".join([*head(), *map(line, found)]))
    print(f"\nmedian error of the step: {median(abs(each.error) for each in found):.1%}")


def taken(trials: Trials, options: argparse.Namespace) -> Calibration:
    """With the steps of all runs beside it."""
    if options.calibration:
        for kind in dict.fromkeys(map(kind_of, trials.cases)):
            runs = trials.beside(kind)
            for _ in range(WARM + ROUNDS):
                for run in runs:
                    run.run_steps()
        return read_calibration(options.calibration)
    found = profile_machine(
        ["transformers"] if options.local else options.engines and options.engines.split(","),
        quick=options.quick,
        beside=trials.beside,
        note=lambda text: print(f"  {text}", file=sys.stderr, flush=True),
    )
    if options.save:
        Path(options.save).write_text(found.to_text())
    return found


if __name__ == "__main__":
    main()
