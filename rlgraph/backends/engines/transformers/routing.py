"""Records which experts the routers of a model choose, and makes them choose recorded ones again.

What replays a token's experts is R3 of arXiv 2510.11370: the experts are those that were chosen when the token was
sampled, and their gates are computed from the present logits of these, so that gradients flow through them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

LastRoutes: TypeAlias = Callable[[], Tensor]
"""Returns the experts of the tokens of the last pass, int16 [T, layers, k]."""

_ENDINGS = ("TopKRouter", "TopkRouter")
"""How transformers names modules that return logits, gates and experts of each token."""


def _softmax_of_all(logits: Tensor, chosen: Tensor) -> Tensor:
    return logits.softmax(-1).gather(1, chosen)


def _softmax_of_chosen(logits: Tensor, chosen: Tensor) -> Tensor:
    return logits.gather(1, chosen).softmax(-1)


def _sigmoid(logits: Tensor, chosen: Tensor) -> Tensor:
    return logits.sigmoid().gather(1, chosen)


def _normalized_sigmoid(logits: Tensor, chosen: Tensor) -> Tensor:
    shares = _sigmoid(logits, chosen)
    return shares / (shares.sum(-1, keepdim=True) + 1e-20)


_GATES: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    _softmax_of_chosen,
    _softmax_of_all,
    _normalized_sigmoid,
    _sigmoid,
)
"""From logits, [T, experts], and the experts of each token, int64 [T, k], to their gates, [T, k]."""


class Routing:
    """The routers of a model, in the order of its layers. Threads that compute with the model side by side have their
    own tokens."""

    def __init__(self, routers: list[nn.Module], gates: list[tuple[Callable[[Tensor, Tensor], Tensor], float]]) -> None:
        self._gates = gates
        self._thread = threading.local()
        for layer, router in enumerate(routers):
            router.register_forward_hook(self._hook(layer))

    def __deepcopy__(self, memo: object) -> Routing:
        # A copied model gets routing of its own where it is opened.
        return self

    @contextmanager
    def recording(self) -> Iterator[LastRoutes]:
        """Record what routers choose while the context lasts."""
        chosen: dict[int, Tensor] = {}
        self._thread.recorded = chosen
        try:
            yield lambda: torch.stack([chosen[layer] for layer in range(len(self._gates))], 1).cpu()
        finally:
            self._thread.recorded = None

    @contextmanager
    def replaying(self, routes: Tensor) -> Iterator[None]:
        """Make routers choose these experts, int16 [T, layers, k], which are on their device; -1: routers choose."""
        self._thread.replayed = routes
        try:
            yield
        finally:
            self._thread.replayed = None

    def contexts_of_pass(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Return the contexts of a layer's forward pass and of the one that is computed again for its gradient."""
        routes = self.replayed
        return nullcontext(), nullcontext() if routes is None else self.replaying(routes)

    @property
    def replayed(self) -> Tensor | None:
        """The routes that are replayed in this thread."""
        routes: Tensor | None = getattr(self._thread, "replayed", None)
        return routes

    def _hook(self, layer: int) -> Callable[..., Any]:
        gate, scale = self._gates[layer]

        def hook(module: nn.Module, arguments: Any, output: tuple[Tensor, Tensor, Tensor]) -> Any:
            logits, gates, chosen = output
            recorded = getattr(self._thread, "recorded", None)
            if recorded is not None:
                recorded[layer] = chosen.to(torch.int16)
            routes = self.replayed
            if routes is None:
                return output
            given = routes[:, layer].to(chosen.dtype)
            known = given[:, :1] >= 0
            taken = torch.where(known, given, chosen)
            wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
            replayed = (gate(wide, taken) * scale).to(gates.dtype)
            return logits, torch.where(known, replayed, gates), taken

        return hook


def find_routing(model: nn.Module) -> Routing | None:
    """Return the routers of a model; None where it has none, or how one comes from logits to gates is not known, which
    is tried on a few tokens."""
    routers = [module for module in model.modules() if type(module).__name__.endswith(_ENDINGS)]
    gates = [_gate(router) for router in routers]
    known = [gate for gate in gates if gate is not None]
    return Routing(routers, known) if routers and len(known) == len(routers) else None


@torch.no_grad()
def _gate(router: nn.Module) -> tuple[Callable[[Tensor, Tensor], Tensor], float] | None:
    """Return how a router comes from logits to the gates of chosen experts, and what these are multiplied by."""
    weight = getattr(router, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() != 2:
        return None
    # As large as hidden states behind a norm, and the same in any process.
    tokens = torch.linspace(-1.7, 1.7, 7 * weight.shape[1]).sin().view(7, -1).roll(3, 1)
    try:
        logits, gates, chosen = router(tokens.to(weight.device, weight.dtype))
    except Exception:
        return None
    scale = float(getattr(router, "routed_scaling_factor", 1.0))
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    rounding = 32 * max(torch.finfo(gates.dtype).eps, torch.finfo(torch.float32).eps)
    for gate in _GATES:
        computed = gate(wide, chosen) * scale
        if computed.shape == gates.shape and bool((computed - gates).abs().max() <= rounding * scale):
            return gate, scale
    return None
