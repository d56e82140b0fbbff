"""A CUDA graph on a CPU: operators are recorded with the tensors that they work on, and done again at these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WAITS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::bincount"}
"""Operators that have to know numbers: on a GPU the host would wait for them."""


class RecordedGraph:
    """What `torch.cuda.CUDAGraph` is used for. All that was not a tensor while it was recorded stays what it was."""

    made: list[RecordedGraph]
    """All graphs of a test, which clears it."""

    def __init__(self) -> None:
        self.steps: list[tuple[Any, tuple[Any, ...], Mapping[str, Any], list[Tensor]]] = []
        self.replays = 0
        self.made.append(self)

    def replay(self) -> None:
        self.replays += 1
        if self.replays == 1:
            return  # While it was recorded it was done, which a real one is not.
        for call, args, options, outputs in self.steps:
            given = {x.untyped_storage().data_ptr() for x in tree_leaves((args, options)) if isinstance(x, Tensor)}
            found = [x for x in tree_leaves(call(*args, **options)) if isinstance(x, Tensor)]
            for old, new in zip(outputs, found, strict=True):
                # Views, and what is written in place, lie where they lay.
                if new.untyped_storage().data_ptr() not in given:
                    old.copy_(new)


class _Recorder(TorchDispatchMode):
    def __init__(self, graph: RecordedGraph) -> None:
        super().__init__()
        self._graph = graph

    def __torch_dispatch__(
        self, call: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if call._schema.name in WAITS:
            raise RuntimeError(f"operation not permitted when stream is capturing: {call._schema.name}")
        made = call(*args, **(kwargs or {}))
        self._graph.steps.append((call, args, kwargs or {}, [x for x in tree_leaves(made) if isinstance(x, Tensor)]))
        return made


@contextmanager
def recording(graph: RecordedGraph, **options: str) -> Iterator[None]:
    """What `torch.cuda.graph` is used for."""
    with _Recorder(graph):
        yield


def use_recorded_graphs(monkeypatch: Any) -> list[RecordedGraph]:
    """Make graphs recorded ones, and return those that will be made."""
    RecordedGraph.made = []
    monkeypatch.setattr(torch.cuda, "CUDAGraph", RecordedGraph)
    monkeypatch.setattr(torch.cuda, "graph", recording)
    return RecordedGraph.made
