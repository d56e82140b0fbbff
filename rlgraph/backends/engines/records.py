"""The small records that an engine's callers pass and get."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.engines.likeliest import KeptTokens, LikeliestTokens
from rlgraph.backends.engines.offload import MemoryCounters
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.engines.stop_texts import StopTexts
from rlgraph.backends.engines.vocabulary_sums import OtherModel
from rlgraph.ir.mesh import Mesh, make_mesh
from rlgraph.ir.plan import ModelHolding
from rlgraph.ops.optimizers import ADAMW, OptimizerSpec

State = dict[str, Tensor]
"""A model's parameters and persistent buffers by name."""


@dataclass(frozen=True)
class Rank:
    """The rank of a group that an engine is opened for, and how the group holds the model."""

    mesh: Mesh = field(default_factory=make_mesh)
    number: int = 0
    holding: ModelHolding = field(default=ModelHolding("", ""))
    threads: int = 1
    """Micro-batches that are computed side by side, in an engine that does so."""
    join: Callable[[], None] = lambda: None
    """Makes this process a rank of torch's default process group, which is the group's; once is enough for all models
    of a process."""
    address: str | None = None
    """Where the ranks of this data-parallel replica can meet: an address of
    `rlgraph.backends.engines.process_groups.open_store` on the machine of its first rank."""
    device: str | None = None
    """The device as torch names it; None: see `rlgraph.backends.engines.device`."""
    base_engine: Any = None
    """An engine in this process that has the same base, whose weights never change: both can hold it together."""
    memory_counters: MemoryCounters = field(default_factory=MemoryCounters)
    """Counts what the offloaded models of this process have in each memory."""
    reversed_stages: bool = False
    """The model's pipeline stages lie in reverse, the first one on the last ranks: only in an engine that `fuses`."""

    def micro_batch_options(self) -> dict[str, Any]:
        """Return the plan's limit of padded tokens in a micro-batch, as a keyword argument of an engine; nothing
        where the plan has none."""
        return {"block_tokens": self.holding.micro_tokens} if self.holding.micro_tokens else {}


@dataclass(frozen=True)
class Sampling:
    """The settings by which the next token is chosen."""

    max_tokens: int
    """The longest response, in tokens; a row that reaches it is not `finished`."""
    temperature: float = 1.0
    """Logits are divided by it; 0 takes the likeliest token."""
    top_p: float = 1.0
    """Sample from the smallest set of tokens that holds this much probability."""
    top_k: int = 0
    """Sample from this many likeliest tokens; 0 for all."""
    min_tokens: int = 0
    """No end-of-sequence or stop token before this many tokens."""
    stop_ids: tuple[int, ...] = ()
    """Tokens that end a response beside the model's own end-of-sequence tokens."""
    stop_texts: StopTexts | None = None
    """Finds texts that end a response, from `min_tokens` on: only in an engine that `ends_at_texts`."""
    samples_wanted: int = 0
    """How many of each prompt's samples are wanted, those that end first: see `rlgraph.backends.engines.first_done`. An
    engine may give the others up once it is certain which those are. 0: all are wanted."""
    min_p: float = 0.0
    """Sample from the tokens whose probability is at least so many times that of the likeliest."""
    keeps_routes: bool = False
    """The rows come with the experts that routers chose (`Sequences.routes`)."""
    keeps_support: bool = False
    """The rows come with the tokens that each of theirs was sampled from (`Generation.support`)."""

    def __post_init__(self) -> None:
        _require(self.max_tokens >= 0, f"max_tokens must not be negative, got {self.max_tokens}")
        _require(self.min_tokens >= 0, f"min_tokens must not be negative, got {self.min_tokens}")
        _require(self.temperature >= 0, f"temperature must not be negative, got {self.temperature}")
        _require(0 < self.top_p <= 1, f"top_p must be above 0 and at most 1, got {self.top_p}")
        _require(self.top_k >= 0, f"top_k must not be negative, got {self.top_k}")
        _require(0 <= self.min_p <= 1, f"min_p must be between 0 and 1, got {self.min_p}")


@dataclass(frozen=True)
class Generation:
    """The rows that were generated for N prompts, n rows each; row i * n + k is sample k of prompt i."""

    sequences: Sequences
    """N * n rows: the prompt, and the response as its scored tokens, the end-of-sequence token included."""
    logprobs: Tensor
    """float [total scored]: the sampled tokens' log-probabilities under the whole distribution (see
    `Generates.generate`)."""
    finished: Tensor
    """bool [N * n]: the row ended by itself, not at `max_tokens`. A row that was given up has fewer tokens, and is not
    finished."""
    versions: Tensor | None = None
    """int64 [total scored]: the version of the weights that sampled each token, where new ones could come meanwhile
    (`WeightRefresh`)."""
    support: KeptTokens | None = None
    """For each scored token those that it was sampled from, where they are kept."""


@dataclass(frozen=True)
class TrainOptions:
    """One model's optimizer, and a learning rate that depends on the number of the update."""

    lr: float
    """Peak learning rate."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """What follows the warm-up: the rate stays at its peak, or falls to `final_lr` at `total_steps` in a line or half a
    cosine."""
    warmup_steps: int = 0
    """Updates over which the rate rises in a line to its peak."""
    total_steps: int | None = None
    """Where `linear` and `cosine` end, in updates."""
    final_lr: float = 0.0
    """The rate from `total_steps` on."""
    optimizer: OptimizerSpec = ADAMW
    settings: Mapping[str, float] = field(default_factory=dict)
    """The optimizer's settings; its defaults hold for those that are missing."""
    clip_norm: float | None = None
    """The global norm that the gradient is scaled down to; None or 0: it is not scaled."""
    reset: bool = False
    """Whether the optimizer forgets its moments, and its count of updates, before this one."""

    def __post_init__(self) -> None:
        _require(self.schedule in ("constant", "linear", "cosine"), f"no schedule is called {self.schedule!r}")
        _require(
            self.schedule == "constant" or self.total_steps is not None,
            f"the {self.schedule} schedule needs total_steps",
        )

    def optimizer_setting(self, name: str) -> float:
        """Return one of the optimizer's numbers."""
        return self.settings.get(name, self.optimizer.default_of(name))

    def learning_rate(self, step: int) -> float:
        """Return the rate of update `step`, counted from 0."""
        if step < self.warmup_steps:
            return self.lr * (step + 1) / self.warmup_steps
        if self.schedule == "constant" or self.total_steps is None:
            return self.lr
        progress = min(1.0, (step - self.warmup_steps) / max(1, self.total_steps - self.warmup_steps))
        remaining = 1 - progress if self.schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
        return self.final_lr + (self.lr - self.final_lr) * remaining


@dataclass(frozen=True)
class ModelCall:
    """A question that a loss asks of the model that is trained."""

    op: Literal["logprobs", "entropy", "distribution", "likeliest", "values", "score"]
    sequences: Sequences
    temperature: float = 1.0
    """The temperature of `logprobs`, `entropy` and `distribution`."""
    formula: str = ""
    """What `distribution` reduces over the vocabulary."""
    others: tuple[OtherModel, ...] = ()
    """The other models in the formula, then the likeliest tokens in it, and then numbers."""
    likeliest: LikeliestTokens | None = None
    """What is asked of the likeliest tokens."""
    reduce: str = "sum"
    """What the formula is reduced by: `sum`, `mean` or `max`."""


@dataclass(frozen=True)
class MicroBatch:
    """A micro-batch of a train step. The loss of the step is the sum over all micro-batches of all data-parallel
    ranks."""

    calls: tuple[ModelCall, ...]
    """The loss's calls. They are answered together, with gradients: one pass over the model reads all their rows."""
    loss: Callable[[Sequence[Tensor]], Tensor]
    """Turns the answers, in the order of `calls`, into this micro-batch's part of the loss. It is called exactly once
    on each rank that has the answers (all tensor-parallel ranks of the last pipeline stage), never on others."""

    @property
    def has_rows(self) -> bool:
        """Whether the model is asked about rows; a loss that has no calls is taken to ask by itself."""
        return not self.calls or any(len(call.sequences) for call in self.calls)


@dataclass(frozen=True)
class PartialRow:
    """The part of a row that an engine has sampled before it gave the row up."""

    tokens: list[int]
    logprobs: list[float]
    needs_no_more: bool = False
    """The row has ended, or nobody wants more of it."""
    finished: bool = False
    """The row ended by itself, not at `max_tokens`."""
    support: list[KeptTokens] = field(default_factory=list)
    """For each token those that it was sampled from, where they are kept."""


class RowsAbandoned(Exception):
    """Raised where the rows of a call that have not ended go on elsewhere."""

    def __init__(self, rows: Mapping[int, PartialRow]) -> None:
        super().__init__()
        self.rows = rows


@dataclass(eq=False)
class Admission:
    """A call's admission among the rows that an engine samples, where it `admits`."""

    number: int
    """The number of the call, the same at all ranks of a replica."""
    join_call: bool
    """Its rows come in while the rows of other calls are sampled; else when those have ended."""
    may_continue: bool = False
    """When its rows have ended others of the same number may follow, until it is dismissed."""
    concurrent_calls: int = 0
    """The most rows of other calls for which a token was sampled together with rows of this one: the engine counts
    them."""
    may_be_given_up: bool = False
    """The call may be given up: it is made with `parts`, even where it has a single part."""
    partial_rows: Sequence[PartialRow] | None = None
    """What exists of each row: it goes on from there. Rows that others have begun are sampled beside those of other
    calls, not in their places."""
    token_limit: int | None = None
    """Unfinished rows with as many tokens are given up, and come without tokens (`Admits.give_up_longer_rows`);
    None: there is no limit. The engine sets it."""
    rows_given_up: Mapping[int, Sequence[PartialRow]] = field(default_factory=dict)
    """What exists of the rows of each part that had not ended when a call of `parts` was given up
    (`Admits.give_up_rows`). The engine sets it."""


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise EngineError(message)
