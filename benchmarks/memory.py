"""Predicted peak memory beside the bytes of all tensors that real engines hold while they work.

    OMP_NUM_THREADS=1 python benchmarks/memory.py [--engine transformers]

Each case runs in this process (models that are split in one process for each rank) on a CPU; megatron-core and vLLM are
left out where they are not installed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

Row = tuple[str, str, int, float]
"""Engine, work, bytes measured and predicted."""


def of_transformers() -> Iterator[Row]:
    import torch

    from tests.passes.cost.allocated import transformers
    from tests.passes.cost.test_memory_model import CASES

    torch.set_num_threads(1)
    for work in CASES:
        found = work.predicted("transformers")
        yield "transformers", str(work), sum(transformers(work)), found.resident.total + found.active.total


def of_split() -> Iterator[Row]:
    """The fullest of ranks that share a model out, or split its layers."""
    from tests.backends.engines.ranks import Ranks
    from tests.passes.cost.allocated import shared_out
    from tests.passes.cost.test_fsdp_memory import CASES

    ranks = Ranks(4)
    try:
        for work in CASES:
            found = work.predicted("transformers")
            measured = max(sum(each) for each in ranks.run(work.split, shared_out, work))
            yield "transformers", str(work), measured, found.resident.total + found.active.total
    finally:
        ranks.close()


def of_megatron() -> Iterator[Row]:
    from tests.backends.engines.ranks import Ranks
    from tests.passes.cost.allocated import on_rank
    from tests.passes.cost.test_megatron_memory import CASES

    ranks = Ranks(2)
    try:
        for work in CASES:
            found = work.predicted("megatron")
            measured = max(sum(each) for each in ranks.run(work.split, on_rank, work))
            yield "megatron", str(work), measured, found.resident.total + found.active.total
    finally:
        ranks.close()


def of_vllm() -> Iterator[Row]:
    from tests.passes.cost.allocated import vllm
    from tests.passes.cost.test_vllm_memory import CASES

    for work in CASES:
        found = work.predicted("vllm")
        held = sum(size for what, size in found.resident.parts if what != "messages")
        yield "vllm", str(work), sum(vllm(work)), held + found.active.total


def of_programs() -> Iterator[Row]:
    from tests.passes.cost.test_memory_program import CASES, measured, predicted

    for name in CASES:
        _, most = measured(name)
        peak = predicted(name)
        yield "a whole step", f"{name}: {peak.moment}", most, peak.used_bytes


TABLES = {
    "transformers": of_transformers,
    "split": of_split,
    "programs": of_programs,
    "megatron": of_megatron,
    "vllm": of_vllm,
}
NEEDS = {"megatron": "megatron", "vllm": "vllm"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=TABLES, action="append")
    wanted = parser.parse_args().engine or [name for name in TABLES if find_spec(NEEDS.get(name, "rlgraph"))]
    print("| engine | work | measured, MB | predicted, MB | error |\n| --- | --- | --- | --- | --- |")
    errors = []
    for name in wanted:
        for engine, work, measured, predicted in TABLES[name]():
            errors.append(predicted / measured - 1)
            sizes = f"{measured / 1e6:.2f} | {predicted / 1e6:.2f}"
            print(f"| {engine} | {work} | {sizes} | {errors[-1]:+.1%} |", flush=True)
    sizes = sorted(map(abs, errors))
    print(f"\n{len(errors)} cases: median error {statistics.median(sizes):.1%}, worst {sizes[-1]:.1%}")


if __name__ == "__main__":
    main()
