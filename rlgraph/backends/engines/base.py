"""The roles that an engine can have, and the small records that its callers pass and get."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from torch import Tensor

from rlgraph.backends.engines.offload import MemoryCounters, Offloader, OffloadRecord
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.catalog.models.heads import missing_head_message
from rlgraph.ir.layout import LocalTensor
from rlgraph.ir.mesh import Mesh, mesh
from rlgraph.ir.plan import Holding
from rlgraph.ops.optimizers import ADAMW, Optimizer

if TYPE_CHECKING:
    from rlgraph.backends.engines.moments import Moments
    from rlgraph.backends.engines.sources import ModelSpec
    from rlgraph.backends.engines.tokenizers import Codec
    from rlgraph.passes.pipelines.problem import Model
    from rlgraph.passes.pipelines.time_sharing import ProcessTurn

State = dict[str, Tensor]
"""A model's parameters and persistent buffers by name."""


class EngineError(ValueError):
    """An error that a user can act on: a missing model, a prompt without a chat template, a gradient that is not
    finite."""


class HubError(EngineError):
    """A model of the hub cannot be loaded."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        """What to do."""


class NotFinite(EngineError):
    """A gradient has NaN or infinity in it: the weights, and what the optimizer keeps, were left as they are."""


class NoRows(EngineError):
    """No rank has a row for an update: nothing has changed, and it does not count as one."""

    def __init__(self) -> None:
        super().__init__("there are no rows to train on: the weights were left as they are")


class PartialUpdate(EngineError):
    """An update failed after it had begun to write: the weights are neither the old ones nor the new ones."""


class NoHead(EngineError):
    """A value or reward model has no head in its files, and nothing trains one: it would give 0 for every row."""

    def __init__(self, kind: str, source: str) -> None:
        super().__init__(missing_head_message(kind, source))


class ModelRefused(EngineError):
    """A model was loaded for which the engine would compute something else than what it is asked for."""


@dataclass(frozen=True)
class Rank:
    """The rank of a group that an engine is opened for, and how the group holds the model."""

    mesh: Mesh = field(default_factory=mesh)
    number: int = 0
    holding: Holding = field(default=Holding("", ""))
    threads: int = 1
    """Micro-batches that are computed side by side, in an engine that does so."""
    join: Callable[[], None] = lambda: None
    """Makes this process a rank of torch's default process group, which is the group's; once is enough for all models
    of a process."""
    address: str | None = None
    """Where the ranks of this data-parallel replica can meet: an address of
    `rlgraph.backends.engines.process_groups.listen` on the machine of its first rank."""
    device: str | None = None
    """The device as torch names it; None: see `rlgraph.backends.engines.device`."""
    beside: Any = None
    """An engine in this process that has the same base, whose weights never change: both can hold it together."""
    arenas: MemoryCounters = field(default_factory=MemoryCounters)
    """Counts what the offloaded models of this process have in each memory."""
    turned: bool = False
    """The model's pipeline stages lie in reverse, the first one on the last ranks: only in an engine that `fuses`."""

    def blocks(self) -> dict[str, Any]:
        """Return the padded tokens of a micro-batch as a keyword argument, where the plan says how many."""
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
    first: int = 0
    """How many of each prompt's samples are wanted, those that end first: see `rlgraph.backends.engines.first_done`. An
    engine may give the others up once it is certain which those are. 0: all are wanted."""

    def __post_init__(self) -> None:
        _require(self.max_tokens >= 0, f"max_tokens must not be negative, got {self.max_tokens}")
        _require(self.min_tokens >= 0, f"min_tokens must not be negative, got {self.min_tokens}")
        _require(self.temperature >= 0, f"temperature must not be negative, got {self.temperature}")
        _require(0 < self.top_p <= 1, f"top_p must be above 0 and at most 1, got {self.top_p}")
        _require(self.top_k >= 0, f"top_k must not be negative, got {self.top_k}")


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
    optimizer: Optimizer = ADAMW
    settings: Mapping[str, float] = field(default_factory=dict)
    """The optimizer's settings; its defaults hold for those that are missing."""
    clip_norm: float | None = None
    """The global norm that the gradient is scaled down to; None or 0: it is not scaled."""

    def __post_init__(self) -> None:
        _require(self.schedule in ("constant", "linear", "cosine"), f"no schedule is called {self.schedule!r}")
        _require(
            self.schedule == "constant" or self.total_steps is not None,
            f"the {self.schedule} schedule needs total_steps",
        )

    def setting(self, name: str) -> float:
        """Return one of the optimizer's numbers."""
        return self.settings.get(name, self.optimizer.default(name))

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

    op: Literal["logprobs", "entropy", "values", "score"]
    sequences: Sequences
    temperature: float = 1.0
    """The temperature of `logprobs` and `entropy`."""


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


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise EngineError(message)


# Roles


class HasWeights(Protocol):
    """One rank's part of a model, and where it lies, for whoever moves weights. Every engine has this role."""

    @property
    def spec(self) -> ModelSpec:
        """What was loaded."""
        ...

    @property
    def codec(self) -> Codec:
        """The model's tokenizer."""
        ...

    @property
    def speaks(self) -> bool:
        """Whether this rank has results: the last pipeline stage's first tensor-parallel rank. On other ranks results
        are zeros of the right shape, and nobody reads them."""
        ...

    @property
    def longest(self) -> int | None:
        """The most tokens of a row, prompt and response together: as far as the model's positions reach, and a cache
        that is as large as the plan says (`LimitsCache`). None: there is no limit."""
        ...

    def layout(self) -> Sequence[LocalTensor]:
        """Return the tensors that this rank holds, in global terms."""
        ...

    def tensors(self) -> Mapping[str, Tensor]:
        """Return the live tensors by the names of `layout`, with a layer's number, counted on this rank, in place of
        `*`."""
        ...

    def written(self) -> None:
        """Take note that somebody wrote into `tensors`: wide copies are read again, caches of old weights dropped."""
        ...

    def state(self) -> State:
        """Return a copy of the weights."""
        ...

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over these weights; the optimizer's moments stay."""
        ...

    def blend(self, other: Mapping[str, Tensor], ema: float) -> None:
        """Move towards `other`: weights = ema * weights + (1 - ema) * other."""
        ...


class WeightRefresh(Protocol):
    """Provides new weights for a model while it samples. An engine that `rereads` asks for them before it samples each
    token, also the first one. Whoever brings them writes into its `tensors` and calls `written`, in the thread that
    asked."""

    @property
    def version(self) -> int:
        """The version of the present weights."""
        ...

    @property
    def waits(self) -> bool:
        """Whether new weights can be taken now. All ranks of a replica take them before the same token: once they wait
        at each of them."""
        ...

    def take(self) -> int:
        """Take the new weights and return their version."""
        ...


@dataclass(frozen=True)
class PartialRow:
    """The part of a row that an engine has sampled before it gave the row up."""

    tokens: list[int]
    logprobs: list[float]
    over: bool = False
    """The row has ended, or nobody wants more of it."""
    finished: bool = False
    """The row ended by itself, not at `max_tokens`."""


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
    joins: bool
    """Its rows come in while the rows of other calls are sampled; else when those have ended."""
    more: bool = False
    """When its rows have ended others of the same number may follow, until it is dismissed."""
    beside: int = 0
    """The most rows of other calls for which a token was sampled together with rows of this one: the engine counts
    them."""
    leaves: bool = False
    """The call may be given up: it is made with `parts`, even where it has a single part."""
    begun: Sequence[PartialRow] | None = None
    """What exists of each row: it goes on from there. Rows that others have begun are sampled beside those of other
    calls, not in their places."""
    limit: int | None = None
    """Unfinished rows with as many tokens are given up, and come without tokens (`Admits.limit`); None: there is no
    limit. The engine sets it."""
    left: Mapping[int, Sequence[PartialRow]] = field(default_factory=dict)
    """What exists of the rows of each part that had not ended when a call of `parts` was given up (`Admits.leave`). The
    engine sets it."""


class Generates(HasWeights, Protocol):
    """The role of an engine whose operations are `generate` and `interact`."""

    def generate(
        self,
        prompts: Sequences,
        n: int,
        sampling: Sampling,
        row_keys: np.ndarray,
        weights: State | None = None,
        refresh: WeightRefresh | None = None,
    ) -> Generation:
        """Sample `n` responses for each prompt, with `weights` in place of the model's own if given.

        refresh: where new weights may come meanwhile, for an engine that `rereads`: unfinished rows go on with them as
        if these had read their prompts and the tokens so far. An engine that `admits` also takes an `admission`, see
        there. One that `orders` takes `expected: Sequence[float] | None`, for each prompt the tokens that its responses
        are expected to have: it begins with those that have most. The result is the same.

        The token at place t of row r is a function of the weights, the row's tokens, row_keys[r] (uint64 [N * n]) and
        t. A token's log-probability is log softmax(logits / temperature) over the whole vocabulary, also under top_p,
        top_k and min_tokens, and at temperature 1 when decoding greedily: what `logprobs` gives for the same tokens.
        """
        ...


class LimitsCache(Generates, Protocol):
    """The role of an engine whose spec has the setting `kv_bytes`."""

    def roomier(self, tokens: int) -> Holding | None:
        """Return what the plan has to say of the model for a cache that has room for a row of so many tokens. None: the
        plan says nothing of a cache, or no cache would do, because positions do not reach as far."""
        ...


class Streams(Generates, Protocol):
    """The role of an engine that `streams`."""

    def parts(
        self,
        prompts: Sequences,
        n: int,
        sampling: Sampling,
        row_keys: np.ndarray,
        sizes: Sequence[int],
        refresh: WeightRefresh | None = None,
    ) -> Iterator[tuple[int, Generation]]:
        """Yield what `generate` gives in parts, for the first so many prompts, for the next ones, and so on: each part
        when its last row ends, with its number."""
        ...


class Admits(Streams, Protocol):
    """The role of an engine that `admits`. Its `generate` and `parts` take an `admission: Admission | None`: with one,
    the call samples nothing itself. It hands its rows over, from any thread, and waits for them; the thread that calls
    `drive` samples."""

    def drive(self, number: int) -> None:
        """Sample until the rows of the call of this number have ended, once they are handed over, or where `more` may
        follow until it is dismissed; rows of calls that join come in between two tokens. All ranks of a replica drive
        the same calls in the same order, and begin each before the same token."""
        ...

    def leave(self, number: int) -> None:
        """Make the call of this number, which is a call of `parts`, give up its unfinished rows: what exists of them is
        then in its admission. Called at all ranks of a replica; the rows leave before the same token."""
        ...

    def limit(self, number: int, tokens: int) -> None:
        """Make the call of this number give up the unfinished rows that have so many tokens, now and later on; they
        come without tokens, and nobody goes on with them. Called at all ranks of a replica, whenever the limit
        falls."""
        ...

    def dismiss(self, number: int) -> None:
        """Note that the caller of the call of this number is done with it, or failed to make it: nobody drives it any
        more. Called once for each number that is driven."""
        ...


class Scores(HasWeights, Protocol):
    """The role of an engine that has some of these operations; it implements those that its spec names.

    They build a graph for gradients exactly where torch's gradient mode is on. Dropout is off everywhere, in training
    too: the log-probability of a row is a function of the weights alone.
    """

    def logprobs(self, sequences: Sequences, temperature: float = 1.0) -> Tensor:
        """Return log softmax(logits / temperature) of each scored token, float [total scored]."""
        ...

    def entropy(self, sequences: Sequences, temperature: float = 1.0) -> Tensor:
        """Return the entropy in nats of the distribution that each scored token was sampled from, float [total
        scored]."""
        ...

    def values(self, sequences: Sequences) -> Tensor:
        """Return the value of the state before each scored token, float [total scored]."""
        ...

    def score(self, sequences: Sequences) -> Tensor:
        """Return the scalar at each row's last token, float [N]."""
        ...


class Trains(HasWeights, Protocol):
    """The role of an engine whose operation is `train`."""

    def train_step(
        self, blocks: Sequence[Any], micro: Callable[[Any], MicroBatch], options: TrainOptions, step: int
    ) -> dict[str, float]:
        """Make one update with the gradient of the sum of the losses of `micro(block)` over the blocks of all
        data-parallel ranks (a rank may have none), and return its `loss`, its `grad_norm` (before clipping) and its
        `lr`.

        Where no rank has a row (`Micro.has_rows`) all of them raise `NoRows`, and leave weights and moments as they
        are: decay and momentum alone are no update.
        """
        ...

    def plan_blocks(self, lengths: Tensor, token_budget: int | None = None) -> list[Tensor]:
        """Return blocks for `train_step`: row indices, int64, of rows of these lengths, int64 [N]."""
        ...


class Accumulates(Trains, Protocol):
    """The role of an engine that `accumulates`. `train_step` calls these three one after the other."""

    def clear_gradients(self) -> None:
        """Forget the gradients that were added up. All data-parallel ranks call it together, as they do
        `apply_gradients`."""
        ...

    def add_gradients(self, blocks: Sequence[Any], micro: Callable[[Any], MicroBatch]) -> None:
        """Add the gradient of the sum of the losses of `micro(block)` to the accumulated ones; this rank's alone, for
        the weights as they are. After a failure they are to be cleared."""
        ...

    def apply_gradients(self, options: TrainOptions, step: int, scale: float = 1.0) -> dict[str, float]:
        """Make one update with `scale` times the gradients of all data-parallel ranks, and the same of the losses;
        return what `train_step` returns. Raises `NoRows` as that does."""
        ...


Training = tuple[Any, Sequence[Any], Callable[[Any], MicroBatch]]
"""A model of this process, and what its `add_gradients` is given."""


class PipelineNeighbours(Protocol):
    """Other processes on this one's device, which have other models of its pipeline: models that are split
    differently."""

    def turns(self, models: Sequence[Model], counts: Sequence[int]) -> Sequence[ProcessTurn]:
        """Return what this process does when, after and before whom. models: its own, as
        `rlgraph.passes.pipelines.counted` describes them with one micro-batch; counts: their micro-batches. All
        processes of the pipeline call it."""
        ...

    def wait(self, model: int) -> None:
        """Wait until the process that has a model is done with what comes before."""
        ...

    def hand(self, model: int) -> None:
        """Give the turn to the process that has a model."""
        ...


class FusesPipelines(Accumulates, Protocol):
    """The role of an engine that `fuses`: models of one group can have their stages one way or the other
    (`Rank.turned`)."""

    def add_together(self, trainings: Sequence[Training], beside: PipelineNeighbours | None = None) -> None:
        """Call `add_gradients` for several models that do not depend on each other, this one among them, as
        micro-batches of one pipeline. All ranks of a replica call it with the same. beside: the other processes that
        share the pipeline."""
        ...


class Offloads(HasWeights, Protocol):
    """The role of an engine that `sleeps`. While a model is offloaded, its `tensors` are copies in the host's memory:
    weights are sent from there, and written there, of which it hears when it wakes up. Nothing is computed with it, and
    no other rank takes part in its sleeping and waking."""

    @property
    def rest(self) -> Offloader:
        """Moves the model's tensors between device and host."""
        ...

    def sleep(self, keep: bool = True) -> OffloadRecord:
        """Give the memory of the device back. keep: the weights are needed again; else new ones are brought when it is
        awake, before anybody computes with it."""
        ...

    def wake(self) -> OffloadRecord:
        """Take the memory again, with all that was kept."""
        ...


class KeepsMoments(HasWeights, Protocol):
    """The role of an engine that trains, and `keeps_moments`: its runs can be saved on the way."""

    def moments(self) -> Moments:
        """Return what the optimizer keeps of this rank's weights, live; nothing before the first update."""
        ...

    def begin_moments(self, kinds: Collection[str], steps: float) -> Moments:
        """Continue after so many updates: what these kinds had then is to be written into what this returns. The
        weights are loaded already. All ranks call it together."""
        ...


class Saves(HasWeights, Protocol):
    """The role of an engine that `saves`."""

    def save(self, folder: str | Path) -> None:
        """Write a folder that a model source can name."""
        ...


class Engine(Generates, Scores, Trains, Protocol):
    """An engine that has all roles of a plan. A process only uses the roles that the engine's spec names: a plan gives
    it no other work."""


class Embedded(Engine, KeepsMoments, Saves, Protocol):
    """The engine of the user's own process, with a Hugging Face model."""

    @property
    def model(self) -> Any:
        """The Hugging Face model."""
        ...

    def copy(self) -> Embedded:
        """Return the same model with weights of its own and no optimizer."""
        ...
