"""Moves weights from process to process, by transfers that are planned once from what the ranks report to have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import count

from rlgraph.backends.device_queues import DeviceQueues, device_set
from rlgraph.backends.distributed.transport import Coming, TransferCost, WeightTransfer
from rlgraph.backends.exchange import exchange
from rlgraph.backends.exchange.digest import first_difference
from rlgraph.backends.ray.calls import Calls, Copy, replicas_of
from rlgraph.backends.ray.failures import CallContext, process_name, work_phrase, wrong_weights_error
from rlgraph.backends.ray.lost_replicas import LostReplicas
from rlgraph.backends.ray.offload import OffloadCoordinator
from rlgraph.backends.ray.processes import Processes
from rlgraph.backends.ray.row_refs import Address
from rlgraph.backends.ray.transfer_ends import WeightsReport
from rlgraph.backends.ray.worker import Worker
from rlgraph.backends.steps import Observer
from rlgraph.ir.layout import LocalTensor
from rlgraph.ir.message_carriers import GLOO, peer_carriers
from rlgraph.ir.plan import Group, Plan
from rlgraph.ir.transfer import Topology
from rlgraph.passes.resharding.reshard import plan_resharding

BUCKET = 256 << 20
"""Bytes of messages that a process may have at a time, besides the weights themselves."""


class Transfers:
    """Moves weights between the processes of a plan."""

    def __init__(
        self,
        plan: Plan,
        processes: Processes,
        queues: DeviceQueues,
        observer: Observer,
        sleeping: OffloadCoordinator,
        losses: LostReplicas,
        verify_every: int = 1,
    ) -> None:
        """verify_every: the first of so many transfers to a place is verified; 0 means none is."""
        self.losses, self.verify_every = losses, verify_every
        self.plan, self.processes, self.queues, self.observer = plan, processes, queues, observer
        self.sleeping = sleeping
        self._refreshes = count()
        self._planned: dict[str, dict[tuple[Address, Address], tuple[int, str]]] = {}
        """For each transfer, the bytes from each process to each other one, and their carrier."""
        self._done = Counter[str]()
        """How often each transfer was begun since it was planned."""

    def assign_weights(self, move: WeightTransfer) -> None:
        assert move.node.id is not None and move.update_step is not None
        with self.queues.acquire_devices(device_set(move.receiver), rank=move.update_step.number):
            calls = Calls[None](self.processes)
            for copy in self.living_receivers(move):
                calls.call_replica(
                    copy, Worker.assign_weights, move.update_step, move.node.id, move.target, move.source
                )
            calls.get(work_phrase(move.node), move.node)

    def send_weights(self, move: WeightTransfer) -> Coming:
        with self.queues.acquire_devices(*move.devices):
            self._plan(move)
            self.sleeping.switch_models(move.offload_change, move.node, move.step)
            coming = self._go(move)
            if self._shared(move):
                moved = coming()
                return lambda: moved
            # A process works sequentially: later requests for its devices are queued behind this transfer.
            return coming

    def _shared(self, move: WeightTransfer) -> bool:
        """Return whether a process of a third group uses devices of one end: it would begin meanwhile."""
        places = [device_set(group) for group in self.plan.groups]
        return any(sum(end.overlaps(place) for place in places) > 1 for end in move.devices)

    def prepare_weight_transfer(self, move: WeightTransfer) -> None:
        if _name(move) not in self._planned:
            with self.queues.acquire_devices(*move.devices):
                self._plan(move)

    def refresh_weights(self, move: WeightTransfer, going: AbstractContextManager[int | None]) -> TransferCost | None:
        assert move.refresh_state is not None
        move.refresh_state.sent.result()
        # The receiver samples, and so has the turn of its pool already.
        with self.queues.acquire_devices(device_set(move.sender)), going as version:
            return None if version is None else self._go(replace(move, version=version))()

    def forget_plans(self) -> None:
        """Forget all transfers, so that they are planned anew among the present processes: some were lost or
        replaced."""
        self._planned.clear()
        self._done.clear()

    def living_receivers(self, move: WeightTransfer) -> list[Copy]:
        """Return the living replicas that get the weights."""
        return [
            copy
            for index, copy in receiving_replicas(move).items()
            if index in self.losses.living_replicas(move.receiver)
        ]

    def _go(self, move: WeightTransfer) -> Coming:
        name, calls = _name(move), Calls[exchange.ExchangeCost](self.processes)
        verify = self.verify_every > 0 and self._done[name] % self.verify_every == 0
        self._done[name] += 1
        arguments = move.version, move.ema_decay, move.update_step, verify
        for copy in replicas_of(move.sender):
            calls.call_replica(copy, Worker.exchange_weights, name, move.source, None, *arguments)
        receivers = self.living_receivers(move)
        if move.refresh_state is None:
            for copy in receivers:
                calls.call_replica(copy, Worker.exchange_weights, name, None, move.target, *arguments)
        else:
            assert move.version is not None
            number, settling = next(self._refreshes), Calls[None](self.processes)
            for copy in receivers:
                calls.call_replica(copy, Worker.refresh_weights, name, move.target, move.version, number, verify)
            # The sampling goes on long after it has taken the weights, so only the receipt of them is waited for.
            for copy in receivers:
                settling.call_replica(copy, Worker.wait_for_refresh, move.target, number)
            calls.beside += settling.answers

        def wait_until_arrived() -> TransferCost:
            moved = [rank_moved for answer in calls.get(_doing(move), move.node) for rank_moved in answer]
            self.trace_transfer(f"sync {move.source}", name, calls.called_processes, moved)
            wrong = first_difference(rank_moved.digests for rank_moved in moved)
            if wrong is not None:
                raise wrong_weights_error(move.source, wrong, move.node)
            # Processes that start first wait for the others.
            seconds = max(rank_moved.start + rank_moved.seconds for rank_moved in moved) - max(
                rank_moved.start for rank_moved in moved
            )
            return TransferCost(
                seconds,
                sum(rank_moved.sent_bytes for rank_moved in moved),
                max(rank_moved.peak_buffer_bytes for rank_moved in moved),
            )

        return wait_until_arrived

    def trace_transfer(
        self, title: str, name: str, who: Sequence[Address], moved: Sequence[exchange.ExchangeCost]
    ) -> None:
        """Tell the observer who took part in a transfer, and what was sent from which process to which."""
        spans = {
            (group, rank): self.observer.add_span(
                self.plan.group(group).pool,
                f"{group} {rank}",
                title,
                "sync",
                rank_moved.start,
                rank_moved.start + rank_moved.seconds,
                sent=rank_moved.sent_bytes,
                received=rank_moved.received_bytes,
                peak=rank_moved.peak_buffer_bytes,
            )
            for (group, rank), rank_moved in zip(who, moved, strict=True)
        }
        for (source, destination), (size, carrier) in self._planned[name].items():
            self.observer.add_flow(spans[source], spans[destination], f"weights over {carrier}", size)

    def _plan(self, move: WeightTransfer) -> None:
        """Plan a transfer once, from what the ranks themselves report to have."""
        name, sender, receiver = _name(move), move.sender, move.receiver
        if name in self._planned:
            return
        taking = tuple(who for speaker, others in self.living_receivers(move) for who in (speaker, *others))
        request = CallContext((*ranks_of(sender), *sorted(taking)), _doing(move), move.node)
        who = request.who
        models = {sender.name: move.source, receiver.name: move.target}
        asked = [self.processes.call(address, Worker.report_weights, models[address[0]]) for address in who]
        holdings = self.processes.get(asked, request)
        sides: tuple[dict[int, tuple[LocalTensor, ...]], dict[int, tuple[LocalTensor, ...]]] = ({}, {})
        for place, (group, _) in enumerate(who):
            sides[group == receiver.name][place] = holdings[place].layout
        dtype = min((holding.dtype for holding in holdings), key=lambda option: option.itemsize)
        topology = self.device_topology([self.plan.group(group).devices[rank] for group, rank in who], who, holdings)
        forward = move.ema_decay is None
        transfer = plan_resharding(*sides, itemsize=dtype.itemsize, topology=topology, bucket=BUCKET, forward=forward)
        join_link(self.processes, name, request)
        places_parts = transfer.split_by_place(range(len(who)))
        delta = move.update_step is None and self.plan.holding(move.target, receiver.name).delta
        # To find what changed, both ends keep copies in host memory.
        sites = (
            {} if delta else {place: holding.site for place, holding in enumerate(holdings) if holding.site is not None}
        )
        pairs = transfer.bytes_by_pair()
        ways_of = peer_carriers(
            pairs, sites, f"the weights of `{move.source}`", dict(enumerate(map(process_name, who)))
        )
        preparing = [
            self.processes.call(
                address,
                Worker.prepare_weight_transfer,
                name,
                name,
                places_parts[place],
                *_ends(address, move),
                dtype,
                delta,
                ways_of[place],
            )
            for place, address in enumerate(who)
        ]
        self.processes.get(preparing, request)
        self._planned[name] = {
            (who[sender_place], who[receiver_place]): (
                size,
                ways_of[sender_place].carriers.get(receiver_place, GLOO.name),
            )
            for (sender_place, receiver_place), size in pairs.items()
        }

    def device_topology(
        self, devices: Sequence[int], who: Sequence[Address], held: Sequence[WeightsReport]
    ) -> Topology:
        """Return the devices and machines of the processes."""
        pools = [self.plan.group(group).pool for group, _ in who]
        numbers: dict[tuple[str, int], int] = {}
        device_of = {
            place: numbers.setdefault(device, len(numbers))
            for place, device in enumerate(zip(pools, devices, strict=True))
        }
        machines = list(dict.fromkeys(holding.machine_id for holding in held))
        return Topology(
            device_of, {device_of[place]: machines.index(holding.machine_id) for place, holding in enumerate(held)}
        )


def join_link(processes: Processes, link: str, request: CallContext) -> None:
    """Join the processes of a request, the first of which listens."""
    first = CallContext(request.who[:1], request.doing, request.node)
    [address] = processes.call_all(first, Worker.start_rendezvous)
    places = len(request.who)
    joining = [
        processes.call(who, Worker.join_link, link, place, places, address) for place, who in enumerate(request.who)
    ]
    processes.get(joining, request)


def _name(move: WeightTransfer) -> str:
    """Return the name of a transfer, which is planned once for all moves like it."""
    name = f"{move.source}@{move.sender.name} > {move.target}@{move.receiver.name}"
    name += "" if move.copy is None else f" {move.copy}"
    return name if move.ema_decay is None else f"{name} (average)"


def _doing(move: WeightTransfer) -> str:
    return f"the transfer of `{move.source}` from {move.sender.name} to {move.receiver.name}"


def _ends(who: Address, move: WeightTransfer) -> tuple[str | None, str | None]:
    """Return the model that a process sends, and the one that it receives."""
    return (
        move.source if who[0] == move.sender.name else None,
        move.target if who[0] == move.receiver.name else None,
    )


def receiving_replicas(move: WeightTransfer) -> dict[int, Copy]:
    """Return the replicas that get the weights, by number."""
    replicas = dict(enumerate(replicas_of(move.receiver)))
    return replicas if move.copy is None else {move.copy: replicas[move.copy]}


def ranks_of(group: Group) -> tuple[Address, ...]:
    """Return the processes of a group."""
    return tuple((group.name, rank) for rank in range(group.mesh.rank_count))
