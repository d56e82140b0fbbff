"""What vLLM's host does between two tokens while the device waits, as vLLM was in 2024: milliseconds of CPU a step.

Its engine of then (V0) asks for a token, waits for it, and only then schedules the next step and prepares what that
reads. This is its own scheduler, its own preparation of a step and its own sampler, without a GPU: in place of a CUDA
graph a clock is read, and the logits are always the same few numbers. What is measured here is added to the
predictions of rows that were measured with such a version (`../older_vllm.py`).

    python3 -m venv /tmp/vllm06 && /tmp/vllm06/bin/pip install vllm==0.6.3.post1 transformers==4.45.2
    /tmp/vllm06/bin/python benchmarks/peers/vllm_steps.py --rows 1 8 64 256

or `vllm==0.5.4 transformers==4.43.4 "numpy<2" "pyarrow<18" "datasets<3"`, the version of the summer of 2024.

Seconds are CPU time, so that a busy machine changes them little; medians of the steps are shown. Copies to a device and
the launch itself, a few tens of microseconds each, are not among them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import vllm.engine.arg_utils
import vllm.model_executor.layers.sampler
import vllm.model_executor.sampling_metadata
import vllm.worker.model_runner as runner
from vllm import SamplingParams
from vllm.attention.backends.flash_attn import FlashAttentionBackend
from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment
from vllm.engine.llm_engine import LLMEngine
from vllm.executor.gpu_executor import GPUExecutor
from vllm.inputs import TokensPrompt
from vllm.model_executor.layers.sampler import Sampler
from vllm.worker.worker import Worker

MODEL: dict[str, Any] = {
    **{"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "torch_dtype": "bfloat16", "vocab_size": 1024},
    **{"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "max_position_embeddings": 8192},
    **{"num_attention_heads": 14, "num_key_value_heads": 2, "use_sliding_window": False, "max_window_layers": 24},
}
"""Nothing of it is made: that many places of its cache are counted, and a row's logits have 1,024 numbers."""

BLOCKS = 40_000
MARKS: list[tuple[str, float]] = []
"""What happened, and CPU seconds of this process by then."""


@dataclass
class OnNoDevice:
    device_type: str = "cuda"
    device: torch.device = torch.device("cpu")


class Graph:
    def replay(self) -> None:
        MARKS.append(("launched", time.process_time()))


class Model:
    """In place of one: it takes no time, and all rows have the same logits."""

    def __init__(self) -> None:
        self.sampler, self.logits = Sampler(), torch.randn(1, MODEL["vocab_size"])

    def __call__(self, *_: Any, **__: Any) -> None: ...

    def compute_logits(self, _: Any, metadata: Any) -> torch.Tensor:
        return self.logits.repeat(len(metadata.selected_token_indices), 1)

    def sample(self, logits: torch.Tensor, sampling_metadata: Any) -> Any:
        return self.sampler(logits, sampling_metadata)


def arrived(*arguments: Any) -> Any:
    """Where its sampler waits for the device, whose tokens it then gives to rows."""
    MARKS.append(("arrived", time.process_time()))
    return given(*arguments)


given = vllm.model_executor.layers.sampler._random_sample
vllm.model_executor.layers.sampler._random_sample = arrived


class Host(Worker):  # type: ignore[misc]
    kv_cache = None

    def init_device(self) -> None:
        self.device = torch.device("cpu")
        store = f"file://{tempfile.mkdtemp()}/ranks"
        init_distributed_environment(1, 0, store, 0, backend="gloo")
        ensure_model_parallel_initialized(1, 1)

    def load_model(self) -> None:
        self.model_runner.model = Model()
        places = self.model_runner.get_max_block_per_batch()
        for size in runner._BATCH_SIZES_TO_CAPTURE:
            newer = (self.model_runner.attn_state, False) if hasattr(self.model_runner, "attn_state") else ()
            graph = runner.CUDAGraphRunner(None, "flash-attn", *newer)
            graph._graph = Graph()
            graph.input_buffers = {
                **{name: torch.zeros(size, dtype=torch.long) for name in ("input_ids", "positions", "slot_mapping")},
                "seq_lens_tensor": torch.zeros(size, dtype=torch.int32),
                "block_tables": torch.zeros(size, places, dtype=torch.int32),
            }
            graph.output_buffers = {"hidden_states": None}
            self.model_runner.graph_runners[0][size] = graph

    def determine_num_available_blocks(self) -> tuple[int, int]:
        return BLOCKS, 0

    def initialize_cache(self, num_gpu_blocks: int, num_cpu_blocks: int) -> None:
        self.cache_config.num_gpu_blocks, self.cache_config.num_cpu_blocks = num_gpu_blocks, num_cpu_blocks

    def execute_worker(self, worker_input: Any) -> None: ...


class Executor(GPUExecutor):  # type: ignore[misc]
    def _create_worker(self, *_: Any, **__: Any) -> Host:
        return Host(**self._get_worker_kwargs())


def engine() -> LLMEngine:
    """vLLM's own engine, which takes this process for one with a GPU."""
    runner.get_attn_backend = lambda *_, **__: FlashAttentionBackend
    for each in (runner, vllm.model_executor.sampling_metadata, vllm.utils):
        each.is_pin_memory_available = lambda: False
    vllm.engine.arg_utils.DeviceConfig = lambda device: OnNoDevice()
    folder = tempfile.mkdtemp()
    (Path(folder) / "config.json").write_text(json.dumps(MODEL))
    options: dict[str, Any] = {"skip_tokenizer_init": True, "max_model_len": 8192, "max_num_seqs": 256}
    config = vllm.engine.arg_utils.EngineArgs(model=folder, **options).create_engine_config()
    return LLMEngine(**config.to_dict(), executor_class=Executor, log_stats=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--prompt", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=300)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    served = engine()
    print("CPU milliseconds a step, median (a tenth are below, a tenth above)")
    for rows in arguments.rows:
        MARKS.clear()
        for row in range(rows):
            prompt = TokensPrompt(prompt_token_ids=[token % MODEL["vocab_size"] for token in range(arguments.prompt)])
            sampling = SamplingParams(max_tokens=arguments.tokens, ignore_eos=True, detokenize=False)
            served.add_request(f"{rows} {row}", prompt, sampling)
        while served.has_unfinished_requests():
            served.step()
        for what, before, after in (
            ("device waits", "arrived", "launched"),
            ("while it works", "launched", "arrived"),
        ):
            pairs = zip(MARKS, MARKS[1:], strict=False)
            taken = sorted(1e3 * (then - now) for (one, now), (other, then) in pairs if (one, other) == (before, after))
            low, high = taken[len(taken) // 10], taken[-(len(taken) // 10) - 1]
            print(f"  {rows:4} rows  {what:15} {statistics.median(taken):6.2f}  ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
