"""Tells which collectives a process has entered, and in which it waits, to whoever asks meanwhile. It reads torch's own
record, the flight recorder, which torch keeps of gloo's groups and of NCCL's."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

Key = tuple[str, tuple[int, ...]]
"""The key of a group, the same in all of its processes: torch's name of it, and its ranks in the default group."""


@dataclass(frozen=True)
class Collective:
    """A collective that a process has entered, and that is not over."""

    group: Key
    number: int
    """Its number among those of its group, from 1: the same one has the same number in all processes."""
    name: str
    """What torch calls it: `all_reduce`."""
    elements: int
    """How many elements this process contributes."""


@dataclass(frozen=True)
class CollectiveState:
    """The collectives of a process in each of its torch groups."""

    last_numbers: Mapping[Key, int]
    """For each group the number of the last one that it has entered, of the newest 2,000."""
    unfinished: tuple[Collective, ...]
    """For each group the first that is not over."""


NONE = CollectiveState({}, ())


def read_flight_recorder() -> CollectiveState:
    """Return the collectives of this process; empty where torch keeps no record. Can be called in any thread, whatever
    the others wait for."""
    if not dist.is_available() or not dist.is_initialized():
        return NONE
    dump: Any = getattr(torch._C._distributed_c10d, "_dump_fr_trace_json", None)
    if dump is None:
        return NONE
    groups = {
        group.group_name: (group.group_name, tuple(ranks))
        for group, ranks in list(dist.distributed_c10d._world.pg_group_ranks.items())
        # A group that this process is not in is a number here.
        if not isinstance(group, int)
    }
    last: dict[Key, int] = {}
    waiting: dict[Key, Collective] = {}
    for entry in json.loads(dump(True, False)).get("entries", ()):
        key = groups.get(entry["process_group"][0])
        if key is None or entry["is_p2p"]:
            continue
        number = entry["collective_seq_id"]
        last[key] = max(number, last.get(key, 0))
        if not entry["retired"] and (key not in waiting or number < waiting[key].number):
            waiting[key] = Collective(key, number, entry["profiling_name"].rpartition(":")[2], _elements(entry))
    return CollectiveState(last, tuple(waiting.values()))


def _elements(entry: Mapping[str, Any]) -> int:
    return sum(math.prod(size) for size in entry["input_sizes"])


def is_collective_error(error: BaseException) -> bool:
    """Return whether an error says that a collective, or a message between ranks, did not end: others are gone or do
    not answer."""
    return isinstance(error, dist.DistError) or isinstance(error, RuntimeError) and "/gloo/" in str(error)
