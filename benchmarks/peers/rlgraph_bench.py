"""rlgraph on the toy task: the whole system, from `toy_grpo.rlf` to the last optimizer step, in one process or on
Ray.

    python rlgraph_bench.py --steps 25 --threads 2
    python rlgraph_bench.py --plan vllm-transformers-dp2 --steps 15
    python rlgraph_bench.py --plan my.rls

On Ray, `nobody_s` is the part of a step in which no process works, so all that the controller and Ray add; `late_s` is
that in which a process is idle though all that its next work needs has been made, of the process where it is most;
`core_s` is that in which a process is ready to run and has no core, of the process where it is most;
`driver_cpu_s` is the CPU time of the controller's process, Ray's threads in it included. The first three steps do not
count, nor the last ones, which have nothing ahead of them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]
# The functions of the toy task run in Ray's processes, too.
os.environ["PYTHONPATH"] = os.pathsep.join([*sys.path[:2], os.environ.get("PYTHONPATH", "")])
import clock
import toy

SKIPPED = 3
"""Steps with lazy initialisation."""


def schedule(pools: dict[str, int], train: str, generate: str) -> str:
    """The text of a schedule: pools with their devices, and where the actor trains and generates."""
    declared = "".join(f"pool {name} = {devices} devices\n" for name, devices in pools.items())
    return f"schedule toy_grpo\n{declared}place actor.train on {train}\nplace actor.generate on {generate}\n"


def plans() -> dict[str, str]:
    """Schedules for two cores: one process of each kind, which take turns (`one`) or have a pool each (`two`), or two
    of each kind, which share the rows (`dp2`) or the weights (`tp2`)."""
    found = {}
    for engine in ("transformers", "megatron"):
        train, generate = f"engine={engine}", "engine=vllm"
        found |= {
            f"vllm-{engine}-one": schedule({"all": 1}, f"all({train})", f"all({generate})"),
            f"vllm-{engine}-two": schedule({"learn": 1, "play": 1}, f"learn({train})", f"play({generate})"),
            f"vllm-{engine}-dp2": schedule({"all": 2}, f"all({train}, dp=2)", f"all({generate}, dp=2)"),
        }
    tp = schedule({"all": 2}, "all(engine=megatron, tp=2)", "all(engine=vllm, dp=2)")
    own = {
        f"own-{name}": text.replace("vllm", "transformers")
        for name, text in (("one", found["vllm-transformers-one"]), ("dp2", found["vllm-transformers-dp2"]))
    }
    return found | {"vllm-megatron-tp2": tp} | own


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    named = ", ".join(plans())
    parser.add_argument(
        "--plan", default="", help=f"run on Ray by an .rls file or one of {named}; else in this process"
    )
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--n", type=int, default=4, help="samples per prompt")
    parser.add_argument("--new", type=int, default=32)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--threads", type=int, default=2, help="of each process")
    parser.add_argument("--lag", type=int, default=0, help="steps that the weights that generate are behind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trace", default=None, help="write a timeline")
    parser.add_argument("--out", default="")
    parser.add_argument("--device", default="cpu", help="in this process: cpu or cuda")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    if options.device == "cpu":
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    mark = clock.Tree()
    os.environ |= mark.env
    import rlgraph
    from rlgraph.runs.events import EventReader, WeightsSent, WorkDone

    class Watch(EventReader):
        """What happened until the end of each step; a step ends with its report."""

        def __init__(self) -> None:
            self.ends: list[tuple[float, float, float, tuple[int, int, int]]] = []
            self.waits: list[dict[str, float]] = []
            self.seconds: dict[str, list[float]] = {"generate": [], "train": [], "sync": []}

        def work_done(self, event: WorkDone) -> None:
            if event.node.op in self.seconds:
                self.seconds[event.node.op].append(event.seconds)
            if event.node.op == "report":
                self.ends.append((time.time(), clock.cpu_s() + mark.cpu_s(), time.process_time(), clock.host_busy()))
                self.waits.append(mark.core_waits() if options.plan else {})

        def weights_sent(self, event: WeightsSent) -> None:
            self.seconds["sync"].append(event.seconds)

    folder = Path(tempfile.mkdtemp(prefix="toy"))
    toy.make_model(options.seed).save_pretrained(folder)
    toy.make_tokenizer().save_pretrained(folder)
    watch = Watch()
    changes = {"base": folder, "batch": options.prompts, "n": options.n, "tokens": options.new, "lr": options.lr}
    text = plans().get(options.plan) or (str(Path(options.plan).resolve()) if options.plan else None)
    trace = Path(options.trace or folder / "trace.json").resolve()
    began = time.time()
    program = (HERE / "toy_grpo.rlf").read_text()
    if options.lag:
        program = program.replace("\nstep:\n", f"\nstep async(lag={options.lag}):\n")
    out = options.out and Path(options.out).resolve()
    # Files that a program in a text names are looked for where one is.
    os.chdir(HERE)
    made = rlgraph.compile(program, set=changes, schedule=text).run(
        options.steps,
        seed=options.seed,
        threads=options.threads,
        progress=False,
        on_event=watch,
        trace=trace,
        backend="ray" if options.plan else "local",
        device=None if options.plan else options.device,
    )
    rows = options.prompts * options.n
    pairs = list(zip(watch.ends, watch.ends[1:], strict=False))[SKIPPED:]
    step = [after[0] - before[0] for before, after in pairs]
    busy = [(after[3][0] - before[3][0]) / max(1, after[3][1] - before[3][1]) for before, after in pairs]
    seconds = {name: clock.med(found[SKIPPED:]) for name, found in watch.seconds.items()}
    middle = clock.med(step)
    result = {
        "what": "rlgraph",
        "algo": "grpo",
        "plan": options.plan,
        "gen_backend": options.plan.split("-")[0] or "own",
        "prompts": options.prompts,
        "n": options.n,
        "new_tokens": options.new,
        "threads": options.threads,
        "samples_per_step": rows,
        "steps": len(made.metrics),
        "step_s": middle,
        "samples_per_s": rows / middle,
        "tokens_per_s": rows * options.new / middle,
        "cpu_s_per_step": clock.med([b[1] - a[1] for a, b in pairs]),
        "generate_s": seconds["generate"],
        "generate_tok_s": rows * options.new / seconds["generate"],
        "train_s": seconds["train"],
        "sync_s": seconds["sync"],
        "rest_s": middle - seconds["generate"],
        "lag": options.lag,
        "nobody_s": clock.med(idle(trace)[SKIPPED : len(watch.ends) - options.lag]),
        "late_s": clock.med(late(trace)[SKIPPED : len(watch.ends) - options.lag]) if options.plan else 0.0,
        "core_s": clock.med([waited(*each) for each in pairwise(watch.waits)][SKIPPED:]),
        "driver_cpu_s": clock.med([b[2] - a[2] for a, b in pairs]),
        "open_s": watch.ends[0][0] - began - middle,
        "reward_curve": [round(row["reward"], 4) for row in made.metrics],
        "step_min": min(step),
        "step_max": max(step),
        "host_busy": clock.med(busy),
        "env": clock.stamp(),
    }
    print(json.dumps(result))
    if out:
        with open(out, "a") as file:
            file.write(json.dumps(result) + "\n")


def waited(before: dict[str, float], after: dict[str, float]) -> float:
    """Of the actor that was longest ready to run without a core, for how long."""
    return max((after[each] - before[each] for each in after if each in before), default=0.0)


Slice = dict[str, Any]


def steps(events: list[Slice]) -> list[tuple[float, float]]:
    """From the end of one to the end of the next, in microseconds; the first one from its beginning."""
    found = sorted((each["ts"] + each["dur"], each["ts"]) for each in events if each.get("cat") == "step")
    ends = [end for end, _ in found]
    return list(zip([found[0][1], *ends], ends, strict=False))


def idle(trace: Path) -> list[float]:
    """For each step the seconds in which no process works."""
    events = json.loads(trace.read_text())["traceEvents"]
    spans = sorted((each["ts"], each["ts"] + each["dur"]) for each in works(events))
    found = []
    for now, end in steps(events):
        free = 0.0
        for first, last in spans:
            if now < end and last > now:
                free += max(0.0, min(first, end) - now)
                now = last
        found.append((free + max(0.0, end - now)) / 1e6)
    return found


def works(events: list[Slice]) -> list[Slice]:
    return [each for each in events if each["ph"] == "X" and each["cat"] != "step"]


def late(trace: Path) -> list[float]:
    """For each step the seconds in which a process is idle though all that its next work needs has been made: of the
    process, the host's not counted, that is longest so."""
    events = json.loads(trace.read_text())["traceEvents"]
    tracks: dict[tuple[int, int], list[Slice]] = {}
    for each in sorted(works(events), key=lambda each: each["ts"]):
        tracks.setdefault((each["pid"], each["tid"]), []).append(each)
    needed: dict[int, float] = {}
    """When all that a work needs was there."""
    for own in tracks.values():
        end = 0.0
        for each in own:
            needed[id(each)], end = end, max(end, each["ts"] + each["dur"])
    begun = {each["id"]: each for each in events if each["ph"] == "s"}
    for to in (each for each in events if each["ph"] == "f" and each["name"] != "weights"):
        flow = begun[to["id"]]
        source, target = (at(tracks[each["pid"], each["tid"]], each["ts"]) for each in (flow, to))
        needed[id(target)] = max(needed[id(target)], source["ts"] + source["dur"])
    syncs = [each for each in works(events) if each["cat"] == "sync"]
    # Weights go when both ends are free.
    free = {id(each): max(needed[id(other)] for other in syncs if near(each, other)) for each in syncs}
    needed |= free
    hosts = {each["pid"] for each in events if each["ph"] == "M" and each["args"].get("name") == "host"}
    found = []
    for begin, end in steps(events):
        lost = [
            sum(max(0.0, min(end, each["ts"]) - max(begin, needed[id(each)])) for each in own)
            for track, own in tracks.items()
            if track[0] not in hosts
        ]
        found.append(max(lost) / 1e6)
    return found


def near(one: Slice, other: Slice) -> bool:
    """They are at work at the same time, or begin in the same millisecond."""
    first, last = sorted((one, other), key=lambda each: each["ts"])
    return bool(last["ts"] - first["ts"] < max(1e3, first["dur"]))


def at(own: list[Slice], time: float) -> Slice:
    """What a process did then."""
    return next(each for each in own if each["ts"] <= time + 1e-2 and time <= each["ts"] + each["dur"] + 1e-2)


if __name__ == "__main__":
    main()
