"""The roles that an engine can have."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from rlgraph.backends.engines.likeliest import KeptTokens
from rlgraph.backends.engines.moments import Moments
from rlgraph.backends.engines.offload import Offloader, OffloadRecord
from rlgraph.backends.engines.records import Generation, MicroBatch, Sampling, State, TrainOptions
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.engines.sources import ModelSpec
from rlgraph.backends.engines.tokenizers import Codec
from rlgraph.backends.engines.vocabulary_sums import OtherModel
from rlgraph.ir.layout import LocalTensor
from rlgraph.ir.plan import ModelHolding
from rlgraph.passes.pipelines.messages import StageTransfer
from rlgraph.passes.pipelines.problem import PipelineModel
from rlgraph.passes.pipelines.time_sharing import ProcessTurn


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
    def has_results(self) -> bool:
        """Whether this rank has results: the last pipeline stage's first tensor-parallel rank. On other ranks results
        are zeros of the right shape, and nobody reads them."""
        ...

    @property
    def max_row_tokens(self) -> int | None:
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

    def note_weights_written(self) -> None:
        """Take note that somebody wrote into `tensors`: wide copies are read again, caches of old weights dropped."""
        ...

    def state(self) -> State:
        """Return a copy of the weights."""
        ...

    def load_weights(self, state: Mapping[str, Tensor]) -> None:
        """Take over these weights; the optimizer's moments stay."""
        ...

    def blend(self, other: Mapping[str, Tensor], ema: float) -> None:
        """Move towards `other`: weights = ema * weights + (1 - ema) * other."""
        ...


class WeightRefresh(Protocol):
    """Provides new weights for a model while it samples. An engine that `rereads` asks for them before it samples each
    token, also the first one. Whoever brings them writes into its `tensors` and calls `note_weights_written`,
    in the thread that asked."""

    @property
    def version(self) -> int:
        """The version of the present weights."""
        ...

    @property
    def can_take_weights(self) -> bool:
        """Whether new weights can be taken now. All ranks of a replica take them before the same token: once they wait
        at each of them."""
        ...

    def take_weights(self) -> int:
        """Take the new weights and return their version."""
        ...


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


class MixesModels(Generates, Protocol):
    """The role of an engine that `mixes`. Its `generate` takes a `mixture: Sequence[tuple[Any, float]]`: engines of
    several models in its process, itself the first one, with weights. A token is sampled from the softmax of the
    weighted sum of their logits, and its log-probability is that of this distribution."""


class LimitsCache(Generates, Protocol):
    """The role of an engine whose spec has the setting `kv_bytes`."""

    def holding_for_longer_rows(self, tokens: int) -> ModelHolding | None:
        """Return what the plan has to say of the model for a cache that has room for a row of so many tokens. None: the
        plan says nothing of a cache, or no cache would do, because positions do not reach as far."""
        ...


class StreamsRows(Generates, Protocol):
    """The role of an engine that `streams`."""

    def generate_in_parts(
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


class AdmitsCalls(StreamsRows, Protocol):
    """The role of an engine that `admits`. Its `generate` and `generate_in_parts` take an `admission: Admission |
    None`: with one, the call samples nothing itself. It hands its rows over, from any thread, and waits for them; the
    thread that calls `sample_until_call_done` samples."""

    def sample_until_call_done(self, number: int) -> None:
        """Sample until the rows of the call of this number have ended, once they are handed over, or where `more` may
        follow until it is dismissed; rows of calls that join come in between two tokens. All ranks of a replica drive
        the same calls in the same order, and begin each before the same token."""
        ...

    def give_up_rows(self, number: int) -> None:
        """Make the call of this number, which is a call of `generate_in_parts`, give up its unfinished rows: what
        exists of them is then in its admission. Called at all ranks of a replica; the rows leave before the same
        token."""
        ...

    def give_up_longer_rows(self, number: int, tokens: int) -> None:
        """Make the call of this number give up the unfinished rows that have so many tokens, now and later on; they
        come without tokens, and nobody goes on with them. Called at all ranks of a replica, whenever the limit
        falls."""
        ...

    def dismiss_call(self, number: int) -> None:
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

    def distribution(
        self,
        sequences: Sequences,
        temperature: float = 1.0,
        formula: str = "",
        others: tuple[OtherModel, ...] = (),
        reduce: str = "sum",
    ) -> Tensor:
        """Return the sum over the vocabulary, or the `mean` or `max`, of a formula of this model's probabilities, `p0`,
        and those of others, `p1`, `p2`, ..., through which no gradient goes, for each scored token; float [total
        scored]. Likeliest tokens that were kept come behind the models; their probabilities are what they are, and 0 of
        all others. Numbers of each token, `x3` for example, come last."""
        ...

    def likeliest(
        self, sequences: Sequences, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
    ) -> KeptTokens:
        """Return the likeliest tokens in the place of each scored token, those that a sampler with these options keeps,
        likeliest first, on the host. 0: `top_k` leaves none out."""
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

        Where no rank has a row (`MicroBatch.has_rows`) all of them raise `NoRows`, and leave weights and moments as
        they are: decay and momentum alone are no update.
        """
        ...

    def plan_micro_batches(self, lengths: Tensor, token_budget: int | None = None) -> list[Tensor]:
        """Return blocks for `train_step`: row indices, int64, of rows of these lengths, int64 [N]."""
        ...


class AccumulatesGradients(Trains, Protocol):
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

    def plan_turns(
        self, models: Sequence[PipelineModel], counts: Sequence[int]
    ) -> Sequence[ProcessTurn | StageTransfer]:
        """Return what this process does when, after and before whom, and its messages. models: its own, as
        `rlgraph.passes.pipelines.relative_costs` describes them with one micro-batch; counts: their micro-batches. All
        processes of the pipeline call it."""
        ...

    def wait_for_turn(self, model: int) -> None:
        """Wait until the process that has a model is done with what comes before."""
        ...

    def pass_turn(self, model: int) -> None:
        """Give the turn to the process that has a model."""
        ...


class FusesPipelines(AccumulatesGradients, Protocol):
    """The role of an engine that `fuses`: models of one group can have their stages one way or the other
    (`Rank.reversed_stages`)."""

    def add_gradients_jointly(self, trainings: Sequence[Training], beside: PipelineNeighbours | None = None) -> None:
        """Call `add_gradients` for several models that do not depend on each other, this one among them, as
        micro-batches of one pipeline. All ranks of a replica call it with the same. beside: the other processes that
        share the pipeline."""
        ...


class Offloads(HasWeights, Protocol):
    """The role of an engine that `sleeps`. While a model is offloaded, its `tensors` are copies in the host's memory:
    weights are sent from there, and written there, of which it hears when it wakes up. Nothing is computed with it, and
    no other rank takes part in its sleeping and waking."""

    @property
    def offloader(self) -> Offloader:
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

    def allocate_moments(self, kinds: Collection[str], steps: float) -> Moments:
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


class EmbeddedEngine(Engine, KeepsMoments, Saves, Protocol):
    """The engine of the user's own process, with a Hugging Face model."""

    @property
    def model(self) -> Any:
        """The Hugging Face model."""
        ...

    def copy(self) -> EmbeddedEngine:
        """Return the same model with weights of its own and no optimizer."""
        ...
