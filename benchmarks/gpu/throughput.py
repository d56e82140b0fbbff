"""How much of the device's peak a training step reaches, and how fast tokens are sampled: models of 0.5 and 1.5 billion
random weights in bfloat16, micro-batches of 8,192 tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.measure import Row, Setting, config, engine, seconds
from rlgraph.backends.engines.base import MicroBatch, ModelCall, Sampling, TrainOptions
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.engines.transformers.decode import SpecialTokens, generate
from rlgraph.backends.engines.transformers.engine import TransformersEngine
from rlgraph.backends.engines.transformers.pace import EACH_TOKEN, FIXED, Pace
from rlgraph.catalog.clusters.devices import known_devices
from rlgraph.catalog.models.config_shape import shape_of
from rlgraph.catalog.models.shape import Shape
from rlgraph.passes.cost.calibration import MeasuredDevice
from rlgraph.passes.cost.work import Tokens, backward_flops, forward_flops
from rlgraph.profiles.profile import measure_device

MODELS = ("Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-1.5B")
TOKENS = 8192
PROMPT = 64


def rows(setting: Setting) -> Iterator[Row]:
    device, dtype, peak = peak_of(setting)
    yield Row(f"{device.name}: matrix products in {dtype}", device.flops[dtype] / 1e12, "TFLOP/s")
    yield Row(f"{device.name}: copies in its memory", device.bandwidth / 1e9, "GB/s")
    for name in MODELS[: 1 if setting.small else None]:
        fields = config(name, setting)
        made = engine(fields, setting.device, dtype)
        yield from training(name, made, fields, peak, setting)
        yield from _sampling(name, made, setting)
        del made
        if setting.gpu:
            torch.cuda.empty_cache()


def peak_of(setting: Setting) -> tuple[MeasuredDevice, str, float]:
    """What this device reaches, the dtype it is measured in, and the operations a second that are its peak."""
    device, dtype = measure_device(), "bfloat16" if setting.gpu else "float32"
    # What data sheets say of a GPU; of a CPU nothing is known but what it reaches.
    peak = dict(known_devices()[device.name].device.flops) if setting.gpu else device.flops
    return device, dtype, peak[dtype]


def training(name: str, made: Any, fields: Mapping[str, Any], peak: float, setting: Setting) -> Iterator[Row]:
    """Of an engine that trains this model: tokens a second, for rows of two lengths."""
    shape, tokens = shape_of({"model_type": "qwen2", **fields}), 256 if setting.small else TOKENS
    for count in (8, 1):
        yield from _training(name, made, shape, count, tokens // count, peak, setting)


def _training(
    name: str, made: Any, shape: Shape, count: int, length: int, peak: float, setting: Setting
) -> Iterator[Row]:
    prompt = min(PROMPT, length // 4)
    drawn = np.random.default_rng(1).integers(1, 250, (count, length)).tolist()
    sequences = Sequences.from_lists(drawn, [[place >= prompt for place in range(length)]] * count)
    micro = MicroBatch((ModelCall("logprobs", sequences),), lambda said: -said[0].sum() / (count * length))
    options, update = TrainOptions(1e-6, clip_norm=1.0), iter(range(10**6))
    if setting.gpu:
        torch.cuda.reset_peak_memory_stats()
    took = seconds(
        lambda: made.train_step([0], lambda _: micro, options, next(update)),
        setting.device,
        2 if setting.small else 5,
    )
    work = Tokens(count, count * length, count * length**2, count * (length - prompt), length)
    flops = forward_flops(shape, "causal_lm", work) + backward_flops(shape, "causal_lm", work)
    what = f"{name}: training on {count} x {length:,} tokens"
    yield Row(what, count * length / took, "tokens/s")
    yield Row(f"{what}, share of the device's peak", flops / took / peak)
    if setting.gpu:
        yield Row(f"{what}, memory", torch.cuda.max_memory_allocated() / 1e9, "GB")


def _sampling(name: str, made: TransformersEngine, setting: Setting) -> Iterator[Row]:
    rows, new = (8, 8) if setting.small else (256, 128)
    prompts = Sequences.from_lists([[1 + place % 250 for place in range(PROMPT)]] * rows)
    keys = np.arange(rows, dtype=np.uint64)
    sampling = Sampling(new, min_tokens=new)
    ends = SpecialTokens(made.eos_ids, made.codec.pad_id, made.codec.start_id)
    for how, pace in (("", None), (", shapes that stay, not captured", FIXED), (", a token at a time", EACH_TOKEN)):

        def sample(pace: Pace | None = pace) -> None:
            generate(made._network, prompts, 1, sampling, keys, ends, pace=pace)

        took, what = seconds(sample, setting.device, 2), f"{name}: sampling {rows} rows of {new} tokens{how}"
        yield Row(what, rows * new / took, "tokens/s")
        yield Row(f"{what}, each", 1000 * took / new, "ms")
    if setting.gpu:
        torch.cuda.reset_peak_memory_stats()
        made.generate(prompts, 1, sampling, keys)
        yield Row(f"{name}: sampling, memory", torch.cuda.max_memory_allocated() / 1e9, "GB")
