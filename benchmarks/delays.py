"""Runs on Ray whose processes are delayed at random: is what they compute what the program says?

    python benchmarks/delays.py
    python benchmarks/delays.py --runs 10 --seed 40
    python benchmarks/delays.py --generates vllm
    python benchmarks/delays.py --exact

Each run draws by its seed a program (answers, or episodes of an environment) with `async(staleness=K, span=...)`, and a
plan whose weights are taken over while rows are sampled (`refresh ... by=reread`, with vLLM also `keep`). Every process
sleeps again and again, as `delayed.py` says: who trains, who samples, before each token and between its orders, both
ends of every transfer, the functions and the environment of the user, the rows of the data, the controller. Of each run
is asked that

    sampled     each row is sampled once, and all that was sampled was trained on or left over in the end: none is lost,
                none is trained on twice, none is too old, as `rlgraph trace check` says
    replayed    its replay in one process reports the same numbers, step by step, and leaves the same trace

`--exact`: GRPO, PPO, DAPO and the agent with `lag=0`, `1` and `2`, delayed in the same way: the numbers of one process,
without a replay, for sampling is by row.

A run that does otherwise is said with its seed, and `--runs 1 --seed SEED` draws it again; who is overtaken by whom is
the machine's, not the seed's.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.delayed import SLEEPS, sleep
from rlgraph.errors import RlgraphError

CLOSE = 1e-6
"""Between numbers of models in float64, with scores in float32."""
CLOSE_32 = 1e-4
"""Of models in float32."""

ENTRIES = "[rlgraph.engines]\nlate_transformers = benchmarks.delayed:LATE_TRANSFORMERS\n"
ENTRIES += "late_vllm = benchmarks.delayed:LATE_VLLM\n"

USER = '''
from benchmarks.delayed import sleep

WORDS = ["ab", "b", "cdab", "a", "bc", "dddd", "c", "dab", "ba", "ca"]

def rows():
    """For ever."""
    while True:
        for word in WORDS:
            sleep(0.5)
            yield {"prompt": word}

def exact_match(prompts, completions, completion_ids, **columns):
    sleep()
    return [(3 * sum(ids) + len(ids)) % 7 / 6 for ids in completion_ids]

class Shell:
    """Says what it was told, three times."""

    def reset(self, row):
        sleep()
        self.turn = 0
        return ">"

    def step(self, action):
        sleep()
        self.turn += 1
        return action[:2] + ">", (len(action) + self.turn) % 3 / 2, self.turn == 3
'''

SOURCE = (
    'random("qwen2", hidden_size=64, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, '
    'num_key_value_heads=1, max_position_embeddings=256, initializer_range=0.1, tokenizer=chars("abcd>"))'
)
MODEL = f'{SOURCE}, dtype="float64"'

HEAD = """algorithm delayed
model actor = causal_lm({model})
data prompts = python("user.py:rows", batch=4)
func score = python("user.py:exact_match")
env shell = python("user.py:Shell")

step async(staleness={bound}, span={span}):
"""
SAMPLES = {
    "answers": """    rollout = actor.generate(prompts, n=3, max_tokens=40, min_tokens=10)
    gain = score(rollout)
""",
    "episodes": """    rollout = actor.interact(shell, prompts, n=3, max_turns=3, max_tokens=40)
    gain = sum(rollout.reward, turn)
""",
}
TAIL = """    now = actor.logprobs(rollout)
    weight = min(exp(now - rollout.logprobs), 5.0)
    train actor(lr=0.01, eps=0.01):
        minimize mean(-weight * actor.logprobs(rollout) * center(gain, prompts))
    last = max(rollout.version, by=rollout)
    report gain = mean(gain), length = mean(rollout.length), age = max(rollout.age)
    report far = mean(abs(now - rollout.logprobs)), spans = max(last - min(rollout.version, by=rollout))
"""

SHIPPED: Mapping[str, Mapping[str, str]] = {
    "grpo": {"max_tokens=1024": "max_tokens=20", "lr=1e-6": "lr=0.01, eps=0.01", "parts=4": "parts=2"},
    "ppo": {"max_tokens=512": "max_tokens=20", "lr=1e-6": "lr=0.01, eps=0.01", "lr=5e-6": "lr=0.01, eps=0.01"},
    "dapo": {"prompts(512)": "prompts(4)", "parts=16": "parts=2", "lr=1e-6": "lr=0.01, eps=0.01"},
    "agent": {"max_tokens=4096": "max_tokens=40", "lr=1e-6": "lr=0.01, eps=0.01", "every 20": "every 2"},
}
"""What is replaced in the text of a program that ships."""
SETTINGS = {
    "base": SOURCE,
    "judge": SOURCE,
    "n": "3",
    "limit": "20",
    "cushion": "10",
    "prompts": 'python("user.py:rows", batch=4)',
    "tasks": 'python("user.py:rows", batch=4)',
    "unseen": 'python("user.py:rows", batch=2)',
}


@dataclass(frozen=True)
class Drawn:
    """A run, by its seed."""

    seed: int
    text: str
    schedule: str
    set: Mapping[str, str] = field(default_factory=dict)


def drawn(seed: int, generates: str = "transformers") -> Drawn:
    chance = random.Random(seed)
    what = chance.choice(["answers", "answers", "episodes"])
    span = chance.choice(["token", "turn"]) if what == "episodes" else "token"
    # vLLM computes in float32.
    model = SOURCE if generates == "vllm" else MODEL
    text = HEAD.format(model=model, bound=chance.choice([1, 2, 3]), span=span) + SAMPLES[what] + TAIL
    return Drawn(seed, text, plan(chance, "delayed", generates, acts=what == "episodes"))


def plan(
    chance: random.Random,
    name: str,
    generates: str,
    acts: bool,
    user: str = "score, shell",
    also: str = "actor.logprobs",
) -> str:
    """acts: the actor samples in an environment. user: functions and environments. also: what is done where the actor
    is trained."""
    copies, block = chance.choice([1, 2]), chance.choice([0, 1, 2])
    lines = [
        f"schedule {name}",
        "pool learn = 1 devices",
        f"pool play = {copies} devices",
        f"place actor.train{also and f', {also}'} on learn(engine=late_transformers)",
        f"place actor.{'interact' if acts else 'generate'} on play(engine=late_{generates}, dp={copies})",
    ]
    if chance.random() < 0.5:
        lines += ["pool judges = 2 cpus", f"place {user} on judges"]
    if block:
        lines.append(f"stream rollout(block={block})")
    by = chance.choice(["reread", "keep"]) if generates == "vllm" else "reread"
    lines.append(f"refresh actor on play(by={by})")
    return "\n".join(lines) + "\n"


class Kept:
    """The processes of runs, which serve one run after the other: to start them takes longer than a run."""

    def __init__(self) -> None:
        self.free: dict[str, list[Any]] = {}
        """By what they have imported."""
        self.serving: dict[str, str] = {}
        self.given_up: set[int] = set()
        """Runs that were interrupted or have failed: of their processes some may wait for others for ever."""

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Runs that begin meanwhile get such processes."""
        from rlgraph.backends.ray import cluster as processes
        from rlgraph.backends.ray.actors import Actors

        start, end, give_up = processes._begin, Actors.stop, Actors.fail_waiters

        def begin(ray: Any, plan: Any, spec: Any, *places: Any) -> Any:
            return self.begin(ray, spec, _imported(spec.group))

        def given_up(actors: Any, why: BaseException) -> None:
            self.given_up.add(id(actors))
            give_up(actors, why)

        def stop(actors: Any) -> None:
            if id(actors) not in self.given_up:
                return self.stop(actors)
            self.given_up.discard(id(actors))
            for handle in actors.handles.values():
                self.serving.pop(handle._actor_id.hex(), None)
            end(actors)

        processes._begin, Actors.stop, Actors.fail_waiters = begin, stop, given_up
        try:
            yield
        finally:
            processes._begin, Actors.stop, Actors.fail_waiters = start, end, give_up

    def begin(self, ray: Any, spec: Any, imported: str) -> Any:
        """In place of starting one."""
        free = self.free.setdefault(imported, [])
        handle = free.pop() if free else _started(ray)
        # What it is asked for next waits for that.
        handle.begin.remote(spec)
        self.serving[handle._actor_id.hex()] = imported
        return handle

    def stop(self, actors: Any) -> None:
        """In place of ending them; those of a run that has lost some are not used again."""
        import ray

        there = [who for who in actors.who if who not in actors.gone]
        ray.get([actors.handles[who].close.remote() for who in there], timeout=600)
        for handle in actors.handles.values():
            imported = self.serving.pop(handle._actor_id.hex(), None)
            if imported and actors.over is None and len(there) == len(actors.handles):
                self.free[imported].append(handle)
            else:
                ray.kill(handle)
        actors.release()


def _imported(group: Any) -> str:
    """What a process of a group loads."""
    from rlgraph.ir.plan import HOST

    return "nothing" if group.name == HOST or group.code else group.engine.removeprefix("late_")


def _started(ray: Any) -> Any:
    from rlgraph.backends.lock_places import TOGETHER
    from rlgraph.backends.ray import cluster, worker

    threads = {worker.ROWS: 4, worker.ORDERS: worker.SORTS, worker.SAMPLES: 2 * TOGETHER}
    again = ray.remote(concurrency_groups=threads)(_again())
    return again.options(num_cpus=0, runtime_env={"env_vars": cluster.process_env_vars("CPU", True, "")}).remote()


@cache
def _again() -> type:
    from rlgraph.backends.ray.worker import Worker

    class Again(Worker):
        """What a process of a run is, made anew for each."""

        def __init__(self) -> None: ...

        def begin(self, spec: Any) -> None:
            import gc

            from torch import distributed

            # What the run before had, is dropped before the next one takes as much.
            self.__dict__.clear()
            gc.collect()
            for groups in ("megatron.core.parallel_state", "vllm.distributed.parallel_state"):
                if there := sys.modules.get(groups):
                    there.destroy_model_parallel()
            if vllm := sys.modules.get("vllm.distributed.parallel_state"):
                vllm.destroy_distributed_environment()
            if distributed.is_initialized():
                distributed.destroy_process_group()
            super().__init__(spec)

        def call_other_ranks(self, *told: Any) -> list[Any]:
            sleep()
            return super().call_other_ranks(*told)

        def patience(self, seconds: float) -> None:
            """Waits no longer for another process in a transfer."""
            from rlgraph.backends.ray.transfer_ends import Links

            self.links = Links(seconds)

    return Again


@contextmanager
def known(folder: Path, most: float) -> Iterator[None]:
    """The delayed engines are those of a package, here and in processes that are started meanwhile. most: seconds of a
    usual sleep."""
    from rlgraph.backends.enginespec import registry

    told = folder / "delayed_engines-1.0.dist-info"
    told.mkdir(exist_ok=True)
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: delayed-engines\nVersion: 1.0\n")
    (told / "entry_points.txt").write_text(ENTRIES)
    paths = [str(folder), str(ROOT)]
    before = {name: os.environ.get(name) for name in ("PYTHONPATH", SLEEPS)}
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, before["PYTHONPATH"] or ""])
    os.environ[SLEEPS] = str(folder / "sleeps.json")
    sys.path[:0] = paths
    tell(0, most)
    registry._discovered.cache_clear()
    try:
        yield
    finally:
        del sys.path[:2]
        for name, value in before.items():
            os.environ.pop(name)
            os.environ.update({name: value} if value else {})
        registry._discovered.cache_clear()


@contextmanager
def cluster() -> Iterator[None]:
    """Ray on this machine, with processes that are kept."""
    import ray

    ray.init("local", num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    try:
        with Kept().in_use():
            yield
    finally:
        ray.shutdown()


def tell(seed: int, most: float) -> None:
    Path(os.environ[SLEEPS]).write_text(json.dumps({"seed": seed, "most": most}))


def delayed(each: Drawn, steps: int, most: float, folder: Path) -> dict[str, Any]:
    """What came of a run: what is wrong with it, if anything, and the ages of its rows."""
    import rlgraph
    from rlgraph.runs.events import EventReader, WorkStarted

    class Late(EventReader):
        """The controller sleeps, too."""

        def work_started(self, event: WorkStarted) -> None:
            sleep(0.5)

    tell(each.seed, most)
    made = compiled(each, folder)
    began = time.perf_counter()
    found = made.run(
        steps,
        seed=each.seed,
        out=folder / "run",
        record=folder / "rows",
        backend="ray",
        timeout=300,
        progress=False,
        on_event=Late(),
        threads=1,
    )
    seconds = time.perf_counter() - began
    tell(each.seed, 0.0)
    replayed = made.run(steps, seed=each.seed, out=folder / "again", replay=folder / "rows", progress=False, threads=1)
    checked, again = (rlgraph.check_trace(folder / name) for name in ("run", "again"))
    wrong = [found.render() for found in checked.diagnostics]
    if checked.sampled != checked.trained + checked.left:
        wrong.append(f"{checked.sampled} rows were sampled, {checked.trained} trained on, {checked.left} left over")
    if checked != again:
        wrong.append(f"the trace of the replay is another one: {checked.to_json()}, {again.to_json()}")
    wrong += differences(found.metrics, replayed.metrics, CLOSE if "float64" in each.text else CLOSE_32)
    return {
        "wrong": wrong,
        "rows": checked.trained,
        "ages": checked.ages,
        "spanned": sum(row["spans"] > 0 for row in found.metrics),
        "seconds": seconds,
    }


def compiled(each: Drawn, folder: Path) -> Any:
    import rlgraph

    (folder / "user.py").write_text(USER)
    path = folder / "program.rlf"
    path.write_text(each.text)
    return rlgraph.compile(path, set=each.set, schedule=each.schedule)


def differences(ours: list[dict[str, Any]], theirs: list[dict[str, Any]], close: float) -> list[str]:
    found = [f"there are {len(ours)} steps, and {len(theirs)} in one process"] if len(ours) != len(theirs) else []
    for one, other in zip(ours, theirs, strict=False):
        names = sorted(name for name in (one.keys() | other.keys()) - {"seconds", "phase"} if "/" not in name)
        found += [
            f"step {one['step']}: `{name}` is {one.get(name)}, and {other.get(name)} in one process"
            for name in names
            if not (name in one and name in other and abs(one[name] - other[name]) <= close * max(1, abs(other[name])))
        ]
    return found


def exact(name: str, lag: int, steps: int, most: float, seed: int, folder: Path) -> dict[str, Any]:
    """A program that ships, on Ray and in one process."""
    chance = random.Random(f"{seed} {name} {lag}")
    text = (ROOT / "rlgraph" / "algorithms" / f"{name}.rlf").read_text()
    for old, new in SHIPPED[name].items():
        assert old in text, f"{old!r} is not in {name}"
        text = text.replace(old, new)
    text = text.replace("rlgraph.rewards:", "user.py:").replace("envs.py:", "user.py:").replace("parts=8", "parts=2")
    for kind in ("base", "judge"):
        text = text.replace(f"_lm({kind})", f'_lm({kind}, dtype="float64")')
    text = text.replace("\nstep:", f"\nstep async(lag={lag}):" if lag else "\nstep:")
    known = {key: value for key, value in SETTINGS.items() if f"param {key} " in text or f"data {key} " in text}
    models = [line.split()[1] for line in text.splitlines() if line.startswith("model ")]
    user = [line.split()[1] for line in text.splitlines() if line.startswith(("func ", "env "))]
    # Of what a loss asks of its own model the plan knows already.
    also = ["actor.logprobs"] * ("old_logp" in text) + [model for model in models if model != "actor"]
    lines = plan(chance, name, "transformers", name == "agent", ", ".join(user), ", ".join(also)).splitlines()
    lines = [each for each in lines if not each.startswith("refresh") and (user or "judges" not in each)]
    if name == "agent":
        lines = [each.replace("stream rollout", "stream episode") for each in lines]
    each = Drawn(seed, text, "\n".join(lines) + "\n", known)
    made = compiled(each, folder)
    tell(seed, most)
    began = time.perf_counter()
    run = {"seed": seed, "progress": False, "threads": 1}
    found = made.run(steps, backend="ray", timeout=300, **run)
    seconds = time.perf_counter() - began
    tell(seed, 0.0)
    alone = made.run(steps, **run)
    return {"wrong": differences(found.metrics, alone.metrics, CLOSE), "seconds": seconds}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="of the first run; the others follow")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--most", type=float, default=0.03, help="seconds of a usual sleep")
    parser.add_argument("--generates", choices=["transformers", "vllm"], default="transformers", help="the engine")
    parser.add_argument("--exact", action="store_true", help="programs that ship with a lag, beside one process")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each run")
    return parser.parse_args()


def results(options: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    if options.exact:
        for name in SHIPPED:
            for lag in (0, 1, 2):
                own = folder / f"{name}-{lag}"
                own.mkdir()
                said = {"what": name, "lag": lag}
                yield told(said, partial(exact, name, lag, options.steps, options.most, options.seed, own))
        return
    for seed in range(options.seed, options.seed + options.runs):
        own = folder / str(seed)
        own.mkdir()
        run = partial(delayed, drawn(seed, options.generates), options.steps, options.most, own)
        yield told({"seed": seed}, run)


def told(who: Mapping[str, Any], run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What came of a run, also if it failed."""
    began = time.perf_counter()
    try:
        return {**who, **run()}
    except RlgraphError as error:
        return {**who, "wrong": [str(error)], "seconds": time.perf_counter() - began}


def main() -> None:
    options = arguments()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    wrong, rows, ages, spanned, count = 0, 0, Counter[int](), 0, 0
    with tempfile.TemporaryDirectory() as name, known(Path(name), options.most), cluster():
        for found in results(options, Path(name)):
            count, wrong = count + 1, wrong + bool(found["wrong"])
            who = f"{found['what']}, lag {found['lag']}" if options.exact else f"seed {found['seed']}"
            if options.json:
                print(json.dumps(found), flush=True)
            else:
                print(f"{who}: {'; '.join(found['wrong']) or 'as it should be'} ({found['seconds']:.1f} s)", flush=True)
            if not options.exact:
                rows, spanned = rows + found.get("rows", 0), spanned + bool(found.get("spanned"))
                ages.update(found.get("ages", {}))
    if not options.json:
        print(f"{count} runs, {wrong} of them wrong")
        if not options.exact:
            old = ", ".join(f"{age}: {number}" for age, number in sorted(ages.items()))
            print(f"{rows} rows were trained on, by the steps that their oldest token was behind: {old}")
            print(f"in {spanned} runs there are rows of several versions")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
