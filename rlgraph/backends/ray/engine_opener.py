"""Opens the models of one process: which engine makes a shard, and how the ranks of a group meet."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch.distributed

from rlgraph.backends.engines.offload import MemoryCounters
from rlgraph.backends.engines.process_groups import join_process_group
from rlgraph.backends.engines.records import Rank
from rlgraph.backends.engines.sources import ModelSpec, load_codec, max_positions
from rlgraph.backends.engines.tokenizers import Codec
from rlgraph.backends.enginespec.registry import engine, rank_opener
from rlgraph.backends.worker.session import Session
from rlgraph.ir.graph import Model
from rlgraph.ir.plan import HOST, Group, ModelHolding


@dataclass(frozen=True)
class TokenizerOnly:
    """The tokenizer of a model that is in other processes."""

    codec: Codec
    spec: ModelSpec

    @property
    def max_row_tokens(self) -> int | None:
        """The most tokens of a row, by the model's configuration."""
        return max_positions(self.spec)


@dataclass
class EngineOpener:
    """Makes the engines of one rank of a group."""

    group: Group
    rank: int
    holdings: Mapping[str, ModelHolding]
    """How the group holds each of its models."""
    addresses: Mapping[str, str]
    """Where the ranks meet: those of the whole group under `group`, of a replica under its number."""
    seconds: float
    arenas: MemoryCounters
    """The arenas of this process."""
    reversed_models: Collection[str] = ()
    """The models whose pipeline stages are reversed."""
    open_with: Callable[[str, Callable[[], Any], str | None], Any] = lambda model, open_it, address: open_it()
    """Opens an engine of a model; on hard devices asks first whether it would start. It is told where the ranks of a
    replica meet."""
    backend: str | None = None
    """Torch's name of the backend of the group; None: see `join_process_group`."""

    def open_engine(self, model: Model, spec: ModelSpec, session: Session) -> Any:
        if self.group.name == HOST or model.name not in self.group.models:
            return TokenizerOnly(load_codec(spec), spec)
        mesh, spec_of_engine = self.group.mesh, engine(self.group.engine)
        # A base model that several models share cannot be offloaded for one of them.
        shares = spec_of_engine.shares_base(mesh) and not any(holding.offload for holding in self.holdings.values())
        rank = Rank(
            mesh,
            self.rank,
            self.holdings[model.name],
            session.settings.threads,
            self.join_ranks,
            self.addresses.get(str(mesh.axis_position(self.rank, "dp"))),
            base_engine=session.engine_with_same_base(model) if shares else None,
            memory_counters=self.arenas,
            reversed_stages=model.name in self.reversed_models,
        )
        opened = self.open_with(model.name, partial(rank_opener(spec_of_engine), spec, rank), rank.address)
        if self.holdings[model.name].offload:
            opened.sleep()
        return opened

    def join_ranks(self) -> None:
        """Join the ranks of the group, once for all its models."""
        if not torch.distributed.is_initialized():
            ranks = self.group.mesh.rank_count
            join_process_group(self.rank, ranks, self.addresses["group"], self.seconds, self.backend)


def call_environment(worker: Any, environment: str, *request: Any) -> Any:
    """Call an environment of another process, which is a Ray actor or an object in this process."""
    if not hasattr(worker.call_local_environment, "remote"):
        return worker.call_local_environment(environment, *request)
    import ray

    return ray.get(worker.call_local_environment.remote(environment, *request))


def host_address() -> str:
    """Return this machine's address for other machines."""
    ray = _cluster()
    return str(ray.util.get_node_ip_address()) if ray else "127.0.0.1"


def node_id() -> str:
    """Return Ray's id of the machine that this process runs on."""
    ray = _cluster()
    return str(ray.get_runtime_context().get_node_id()) if ray else ""


def _cluster() -> Any:
    """Return the ray module in a Ray actor; where processes are objects, Ray need not be installed."""
    ray = sys.modules.get("ray")
    return ray if ray is not None and ray.is_initialized() else None
