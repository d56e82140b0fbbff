"""What engines do with the weights that a rank has, whatever computes with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor

from rlgraph.backends.engines.offload import Offloader, OffloadRecord
from rlgraph.backends.engines.records import State
from rlgraph.backends.engines.weights import blend_weights, check_same_names, clone_tensors, overwrite_weights


class RankWeights:
    """The weights of a rank, which `tensors` gives: the part of `HasWeights` and `Offloads` that is the same in every
    engine."""

    offloader: Offloader

    def tensors(self) -> dict[str, Tensor]:
        """Return what `HasWeights.tensors` says."""
        raise NotImplementedError

    def note_weights_written(self) -> None:
        """Do what `HasWeights.note_weights_written` says."""
        raise NotImplementedError

    def state(self) -> State:
        """Return a copy of the weights."""
        return clone_tensors(self.tensors())

    def load_weights(self, state: Mapping[str, Tensor]) -> None:
        """Take over these weights; the optimizer's moments stay."""
        overwrite_weights(self.tensors(), state)
        self.note_weights_written()

    def blend(self, other: Mapping[str, Tensor], ema: float) -> None:
        """Move towards `other`: weights = ema * weights + (1 - ema) * other."""
        blend_weights(self.tensors(), other, ema)
        self.note_weights_written()

    def wake(self) -> OffloadRecord:
        """Take the memory again."""
        return self.offloader.wake(self.note_weights_written)

    @contextmanager
    def temporary_weights(self, state: State) -> Iterator[None]:
        """Compute with the tensors of `state` while the context lasts; nothing is copied. Not for two threads at a
        time."""
        tensors = self.tensors()
        check_same_names(tensors, state)
        originals = {name: tensor.data for name, tensor in tensors.items()}
        try:
            for name, tensor in tensors.items():
                tensor.data = state[name]
            yield
        finally:
            for name, tensor in tensors.items():
                tensor.data = originals[name]
