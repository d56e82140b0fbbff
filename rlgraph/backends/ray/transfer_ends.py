"""One process's ends of weight transfers: whom it exchanges with, what it has and what it needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlgraph.backends.engines.process_groups import connect_to_store
from rlgraph.backends.engines.roles import HasWeights
from rlgraph.backends.exchange.exchange import CurrentMessage, ExchangeCost, TransferEndpoint
from rlgraph.backends.exchange.mailbox import GlooLink
from rlgraph.backends.exchange.sites import open_links, site_of_process
from rlgraph.ir.layout import LocalTensor
from rlgraph.ir.message_carriers import PeerCarriers, TensorSite
from rlgraph.ir.transfer import Transfer

_BY_GLOO = PeerCarriers()
_HOST = torch.device("cpu")


@dataclass(frozen=True)
class WeightsReport:
    """What a process reports of its part of a model."""

    layout: tuple[LocalTensor, ...]
    dtype: torch.dtype
    machine_id: str
    """The id of the machine that it runs on."""
    site: TensorSite | None = None
    """Where its tensors are; None if it has none."""
    change_count: int = 0
    """How often its weights were changed. Ranks with the same count have parts of the same weights."""
    half_updated: bool = False
    """Whether a change was interrupted, so that the weights are not usable."""


def report_weights(engine: HasWeights, node: str) -> WeightsReport:
    """Return what a process on a machine reports of an engine's weights."""
    first = next(iter(engine.tensors().values()), None)
    if first is None:
        return WeightsReport(tuple(engine.layout()), torch.float32, node)
    return WeightsReport(tuple(engine.layout()), first.dtype, node, site_of_process(first.device))


class Links:
    """The mailboxes and exchanges of a process, by name."""

    def __init__(self, seconds: float) -> None:
        """seconds: longest wait for a peer."""
        self._seconds = seconds
        self._mailboxes: dict[str, GlooLink] = {}
        self._exchanges: dict[str, TransferEndpoint] = {}

    def join_link(self, link: str, place: int, places: int, address: str) -> None:
        """Join the processes of a link, one of which listens at the address."""
        store = connect_to_store(address, self._seconds)
        self._mailboxes[link] = GlooLink(place, range(places), store, name=link, seconds=self._seconds)

    def mailbox(self, link: str) -> GlooLink:
        return self._mailboxes[link]

    def prepare_exchange(
        self,
        link: str,
        name: str,
        transfer: Transfer,
        source: Sequence[LocalTensor],
        destination: Sequence[LocalTensor],
        dtype: torch.dtype,
        delta: bool = False,
        ways: PeerCarriers = _BY_GLOO,
        device: torch.device = _HOST,
    ) -> None:
        """Work out this process's part of a transfer. delta: only changed weights travel. ways: the carriers to and
        from each peer. device: that of the tensors."""
        mailbox = self._mailboxes[link]
        self._exchanges[name] = TransferEndpoint(
            transfer,
            mailbox,
            source=source,
            destination=destination,
            dtype=dtype,
            delta=delta,
            links=open_links(mailbox, ways, device, name),
            ways=ways,
        )

    def run_exchange(
        self,
        name: str,
        source: Mapping[str, Tensor],
        destination: Mapping[str, Tensor],
        ema: float | None,
        verify: bool = False,
    ) -> ExchangeCost:
        return self._exchanges[name].run(source, destination, ema=ema, verify=verify)

    def pending_messages(self) -> tuple[CurrentMessage, ...]:
        """Return the messages that the transfers are at. May be called from any thread."""
        pending = (exchange.pending for exchange in list(self._exchanges.values()))
        return tuple(message for message in pending if message is not None)
