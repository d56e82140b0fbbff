"""Does every algorithm that ships compute on Ray, with vLLM and Megatron, what one process does?

    python benchmarks/zoo_on_ray.py               # all: half an hour on two busy cores
    python benchmarks/zoo_on_ray.py gkd spo       # these alone
    python benchmarks/zoo_on_ray.py --mesh tp=2   # Megatron's two processes share weights; with dp=2 they share rows

Five steps of a model of 64 numbers a token with random weights, in float32, whose rows are recorded; then the same
program with these rows in this process. vLLM samples, and transformers from mixtures of models; Megatron does all else.
A line is printed of

    engines       who works in the processes of Ray
    metrics       by how much any metric of any step differs between the two, at most: of the largest that it is
    weights       by how much any trained weight does after the last step: of the way that the farthest one went
    seconds       on Ray, and here

Results are kept in `build/zoo_on_ray` as they come, and what is there is not run again: `--anew` begins again.
What is written otherwise than in the files that ship: batches of 5 prompts, answers of 5 tokens, and larger learning
rates. A failure, or a difference above rounding, ends the command with 1.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch
from safetensors.torch import load_file

import rlgraph
from benchmarks import delays
from benchmarks.real_model import difference
from benchmarks.zoo import flat_programs, replaced
from rlgraph.backends.local.backend import LocalBackend
from rlgraph.backends.worker.session import Settings
from rlgraph.errors import RlgraphError
from rlgraph.ir.plan import HOST
from rlgraph.ops.program_work import model_operations, shared_work
from tests.backends.enginespec.packages import installed
from tests.backends.tiny import data_folder

STEPS = 5
ROUNDING = 1e-4
REPLACED = [
    (r"rlgraph\.rewards:", "rewards.py:"),
    (r"(unseen|deals)\.jsonl", "tasks.jsonl"),
    (r"\bbatch=\d+", "batch=5"),
    (r"max_tokens=\d+", "max_tokens=5"),
    (r"max_turns=\d+", "max_turns=3"),
    (r"(param limit *= *)\d+", r"\g<1>5"),
    (r"(param cushion *= *)\d+", r"\g<1>3"),
    (r"(param asked *= *)\d+", r"\g<1>6"),
    (r"(param n *= *)\d+", r"\g<1>4"),
    (r"(param kept *= *)\d+", r"\g<1>2"),
    (r"(param parts *= *)[2-9]", r"\g<1>2"),
    (r"(param round *= *)\d+", r"\g<1>2"),
    (r"\bn=\d+", "n=3"),
    (r"parts=\d+", "parts=2"),
    (r"collect prompts\(\d+\)", "collect prompts(4)"),
    (r"every \d+", "every 2"),
    (r"(phase \w+\(steps=)\d+", r"\g<1>2"),
    (r"\bprompts\.id\b", "prompts.place"),
    (r"\blr=[^,)]+", "lr=0.003"),
    (r"(train \w+\((?!.*eps=).*)\):", r"\1, eps=0.01):"),
]
"""What is written in place of what, in the text of a program with all that it uses. AdamW divides each gradient by its
size and `eps`: with a small one it would make steps of nothing but rounding, as IPO's are with 1e-3, whose gradients
are the largest."""
MODELS = ("base", "judge", "student", "master", "helpful", "harmful", "solver", "talker")
"""The parameters that are weights."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithms", nargs="*", metavar="NAME")
    parser.add_argument("--mesh", choices=["dp=2", "tp=2"], default="dp=2")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "zoo_on_ray")
    parser.add_argument("--anew", action="store_true", help="run again what is kept")
    chosen = parser.parse_args()
    programs = flat_programs()
    if unknown := set(chosen.algorithms) - set(programs):
        print(f"these do not ship: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    kept = chosen.out / f"{chosen.mesh.replace('=', '')}.jsonl"
    results = {} if chosen.anew else read_results(kept)
    wanted = chosen.algorithms or [*programs]
    print("| algorithm | engines | metrics | weights | seconds, Ray / here |\n|---|---|--:|--:|--:|", flush=True)
    with tempfile.TemporaryDirectory() as folder, cluster(Path(folder)):
        data = data_folder(Path(folder) / "data")
        for name in wanted:
            if "error" in results.get(name, {"error": "none yet"}):
                results[name] = compared(name, programs[name].text, chosen.mesh, data)
                kept.parent.mkdir(parents=True, exist_ok=True)
                with kept.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(results[name]) + "\n")
            print(line_of(results[name]), flush=True)
    return int(any(not is_rounding(results[name]) for name in wanted))


def read_results(kept: Path) -> dict[str, dict[str, Any]]:
    """Return what was kept of earlier commands, the latest of each algorithm."""
    lines = kept.read_text("utf-8").splitlines() if kept.exists() else []
    return {result["algorithm"]: result for result in map(json.loads, lines)}


def is_rounding(result: Mapping[str, Any]) -> bool:
    return "error" not in result and result["metrics"] < ROUNDING and result["weights"] < ROUNDING


def line_of(result: Mapping[str, Any]) -> str:
    if "error" in result:
        return f"| {result['algorithm']} | {result['engines']} | {result['error']} | | |"
    seconds = " / ".join(f"{seconds:.1f}" for seconds in result["seconds"])
    apart = f"{result['metrics']:.1e} ({result['metric']}) | {result['weights']:.1e} ({result['weight']})"
    return f"| {result['algorithm']} | {result['engines']} | {apart} | {seconds} |"


def compared(name: str, text: str, mesh: str, data: Path) -> dict[str, Any]:
    """Return what came of an algorithm on Ray and in this process, or the error that ended it."""
    result: dict[str, Any] = {"algorithm": name, "engines": ""}
    try:
        made = compiled(name, text, mesh, data)
        result["engines"] = ", ".join(sorted({group.engine for group in made.plan.groups if group.name != HOST}))
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            save_first_weights(made, data, folder / "first" / "models")
            began = time.perf_counter()
            there = made.run(
                STEPS, backend="ray", record=folder / "rows", out=folder / "there", progress=False, timeout=300
            )
            ended = time.perf_counter()
            here = made.run(STEPS, replay=folder / "rows", out=folder / "here", progress=False)
            result["seconds"] = [ended - began, time.perf_counter() - ended]
            result["weights"], result["weight"] = weight_difference(folder)
    except RlgraphError as error:
        return result | {"error": str(error)}
    result["metrics"], result["metric"] = difference(here.metrics, there.metrics)
    return result


def save_first_weights(made: rlgraph.Compiled, data: Path, folder: Path) -> None:
    with closing(LocalBackend(made.program, Settings(folder=data))) as backend:
        for model in made.program.models:
            if not model.frozen:
                backend.save(model.name, folder / model.name)


def weight_difference(folder: Path) -> tuple[float, str]:
    """Return the largest difference of a trained weight between two runs, as a share of the longest way that a weight
    of its model went, and which it is; infinity where none moved."""
    apart = {}
    for path in sorted((folder / "here" / "models").iterdir()):
        runs = ("first", "here", "there")
        first, here, there = (all_weights(folder / run / "models" / path.name) for run in runs)
        way = max(float((here[name] - first[name]).abs().max()) for name in here)
        for name, weight in here.items():
            far = float((there[name] - weight).abs().max())
            apart[f"{path.name}: {name}"] = far / way if way else float("inf")
    worst = max(apart, key=apart.__getitem__)
    return apart[worst], worst


def all_weights(folder: Path) -> dict[str, torch.Tensor]:
    return {name: weight for file in folder.glob("*.safetensors") for name, weight in load_file(file).items()}


def compiled(name: str, text: str, mesh: str, data: Path) -> rlgraph.Compiled:
    """Return the program with small data and models, where vLLM samples and Megatron does the rest."""
    path = data / f"{name}.rlf"
    path.write_text(replaced(text, REPLACED), "utf-8")
    weights = {
        model: tiny_weights(seed)
        for seed, model in enumerate(MODELS)
        if re.search(rf"^param {model}\b", text, re.MULTILINE)
    }
    program = rlgraph.compile(path, set=weights, name=path.name).program
    pools: dict[str, list[str]] = {"learn": [], "play": []}
    for model, operations in model_operations(program).items():
        for operation in sorted(operations):
            samples = operation in ("generate", "interact")
            pools["play" if samples else "learn"].append(f"{model}.{operation}")
    schedule = [f"schedule {name}", "pool learn = 2 devices"]
    schedule.append(f"place {', '.join(pools['learn'])} on learn(engine=megatron, {mesh})")
    if pools["play"]:
        # Two vLLM engines have no common logits.
        sampler = "transformers" if any(shared.mixes for shared in shared_work(program)) else "vllm"
        schedule += ["pool play = 1 devices", f"place {', '.join(pools['play'])} on play(engine={sampler})"]
    return rlgraph.compile(path, set=weights, schedule="\n".join(schedule) + "\n", name=path.name)


def tiny_weights(seed: int) -> str:
    """Return random weights whose heads are wide enough for vLLM, of nine tokens."""
    return (
        f'random("qwen2", seed={seed}, hidden_size=64, intermediate_size=24, num_hidden_layers=2, '
        "num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.1, "
        'tokenizer=chars("abcd>x"))'
    )


@contextmanager
def cluster(folder: Path) -> Iterator[None]:
    """Ray on this machine, whose processes serve one run after the other."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name, value in {"RAY_USAGE_STATS_ENABLED": 0, "RAY_memory_monitor_refresh_ms": 0}.items():
        os.environ.setdefault(name, str(value))
    with delays.known(installed(folder / "packages"), 0.0), delays.cluster():
        yield


if __name__ == "__main__":
    sys.exit(main())
