"""One process of a group: it holds a rank's shards of the group's models, and does requests. A Ray actor on a
cluster."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from rlgraph.backends.engines.offload import MemoryCounters
from rlgraph.backends.engines.process_groups import LOOPBACK, RendezvousStore, open_store
from rlgraph.backends.hard.process import HardSeat, open_hard_process
from rlgraph.backends.length_history import Known
from rlgraph.backends.ray import engine_opener
from rlgraph.backends.ray.activity import ActivityReport
from rlgraph.backends.ray.arrivals import RequestArrivalTracker
from rlgraph.backends.ray.failures import process_name
from rlgraph.backends.ray.piece_store import Piece
from rlgraph.backends.ray.rank_requests import RankRequests
from rlgraph.backends.ray.row_refs import Key, recorded_process_name
from rlgraph.backends.step import Step
from rlgraph.backends.worker.session import Session, Settings
from rlgraph.ir.graph import Program
from rlgraph.ir.plan import HOST, Group
from rlgraph.ir.plan import ModelHolding as Held
from rlgraph.ir.types import StateHandle

ROWS = "rows"
"""The concurrency group of threads that answer while the process computes."""
SAMPLES = "samples"
"""Threads that wait for rows that are sampled together, each for one request, here or at the other ranks."""
SAVES = "saves"
"""The thread that writes models to disk, one after the other, so that one bucket exists at a time."""
ORDERS = "orders"
"""Threads that pass requests on to the other ranks of a replica, in order."""
SORTS = 2
"""How many kinds of other ranks get requests of their own: a rank that has the results of a model whose stages are
reversed, and all the rest. They work together, so that neither may wait for the other to end; but requests are passed
on in order (`Worker.passed`)."""


@dataclass(frozen=True)
class WorkerSpec:
    """What a process needs to know from the start."""

    program: Program
    group: Group
    rank: int
    settings: Settings
    outside: frozenset[str]
    """What it opens of the program's data, functions, environments and buffers."""
    seconds: float
    """Longest wait for another process."""
    alone: bool = True
    """Whether all processes of the run are on one machine."""
    hard: HardSeat | None = None
    """Its place on hard devices, where the run asks for them; None for a process without a device, too."""


class Worker(RankRequests):
    """Holds models and rows. Every public method may be called by the controller."""

    def __init__(self, spec: WorkerSpec) -> None:
        super().__init__(spec.program, spec.rank, spec.seconds, spec.settings.saves)
        self.spec = spec
        self.meetings: list[RendezvousStore] = []
        self.arenas = MemoryCounters()
        """The memory of its models on the device and, while they are offloaded, on the host."""
        self.hard = None if spec.hard is None else open_hard_process(spec.hard, self.arenas)
        if self.hard is not None:
            self.doing.around = self.hard.counting
        self.others: Mapping[int, Any] = {}
        """Handles of the other ranks of this replica, by rank, if this one leads it."""
        self.passed = RequestArrivalTracker()
        """Which requests to these have been sent."""

    # Opening

    def start_rendezvous(self) -> str:
        """Listen for a rendezvous from now on, and return the address, with the secret that lets others in."""
        self.meetings.append(open_store(LOOPBACK if self.spec.alone else engine_opener.host_address()))
        return self.meetings[-1].address

    def make_leader(self, others: Mapping[int, Any]) -> None:
        """Make this rank the leader of its replica."""
        self.others = others

    def call_other_ranks(
        self,
        to: Sequence[int],
        method: str,
        args: Sequence[Any],
        named: Mapping[str, Any],
        threads: str | None,
        number: int = 0,
    ) -> list[Any]:
        """Call other ranks of this replica, and return their answers. threads: the concurrency group that runs the call
        while they work. number: that of a request, from 1: it is sent after those before it, which other threads may
        still have to send."""
        import ray

        if number:
            self.passed.wait_until_arrived(number - 1)
        asked = []
        try:
            for rank in to:
                bound = getattr(self.others[rank], method)
                asked.append((bound.options(concurrency_group=threads) if threads else bound).remote(*args, **named))
        finally:
            self.passed.note_arrived(number)
        return list(ray.get(asked))

    def load_models(
        self, addresses: Mapping[str, str], holdings: Mapping[str, Held], turned: Collection[str]
    ) -> list[str]:
        """Load the models of this rank, some with reversed stages, and return, for the controller, the names of the
        values without rows that live here."""
        spec = self.spec
        shares = spec.group.mesh.rank_count if spec.group.name == HOST else 1
        torch.set_num_threads(max(1, spec.settings.threads // shares))
        opener = engine_opener.EngineOpener(
            spec.group, spec.rank, holdings, addresses, spec.seconds, self.arenas, turned
        )
        if self.hard is not None:
            opener.open_with = self.hard.open_engine
        if self.hard is not None and spec.group.mesh.rank_count > 1:
            opener.backend = self.hard.join_groups(lambda rank: process_name((spec.group.name, rank)), spec.seconds)
        with self.doing("the opening of its models"):
            self.session = Session(
                spec.program,
                spec.settings,
                open_engine=opener.open_engine,
                outside=spec.outside,
                spread=not spec.group.code,
                who=recorded_process_name((spec.group.name, spec.rank)),
                split=spec.group.mesh.replica_size > 1,
            )
        self.session.progress = self._count_work
        if spec.group.name != HOST or spec.rank:
            return []
        models = {model.name for model in spec.program.models}
        values = {name: value for name, value in self.session.first.items() if name not in models}
        for name, value in values.items():
            self.store.put(0, (0, 0, name), Piece(StateHandle("buffer", name), value))
        return list(values)

    def connect_environment(self, environment: str, workers: Sequence[Any], caller: int) -> None:
        """Connect to an environment that runs in other processes, of which `workers` are handles. caller: a distinct
        number for each process that uses it there."""
        self.session.open_remote_environment(
            environment, [partial(engine_opener.call_environment, worker, environment) for worker in workers], caller
        )

    def call_local_environment(
        self, environment: str, generation: int, operation: str, arguments: tuple[Any, ...], limit_s: float
    ) -> tuple[int, Any]:
        """Return the answer of an environment that runs here to a process that has reached it."""
        return self.session.call_environment(environment, generation, operation, arguments, limit_s)

    def close(self) -> None:
        """End the processes that run the user's files, if they were opened."""
        if hasattr(self, "session"):
            self.session.close()
        if self.hard is not None:
            self.hard.close()

    def pid(self) -> int:
        return os.getpid()

    def report_activity(self) -> ActivityReport:
        """Return what this process is doing and whom it waits for. Is answered meanwhile."""
        group, rank = self.spec.group, self.spec.rank
        ranks: Sequence[int] = range(group.mesh.rank_count)
        if torch.distributed.is_initialized() and torch.distributed.get_world_size() != group.mesh.rank_count:
            # The default torch group of some engines is that of a replica.
            ranks = group.replica_ranks()[group.mesh.axis_position(rank, "dp")]
        return self.doing.make_report(
            tuple((group.name, group_rank) for group_rank in ranks), self.links.pending_messages()
        )

    def wait_until_idle(self, attempt: int | None = None) -> bool:
        """Answer when all earlier requests are done. attempt: steps begun before this attempt record nothing from now
        on."""
        if attempt is not None and self.session.recorder:
            self.session.recorder.begin_retry(attempt)
        return True

    # Rows

    def forget_step_except(self, step: Step, keys: Sequence[Key]) -> None:
        """Forget all rows of a finished step but these."""
        self.store.keep_only(step.number, keys)
        self.session.forget_steps(step)

    # Values that live across steps

    def source_row_counts(self) -> dict[str, int | None]:
        """Return how many rows each data source has, where that is known."""
        return {name: reader.source.row_count for name, reader in self.session.readers.items()}

    def overlong_notes(self) -> list[str]:
        """Return sentences that say what was done with rows that are too long."""
        return self.session.judged

    def answer_lengths(self) -> Known:
        """Return how long the answers to prompts were."""
        return self.session.history.copy_lengths()

    def set_answer_lengths(self, known: Known) -> None:
        """Set how long they were in earlier steps."""
        self.session.history.known = known
