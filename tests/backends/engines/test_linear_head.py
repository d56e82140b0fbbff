"""Log-probabilities, entropies and gradients of a head that is computed in tiles, against those of all its logits in
float64."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.head import Bytes
from rlgraph.backends.engines.linear_head import PLAIN_PRODUCTS, Products, linear_logprobs
from rlgraph.backends.engines.transformers import linear
from rlgraph.backends.enginespec.memory import HeadTiles

ROWS, HIDDEN, VOCAB = 17, 16, 301
ALL, NONE = HeadTiles(kept=10**9, rows=5, columns=40, cached=80), HeadTiles(kept=0, rows=5, columns=40, cached=80)
SOME = HeadTiles(kept=2000, rows=100, columns=53, cached=80)
ROUNDING = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 1e-2}


class Head:
    """A head, rows before it, and the gradients of what is asked of it."""

    def __init__(self, dtype: torch.dtype, spread: float = 1.0, shift: float = 0.0) -> None:
        """spread: how far logits lie apart. shift: is added to all of them, but for rounding."""
        drawn = torch.Generator().manual_seed(0)
        hidden = torch.randn(ROWS, HIDDEN, generator=drawn)
        weight = torch.randn(VOCAB, HIDDEN, generator=drawn) * spread / HIDDEN**0.5
        if shift:
            hidden[:, 0], weight[:, 0] = 8, shift / 8
        self.hidden, self.weight = hidden.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_()
        self.tokens = torch.randint(0, VOCAB, (ROWS,), generator=drawn)
        self.to_logprob, self.to_entropy = torch.randn(2, ROWS, generator=drawn).double()

    def exact(self, temperature: float) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies in float64, of logits that are rounded to the model's dtype if it is
        narrow."""
        logits = self.hidden.double() @ self.weight.double().t()
        if self.hidden.dtype == torch.bfloat16:
            logits = logits + ((self.hidden @ self.weight.t()).double() - logits).detach()
        logp = (logits / temperature).log_softmax(1)
        return logp.gather(1, self.tokens[:, None])[:, 0], -(logp.exp() * logp).sum(1)

    def gradients(self, logprobs: Tensor, entropies: Tensor | None) -> list[Tensor]:
        loss = (logprobs * self.to_logprob).sum()
        if entropies is not None:
            loss = loss + (entropies * self.to_entropy).sum()
        leaves = [leaf for leaf in (self.hidden, self.weight) if leaf.requires_grad]
        return [gradient.double() for gradient in torch.autograd.grad(loss, leaves)]

    def compare(
        self,
        tiles: HeadTiles,
        temperature: float,
        entropy: bool,
        slope: bool,
        products: Products = PLAIN_PRODUCTS,
    ) -> None:
        """entropy: it is asked for. slope: it has a gradient, too."""
        rounding = ROUNDING[self.hidden.dtype]
        results = linear_logprobs(self.hidden, self.weight, self.tokens, temperature, tiles, entropy, products=products)
        expected = self.exact(temperature)
        rtol, atol = (1e-6, 1e-5) if self.hidden.dtype == torch.float32 else (0.0, rounding)
        for ours, exact in list(zip(results, expected, strict=True))[: 1 + entropy]:
            torch.testing.assert_close(ours.double(), exact, rtol=rtol, atol=atol)
        gradients = self.gradients(results[0], results[1] if slope else None)
        wanted = self.gradients(expected[0], expected[1] if slope else None)
        for one, other in zip(gradients, wanted, strict=True):
            assert float((one - other).norm() / other.norm()) < rounding


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("tiles", [ALL, SOME, NONE], ids=["all kept", "some kept", "none kept"])
def test_tiles_give_what_all_logits_give(dtype: torch.dtype, tiles: HeadTiles) -> None:
    for temperature, (entropy, slope) in product([1.0, 0.7], [(False, False), (True, False), (True, True)]):
        Head(dtype).compare(tiles, temperature, entropy, slope)


@pytest.mark.parametrize("wide", [True, False], ids=["gradients by MKL", "all by oneDNN"])
@pytest.mark.parametrize("tiles", [ALL, SOME, NONE], ids=["all kept", "some kept", "none kept"])
def test_products_of_float32_give_the_same(monkeypatch: pytest.MonkeyPatch, tiles: HeadTiles, wide: bool) -> None:
    if not linear.use_onednn_linears(torch.nn.Sequential(torch.nn.Linear(2, 2))):
        pytest.skip("torch has no oneDNN here")
    monkeypatch.setattr(linear, "MKL_IS_WIDE", wide)
    for temperature, (entropy, slope) in product([1.0, 0.7], [(False, False), (True, False), (True, True)]):
        Head(torch.float32).compare(tiles, temperature, entropy, slope, linear.head_products())


@pytest.mark.parametrize("tiles", [ALL, NONE], ids=["all kept", "none kept"])
@pytest.mark.parametrize("shift", [-400.0, 60.0, 400.0])
def test_logits_whose_exponentials_have_no_room(tiles: HeadTiles, shift: float) -> None:
    for entropy in (False, True):
        Head(torch.float64, shift=shift).compare(tiles, 1.0, entropy, entropy)


def test_a_large_logit_that_a_few_others_do_not_tell() -> None:
    """Its exponential is infinite: the row's largest logit is taken off, in a second pass."""
    head = Head(torch.float32)
    with torch.no_grad():
        head.weight[-1] = 40 * head.hidden[3]
    assert (head.hidden[3] @ head.weight[-1]).item() > 200
    head.compare(SOME, 1.0, True, True)


@pytest.mark.parametrize("tiles", [SOME, NONE], ids=["some kept", "none kept"])
@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
def test_a_row_is_the_same_to_the_bit_beside_any_others(dtype: torch.dtype, tiles: HeadTiles) -> None:
    """Beside rows whose exponentials have no room at first, too, and whether or not an entropy is asked for. Products
    are exact here in whatever order a processor adds them up: they are of multiples of a quarter."""
    head = Head(dtype)
    with torch.no_grad():
        for values in (head.hidden, head.weight):
            values.copy_((values * 4).round() / 4)
        head.hidden[4] *= 8
        head.hidden[7] *= 32

    def results(rows: list[int], entropy: bool = True) -> tuple[Tensor, Tensor]:
        return linear_logprobs(head.hidden[rows], head.weight, head.tokens[rows], 1.0, tiles, entropy)

    together = results(list(range(ROWS)))
    for rows in ([0], [1, 2], [4, 5], list(range(6, ROWS)), [12, 3, 8]):
        for ours, expected in zip(results(rows), together, strict=True):
            assert torch.equal(ours, expected[rows])
        assert torch.equal(results(rows, entropy=False)[0], together[0][rows])


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
def test_weights_that_are_not_trained(dtype: torch.dtype) -> None:
    """Their gradient is not asked for, and the forward pass has that of the hidden states but for factors."""
    for entropy, slope in ((False, False), (True, False), (True, True)):
        head = Head(dtype)
        head.weight.requires_grad_(False)
        head.compare(NONE, 0.7, entropy, slope)


def test_a_sure_token_of_a_narrow_model_has_an_exact_gradient() -> None:
    """Of a token of probability 0.999 the gradient is 0.001: rounded as an exponential it would be 0, or four times
    as much."""
    head = Head(torch.bfloat16)
    with torch.no_grad():
        head.weight[head.tokens] += 0.75 * head.hidden
    logprobs = linear_logprobs(head.hidden, head.weight, head.tokens, 1.0, ALL)[0]
    assert logprobs.exp().max() > 0.99
    [ours, _], [exact, _] = head.gradients(logprobs, None), head.gradients(head.exact(1.0)[0], None)
    sure = logprobs > -0.01
    assert float((ours[sure] - exact[sure]).norm() / exact[sure].norm()) < 0.02


class SeenProducts(TorchDispatchMode):
    """Counts matrix products of the size of a tile's."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counted: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._overloadpacket.__name__ in ("mm", "addmm_"):
            self.counted["products"] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("tiles, trained, most", [(ALL, True, 3), (NONE, True, 4), (NONE, False, 2)])
def test_what_stays_is_not_computed_again(tiles: HeadTiles, trained: bool, most: int) -> None:
    head = Head(torch.float32)
    head.weight.requires_grad_(trained)
    with SeenProducts() as products:
        head.gradients(linear_logprobs(head.hidden, head.weight, head.tokens, 1.0, tiles)[0], None)
    high, width = tiles.shape(ROWS, VOCAB, True)
    # And once, for all rows, the logits of a few tokens.
    assert products.counted["products"] == (1 + most * -(-VOCAB // width)) * -(-ROWS // high)


def test_a_logit_has_twelve_bytes_read_and_written_apart_from_products() -> None:
    """An exponential is read and written, and read to be added up; 8 more where it is computed again."""
    rows, vocab = 64, 4096
    hidden, weight = torch.randn(rows, 8, requires_grad=True), torch.randn(vocab, 8, requires_grad=True)
    tokens = torch.arange(rows)
    for kept, most in ((rows * vocab, 12), (0, 20)):
        tiles = HeadTiles(kept=kept, columns=vocab, cached=rows * vocab)
        with Bytes(least=rows * vocab) as moved:
            linear_logprobs(hidden, weight, tokens, 1.0, tiles)[0].sum().backward()
        assert moved.elsewhere / (rows * vocab) == most
