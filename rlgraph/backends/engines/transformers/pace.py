"""How decoding is paced: how often the host looks at rows, for how long shapes stay, and what is captured on a GPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch

from rlgraph.backends.engines.errors import first_line


@dataclass(frozen=True)
class Pace:
    """How often the host looks at rows that are decoded, and for how long shapes stay the same."""

    ask_every: int = 1
    """Tokens from one time that the host asks which rows have ended to the next: until then these are computed, too."""
    span: int = 1
    """The cache is read in multiples of so many places; of more than 1, what is not there yet is masked."""
    drop_at: float = 0.75
    """Ended rows leave when at most this share of the rows that are computed is still running: a copy of the cache then
    pays."""
    captured: bool = False
    """A token's work is captured as CUDA graphs, and replayed while shapes stay."""

    @property
    def fixed(self) -> bool:
        """Whether shapes stay the same for several tokens."""
        return self.span > 1

    def rung(self, places: int) -> int:
        """Return how many places are read where so many have to be."""
        return -(-places // self.span) * self.span


EACH_TOKEN = Pace()
"""Nothing is computed that is not needed: where the host computes, asking costs nothing."""
FIXED = Pace(ask_every=8, span=128, drop_at=0.5)
"""For devices that compute while the host goes ahead."""
CAPTURED = Pace(ask_every=8, span=128, drop_at=0.5, captured=True)


class StepRunner:
    """Runs the parts of a token's work: on a GPU, where shapes stay, from a CUDA graph."""

    def __init__(self, captured: bool) -> None:
        self._captured = captured
        self._graphs: dict[str, tuple[Hashable, torch.cuda.CUDAGraph | None]] = {}

    def run(self, name: str, shape: Hashable, part: Callable[[], None]) -> None:
        """Do a part's work. The first time with a shape it is done as it stands, which makes what libraries make once;
        the second time it is captured."""
        if not self._captured:
            return part()
        known, graph = self._graphs.get(name, (None, None))
        if known != shape:
            self._graphs[name] = (shape, None)
            return part()
        if graph is None:
            graph = self._capture(part)
            if graph is None:
                return part()
            self._graphs[name] = (shape, graph)
        graph.replay()
        return None

    def forget(self) -> None:
        """Give up what was captured: tensors lie elsewhere."""
        self._graphs.clear()

    def _capture(self, part: Callable[[], None]) -> torch.cuda.CUDAGraph | None:
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads may carry weights meanwhile.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                part()
        except RuntimeError as error:
            reason = first_line(error)
            warnings.warn(
                f"sampling is not captured, and slower: the model waits for its device ({reason})", stacklevel=2
            )
            self._captured = False
            return None
        return graph
