"""Weights from one process to another: on one GPU by CUDA IPC, and where there are two, from one to the other by NCCL.
Each number has to arrive, and nothing may pass through the memory of the host."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch

from benchmarks.gpu.measure import Row, Setting
from rlgraph.backends.engines.process_groups import connect_to_store, open_store
from rlgraph.backends.engines.transformers.layout import layout as trained
from rlgraph.backends.engines.vllm.layout import layout as sampled
from rlgraph.backends.exchange.exchange import TransferEndpoint
from rlgraph.backends.exchange.mailbox import GlooLink
from rlgraph.backends.exchange.sites import open_links, site_of_process
from rlgraph.catalog.models.shape import Shape
from rlgraph.ir.layout import LocalTensor
from rlgraph.ir.mesh import Mesh
from rlgraph.ir.message_carriers import TensorSite, peer_carriers
from rlgraph.ir.transfer import Topology, Transfer
from rlgraph.passes.resharding.reshard import plan_resharding

SECONDS = 120.0
TIMES = 5
SMALL = Shape("qwen2", vocab=256, hidden=64, ffn=160, layers=2, heads=4, kv_heads=2, head_dim=16)
LARGE = Shape("qwen2", vocab=32768, hidden=2048, ffn=8192, layers=8, heads=16, kv_heads=8, head_dim=128)


def rows(setting: Setting) -> Iterator[Row]:
    yield from pair(setting, (0, 0))
    if setting.gpu and torch.cuda.device_count() > 1:
        yield from pair(setting, (0, 1))


def pair(setting: Setting, devices: Sequence[int]) -> Iterator[Row]:
    """Two processes, on devices of these numbers."""
    shape = SMALL if setting.small else LARGE
    sides: list[tuple[LocalTensor, ...]] = [trained(shape, Mesh(), 0), sampled(shape, Mesh(), 0)]
    transfer = plan_resharding(
        {0: sides[0]}, {1: sides[1]}, itemsize=2, topology=Topology.one_per_device((0, 1)), bucket=256 << 20
    )
    meeting, context = open_store("127.0.0.1"), multiprocessing.get_context("spawn")
    pipes: list[Connection] = []
    for place, number in enumerate(devices):
        ours, theirs = context.Pipe()
        device = f"cuda:{number}" if setting.gpu else "cpu"
        named = (place, device, meeting.address, transfer, sides[place], theirs)
        context.Process(target=end, args=named, daemon=True).start()
        pipes.append(ours)
    sites: dict[int, TensorSite] = {place: pipe.recv() for place, pipe in enumerate(pipes)}
    for pipe in pipes:
        pipe.send(sites)
    (carrier, _, _), (_, seconds, right) = (pipe.recv() for pipe in pipes)
    yield Row(f"over {carrier}: share of the tensors that arrived as they were", right, least=1)
    yield Row(f"over {carrier}: {transfer.bound / 1e9:.3g} GB", transfer.bound / seconds / 1e9, "GB/s")


def end(
    place: int, name: str, address: str, transfer: Transfer, layout: tuple[LocalTensor, ...], pipe: Connection
) -> None:
    """One process: what carried its messages, the least seconds of a transfer, the share of tensors that are right."""
    device = torch.device(name)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    pipe.send(site_of_process(device))
    there = peer_carriers([(0, 1)], pipe.recv(), "the weights", {0: "the first", 1: "the second"})[place]
    mailbox = GlooLink(place, (0, 1), connect_to_store(address, SECONDS), seconds=SECONDS)
    links = open_links(mailbox, there, device, "links")
    sides: Any = {"source" if place == 0 else "destination": layout}
    exchange = TransferEndpoint(transfer, mailbox, **sides, dtype=torch.bfloat16, links=links, ways=there)
    tensors = numbered(layout, device)
    if place:
        for tensor in tensors.values():
            tensor.zero_()
    seconds = [exchange.run(*((tensors, {}) if place == 0 else ({}, tensors))).seconds for _ in range(TIMES)]
    right = sum(torch.equal(tensors[local], made) for local, made in numbered(layout, device).items())
    pipe.send((there.carriers[1 - place], min(seconds), right / len(tensors)))


def numbered(layout: Sequence[LocalTensor], device: torch.device) -> dict[str, torch.Tensor]:
    """What a rank has of a model whose numbers tell their rows and columns, and padding as 0."""
    found: dict[str, torch.Tensor] = {}
    for local in layout:
        tensor = torch.zeros(local.shape, dtype=torch.bfloat16, device=device)
        for piece in local.pieces:
            inside = tuple(slice(at, at + high - low) for at, (low, high) in zip(piece.at, piece.box, strict=True))
            number = torch.zeros((), dtype=torch.int64, device=device)
            for dim, (low, high) in enumerate(piece.box):
                along = torch.arange(low, high, device=device) * (3, 7, 1)[dim % 3]
                number = number + along.view([-1 if dim == each else 1 for each in range(len(piece.box))])
            tensor[inside] = (number % 251).to(tensor)
        if "*" in local.name:
            found |= {local.name.replace("*", str(layer)): each.clone() for layer, each in enumerate(tensor)}
        else:
            found[local.name] = tensor
    return found
