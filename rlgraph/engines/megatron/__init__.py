"""Training and scoring with Megatron-core: tensor, pipeline and data parallel. Importing it without megatron-core
raises `EngineError`."""

from __future__ import annotations

import warnings

from rlgraph.engines.base import EngineError

# What megatron-core says of packages that it does without, and what torch says of how megatron-core calls it.
warnings.filterwarnings("ignore", module=r"megatron\.core")
warnings.filterwarnings("ignore", r"`torch\.distributed\.(reduce_scatter|all_gather_into)_tensor` is deprecated")
warnings.filterwarnings("ignore", r"The \.grad attribute of a Tensor that is not a leaf")

try:
    import megatron.core.optimizer  # noqa: F401
except ImportError as error:
    raise EngineError(
        f"the engine megatron is not installed ({error}): pip install 'rlgraph[megatron]', or use engine=transformers"
    ) from error
