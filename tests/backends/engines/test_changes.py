"""What changed of a message: to the bit, and as short as it is said to be."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from rlgraph.backends.engines.base import EngineError
from rlgraph.backends.exchange.deltas import DeltaReceiver, DeltaSender

ELEMENTS = 20_000


def messages(dtype: torch.dtype, shares: list[float]) -> list[Tensor]:
    """Each with another share of its elements changed since the one before."""
    generator = torch.Generator().manual_seed(0)
    found = [torch.randn(ELEMENTS, generator=generator).to(dtype)]
    for share in shares:
        changed = torch.rand(ELEMENTS, generator=generator) < share
        found.append(torch.where(changed, torch.randn(ELEMENTS, generator=generator).to(dtype), found[-1]))
    return found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_every_message_arrives(dtype: torch.dtype) -> None:
    shares = [0.0, 1e-4, 0.01, 0.3, 1.0, 0.002, 0.0]
    sender, receiver = DeltaSender(), DeltaReceiver(torch.empty(ELEMENTS, dtype=dtype))
    before = None
    for message in messages(dtype, shares):
        head, body = sender.encode(message)
        assert receiver.body_buffer(head).shape == body.shape
        assert torch.equal(receiver.decode(head, body), message)
        differing = ELEMENTS if before is None else int((message != before).sum())
        assert body.nbytes <= min(message.nbytes, differing * (dtype.itemsize + 1) + ELEMENTS // 255)
        before = message


def test_places_on_both_sides_of_what_a_byte_says() -> None:
    """The first, the last, neighbours, and 254 to 256 elements between two of them."""
    message = torch.zeros(2000)
    sender, receiver = DeltaSender(), DeltaReceiver(message)
    receiver.decode(*sender.encode(message))
    for places in ([0], [1999], [0, 1, 2], [0, 255], [0, 256], [0, 257], [254], [255], [509, 510], [511], []):
        message[places] += 1
        head, body = sender.encode(message)
        assert head.tolist()[1] == len(places)
        assert torch.equal(receiver.decode(head, body), message)


def test_bits_count_and_not_numbers() -> None:
    """A zero with another sign, another NaN: what compares alike, or never does."""
    message = torch.tensor([0.0, float("nan"), 1.0, 2.0] * 8)
    sender, receiver = DeltaSender(), DeltaReceiver(message)
    receiver.decode(*sender.encode(message))
    head, _ = sender.encode(message)
    assert head.tolist()[1] == 0
    message[0] = -0.0
    message.view(torch.int32)[1] += 1
    head, body = sender.encode(message)
    assert head.tolist()[1] == 2
    found = receiver.decode(head, body)
    assert np.array_equal(found.view(torch.int32).numpy(), message.view(torch.int32).numpy())


def test_a_change_of_what_never_came_is_refused() -> None:
    message = torch.zeros(100)
    sender, receiver = DeltaSender(), DeltaReceiver(message)
    receiver.decode(*sender.encode(message))
    sender.encode(message)
    head, _ = sender.encode(message)
    with pytest.raises(EngineError, match="changed since transfer 2, and the last one that came is 1"):
        receiver.body_buffer(head)
