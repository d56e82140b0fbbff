"""The engine of Hugging Face models, on one machine or split over ranks: generation, log-probabilities, values, scores
and training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from rlgraph.backends.engines.adapters import attach_adapters, copy_with_shared_base, share_base
from rlgraph.backends.engines.device import choose_visible_device
from rlgraph.backends.engines.errors import EngineError, NoRoutes
from rlgraph.backends.engines.likeliest import LikeliestTokens
from rlgraph.backends.engines.meter import WorkMeter
from rlgraph.backends.engines.micro_batches import plan_micro_batches
from rlgraph.backends.engines.offload import Offloader, OffloadRecord
from rlgraph.backends.engines.optimizer import Optimizer
from rlgraph.backends.engines.rank_weights import RankWeights
from rlgraph.backends.engines.records import Generation, Rank, Sampling, State
from rlgraph.backends.engines.roles import WeightRefresh
from rlgraph.backends.engines.scoring import ScoringMixin
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.engines.sources import LoadedModel, ModelSpec, load, max_positions_in_config
from rlgraph.backends.engines.transformers.attention import use_attention
from rlgraph.backends.engines.transformers.autocast import forget_bfloat16_copies, use_autocast
from rlgraph.backends.engines.transformers.decode import SpecialTokens, generate
from rlgraph.backends.engines.transformers.experts import use_grouped_experts
from rlgraph.backends.engines.transformers.forward_passes import ForwardPasses
from rlgraph.backends.engines.transformers.head import Head, wide_dtype
from rlgraph.backends.engines.transformers.joint_sums import KeptReader, answer_sums, distinct_others
from rlgraph.backends.engines.transformers.layout import layout, local_tensor, shard_range
from rlgraph.backends.engines.transformers.linear import use_onednn_linears
from rlgraph.backends.engines.transformers.mixture import MixtureNetwork
from rlgraph.backends.engines.transformers.network import Network
from rlgraph.backends.engines.transformers.norm import use_manual_norm_gradients
from rlgraph.backends.engines.transformers.probe import check_causality, refuse_on_error
from rlgraph.backends.engines.transformers.recompute import recompute_with_routes, use_recomputation
from rlgraph.backends.engines.transformers.replicas import Replicas
from rlgraph.backends.engines.transformers.sharded import SplitReplica
from rlgraph.backends.engines.transformers.training import TrainingMixin
from rlgraph.backends.engines.transformers.writing import save_model
from rlgraph.backends.engines.vocabulary_sums import OtherModel, VocabularySum
from rlgraph.backends.enginespec.memory import GrowingCache, HeadTiles
from rlgraph.catalog.models.config_shape import shape_of
from rlgraph.catalog.models.shape import UnsupportedModel
from rlgraph.ir.layout import LocalTensor
from rlgraph.ir.mesh import make_mesh

T = TypeVar("T")


def open_rank(model: ModelSpec, rank: Rank) -> TransformersEngine:
    """Open a replica of a model or a rank's part of it, which takes its optimizer's steps together with those of the
    other ranks. Raises EngineError."""
    device = choose_visible_device(rank.device)
    copies = apart = None
    if rank.mesh.rank_count > 1:
        rank.join()
    if rank.mesh.replica_size > 1:
        apart = SplitReplica(rank.mesh, rank.number, device)
    if rank.mesh.axis_size("dp") > 1:
        copies = Replicas(apart.same_part_group if apart else None)
    # Micro-batches run side by side on CPU cores alone: one fills a GPU, and several would fill its memory.
    threads = rank.threads if device == "cpu" and apart is None else 1
    engine = TransformersEngine.open(
        model,
        threads=threads,
        device=device,
        recompute=rank.holding.recompute,
        attention=rank.holding.attention,
        gather=rank.holding.gather,
        optimizer=rank.holding.optimizer,
        copies=copies,
        apart=apart,
        beside=rank.base_engine,
        **rank.micro_batch_options(),
    )
    engine.offloader = Offloader(rank.memory_counters)
    return engine


class TransformersEngine(RankWeights, ScoringMixin, TrainingMixin):
    """An engine with one model. It implements `EmbeddedEngine`; `open` makes one from a source.

    Where the ranks of a replica shard it they get the same calls with the same rows, in the same order, and each has
    all results; such a replica does not save by itself, and generates where no parameters are sharded.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        spec: ModelSpec,
        *,
        threads: int = 1,
        recompute: bool = False,
        attention: str = "",
        gather: str = "",
        optimizer: str = "",
        block_tokens: int = 2048,
        head_tiles: HeadTiles = HeadTiles(),  # noqa: B008
        logit_numbers: int = 1 << 25,
        cache_tokens: int = GrowingCache().max_decoded_tokens,
        copies: Replicas | None = None,
        apart: SplitReplica | None = None,
    ) -> None:
        """Take a model that is loaded.

        threads: row blocks computed side by side, each by one thread; 1 leaves parallelism to torch's own operators.
        recompute: training keeps each layer's inputs alone, and computes the rest again. attention: as transformers
        calls a way to compute it; empty: the model's own choice. gather: for how long ranks that shard the model keep
        what they gather in training, as the spec says; empty: `layer`. optimizer: where its state is kept, as the spec
        says; empty: `device`. block_tokens: tokens in a block, padded ones
        where rows are padded. head_tiles: how a head that is one matrix is computed. logit_numbers: most logits of
        another head that are computed at a time. cache_tokens: places of the key-value cache, of all rows together,
        that are decoded at a time. copies: the replicas in other processes that train on other rows. apart: the ranks
        that have split the model: those that shard its parameters compute with a shard of the rows each, those that
        split its layers with a part of all rows.
        """
        self.spec = spec
        self.codec = loaded.codec
        self.new_parameters = loaded.new_parameters
        self.model = loaded.model
        self.threads, self.copies, self._recompute = threads, copies, recompute
        self._apart, self._gathers_once = apart, gather == "update"
        self._optimizer_on_host = optimizer == "host"
        self._shards, self._split = (apart.shards, apart.tensors) if apart else (None, None)
        self._block_tokens, self._cache_tokens = block_tokens, cache_tokens
        self._head_tiles, self._logit_numbers = head_tiles, logit_numbers
        if spec.autocast:
            if apart is not None:
                raise EngineError("products in bfloat16 (`autocast`) are for models that each process holds entire")
            use_autocast(self.model)
        use_onednn_linears(self.model)
        use_manual_norm_gradients(self.model)
        use_attention(self.model, attention)
        use_grouped_experts(self.model)
        if recompute:
            use_recomputation(self.model)
        self._network = self._run_model(lambda: self._new_network())
        recompute_with_routes(self.model, self._network.routing)
        self._packs = self._run_model(lambda: self._network.can_pack)
        self._shares = self._run_model(lambda: self._network.can_share_prefixes)
        self._optimizer: Optimizer | None = None
        self.clear_gradients()
        self.offloader, self.meter = Offloader(), WorkMeter()
        self._pool: Executor | None = None
        if threads > 1:
            self._pool = ThreadPoolExecutor(threads, "engine", initializer=torch.set_num_threads, initargs=(1,))
        outputs = self.model.config.get_text_config().vocab_size if spec.kind == "causal_lm" else 1
        places = max(1, logit_numbers // -(-outputs // (self._split.size if self._split else 1)))
        self._head = Head(self._network, head_tiles, places, self._split)
        self._reader = ForwardPasses(self._network, block_tokens, threads, self._pool, self._shards, self.meter)

    @classmethod
    def open(
        cls,
        spec: ModelSpec,
        *,
        device: str = "cpu",
        apart: SplitReplica | None = None,
        beside: TransformersEngine | None = None,
        **options: Any,
    ) -> TransformersEngine:
        """Load the model of `spec`. A source that cannot be used raises EngineError, a model that does not compute what
        this engine asks of it ModelRefused.

        beside: an engine that has the same base, which neither changes: the base is not copied. options: the others of
        the constructor.
        """
        # It is loaded and split on the host, since all of it may have no room on a device.
        loaded = load(spec, device if apart is None else "cpu") if beside is None else beside._lend(spec)
        if apart is not None:
            apart.split_model(loaded.model, spec.kind, lent=beside is not None)
        with refuse_on_error(loaded.model):
            engine = cls(loaded, spec, apart=apart, **options)
            generates = spec.kind == "causal_lm" and spec.generates and engine._shards is None
            engine._run_model(lambda: check_causality(engine._network, generates))
        return engine

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The tokens that end a response: the tokenizer's, and those of the model's generation settings."""
        settings = getattr(self.model, "generation_config", None)
        return self.codec.end_token_ids(getattr(settings, "eos_token_id", None))

    def generate(
        self,
        prompts: Sequences,
        n: int,
        sampling: Sampling,
        row_keys: np.ndarray,
        weights: State | None = None,
        refresh: WeightRefresh | None = None,
        expected: Sequence[float] | None = None,
        mixture: Sequence[tuple[Any, float]] = (),
    ) -> Generation:
        """Sample `n` responses for each prompt, with `weights` in place of the model's own if given. expected: for each
        prompt the tokens of its responses; rows that have as many are sampled together, and those with most first.
        mixture: as in `MixesModels`."""
        self._require("generate")
        if sampling.keeps_routes and self._network.routing is None:
            raise NoRoutes(f"{type(self.model).__name__} has no routers of experts that could be replayed")
        assert self._shards is None, "the spec says that it does not"
        ends = SpecialTokens(self.eos_ids, self.codec.pad_id, self.codec.start_id)
        with nullcontext() if weights is None else self.temporary_weights(weights):
            return generate(
                self._mixed(mixture) if mixture else self._network,
                prompts,
                n,
                sampling,
                row_keys,
                ends,
                pool=self._pool,
                threads=self.threads,
                block_tokens=self._cache_tokens,
                refresh=refresh,
                agreed=self._split.are_all_ranks_ready if self._split else bool,
                expected=expected,
                meter=self.meter,
            )

    def _mixed(self, mixture: Sequence[tuple[Any, float]]) -> MixtureNetwork:
        """Return the network of a mixture of this model and others."""
        engines = [self._engine_beside(OtherModel(engine, None)) or self for engine, _ in mixture]
        return MixtureNetwork([engine._network for engine in engines], [weight for _, weight in mixture])

    def _answer(self, sequences: Sequences, ops: Sequence[Any], temperature: float = 1.0) -> list[Any]:
        """Return the answers of some operations for the same rows, from one pass."""
        for op in ops:
            self._require(op)
        if "score" in ops:
            if len(sequences) and int(sequences.lengths.min()) == 0:
                raise EngineError("a row without tokens has no score")
            return [self._reader.last_token_outputs(sequences)]
        if "values" in ops:
            return self._reader.scored_token_outputs(sequences, self._head.values, len(ops))

        sums = [op for op in ops if isinstance(op, VocabularySum)]
        others = distinct_others(sums)
        engines = [self._engine_beside(other) for other in others]
        heads = [None if engine is None else engine._head for engine in engines]

        def read(hidden: Tensor, tokens: Tensor, *beside: Tensor) -> list[Any]:
            answers = answer_sums(self._head, hidden, sums, temperature, others, heads, beside)
            for op in ops:
                if isinstance(op, LikeliestTokens):
                    answers[op] = self._head.likeliest(hidden, op, temperature)
            rest = [op for op in ops if isinstance(op, str)]
            if rest:
                answers.update(zip(rest, self._head.logprobs(hidden, tokens, rest, temperature), strict=True))
            return [answers[op] for op in ops]

        beside = [
            (KeptReader(wide_dtype(self.model.dtype)) if engine is None else engine._reader, other.sequences)
            for engine, other in zip(engines, others, strict=True)
        ]
        return self._reader.scored_token_outputs(sequences, read, len(ops), beside)

    def head_answers(self, sequences: Sequences, ops: Sequence[Any], temperature: float = 1.0) -> list[Tensor]:
        """Return `logprobs`, `entropy` and sums over the vocabulary of the same rows from one pass over the model."""
        return self._answer(sequences, ops, temperature)

    def _engine_beside(self, other: OtherModel) -> TransformersEngine | None:
        """Return the engine of a model that is read beside this one; None: it is likeliest tokens. Raises EngineError
        where it cannot be."""
        engine = other.engine
        if engine is None:
            return None
        if not isinstance(engine, TransformersEngine) or engine._reader.is_sharded or self._reader.is_sharded:
            raise EngineError("models that are read together are those of one process, without `fsdp`")
        ranks = [of._split.size if of._split else 1 for of in (self, engine)]
        if ranks[0] != ranks[1]:
            raise EngineError(f"models that are read together are split alike, not over {ranks} ranks")
        return engine

    def plan_micro_batches(self, lengths: Tensor, token_budget: int | None = None) -> list[Tensor]:
        """Return micro-batches for `train_step`: row indices, as `engines.blocks.plan_micro_batches` cuts them for this
        engine's threads. Ranks that shard the model take a shard of each block's rows."""
        ranks = self._shards.size if self._shards else 1
        budget, ordered = (token_budget or self._block_tokens) * ranks, self._packs and self._shares
        return plan_micro_batches(lengths, budget, self.threads, packed=self._packs, ordered=ordered)

    def save(self, folder: str | Path) -> None:
        """Write model and tokenizer as a folder that `from_pretrained` and a model source can read; for a model with
        adapters only these, as PEFT does."""
        assert self._apart is None, "no rank has all of it"
        contents = self.offloader.on_device_or_host(self.model.state_dict())
        save_model(self.model, contents, self.tensors(), self.spec, self.codec, Path(folder))

    def _lend(self, spec: ModelSpec) -> LoadedModel:
        """Load the model of `spec` on this one's base."""
        model = share_base(self.model, spec.kind)
        if spec.adapters is not None:
            attach_adapters(model, spec.adapters, spec.kind)
        return LoadedModel(model, self.codec, self.new_parameters)

    def copy(self) -> TransformersEngine:
        """Return the same model with weights of its own, except a base that adapters share, and no optimizer."""
        assert self._apart is None, "each rank opens its part"
        return TransformersEngine(
            LoadedModel(copy_with_shared_base(self.model), self.codec, self.new_parameters),
            self.spec,
            threads=self.threads,
            recompute=self._recompute,
            optimizer="host" if self._optimizer_on_host else "",
            block_tokens=self._block_tokens,
            head_tiles=self._head_tiles,
            logit_numbers=self._logit_numbers,
            cache_tokens=self._cache_tokens,
            copies=self.copies,
        )

    @property
    def max_row_tokens(self) -> int | None:
        """The most tokens of a row; None: positions have no end."""
        return max_positions_in_config(self.model.config)

    @property
    def has_results(self) -> bool:
        """Whether this rank has results: it is a whole replica, or the first one of those that split a replica."""
        return self._apart is None or self._apart.is_first_rank

    def layout(self) -> tuple[LocalTensor, ...]:
        """Return all of every tensor, or this rank's part; in the terms of its family where that is known, else each by
        its own name."""
        split, rank = (self._apart.mesh, self._apart.rank) if self._apart else (make_mesh(), 0)
        try:
            shape = shape_of(self.model.config.get_text_config().to_dict())
        except UnsupportedModel:
            shapes = self._shards.full_shapes if self._shards else {}
            return tuple(
                local_tensor(name, shapes[name], shard_range(split, rank, shapes[name][0]))
                if name in shapes
                else local_tensor(name, tuple(tensor.shape), None)
                for name, tensor in self.tensors().items()
            )
        return layout(replace(shape, adapters=self.spec.adapters), split, rank, self.spec.kind)

    def tensors(self) -> dict[str, Tensor]:
        """Return the live parameters and persistent buffers by name, tied ones once; for a model with adapters only
        these: the others are the same everywhere."""
        return self.offloader.on_device_or_host(self._held if self.spec.adapters is None else self._trained)

    def note_weights_written(self) -> None:
        """Copy the weights into the optimizer's wide copies, and give narrow ones up."""
        forget_bfloat16_copies(self.model)
        if self.offloader.mark_changed() and self._optimizer is not None:
            self._optimizer.refresh_master_weights()

    def sleep(self, keep: bool = True) -> OffloadRecord:
        """Give the memory of weights, moments and gradients back, and that of the base of adapters."""
        forget_bfloat16_copies(self.model, base=True)
        lost = () if keep else self.tensors().values()
        copied_tensors = [
            *self._held.values(),
            *(self._optimizer.state_tensors() if self._optimizer and not self._optimizer.is_on_host else ()),
        ]
        gradients = [gradient for gradient in self._gradients if gradient is not None]
        return self.offloader.sleep(copied_tensors, once=gradients, lost=lost)

    @contextmanager
    def temporary_weights(self, state: State) -> Iterator[None]:
        """Compute with the tensors of `state` while the context lasts; nothing is copied. Not for two threads at a
        time."""
        # Tensors may lie where those of another state were.
        forget_bfloat16_copies(self.model)
        try:
            with super().temporary_weights(state):
                yield
        finally:
            forget_bfloat16_copies(self.model)

    @property
    def _held(self) -> dict[str, Tensor]:
        """All parameters and persistent buffers by name, or this rank's parts of them."""
        persistent = self.model.state_dict().keys()
        all_parameters: dict[str, Tensor] = dict(self.model.named_parameters())
        parameters = self._shards.parameters if self._shards else all_parameters
        return parameters | {name: buffer for name, buffer in self.model.named_buffers() if name in persistent}

    def _new_network(self) -> Network:
        gathered = {"gathered": self._split.gather_logits} if self._split and self.spec.kind == "causal_lm" else {}
        return Network(self.model, self.codec.pad_id, autocast=self.spec.autocast is not None, **gathered)

    def _run_model(self, work: Callable[[], T]) -> T:
        """Run `work`, which calls the model."""
        return self._shards.run(work) if self._shards else work()
