"""The optimizer of transformers models: narrow weights are updated a few at a time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from rlgraph.backends.engines import optimizer
from rlgraph.backends.engines.errors import NonFiniteGradient
from rlgraph.backends.engines.offload import MemoryCounter
from rlgraph.backends.engines.optimizer import Optimizer
from rlgraph.backends.engines.records import TrainOptions

OPTIONS = TrainOptions(lr=0.1, clip_norm=1.0)
SHAPES = ((5, 3), (4,), (2, 2, 3), (7, 1))


class Counted(Optimizer):
    """Counts the weights that are updated together."""

    def __init__(self, parameters: dict[str, torch.Tensor]) -> None:
        super().__init__(parameters)
        self.together: list[int] = []

    def _update(
        self, torchs: torch.optim.Optimizer, some: Sequence[int], gradients: Sequence[torch.Tensor | None], by: float
    ) -> None:
        self.together.append(len(some))
        super()._update(torchs, some, gradients, by)


def weights(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {str(at): torch.nn.Parameter(torch.randn(shape).to(dtype)) for at, shape in enumerate(SHAPES)}


def steps(dtype: torch.dtype) -> tuple[dict[str, torch.Tensor], list[float], list[int]]:
    """The weights after three updates, the second one without a gradient of the second weight, the norms, and how many
    were updated together."""
    found = weights(dtype)
    made, norms = Counted(found), []
    for step in range(3):
        gradients: list[torch.Tensor | None] = [torch.randn(shape).to(dtype) for shape in SHAPES]
        if step == 1:
            gradients[1] = None
        norms.append(made.step(gradients, OPTIONS, step)["grad_norm"])
    return found, norms, made.together


def test_narrow_weights_are_updated_a_few_at_a_time_to_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, norms, together = steps(torch.bfloat16)
    assert together == [4, 4, 4] and all(norm > 1 for norm in norms), "nothing is clipped"
    monkeypatch.setattr(optimizer, "UPDATED_TOGETHER_BYTES", 4 * 20)
    some, same, apart = steps(torch.bfloat16)
    assert apart == [2, 2] * 3 and same == norms
    assert all(torch.equal(whole[name], some[name]) for name in whole)
    _, _, wide = steps(torch.float32)
    assert wide == [4, 4, 4]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gradient_that_is_not_finite_changes_nothing(dtype: torch.dtype) -> None:
    found, before = weights(dtype), weights(dtype)
    gradients: list[torch.Tensor | None] = [torch.ones(shape, dtype=dtype) for shape in SHAPES]
    gradients[0], gradients[2] = None, torch.full(SHAPES[2], float("nan"), dtype=dtype)
    with pytest.raises(NonFiniteGradient, match="the gradient of 2 is not finite"):
        Optimizer(found).step(gradients, OPTIONS, 0)
    assert all(torch.equal(found[name], before[name]) for name in found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_state_on_the_host_makes_the_same_steps_and_is_counted_there(dtype: torch.dtype) -> None:
    found, (expected, norms, _) = weights(dtype), steps(dtype)
    counter, numbers = MemoryCounter(), sum(weight.numel() for weight in found.values())
    torch.manual_seed(0)
    weights(dtype)
    made, same = Optimizer(found, host=counter), []
    for step in range(3):
        gradients: list[torch.Tensor | None] = [torch.randn(shape).to(dtype) for shape in SHAPES]
        if step == 1:
            gradients[1] = None
        same.append(made.step(gradients, OPTIONS, step)["grad_norm"])
    assert same == norms and all(torch.equal(expected[name], found[name]) for name in found)
    # Two moments, and the wide copy of what is narrow; weights that are wide and on a CPU are their own copy.
    assert counter.bytes == numbers * (12 if dtype == torch.bfloat16 else 8)
    kept = {id(tensor) for tensor in made.state_tensors() if tensor.dim()}
    assert len(kept) == len(SHAPES) * (3 if dtype == torch.bfloat16 else 2)
    made.forget_host_bytes()
    assert counter.bytes == 0
