"""A CPU platform for verl, as an external module (VERL_USE_EXTERNAL_MODULES=verl_cpu, VERL_PLATFORM=cpu).

verl 0.9.1 ships cuda, rocm and npu platforms only.  This one maps the platform interface to the host so that
verl's own code runs unmodified: collectives over gloo, no device memory, weight transfer through verl's
shared-memory path, and Ray told that it has (fictitious) GPUs because verl's resource pools always ask for them.
"""

# ruff: noqa: E731, SIM105
import types
from contextlib import contextmanager

import torch
import torch.distributed as dist
from verl.plugin.platform import PlatformBase, PlatformRegistry


def _device_module():
    m = types.ModuleType("torch_cpu_as_device")
    zero = lambda *a, **k: 0
    none = lambda *a, **k: None
    m.is_available = lambda: True
    m.current_device = lambda: "cpu"
    m.device_count = lambda: 1
    for n in (
        "set_device",
        "synchronize",
        "empty_cache",
        "ipc_collect",
        "manual_seed",
        "manual_seed_all",
        "reset_peak_memory_stats",
        "set_per_process_memory_fraction",
        "set_rng_state",
    ):
        setattr(m, n, none)
    for n in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"):
        setattr(m, n, zero)
    m.mem_get_info = lambda *a, **k: (8 << 30, 16 << 30)
    m.get_rng_state = torch.get_rng_state
    m.get_device_properties = lambda *a, **k: types.SimpleNamespace(total_memory=16 << 30, name="cpu")
    m.get_device_name = lambda *a, **k: "cpu"
    m.Stream = torch.cpu.Stream
    m.current_stream = torch.cpu.current_stream
    m.stream = torch.cpu.stream
    return m


_MOD = _device_module()


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    device_name = "cpu"
    vendor_name = "host"
    device_module = _MOD

    def is_available(self):
        return True

    def current_device(self):
        return "cpu"  # used as `.to(get_device_id())`

    def device_count(self):
        return 1

    def set_device(self, device_index):
        pass

    def synchronize(self, device_index=None):
        pass

    def manual_seed(self, seed):
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def set_allocator_settings(self, settings):
        pass

    def empty_cache(self):
        pass

    def get_device_capability(self, device_index=0):
        return None, None

    def communication_backend_name(self):
        return "gloo"

    def visible_devices_envvar(self):
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg):
        yield

    def profiler_start(self):
        pass

    profiler_stop = profiler_start

    def ray_resource_name(self):
        return "GPU"

    def ray_noset_envvars(self):
        return []

    def is_ipc_supported(self):
        return False

    def cudart(self):
        return None


# "cpu:gloo,cpu:gloo" names a device twice
_init = dist.init_process_group


def _init_pg(backend=None, *a, **k):
    if isinstance(backend, str) and backend.startswith("cpu:gloo,cpu"):
        backend = "gloo"
    return _init(backend, *a, **k)


dist.init_process_group = _init_pg
torch.distributed.init_process_group = _init_pg


# vLLM's CPU backend packs each linear weight and drops the parameter, so nothing can be loaded into it again
# (verl's sync dies with "'Parameter' object has no attribute 'weight_loader'").  Keep the parameter and use it
# directly.
import sys

if "vllm" in sys.modules:
    import vllm.model_executor.layers.utils as _u

    def _keep(layer, remove_weight):
        layer.cpu_linear = torch.nn.functional.linear

    _u.dispatch_cpu_unquantized_gemm = _keep

# verl's receiver closes its shared-memory segment while views of it are alive: on CPU `.to(device)` does not copy
from multiprocessing import shared_memory

_close = shared_memory.SharedMemory.close


def _tolerant(self):
    try:
        _close(self)
    except BufferError:
        pass


shared_memory.SharedMemory.close = _tolerant

# let the toy tokenizer (word level, not BPE) load as what it is although the model type is qwen2
try:
    from transformers.models.auto import tokenization_auto as _ta

    _ta.MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS.discard("qwen2")
except (ImportError, AttributeError):
    pass

# PEERS_VERL_POLL=0.02: verl's V1 replay buffer sleeps 2 s between looks, which no real step notices and a toy step is
# made of
import os

if os.environ.get("PEERS_VERL_POLL"):
    import time

    import verl.trainer.ppo.v1.replay_buffer as _rb

    _rb.time = type(
        "T",
        (),
        {
            "sleep": staticmethod(lambda s: time.sleep(min(s, float(os.environ["PEERS_VERL_POLL"])))),
            "__getattr__": lambda self, k: getattr(time, k),
        },
    )()

# verl's asynchronous trainer without replicas on the devices that train logs with `print`'s `flush`, and dies of it
import logging

_info = logging.Logger.info
logging.Logger.info = lambda self, message, *a, flush=None, **k: _info(self, message, *a, **k)


# verl 0.9.1 says `wait_for_inflight_requests=False`, which vLLM 0.32 calls `mode="abort"`, its default
import importlib.util


class _Pauses:
    """Once this module of vLLM is imported: to import it here would take every process of verl ten seconds."""

    def find_spec(self, name, path=None, target=None):
        if name != "vllm.v1.engine.async_llm":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            pause = module.AsyncLLM.pause_generation
            module.AsyncLLM.pause_generation = lambda self, wait_for_inflight_requests=False, **k: pause(self, **k)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, _Pauses())
