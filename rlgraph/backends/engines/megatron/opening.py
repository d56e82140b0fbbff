"""Megatron-core is imported here first: with what it says of itself off the screen, and a word where it is missing."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from rlgraph.backends.engines.base import EngineError, Rank
from rlgraph.backends.engines.offload import Sleeper
from rlgraph.backends.engines.sources import ModelSpec
from rlgraph.errors import install

if TYPE_CHECKING:
    from rlgraph.backends.engines.megatron.engine import MegatronEngine


def open_rank(model: ModelSpec, rank: Rank) -> MegatronEngine:
    """This rank's part of a model, on the mesh of its group. Raises EngineError."""
    prepare()
    from rlgraph.backends.engines.megatron.engine import MegatronEngine

    rank.join()
    opened = MegatronEngine.open(
        model, rank.mesh, recompute=rank.holding.recompute, turned=rank.turned, **rank.blocks()
    )
    opened.rest = Sleeper(rank.arenas)
    return opened


def prepare() -> None:
    """Imports megatron-core. Raises EngineError without it."""
    # What it says of packages that it does without, and what torch says of how it calls it.
    warnings.filterwarnings("ignore", module=r"megatron\.core")
    warnings.filterwarnings("ignore", r"`torch\.distributed\.(reduce_scatter|all_gather_into)_tensor` is deprecated")
    warnings.filterwarnings("ignore", r"The \.grad attribute of a Tensor that is not a leaf")
    try:
        import megatron.core.optimizer  # noqa: F401
    except ImportError as error:
        raise EngineError(
            f"the engine megatron is not installed ({error}): {install('megatron')}, or take another engine"
        ) from error
