"""Scans on ragged rows, compared with the plain form: doubling how many entries a sum covers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rlgraph.ops.scans import SEGMENT, Decay, decayed_sums, neighbours

LENGTHS = [3, 0, 1, SEGMENT, SEGMENT + 1, 0, 5 * SEGMENT + 7, 1, 2 * SEGMENT, 0]


def plain(x: Tensor, decay: Decay, index: Tensor, direction: int) -> Tensor:
    """The sums by doubling."""
    weights = torch.ones_like(x) if decay is None else torch.as_tensor(decay, dtype=x.dtype).expand(len(x))
    for power in range(len(x).bit_length()):
        step = direction * 2**power
        x, weights = x + weights * shifted(x, index, step), weights * shifted(weights, index, step)
    return x


def shifted(x: Tensor, index: Tensor, step: int) -> Tensor:
    """x[t + step], 0 where that is not in the row."""
    place = torch.arange(len(x)) + step
    inside = (place >= 0) & (place < len(x))
    place = place.clamp(0, max(0, len(x) - 1))
    return torch.where(inside & (index[place] == index), x[place], 0) if len(x) else x


def drawn(lengths: list[int], dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Entries, a decay of each, and their rows."""
    index = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths, dtype=torch.int64))
    generator = torch.Generator().manual_seed(sum(lengths))
    x = torch.randn(len(index), generator=generator, dtype=dtype)
    return x, torch.rand(len(index), generator=generator, dtype=dtype) * 1.1, index


@pytest.mark.parametrize("lengths", [LENGTHS, [], [0, 0], [1], [1] * 9, [700]])
@pytest.mark.parametrize("direction", [1, -1])
def test_sums_are_those_of_the_plain_form(lengths: list[int], direction: int) -> None:
    x, decays, index = drawn(lengths)
    for decay in (None, 0.0, 1.0, 0.95, torch.tensor(0.99, dtype=x.dtype), decays):
        found, expected = decayed_sums(x, decay, index, direction), plain(x, decay, index, direction)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert neighbours(x, index, direction).tolist() == shifted(x, index, direction).tolist()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_row_has_the_same_bits_beside_any_others(dtype: torch.dtype) -> None:
    x, decays, index = drawn(LENGTHS, dtype)
    for decay in (None, 0.95, decays):
        for direction in (1, -1):
            whole = decayed_sums(x, decay, index, direction)
            for row in range(len(LENGTHS)):
                of_row = index == row
                alone = decay[of_row] if isinstance(decay, Tensor) else decay
                found = decayed_sums(x[of_row], alone, torch.zeros_like(index[of_row]), direction)
                assert torch.equal(found, whole[of_row])


def test_whole_numbers_stay_exact() -> None:
    index = torch.zeros(3 * SEGMENT, dtype=torch.int64)
    x = torch.full_like(index, 2**53 + 1)
    assert torch.equal(decayed_sums(x, None, index, -1), x.cumsum(0))


def test_gradients_across_segments() -> None:
    x, decays, index = drawn([SEGMENT + 2, 1, 0, 3])
    for decay in (torch.tensor(0.9, dtype=x.dtype), decays):
        found: list[Tensor | None] = []
        expected: list[Tensor | None] = []
        for function, into in ((decayed_sums, found), (plain, expected)):
            leaves = [x.clone().requires_grad_(), decay.clone().requires_grad_()]
            (function(leaves[0], leaves[1], index, 1) ** 2).sum().backward()
            into += [leaf.grad for leaf in leaves]
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_a_decay_whose_power_is_infinite() -> None:
    x, _, index = drawn([SEGMENT + 1])
    found = decayed_sums(x, 1e10, index, 1)
    assert found[-1] == x[-1] and not found[0].isfinite()
