"""What an engine offers, and the small records that its callers pass and get."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from torch import Tensor

from rlgraph.backends.engines.offload import Arenas, Sleeper, Switched
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.catalog.models.heads import no_head
from rlgraph.ir.layout import Local
from rlgraph.ir.mesh import Mesh, mesh
from rlgraph.ir.plan import Holding
from rlgraph.ops.optimizers import ADAMW, Optimizer

if TYPE_CHECKING:
    from rlgraph.backends.engines.moments import Moments
    from rlgraph.backends.engines.sources import ModelSpec
    from rlgraph.backends.engines.tokenizers import Codec
    from rlgraph.passes.pipelines.problem import Model
    from rlgraph.passes.pipelines.time_sharing import Turn

State = dict[str, Tensor]
"""A model's parameters and persistent buffers by name."""


class EngineError(ValueError):
    """Something a user can act on: a missing model, a prompt without a chat template, a gradient that is not
    finite."""


class HubError(EngineError):
    """A model of the hub that cannot be had."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        """What to do."""


class NotFinite(EngineError):
    """A gradient with NaN or infinity in it: the weights, and what the optimizer keeps, were left as they are."""


class NoRows(EngineError):
    """An update of which no rank has a row: nothing has changed, and it does not count as one."""

    def __init__(self) -> None:
        super().__init__("there are no rows to train on: the weights were left as they are")


class HalfChanged(EngineError):
    """An update that failed after it had begun to write: the weights are neither the old ones nor the new ones."""


class NoHead(EngineError):
    """A value or reward model whose head is not in its files, and that nothing trains: it would say 0 of every row."""

    def __init__(self, kind: str, source: str) -> None:
        super().__init__(no_head(kind, source))


class ModelRefused(EngineError):
    """A model that was loaded, and for which the engine would compute something else than what it is asked for."""


@dataclass(frozen=True)
class Rank:
    """Which rank of a group an engine is opened for, and how the group holds the model."""

    mesh: Mesh = field(default_factory=mesh)
    number: int = 0
    holding: Holding = field(default=Holding("", ""))
    threads: int = 1
    """Of an engine that computes micro-batches side by side."""
    join: Callable[[], None] = lambda: None
    """Makes this process a rank of torch's default process group, which is the group's; once is enough for all models
    of a process."""
    address: str | None = None
    """Of `rlgraph.backends.engines.process_groups.listen`, on the machine of its first rank, where the ranks of this
    data-parallel copy can meet."""
    device: str | None = None
    """As torch names it; None: see `rlgraph.backends.engines.device`."""
    beside: Any = None
    """An engine in this process that has the same base, whose weights never change: both can hold it together."""
    arenas: Arenas = field(default_factory=Arenas)
    """What the models of this process that go to sleep have where."""
    turned: bool = False
    """The model's stages lie the other way round, the first one on the last ranks: only of an engine that `fuses`."""

    def blocks(self) -> dict[str, Any]:
        """The padded tokens of a micro-batch, where the plan says how many."""
        return {"block_tokens": self.holding.micro_tokens} if self.holding.micro_tokens else {}


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen."""

    max_tokens: int
    """Longest response, in tokens; a row that reaches it is not `finished`."""
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
    """Of each prompt's samples only so many are wanted, those that end first: see
    `rlgraph.backends.engines.first_done`. An engine may give the others up once it is certain which those are. 0: all
    are wanted."""

    def __post_init__(self) -> None:
        _require(self.max_tokens >= 0, f"max_tokens must not be negative, got {self.max_tokens}")
        _require(self.min_tokens >= 0, f"min_tokens must not be negative, got {self.min_tokens}")
        _require(self.temperature >= 0, f"temperature must not be negative, got {self.temperature}")
        _require(0 < self.top_p <= 1, f"top_p must be above 0 and at most 1, got {self.top_p}")
        _require(self.top_k >= 0, f"top_k must not be negative, got {self.top_k}")


@dataclass(frozen=True)
class Generation:
    """What was generated for N prompts, n rows each; row i * n + k is sample k of prompt i."""

    sequences: Sequences
    """N * n rows: the prompt, and the response as its scored tokens, the end-of-sequence token included."""
    logprobs: Tensor
    """float [total scored]: of the sampled tokens, under the whole distribution (see `Generates.generate`)."""
    finished: Tensor
    """bool [N * n]: the row ended by itself, not at `max_tokens`. One that was given up has fewer tokens, and is not
    finished."""
    versions: Tensor | None = None
    """int64 [total scored]: of the weights that sampled each token, where new ones could come meanwhile (`Refresh`)."""


@dataclass(frozen=True)
class TrainOptions:
    """One model's optimizer, and a learning rate that depends on the number of the update."""

    lr: float
    """Peak learning rate."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """After the warm-up: keep the peak, or fall to `final_lr` at `total_steps` in a line or half a cosine."""
    warmup_steps: int = 0
    """Updates over which the rate rises in a line to its peak."""
    total_steps: int | None = None
    """Where `linear` and `cosine` end, in updates."""
    final_lr: float = 0.0
    """The rate from there on."""
    optimizer: Optimizer = ADAMW
    settings: Mapping[str, float] = field(default_factory=dict)
    """Of the optimizer; of those that are not said its defaults hold."""
    clip_norm: float | None = None
    """Scale the gradient down to this global norm; None or 0: do not."""

    def __post_init__(self) -> None:
        _require(self.schedule in ("constant", "linear", "cosine"), f"no schedule is called {self.schedule!r}")
        _require(
            self.schedule == "constant" or self.total_steps is not None,
            f"the {self.schedule} schedule needs total_steps",
        )

    def setting(self, name: str) -> float:
        """One of the optimizer's numbers."""
        return self.settings.get(name, self.optimizer.default(name))

    def learning_rate(self, step: int) -> float:
        """The rate of update `step`, counted from 0."""
        if step < self.warmup_steps:
            return self.lr * (step + 1) / self.warmup_steps
        if self.schedule == "constant" or self.total_steps is None:
            return self.lr
        done = min(1.0, (step - self.warmup_steps) / max(1, self.total_steps - self.warmup_steps))
        left = 1 - done if self.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
        return self.final_lr + (self.lr - self.final_lr) * left


@dataclass(frozen=True)
class Call:
    """What a loss asks of the model that is trained."""

    op: Literal["logprobs", "entropy", "values", "score"]
    sequences: Sequences
    temperature: float = 1.0
    """Of `logprobs` and `entropy`."""


@dataclass(frozen=True)
class Micro:
    """A micro-batch of a train step. The loss of the step is the sum over all micro-batches of all data-parallel
    ranks."""

    calls: tuple[Call, ...]
    """Answered together, with gradients: one pass over the model reads all their rows."""
    loss: Callable[[Sequence[Tensor]], Tensor]
    """From the answers, in the order of `calls`, to this micro-batch's part of the loss. Called exactly once on each
    rank that has the answers (all tensor-parallel ranks of the last pipeline stage), never on others."""

    @property
    def has_rows(self) -> bool:
        """The model is asked about rows; a loss that has no calls is taken to ask by itself."""
        return not self.calls or any(len(call.sequences) for call in self.calls)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise EngineError(message)


# Roles


class HasWeights(Protocol):
    """One rank's part of a model, and where it lies, for whoever moves weights. Every engine has this role."""

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def codec(self) -> Codec: ...

    @property
    def speaks(self) -> bool:
        """Whether this rank has results: the last pipeline stage's first tensor-parallel rank. On other ranks
        results are zeros of the right shape, and nobody reads them."""
        ...

    @property
    def longest(self) -> int | None:
        """Most tokens of a row, prompt and response together: as far as the model's positions reach, and a cache that
        is as large as the plan says (`Caches`). None: they have no end."""
        ...

    def layout(self) -> Sequence[Local]:
        """The tensors that this rank holds, in global terms."""
        ...

    def tensors(self) -> Mapping[str, Tensor]:
        """The live tensors by the names of `layout`, a layer's number, counted on this rank, in place of `*`."""
        ...

    def written(self) -> None:
        """Told after somebody wrote into `tensors`: wide copies are read again, caches of old weights dropped."""
        ...

    def state(self) -> State:
        """A copy of the weights."""
        ...

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over these weights; the optimizer's moments stay."""
        ...

    def blend(self, other: Mapping[str, Tensor], ema: float) -> None:
        """Move towards `other`: weights = ema * weights + (1 - ema) * other."""
        ...


class Refresh(Protocol):
    """New weights for a model, while it samples. An engine that `rereads` asks for them before it samples each token,
    also the first one. Whoever brings them writes into its `tensors` and says so, in the thread that asked."""

    @property
    def version(self) -> int:
        """Of the weights that are there."""
        ...

    @property
    def waits(self) -> bool:
        """Whether new ones can be taken now. All ranks of a copy take them before the same token: once they wait at
        each of them."""
        ...

    def take(self) -> int:
        """Takes them: their version."""
        ...


@dataclass(frozen=True)
class Begun:
    """What there is of a row that somebody has begun and given up."""

    tokens: list[int]
    logprobs: list[float]
    over: bool = False
    """It has ended, or nobody wants more of it."""
    finished: bool = False
    """It ended by itself, not at `max_tokens`."""


class GivenUp(Exception):
    """The rows of a call that have not ended go on elsewhere."""

    def __init__(self, rows: Mapping[int, Begun]) -> None:
        super().__init__()
        self.rows = rows


@dataclass(eq=False)
class Admission:
    """How the rows of a call come among those that an engine samples, where it `admits`."""

    number: int
    """Of the call; the same at all ranks of a copy."""
    joins: bool
    """While the rows of other calls are sampled; else when they have ended."""
    more: bool = False
    """When its rows have ended others of the same number may follow, until it is dismissed."""
    beside: int = 0
    """Most rows of other calls that a token was sampled for together with rows of this one: the engine counts them."""
    leaves: bool = False
    """It may be given up: `parts` does it, of a single part, too."""
    begun: Sequence[Begun] | None = None
    """For each row what there is of it: it goes on from there. Rows that others have begun are sampled beside those of
    other calls, not in their places."""
    limit: int | None = None
    """Rows with as many tokens that have not ended are given up, and come without tokens (`Admits.limit`); None: none.
    The engine says it."""
    left: Mapping[int, Sequence[Begun]] = field(default_factory=dict)
    """Of `parts`, when the call was given up (`Admits.leave`): for each part that has not ended what there is of its
    rows. The engine says it."""


class Generates(HasWeights, Protocol):
    """Of an engine whose operations are `generate` and `interact`."""

    def generate(
        self,
        prompts: Sequences,
        n: int,
        sampling: Sampling,
        row_keys: np.ndarray,
        weights: State | None = None,
        refresh: Refresh | None = None,
    ) -> Generation:
        """Sample `n` responses for each prompt, with `weights` in place of the model's own if given.

        refresh: where new weights may come meanwhile, of an engine that `rereads`: rows that have not ended go on with
        them as if these had read their prompts and the tokens so far. One that `admits` also takes an `admission`, see
        there. And one that `orders` takes `expected: Sequence[float] | None`, for each prompt the tokens that its
        responses are expected to have: it begins with those that have most. What it gives is the same.

        The token at place t of row r is a function of the weights, the row's tokens, row_keys[r] (uint64 [N *
        n]) and t. A token's log-probability is log softmax(logits / temperature) over the whole vocabulary,
        also under top_p, top_k and min_tokens, and at temperature 1 when decoding greedily: what `logprobs`
        gives for the same tokens.
        """
        ...


class Caches(Generates, Protocol):
    """Of an engine whose spec has the setting `kv_bytes`."""

    def roomier(self, tokens: int) -> Holding | None:
        """What the plan has to say of the model, with a cache that has room for a row of so many tokens. None: the
        plan says nothing of a cache, or no cache would do, because positions do not reach as far."""
        ...


class Streams(Generates, Protocol):
    """Of an engine that `streams`."""

    def parts(
        self,
        prompts: Sequences,
        n: int,
        sampling: Sampling,
        row_keys: np.ndarray,
        sizes: Sequence[int],
        refresh: Refresh | None = None,
    ) -> Iterator[tuple[int, Generation]]:
        """What `generate` gives, of the first so many prompts, of the next ones, and so on: each part when its last row
        ends, with its number."""
        ...


class Admits(Streams, Protocol):
    """Of an engine that `admits`. Its `generate` and `parts` take an `admission: Admission | None`: with one, the call
    samples nothing itself. It hands its rows over, from any thread, and waits for them; the thread that calls `drive`
    samples."""

    def drive(self, number: int) -> None:
        """Samples until the rows of the call of this number have ended, once they are handed over, or where `more` may
        follow until it is dismissed; rows of calls that join come in between two tokens. All ranks of a copy drive the
        same calls in the same order, and begin each before the same token."""
        ...

    def leave(self, number: int) -> None:
        """Has the call of this number, which is a call of `parts`, give up the rows that have not ended: what there is
        of them its admission has. Called at all ranks of a copy; the rows leave before the same token."""
        ...

    def limit(self, number: int, tokens: int) -> None:
        """Has the call of this number give up the rows that have so many tokens and have not ended, now and later on;
        they come without tokens, and nobody goes on with them. Called at all ranks of a copy, as often as there are
        fewer."""
        ...

    def dismiss(self, number: int) -> None:
        """Who made the call of this number, or failed to, is done with it: nobody drives it any more. Called once for
        each number that is driven."""
        ...


class Scores(HasWeights, Protocol):
    """Of an engine with one of these operations; it has those that it names.

    They build a graph for gradients exactly where torch's gradient mode is on. Dropout is off everywhere, in training
    too: the log-probability of a row is a function of the weights alone.
    """

    def logprobs(self, sequences: Sequences, temperature: float = 1.0) -> Tensor:
        """log softmax(logits / temperature) of each scored token, float [total scored]."""
        ...

    def entropy(self, sequences: Sequences, temperature: float = 1.0) -> Tensor:
        """Entropy in nats of the distribution that each scored token was sampled from, float [total scored]."""
        ...

    def values(self, sequences: Sequences) -> Tensor:
        """The value of the state before each scored token, float [total scored]."""
        ...

    def score(self, sequences: Sequences) -> Tensor:
        """The scalar at each row's last token, float [N]."""
        ...


class Trains(HasWeights, Protocol):
    """Of an engine whose operation is `train`."""

    def train_step(
        self, blocks: Sequence[Any], micro: Callable[[Any], Micro], options: TrainOptions, step: int
    ) -> dict[str, float]:
        """One update with the gradient of the sum of the losses of `micro(block)` over the blocks of all
        data-parallel ranks (a rank may have none): its `loss`, its `grad_norm` (before clipping), its `lr`.

        Where no rank has a row (`Micro.has_rows`) all of them raise `NoRows`, and leave weights and moments as they
        are: decay and momentum alone are no update.
        """
        ...

    def plan_blocks(self, lengths: Tensor, token_budget: int | None = None) -> list[Tensor]:
        """Blocks for `train_step`: row indices, int64, of rows of these lengths, int64 [N]."""
        ...


class Accumulates(Trains, Protocol):
    """Of an engine that `accumulates`. `train_step` does these three one after the other."""

    def clear_gradients(self) -> None:
        """Forget what was added up. All data-parallel ranks call it together, as they do `apply_gradients`."""
        ...

    def add_gradients(self, blocks: Sequence[Any], micro: Callable[[Any], Micro]) -> None:
        """Add the gradient of the sum of the losses of `micro(block)` to those that are there; this rank's alone, for
        the weights as they are. After a failure they are to be cleared."""
        ...

    def apply_gradients(self, options: TrainOptions, step: int, scale: float = 1.0) -> dict[str, float]:
        """One update with `scale` times the gradients of all data-parallel ranks, and the same of the losses: what
        `train_step` returns. Raises `NoRows` as that does."""
        ...


Training = tuple[Any, Sequence[Any], Callable[[Any], Micro]]
"""A model of this process, and what its `add_gradients` is given."""


class Beside(Protocol):
    """Other processes on the device of this one, which have other models of its pipeline: models that are split
    unlike."""

    def turns(self, models: Sequence[Model], counts: Sequence[int]) -> Sequence[Turn]:
        """What this process does when, after and before whom. models: its own, as `rlgraph.passes.pipelines.counted`
        says with one micro-batch; counts: their micro-batches. All processes of the pipeline call it."""
        ...

    def wait(self, model: int) -> None:
        """Until the process that has a model is done with what comes before."""
        ...

    def hand(self, model: int) -> None:
        """It is the turn of the process that has a model."""
        ...


class Fuses(Accumulates, Protocol):
    """Of an engine that `fuses`: models of one group can have their stages one way or the other (`Rank.turned`)."""

    def add_together(self, trainings: Sequence[Training], beside: Beside | None = None) -> None:
        """`add_gradients` of several models that do not depend on each other, this one among them, as micro-batches of
        one pipeline. All ranks of a copy call it with the same. beside: others with whom they share it, or it does."""
        ...


class Sleeps(HasWeights, Protocol):
    """Of an engine that `sleeps`. While a model does, its `tensors` are copies in the host's memory: weights are sent
    from there, and written there, of which it hears when it wakes up. Nothing is computed with it, and no other rank
    takes part in its sleeping and waking."""

    @property
    def rest(self) -> Sleeper: ...

    def sleep(self, keep: bool = True) -> Switched:
        """Gives the memory of the device back. keep: the weights are needed again; else new ones are brought when it is
        awake, before anybody computes with it."""
        ...

    def wake(self) -> Switched:
        """Takes the memory again, with all that was kept."""
        ...


class Keeps(HasWeights, Protocol):
    """Of an engine that trains, and `keeps_moments`: its runs can be saved on the way."""

    def moments(self) -> Moments:
        """What the optimizer keeps of this rank's weights, live; nothing before the first update."""
        ...

    def begin_moments(self, kinds: Collection[str], steps: float) -> Moments:
        """Continue after so many updates: what these kinds had then is to be written into what this returns. The
        weights are there already. All ranks call it together."""
        ...


class Saves(HasWeights, Protocol):
    """Of an engine that `saves`."""

    def save(self, folder: str | Path) -> None:
        """Write a folder that a model source can name."""
        ...


class Engine(Generates, Scores, Trains, Protocol):
    """Who plays all roles of a plan. Of what a process has of a model only those are asked that the engine's spec
    names: a plan gives it no other work."""


class Embedded(Engine, Keeps, Saves, Protocol):
    """The engine of the user's own process, with a Hugging Face model."""

    @property
    def model(self) -> Any: ...

    def copy(self) -> Embedded:
        """The same model with weights of its own and no optimizer."""
        ...
