"""Weights from verl's trainer to its servers over TCP on a CPU: a checkpoint engine for verl's `custom_backend_module`.

verl 0.9.1's engines go over NCCL, HCCL, NIXL, Mooncake or CUDA's shared memory, none of which a CPU has. This one is
made as its NCCL engine is: the first process that trains fills a bucket and sends it to every server.
"""

import pickle

import ray
import torch
import zmq
from verl.checkpoint_engine.base import (
    CheckpointEngine,
    CheckpointEngineRegistry,
    merge_weight_chunks,
    split_weight_chunks,
)


@CheckpointEngineRegistry.register("sockets")
class SocketCheckpointEngine(CheckpointEngine):
    def __init__(self, bucket_size: int, is_master: bool = False, **_) -> None:
        self.bucket_size, self.is_master = bucket_size, is_master
        self.ends: list[zmq.Socket] = []

    def prepare(self) -> str:
        """Where this process is to be reached; servers alone need to be."""
        if not hasattr(self, "listening"):
            self.listening = zmq.Context.instance().socket(zmq.PULL)
            self.host = ray.util.get_node_ip_address()
            self.port = self.listening.bind_to_random_port(f"tcp://{self.host}")
        return f"tcp://{self.host}:{self.port}"

    @classmethod
    def build_topology(cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[str]):
        servers = metadata[actor_wg_world_size:]
        return (
            {"servers": [servers] + [[]] * (actor_wg_world_size - 1)},
            {"servers": [[]] * rollout_world_size},
        )

    def init_process_group(self, servers: list[str]) -> None:
        if self.ends or not servers:
            return
        for address in servers:
            end = zmq.Context.instance().socket(zmq.PUSH)
            end.connect(address)
            self.ends.append(end)

    def finalize(self) -> None: ...

    @torch.no_grad()
    async def send_weights(self, weights, global_steps: int | None = None) -> None:
        if not self.ends:
            for _ in weights:  # To make each weight is itself collective over the processes that train.
                pass
            return
        metas, chunks, size = [], [], 0
        async for meta, chunk in split_weight_chunks(weights, self.bucket_size):
            if size + meta.chunk_size > self.bucket_size:
                self._send(metas, chunks, last=False)
                metas, chunks, size = [], [], 0
            meta.offset = size
            metas.append(meta)
            chunks.append(chunk)
            size += meta.chunk_size
        self._send(metas, chunks, last=True)

    def _send(self, metas, chunks, *, last: bool) -> None:
        head = pickle.dumps((metas, last))
        body = torch.cat([chunk.contiguous() for chunk in chunks]).numpy()
        for end in self.ends:
            end.send_multipart([head, body], copy=False)

    async def receive_weights(self, global_steps: int | None = None):
        async for name, weight in merge_weight_chunks(self._chunks(), self.bucket_size):
            yield name, weight

    async def _chunks(self):
        last = False
        while not last:
            head, body = self.listening.recv_multipart(copy=False)
            metas, last = pickle.loads(head.buffer)
            bucket = torch.frombuffer(bytearray(body.buffer), dtype=torch.uint8)
            for meta in metas:
                yield meta, bucket[meta.offset : meta.offset + meta.chunk_size]
