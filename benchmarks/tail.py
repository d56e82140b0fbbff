"""What it buys that few copies go on with the last rows, in the simulator: RLHFuse's fusion between stages.

    python benchmarks/tail.py
    python benchmarks/tail.py --share 0.1 0.2 0.3 --on 8 16 --seeds 3
    python benchmarks/tail.py --ratio 0.15 --limit 8192
    python benchmarks/tail.py --admit --slots 4 --foresight 0.97
    python benchmarks/tail.py --measured --share 0.2 0.4
    python benchmarks/tail.py --measured --size large --share 0.1 0.2 0.4 --steps 5

    share     of the rows that have not ended when they move
    on        copies that go on with them; 0: the fewest that hold them with no more rows each than copies had first,
              so that a token takes no longer (RLHFuse, section 4)
    seconds   until the last row is scored, the mean of some draws of lengths
    speedup   beside the same without a tail
    ratio     I/G: seconds of scoring and of generating, one after the other; no tail can be faster than 1 + I/G
    admit     of the rows that a copy has in turn, `--slots` at a time, those begin first that are expected to be longer

512 answers by 32 copies, scored by a model on the same devices. A token takes 20 ms and 0.4 ms for each row that is
sampled with it, answers are log-normal with a sigma of 1 and a median of 500 tokens, cut at `--limit`, and to read a
token again takes 65 us, as a model of 13 billion weights does. These are seconds of no machine: who asks for those
says `rlgraph simulate PROGRAM.rlf SCHEDULE.rls --cluster ...`.

With `--measured`: on Ray, 64 answers of log-normal lengths (sigma 1, a median of 40 tokens, cut at 240) by two copies
of vLLM, scored by a model of the same size on the same two devices, processes of one thread each; the median of some
steps of the seconds from the first token until the last row is scored.

    whole     rows go on when all have ended
    streamed  as they end, to the copy that sampled them
    under R   so, and one copy goes on when fewer than this share are left
    apart     metrics of a step, beside those of the first line: the most
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlgraph.api.compiled import Compiled
    from rlgraph.passes.cost.batch import Batch
    from rlgraph.passes.cost.cost import Cost
    from rlgraph.passes.cost.fused_pipelines import FusedPipeline
    from rlgraph.passes.cost.lengths import Lengths
    from rlgraph.passes.cost.sampling import EpisodeRows, SamplingResult

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

COPIES = 32
ROWS = 512
PROMPT = 200
READ = 65e-6
"""Seconds for a token that is read."""

PROGRAM = f"""algorithm toy
model actor  = causal_lm("Qwen/Qwen2.5-7B")
model reward = reward_lm("Qwen/Qwen2.5-7B")
data prompts = jsonl("prompts.jsonl", batch={ROWS})
step:
    rollout = actor.generate(prompts, max_tokens=LIMIT)
    score   = reward.score(rollout)
    report best = max(score)
"""
SCHEDULE = f"""schedule toy
pool all = {COPIES} devices
place actor on all(engine=vllm, dp={COPIES})
place reward on all(engine=transformers, dp={COPIES})
"""


class Toy:
    """A prediction of which all is known. scoring: seconds in which a copy scores a row; slots: rows that a copy
    samples side by side."""

    def __init__(self, scoring: float, slots: int) -> None:
        self.scoring, self.slots = scoring, slots

    def work_cost(self, model: str, operation: str, batches: Sequence[Batch], copies: int | None = None) -> Cost:
        return _cost(self.scoring * sum(batch.rows for batch in batches) / (copies or COPIES))

    def fused_pipeline(self, works: Sequence[tuple[str, Sequence[Batch]]]) -> FusedPipeline:
        raise NotImplementedError("nothing is trained here")

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
        from rlgraph.passes.cost.sampling import ContinuousBatch, SamplingPace, SamplingResult

        rows, pace = ContinuousBatch(), SamplingPace(0.0, READ * fmean(prompts), self.slots, _step)
        rows.add_call(0.0, pace, answers)
        [ends] = rows.row_end_times()
        return SamplingResult(_cost(max(ends)), ends, pace)

    def host_work_cost(self, op: str, count: float) -> Cost:
        return _cost(0.0)

    def weight_sync_cost(self, model: str, source: str, target: str, copies: int | None = None) -> Cost:
        return _cost(0.0)

    def row_transfer_cost(self, source: str, target: str, tokens: float, copies: int | None = None) -> Cost:
        return _cost(0.0)

    def offload_round_trip_cost(self, model: str, group: str, operation: str, batches: Sequence[Batch]) -> Cost:
        return _cost(0.0)

    def request_cost(self, group: str, copies: int | None = None) -> Cost:
        return _cost(0.0)


def _step(rows: int) -> float:
    return 0.02 + 0.0004 * rows


def _cost(seconds: float) -> Cost:
    from rlgraph.passes.cost.cost import Cost

    return Cost(compute=seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, nargs="+", default=[0.05, 0.1, 0.2, 0.3])
    parser.add_argument("--on", type=int, nargs="+", default=[0, 8, 11, 16])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--limit", type=int, default=4096, help="longest answer, in tokens")
    parser.add_argument("--ratio", type=float, default=0.3, help="of scoring to generating without a tail")
    parser.add_argument("--slots", type=int, default=ROWS, help="rows that a copy samples side by side")
    parser.add_argument("--admit", action="store_true", help="the longest first")
    parser.add_argument("--foresight", type=float, default=0.97, help="what is expected, beside what will be")
    parser.add_argument("--measured", action="store_true", help="on Ray, on this machine")
    parser.add_argument("--steps", type=int, default=8, help="of a measured run")
    parser.add_argument("--size", choices=["small", "large"], default="small", help="of a measured run's models")
    parser.add_argument("--rows", type=int, default=64, help="of a measured step")
    asked = parser.parse_args()
    if asked.measured:
        from benchmarks.moving import measured

        print(f"{'plan':>12} {'step':>8} {'speedup':>8} {'apart':>8}")
        whole = 0.0
        for each in measured(asked.rows, asked.steps, [(share, 1) for share in asked.share], asked.size):
            whole = whole or each["step_s"]
            speedup = whole / each["step_s"]
            print(f"{each['plan']:>12} {each['step_s']:>6.2f} s {speedup:>7.2f}x {each['apart']:>8.1e}", flush=True)
        return
    with tempfile.TemporaryDirectory() as folder:
        case = _Case(Path(folder), asked)
        _, generating = case.mean("stream rollout(block=1)\n", 0.0)
        scoring = asked.ratio * generating * COPIES / ROWS
        whole, _ = case.mean("stream rollout(block=1)\n", scoring)
        print(f"without a tail {whole:.1f} s, {generating:.1f} s of them generating: at most {whole / generating:.2f}x")
        print(f"{'share':>6} {'on':>4} {'seconds':>8} {'speedup':>8}")
        admit = "admit rollout\n" if asked.admit else ""
        if admit:
            found, _ = case.mean(f"stream rollout(block=1)\n{admit}", scoring)
            print(f"{'-':>6} {'-':>4} {found:>8.1f} {whole / found:>7.2f}x  admitted, without a tail", flush=True)
        for wanted in asked.on:
            for share in asked.share:
                on = wanted or math.ceil(share * COPIES)
                tail = f"stream rollout(block=1, deal=free)\ntail rollout(under={share}, on={on})\n{admit}"
                found, _ = case.mean(tail, scoring)
                print(f"{share:>6.0%} {on:>4} {found:>8.1f} {whole / found:>7.2f}x", flush=True)


class _Case:
    """Lengths of rows, and a folder of programs."""

    def __init__(self, folder: Path, asked: argparse.Namespace) -> None:
        self.folder, self.asked, self.lengths = folder, asked, _lengths(asked.limit)
        self.text = PROGRAM.replace("LIMIT", str(asked.limit))

    def mean(self, lines: str, scoring: float) -> tuple[float, float]:
        """Seconds of a step, and until all is generated, of some draws of lengths."""
        made = _compiled(self.folder, self.text, lines)
        found = [self.seconds(made, scoring, seed) for seed in range(self.asked.seeds)]
        step, generating = (fmean(each) for each in zip(*found, strict=True))
        return step, generating

    def seconds(self, made: Compiled, scoring: float, seed: int) -> tuple[float, float]:
        from rlgraph.backends.sim.backend import SimBackend
        from rlgraph.passes.cost.lengths import Lengths
        from rlgraph.passes.cost.workload import Workload

        rows = Workload(Lengths((float(PROMPT),)), self.lengths, foresight=self.asked.foresight)
        backend = SimBackend(made.program, made.plan, Toy(scoring, self.asked.slots), rows, seed)
        next(iter(backend.run_steps(1)))
        works = backend.works
        return max(work.end for work in works), max(work.end for work in works if work.op == "generate")


def _lengths(limit: int) -> Lengths:
    from rlgraph.passes.cost.lengths import Lengths

    chance = random.Random(0)
    return Lengths.from_lengths([min(limit, max(1, round(500 * chance.lognormvariate(0, 1)))) for _ in range(4000)])


def _compiled(folder: Path, program: str, streams: str) -> Compiled:
    import rlgraph

    path = folder / "toy.rlf"
    path.write_text(program)
    (folder / "prompts.jsonl").write_text('{"prompt": "a"}\n')
    return rlgraph.compile(path, schedule=SCHEDULE + streams)


if __name__ == "__main__":
    main()
