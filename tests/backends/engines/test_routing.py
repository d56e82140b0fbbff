"""The experts of sampled tokens are chosen again, with gates of the present logits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from rlgraph.backends.engines.errors import EngineError, NoRoutes
from rlgraph.backends.engines.records import Generation, Sampling
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.engines.transformers.engine import TransformersEngine
from rlgraph.backends.engines.transformers.routing import find_routing
from rlgraph.backends.ray.piece_store import from_sendable, to_sendable
from rlgraph.backends.rows import TableData
from tests.backends.engines import models

FAMILIES = ("mixtral", "qwen3_moe", "qwen2_moe", "deepseek_v3")


def sampled(engine: TransformersEngine, keeps: bool = True) -> Generation:
    prompts = Sequences.from_lists([[5, 6, 7, 8], [9, 10], [11, 12, 13]])
    sampling = Sampling(9, keeps_routes=keeps)
    return engine.generate(prompts, 2, sampling, np.arange(6, dtype=np.uint64))


def shifted(engine: TransformersEngine, tied: bool, seed: int) -> None:
    """Move the routers by a little, and nothing else. tied: first make all experts nearly as likely as each other."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in engine.model.modules():
            if type(module).__name__.lower().endswith("topkrouter"):
                weight = module.get_parameter("weight")
                if tied:
                    weight.copy_(weight[:1].expand_as(weight))
                weight.add_(1e-4 * torch.randn(weight.shape, generator=generator, dtype=torch.float64))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_weights_give_the_same(family: str) -> None:
    engine = models.engine(family)
    made = sampled(engine)
    routes = made.sequences.routes
    assert routes is not None and routes.dtype == torch.int16
    assert routes.shape[0] == made.sequences.tokens.shape[0] and routes.shape[2] == 2
    # A row's last token is not read: nothing follows it.
    last = made.sequences.row_starts + made.sequences.lengths - 1
    assert bool((routes[last] == -1).all())
    others = torch.ones(routes.shape[0], dtype=torch.bool)
    others[last] = False
    assert bool((routes[others] >= 0).all())
    plain = sampled(engine, keeps=False)
    assert plain.sequences.routes is None and plain.sequences.tokens.equal(made.sequences.tokens)
    free = engine.logprobs(replace(made.sequences, routes=None))
    assert torch.allclose(engine.logprobs(made.sequences), free, atol=1e-6)
    assert torch.allclose(made.logprobs.to(free), free, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_with_other_routers_it_is_nearer(family: str) -> None:
    """k3 of Schulman's estimators, between sampler and trainer."""
    engine = models.engine(family)
    shifted(engine, True, 1)
    made = sampled(engine)
    shifted(engine, False, 2)
    kl = []
    for sequences in (replace(made.sequences, routes=None), made.sequences):
        gap = engine.logprobs(sequences).detach() - made.logprobs
        kl.append(float((gap.expm1() - gap).mean()))
    assert kl[0] > 1e-4 and kl[1] < 1e-3 * kl[0]


def test_gates_by_hand() -> None:
    """softmax over the recorded experts of the present logits, whose gradient reaches the router."""
    engine = models.engine("mixtral")
    router = next(module for module in engine.model.modules() if type(module).__name__ == "MixtralTopKRouter")
    routing = engine._network.routing
    assert routing is not None
    x = torch.randn(5, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    chosen = torch.tensor([[0, 1], [3, 2], [2, 0], [-1, -1], [1, 3]], dtype=torch.int16)
    with routing.replaying(torch.stack([chosen, chosen], 1)):
        _, gates, ids = router(x)
    _, free_gates, free_ids = router(x)
    assert ids[3].equal(free_ids[3]) and gates[3].equal(free_gates[3])
    known = [0, 1, 2, 4]
    assert ids[known].equal(chosen[known].long())
    weight = router.get_parameter("weight")
    logits = x @ weight.detach().t()
    pairs = logits.gather(1, chosen.long().clamp(min=0)).exp()
    expected = pairs / pairs.sum(1, keepdim=True)
    assert torch.allclose(gates[known].double(), expected[known], atol=1e-6)
    [gradient] = torch.autograd.grad(gates[0, 0], weight)
    slope = expected[0, 0] * expected[0, 1]
    assert torch.allclose(gradient[0], slope * x[0], atol=1e-6)
    assert torch.allclose(gradient[1], -slope * x[0], atol=1e-6) and not gradient[2:].any()


@pytest.mark.parametrize("threads", [1, 2])
def test_gradients_are_of_the_recorded_experts(threads: int) -> None:
    """With layers that are computed again, too; experts that no token had get no gradient."""
    gradients = []
    for recompute in (False, True):
        engine = models.engine("qwen3_moe", threads=threads, recompute=recompute)
        rows = sampled(engine).sequences
        assert rows.routes is not None
        # All tokens have the first two experts.
        rows = replace(rows, routes=torch.tensor([0, 1], dtype=torch.int16).expand_as(rows.routes).contiguous())
        with torch.enable_grad():
            loss = engine.logprobs(rows).sum()
        weights = {name: weight for name, weight in engine.model.named_parameters() if "experts" in name}
        got = torch.autograd.grad(loss, list(weights.values()))
        assert all(bool(gradient[:2].any()) and not bool(gradient[2:].any()) for gradient in got)
        gradients.append(got)
    assert all(torch.allclose(one, other) for one, other in zip(*gradients, strict=True))


def test_routes_stay_with_their_tokens() -> None:
    rows = sampled(models.engine("mixtral")).sequences
    assert rows.routes is not None
    for made in (
        rows.take(torch.tensor([3, 0])),
        Sequences.concat([rows.take(torch.tensor([3])), rows.take(torch.tensor([0]))]),
    ):
        expected = torch.cat([rows.routes.split(rows.lengths.tolist())[row] for row in (3, 0)])
        assert made.routes is not None and made.routes.equal(expected)
    cut = rows.truncate(torch.full_like(rows.lengths, 2))
    assert cut.routes is not None and cut.routes.shape[0] == 2 * len(rows)
    plain = Sequences.from_lists([[1, 2]])
    mixed = Sequences.concat([plain, rows])
    assert mixed.routes is not None and bool((mixed.routes[:2] == -1).all()) and mixed.routes[2:].equal(rows.routes)
    table = TableData(({},) * len(rows), (), rows)
    sent = from_sendable(to_sendable(table)).sequences
    assert sent.routes.equal(rows.routes)
    assert from_sendable(to_sendable(replace(table, sequences=plain))).sequences.routes is None


def test_a_dense_model_is_refused() -> None:
    engine = models.engine("qwen2")
    assert find_routing(engine.model) is None
    with pytest.raises(NoRoutes, match="no routers of experts"):
        sampled(engine)
    rows = Sequences.from_pairs([[5]], [[6]])
    with pytest.raises(EngineError, match="no routers of experts"):
        engine.logprobs(replace(rows, routes=torch.zeros(2, 2, 2, dtype=torch.int16)))
