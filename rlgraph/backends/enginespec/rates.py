"""Rates at which an engine does a kind of work; `rlgraph.passes.cost.constants` says how seconds follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from rlgraph.catalog.clusters.cluster import DeviceKind

WorkKind = Literal["train", "forward", "generate"]


@dataclass(frozen=True, slots=True)
class Rates:
    """The rates of one engine at one kind of work."""

    compute: float
    """Share of the rate of the device's largest matrix products that its own reach."""
    memory: float
    """Share of the rate of a long copy in the device's memory that it reaches; in a decoding step, of the rates at
    which kernels read weights, and keys and values."""
    call: float = 0.0
    """Seconds of each call."""
    block: float = 0.0
    """Seconds of each micro-batch, or of each decoding step."""
    layer: float = 0.0
    """Seconds of each layer of each micro-batch: launching its kernels, where that is not hidden."""
    products: int = 0
    """For `generate`: the products of a layer that are kernels of their own, of rows of a decoding step or of prompts.
    Each takes its device's `product_latency`, and attention of a step the `attention_latency`; 0: `layer` has all."""
    host: float = 0.0
    """For `generate`: seconds of the host for each decoding step and each pass over prompts, which it spends on the
    kernels to come while the device works: the longer of host and device counts."""
    host_layer: float = 0.0
    """The same for each layer."""
    host_row: float = 0.0
    """The same for each row that gets a token."""
    experts: float = 0.0
    """Seconds of the host for each layer with experts of each micro-batch, beside those of `layer`, as rows are sorted
    by expert: they count where the device has less to do meanwhile. For `generate`: of each decoding step, and they
    always count."""
    whole_experts: bool = False
    """Whether tensor-parallel ranks have whole experts; else they split each, and gather the tokens that come to it."""
    once_a_node: bool = False
    """Whether a token is sent once to each node that has experts of it, and spread there; else once for each expert."""
    hides_routed: bool = False
    """Whether tokens travel to their experts while other micro-batches are computed; else nothing is, meanwhile."""
    row: float = 0.0
    """Seconds of each row; for `generate`, of each token that is sampled."""
    begin: float = 0.0
    """For `generate`: seconds of each row, however long it gets, to take it in and to give it back."""
    cached: float = 1.0
    """For `generate`: how often a decoding step moves the bytes of keys and values: once where each is read."""
    hidden: float = 0.0
    """For `generate`: seconds of each number of a row's hidden state in each layer of each decoding step, for what is
    done to it beside matrix products."""
    adapted: float = 0.0
    """For `generate`: seconds of each matrix that has an adapter beside it, in each decoding step and each pass over
    prompts: launching two products more."""
    token: float = 0.0
    """Seconds of each token that is read, in each layer, for what is done to it beside matrix products."""
    logit: float = 0.0
    """Bytes read and written for each logit of a head, between its products and a loss, log-probabilities or a sampled
    token."""
    gradient: float = 0.0
    """For `train`: bytes read and written for each weight outside of experts in each micro-batch, beside products: its
    gradient is added to those of other micro-batches."""
    stepped: float = 0.0
    """For `train`: bytes read and written for each weight in each optimizer step beside the gradient, what the
    optimizer keeps and the weight, each read or written once: casts, the gradient's norm, clipping, and what an
    optimizer of several kernels reads again."""
    update: float = 0.0
    """For `train`: seconds of each optimizer step beside its bytes."""
    hides: float = 0.0
    """Share of the bytes that ranks exchange which travel while they compute: nobody waits for these."""
    attention: float = 1.0
    """The time of its attention, relative to what kernels that the device has for it would take, if these reached the
    share `compute` of their own rate."""
    reduce: float = 0.0
    """Seconds of each sum over tensor-parallel ranks beside what the link takes: until all of them have arrived."""
    crowd: float = 0.0
    """How much longer work takes where other processes of the group work at the same time (0.1 is a tenth), on CPUs
    that share their memory or their cores."""
    lock: float = 0.0
    """How much longer work takes where threads work side by side in one process, and wait for Python's lock."""


PLAIN: Mapping[DeviceKind, Mapping[WorkKind, Rates]] = {
    "gpu": {
        "train": Rates(
            0.9, 0.9, call=0.01, block=2e-3, layer=3e-4, logit=25, gradient=6, stepped=12, update=5e-3, hides=0.25
        ),
        "forward": Rates(0.9, 0.9, call=0.01, block=2e-3, layer=1e-4, logit=24, hides=0.25),
        "generate": Rates(0.4, 1.0, call=0.02, host_layer=6.7e-4, cached=2.2, logit=34),
    },
    "cpu": {
        "train": Rates(0.4, 0.5, call=3e-3, block=4e-3, layer=1.5e-3, update=5e-3),
        "forward": Rates(0.4, 0.5, call=2e-3, block=2e-3, layer=5e-4),
        "generate": Rates(0.4, 0.5, call=5e-3, block=1e-3, layer=3e-4, row=2e-5),
    },
}
"""Rates of an engine that runs a model as it is written in torch, layer by layer. On a GPU what training reaches is
fitted to those of the rows FH, FA, FB and FL of docs/why/accuracy.md that are not held out: models of 1 to 70 billion
parameters that shard their parameters over 8 to 128 A100 and H100. Work that only reads is assumed to reach as much.
Decoding reads weights as fast as kernels do, which are the same as vLLM's, and keys and values at 0.45 of that
(assumed). Bytes of a logit and of a weight are counted, in bfloat16: 25 with all tiles kept (docs/why/speed.md), 24
where nothing is trained, 34 where a token is sampled, of which no Python asks row by row;
`python benchmarks/step_bytes.py`."""
