"""Products of float32 layers on a CPU, by MKL where that is wide and by oneDNN."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rlgraph.backends.engines.transformers import linear

ROWS, INPUTS, OUTPUTS = 40, 192, 288


def layers(bias: bool) -> tuple[nn.Linear, nn.Linear]:
    """A layer as torch has it, and the same one with other products."""
    torch.manual_seed(1)
    plain, changed = nn.Linear(INPUTS, OUTPUTS, bias), nn.Linear(INPUTS, OUTPUTS, bias)
    changed.load_state_dict(plain.state_dict())
    if not linear.use_onednn_linears(nn.Sequential(changed)):
        pytest.skip("torch has no oneDNN here")
    return plain, changed


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("outputs_first", [False, True])
def test_gradients_are_those_of_torch_and_lie_as_weights_do(
    monkeypatch: pytest.MonkeyPatch, wide: bool, bias: bool, outputs_first: bool
) -> None:
    """Otherwise autograd copies them, which takes as long as half of the product."""
    monkeypatch.setattr(linear, "MKL_IS_WIDE", wide)
    monkeypatch.setattr(linear, "_WORTH", 0)
    plain, changed = layers(bias)
    x = torch.randn(ROWS, INPUTS, requires_grad=True)
    toward = torch.randn(ROWS, OUTPUTS)
    if outputs_first:
        # What comes back may lie the other way round.
        toward = toward.t().contiguous().t()
    results = []
    for layer in (plain, changed):
        results.append(torch.autograd.grad(layer(x), [x, *layer.parameters()], toward))
    assert type(changed) is not nn.Linear
    for theirs, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
        assert ours.is_contiguous()
