"""Runs the model of a vLLM engine in this very process, as one of its tensor-parallel ranks."""

from __future__ import annotations

import os
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from vllm.distributed.parallel_state import _groups, get_world_group
from vllm.v1.executor.uniproc_executor import UniProcExecutor

from rlgraph.backends.engines.vllm.environment import has_no_gpu
from rlgraph.backends.engines.vllm.routes import record_routes
from rlgraph.backends.engines.vllm.sampled_row import DrawnTokens
from rlgraph.backends.engines.vllm.start import StartNotes

_SEGMENTS = Path("/dev/shm")


class _NotedOutput(Future[Any]):
    """The output of a step, before which what the step has drawn is noted in its rows."""

    def __init__(self, output: Future[Any], drawn: list[DrawnTokens]) -> None:
        super().__init__()
        self._output, self._drawn = output, drawn

    def result(self, timeout: float | None = None) -> Any:
        output = self._output.result(timeout)
        while self._drawn:
            self._drawn.pop().note()
        return output


class OneRankExecutor(UniProcExecutor):
    """An executor whose steps are noted in the rows that they sample for, and which says what experts routers choose,
    where `vllm.start.StartNotes` asks for it.

    Where vLLM begins a step before it has the tokens of the one before, it asks for the output of each when it takes
    its tokens. What ends a row is known then.
    """

    def _init_executor(self) -> None:
        super()._init_executor()
        if self._notes.records_routes:
            # Graphs of steps, which are made later, have to have it in them.
            self.collective_rpc(record_routes)

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        """Sample for the rows of the step whose model has run last."""
        output: Any = super().sample_tokens(grammar_output, non_block=True)
        drawn, self._notes.drawn[:] = [*self._notes.drawn], []
        noted = _NotedOutput(output, drawn)
        return noted if non_block else noted.result()

    @property
    def _notes(self) -> StartNotes:
        return cast(StartNotes, self.vllm_config.additional_config)


class RankExecutor(OneRankExecutor):
    """An executor of one rank. The other ranks are other processes with an engine each. All of them get the same
    requests in the same order, and their schedulers, which are deterministic, then agree on each step.
    """

    def _init_executor(self) -> None:
        super()._init_executor()
        _unlink_segments(self._notes.rank)

    def _distributed_args(self) -> tuple[str, int, int]:
        # Ranks meet by a URL, not by the variables of `torchrun`: vLLM names the shared memory after the port.
        rank = self._notes.rank
        # A process that sees one GPU alone has it as its first.
        return self._notes.url, rank, rank if has_no_gpu() else rank % torch.cuda.device_count()

    def determine_available_memory(self) -> list[int]:
        """Return the least that any rank has, in bytes: all have as many blocks of the key-value cache."""
        least = torch.tensor(super().determine_available_memory(), dtype=torch.int64)
        dist.all_reduce(least, op=dist.ReduceOp.MIN, group=get_world_group().cpu_group)
        return least.tolist()


def _unlink_segments(rank: int) -> None:
    """Unlink the names of the memory that all ranks have mapped and share: they would outlive processes that are
    killed, as those of a run are in the end."""
    ident = os.environ.get("VLLM_DIST_IDENT")
    # On a CPU tensors are sent through this memory.
    for segment in _SEGMENTS.glob(f"{ident}-*cpushm_{rank}") if ident else []:
        segment.unlink(missing_ok=True)
    # Objects are sent through queues, on GPUs too. vLLM unlinks names only when a queue ends, which none does.
    groups = [group_now for reference in _groups.values() if (group_now := reference()) is not None]
    queues = [group.mq_broadcaster for group in groups if group.mq_broadcaster is not None]
    for buffer in [queue.buffer for queue in queues if queue.buffer is not None and queue.buffer.is_creator]:
        buffer.shared_memory.unlink()
        buffer.is_creator = False
