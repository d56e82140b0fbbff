"""One process's ends of the transfers of weights: with whom it exchanges, what it has and what it needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlgraph.engines.base import HasWeights
from rlgraph.engines.joining import attend
from rlgraph.exchange.exchange import Exchange, Moved
from rlgraph.exchange.mailbox import Mailbox
from rlgraph.ir.layout import Local
from rlgraph.ir.transfer import Transfer


@dataclass(frozen=True)
class Holding:
    """What a process says of its part of a model."""

    layout: tuple[Local, ...]
    dtype: torch.dtype
    node: str
    """The machine that it runs on."""
    changes: int = 0
    """How often it has got new weights. Ranks that have counted alike have parts of the same."""
    torn: bool = False
    """A change has ended in the midst: these weights are none."""


def holding(engine: HasWeights, node: str) -> Holding:
    first = next(iter(engine.tensors().values()), None)
    return Holding(tuple(engine.layout()), torch.float32 if first is None else first.dtype, node)


class Links:
    """Mailboxes and exchanges by name."""

    def __init__(self, seconds: float) -> None:
        """seconds: longest wait for a peer."""
        self._seconds = seconds
        self._mailboxes: dict[str, Mailbox] = {}
        self._exchanges: dict[str, Exchange] = {}

    def meet(self, link: str, place: int, places: int, address: str) -> None:
        """Joins the processes of a link, one of which listens at the address."""
        store = attend(address, self._seconds)
        self._mailboxes[link] = Mailbox(place, range(places), store, name=link, seconds=self._seconds)

    def prepare(
        self,
        link: str,
        name: str,
        transfer: Transfer,
        source: Sequence[Local],
        destination: Sequence[Local],
        dtype: torch.dtype,
        delta: bool = False,
    ) -> None:
        """Works out this place's part of a transfer. delta: only what changed travels."""
        self._exchanges[name] = Exchange(
            transfer, self._mailboxes[link], source=source, destination=destination, dtype=dtype, delta=delta
        )

    def run(
        self, name: str, source: Mapping[str, Tensor], destination: Mapping[str, Tensor], ema: float | None
    ) -> Moved:
        return self._exchanges[name].run(source, destination, ema=ema)
