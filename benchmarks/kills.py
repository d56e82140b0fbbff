"""Runs that are killed at random moments and gone on with: do they end as the run that nobody killed?

    python benchmarks/kills.py
    python benchmarks/kills.py --kills 50 --seed 7
    python benchmarks/kills.py --program async --all
    python benchmarks/kills.py --backend ray --debug
    python benchmarks/kills.py --backend ray --kills 3

Of each program a run is done that nobody disturbs. Then, again and again, the same run in a process that gets SIGKILL
at a moment drawn from all that there are: whenever a node begins or ends, and whenever a file is opened, written anew,
renamed or removed, those of checkpoints half-written among them. Another process goes on with `resume`, and is killed,
too, one time in three. What is compared in the end is to the last bit: every metric of every step, and what the last
checkpoint has of weights, moments, states, buffers and positions.

With `--backend ray` the process that is killed is the controller of a cluster of its own, whose processes end with it;
with `--debug` they are objects in it. A plan of one device: sums are in the same order, so bits can be compared.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
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

STEPS = 6
MACHINE = ("seconds", "sync/")
"""Metrics that tell the time."""
EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate")


def write(folder: Path, name: str) -> Path:
    """The files of a program."""
    rows = [{"prompt": word, "task": word[0]} for word in WORDS]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "rewards.py").write_text(USER)
    path = folder / f"{name}.rlf"
    path.write_text(PROGRAMS[name])
    return path


class Killed:
    """Counts the moments of a run in this process, and ends it at one of them. An observer of the run."""

    def __init__(self, folder: Path, moment: int) -> None:
        self.folder, self.moment, self.count = str(folder), moment, 0
        self._numbers = count(1)
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in EVENTS and str(arguments[0]).startswith(self.folder):
            self._passed()

    def _passed(self) -> None:
        # A checkpoint is written by another thread: each moment has a number of its own.
        self.count = number = next(self._numbers)
        if number == self.moment:
            os.kill(os.getpid(), signal.SIGKILL)

    def opening(self, what: str) -> None: ...

    def firing(self, node: Node, pool: str = "") -> None:
        self._passed()

    def fired(self, node: Node, seconds: float, tokens: int, pool: str = "") -> None:
        self._passed()

    def synced(self, *_: Any) -> None: ...

    def span(self, *_: Any, **__: Any) -> int:
        return 0

    def flow(self, *_: Any) -> None: ...


def run_in_child(compiled: Any, folder: Path, every: int, moment: int, how: Mapping[str, Any]) -> int | None:
    """Runs, or goes on where there is a run, in a process of its own that is killed at a moment. How many moments there
    were, if it came to its end before."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reads)
            killed = Killed(folder, moment)
            begun = (folder / "checkpoints").is_dir() and any((folder / "checkpoints").glob("step-*"))
            where: dict[str, Any] = {"resume": folder} if begun else {"out": folder, "overwrite": True}
            compiled.run(STEPS, **where, **how, threads=1, save_every=every, progress=False, observer=killed)
            os.write(writes, str(killed.count).encode())
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
    return int(told)


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

    @classmethod
    def of(cls, name: str, folder: Path, how: Mapping[str, Any]) -> Unbroken:
        import rlgraph

        folder.mkdir(parents=True)
        compiled = rlgraph.compile(write(folder, name))
        _load(compiled)
        moments = run_in_child(compiled, folder / "whole", 1, 0, how)
        assert moments is not None
        return cls(compiled, folder, moments, result(folder / "whole"), how)

    def killed(self, moments: Sequence[int], every: int) -> tuple[list[str], int]:
        """A run that is killed at these moments, one after the other, each counted from where it went on: what of its
        results is another than it should be, and how often it was killed."""
        place, kills = self.folder / f"killed-{'-'.join(map(str, moments))}", 0
        for moment in (*moments, 0):
            ended = run_in_child(self.compiled, place, every, moment, self.how)
            if ended is not None:
                break
            kills += 1
        found = differing(result(place), self.wanted)
        shutil.rmtree(place)
        return found, kills


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


def _told(
    name: str, unbroken: Unbroken, plans: Iterator[list[int]] | list[list[int]], say: Callable[[str], None]
) -> bool:
    runs, kills, wrong, began = 0, 0, 0, time.perf_counter()
    for plan in plans:
        every = 1 + runs % 3
        found, times = unbroken.killed(plan, every)
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
    given = options.parse_args()
    how = {"backend": given.backend, "debug": given.debug}
    print(f"seed {given.seed}", flush=True)
    fine = True
    with tempfile.TemporaryDirectory() as folder:
        for name in [given.program] if given.program else PROGRAMS:
            unbroken, source = Unbroken.of(name, Path(folder) / name, how), random.Random(f"{given.seed}/{name}")
            plans = [[at] for at in range(1, unbroken.moments + 1)] if given.all else []
            plans = plans or [drawn(source, unbroken.moments) for _ in range(given.kills)]
            fine &= _told(name, unbroken, plans, lambda text: print(text, flush=True))
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
