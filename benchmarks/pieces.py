"""What a transfer of weights costs beside its bytes: seconds of each piece that is copied into a message or out of it,
and of each message, at both ends.

    python benchmarks/pieces.py
    python benchmarks/pieces.py --count 20000 --rounds 9

Two ends of a planned transfer run one after the other in this process, with one thread. Messages are handed over and
travel nowhere, and tensors are so small that their bytes take no time: what is left is our own code, and torch's to
start a copy. The least of the rounds counts, since whatever disturbs one makes it longer.
"""

from __future__ import annotations

import argparse
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor

from rlgraph.backends.exchange.exchange import ExchangeCost, TransferEndpoint
from rlgraph.backends.exchange.link import InFlightMessage, Link
from rlgraph.backends.exchange.messages import ALONE
from rlgraph.ir.layout import LocalTensor, TensorPiece
from rlgraph.ir.transfer import Topology
from rlgraph.passes.resharding.reshard import plan_resharding

DTYPE = torch.bfloat16
SENDER, RECEIVER = 0, 1
SIDE = 8
"""Rows and columns of a tensor of which every other column travels: a piece that has to be copied on both sides."""


class Handed(InFlightMessage):
    def __init__(self, message: Tensor) -> None:
        self.message = message

    def wait(self) -> None:
        pass


class Hands(Link):
    """A carrier within a process: the receiver finds the sender's memory."""

    name, device, direct = "hand", torch.device("cpu"), True

    def __init__(self, place: int, sent: deque[Tensor]) -> None:
        self.place, self.sent = place, sent

    def send(self, message: Tensor, to: int) -> InFlightMessage:
        self.sent.append(message)
        return Handed(message)

    def receive(self, message: Tensor, source: int) -> InFlightMessage:
        self.sent.popleft()
        return Handed(message)


def local(name: str, rows: int, columns: int, kept: int) -> LocalTensor:
    """The first `kept` columns of a tensor, in a tensor of its own."""
    return LocalTensor(name, (rows, kept), (TensorPiece(name, ((0, rows), (0, kept)), (0, 0)),))


def both_ends(count: int, rows: int, columns: int, kept: int) -> tuple[ExchangeCost, ExchangeCost]:
    """Move the first columns of so many tensors from one end to the other."""
    names = [f"w{index}" for index in range(count)]
    held = tuple(local(name, rows, columns, columns) for name in names)
    needed = tuple(local(name, rows, columns, kept) for name in names)
    plan = plan_resharding(
        {SENDER: held},
        {RECEIVER: needed},
        itemsize=DTYPE.itemsize,
        topology=Topology.one_per_device((SENDER, RECEIVER)),
        bucket=1 << 40,
    )
    sent: deque[Tensor] = deque()
    # The carrier has what of a mailbox an end uses.
    first, second = Hands(SENDER, sent), Hands(RECEIVER, sent)
    sender = TransferEndpoint(plan, first, source=held, dtype=DTYPE)  # type: ignore[arg-type]
    receiver = TransferEndpoint(plan, second, destination=needed, dtype=DTYPE)  # type: ignore[arg-type]
    weights = tensors(held)
    return sender.run(weights, {}), receiver.run({}, tensors(needed))


def tensors(layout: Sequence[LocalTensor]) -> dict[str, Tensor]:
    return {one.name: torch.zeros(one.shape, dtype=DTYPE) for one in layout}


def seconds(count: int, rounds: int, rows: int, columns: int, kept: int) -> tuple[float, float]:
    """The least seconds of each tensor at the sender and at the receiver."""
    both_ends(count, rows, columns, kept)
    found = [both_ends(count, rows, columns, kept) for _ in range(rounds)]
    return min(a.seconds for a, _ in found) / count, min(b.seconds for _, b in found) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=5000, help="pieces")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    pieces = seconds(asked.count, asked.rounds, SIDE, SIDE, SIDE // 2)
    # Whole tensors that travel alone, from where they lie to where they belong: nothing is copied.
    alone = seconds(asked.count // 20, asked.rounds, ALONE // DTYPE.itemsize, 1, 1)
    for what, (sender, receiver) in (("piece", pieces), ("message", alone)):
        print(f"a {what:8} {sender * 1e6:6.1f} us at the sender {receiver * 1e6:6.1f} us at the receiver")


if __name__ == "__main__":
    main()
