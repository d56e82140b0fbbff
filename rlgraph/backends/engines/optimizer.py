"""Updates the weights that are trained with a gradient."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rlgraph.backends.engines.errors import NonFiniteGradient, PartialUpdate
from rlgraph.backends.engines.moments import MASTER
from rlgraph.backends.engines.offload import MemoryCounter
from rlgraph.backends.engines.records import TrainOptions
from rlgraph.ops.optimizers import UPDATED_TOGETHER_BYTES


def adamw_settings(options: TrainOptions) -> dict[str, Any]:
    """Return the settings of AdamW as torch calls them."""
    betas = options.optimizer_setting("beta1"), options.optimizer_setting("beta2")
    return {
        "weight_decay": options.optimizer_setting("weight_decay"),
        "betas": betas,
        "eps": options.optimizer_setting("eps"),
    }


TORCH: Mapping[str, tuple[Callable[..., torch.optim.Optimizer], Callable[[TrainOptions], dict[str, Any]]]] = {
    "adamw": (torch.optim.AdamW, adamw_settings),
}
"""By an optimizer's name: torch's class, and a function that returns its settings as torch calls them."""


STEP = "step"
"""Torch's word for how many updates a parameter has had."""


class Optimizer:
    """Makes the optimizer's steps of parameters; narrow ones are updated through float32 copies, so that small steps
    are not lost."""

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        reduce_sum: Callable[[Tensor], Tensor] | None = None,
        replicated: Collection[str] = (),
        replicas: int = 1,
        host: MemoryCounter | None = None,
    ) -> None:
        """parameters: by name those that are trained, or this rank's parts of them; others, which have no gradient,
        would decay. reduce_sum: sums numbers over the ranks that have the other parts. replicated: names of those
        that several of these ranks have; replicas: how many have them. host: counts the bytes of what it keeps in the
        host's memory, where processors then make its steps; None: it keeps all on the device."""
        self._names, self._parameters = list(parameters), list(parameters.values())
        self._sum, self._replicated, self._replicas = reduce_sum, replicated, replicas
        narrow = any(parameter.dtype in (torch.bfloat16, torch.float16) for parameter in self._parameters)
        self._host, self._host_bytes = host, 0
        if host is not None:
            # Wide weights of another device have their copy on the host, too.
            narrow = narrow or any(parameter.device.type != "cpu" for parameter in self._parameters)
            self._count_host_bytes(narrow * sum(4 * parameter.numel() for parameter in self._parameters))
        self._masters = [self._wide_copy(parameter) for parameter in self._parameters] if narrow else None
        self._torch: torch.optim.Optimizer | None = None
        """Torch's optimizer. It is made for the first step, whose options say which it is."""
        self._loaded: dict[Tensor, dict[str, Tensor]] = {}
        """The state that was loaded before `_torch` was made."""

    def step(self, gradients: Sequence[Tensor | None], options: TrainOptions, number: int) -> dict[str, float]:
        """Update the weights with a gradient (None is 0), and return the gradient's norm before clipping and the
        learning rate.

        A gradient that is not finite raises `NonFiniteGradient` and leaves the weights as they are.
        """
        targets = self._masters or self._parameters
        if self._masters is None:
            gradients = [
                torch.zeros_like(target) if gradient is None else _like_target(gradient, target)
                for target, gradient in zip(targets, gradients, strict=True)
            ]
        norm = self._norm(gradients)
        if not bool(torch.isfinite(norm)):
            self._raise_not_finite(gradients)
        factor = float(options.clip_norm / norm) if options.clip_norm and norm > options.clip_norm else 1.0
        rate = options.learning_rate(number)
        make, settings = TORCH[options.optimizer.name]
        if self._torch is None:
            self._torch = make(targets, fused=True)
            self._torch.state.update(self._loaded)
            if not self._loaded:
                self._count_moments(targets, options.optimizer.numbers_per_weight)
        if options.reset:
            forget_moments(self._torch)
        for group in self._torch.param_groups:
            group.update(lr=rate, **settings(options))
        try:
            for some in self._groups_of_weights():
                self._update(self._torch, some, gradients, factor)
        except RuntimeError as error:
            raise PartialUpdate(f"the update has ended in the midst: {error}") from error
        return {"grad_norm": float(norm), "lr": rate}

    def _update(
        self, optimizer: torch.optim.Optimizer, some: Sequence[int], gradients: Sequence[Tensor | None], factor: float
    ) -> None:
        """Update the weights with these numbers, with `factor` times their gradients; the optimizer leaves those that
        have none as they are."""
        targets = [(self._masters or self._parameters)[at] for at in some]
        wide_gradient_bytes = sum(target.nbytes for target in targets) if self._masters else 0
        self._count_host_bytes(wide_gradient_bytes)
        for at, target in zip(some, targets, strict=True):
            gradient = gradients[at]
            if gradient is not None and self._host is not None:
                gradient = _to_host(gradient)
            target.grad = torch.zeros_like(target) if gradient is None else _like_target(gradient, target)
        if factor != 1:
            torch._foreach_mul_([target.grad for target in targets if target.grad is not None], factor)
        optimizer.step()
        for target in targets:
            target.grad = None
        self._count_host_bytes(-wide_gradient_bytes)
        if self._masters is not None:
            with torch.no_grad():
                for at, master in zip(some, targets, strict=True):
                    _write_weight(self._parameters[at], master)

    @property
    def is_on_host(self) -> bool:
        """Whether it keeps its state in the host's memory."""
        return self._host is not None

    def _wide_copy(self, parameter: Tensor) -> Tensor:
        wide = parameter.detach().to("cpu" if self._host is not None else parameter.device)
        # A copy of its own, also of what is wide and on the host already.
        return wide.float() if wide.dtype in (torch.bfloat16, torch.float16) else wide.clone()

    def _count_moments(self, targets: Sequence[Tensor], numbers: int) -> None:
        """Count so many numbers for each weight as bytes of the host, where they are there."""
        self._count_host_bytes(numbers * sum(target.nbytes for target in targets))

    def _count_host_bytes(self, size: int) -> None:
        if self._host is not None:
            self._host.add_bytes(size)
            self._host_bytes += size

    def forget_host_bytes(self) -> None:
        """Count nothing of it any more: another one takes its place."""
        self._count_host_bytes(-self._host_bytes)

    def _groups_of_weights(self) -> Iterator[list[int]]:
        """Yield the numbers of the weights that are updated together: all, or of narrow ones so many that their wide
        gradients take `UPDATED_TOGETHER_BYTES`."""
        if self._masters is None:
            yield [*range(len(self._parameters))]
            return
        some, size = list[int](), 0
        for at, master in enumerate(self._masters):
            if some and size + master.nbytes > UPDATED_TOGETHER_BYTES:
                yield some
                some, size = [], 0
            some.append(at)
            size += master.nbytes
        if some:
            yield some

    def _norm(self, gradients: Sequence[Tensor | None]) -> Tensor:
        """Return the norm of all gradients, those of other ranks included, as their sums in float32 have it."""
        named = [(name, grad) for name, grad in zip(self._names, gradients, strict=True) if grad is not None]
        if self._sum is None:
            return _total_norm([gradient for _, gradient in named], self._parameters)
        separate = [gradient for name, gradient in named if name not in self._replicated]
        square = _total_norm(separate, self._parameters).square()
        if self._replicated:
            replicated = [gradient for name, gradient in named if name in self._replicated]
            square = square + _total_norm(replicated, self._parameters).square() / self._replicas
        return self._sum(square).sqrt()

    def refresh_master_weights(self) -> None:
        """Copy the model's weights into the wide copies, after somebody else has set them."""
        for master, parameter in zip(self._masters or [], self._parameters, strict=False):
            master.copy_(parameter.detach())

    def state_tensors(self) -> Iterator[Tensor]:
        """Yield what it keeps: moments and wide copies."""
        states = self._loaded if self._torch is None else self._torch.state
        yield from (value for state in states.values() for value in state.values() if isinstance(value, Tensor))
        yield from self._masters or ()

    def state_by_weight(self) -> dict[str, dict[str, Tensor]]:
        """Return what the optimizer keeps for each weight, and the wide copies: by kind and parameter name, live."""
        states = self._loaded if self._torch is None else self._torch.state
        kinds: dict[str, dict[str, Tensor]] = {}
        for name, target in zip(self._names, self._masters or self._parameters, strict=True):
            for kind, value in states.get(target, {}).items():
                kinds.setdefault(kind, {})[name] = value
            if self._masters is not None:
                kinds.setdefault(MASTER, {})[name] = target
        return kinds

    def resume(self, kinds: Iterable[str], steps: float) -> None:
        """Continue after so many updates, with what is then written into the tensors of `state_by_weight`."""
        self._torch, self._loaded = None, {}
        state_kinds = [kind for kind in kinds if kind != MASTER]
        self._count_moments(self._masters or self._parameters, len(state_kinds))
        for target in (self._masters or self._parameters) if state_kinds else ():
            # In the memory order of the weight: the fused AdamW walks over both as they lie.
            self._loaded[target] = {kind: torch.empty_like(target) for kind in state_kinds}
            self._loaded[target][STEP] = torch.tensor(steps, dtype=torch.float32, device=target.device)

    def _raise_not_finite(self, gradients: Sequence[Tensor | None]) -> None:
        finite = [torch.ones((), dtype=torch.bool, device=parameter.device) for parameter in self._parameters]
        for at, gradient in enumerate(gradients):
            if gradient is not None:
                finite[at] = gradient.isfinite().all()
        not_finite = (~torch.stack(finite)).long()
        if self._sum is not None:
            not_finite = self._sum(not_finite)
        bad = [name for name, ranks in zip(self._names, not_finite.tolist(), strict=True) if ranks]
        if not bad:
            raise NonFiniteGradient(
                "the gradient's norm overflows: the loss is far too large; the weights were left as they are"
            )
        more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
        raise NonFiniteGradient(f"the gradient of {bad[0]}{more} is not finite: the weights were left as they are")


def forget_moments(optimizer: torch.optim.Optimizer) -> None:
    """Set moments and counts of updates to 0, as they are before the first update; their memory stays."""
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, Tensor):
                value.zero_()


def _total_norm(gradients: Sequence[Tensor], like: Sequence[Tensor]) -> Tensor:
    """Return the norm of some gradients, of narrow ones as if they were wide. like: says where it is, of none."""
    if not gradients:
        return torch.zeros((), device=like[0].device if like else None)
    if all(gradient.dtype in (torch.float32, torch.float64) for gradient in gradients):
        total: Tensor = torch.nn.utils.get_total_norm(gradients)
        return total
    norms = [torch.linalg.vector_norm(gradient, dtype=torch.float32) for gradient in gradients]
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return norm


def _to_host(gradient: Tensor) -> Tensor:
    """Return the gradient in the host's memory, through page-locked memory where it comes from a GPU."""
    if gradient.device.type == "cpu":
        return gradient
    return torch.empty(gradient.shape, dtype=gradient.dtype, pin_memory=gradient.is_cuda).copy_(gradient)


def _write_weight(weight: Tensor, master: Tensor) -> None:
    """Round the wide copy into the weight; what goes from the host to a GPU is rounded there, and page-locked."""
    if weight.is_cuda and not master.is_cuda:
        master = torch.empty(weight.shape, dtype=weight.dtype, pin_memory=True).copy_(master)
    weight.copy_(master, non_blocking=True)


def _like_target(gradient: Tensor, target: Tensor) -> Tensor:
    """Return the gradient in its parameter's dtype and memory order: the fused AdamW walks over both as they lie,
    whatever their strides say."""
    gradient = gradient.to(target.dtype)
    if gradient.stride() == target.stride():
        return gradient
    return torch.empty_like(target).copy_(gradient)
