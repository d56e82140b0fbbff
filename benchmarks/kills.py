"""Runs that are killed at random moments and gone on with: do they end as the run that nobody killed?

    python benchmarks/kills.py
    python benchmarks/kills.py --kills 50 --seed 7
    python benchmarks/kills.py --program async --all
    python benchmarks/kills.py --backend ray --debug
    python benchmarks/kills.py --backend ray --kills 3
    python benchmarks/kills.py --actors --minutes 15

Of each program a run is done that nobody disturbs. Then, again and again, the same run in a process that gets SIGKILL
at a moment drawn from all that there are: whenever a node begins or ends, and whenever a file is opened, written anew,
renamed or removed, those of checkpoints half-written among them. Another process goes on with `resume`, and is killed,
too, one time in three. What is compared in the end is to the last bit: every metric of every step, and what the last
checkpoint has of weights, moments, states, buffers and positions.

With `--backend ray` the process that is killed is the controller of a cluster of its own, whose processes end with it;
with `--debug` they are objects in it. A plan of one device: sums are in the same order, so bits can be compared.

With `--actors` Megatron trains and vLLM samples, in processes of Ray's, and any of them is killed: the controller, as
before; or a rank or the host, after which the run goes back to its last checkpoint by itself. vLLM adds up in another
order where other rows are sampled beside one: metrics are compared to 1e-4, and which rows were trained on exactly.
`--minutes` goes on for so long, with the programs in turn. No process of a run may be left when it is over.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from rlgraph.ir.graph import Node

USER = """
def score(prompts, completions, completion_ids, **columns):
    return [(3 * sum(ids) + len(ids) + len(p)) % 7 / 6 for p, ids in zip(prompts, completion_ids)]
"""
WORDS = ["ab", "b", "cdab", "a", "bc", "dddd", "c", "dab", "ba", "ca"]


def weights(seed: int = 0, **more: str) -> str:
    shape = "hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1"
    rest = 'max_position_embeddings=64, initializer_range=0.3, tokenizer=chars("abcd>")'
    return f'random("qwen2", seed={seed}, {shape}, {rest})'


HEAD = """algorithm {name}
model actor  = causal_lm({base}{more})
data prompts = jsonl("prompts.jsonl", batch=4, shuffle=true)
func score   = python("rewards.py:score")
"""

GRPO = """model ref = frozen(actor)
step:
    rollout = actor.generate(prompts, n=2, max_tokens=4)
    reward  = score(rollout)
    kl      = k3(rollout.logprobs, ref.logprobs(rollout))
    minibatch prompts(parts=2):
        train actor(lr=cosine(1e-2, warmup=1, steps=8)):
            ratio = exp(actor.logprobs(rollout) - rollout.logprobs)
            minimize mean(-clip(ratio, 0.8, 1.2) * center(reward, prompts) + 0.1 * kl)
    report reward = mean(reward), kl = mean(kl)
"""

PPO = """model critic = value_lm({base})
phase warmup(steps=2):
    rollout = actor.generate(prompts, max_tokens=4)
    gain    = discount(score(rollout) * rollout.end, 1.0)
    train critic(lr=1e-2):
        minimize mean((critic.values(rollout) - gain)**2)
    report warmup = mean(gain)
step:
    rollout = actor.generate(prompts, max_tokens=4)
    old     = actor.logprobs(rollout)
    value   = critic.values(rollout)
    reward  = score(rollout)
    adv     = gae(reward * rollout.end, value, 1.0, 0.95)
    target  = adv + value
    minibatch rollout(parts=2, epochs=2, shuffle=true):
        train critic(lr=1e-2):
            minimize mean((critic.values(rollout) - target)**2)
        train actor(lr=1e-2):
            minimize mean(-min(exp(actor.logprobs(rollout) - old) * adv, adv))
    report reward = mean(reward), value = mean(value)
"""

KEPT = """model slow = actor
state baseline = 0.0
state solved[task] = 0.5
buffer past = fifo(capacity=9)
step:
    collect prompts(5, rest=carry, ahead=1.5):
        rollout = actor.generate(prompts, n=2, max_tokens=4)
        reward  = score(rollout)
        keep prompts where std(reward, by=prompts) > 0
    baseline := 0.9 * baseline + 0.1 * mean(reward)
    solved[rollout.task] := 0.5 * solved[rollout.task] + 0.5 * reward
    push past(rollout, adv=reward - baseline)
    old = past.sample(6)
    train actor(lr=1e-2):
        minimize mean(-actor.logprobs(old) * old.adv)
    every 2:
        update slow from actor(ema=0.9)
    report reward = mean(reward), solved = mean(solved[rollout.task]), age = mean(old.age)
    report kl = mean(k1(rollout.logprobs, slow.logprobs(rollout)))
"""

ASYNC = """step async(lag=2):
    collect prompts(5, rest=later):
        rollout = actor.generate(prompts, n=2, max_tokens=4)
        reward  = score(rollout)
        keep prompts where mean(reward, by=prompts) > 0.2
    adv     = center(reward, prompts)
    prox    = actor.logprobs(rollout)
    train actor(lr=1e-2):
        minimize mean(-exp(actor.logprobs(rollout) - prox) * min(exp(prox - rollout.logprobs), 5.0) * adv)
    report reward = mean(reward), age = mean(rollout.age)
"""

PROGRAMS = {
    "grpo": HEAD.format(name="grpo", base=weights(), more=", lora=lora(rank=2, alpha=8)") + GRPO,
    "ppo": HEAD.format(name="ppo", base=weights(), more="") + PPO.format(base=weights(1)),
    "kept": HEAD.format(name="kept", base=weights(), more=', dtype="bfloat16"') + KEPT,
    "async": HEAD.format(name="async_collect", base=weights(), more="") + ASYNC,
}
"""Adapters and a rate that falls; two models, phases and epochs; wide copies, states, a buffer, what `collect` carries,
an average of weights; weights of two steps before."""

WIDE = weights().replace("hidden_size=8", "hidden_size=64").replace("key_value_heads=1", "key_value_heads=2")
"""Heads that are wide enough for vLLM."""
ON_ACTORS = {
    "grpo": HEAD.format(name="grpo", base=WIDE, more="") + GRPO,
    "kept": HEAD.format(name="kept", base=WIDE, more="") + KEPT,
    "async": HEAD.format(name="async_collect", base=WIDE, more="") + ASYNC,
}
"""The same where Megatron trains, in float32 and without adapters."""
PLAN = """schedule {name}
pool learn = 1 devices
pool play = 1 devices
place {others} on learn(engine=megatron)
place actor.generate on play(engine=vllm)
"""
OTHERS = {
    "grpo": "actor.train, ref",
    "kept": "actor.train, slow",
    "async": "actor.train, actor.logprobs",
}

STEPS = 6
MACHINE = ("seconds", "sync/")
"""Metrics that tell the time."""
TOLERANCE = 1e-4
GOLDEN = 0.618034
"""Of all processes each is killed about as often."""
MARK = "RLGRAPH_KILLS_RUN"
"""A variable that all processes of a run inherit."""
EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate")


def write(folder: Path, name: str, programs: Mapping[str, str] = PROGRAMS) -> Path:
    """The files of a program."""
    rows = [{"prompt": word, "task": word[0]} for word in WORDS]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "rewards.py").write_text(USER)
    path = folder / f"{name}.rlf"
    path.write_text(programs[name])
    return path


class Killed:
    """Counts the moments of a run in this process, and ends it at one of them. An observer of the run."""

    def __init__(self, folder: Path, moment: int, victim: float) -> None:
        """victim: who of all is killed, from 0 to 1; 0: this process."""
        self.folder, self.moment, self.count, self.victim = str(folder), moment, 0, victim
        self.pids: list[int] = []
        """Of others, where there are any."""
        self.kills = 0
        self._numbers = count(1)
        sys.addaudithook(self._audit)

    def begun(self, processes: Any) -> Any:
        """Those of a run are there."""
        from rlgraph.backends.ray.worker import Worker

        asked = [processes.call(who, Worker.pid) for who in processes.who]
        import ray

        self.pids = ray.get(asked)
        return processes

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in EVENTS and str(arguments[0]).startswith(self.folder):
            self._passed()

    def _passed(self) -> None:
        # A checkpoint is written by another thread: each moment has a number of its own.
        self.count = number = next(self._numbers)
        if number == self.moment:
            self.kills += 1
            # Who has ended already may have given his number to somebody else.
            everybody = [os.getpid(), *(pid for pid in self.pids if _of_run(pid, self.folder))]
            os.kill(everybody[int(self.victim * len(everybody))], signal.SIGKILL)

    def opening(self, what: str) -> None: ...

    def firing(self, node: Node, pool: str = "") -> None:
        self._passed()

    def fired(self, node: Node, seconds: float, tokens: int, pool: str = "") -> None:
        self._passed()

    def synced(self, *_: Any) -> None: ...

    def span(self, *_: Any, **__: Any) -> int:
        return 0

    def flow(self, *_: Any) -> None: ...


def run_in_child(
    compiled: Any, folder: Path, every: int, moment: int, how: Mapping[str, Any], victim: float = 0.0
) -> tuple[int, int] | None:
    """Runs, or goes on where there is a run, in a process of its own that is killed at a moment, or that loses another
    one. How many moments there were, if it came to its end, and how many others were killed."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reads)
            os.environ[MARK] = str(folder)
            killed = Killed(folder, moment, victim)
            if how["backend"] == "ray" and not how["debug"]:
                _watched(killed)
            begun = (folder / "checkpoints").is_dir() and any((folder / "checkpoints").glob("step-*"))
            where: dict[str, Any] = {"resume": folder} if begun else {"out": folder, "overwrite": True}
            compiled.run(STEPS, **where, **how, threads=1, save_every=every, progress=False, observer=killed)
            os.write(writes, f"{killed.count} {killed.kills}".encode())
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writes)
    with os.fdopen(reads) as said:
        told = said.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL, status
        return None
    assert os.WEXITSTATUS(status) == 0, "the run failed"
    moments, kills = told.split()
    return int(moments), int(kills)


def _watched(killed: Killed) -> None:
    """It hears of the processes of each plan that is started."""
    from rlgraph.backends.ray import backend

    start = backend.start
    backend.start = lambda *args, **named: killed.begun(start(*args, **named))


def result(folder: Path) -> dict[str, Any]:
    """What is left of a run, as far as it does not tell the time."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    checkpoint = folder / "checkpoints" / (folder / "checkpoints" / "latest").read_text().strip()
    trace = folder / "trace.jsonl"
    return {
        "metrics": [{name: each for name, each in line.items() if not name.startswith(MACHINE)} for line in lines],
        "trace": trace.read_text() if trace.exists() else "",
        **{
            str(path.relative_to(folder)): path.read_bytes()
            for path in (*sorted(checkpoint.rglob("*")), *sorted((folder / "models").rglob("*.safetensors")))
            if path.is_file()
        },
    }


def differing(found: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    return [name for name in sorted(found.keys() | wanted.keys()) if found.get(name) != wanted.get(name)]


@dataclass
class Unbroken:
    """A program, and the run of it that nobody killed."""

    compiled: Any
    folder: Path
    moments: int
    wanted: dict[str, Any]
    how: Mapping[str, Any]
    exact: bool = True

    @classmethod
    def of(cls, name: str, folder: Path, how: Mapping[str, Any], actors: bool = False) -> Unbroken:
        import rlgraph

        folder.mkdir(parents=True)
        plan = PLAN.format(name="async_collect" if name == "async" else name, others=OTHERS[name]) if actors else None
        compiled = rlgraph.compile(write(folder, name, ON_ACTORS if actors else PROGRAMS), schedule=plan)
        _load(compiled)
        ended = run_in_child(compiled, folder / "whole", 1, 0, how)
        assert ended is not None
        return cls(compiled, folder, ended[0], result(folder / "whole"), how, exact=not actors)

    def killed(self, moments: Sequence[int], every: int, victim: float = 0.0) -> tuple[list[str], int]:
        """A run that is killed at these moments, one after the other, each counted from where it went on: what of its
        results is another than it should be, and how often it was killed, or another process of it."""
        place, kills = self.folder / f"killed-{'-'.join(map(str, moments))}", 0
        for moment in (*moments, 0):
            ended = run_in_child(self.compiled, place, every, moment, self.how, victim)
            kills += 1 if ended is None else ended[1]
            if ended is not None:
                break
        found = differing(result(place), self.wanted) if self.exact else apart(result(place), self.wanted)
        if left := _left(place):
            found.append(f"processes {left} are left, which")
        shutil.rmtree(place)
        return found, kills


def apart(found: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """The same for metrics to a tolerance, and which rows there were."""
    steps = zip(found["metrics"], wanted["metrics"], strict=False)
    wrong = [
        f"step {one['step']}: {name} {one.get(name)} for {other.get(name)}"
        for one, other in steps
        for name in sorted(one.keys() | other.keys())
        if not _close(one.get(name), other.get(name))
    ]
    wrong += ["the number of steps"] if len(found["metrics"]) != len(wanted["metrics"]) else []
    return wrong + (["trace.jsonl"] if found["trace"] != wanted["trace"] else [])


def _close(one: Any, other: Any) -> bool:
    numbers = all(isinstance(each, (int, float)) for each in (one, other))
    return abs(one - other) <= TOLERANCE * max(1, abs(other)) if numbers else one == other


def _left(folder: Path) -> list[int]:
    """Processes of a run that is over."""
    import psutil

    end = time.monotonic() + 20
    while (found := [pid for pid in psutil.pids() if _of_run(pid, str(folder))]) and time.monotonic() < end:
        time.sleep(0.5)
    return found


def _of_run(pid: int, folder: str) -> bool:
    import psutil

    try:
        process = psutil.Process(pid)
        return bool(process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == folder)
    except psutil.Error:
        return False


def _load(compiled: Any) -> None:
    """What a run imports is there before processes fork. No gradient is taken here: torch could not in them."""
    import tensorboard.compat.proto.event_pb2
    import tensorboard.summary.writer.record_writer  # noqa: F401

    from rlgraph.runs.backends import open_backend
    from rlgraph.runs.checkpoint.values import encoded  # noqa: F401
    from rlgraph.runs.options import Options
    from rlgraph.runs.progress import Quiet
    from rlgraph.runs.run import Watch
    from rlgraph.runs.watch import Interrupts

    with open_backend(compiled, Options(threads=1), Watch(Quiet(), Interrupts(Quiet()), None, None)):
        pass


def drawn(random: random.Random, moments: int) -> list[int]:
    """When to kill a run: once, or again when it goes on."""
    found = [random.randrange(1, moments + 1)]
    if random.random() < 1 / 3:
        found.append(random.randrange(1, moments + 1))
    return found


def _until(end: float, random: random.Random, moments: int) -> Iterator[list[int]]:
    while time.monotonic() < end:
        yield drawn(random, moments)


def _told(name: str, unbroken: Unbroken, plans: Iterable[list[int]], say: Callable[[str], None]) -> bool:
    runs, kills, wrong, began = 0, 0, 0, time.perf_counter()
    for plan in plans:
        every, victim = 1 + runs % 3, 0.0 if unbroken.exact else (runs * GOLDEN) % 1
        found, times = unbroken.killed(plan, every, victim)
        runs, kills, wrong = runs + 1, kills + times, wrong + bool(found)
        if found:
            say(f"{name}: killed at {plan}, saved every {every}: {', '.join(found)} differ")
    seconds = time.perf_counter() - began
    say(f"{name}: {unbroken.moments} moments; {runs} runs killed {kills} times, {wrong} differ ({seconds:.0f} s)")
    return not wrong


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--kills", type=int, default=20, help="runs of each program")
    options.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    options.add_argument("--program", choices=[*PROGRAMS])
    options.add_argument("--all", action="store_true", help="every moment that there is, once")
    options.add_argument("--backend", choices=["local", "ray"], default="local")
    options.add_argument("--debug", action="store_true", help="with `ray`: all processes are objects in one")
    options.add_argument("--actors", action="store_true", help="Megatron and vLLM on Ray; any process is killed")
    options.add_argument("--minutes", type=float, help="goes on for so long, however many runs that are")
    given = options.parse_args()
    how = {"backend": "ray" if given.actors else given.backend, "debug": given.debug and not given.actors}
    print(f"seed {given.seed}", flush=True)
    programs = ON_ACTORS if given.actors else PROGRAMS
    names = [given.program] if given.program else [*programs]
    fine, end = True, time.monotonic() + 60 * (given.minutes or 0)
    with tempfile.TemporaryDirectory() as folder:
        for left, name in zip(range(len(names), 0, -1), names, strict=True):
            until = time.monotonic() + (end - time.monotonic()) / left
            unbroken = Unbroken.of(name, Path(folder) / name, how, given.actors)
            source = random.Random(f"{given.seed}/{name}")
            plans: Iterable[list[int]] = (drawn(source, unbroken.moments) for _ in range(given.kills))
            if given.all:
                plans = ([at] for at in range(1, unbroken.moments + 1))
            elif given.minutes:
                plans = _until(until, source, unbroken.moments)
            fine &= _told(name, unbroken, plans, lambda text: print(text, flush=True))
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
