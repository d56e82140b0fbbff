"""The models of one process: which engine makes a shard, and how shards meet."""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch.distributed

from rlgraph.backends.local.session import Session
from rlgraph.engines.copies import Copies, join
from rlgraph.engines.sources import ModelSpec, load_codec
from rlgraph.engines.tokenizers import Codec
from rlgraph.engines.transformers import TransformersEngine
from rlgraph.ir.graph import Model
from rlgraph.ir.plan import HOST, Group, Holding


@dataclass(frozen=True)
class Tokens:
    """A model that is in other processes: here is only its tokenizer."""

    codec: Codec
    spec: ModelSpec


@dataclass
class Opener:
    """Makes the engines of one rank of a group."""

    group: Group
    rank: int
    holdings: Mapping[str, Holding]
    """How the group holds each of its models."""
    addresses: Mapping[str, str]
    """Where the ranks meet: of the whole group under `group`, of a copy under its number."""
    seconds: float

    def open(self, model: Model, spec: ModelSpec, session: Session) -> Any:
        if self.group.name == HOST or model.name not in self.group.models:
            return Tokens(load_codec(spec), spec)
        maker = getattr(self, self.group.engine)
        return maker(spec, session, self.holdings[model.name])

    def transformers(self, spec: ModelSpec, session: Session, held: Holding) -> TransformersEngine:
        copies = None
        if self.group.mesh.size > 1:
            self.meet()
            copies = Copies()
        return TransformersEngine.open(spec, threads=session.settings.threads, copies=copies, **_blocks(held))

    def megatron(self, spec: ModelSpec, session: Session, held: Holding) -> Any:
        from rlgraph.engines.megatron.engine import MegatronEngine

        self.meet()
        return MegatronEngine.open(spec, self.group.mesh, recompute=held.recompute, **_blocks(held))

    def vllm(self, spec: ModelSpec, session: Session, held: Holding) -> Any:
        from rlgraph.engines.vllm.engine import VllmEngine

        copy = self.group.mesh.at(self.rank, "dp")
        address, cache = self.addresses.get(str(copy)), held.kv_bytes or None
        return VllmEngine.open(spec, self.group.mesh, self.rank, address=address, cache_bytes=cache)

    def meet(self) -> None:
        """Joins the ranks of the group, once for all its models."""
        if not torch.distributed.is_initialized():
            join(self.rank, self.group.mesh.size, self.addresses["group"], self.seconds)


def _blocks(held: Holding) -> dict[str, Any]:
    """The size of an engine's blocks of rows, where the plan has one."""
    return {"block_tokens": held.micro_tokens} if held.micro_tokens else {}


def free_address() -> str:
    """host:port of this machine that nobody listens on."""
    ray = _cluster()
    host = ray.util.get_node_ip_address() if ray else "127.0.0.1"
    with socket.socket() as probe:
        probe.bind((host, 0))
        return f"{host}:{probe.getsockname()[1]}"


def node() -> str:
    """The machine that this process runs on."""
    ray = _cluster()
    return str(ray.get_runtime_context().get_node_id()) if ray else ""


def _cluster() -> Any:
    """Ray, in its actors; where processes are objects in one, it need not be installed."""
    ray = sys.modules.get("ray")
    return ray if ray is not None and ray.is_initialized() else None
