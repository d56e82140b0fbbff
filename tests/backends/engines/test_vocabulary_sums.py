"""Sums over the vocabulary beside plain softmax, in double precision, and of logits that no plain formula survives."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from rlgraph.backends.engines import likeliest
from rlgraph.backends.engines import vocabulary_sums as module
from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.engines.vocabulary_sums import vocabulary_sums

Plain = Callable[[Tensor, Tensor], Tensor]

FORMULAS: dict[str, Plain] = {
    "p0 * log(p0 / p1)": lambda p, q: p * (p / q).log(),
    "p1 * log(p1 / p0)": lambda p, q: q * (q / p).log(),
    "0.3 * p1 * log(p1 / (0.3 * p1 + (1 - 0.3) * p0)) + (1 - 0.3) * p0 * log(p0 / (0.3 * p1 + (1 - 0.3) * p0))": (
        lambda p, q: 0.3 * q * (q / (0.3 * q + 0.7 * p)).log() + 0.7 * p * (p / (0.3 * q + 0.7 * p)).log()
    ),
    "p0 ** 2": lambda p, q: p**2,
    "-p0 * log(p0)": lambda p, q: -p * p.log(),
    "sqrt(p0 * p1)": lambda p, q: (p * q).sqrt(),
    "p0 * detach(log(p0))": lambda p, q: p * p.log().detach(),
    "where(p1 > 0.01, p1 * log(p1 / p0), 0.0)": lambda p, q: torch.where(q > 0.01, q * (q / p).log(), 0.0),
    "abs(p0 - p1)": lambda p, q: (p - q).abs(),
    "maximum(p0 - 0.01, 0.0)": lambda p, q: (p - 0.01).clamp(min=0),
    "p0 * log(exp(p0) * p1)": lambda p, q: p * (p + q.log()),
    "1.0": lambda p, q: torch.ones_like(p),
    "p1": lambda p, q: q,
}


@pytest.fixture(autouse=True)
def tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several of them, of two rows each, the last ones narrower and lower."""
    monkeypatch.setattr(module, "_COLUMNS", 64)
    monkeypatch.setattr(module, "_CACHED", 128)


def logits(scale: float, dtype: torch.dtype = torch.float64, rows: int = 5) -> Tensor:
    return scale * torch.randn(rows, 300, generator=torch.Generator().manual_seed(int(scale)), dtype=dtype)


def of_both(sums: Sequence[Tensor], weights: Tensor, models: Sequence[Tensor]) -> Sequence[Tensor | None]:
    return torch.autograd.grad((torch.stack(list(sums)) * weights).sum(), models, allow_unused=True)


def test_sums_and_gradients() -> None:
    a, b = logits(3).requires_grad_(), logits(4).requires_grad_()
    weights = torch.randn(len(FORMULAS), 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    sums = vocabulary_sums(list(FORMULAS), [a, b])
    plain = [formula(a.softmax(-1), b.softmax(-1)).sum(1) for formula in FORMULAS.values()]
    torch.testing.assert_close(torch.stack(list(sums)), torch.stack(plain), rtol=1e-12, atol=1e-12)
    for found, right in zip(of_both(sums, weights, [a, b]), of_both(plain, weights, [a, b]), strict=True):
        assert found is not None and right is not None
        torch.testing.assert_close(found, right, rtol=1e-12, atol=1e-12)


def largest(values: Tensor) -> Tensor:
    return values.max(1).values


@pytest.mark.parametrize("scale", [3, 400])
def test_means_largest_values_and_numbers_of_rows(scale: float) -> None:
    a, b = logits(scale).requires_grad_(), logits(scale + 1).requires_grad_()
    x, y = (torch.linspace(-1, stop, 5, dtype=torch.float64)[:, None] for stop in (1, 4))
    p, q = a.softmax(-1), b.softmax(-1)
    asked = {
        ("x2 * p0 * log(p0)", "sum"): (x * p * a.log_softmax(-1)).sum(1),
        ("p0 - x3 * p1", "max"): largest(p - y * q),
        ("-(x2 * p1)", "max"): largest(-(x * q)),
        ("exp(x3) * p1", "mean"): (y.exp() * q).mean(1),
        ("where(x2, p0, p1) / x3", "max"): largest(torch.where(x != 0, p, q) / y),
        ("clip(x2, -0.5, 0.5) * p0 ** 2", "mean"): (x.clamp(-0.5, 0.5) * p**2).mean(1),
    }
    found = module.reduce_vocabulary(list(asked), [a, b], kept=[x, y])
    weights = torch.randn(len(asked), 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    plain = list(asked.values())
    torch.testing.assert_close(torch.stack(found), torch.stack(plain), rtol=1e-12, atol=1e-12)
    for mine, right in zip(of_both(found, weights, [a, b]), of_both(plain, weights, [a, b]), strict=True):
        assert mine is not None and right is not None
        torch.testing.assert_close(mine, right, rtol=1e-10, atol=1e-12)


def test_of_equal_values_the_first_has_the_gradient() -> None:
    a = torch.zeros(2, 300, dtype=torch.float64, requires_grad=True)
    [found] = module.reduce_vocabulary([("p0", "max")], [a])
    [gradient] = torch.autograd.grad(found.sum(), [a])
    assert gradient[:, 0].gt(0).all() and gradient[:, 1:].lt(0).all()


def test_probabilities_that_are_too_small_for_a_number() -> None:
    """Of float32 most of these are 0, and so are the mixtures of two."""
    a, b = logits(400, torch.float32).requires_grad_(), logits(300, torch.float32)
    assert (a.softmax(-1) == 0).float().mean() > 0.9
    sums = vocabulary_sums(list(FORMULAS), [a, b])
    [gradient] = of_both(sums, torch.ones(len(FORMULAS), 5), [a])
    assert gradient is not None and bool(gradient.isfinite().all())
    wide = vocabulary_sums(list(FORMULAS), [a.double(), b.double()])
    torch.testing.assert_close(torch.stack(list(sums)).double(), torch.stack(list(wide)), rtol=1e-4, atol=1e-4)


def test_no_rows() -> None:
    a = logits(3)[:0].requires_grad_()
    [found] = vocabulary_sums(["p0 ** 2"], [a])
    assert found.shape == (0,)
    found.sum().backward()


def test_vocabularies_of_two_sizes() -> None:
    with pytest.raises(EngineError, match="these have 300 and 299"):
        vocabulary_sums(["p0 * p1"], [logits(3), logits(3)[:, 1:]])


@pytest.mark.parametrize("beta", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_trls_loss_of_gkd(beta: float, temperature: float) -> None:
    gkd = pytest.importorskip("trl.experimental.gkd")
    student, teacher = logits(3, rows=12).requires_grad_(), logits(4, rows=12)
    labels = torch.tensor([-100, 1, 1, -100, 1, 1, 1, 1, -100, 1, 1, 1]).view(3, 4)
    theirs = gkd.GKDTrainer.generalized_jsd_loss(
        student.view(3, 4, -1), teacher.view(3, 4, -1), labels=labels, beta=beta, temperature=temperature
    )
    mask = labels.flatten() != -100
    m = f"({beta} * p1 + (1 - {beta}) * p0)"
    formula = f"{beta} * p1 * log(p1 / {m}) + (1 - {beta}) * p0 * log(p0 / {m})"
    [sums] = vocabulary_sums([formula], [student[mask] / temperature, teacher[mask] / temperature])
    torch.testing.assert_close(sums.mean(), theirs, rtol=1e-12, atol=1e-12)
    [found], [right] = (torch.autograd.grad(loss, [student]) for loss in (sums.mean(), theirs))
    torch.testing.assert_close(found, right, rtol=1e-12, atol=1e-12)


def test_the_largest_are_those_of_a_stable_sort() -> None:
    """Also where several are equal, at the end of those that are kept and among them."""
    for levels in (3, 50, 10**6):
        drawn = torch.randint(levels, (40, 60), generator=torch.Generator().manual_seed(levels)).double()
        for count in (1, 7, 59, 60, 64):
            found, ids = likeliest._largest(drawn, torch.arange(100, 160), count)
            values, columns = drawn.sort(dim=1, descending=True, stable=True)
            assert torch.equal(found[:, :60], values[:, :count]) and torch.equal(ids[:, :60], columns[:, :count] + 100)
