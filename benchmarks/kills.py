"""Runs that are killed at random moments and gone on with: do they end as the run that nobody killed?

Or stopped, held up, without room on the disk, cut off from each other: `--fault`, one after the other.

    python benchmarks/kills.py
    python benchmarks/kills.py --kills 50 --seed 7
    python benchmarks/kills.py --program async --all
    python benchmarks/kills.py --backend ray --debug
    python benchmarks/kills.py --backend ray --kills 3
    python benchmarks/kills.py --actors --minutes 15
    python benchmarks/kills.py --fault full --fault delay --steps 20

Of each program a run is done that nobody disturbs. Then, again and again, the same run in a process that gets SIGKILL
at a moment drawn from all that there are: whenever a node begins or ends, and whenever a file is opened, written anew,
renamed or removed, those of checkpoints half-written among them. Another process goes on with `resume`, and is killed,
too, one time in three. What is compared in the end is to the last bit: every metric of every step, and what the last
checkpoint has of weights, moments, states, buffers and positions.

With `--backend ray` the process that is killed is the controller of a cluster of its own, whose processes end with it;
with `--debug` they are objects in it. A plan of one device: sums are in the same order, so bits can be compared.

With `--actors` Megatron trains and vLLM samples, in processes of Ray's, and any of them is killed: the controller, as
before; or a rank or the host, after which the run goes back to its last checkpoint by itself; or the process of the
reward function, or one of Ray's own (the object store of the machine, the cluster's control process), after which the
run may end with a message, and is gone on with as one that was killed. vLLM adds up in another order where other rows
are sampled beside one: metrics are compared to 1e-4, and which rows were trained on exactly.
`--minutes` goes on for so long, with the programs in turn.

Faults (`benchmarks/faults.py`): `kill`; `stop`, a process that does not answer any more, which the run has to find out
(one of a plan, or a function's); `delay`, any process, which goes on two seconds later: the run has to go on, too;
`full`, of the run itself, a rank or the host, which cannot write any more: the run ends with a message, and is gone on
with where there is room; `drop`, with `--actors`, a rank or the host, whose connections all break.

When a run is over no process of it may be left, no port at which it listened, and nothing of it in the memory that
processes share (`/dev/shm`): what its processes have of these is looked at each half second, while they live.
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
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.faults import FAULTS, inject, listening, meets
from rlgraph.runs.events import EventReader, WorkDone, WorkStarted

USER = """
def score(prompts, completions, completion_ids, **columns):
    return [(3 * sum(ids) + len(ids) + len(p)) % 7 / 6 for p, ids in zip(prompts, completion_ids)]
"""
SHELL = """
class Shell:
    \"\"\"Answers with letters, a message or nothing, and asks for an action of two letters.\"\"\"

    def reset(self, row):
        self.turn = 0
        return ""

    def step(self, action):
        self.turn += 1
        answer = ["ab", {"role": "tool", "content": action[:2]}, ""][(self.turn + len(action)) % 3]
        return answer, float(len(action) % 3), len(action) == 2
"""
TURNS = (
    "{% for m in messages %}{{ ('>' if m.role == 'tool' else '') + m.content + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'd' }}{% endif %}"
)
"""A chat template."""
WORDS = ["ab", "b", "cdab", "a", "bc", "dddd", "c", "dab", "ba", "ca"]


def weights(seed: int = 0, **more: str) -> str:
    shape = "hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1"
    rest = 'max_position_embeddings=64, initializer_range=0.3, tokenizer=chars("abcd>")'
    return f'random("qwen2", seed={seed}, {shape}, {rest})'


HEAD = """algorithm {name}
model actor  = causal_lm({base}{more})
data prompts = jsonl("prompts.jsonl", batch=4, shuffle=true)
func score   = python("rewards.py:score", timeout=20)
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

CHATS = """algorithm chats
model actor  = causal_lm({base}, chat=chat(template="turns.jinja"))
data prompts = jsonl("chats.jsonl", batch=4, shuffle=true)
env shell    = python("shell.py:Shell", timeout=20)
step:
    episode = actor.interact(shell, prompts, n=2, max_turns=3, max_tokens=24)
    gain    = sum(episode.reward, turn)
    train actor(lr=1e-2):
        minimize mean(-actor.logprobs(episode) * center(gain, prompts))
    report gain = mean(gain), turns = mean(episode.turns), length = mean(episode.length)
"""

PROGRAMS = {
    "grpo": HEAD.format(name="grpo", base=weights(), more=", lora=lora(rank=2, alpha=8)") + GRPO,
    "ppo": HEAD.format(name="ppo", base=weights(), more="") + PPO.format(base=weights(1)),
    "kept": HEAD.format(name="kept", base=weights(), more=', dtype="bfloat16"') + KEPT,
    "async": HEAD.format(name="async_collect", base=weights(), more="") + ASYNC,
    "late": HEAD.format(name="late", base=weights(), more="") + ASYNC.replace("lag=2", "lag=1"),
    "chats": CHATS.format(base=weights()),
}
"""Adapters and a rate that falls; two models, phases and epochs; wide copies, states, a buffer, what `collect` carries,
an average of weights; weights of two steps before, and of one; turns of an environment in a chat template."""

WIDE = weights().replace("hidden_size=8", "hidden_size=64").replace("key_value_heads=1", "key_value_heads=2")
"""Heads that are wide enough for vLLM."""
ON_ACTORS = {
    "grpo": HEAD.format(name="grpo", base=WIDE, more="") + GRPO,
    "kept": HEAD.format(name="kept", base=WIDE, more="") + KEPT,
    "async": HEAD.format(name="async_collect", base=WIDE, more="") + ASYNC,
    "late": HEAD.format(name="late", base=WIDE, more="") + ASYNC.replace("lag=2", "lag=1"),
}
"""The same where Megatron trains, in float32 and without adapters."""
PLAN = """schedule {name}
pool learn = 1 devices
pool play = {devices} devices
place {others} on learn(engine=megatron)
place actor.generate on play(engine=vllm, tp={devices})
"""
OTHERS = {
    "grpo": "actor.train, ref",
    "kept": "actor.train, slow",
    "async": "actor.train, actor.logprobs",
    "late": "actor.train, actor.logprobs",
}
SPLIT = {"late"}
"""Programs of which two ranks sample together, which share memory."""

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
    chats = [{"prompt": [{"role": "user", "content": word}]} for word in WORDS]
    (folder / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in chats))
    (folder / "shell.py").write_text(SHELL)
    (folder / "turns.jinja").write_text(TURNS)
    path = folder / f"{name}.rlf"
    path.write_text(programs[name])
    return path


class Killed(EventReader):
    """Counts the moments of a run in this process, and at one of them does something to it, or to another process of
    it. A reader of its events."""

    def __init__(self, folder: Path, moment: int, victim: float, fault: str) -> None:
        """victim: which kind of process is killed, from 0 to 1; 0: this process. fault: what happens to it."""
        self.folder, self.moment, self.count, self.victim = str(folder), moment, 0, victim
        self.fault = fault
        self.kinds: dict[int, str] = {}
        """Of those of Ray's that belong to the plan, by their numbers."""
        self.kills: list[str] = []
        self._numbers = count(1)
        sys.addaudithook(self._audit)

    def begun(self, processes: Any) -> Any:
        """Those of a run are there."""
        import ray

        from rlgraph.backends.ray.worker import Worker

        asked = [(processes.call(who, Worker.pid), who[0]) for who in processes.who]
        for answer, kind in asked:
            # One that is gone already the run will hear of.
            with suppress(ray.exceptions.RayError):
                self.kinds[ray.get(answer)] = kind
        return processes

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in EVENTS and str(arguments[0]).startswith(self.folder):
            self._passed()

    def _passed(self) -> None:
        # A checkpoint is written by another thread: each moment has a number of its own.
        self.count = number = next(self._numbers)
        if number != self.moment:
            return
        everybody = _everybody(self.folder, self.kinds)
        there = {kind: pids for kind, pids in everybody.items() if meets(self.fault, kind)}
        if not there:
            return
        kind = [*there][int(self.victim * len(there))]
        # Nothing else tells who it was, if it was this one.
        with open(_kills_of(Path(self.folder)), "a") as file:
            file.write(f"{self.fault}:{kind}\n")
        inject(self.fault, there[kind][int(1e6 * self.victim) % len(there[kind])])

    def work_started(self, event: WorkStarted) -> None:
        self._passed()

    def work_done(self, event: WorkDone) -> None:
        self._passed()

    def add_flow(self, *_: Any) -> None: ...


@dataclass(frozen=True)
class Ended:
    """What came of a run in a process of its own."""

    moments: int | None
    """How many there were, if it came to its end."""
    kills: tuple[str, ...]
    """What happened, and to which kind of process: `kill:run`."""
    told: str = ""
    """With which message it ended before that."""


def run_in_child(
    compiled: Any,
    folder: Path,
    every: int,
    moment: int,
    how: Mapping[str, Any],
    held: Held,
    victim: float = 0.0,
    fault: str = "kill",
    steps: int = STEPS,
) -> Ended:
    """Runs, or goes on where there is a run, in a process of its own that is killed at a moment, or that loses another
    one."""
    from rlgraph.errors import RlgraphError

    killed_by, reads, writes = _kills_of(folder), *os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reads)
            os.environ[MARK] = str(folder)
            killed = Killed(folder, moment, victim, fault)
            if how["backend"] == "ray" and not how["debug"]:
                _watched(killed)
            begun = (folder / "checkpoints").is_dir() and any((folder / "checkpoints").glob("step-*"))
            where: dict[str, Any] = {"resume": folder} if begun else {"out": folder, "overwrite": True}
            compiled.run(steps, **where, **how, threads=1, save_every=every, progress=False, on_event=killed)
            os.write(writes, str(killed.count).encode())
            code = 0
        except RlgraphError as error:
            os.write(writes, str(error).encode("utf-8", "replace")[:60_000])
            code = 2
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writes)
    with os.fdopen(reads) as said, held.watched():
        told = said.read()
        _, status = os.waitpid(child, 0)
    kills = tuple(killed_by.read_text().split()) if killed_by.exists() else ()
    killed_by.unlink(missing_ok=True)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL and kills, status
        return Ended(None, kills)
    code = os.WEXITSTATUS(status)
    if code == 1 and not told and "kill:control" in kills:
        # A process that has not reached it for a minute is ended by Ray, whatever it does.
        return Ended(None, kills, "ended by Ray")
    assert code == 0 or (code == 2 and kills), f"the run failed: {told}"
    return Ended(None, kills, told) if code else Ended(int(told), kills)


def _kills_of(folder: Path) -> Path:
    """Where it is written who was killed: none of the run's files."""
    return folder.parent / f"kills-of-{folder.name}"


def _watched(killed: Killed) -> None:
    """It hears of the processes of each plan that is started."""
    from rlgraph.backends.ray import backend

    start = backend.start_processes
    backend.start_processes = lambda *args, **named: killed.begun(start(*args, **named))


def result(folder: Path) -> dict[str, Any]:
    """What is left of a run, as far as it does not tell the time."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    checkpoint = folder / "checkpoints" / (folder / "checkpoints" / "latest").read_text().strip()
    trace, samples = folder / "trace.jsonl", folder / "samples.jsonl"
    return {
        "metrics": [{name: each for name, each in line.items() if not name.startswith(MACHINE)} for line in lines],
        "trace": trace.read_text() if trace.exists() else "",
        "samples": samples.read_text() if samples.exists() else "",
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
    steps: int = STEPS

    @classmethod
    def of(cls, name: str, folder: Path, how: Mapping[str, Any], actors: bool = False, steps: int = STEPS) -> Unbroken:
        import rlgraph

        folder.mkdir(parents=True)
        title, devices = "async_collect" if name == "async" else name, 1 + (name in SPLIT)
        plan = PLAN.format(name=title, others=OTHERS[name], devices=devices) if actors else None
        compiled = rlgraph.compile(write(folder, name, ON_ACTORS if actors else PROGRAMS), schedule=plan)
        _load(compiled)
        held = Held(folder / "whole")
        ended = run_in_child(compiled, folder / "whole", 1, 0, how, held, steps=steps)
        assert ended.moments is not None
        if left := held.left():
            print(f"{name}: {', '.join(left)} of a run that nobody killed", flush=True)
        return cls(compiled, folder, ended.moments, result(folder / "whole"), how, not actors, steps)

    def killed(
        self, moments: Sequence[int], every: int, victim: float = 0.0, fault: str = "kill"
    ) -> tuple[list[str], list[Ended]]:
        """A run that is killed, or what else the fault is, at these moments, one after the other, each counted from
        where it went on: what of its results is another than it should be, and what came of each part of it."""
        place, ends = self.folder / f"killed-{'-'.join(map(str, moments))}", list[Ended]()
        held = Held(place)
        for moment in (*moments, 0):
            end = run_in_child(self.compiled, place, every, moment, self.how, held, victim, fault, self.steps)
            ends.append(end)
            if ends[-1].moments is not None:
                break
        found = differing(result(place), self.wanted) if self.exact else apart(result(place), self.wanted)
        found += held.left()
        shutil.rmtree(place)
        return found, ends


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


@dataclass
class Held:
    """What the processes of a run have of the machine, and what is left of it when they should have ended."""

    folder: Path
    segments: set[str] = field(default_factory=set)
    """Files of memory that they share."""
    sockets: set[str] = field(default_factory=set)
    """Those that listen, by their inodes: of a port somebody else may listen at it later."""

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Looks now and then."""
        over = threading.Event()

        def look() -> None:
            while not over.wait(0.5):
                self.look()

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def look(self) -> None:
        listen = listening()
        for pid in _of_run(str(self.folder)):
            try:
                maps = Path(f"/proc/{pid}/maps").read_text()
                fds = [os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()]
            except OSError:
                continue
            self.segments |= {line.split(maxsplit=5)[-1] for line in maps.splitlines() if SHARED in line}
            self.sockets |= listen & {name.removeprefix("socket:[").rstrip("]") for name in fds}

    def left(self) -> list[str]:
        """After the time that they need to end, on a machine that is busy, too."""
        end = time.monotonic() + 600
        while (found := self._there()) and time.monotonic() < end:
            time.sleep(0.5)
        return found

    def _there(self) -> list[str]:
        found = [f"process {pid} is left" for pid in _of_run(str(self.folder))]
        found += [f"{name} is left" for name in sorted(self.segments) if os.path.exists(name)]
        return found + [f"a socket {inode} listens" for inode in sorted(self.sockets & listening())]


SHARED = "/dev/shm/"


def _of_run(folder: str) -> list[int]:
    """Its processes that live."""
    import psutil

    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == folder and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def _everybody(folder: str, kinds: Mapping[int, str]) -> dict[str, list[int]]:
    """The processes of a run by their kinds, this one first: the parts of a plan, functions, and Ray's own."""
    import psutil

    found: dict[str, list[int]] = {"run": [os.getpid()]}
    # The environment of this process is that of who forked it.
    for pid in set(_of_run(folder)) | {each.pid for each in psutil.Process().children()}:
        try:
            words = " ".join(psutil.Process(pid).cmdline())
        except psutil.Error:
            continue
        own = next((kind for part, kind in RAYS.items() if part in words), None)
        if kind := kinds.get(pid) or ("function" if "user_code/child" in words else own):
            found.setdefault(kind, []).append(pid)
    return {kind: found[kind] for kind in ("run", *sorted(found.keys() - {"run"}))}


RAYS = {"gcs_server": "control", "raylet/raylet": "store"}
"""Processes of Ray's own, without which nothing goes on: its control process, and who has a machine's objects."""


def _load(compiled: Any) -> None:
    """What a run imports is there before processes fork. No gradient is taken here: torch could not in them."""
    from rlgraph.runs.backends import open_backend
    from rlgraph.runs.checkpoint.values import encode_value  # noqa: F401
    from rlgraph.runs.observer import InterruptHandler, RunObserver
    from rlgraph.runs.options import RunOptions
    from rlgraph.runs.progress import QuietDisplay

    with open_backend(compiled, RunOptions(threads=1), RunObserver(QuietDisplay(), InterruptHandler(QuietDisplay()))):
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


def _told(
    name: str,
    unbroken: Unbroken,
    plans: Iterable[list[int]],
    faults: Sequence[str],
    say: Callable[[str], None],
) -> bool:
    runs, wrong, began, kinds, ended = 0, 0, time.perf_counter(), Counter[str](), 0
    for plan in plans:
        # Each kind of process is killed about as often, of runs without actors the run itself three times of four.
        every, victim, fault = 1 + runs % 3, (runs * GOLDEN) % 1, faults[runs % len(faults)]
        if unbroken.exact and runs // len(faults) % 4:
            victim = 0.0
        found, parts = unbroken.killed(plan, every, victim, fault)
        happened = [each for part in parts for each in part.kills]
        runs, wrong = runs + 1, wrong + bool(found)
        kinds.update(happened)
        ended += sum(bool(part.told) for part in parts)
        for part in parts:
            if part.told:
                say(f"{name}: {', '.join(part.kills)} at {plan}: {part.told.strip().splitlines()[0]}")
        if found:
            say(f"{name}: {', '.join(happened)} at {plan}, saved every {every}: {', '.join(found)} differ")
    seconds = time.perf_counter() - began
    all_of_them = f"{runs} runs with {sum(kinds.values())} faults"
    say(f"{name}: {unbroken.moments} moments; {all_of_them}, {wrong} differ ({seconds:.0f} s)")
    say(f"{name}: {', '.join(f'{kind} {times}' for kind, times in sorted(kinds.items()))}; {ended} ended")
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
    options.add_argument("--fault", action="append", choices=FAULTS, help="one after the other (default: kill)")
    options.add_argument("--steps", type=int, default=STEPS, help="of a run")
    options.add_argument("--minutes", type=float, help="goes on for so long, however many runs that are")
    given = options.parse_args()
    how: dict[str, Any] = {"backend": "ray" if given.actors else given.backend, "debug": given.debug}
    faults = given.fault or ["kill"]
    if given.actors:
        # Of the longest step most is that vLLM gets ready.
        how |= {"debug": False, "timeout": 60.0 if "stop" in faults else 1800.0}
    print(f"seed {given.seed}", flush=True)
    programs = ON_ACTORS if given.actors else PROGRAMS
    names = [given.program] if given.program else [*programs]
    fine, end = True, time.monotonic() + 60 * (given.minutes or 0)
    with tempfile.TemporaryDirectory() as folder:
        for left, name in zip(range(len(names), 0, -1), names, strict=True):
            until = time.monotonic() + (end - time.monotonic()) / left
            unbroken = Unbroken.of(name, Path(folder) / name, how, given.actors, given.steps)
            source = random.Random(f"{given.seed}/{name}")
            plans: Iterable[list[int]] = (drawn(source, unbroken.moments) for _ in range(given.kills))
            if given.all:
                plans = ([at] for at in range(1, unbroken.moments + 1))
            elif given.minutes:
                plans = _until(until, source, unbroken.moments)
            fine &= _told(name, unbroken, plans, faults, lambda text: print(text, flush=True))
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
