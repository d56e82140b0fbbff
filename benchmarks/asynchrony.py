"""What asynchrony buys, as the simulator predicts it, beside what systems have published.

    python benchmarks/asynchrony.py
    python benchmarks/asynchrony.py --only areal verl
    python benchmarks/asynchrony.py --json

    areal       AReaL (arXiv 2505.24298), table 7: tokens a second by staleness, a 1.5B model on 8 H800
    flow        the same program where generation is the slower half: what it buys that copies stay full
    verl        verl's one step off (its docs/advance/one_step_off.md): a 7B model on 16 H20, trained with Megatron
    verl_fully  verl's fully asynchronous trainer (docs/advance/fully_async.md): a 7B model on 32 to 128 H20
    streamrl    StreamRL (arXiv 2504.15930): a 72B model on 128 H800
    systems     one program, as verl, RLHFuse, RollPacker, StreamRL, AsyncFlow and AReaL would run it, on 32 H800
    rollpacker  RollPacker's rounds (arXiv 2509.21009) beside the synchronous program, by what answers have in common

Programs and schedules are those of `asynchrony/`; its programs are asynchronous, and a lag of 0 makes them synchronous.
The constants of the cost model are its defaults, but for vLLM, which is as it was then (`older_vllm.py`). Where nobody
says how long answers are, several lengths are tried.
Nothing is run, and no data is needed. The tables are those of docs/why/asynchrony.md, streaming.md
and systems.md.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import rlgraph
from benchmarks.older_vllm import older_vllm
from rlgraph.catalog.clusters.read import read_cluster
from rlgraph.explain.simulate import simulate
from rlgraph.explain.simulation import Simulation
from rlgraph.ops import model_work_of
from rlgraph.passes.compilation.target import parse_workload

HERE = Path(__file__).resolve().parent / "asynchrony"
STEPS = 4
"""In steady state: lengths are spread over each batch alike, so that steps differ little. More where rows are far
ahead: until they are, the pool that samples works for more than one step in each."""

ROUNDS = 10
"""Four short ones and a long one, twice."""

HEAD = """| answers | plan | lag | step, s | generate / read / train, s | tokens/s | gain | published | idle |
|---|---|--:|--:|---|--:|--:|--:|---|"""


@dataclass(frozen=True)
class Case:
    """A program on a plan."""

    plan: str
    """As the table has it."""
    program: str
    schedule: str
    cluster: str
    lag: int | str
    """Steps; or how a step is ahead of those before it, as the program says it."""
    pools: Mapping[str, int] = field(default_factory=dict)
    """Devices of pools, where they are not those of the schedule."""
    set: Mapping[str, str] = field(default_factory=dict)
    published: str = ""
    """Gain beside the first case."""
    steps: int = 0
    """To be averaged, where steps are not alike."""

    def simulated(self, prompts: str, answers: str, alike: float = 0.0) -> Simulation:
        return self.compiled_and_simulated(prompts, answers, alike)[1]

    @older_vllm()
    def compiled_and_simulated(
        self, prompts: str, answers: str, alike: float = 0.0
    ) -> tuple[rlgraph.Compiled, Simulation]:
        """Without a schedule everything is searched for, streams among it."""
        program = (HERE / f"{self.program}.rlf").read_text()
        if isinstance(self.lag, str):
            how = f"step async({self.lag}):"
        else:
            how = rf"step async(\1={self.lag}):" if self.lag else "step:"
        program, found = re.subn(r"^step async\((\w+)=\d+\):", how, program, flags=re.MULTILINE)
        assert found == 1, self.program
        schedule = (HERE / f"{self.schedule}.rls").read_text() if self.schedule else ""
        for pool, devices in self.pools.items():
            schedule, found = re.subn(rf"(pool {pool} += )\d+", rf"\g<1>{devices}", schedule)
            assert found == 1, pool
        if "span" in str(self.lag):
            schedule += "refresh actor on play(by=keep)\n"
        lengths = replace(parse_workload(prompts, answers, 1.0), alike=alike)
        made = rlgraph.compile(
            program,
            self.set,
            schedule=schedule or None,
            cluster=self.cluster,
            workload=lengths,
            stream=not schedule,
        )
        # Orders that join end together, up to three of them here.
        steps = 3 * STEPS if isinstance(self.lag, str) else max(STEPS, 3 * self.lag)
        return made, simulate(made, read_cluster(self.cluster), steps=self.steps or steps, workload=lengths)


@dataclass(frozen=True)
class Experiment:
    prompts: str
    answers: tuple[str, ...]
    cases: tuple[Case, ...]
    """Gains are beside the first one."""
    alike: tuple[float, ...] = (0.0,)
    """How much the lengths of the answers to one prompt correlate."""

    @property
    def lengths(self) -> Iterator[tuple[str, str, float]]:
        """Each as the table has it, the answers, and how alike those to one prompt are."""
        for answers, alike in product(self.answers, self.alike):
            yield answers if self.alike == (0.0,) else f"{answers}, alike={alike:g}", answers, alike


AREAL = {0: "27.1k, 1.00x", 1: "47.8k, 1.76x", 2: "47.8k, 1.76x", 4: "49.0k, 1.81x", 8: "51.5k, 1.90x"}
FULLY = {32: ("790 s", "295 s, 2.68x"), 64: ("365 s", "189 s, 1.93x"), 128: ("356 s", "151 s, 2.37x")}

SYSTEMS: tuple[tuple[str, str, int | str, Mapping[str, int], Mapping[str, str], str], ...] = (
    ("verl: together", "together", 0, {}, {}, "1.00x"),
    ("RLHFuse: a tail", "tail", 0, {}, {}, "1.2x to 1.4x"),
    ("RollPacker: the first 16 of 20", "together", 0, {}, {"n": "20"}, "1.30x to 2.21x"),
    ("StreamRL: apart, streamed", "streamed", 0, {}, {}, "1.06x to 1.41x"),
    ("one step off: apart", "apart", 1, {}, {}, "1.23x to 1.40x"),
    ("StreamRL, AsyncFlow: streamed", "streamed", 1, {}, {}, "1.30x to 2.66x; 1.59x"),
    ("AReaL: a quarter trains", "apart", "staleness=4, span=token", {"learn": 8, "play": 24}, {}, "2.23x"),
    ("AReaL: half of them train", "apart", "staleness=4, span=token", {}, {}, ""),
)
"""Each as the table has it, with schedule, lag, devices of pools, parameters, and what is published of it."""

EXPERIMENTS = {
    "areal": Experiment(
        "100",
        ("mean=3500,p99=7168", "mean=5500,p99=7168"),
        tuple(
            Case("learn 2, play 6", "areal", "areal", "1x8:h800-80gb", lag, published=published)
            for lag, published in AREAL.items()
        ),
    ),
    "flow": Experiment(
        "100",
        ("mean=1000,p99=7168", "mean=3500,p99=7168"),
        tuple(
            Case("learn 4, play 4", "areal", "areal_flow", "1x8:h800-80gb", lag)
            for lag in ("lag=1", "staleness=2", "staleness=2, span=token", "staleness=4, span=token")
        ),
    ),
    "verl": Experiment(
        "150",
        ("mean=500,p99=4000", "mean=1000,p99=8192"),
        (
            Case("together 16", "verl", "verl_together", "2x8:h20-96gb", 0, set={"n": "16"}, published="699 s"),
            Case("learn 12, play 4", "verl", "verl_apart", "2x8:h20-96gb", 1, published="566 s, 0.93x"),
        ),
    ),
    **{
        f"verl_fully {devices}": Experiment(
            "150",
            ("mean=1000,p99=8192", "mean=4000,p99=20480"),
            (
                Case(
                    f"together {devices}",
                    "verl",
                    "verl_fully_together",
                    f"{devices // 8}x8:h20-96gb",
                    0,
                    {"all": devices},
                    {"n": "16", "limit": "20480"},
                    before,
                ),
                Case(
                    f"learn {devices // 2}, play {devices // 2}",
                    "verl_fully",
                    "verl_fully_apart",
                    f"{devices // 8}x8:h20-96gb",
                    1,
                    {"learn": devices // 2, "play": devices // 2},
                    published=after,
                ),
            ),
        )
        for devices, (before, after) in FULLY.items()
    },
    "streamrl": Experiment(
        "150",
        ("mean=2500,p99=10240", "mean=5000,p99=10240"),
        (
            Case("together 128", "streamrl", "streamrl_together", "16x8:h800-80gb", 0),
            *(
                Case(
                    f"learn {learn}, play {128 - learn}{how}",
                    "streamrl",
                    schedule,
                    "16x8:h800-80gb",
                    lag,
                    {"learn": learn, "play": 128 - learn},
                    published=published,
                )
                for learn in (64, 32)
                for how, schedule, lag, published in (
                    ("", "streamrl_apart", 0, ""),
                    (", streamed", "streamrl_streamed", 0, "1.06x to 1.41x"),
                    ("", "streamrl_apart", 1, "1.30x to 2.66x"),
                    (", streamed", "streamrl_streamed", 1, "1.30x to 2.66x"),
                )
            ),
        ),
    ),
    "systems": Experiment(
        "200",
        ("mean=2500,p99=16384", "mean=5000,p99=16384"),
        tuple(
            Case(plan, "systems", f"systems_{schedule}", "4x8:h800-80gb", lag, dict(pools), dict(changes), published)
            for plan, schedule, lag, pools, changes, published in SYSTEMS
        ),
    ),
    "rollpacker": Experiment(
        "200",
        # The longest is 28 times the median: RollPacker reports 25 to 32 times.
        ("p50=585,p99.9=16384", "mean=2500,p99=16384"),
        tuple(
            Case(plan, program, schedule, "4x8:h800-80gb", 0, set=changes, published=published, steps=ROUNDS)
            for plan, program, schedule, changes, published in (
                ("verl: together", "systems", "systems_together", {}, "1.00x"),
                ("the first 16 of 20 samples", "systems", "systems_together", {"n": "20"}, ""),
                ("the first 64 of 80 prompts", "rollpacker", "rollpacker", {"n": "16"}, ""),
                ("both: its rounds", "rollpacker", "rollpacker", {}, "1.30x to 2.21x"),
            )
        ),
        (0.0, 0.5, 0.8),
    ),
}


def rows(experiment: Experiment) -> Iterator[dict[str, Any]]:
    for told, answers, alike in experiment.lengths:
        first: float | None = None
        for case in experiment.cases:
            found = case.simulated(experiment.prompts, answers, alike)
            rate = found.trained / (found.ends[-1] - found.began)
            first = first or rate
            yield {
                "answers": told,
                "plan": case.plan,
                "lag": case.lag,
                "step_s": found.seconds,
                "tokens_per_s": found.tokens_per_second,
                "gain": rate / first,
                "published": case.published,
                "phases": {phase: seconds(found, phase) for phase in ("generates", "scores", "trains")},
                "bound_s": found.least_step_seconds,
                "idle": {each.pool: each.idle / (each.busy + each.idle) for each in found.pools if each.pool != "host"},
            }


def seconds(found: Simulation, phase: str) -> float:
    """Of a step, in which a model does such work."""
    works = (work for work in found.works if model_work_of(work.op) == phase)
    return sum(work.seconds_within(found.began, found.ends[-1]) for work in works) / found.steps


def shown(row: dict[str, Any]) -> str:
    idle = ", ".join(f"{pool} {share:.0%}" for pool, share in row["idle"].items())
    phases = " / ".join(f"{each:,.0f}" for each in row["phases"].values())
    cells = (
        row["answers"],
        row["plan"],
        row["lag"],
        f"{row['step_s']:,.1f}",
        phases,
        f"{row['tokens_per_s']:,.0f}",
        f"{row['gain']:.2f}x",
        row["published"],
        idle,
    )
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only",
        nargs="*",
        default=[],
        choices=tuple(dict.fromkeys(name.split()[0] for name in EXPERIMENTS)),
        help="some experiments",
    )
    parser.add_argument("--json", action="store_true", help="a line of JSON for each row instead of tables")
    options = parser.parse_args()
    for name, experiment in EXPERIMENTS.items():
        if options.only and name.split()[0] not in options.only:
            continue
        if not options.json:
            print(f"{name}\n\n{HEAD}")
        for row in rows(experiment):
            print(json.dumps({"experiment": name, **row}) if options.json else shown(row), flush=True)
        if not options.json:
            print()


if __name__ == "__main__":
    main()
