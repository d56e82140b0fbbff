"""Random plans on hard devices: do they run, as full as planned, and compute what one process does?

    python benchmarks/hard_plans.py --plans 60
    python benchmarks/hard_plans.py --plans 5 --seed 7 --real

Programs that ship, with tiny models and answers of one length, are laid on clusters of one to three nodes of two to
four hard devices: apart, shared, in turns asleep, split by `tp`, `pp`, `fsdp` and chunks, fused, sampled by vLLM. Three
steps are run; then one process runs them with what was sampled. A plan is right if nothing is refused, the fullest
device's peak is within 5% of the planned one, and metrics are the same.

By default the processes are objects in this one: each group is one rank of `transformers`, on the first device of its
pool. With `--real` they are Ray's, with Megatron and vLLM, and the splits are real; some minutes a plan.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

STEPS, PROMPT = 3, 12
CLOSE = 1e-4
"""Of a metric, between engines that add up in another order."""
FULL = 0.05
"""How far a device's peak may be from the planned one."""
ROOM = 1.5
"""How much memory a device has, as a multiple of what is planned: more than it may need, so that what it needs is
seen."""
LORA = "causal_lm(base, lora=lora(rank=4, alpha=8.0))"
ALGORITHMS = ("grpo", "ppo", "rloo", "remax", "online_dpo", "async_grpo", "reinforce_pp")
MODELS = {
    "grpo": ("actor", "ref"),
    "async_grpo": ("actor",),
    "ppo": ("actor", "critic", "ref", "reward"),
}
"""The models of a program; of the others the actor, its reference and what judges."""
OTHERS = ("actor", "ref", "reward")
REWARDS = """
def exact_match(prompts, completions, completion_ids, **columns):
    return [(3 * sum(ids) + len(ids)) % 5 / 4 for ids in completion_ids]
"""


@dataclass(frozen=True)
class Drawn:
    """A program, where it runs, and on what."""

    seed: int
    name: str
    text: str
    schedule: str
    settings: dict[str, str]
    nodes: int
    per_node: int
    layout: str


@dataclass
class Outcome:
    """What came of a plan."""

    wrong: list[str] = field(default_factory=list)
    far: float = 0.0
    """How far the peak of a device was from the planned one, at most."""
    planned: dict[str, float] = field(default_factory=dict)
    """The planned peak of each pool."""
    measured: dict[int, int] = field(default_factory=dict)
    """The peak of each device; those of a pool lie side by side, in the order of the pools."""


def drawn(seed: int, real: bool) -> Drawn:
    """Return a random plan; the same for the same seed."""
    chance = random.Random(seed)
    name, batch = chance.choice(ALGORITHMS), chance.choice([4, 6, 8])
    hidden, tokens = chance.choice([64, 128]), chance.choice([12, 24, 40])
    adapters = name in ("grpo", "rloo") and chance.random() < 0.25
    text = (ROOT / "rlgraph" / "algorithms" / f"{name}.rlf").read_text().replace("rlgraph.rewards:", "rewards.py:")
    text = re.sub(r"max_tokens=(\d+|limit)", f"max_tokens={tokens}, min_tokens={tokens}", text)
    text = re.sub(r"parts=\d+", "parts=2", text)
    text = re.sub(r"(train \w+\((?:(?!eps=).)*?)\):", r"\1, eps=0.01):", text)
    settings = {"base": model(1, hidden), "judge": model(2, hidden), "n": "4"}
    settings = {key: value for key, value in settings.items() if re.search(rf"^param {key}\b", text, re.MULTILINE)}
    settings["prompts"] = f'jsonl("prompts.jsonl", batch={batch})'
    if adapters:
        settings["actor"] = LORA
    nodes, per_node = chance.randint(1, 3), chance.randint(2, 4)
    layout, schedule = laid(chance, name, nodes * per_node, real, adapters)
    return Drawn(seed, name, text, schedule, settings, nodes, per_node, layout + (", adapters" if adapters else ""))


def model(seed: int, hidden: int) -> str:
    """Return the text of a random model."""
    return (
        f'random("qwen2", seed={seed}, hidden_size={hidden}, intermediate_size={3 * hidden}, num_hidden_layers=4, '
        "num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.1, "
        "tokenizer=bytes())"
    )


def laid(chance: random.Random, name: str, devices: int, real: bool, adapters: bool) -> tuple[str, str]:
    """Return the kind of a layout and its schedule."""
    models = MODELS.get(name, OTHERS)
    frozen = [model for model in models if model in ("ref", "reward")]
    trained = ["actor.train", *(["critic"] if "critic" in models else [])]
    logprobs = ["actor.logprobs"] if name == "ppo" else []
    layout = chance.choice(["apart", "shared", "asleep", "three"] if frozen else ["apart", "shared", "asleep"])
    wide = chance.choice([1, 2]) if devices >= 2 else 1
    trainer = chance.choice(splits(wide, adapters)) if real else "transformers"
    sampler = chance.choice(["transformers", "vllm"]) if real else "transformers"
    asleep = ", sleep=true" if layout == "asleep" else ""
    fuses = "critic" in models and "pp=2" in trainer
    fuse = "fuse actor.train, critic.train\n" if fuses else ""
    trains = ", ".join([*trained, *logprobs])
    if layout in ("shared", "asleep"):
        split = f", tp={wide}" if sampler == "vllm" and chance.random() < 0.5 else ""
        text = (
            f"pool all = {wide} devices\n"
            f"place {trains}{''.join(f', {model}' for model in frozen)} on all(engine={trainer}{asleep})\n"
            f"place actor.generate on all(engine={sampler}{split}{asleep})\n"
        )
    else:
        here = "" if layout == "three" or not frozen else ", " + ", ".join(frozen)
        wide = min(wide, max(1, devices - 2))
        trainer = trainer if wide == 2 or "2" not in trainer else "transformers"
        fuse = fuse if wide == 2 else ""
        text = (
            f"pool learn = {wide} devices\npool play = 1 devices\n"
            f"place {trains}{here} on learn(engine={trainer})\nplace actor.generate on play(engine={sampler})\n"
        )
        if layout == "three":
            pool = "learn" if wide + 2 > devices else "judge"
            text += "pool judge = 1 devices\n" if pool == "judge" else ""
            text += f"place {', '.join(frozen)} on {pool}(engine=transformers)\n"
    kind = f"{layout}, {trainer.replace(', ', ' ')} x {wide}, {sampler}{', fused' if fuse else ''}"
    return kind, f"schedule {name}\n{text}{fuse}"


def splits(wide: int, adapters: bool) -> list[str]:
    """Return engines that train, with their splits."""
    if wide == 1:
        return ["transformers", "megatron"]
    more = [] if adapters else ["megatron, pp=2, chunks=2"]
    return [
        "transformers, fsdp=2",
        "transformers, tp=2",
        "transformers, dp=2",
        "megatron, tp=2",
        "megatron, pp=2",
        *more,
    ]


def outcome(case: Drawn, folder: Path, real: bool) -> Outcome:
    """Run a plan, and then one process."""
    import rlgraph
    from rlgraph.backends.hard.node import HardNodes
    from rlgraph.backends.hard.seats import device_peaks
    from rlgraph.backends.local.backend import LocalBackend
    from rlgraph.backends.ray.backend import RayBackend
    from rlgraph.backends.recording import claim_folder
    from rlgraph.backends.worker.session import Settings
    from rlgraph.errors import RlgraphError

    rows = [{"prompt": "".join(chr(97 + (i + j) % 26) for j in range(PROMPT)), "answer": "a"} for i in range(24)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "rewards.py").write_text(REWARDS)
    (folder / "program.rlf").write_text(case.text)
    found = Outcome()
    try:
        made = rlgraph.compile(folder / "program.rlf", set=case.settings, schedule=case.schedule)
        planned = planned_peaks(made, case, real)
        memory = int(ROOM * max(planned.values()))
        nodes = HardNodes(case.nodes, case.per_node, memory, process=0, communicator=0, host=case.per_node * memory)
        with claim_folder(folder / "rows", case.name, 0):
            settings = Settings(folder=folder, record=folder / "rows", seed=case.seed)
            backend = RayBackend(made.program, made.plan, settings, debug=not real, hard=nodes, seconds=600)
            with closing(backend):
                ours = [dict(step.metrics) for step in backend.run_steps(STEPS)]
                seats = [spec.hard for spec in backend.processes.specs.values() if spec.hard is not None]
                measured = device_peaks(seats)
        replayed = Settings(folder=folder, replay=folder / "rows", seed=case.seed)
        with closing(LocalBackend(made.program, replayed)) as local:
            theirs = [dict(step.metrics) for step in local.run_steps(STEPS)]
    except RlgraphError as error:
        found.wrong.append(str(error))
        return found
    found.wrong += list(differences(ours, theirs))
    found.planned, found.measured = planned, measured
    peaks = sorted(planned.values()), sorted(measured.values())
    for expected, size in zip(*(sorted(values)[-1:] for values in peaks), strict=True):
        found.far = size / expected - 1
        if abs(found.far) > FULL:
            found.wrong.append(f"the fullest device has {size / 1e6:.2f} MB, planned are {expected / 1e6:.2f} MB")
    return found


def planned_peaks(made: Any, case: Drawn, real: bool) -> dict[str, float]:
    """Return the planned peak of each pool."""
    from rlgraph.backends.enginespec.registry import embedded_engine
    from rlgraph.catalog.clusters.read import read_cluster
    from rlgraph.explain.simulate import model_configs
    from rlgraph.passes.cost.constants import default_constants
    from rlgraph.passes.cost.lengths import Lengths
    from rlgraph.passes.cost.peak_memory import pool_peaks
    from rlgraph.passes.cost.tasks import main_phase, phase_tasks
    from rlgraph.passes.cost.workload import Workload
    from rlgraph.passes.rewrites.accumulate import accumulating_models

    plan = made.plan if real else made.plan.one_rank_plan(embedded_engine().name)
    [tokens] = set(re.findall(r"min_tokens=(\d+)", case.text))
    workload = Workload(Lengths((float(PROMPT),)), Lengths((float(tokens),)))
    tasks = phase_tasks(made.program, main_phase(made.program), workload)
    constants = replace(default_constants("cpu"), reserved=0, fragmentation=0.0)
    cluster = read_cluster(f"{case.nodes}x{case.per_node}:cpu(memory=24GiB)")
    kept = accumulating_models(made.program, plan)
    peaks = pool_peaks(plan, tasks, model_configs(made), cluster, constants, accumulated=kept)
    return {name: peak.used_bytes for name, peak in peaks.items()}


def differences(ours: list[dict[str, float]], theirs: list[dict[str, float]]) -> Iterator[str]:
    """Yield what is not the same in one process."""
    if len(ours) != len(theirs):
        yield f"there are {len(ours)} steps, and {len(theirs)} in one process"
    for number, (one, other) in enumerate(zip(ours, theirs, strict=False), start=1):
        for name in sorted(name for name in one.keys() | other.keys() if "/" not in name):
            if name not in one or name not in other:
                yield f"step {number}: `{name}` is not on both sides"
            elif abs(one[name] - other[name]) > CLOSE * max(1.0, abs(other[name])):
                yield f"step {number}: `{name}` is {one[name]}, and {other[name]} in one process"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plans", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0, help="of the first plan; the others follow")
    parser.add_argument("--real", action="store_true", help="processes of Ray's, with Megatron and vLLM")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch

    torch.set_num_threads(1)
    wrong, far = 0, list[float]()
    for seed in range(options.seed, options.seed + options.plans):
        case, began = drawn(seed, options.real), time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            found = outcome(case, Path(folder), options.real)
        wrong, far = wrong + bool(found.wrong), [*far, abs(found.far)]
        said = "; ".join(found.wrong) or "as it should be"
        where = f"{case.nodes}x{case.per_node}"
        seconds = time.perf_counter() - began
        print(f"{seed}: {case.name} on {where}, {case.layout}: {said} ({found.far:+.1%}, {seconds:.0f} s)", flush=True)
    print(f"{options.plans} plans, {wrong} of them wrong; peaks are {max(far):.1%} off at most")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
