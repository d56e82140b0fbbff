"""What processes on GPUs begin with."""

from __future__ import annotations

import pytest
import torch

from rlgraph.backends.enginespec.registry import engines_by_name
from rlgraph.backends.exchange.shared_memory import without_expandable_segments
from rlgraph.backends.ray.cluster import process_env_vars

GROWS = "expandable_segments:True"


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_DEVICE_MAX_CONNECTIONS", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)


def test_each_engine_says_what_its_processes_begin_with(monkeypatch: pytest.MonkeyPatch) -> None:
    megatron = process_env_vars("GPU", False, "megatron")
    assert (megatron["CUDA_DEVICE_MAX_CONNECTIONS"], megatron["PYTORCH_ALLOC_CONF"]) == ("1", GROWS)
    assert process_env_vars("GPU", False, "transformers")["PYTORCH_ALLOC_CONF"] == GROWS
    # vLLM sleeps by an allocator of its own, which segments that grow are not for.
    assert "PYTORCH_ALLOC_CONF" not in process_env_vars("GPU", False, "vllm")
    for engine in (*engines_by_name(), "host", "python"):
        assert "PYTORCH_ALLOC_CONF" not in process_env_vars("CPU", False, engine)
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8")
    assert process_env_vars("GPU", False, "megatron")["CUDA_DEVICE_MAX_CONNECTIONS"] == "8"
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    assert "PYTORCH_ALLOC_CONF" not in process_env_vars("GPU", False, "megatron")


def test_memory_that_others_map_is_in_ordinary_segments() -> None:
    settings = torch._C._accelerator_getAllocatorSettings()
    try:
        for before, within in (
            (f"{GROWS},garbage_collection_threshold:0.8", "expandable_segments:False,garbage_collection_threshold:0.8"),
            ("garbage_collection_threshold:0.8", "garbage_collection_threshold:0.8"),
        ):
            torch._C._accelerator_setAllocatorSettings(before)
            with without_expandable_segments():
                assert torch._C._accelerator_getAllocatorSettings() == within
            assert torch._C._accelerator_getAllocatorSettings() == before
    finally:
        torch._C._accelerator_setAllocatorSettings(settings)
