"""Trainings that share the stages of a pipeline: how short a schedule is found, beside what none can beat.

    python benchmarks/fused.py
    python benchmarks/fused.py --problem FILE.json
    python benchmarks/fused.py --problem FILE.json --picture OUT.svg
    python benchmarks/fused.py --work 30 --json
    python benchmarks/fused.py --measured

Without a file: six configurations of FlexFusion (RLHFuse, arXiv 2409.13221, and the result files beside its code), in
their units: seconds of a stage's forward are about layers a stage times hidden size squared, memory is in stages of a
model of 13B on 8 stages. Better schedules are found where OR-Tools is installed (`pip install
'rlgraph-compiler[pipelines]'`).

    makespan  seconds of the schedule that was found
    bound     that no schedule can beat: of each model alone, and of each stage with all its work
    serial    of one model after the other, each by 1F1B
    peak      memory of the fullest stage; with 1F1B, one model after the other
    published makespan and peak

A problem is `{"models": [{"name": "actor", "stages": 8, "micro_batches": 32, "forward": 5, "backward": 10,
"memory": 1.95}, ...], "capacity": 20}`: a model may have `copies` (all there is room for) and `reverse` (every
other one is); `micro_batches` are those of a copy, `forward` and `backward` seconds of one of them on a stage, `memory`
what one in flight needs there. `chunks` is how many parts of the model a stage has, which share its seconds and its
memory; `weight` how many of the seconds of `backward` gradients of weights take, if they may be computed apart.
`capacity` is a stage's memory. It prints JSON; `--lists` adds what each stage does, in order: the line's number
(copies counted through all models), after a dot the chunk if it is not the first one, and F or B, or for halves of B, I
(inputs) and W (weights). `in_turn` are the seconds of one model after the other by what is published for its chunks and
its halves: 1F1B, interleaved 1F1B, ZB-H1; `serial` those by 1F1B without chunks and halves. `--picture` draws them as
OUT.svg or OUT.png: what each stage does when.

With `--measured`: an actor and a critic, alike, of Megatron-core on two stages, processes of one thread each. Gradients
of both, one after the other and in one pipeline, in turn; the medians of several.

    serial    seconds, one after the other by 1F1B
    fused     seconds, in one pipeline, the critic's stages the other way round
    speedup   of the medians, and what the lists promise where a backward takes two forwards and nothing else counts
    error     of float64 gradients: the largest difference, in parts of the largest number of a tensor
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.one_pipeline import measured
from rlgraph.passes.pipelines.fuse import FusedSchedule, search_schedule
from rlgraph.passes.pipelines.problem import PipelineModel, PipelineProblem, problem_from_json
from rlgraph.passes.pipelines.timetable import compute_timetable
from rlgraph.viz.gantt import gantt_svg
from rlgraph.viz.pipeline import draw_pipeline
from rlgraph.viz.png import svg_to_png
from rlgraph.viz.svg_elements import with_fonts

PUBLISHED = {
    0: (("33B", 8, 32, 5, 1.95), ("13B", 4, 16, 4, 2.0), 708, 19.7),
    1: (("33B", 8, 16, 5, 1.95), ("13B", 4, 8, 4, 2.0), 372, 15.75),
    2: (("33B", 8, 8, 5, 1.95), ("13B", 4, 4, 4, 2.0), 225, 15.6),
    5: (("33B", 8, 8, 5, 1.95), ("13B", 8, 8, 2, 1.0), 225, 15.6),
    6: (("65B", 16, 64, 2, 1.64), ("33B", 8, 32, 2, 2.0), 618, 39.7),
    9: (("65B", 16, 64, 2, 1.64), ("33B", 16, 64, 1, 1.0), 613, 38.7),
}
"""By the authors' numbers: of both models the stages, micro-batches of a copy, seconds of a forward, and memory; the
makespan and the peak that they found."""


def published(number: int) -> PipelineProblem:
    """A backward takes twice as long as a forward."""
    large, small = PUBLISHED[number][:2]
    (name, stages, batches, seconds, memory), (other, fewer, few, short, less) = large, small
    return PipelineProblem(
        (
            PipelineModel(name, stages, batches, seconds, 2 * seconds, memory=memory),
            PipelineModel(other, fewer, few, short, 2 * short, copies=stages // fewer, memory=less, reverse=True),
        )
    )


def timed(asked: PipelineProblem, options: argparse.Namespace) -> tuple[FusedSchedule | None, float]:
    """What is found, and the seconds that it took."""
    began = perf_counter()
    return search_schedule(asked, options.work, options.within, options.seed), perf_counter() - began


def told(found: FusedSchedule, seconds: float) -> dict[str, Any]:
    return {
        "what": "fused",
        "makespan": found.makespan,
        "bound": found.bound,
        "gap": found.makespan / found.bound - 1,
        "peak": found.peak,
        "serial": found.serial,
        "serial_peak": found.serial_peak,
        "in_turn": found.published_seconds,
        "in_turn_peak": found.published_peak,
        "speedup": found.serial / found.makespan,
        "seconds": seconds,
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", help="a file")
    parser.add_argument("--picture", type=Path, metavar="OUT", help="draw the lists of --problem, as .svg or .png")
    parser.add_argument(
        "--work", type=float, default=10.0, help="of the search, at most: each is about a second of an idle core"
    )
    parser.add_argument("--within", type=float, default=0.01, help="share of the makespan that memory may cost")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--configurations", type=int, nargs="*", choices=list(PUBLISHED), default=list(PUBLISHED))
    parser.add_argument("--measured", action="store_true", help="with models, on this machine")
    parser.add_argument("--batches", type=int, nargs="*", default=[2, 4, 8], help="micro-batches of `--measured`")
    parser.add_argument("--lists", action="store_true", help="what each stage does, too")
    parser.add_argument(
        "--json", action="store_true", help="a line of JSON for each configuration instead of the table"
    )
    found = parser.parse_args()
    if found.picture and not found.problem:
        parser.error("--picture draws the lists of --problem FILE.json")
    if found.picture and found.picture.suffix not in (".svg", ".png"):
        parser.error(f"`{found.picture}` does not end in .svg or .png")
    return found


def drawn(name: str, asked: PipelineProblem, found: FusedSchedule) -> str:
    """What each stage does when, as SVG."""
    names = ", ".join(dict.fromkeys(model.name for model in asked.models))
    notes = [
        f"makespan {found.makespan:g}, and no lists can beat {found.bound:g}; one after the other by 1F1B "
        f"{found.serial:g}",
        f"memory of micro-batches in flight on the fullest stage {found.peak:g}; one after the other by 1F1B "
        f"{found.serial_peak:g}" + ("" if asked.capacity is None else f"; there is room for {asked.capacity:g}"),
    ]
    chart = draw_pipeline(
        asked, found.lists, compute_timetable(asked, found.lists), f"{names} on {asked.stage_count} stages", notes
    )
    return gantt_svg(name, "what each stage does when", [chart])


def write_picture(path: Path, svg: str) -> None:
    path.write_bytes(svg_to_png(svg) if path.suffix == ".png" else with_fonts(svg).encode())


def main() -> None:
    options = arguments()
    if options.problem:
        try:
            asked = problem_from_json(json.loads(Path(options.problem).read_text("utf-8")))
        except (OSError, ValueError) as error:
            sys.exit(f"{options.problem}: {error}")
        found, seconds = timed(asked, options)
        if found is None:
            sys.exit(f"{options.problem}: nothing was found that keeps to the capacity: try more `--work`")
        if options.picture:
            try:
                write_picture(options.picture, drawn(Path(options.problem).stem, asked, found))
            except OSError as error:
                sys.exit(f"{options.picture}: {error.strerror or error}")
        lists = {"lists": [[str(entry) for entry in own] for own in found.lists]}
        print(json.dumps({**told(found, seconds), **(lists if options.lists else {})}))
        return
    if options.measured:
        names = ("micro-batches", "serial s", "fused s", "speedup", "promised", "error")
        if not options.json:
            print("".join(f"{name:>14}" for name in names))
        for each in measured(options.batches):
            row = f"{each['micro_batches']:>14}{each['serial']:>14.3f}{each['fused']:>14.3f}{each['speedup']:>13.2f}x"
            row += f"{each['promised']:>13.2f}x{each['error']:>14.1e}"
            print(json.dumps(each) if options.json else row, flush=True)
        return
    names = ("", "makespan", "bound", "published", "serial", "speedup", "peak", "published", "1F1B", "search s")
    if not options.json:
        print("".join(f"{name:>11}" for name in names))
    for number in options.configurations:
        found, seconds = timed(published(number), options)
        assert found
        makespan, peak = PUBLISHED[number][2:]
        if options.json:
            more = {"configuration": number, "published": makespan, "published_peak": peak}
            print(json.dumps({**told(found, seconds), **more}), flush=True)
            continue
        print(
            f"{number:>11}{found.makespan:>11g}{found.bound:>11g}{makespan:>11}{found.serial:>11g}"
            f"{found.serial / found.makespan:>10.2f}x{found.peak:>11.2f}{peak:>11}{found.serial_peak:>11.2f}"
            f"{seconds:>11.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
