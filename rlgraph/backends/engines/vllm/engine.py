"""The engine that generates with vLLM, for one tensor-parallel rank of one replica of a model."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlgraph.backends.engines.errors import EngineError, NoRoutes
from rlgraph.backends.engines.merging import MergedAdapters, initial_adapters
from rlgraph.backends.engines.offload import MemoryCounters, OffloadRecord
from rlgraph.backends.engines.records import Admission, Generation, PartialRow, Rank, RowsAbandoned, Sampling, State
from rlgraph.backends.engines.roles import WeightRefresh
from rlgraph.backends.engines.sampling import check_row_keys, with_start_token
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.engines.sources import ModelSpec
from rlgraph.backends.engines.vllm.call_sampler import CallSampler
from rlgraph.backends.engines.vllm.calls import GenerateCall, Sample
from rlgraph.backends.engines.vllm.environment import has_no_gpu, import_vllm, temporary_model_folder
from rlgraph.backends.engines.vllm.experts import UnpackedExperts
from rlgraph.backends.engines.vllm.layout import layout, split_size_and_rank
from rlgraph.backends.engines.vllm.native_lora import NativeLora
from rlgraph.backends.engines.vllm.offload import kv_cache_tensors, make_offloader, offloaded_weights
from rlgraph.backends.engines.vllm.routes import whole_routes
from rlgraph.backends.engines.vllm.sampled_row import CallSamplingSettings
from rlgraph.backends.engines.vllm.source import VllmModelSource, read_model_source
from rlgraph.backends.engines.vllm.spec import SPEC
from rlgraph.backends.engines.vllm.start import EngineLimits, limits_in_plan, min_cache_bytes, start_engine
from rlgraph.backends.engines.weights import fill_tensors
from rlgraph.catalog.clusters.cluster import DeviceKind
from rlgraph.ir.layout import LocalTensor
from rlgraph.ir.mesh import Mesh, make_mesh
from rlgraph.ir.plan import ModelHolding

_ALONE = make_mesh()
_VIEW_SUFFIXES = (".W_UV", ".W_UK_T")
"""Parts of the matrix that makes keys and values, in its memory and with names of their own: whoever writes into that
matrix has written into them."""
_WRAPPED_SUFFIX = ".base_layer"
"""The ending of the name of a layer that has an adapter beside it."""


def _generation(
    starts: Sequence[list[int]],
    samples: Sequence[Sample],
    version_of: Mapping[int, int],
    routes_shape: tuple[int, int] | None,
) -> Generation:
    """Return the samples as a `Generation`. version_of: the versions of the engine's counts of its weights, where
    somebody has told them. routes_shape: layers that have experts, and experts of a token, where rows have theirs."""
    logprobs = [logprob for sample in samples for logprob in sample.logprobs]
    kept = [tokens for sample in samples for tokens in sample.support]
    versions = [
        version_of[version]
        for sample in samples
        for version, *span in sample.versions
        for _ in range(*span)
        if version_of
    ]
    sequences = Sequences.from_pairs(starts, [sample.tokens for sample in samples])
    if routes_shape is not None:
        routes = [
            whole_routes(sample.routes, routes_shape, tokens)
            for sample, tokens in zip(samples, sequences.lengths.tolist(), strict=True)
        ]
        none = torch.zeros((0, *routes_shape), dtype=torch.int16)
        sequences = replace(sequences, routes=torch.cat([none, *routes]))
    return Generation(
        sequences,
        torch.tensor(logprobs, dtype=torch.float32),
        torch.tensor([sample.finished for sample in samples], dtype=torch.bool),
        torch.tensor(versions, dtype=torch.int64) if version_of else None,
        kept[0].concat(kept[1:]) if kept else None,
    )


def open_rank(model: ModelSpec, rank: Rank) -> VllmEngine:
    """Open this rank's part of a replica of a model. Raises EngineError."""
    limits = asdict(limits_in_plan(rank.holding))
    engine = VllmEngine.open(model, rank.mesh, rank.number, address=rank.address, **limits)
    engine.holding, engine.keeps = rank.holding, rank.holding.keep
    engine.offloader = make_offloader(engine._engine, rank.memory_counters)
    return engine


def _adapting(spec: ModelSpec, source: VllmModelSource, wanted: str) -> str:
    """Return how adapters are held: as wanted, else in the first way that is exact. Raises EngineError where it cannot
    hold them so."""
    if spec.adapters is None:
        return ""
    device: DeviceKind = "cpu" if has_no_gpu() else "gpu"
    ways = SPEC.adapter_ways(source.shape, spec.dtype, device)
    if faults := SPEC.adapter_faults(wanted, source.shape):
        raise EngineError(f"the engine vllm {', and '.join(faults)}")
    return wanted or ways[0]


class VllmEngine(CallSampler):
    """One rank's part of a language model that generates. It implements `AdmitsCalls`.

    All ranks of a replica, each in a process of its own, get the same calls in the same order. Replicas along dp know
    nothing of each other. The rows of several calls are sampled together: whoever takes a step, takes it for all of
    them.
    """

    def __init__(self, spec: ModelSpec, source: VllmModelSource, engine: Any, mesh: Mesh, rank: int) -> None:
        """Wrap a vLLM engine that is started; `open` does that."""
        super().__init__(engine, mesh, rank)
        self.spec, self.codec, self.eos_ids = spec, source.codec, source.eos_ids
        self.holding = ModelHolding("", "")
        """What the plan says of the model here."""
        self._shape = source.shape
        self._experts = UnpackedExperts(self.model)
        self.offloader = make_offloader(engine, MemoryCounters())
        self._adapted: MergedAdapters | NativeLora | None = None
        """The adapters, where the model has some: merged into its weights, or apart."""

    @classmethod
    def open(
        cls, spec: ModelSpec, mesh: Mesh = _ALONE, rank: int = 0, *, address: str | None = None, **limits: Any
    ) -> VllmEngine:
        """Start the engine and load this rank's part of the model of `spec`.

        address: of `rlgraph.backends.engines.process_groups.open_store`, where the ranks of this replica meet. limits:
        the fields of `rlgraph.backends.engines.vllm.start.EngineLimits`. Raises EngineError where it cannot be done.
        """
        # vLLM keeps the stack frames of its first import, and their locals with them: these frames have no weights.
        import_vllm()
        return cls._load(spec, mesh, rank, address, EngineLimits(**limits))

    @classmethod
    def _load(cls, spec: ModelSpec, mesh: Mesh, rank: int, address: str | None, limits: EngineLimits) -> VllmEngine:
        source = read_model_source(spec, mesh)
        limits = replace(limits, adapters=_adapting(spec, source, limits.adapters))
        beside = limits.adapters == "apart"
        with temporary_model_folder(source.write_config) as folder:
            engine = start_engine(folder, spec, source.shape, mesh, rank, address, limits)
        loaded = cls(spec, source, engine, mesh, rank)
        tensors, pieces = loaded._parameters(), layout(loaded._shape, mesh, rank, spec.kind)
        fill_tensors(tensors, pieces, source.weights)
        if spec.adapters is not None and beside:
            sample = next(iter(tensors.values()))
            adapters = NativeLora(engine, spec.adapters, initial_adapters(spec.adapters, loaded.layout(), sample))
            loaded._adapted, loaded._lora_request = adapters, adapters.request
        elif spec.adapters is not None:
            loaded._adapted = MergedAdapters(spec.adapters, loaded.layout(), tensors, pieces)
        loaded._experts.repack()
        loaded._drop_cache()
        return loaded

    @property
    def model(self) -> nn.Module:
        """vLLM's own module, of this rank."""
        [module] = self._engine.apply_model(lambda model: model)
        assert isinstance(module, nn.Module)
        return module

    @property
    def max_row_tokens(self) -> int:
        """The most tokens of a row, prompt and response together."""
        return int(self._engine.model_config.max_model_len)

    def holding_for_longer_rows(self, tokens: int) -> ModelHolding | None:
        """Return what a plan has to say for rows of so many tokens; None if it says nothing of the cache, or they are
        longer than positions reach."""
        if not self.holding.kv_bytes or tokens > self._shape.positions:
            return None
        return replace(self.holding, kv_bytes=min_cache_bytes(self.spec, self._shape, self._mesh, tokens))

    def generate(
        self,
        prompts: Sequences,
        n: int,
        sampling: Sampling,
        row_keys: np.ndarray,
        weights: State | None = None,
        refresh: WeightRefresh | None = None,
        admission: Admission | None = None,
        expected: Sequence[float] | None = None,
    ) -> Generation:
        """Sample `n` responses for each prompt, with `weights`, of this rank's tensors, in place of its own if
        given."""
        if weights is not None and admission is None:
            with self.temporary_weights(weights):
                return self.generate(prompts, n, sampling, row_keys, expected=expected)
        [(_, generation)] = self.generate_in_parts(
            prompts, n, sampling, row_keys, [len(prompts)], refresh, admission, weights, expected
        )
        return generation

    def generate_in_parts(
        self,
        prompts: Sequences,
        n: int,
        sampling: Sampling,
        row_keys: np.ndarray,
        sizes: Sequence[int],
        refresh: WeightRefresh | None = None,
        admission: Admission | None = None,
        weights: State | None = None,
        expected: Sequence[float] | None = None,
    ) -> Iterator[tuple[int, Generation]]:
        """Yield what `generate` gives in parts, for the first so many prompts, for the next ones, and so on: each part
        when its last row ends, with its number. weights: only with an admission."""
        starts = with_start_token(prompts, self.codec.start_id).rows()
        bounds = [(first * n, last * n) for first, last in pairwise(accumulate(sizes, initial=0))]
        part_of = np.repeat(np.arange(len(sizes)), [last - first for first, last in bounds])
        missing = [last - first for first, last in bounds]
        ended: dict[int, Sample] = {}
        known: dict[int, int] = {}
        routes_shape = self._shape.routes_of_token if sampling.keeps_routes else None
        yield from ((part, _generation([], [], known, routes_shape)) for part, rows in enumerate(missing) if not rows)
        try:
            for sample in self.stream(prompts, n, sampling, row_keys, refresh, known, admission, weights, expected):
                ended[sample.row] = sample
                part = int(part_of[sample.row])
                missing[part] -= 1
                if not missing[part]:
                    rows = range(*bounds[part])
                    own_starts, samples = [starts[row // n] for row in rows], [ended.pop(row) for row in rows]
                    yield part, _generation(own_starts, samples, known, routes_shape)
        except RowsAbandoned as exception:
            assert admission is not None
            progress = {
                row: PartialRow(sample.tokens, sample.logprobs, True, sample.finished, sample.support)
                for row, sample in ended.items()
            }
            progress |= exception.rows
            unfinished = [part for part, rows in enumerate(missing) if rows]
            admission.rows_given_up = {part: [progress[row] for row in range(*bounds[part])] for part in unfinished}

    def stream(
        self,
        prompts: Sequences,
        n: int,
        sampling: Sampling,
        row_keys: np.ndarray,
        refresh: WeightRefresh | None = None,
        known: dict[int, int] | None = None,
        admission: Admission | None = None,
        weights: State | None = None,
        expected: Sequence[float] | None = None,
    ) -> Generator[Sample, None, None]:
        """Yield the samples of `generate`, each as soon as it ends. known: gets the version of each weights that
        `refresh` brings, by this engine's count. expected: for each prompt the tokens of its samples; those with most
        begin first.

        Between two of them somebody may write into `tensors` and call `note_weights_written`: rows that are being
        generated go on with the new weights. Several streams may be open, and go on together. A stream that is closed
        gives its other rows up. A row that certainly is not one of `sampling.first` is given up, too: it comes without
        tokens.
        """
        keys = np.ascontiguousarray(row_keys, dtype=np.uint64)
        prompts = with_start_token(prompts, self.codec.start_id)
        self._check(prompts, n, sampling, keys)
        if not sampling.max_tokens or not len(keys):
            yield from (Sample(row, [], [], False, ()) for row in range(len(keys)))
            return
        recorder: Any = self.model.route_recorder if sampling.keeps_routes else None
        batch = CallSamplingSettings(sampling, self._stops(sampling), admission, recorder)
        known = {} if known is None else known
        call = GenerateCall(batch, prompts.rows(), n, keys.tolist(), refresh, known, admission, weights, expected)
        if admission is not None:
            try:
                call.deliver_finished()
                self._desk.hand_over_call(admission.number, call)
                for _ in keys:
                    yield call.next_sample()
            finally:
                call.is_abandoned = True
            return
        yield from self._sampled(call)

    @property
    def has_results(self) -> bool:
        """Whether this is the first rank of its replica: the others generate the same."""
        return split_size_and_rank(self._mesh, self._rank)[1] == 0

    def layout(self) -> tuple[LocalTensor, ...]:
        """Return the tensors that this rank holds, in global terms; for a model with adapters all of these."""
        return SPEC.transferred_tensors(self._shape, self._mesh, self._rank, self.spec.kind)

    def tensors(self) -> dict[str, Tensor]:
        """Return the parameters by vLLM's names: live ones, and for experts that vLLM packs what `note_weights_written`
        packs. For a model with adapters return these, which `note_weights_written` merges into the parameters."""
        return self.offloader.on_device_or_host(self._parameters() if self._adapted is None else self._adapted.tensors)

    def _parameters(self) -> dict[str, Tensor]:
        parameters = self.model.named_parameters()
        by_name = {
            name.replace(_WRAPPED_SUFFIX, ""): parameter.data
            for name, parameter in parameters
            if not name.endswith(_VIEW_SUFFIXES)
        }
        return by_name | {**self._experts.tensors}

    def note_weights_written(self) -> None:
        """Take note of new weights: what was computed with the old ones is computed again, also for rows that are being
        generated, and the next tokens carry the next version."""
        if not self.offloader.mark_changed():
            return
        self.version += 1
        if self._adapted is not None:
            self._adapted.apply_new_adapters()
        self._experts.repack()
        self._drop_cache()

    def sleep(self, keep: bool = True) -> OffloadRecord:
        """Give the memory of weights and cache back; nothing is being generated. For a model with adapters the base is
        kept in any case: others bring adapters alone."""
        assert not self._calls, "rows are being generated"
        self._drop_cache()
        lost = [*kv_cache_tensors(self._engine), *(() if keep else self.tensors().values())]
        if not keep and self._adapted is None:
            # Packed experts are made again from the new ones.
            lost += self.model.parameters()
        return self.offloader.sleep(offloaded_weights(self.model, self._experts.tensors, self._adapted), lost=lost)

    @contextmanager
    def temporary_weights(self, state: State) -> Iterator[None]:
        """Generate with `state` in place of the weights while the context lasts: they are copied in, and back."""
        originals = self.state()
        self.load_weights(state)
        try:
            yield
        finally:
            self.load_weights(originals)

    def _check(self, prompts: Sequences, n: int, sampling: Sampling, keys: np.ndarray) -> None:
        check_row_keys(keys, prompts, n)
        if sampling.keeps_routes and not self._shape.experts:
            raise NoRoutes("this model has no routers of experts that could be replayed")
        most = int(prompts.lengths.max()) if len(keys) else 0
        if most + sampling.max_tokens > self.max_row_tokens:
            raise EngineError(
                f"a prompt of {most} tokens and up to {sampling.max_tokens} generated ones are more than the "
                f"{self.max_row_tokens} that a row of this model may have: shorten the prompts or lower max_tokens"
            )

    def _stops(self, sampling: Sampling) -> tuple[int, ...]:
        """Return the tokens that end a row."""
        stops = {*self.eos_ids, *sampling.stop_ids}
        return tuple(sorted(stop for stop in stops if 0 <= stop < self._shape.vocab))
