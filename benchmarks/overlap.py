"""What steps that overlap buy: GRPO on the toy task of peers/ on Ray, one process that trains (transformers) and one
that generates (vLLM), one thread each, with a lag of 0, 1 and 2 steps.

    python benchmarks/overlap.py
    python benchmarks/overlap.py --lags 0 1 --steps 20 --epochs 2
    python benchmarks/overlap.py --blocks 0 64 --n 8
    python benchmarks/overlap.py --joins
    python benchmarks/overlap.py --json
    rlgraph profile here.json && python benchmarks/overlap.py --calibration here.json

    step       seconds of a step in steady state, from the end of one to the end of the next, the median
    generate   seconds in which the process that generates is at work in it; train: the same
    slower     the slower one's share of the step: 100% is all that overlap can do
    speedup    samples a second, beside those of the first line
    predicted  seconds of a step by the simulator, with a calibration of this machine, and their error
    timetable  the same where each kind of work takes as long as it was measured to: what is off now is off in when
               things are done, and not in what they take

With `--blocks` no step overlaps another: a reward model on a process of its own scores the rows, which are streamed in
blocks of so many; 0 does not stream them. vLLM decodes 256 rows together, so that a batch of more ends in parts.

With `--joins` answers end by themselves, most of them early, and each program runs twice in turn: with orders that join
what a copy samples (`joined`), and with orders that wait until it is empty (`apart`). *beside* is the most rows of
others that an order was sampled with. Training is small, so that generation is what a step waits for.

Batch, answers and passes over the rows are such that both take about as long on two cores (`--new`, `--epochs`). Two
processes on two cores: leave the machine alone meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlgraph.api.compiled import Compiled

HERE = Path(__file__).resolve().parent
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
sys.path[:0] = [str(HERE / "peers"), str(HERE.parent)]
# The functions of the toy task run in Ray's processes, too.
os.environ["PYTHONPATH"] = os.pathsep.join([*sys.path[:2], os.environ.get("PYTHONPATH", "")])

SKIPPED = 4
"""Steps at the beginning: lazy initialisation, and nothing that is ahead."""

COLUMNS = ("step", "generate", "train", "slower", "speedup", "predicted", "timetable")

JUDGE = {"hidden_size": 192, "intermediate_size": 384, "num_attention_heads": 6}
"""Such that it takes about as long to score the rows as to sample them."""

STOPS = 16
"""Words that end an answer, of 512: the longest of 64 are four times as long as they are on average."""

FLOWS = {
    "lag=1": "",
    "staleness=2": "",
    "staleness=2, span=token": "refresh actor on play(by=keep)\n",
}
"""What a program says of older weights, and what its schedule then does."""

SCHEDULE = """schedule toy_grpo
pool learn = 1 devices
pool play = 1 devices
place actor.train on learn(engine=transformers)
place actor.generate on play(engine={generates})
"""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lags", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--blocks", type=int, nargs="*", help="stream in blocks of so many rows; in place of lags")
    parser.add_argument("--joins", action="store_true", help="orders that join others, and orders that wait for them")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--n", type=int, default=4, help="samples per prompt")
    parser.add_argument("--new", type=int, default=32, help="tokens of an answer")
    parser.add_argument("--epochs", type=int, default=1, help="passes over the rows of a step")
    parser.add_argument("--generates", default="vllm", help="the engine that generates")
    parser.add_argument("--calibration", help="of this machine: what the simulator says is shown beside")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each run instead of the table")
    return parser.parse_args()


def program(lag: int, epochs: int) -> str:
    """The toy GRPO with a lag, and with several passes over the rows."""
    text = (HERE / "peers" / "toy_grpo.rlf").read_text()
    head, step = text.split("\nstep:\n")
    before, train = step.split("    train actor", 1)
    body, report = ("    train actor" + train).split("\n    report", 1)
    inner = "\n".join(f"    {line}" if line.strip() else line for line in body.rstrip().splitlines())
    loop = f"    minibatch prompts(parts=1, epochs={epochs}):\n{inner}\n"
    how = f"step async(lag={lag}):" if lag else "step:"
    return f"{head}\n{how}\n{before}{loop}\n    report{report}"


def unlike(how: str) -> str:
    """The toy GRPO with answers of unlike lengths."""
    text = (HERE / "peers" / "toy_grpo.rlf").read_text()
    stops = ", ".join(f'"t{number}"' for number in range(100, 100 + STOPS))
    text = text.replace("min_tokens=tokens", f"stop=[{stops}]")
    return text.replace("\nstep:\n", f"\nstep async({how}):\n")


def flows(options: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """Each program with orders that join others, and with orders that wait for them."""
    import rlgraph
    from rlgraph.backends.distributed.backend import DistributedBackend

    joins = DistributedBackend._together
    for how, more in FLOWS.items():
        seconds: dict[bool, float] = {}
        for joined in (False, True):
            changes = {"base": folder / "model", "batch": options.prompts, "n": options.n, "tokens": options.new}
            trace = folder / f"trace-{len(seconds)}.json"
            # There is no word for it: who would want a copy that is empty?
            DistributedBackend._together = joins if joined else lambda *of: False
            with chdir(HERE / "peers"):
                schedule = SCHEDULE.format(generates=options.generates) + more
                made = rlgraph.compile(unlike(how), set=changes, schedule=schedule)
                run = made.run(options.steps, threads=1, progress=False, trace=trace, backend="ray")
            slices = [each for each in json.loads(trace.read_text())["traceEvents"] if each["ph"] == "X"]
            ends = sorted(each["ts"] + each["dur"] for each in slices if each["cat"] == "step")[SKIPPED - 1 :]
            # Of steps that go on together some end at once: what counts is when all of them have.
            seconds[joined] = (ends[-1] - ends[0]) / 1e6 / (len(ends) - 1)
            beside = max(each.get("args", {}).get("beside", 0) for each in slices if each["cat"] == "generate")
            yield {
                "what": "joins",
                "program": how,
                "joined": joined,
                "step_s": seconds[joined],
                "samples_per_s": options.prompts * options.n / seconds[joined],
                "speedup": seconds[False] / seconds[joined],
                "beside": beside,
                "age": run.metrics[-1].get("age"),
            }
    DistributedBackend._together = joins


def judged() -> str:
    """The toy GRPO with a reward model, which its rule is added to."""
    text = (HERE / "peers" / "toy_grpo.rlf").read_text()
    model = "model judge  = frozen(reward_lm(judged))\n"
    text = text.replace("\nmodel actor", '\nparam judged = "judge"\n\nmodel actor').replace(
        "data prompts", model + "data prompts"
    )
    return text.replace("wanted(rollout)", "wanted(rollout) + judge.score(rollout)")


def measured(options: argparse.Namespace, folder: Path, what: str, size: int) -> dict[str, Any]:
    """what: `lag` or `block`."""
    import rlgraph

    trace = folder / f"trace-{what}-{size}.json"
    lag = size if what == "lag" else 0
    changes = {"base": folder / "model", "batch": options.prompts, "n": options.n, "tokens": options.new}
    schedule = SCHEDULE.format(generates=options.generates)
    if what == "lag":
        text = program(lag, options.epochs)
    else:
        text, changes["judged"] = judged(), folder / "judge"
        schedule += "pool bench = 1 devices\nplace judge on bench(engine=transformers)\n"
        schedule += f"stream rollout(block={size})\n" if size else ""
    # Files that a program in a text names are looked for where one is.
    with chdir(HERE / "peers"):
        made = rlgraph.compile(text, set=changes, schedule=schedule)
        run = made.run(options.steps, threads=1, progress=False, trace=trace, backend="ray")
    slices = [each for each in json.loads(trace.read_text())["traceEvents"] if each["ph"] == "X"]
    ends = sorted(each["ts"] + each["dur"] for each in slices if each["cat"] == "step")
    # The last steps have nothing ahead of them.
    windows = list(pairwise(ends))[SKIPPED - 1 : len(ends) - 1 - lag]

    def busy(*operations: str) -> float:
        wanted = [each for each in slices if each["cat"] in operations]
        works = [(each["ts"], each["ts"] + each["dur"]) for each in wanted]
        return median(
            sum(max(0.0, min(last, end) - max(first, start)) for first, last in works) / 1e6 for start, end in windows
        )

    step = median(end - start for start, end in windows) / 1e6
    found = {"generate_s": busy("generate"), "train_s": busy("train", "accumulate", "apply")}
    took = {"generates": found["generate_s"], "trains": found["train_s"], "scores": busy("score")}
    return {
        "what": "overlap",
        what: size,
        "step_s": step,
        **found,
        "read_s": took["scores"],
        "slower": max(found.values()) / step,
        "samples_per_s": options.prompts * options.n / step,
        "steps": len(windows),
        "age": run.metrics[-1].get("age"),
        **(predicted(options, made, took) if options.calibration else {}),
    }


def predicted(options: argparse.Namespace, made: Compiled, took: Mapping[str, float]) -> dict[str, float]:
    """Seconds of a step in steady state; all answers are of the same length. took: seconds that each kind of work was
    measured to take in a step."""
    from toy import make_tokenizer
    from toy_task import prompts

    from rlgraph.catalog.clusters.read import read_cluster
    from rlgraph.explain.simulate import model_configs, simulate, simulate_plan
    from rlgraph.ops import model_work_of
    from rlgraph.passes.cost.batch import Batch
    from rlgraph.passes.cost.cost import Cost
    from rlgraph.passes.cost.lengths import Lengths
    from rlgraph.passes.cost.predict import Predictor
    from rlgraph.passes.cost.sampling import EpisodeRows, SamplingResult
    from rlgraph.passes.cost.workload import Workload
    from rlgraph.profiles.calibration import read_calibration

    calibration, tokenizer = read_calibration(options.calibration), make_tokenizer()
    asked = Lengths.from_lengths(len(tokenizer(row["prompt"])["input_ids"]) for row in prompts())
    rows = Workload(asked, Lengths((float(options.new),)))
    devices = sum(pool.devices for pool in made.plan.pools)
    cluster = read_cluster(f"1x{devices}:{calibration.device.name}")
    found = simulate(made, cluster, steps=8, workload=rows, calibration=calibration)
    thought: dict[str, float] = {}
    for work in found.works:
        kind = model_work_of(work.op) or ""
        thought[kind] = thought.get(kind, 0.0) + work.seconds_within(found.began, found.ends[-1]) / found.steps
    times = {kind: seconds / thought[kind] for kind, seconds in took.items() if seconds and thought.get(kind)}

    class Measured(Predictor):
        """Each kind of work takes as long as it was measured to."""

        def work_cost(self, model: str, operation: str, batches: Sequence[Batch], copies: int | None = None) -> Cost:
            return (
                super()
                .work_cost(model, operation, batches, copies)
                .scaled(times.get(model_work_of(operation) or "", 1.0))
            )

        def sampling_result(
            self,
            model: str,
            operation: str,
            prompts: Sequence[float],
            answers: Sequence[float],
            samples: int,
            copy: int,
            played: EpisodeRows | None = None,
        ) -> SamplingResult:
            alone, factor = (
                super().sampling_result(model, operation, prompts, answers, samples, copy, played),
                times.get("generates", 1.0),
            )
            return SamplingResult(alone.cost.scaled(factor), [factor * end for end in alone.end_times])

    known = Measured(found.plan, model_configs(made), found.cluster, calibration.constants)
    timed = simulate_plan(made, found.plan, found.cluster, known, rows, 8)
    return {"predicted_s": found.seconds, "timetable_s": timed.seconds}


def joining(options: argparse.Namespace) -> None:
    import toy

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        toy.make_model(0).save_pretrained(folder / "model")
        toy.make_tokenizer().save_pretrained(folder / "model")
        for found in flows(options, folder):
            if options.json:
                print(json.dumps(found), flush=True)
                continue
            how = "joined" if found["joined"] else "apart"
            print(
                f"{found['program']:<26}{how:>8}{found['step_s']:>10.2f} s{found['samples_per_s']:>10.0f} samples/s"
                f"{found['speedup']:>8.2f}x{found['beside']:>8} beside",
                flush=True,
            )


def main() -> None:
    options = arguments()
    if options.joins:
        return joining(options)
    what, sizes = ("lag", options.lags) if options.blocks is None else ("block", options.blocks)
    fewest = SKIPPED + 2 + (max(sizes) if what == "lag" else 0)
    if options.steps < fewest:
        sys.exit(f"take {fewest} steps or more: the first and the last ones do not count")
    import toy

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        toy.make_model(0).save_pretrained(folder / "model")
        toy.make_judge(1, **JUDGE).save_pretrained(folder / "judge")
        for model in ("model", "judge"):
            toy.make_tokenizer().save_pretrained(folder / model)
        columns = (what, *COLUMNS)
        if not options.json:
            print("".join(f"{each:>12}" for each in columns[: 8 if options.calibration else 6]))
        first: float | None = None
        for size in sizes:
            found = measured(options, folder, what, size)
            first = first or found["samples_per_s"]
            if options.json:
                print(json.dumps(found), flush=True)
                continue
            told = [found[name] for name in ("predicted_s", "timetable_s") if name in found]
            print(
                f"{size:>12}{found['step_s']:>10.2f} s{found['generate_s']:>10.2f} s{found['train_s']:>10.2f} s"
                f"{found['slower']:>12.0%}{found['samples_per_s'] / first:>11.2f}x"
                + "".join(f"{each:>10.2f} s, {each / found['step_s'] - 1:+.0%}" for each in told),
                flush=True,
            )


if __name__ == "__main__":
    main()
