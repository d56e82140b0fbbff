"""How fast an engine does a kind of work; `rlgraph.passes.cost.constants` says what seconds are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

WorkKind = Literal["train", "forward", "generate"]


@dataclass(frozen=True, slots=True)
class Rates:
    """Of one engine and one kind of work."""

    compute: float
    """Share that its matrix products reach of what the device's largest do."""
    memory: float
    """Share that it reaches of what a long copy in the device's memory does."""
    call: float = 0.0
    """Seconds of each call."""
    block: float = 0.0
    """Seconds of each micro-batch; of each decoding step."""
    layer: float = 0.0
    """Seconds of each layer of each micro-batch: launching its kernels, where that is not hidden."""
    row: float = 0.0
    """Seconds of each row; of `generate`, of each row in each decoding step."""
    begin: float = 0.0
    """Of `generate`: seconds of each row, however long it gets: to take it in, and to give it back."""
    hidden: float = 0.0
    """Of `generate`: seconds of each number of a row's hidden state in each layer of each decoding step, for what is
    done to it beside matrix products."""
    adapted: float = 0.0
    """Of `generate`: seconds of each matrix that has an adapter beside it, in each decoding step and each pass over
    prompts: launching two products more."""
    token: float = 0.0
    """Seconds of each token that is read, in each layer: what is done to it beside matrix products."""
    update: float = 0.0
    """Of `train`: seconds of each optimizer step beside its bytes."""
    hides: float = 0.0
    """Share of the bytes that ranks exchange which travel while they compute: nobody waits for these."""
    attention: float = 1.0
    """How much of the attention's products, those that a causal mask hides counted as well, take as long as others:
    kernels skip what is hidden, and are slower at the rest."""
    reduce: float = 0.0
    """Seconds of each sum over tensor-parallel ranks beside what the link takes: until all of them are there."""
    crowd: float = 0.0
    """How much longer work takes where other processes of the group work beside it: 0.1 is a tenth. On CPUs that share
    their memory, or their cores."""
    lock: float = 0.0
    """The same of threads that work side by side in one process, and wait for Python's lock."""
