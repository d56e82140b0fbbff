"""verl's worker group on CPU actors, and its dispatch as `../dispatch.py` times it."""

from __future__ import annotations

from typing import Any

import ray
import torch
from verl import DataProto
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, make_nd_compute_dataproto_dispatch_fn, register
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup


class Echo(Worker):
    """Does nothing with what it gets. Every worker is a data-parallel rank, as in verl's own trainers without
    splits."""

    def __init__(self) -> None:
        super().__init__()
        torch.set_num_threads(1)
        self._register_dispatch_collect_info("all", dp_rank=self.rank, is_collect=True)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def ready(self) -> None: ...

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn("all"))
    def ack(self, rows: DataProto) -> DataProto:
        return DataProto.from_dict(tensors={"count": torch.ones(1)})

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn("all"))
    def echo(self, rows: DataProto) -> DataProto:
        return rows


def ways(count: int, rows: int) -> tuple[dict[str, Any], list[Any]]:
    """Calls to time on a group of so many workers, with so many float32 numbers; the workers."""
    pool = RayResourcePool(process_on_nodes=[count], use_gpu=False, max_colocate_count=1)
    group = RayWorkerGroup(
        resource_pool=pool, ray_cls_with_init=RayClassWithInitArgs(cls=ray.remote(Echo)), use_gpu=False
    )
    group.ready()
    numbers = DataProto.from_dict(tensors={"numbers": torch.zeros(rows, 1)})
    return {"verl ack": lambda: group.ack(numbers), "verl echo": lambda: group.echo(numbers)}, group.workers
