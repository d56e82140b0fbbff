"""Does a run grow? Memory of the driver and of each of its processes over many small steps, with a line through it.

    python benchmarks/growth.py
    python benchmarks/growth.py --backend ray --minutes 12
    python benchmarks/growth.py --plot growth.svg --json growth.json
    python benchmarks/growth.py --steps 400 --allocations

A program with nearly all that could grow: a lag with older weights, a frozen model and an average of weights, states, a
keyed state, a buffer, groups that wait for the next step, a reward function in a process of its own. With
`--backend ray` transformers trains it, vLLM samples, and all are actors. Tiny models: what a step leaves behind would
show beside them.

    begun, ended        MB of a process after a quarter of the steps, and at the end: of pages that belong to no file
                        (the kernel's `Pss_Anon`). Of those of libraries each process is counted a share, which is
                        another one whenever somebody else on the machine uses torch
    a step              bytes that it grows by in a step: the slope of Theil and Sen (the median of those of all pairs
                        of points) over the last three quarters, and what half of the slopes of eighths are between
    verdict             `grows` where that is more than `--most` bytes a step, and more than chance

What the driver keeps of a step by design is its metrics, a dictionary of some numbers, which `run.metrics` gives.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from rlgraph.runs.events import EventReader, WorkDone

WORDS = ["ab", "b", "cdab", "a", "bc", "dddd", "c", "dab", "ba", "ca"]
USER = """
def score(prompts, completions, completion_ids, **columns):
    return [(3 * sum(ids) + len(ids) + len(p)) % 7 / 6 for p, ids in zip(prompts, completion_ids)]
"""
PROGRAM = """algorithm growth
model actor  = causal_lm(random("qwen2", hidden_size=64, intermediate_size=24, num_hidden_layers=1,
                                num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=64,
                                initializer_range=0.3, tokenizer=chars("abcd>")))
model slow   = frozen(actor)
data prompts = jsonl("prompts.jsonl", batch=4, shuffle=true)
func score   = python("rewards.py:score")
state baseline = 0.0
state solved[task] = 0.5
buffer past  = fifo(capacity=9)

step async(lag=1):
    collect prompts(3, rest=carry, ahead=1.5):
        rollout = actor.generate(prompts, n=2, max_tokens=4)
        reward  = score(rollout)
        keep prompts where std(reward, by=prompts) > 0
    baseline := 0.9 * baseline + 0.1 * mean(reward)
    solved[rollout.task] := 0.5 * solved[rollout.task] + 0.5 * reward
    push past(rollout, adv=reward - baseline)
    old = past.sample(6)
    train actor(lr=1e-8):
        minimize mean(-actor.logprobs(old) * old.adv)
    every 5:
        update slow from actor(ema=0.9)
    kl = k1(rollout.logprobs, slow.logprobs(rollout))
    report reward = mean(reward), solved = mean(solved[rollout.task]), age = mean(rollout.age), kl = mean(kl)
"""
PLAN = """schedule growth
pool learn = 1 devices
pool play = 1 devices
place actor.train, slow on learn(engine=transformers)
place actor.generate on play(engine=vllm)
"""
POINTS = 200
"""Of a process, at most."""


@dataclass
class Grown:
    """What was seen of a process."""

    name: str
    points: list[tuple[int, float]] = field(default_factory=list)
    """Steps that were done, and MB."""

    @property
    def late(self) -> list[tuple[int, float]]:
        """Without the first quarter, in which libraries get ready."""
        return self.points[len(self.points) // 4 :]

    def slope(self) -> tuple[float, float, float]:
        """Bytes a step, and between which it is for half of the eighths of the run."""
        late, size = self.late, max(2, len(self.late) // 6)
        parts = sorted(_slope(late[at : at + size]) for at in range(0, len(late) - size + 1, size))
        low, _, high = statistics.quantiles(parts, n=4) if len(parts) > 1 else parts * 3
        return _slope(late), low, high


def _slope(points: Sequence[tuple[int, float]]) -> float:
    """Of Theil and Sen, in bytes a step."""
    pairs = [(b - a) / (y - x) for i, (x, a) in enumerate(points) for y, b in points[i + 1 :] if y > x]
    return statistics.median(pairs) * 1e6 if pairs else 0.0


class Watch(EventReader):
    """Measures all processes of a run now and then. A reader of its events."""

    def __init__(self, steps: int, until: float, names: Mapping[int, str], allocations: bool) -> None:
        """names: of processes that say who they are."""
        self.every, self.until, self.names = max(1, steps // POINTS), until, names
        self.steps, self.allocations = 0, allocations
        self.seen: dict[int, Grown] = {}
        self.before: tracemalloc.Snapshot | None = None
        self.after: tracemalloc.Snapshot | None = None
        self._quarter, self._last = steps // 4, steps

    def work_done(self, event: WorkDone) -> None:
        if event.node.op != "train":
            return
        self.steps += 1
        if self.steps % self.every == 0:
            gc.collect()
            for pid, name in _processes(self.names):
                if size := _size(pid):
                    self.seen.setdefault(pid, Grown(name)).points.append((self.steps, size))
        if self.allocations and self.steps == self._quarter:
            tracemalloc.start()
        if self.allocations and self.steps == self._quarter + 20:
            self.before = _snapshot()
        if self.allocations and self.steps == self._last:
            # Models are saved after it.
            self.after = _snapshot()
        if time.monotonic() > self.until:
            raise KeyboardInterrupt

    def told(self) -> None:
        """What was allocated since the first quarter, and is still there, by the line that did it."""
        if self.before is None:
            return
        after = self.after or _snapshot()
        steps, found = self.steps - self._quarter - 20, after.compare_to(self.before, "lineno")
        print(f"{sum(each.size_diff for each in found) / steps:8.1f} bytes a step in objects of Python")
        for each in found[:16]:
            print(f"{each.size_diff / steps:8.1f} in {each.count_diff / steps:6.2f} blocks  {each.traceback}")
        print()


def _snapshot() -> tracemalloc.Snapshot:
    gc.collect()
    return tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(False, tracemalloc.__file__)])


def _processes(names: Mapping[int, str]) -> Iterator[tuple[int, str]]:
    """This one and all that it started."""
    import psutil

    yield os.getpid(), "driver"
    for each in psutil.Process().children(recursive=True):
        try:
            words = each.cmdline()
            known = next((part for part in words if "user_code" in part), None)
            yield each.pid, names.get(each.pid) or ("user function" if known else Path(words[0]).name)
        except (psutil.Error, IndexError):
            continue


def _size(pid: int) -> float:
    """MB; 0: it is gone."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    return next(int(line.split()[1]) / 1e3 for line in text.splitlines() if line.startswith("Pss_Anon:"))


def measured(given: argparse.Namespace, folder: Path) -> tuple[list[Grown], int, float]:
    """Of each process what was seen, how many steps there were, and the seconds of one."""
    import rlgraph
    from rlgraph.api.compiled import Compiled
    from rlgraph.backends.ray import backend
    from rlgraph.backends.ray.failures import CallContext
    from rlgraph.backends.ray.worker import Worker
    from rlgraph.runs.run import Interrupted

    (folder / "prompts.jsonl").write_text(
        "".join(json.dumps({"prompt": word, "task": word[0]}) + "\n" for word in WORDS)
    )
    (folder / "rewards.py").write_text(USER)
    (folder / "growth.rlf").write_text(PROGRAM)
    on_ray = given.backend == "ray"
    compiled: Compiled = rlgraph.compile(folder / "growth.rlf", schedule=PLAN if on_ray else None)
    names: dict[int, str] = {}
    start = backend.start_processes

    def named(*args: Any, **options: Any) -> Any:
        found = start(*args, **options)
        pids = found.call_all(CallContext(found.who, "naming processes"), Worker.pid)
        names.update((pid, " ".join(map(str, who))) for who, pid in zip(found.who, pids, strict=True))
        return found

    backend.start_processes = named
    watch = Watch(given.steps, time.monotonic() + 60 * given.minutes, names, given.allocations)
    began = time.monotonic()
    try:
        compiled.run(given.steps, out=folder / "run", backend=given.backend, threads=1, progress=False, on_event=watch)
    except Interrupted:
        pass
    finally:
        backend.start_processes = start
    watch.told()
    # A process that came late, or went early, is none that goes through the run.
    most = max(len(each.points) for each in watch.seen.values())
    whole = [each for each in watch.seen.values() if len(each.points) > 0.9 * most]
    return whole, watch.steps, (time.monotonic() - began) / max(1, watch.steps)


def plot(found: Sequence[Grown], steps: int, title: str) -> str:
    """A panel for the driver, each rank of a group and Ray's control process, as SVG."""
    from rlgraph.viz.plot import Panel, PanelAxis, lines_svg

    at = [step for step, _ in found[0].points]
    chosen = at[:: max(1, len(at) // 40)]
    panels = []
    for each in found:
        if each.name not in ("driver", "gcs_server") and not each.name[-1].isdigit():
            continue
        known = dict(each.points)
        panels.append(Panel(f"{each.name} (MB)", tuple(known.get(step) for step in chosen)))
    axis = PanelAxis("steps", tuple(str(step) for step in chosen), tuple(map(float, chosen)))
    return lines_svg(title, f"pages that belong to no file, over {steps:,} steps", axis, panels)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=2000)
    options.add_argument("--backend", choices=["local", "ray"], default="local")
    options.add_argument("--minutes", type=float, default=60.0, help="after these it ends, however many steps are done")
    options.add_argument("--most", type=float, default=2000.0, help="bytes that a process may grow by in a step")
    options.add_argument("--allocations", action="store_true", help="what the driver allocated and kept, by its lines")
    options.add_argument("--plot", type=Path)
    options.add_argument("--json", type=Path)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found, steps, seconds = measured(given, Path(folder))
    print(f"{steps:,} steps, {seconds:.3f} s each, backend {given.backend}\n")
    print(f"{'process':24} {'begun':>8} {'ended':>8} {'a step':>9}   {'eighths':>18}")
    grows = False
    for each in found:
        slope, low, high = each.slope()
        wrong = slope > given.most and low > 0
        grows |= wrong
        first, last = each.late[0][1], each.late[-1][1]
        print(
            f"{each.name:24} {first:8.1f} {last:8.1f} {slope:+9,.0f}   {low:+8,.0f} {high:+9,.0f}"
            f"{'   grows' if wrong else ''}"
        )
    if given.plot:
        given.plot.write_text(plot(found, steps, f"Memory of a run, backend {given.backend}"))
    if given.json:
        document = [{"name": each.name, "points": each.points} for each in found]
        given.json.write_text(json.dumps({"steps": steps, "backend": given.backend, "processes": document}))
    return 1 if grows else 0


if __name__ == "__main__":
    sys.exit(main())
