"""Real ranks: processes that form a process group for each job."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch

from rlgraph.backends.engines.process_groups import open_store
from rlgraph.ir.mesh import Mesh
from tests.waits import NEVER

IMPORTED = [
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "rlgraph.backends.engines.transformers.engine",
    "rlgraph.backends.engines.megatron.engine",
    "tests.passes.cost.allocated",
    "tests.backends.engines.exchanging",
    "tests.backends.engines.sharded",
]
"""What processes of tests need: imported once, for all that are started from one process of pytest. Only the list that
the first of them gives is read."""


class Ranks:
    """Processes that are started once and then take jobs on meshes of up to so many ranks."""

    def __init__(self, count: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(IMPORTED)
        self._jobs = [context.Queue() for _ in range(count)]
        self._results = context.Queue()
        self._numbers = itertools.count()
        self._processes = [
            context.Process(target=_serve, args=(rank, jobs, self._results), daemon=True)
            for rank, jobs in enumerate(self._jobs)
        ]
        for process in self._processes:
            process.start()

    def run(self, mesh: Mesh, job: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What `job(mesh, *arguments)` returns on each rank of the mesh; what it raises on the first that fails."""
        meeting, number = open_store("127.0.0.1"), next(self._numbers)
        for jobs in self._jobs[: mesh.rank_count]:
            jobs.put((number, mesh, meeting.address, job, arguments))
        found: dict[int, Any] = {}
        while len(found) < mesh.rank_count:
            asked, rank, answer = self._results.get(timeout=NEVER)
            # Of a job that nobody waits for any more, another answer may be on its way.
            if asked == number:
                found[rank] = answer
        for rank in range(mesh.rank_count):
            if isinstance(found[rank], str):
                raise AssertionError(f"on rank {rank} of {mesh}:\n{found[rank]}")
        return [found[rank][0] for rank in range(mesh.rank_count)]

    def close(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join(30)
            process.kill()
            process.join()


def _serve(rank: int, jobs: Any, results: Any) -> None:
    torch.set_num_threads(1)
    # What was imported stays: the collector need not look at it after each job.
    gc.freeze()
    while True:
        number, mesh, address, job, arguments = jobs.get()
        try:
            results.put((number, rank, (_on(mesh, rank, address, job, arguments),)))
        except Exception:
            results.put((number, rank, traceback.format_exc()))


def _on(mesh: Mesh, rank: int, address: str, job: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    import torch.distributed as dist

    from rlgraph.backends.engines.process_groups import join_process_group

    join_process_group(rank, mesh.rank_count, address, NEVER)
    try:
        return job(mesh, *arguments)
    finally:
        if megatron := sys.modules.get("megatron.core.parallel_state"):
            megatron.destroy_model_parallel()
        dist.destroy_process_group()
        # Models hold groups in cycles, and each group has threads that never rest.
        gc.collect()
