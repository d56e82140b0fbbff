"""Imports Megatron-core first of all: its warnings stay off the screen, and an error says so where it is missing."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.engines.offload import Offloader
from rlgraph.backends.engines.records import Rank
from rlgraph.backends.engines.sources import ModelSpec
from rlgraph.errors import install_command

if TYPE_CHECKING:
    from rlgraph.backends.engines.megatron.engine import MegatronEngine


def open_rank(model: ModelSpec, rank: Rank) -> MegatronEngine:
    """Open this rank's part of a model, on the mesh of its group. Raises EngineError."""
    import_megatron()
    from rlgraph.backends.engines.megatron.engine import MegatronEngine

    rank.join()
    engine = MegatronEngine.open(
        model,
        rank.mesh,
        beside=rank.base_engine,
        recompute=rank.holding.recompute,
        turned=rank.reversed_stages,
        **rank.micro_batch_options(),
    )
    engine.offloader = Offloader(rank.memory_counters)
    return engine


def import_megatron() -> None:
    """Import megatron-core. Raises EngineError without it."""
    # It warns of packages that it does without, and torch warns of the calls that it makes.
    warnings.filterwarnings("ignore", module=r"megatron\.core")
    warnings.filterwarnings("ignore", r"`torch\.distributed\.(reduce_scatter|all_gather_into)_tensor` is deprecated")
    warnings.filterwarnings("ignore", r"The \.grad attribute of a Tensor that is not a leaf")
    try:
        import megatron.core.optimizer  # noqa: F401
    except ImportError as error:
        raise EngineError(
            f"the engine megatron is not installed ({error}): {install_command('megatron')}, or take another engine"
        ) from error
