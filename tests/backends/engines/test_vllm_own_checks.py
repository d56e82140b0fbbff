"""What vLLM's own code asks when it starts on a GPU, with the memory and the devices told to it: none are needed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

pytest.importorskip("vllm")

from rlgraph.backends.engines.sources import ModelSpec
from rlgraph.backends.engines.vllm import environment, start
from rlgraph.backends.engines.vllm.environment import all_reduce_by_nccl_only, import_vllm, temporary_model_folder
from rlgraph.backends.engines.vllm.start import StartNotes
from rlgraph.ir.mesh import make_mesh
from rlgraph.ir.plan import ModelHolding
from tests.backends.engines.test_vllm_start import SHAPE

import_vllm()

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 256,
    "torch_dtype": "float32",
}


def write(folder: str) -> None:
    Path(folder, "config.json").write_text(json.dumps(CONFIG))


def seeing(monkeypatch: pytest.MonkeyPatch, devices: int) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)


def test_ranks_that_see_one_device_do_not_ask_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's question whether two devices reach each other fails where a process sees one: it is not asked."""
    from vllm.distributed.device_communicators.custom_all_reduce import _can_p2p

    seeing(monkeypatch, 1)
    for rank in (0, 1):
        with pytest.raises((AssertionError, RuntimeError)):
            _can_p2p(rank, 2)
    asked = start._meeting_arguments(2, 0, "host:1/token")
    assert asked["disable_custom_all_reduce"]
    seeing(monkeypatch, 2)
    assert not start._meeting_arguments(2, 0, "host:1/token")["disable_custom_all_reduce"]


def test_nor_map_their_memory() -> None:
    import vllm.envs

    # An engine that was started in this process has had vLLM keep what it read before.
    now = vllm.envs.environment_variables
    names = ("VLLM_ALLREDUCE_USE_SYMM_MEM", "VLLM_ALLREDUCE_USE_FLASHINFER")
    with mock.patch.dict(os.environ, dict.fromkeys(names, "1")):
        assert all(now[name]() for name in names)
        all_reduce_by_nccl_only()
        assert not any(now[name]() for name in names)


def test_the_plans_cache_has_room_for_the_row_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """By vLLM's own check: it refuses to start with all positions of the model."""
    from vllm.v1.core.kv_cache_utils import check_enough_kv_cache_memory
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    monkeypatch.setattr(start, "has_no_gpu", lambda: False)
    holding = ModelHolding("actor", "play", kv_bytes=3141470347)
    spec = ModelSpec("causal_lm", "", "bfloat16")
    asked = start.vllm_arguments(spec, SHAPE, make_mesh(tp=1), start.limits_in_plan(holding), 24 << 30)
    assert asked["kv_cache_memory_bytes"] == holding.kv_bytes
    for block in (16, 32, 64):
        layers: dict[str, Any] = {
            f"layers.{layer}.attn": FullAttentionSpec(
                block_size=block, num_kv_heads=SHAPE.kv_heads, head_size=SHAPE.head_dim, dtype=torch.bfloat16
            )
            for layer in range(SHAPE.layers)
        }

        def check(row: int, layers: dict[str, Any] = layers) -> None:
            config = mock.MagicMock()
            config.model_config.max_model_len = row
            config.parallel_config.decode_context_parallel_size = 1
            config.parallel_config.prefill_context_parallel_size = 1
            check_enough_kv_cache_memory(config, dict(layers), holding.kv_bytes)

        check(asked["max_model_len"])
        with pytest.raises(ValueError, match="To serve at least one request"):
            check(SHAPE.positions)


def test_it_starts_beside_models_that_are_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM asks for a share of the device to be free: what the plan has for it, and not nine tenths."""
    from vllm.v1.worker.utils import request_memory

    monkeypatch.setattr(start, "has_no_gpu", lambda: False)
    memory, awake = 80 << 30, 40 << 30
    snapshot: Any = SimpleNamespace(total_memory=memory, free_memory=memory - awake - (2 << 30), device_="cuda:0")
    spec, holding = ModelSpec("causal_lm", "", "bfloat16"), ModelHolding("actor", "play", kv_bytes=20 << 30)
    asked = start.vllm_arguments(spec, SHAPE, make_mesh(tp=1), start.limits_in_plan(holding), memory)
    config: Any = SimpleNamespace(gpu_memory_utilization=asked["gpu_memory_utilization"])
    assert request_memory(snapshot, config) <= snapshot.free_memory
    with pytest.raises(ValueError, match="Free memory on device"):
        request_memory(snapshot, SimpleNamespace(gpu_memory_utilization=0.9))  # type: ignore[arg-type]


def test_what_it_has_compiled_it_takes_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The name under which it is kept has the folder of the model in it, and what ranks are told."""
    from vllm.engine.arg_utils import EngineArgs

    monkeypatch.setattr("vllm.envs.VLLM_CACHE_ROOT", str(tmp_path), raising=False)

    def name(folder: str, **more: Any) -> str:
        settings: dict[str, Any] = {"load_format": "dummy", "skip_tokenizer_init": True, "dtype": "float32", **more}
        return EngineArgs(model=folder, max_model_len=64, **settings).create_engine_config().compute_hash()

    found = set()
    for rank in range(2):
        with temporary_model_folder(write) as folder:
            assert json.loads(Path(folder, "config.json").read_text()) == CONFIG
            found.add(name(folder, additional_config=StartNotes(rank, f"rlgraph://host:{rank}")))
    assert len(found) == 1
    # Red without it: a new folder, and a new port, each time.
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        write(str(tmp_path / place))
        found.add(name(str(tmp_path / place), additional_config={"url": place}))
    assert len(found) == 3
    with temporary_model_folder(
        lambda folder: Path(folder, "config.json").write_text(json.dumps(CONFIG | {"a": 1})) and None
    ) as other:
        assert other != folder


def test_where_nothing_can_be_kept_the_folder_is_a_temporary_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    taken = tmp_path / "file"
    taken.write_text("")
    monkeypatch.setattr("vllm.envs.VLLM_CACHE_ROOT", str(taken), raising=False)
    with environment.temporary_model_folder(write) as folder:
        assert Path(folder, "config.json").exists()
    assert not Path(folder).exists()
