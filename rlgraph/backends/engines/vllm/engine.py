"""The engine that generates with vLLM, for one tensor-parallel rank of one replica of a model."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import accumulate, chain, count, pairwise
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.engines.first_done import is_decided
from rlgraph.backends.engines.merging import MergedAdapters, initial_adapters
from rlgraph.backends.engines.offload import MemoryCounters, OffloadRecord
from rlgraph.backends.engines.records import Admission, Generation, PartialRow, Rank, RowsAbandoned, Sampling, State
from rlgraph.backends.engines.roles import WeightRefresh
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.engines.sources import ModelSpec
from rlgraph.backends.engines.vllm.calls import CallQueue, RowCall, Sample
from rlgraph.backends.engines.vllm.environment import on_cpu, prepare
from rlgraph.backends.engines.vllm.experts import UnpackedExperts
from rlgraph.backends.engines.vllm.layout import layout, ranks
from rlgraph.backends.engines.vllm.native_lora import NativeLora
from rlgraph.backends.engines.vllm.offload import cache_tensors, make_offloader, weights
from rlgraph.backends.engines.vllm.source import Source, read_source
from rlgraph.backends.engines.vllm.spec import SPEC
from rlgraph.backends.engines.vllm.start import Limits, cache_for, limits_of, start
from rlgraph.backends.engines.weights import blend, clone_tensors, fill_tensors, overwrite_weights
from rlgraph.catalog.clusters.cluster import DeviceKind
from rlgraph.ir.layout import LocalTensor
from rlgraph.ir.mesh import Mesh, mesh
from rlgraph.ir.plan import Holding

if TYPE_CHECKING:
    from rlgraph.backends.engines.vllm.sampling import Row

_ALONE = mesh()
_VIEW_SUFFIXES = (".W_UV", ".W_UK_T")
"""Parts of the matrix that makes keys and values, in its memory and with names of their own: whoever writes into that
matrix has written into them."""
_WRAPPED_SUFFIX = ".base_layer"
"""The ending of the name of a layer that has an adapter beside it."""
_NO_CALL = 1 << 62
"""More than the number of any call."""


def _generation(starts: Sequence[list[int]], samples: Sequence[Sample], version_of: Mapping[int, int]) -> Generation:
    """Return the samples as a `Generation`. version_of: the versions of the engine's counts of its weights, where
    somebody has told them."""
    logprobs = [logprob for sample in samples for logprob in sample.logprobs]
    versions = [
        version_of[version]
        for sample in samples
        for version, *span in sample.versions
        for _ in range(*span)
        if version_of
    ]
    return Generation(
        Sequences.from_pairs(starts, [sample.tokens for sample in samples]),
        torch.tensor(logprobs, dtype=torch.float32),
        torch.tensor([sample.finished for sample in samples], dtype=torch.bool),
        torch.tensor(versions, dtype=torch.int64) if version_of else None,
    )


def open_rank(model: ModelSpec, rank: Rank) -> VllmEngine:
    """Open this rank's part of a replica of a model. Raises EngineError."""
    limits = asdict(limits_of(rank.holding))
    engine = VllmEngine.open(model, rank.mesh, rank.number, address=rank.address, **limits)
    engine.holding, engine.keeps = rank.holding, rank.holding.keep
    engine.rest = make_offloader(engine._engine, rank.arenas)
    return engine


def _adapting(spec: ModelSpec, source: Source, wanted: str) -> str:
    """Return how adapters are held: as wanted, else in the first way that is exact. Raises EngineError where there is
    none."""
    if spec.adapters is None:
        return ""
    device: DeviceKind = "cpu" if on_cpu() else "gpu"
    ways = SPEC.adapts(source.shape, spec.dtype, device)
    if (wanted or ways) and (not wanted or wanted in ways):
        return wanted or ways[0]
    tried = [wanted] if wanted else SPEC.adapters
    reasons = [text for way in tried for text in SPEC.unheld(way, source.shape, spec.dtype, device)]
    raise EngineError(f"the engine vllm {', and '.join(reasons)}")


class VllmEngine:
    """One rank's part of a language model that generates. It implements `Admits`.

    All ranks of a replica, each in a process of its own, get the same calls in the same order. Replicas along dp know
    nothing of each other. The rows of several calls are sampled together: whoever takes a step, takes it for all of
    them.
    """

    def __init__(self, spec: ModelSpec, source: Source, engine: Any, mesh: Mesh, rank: int) -> None:
        """Wrap a vLLM engine that is started; `open` does that."""
        self.spec, self.codec, self.eos_ids = spec, source.codec, source.eos_ids
        self.version = 0
        """Counts how often somebody wrote into the weights."""
        self.holding = Holding("", "")
        """What the plan says of the model here."""
        self.keeps = False
        """Rows that are being generated go on with what was computed of them with older weights."""
        self._calls: dict[int, RowCall] = {}
        """The calls whose rows are being generated, in the order in which they began."""
        self._numbers = count()
        self._desk = CallQueue()
        self._shape, self._engine, self._mesh, self._rank = source.shape, engine, mesh, rank
        self._experts = UnpackedExperts(self.model)
        self.rest = make_offloader(engine, MemoryCounters())
        self._merged: MergedAdapters | None = None
        """The adapters, where the model has some and they are merged into its weights."""
        self._beside: NativeLora | None = None
        """The adapters, where they are not merged."""

    @classmethod
    def open(
        cls, spec: ModelSpec, mesh: Mesh = _ALONE, rank: int = 0, *, address: str | None = None, **limits: Any
    ) -> VllmEngine:
        """Start the engine and load this rank's part of the model of `spec`.

        address: of `rlgraph.backends.engines.process_groups.listen`, where the ranks of this replica meet. limits: the
        fields of `rlgraph.backends.engines.vllm.start.Limits`. Raises EngineError where it cannot be done.
        """
        # vLLM keeps the stack frames of its first import, and their locals with them: these frames have no weights.
        prepare()
        return cls._load(spec, mesh, rank, address, Limits(**limits))

    @classmethod
    def _load(cls, spec: ModelSpec, mesh: Mesh, rank: int, address: str | None, limits: Limits) -> VllmEngine:
        source = read_source(spec, mesh)
        limits = replace(limits, adapters=_adapting(spec, source, limits.adapters))
        beside = limits.adapters == "apart"
        with TemporaryDirectory() as folder:
            source.describe(folder)
            engine = start(folder, spec, source.shape, mesh, rank, address, limits)
        loaded = cls(spec, source, engine, mesh, rank)
        tensors, pieces = loaded._parameters(), layout(loaded._shape, mesh, rank, spec.kind)
        fill_tensors(tensors, pieces, source.weights)
        if spec.adapters is not None and beside:
            sample = next(iter(tensors.values()))
            loaded._beside = NativeLora(engine, spec.adapters, initial_adapters(spec.adapters, loaded.layout(), sample))
        elif spec.adapters is not None:
            loaded._merged = MergedAdapters(spec.adapters, loaded.layout(), tensors, pieces)
        loaded._experts.pack()
        loaded._drop_cache()
        return loaded

    @property
    def model(self) -> nn.Module:
        """vLLM's own module, of this rank."""
        module: nn.Module = self._engine.model_executor.driver_worker.worker.model_runner.model
        return module

    @property
    def longest(self) -> int:
        """The most tokens of a row, prompt and response together."""
        return int(self._engine.model_config.max_model_len)

    def roomier(self, tokens: int) -> Holding | None:
        """Return what a plan has to say for rows of so many tokens; None if it says nothing of the cache, or they are
        longer than positions reach."""
        if not self.holding.kv_bytes or tokens > self._shape.positions:
            return None
        return replace(self.holding, kv_bytes=cache_for(self.spec, self._shape, self._mesh, tokens))

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
            with self.weights(weights):
                return self.generate(prompts, n, sampling, row_keys, expected=expected)
        [(_, generation)] = self.parts(
            prompts, n, sampling, row_keys, [len(prompts)], refresh, admission, weights, expected
        )
        return generation

    def parts(
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
        starts = self._with_start(prompts).rows()
        bounds = [(first * n, last * n) for first, last in pairwise(accumulate(sizes, initial=0))]
        part_of = np.repeat(np.arange(len(sizes)), [last - first for first, last in bounds])
        missing = [last - first for first, last in bounds]
        ended: dict[int, Sample] = {}
        known: dict[int, int] = {}
        yield from ((part, _generation([], [], known)) for part, rows in enumerate(missing) if not rows)
        try:
            for sample in self.stream(prompts, n, sampling, row_keys, refresh, known, admission, weights, expected):
                ended[sample.row] = sample
                part = int(part_of[sample.row])
                missing[part] -= 1
                if not missing[part]:
                    rows = range(*bounds[part])
                    yield part, _generation([starts[row // n] for row in rows], [ended.pop(row) for row in rows], known)
        except RowsAbandoned as exception:
            assert admission is not None
            progress = {
                row: PartialRow(sample.tokens, sample.logprobs, True, sample.finished) for row, sample in ended.items()
            }
            progress |= exception.rows
            unfinished = [part for part, rows in enumerate(missing) if rows]
            admission.left = {part: [progress[row] for row in range(*bounds[part])] for part in unfinished}

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

        Between two of them somebody may write into `tensors` and call `written`: rows that are being generated go on
        with the new weights. Several streams may be open, and go on together. A stream that is closed gives its other
        rows up. A row that certainly is not one of `sampling.first` is given up, too: it comes without tokens.
        """
        keys = np.ascontiguousarray(row_keys, dtype=np.uint64)
        prompts = self._with_start(prompts)
        self._check(prompts, n, sampling, keys)
        if not sampling.max_tokens or not len(keys):
            yield from (Sample(row, [], [], False, ()) for row in range(len(keys)))
            return
        from rlgraph.backends.engines.vllm.sampling import Batch

        batch = Batch(sampling, self._stops(sampling), admission)
        known = {} if known is None else known
        call = RowCall(batch, prompts.rows(), n, keys.tolist(), refresh, known, admission, weights, expected)
        if admission is not None:
            try:
                call.hand_on()
                self._desk.hand(admission.number, call)
                for _ in keys:
                    yield call.next()
            finally:
                call.dropped = True
            return
        self._admit(call)
        try:
            for _ in keys:
                while call.samples.empty():
                    self._step()
                yield call.next()
        finally:
            self._drop(call)

    def drive(self, number: int) -> None:
        """Sample until nothing more comes of the call of this number, once its rows are handed over; rows of calls that
        join come in between two tokens."""
        call = self._desk.wait(number)
        try:
            if call is not None:
                self._drive(number, call)
        except BaseException as error:
            calls = [*self._calls.values(), *([call] if call else [])]
            for open_call in calls:
                open_call.samples.put(error)
            for open_call in calls:
                self._drop(open_call)
            raise
        finally:
            self._desk.over(number)

    def _drive(self, number: int, call: RowCall) -> None:
        if call.weights is not None:
            with self.weights(call.weights):
                self._finish(number)
        else:
            self._finish(number)

    def _finish(self, number: int) -> None:
        while not self._admit_next(number):
            if self._calls:
                self._step()
            else:
                self._desk.await_more(number)

    def leave(self, number: int) -> None:
        """Make the call of this number give up its unfinished rows."""
        self._desk.leave(number)

    def limit(self, number: int, tokens: int) -> None:
        """Make the call of this number give up the unfinished rows that have so many tokens."""
        self._desk.limit(number, tokens)

    def dismiss(self, number: int) -> None:
        """Note that the caller of the call of this number is done with it, or failed to make it."""
        self._desk.dismiss(number)

    def _admit_next(self, driven: int) -> bool:
        """Admit the rows of the next call that may begin, once all ranks have them; return whether the driven call is
        over at all of them."""
        number = self._desk.following(driven)
        number = _NO_CALL if number is None else number
        leaving = self._desk.leaving()
        leaving = _NO_CALL if leaving is None else leaving
        limited, tokens = self._desk.limited() or (_NO_CALL, 0)
        local = [number, -number, leaving, -leaving, limited, -limited, tokens, -tokens]
        first, last, least, most, *limits, over = self._least([*local, int(self._desk.ended(driven))])
        if limits[0] == -limits[1] < _NO_CALL and limits[2] == -limits[3]:
            admission = self._desk.agreed(limits[0], limits[2]).admission
            assert admission is not None
            admission.limit = limits[2]
        if least == -most < _NO_CALL:
            self._give_up(self._desk.left(least))
            return bool(over)
        if first == -last < _NO_CALL:
            call = self._desk.wait(first)
            assert call is not None
            self._admit(call)
        return bool(over)

    def _admit(self, call: RowCall) -> None:
        """Begin a call: its rows come behind those of earlier ones."""
        from rlgraph.backends.engines.vllm.sampling import Row

        number, call.begun = next(self._numbers), True
        call.waiting = {
            f"{number}/{index}": Row(call.batch, index, key, [*before.logprobs], before.tokens)
            for index, key in enumerate(call.keys)
            if not (before := call.of(index)).over
        }
        if call.waiting:
            self._calls[number] = call
        call.coming.extend(call.in_turn())

    def _give_up(self, call: RowCall) -> None:
        """Give up a call's unfinished rows, with which somebody else goes on."""
        if call.waiting:
            given_up = call.given_up()
            self._drop(call)
            call.samples.put(given_up)

    def _feed(self) -> None:
        """Hand rows to vLLM, no more than the largest call has at a time: those of a later one take the places of rows
        that have ended, and do not slow the others down. Rows that others have begun come beside them."""
        width = max((len(call.keys) for call in self._calls.values()), default=0)
        width += sum(len(call.keys) for call in self._calls.values() if call.moved)
        in_vllm = sum(len(call.waiting) - len(call.coming) for call in self._calls.values())
        for call in self._calls.values():
            names = [call.coming.popleft() for _ in range(min(len(call.coming), width - in_vllm))]
            self._add(call, {name: call.waiting[name] for name in names})
            in_vllm += len(names)

    def _step(self) -> None:
        """Sample a token for all rows that are being generated."""
        refresh = next((call.refresh for call in self._calls.values() if call.refresh is not None), None)
        if refresh is not None and self._all_ranks(refresh.waits):
            refresh.take()
        for call in self._calls.values():
            # Somebody may have brought new weights since the last step, too.
            if call.refresh is not None:
                call.known[self.version] = call.refresh.version
        self._feed()
        outputs = self._engine.step()
        for call in [call for call in self._calls.values() if call.batch.failure is not None or call.dropped]:
            if call.batch.failure is not None:
                call.samples.put(call.batch.failure)
            self._drop(call)
        for output in outputs:
            owner = self._calls.get(int(output.request_id.partition("/")[0]))
            if owner is not None:
                sample = _sample(owner.waiting.pop(output.request_id), output.outputs[0])
                owner.ended.setdefault(sample.row // owner.n, []).append(len(sample.tokens))
                owner.samples.put(sample)
        for number, call in list(self._calls.items()):
            limit = None if call.admission is None else call.admission.limit
            if call.batch.sampling.first or limit is not None:
                given_up = _given_up(call.waiting, call.ended, call.n, call.batch.sampling.first, limit)
                self._engine.abort_request(given_up)
                call.coming = deque(name for name in call.coming if name not in given_up)
                for name in given_up:
                    call.samples.put(Sample(call.waiting.pop(name).index, [], [], False, ()))
            if not call.waiting:
                del self._calls[number]

    def _drop(self, call: RowCall) -> None:
        """Give up the unfinished rows of a call."""
        self._calls = {number: other for number, other in self._calls.items() if other is not call}
        self._engine.abort_request(list(call.waiting))
        call.waiting = {}
        call.coming.clear()

    @property
    def speaks(self) -> bool:
        """Whether this is the first rank of its replica: the others generate the same."""
        return ranks(self._mesh, self._rank)[1] == 0

    def layout(self) -> tuple[LocalTensor, ...]:
        """Return the tensors that this rank holds, in global terms; for a model with adapters all of these."""
        return SPEC.carried(self._shape, self._mesh, self._rank, self.spec.kind)

    def tensors(self) -> dict[str, Tensor]:
        """Return the parameters by vLLM's names: live ones, and for experts that vLLM packs what `written` packs. For a
        model with adapters return these, which `written` merges into the parameters."""
        return self.rest.here(self._parameters() if self._adapted is None else self._adapted.tensors)

    @property
    def _adapted(self) -> MergedAdapters | NativeLora | None:
        return self._beside if self._merged is None else self._merged

    def _parameters(self) -> dict[str, Tensor]:
        parameters = self.model.named_parameters()
        by_name = {
            name.replace(_WRAPPED_SUFFIX, ""): parameter.data
            for name, parameter in parameters
            if not name.endswith(_VIEW_SUFFIXES)
        }
        return by_name | {**self._experts.tensors}

    def written(self) -> None:
        """Take note of new weights: what was computed with the old ones is computed again, also for rows that are being
        generated, and the next tokens carry the next version."""
        if not self.rest.changed():
            return
        self.version += 1
        if self._adapted is not None:
            self._adapted.renew()
        self._experts.pack()
        self._drop_cache()

    def sleep(self, keep: bool = True) -> OffloadRecord:
        """Give the memory of weights and cache back; nothing is being generated. For a model with adapters the base is
        kept in any case: others bring adapters alone."""
        assert not self._calls, "rows are being generated"
        self._drop_cache()
        lost = [*cache_tensors(self._engine), *(() if keep else self.tensors().values())]
        if not keep and self._adapted is None:
            # Packed experts are made again from the new ones.
            lost += self.model.parameters()
        return self.rest.sleep(weights(self.model, self._experts.tensors, self._adapted), lost=lost)

    def wake(self) -> OffloadRecord:
        """Take the memory again."""
        return self.rest.wake(self.written)

    def state(self) -> State:
        """Return a copy of this rank's weights."""
        return clone_tensors(self.tensors())

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over weights that `state` gave."""
        overwrite_weights(self.tensors(), state)
        self.written()

    def blend(self, other: Mapping[str, Tensor], ema: float) -> None:
        """Move towards `other`: weights = ema * weights + (1 - ema) * other."""
        blend(self.tensors(), other, ema)
        self.written()

    @contextmanager
    def weights(self, state: State) -> Iterator[None]:
        """Generate with `state` in place of the weights while the context lasts: they are copied in, and back."""
        originals = self.state()
        self.load_state(state)
        try:
            yield
        finally:
            self.load_state(originals)

    def _all_ranks(self, holds: bool) -> bool:
        """Return whether something holds at all ranks of this replica, which ask before the same step."""
        return bool(self._least([int(holds)])[0])

    def _least(self, local: list[int]) -> list[int]:
        """Return for each number the least that any rank of this replica has; all ask before the same step."""
        if ranks(self._mesh, self._rank)[0] == 1:
            return local
        from vllm.distributed.parallel_state import get_tp_group

        least = torch.tensor(local, dtype=torch.int64)
        dist.all_reduce(least, op=dist.ReduceOp.MIN, group=get_tp_group().cpu_group)
        return [int(number) for number in least]

    def _with_start(self, prompts: Sequences) -> Sequences:
        """Return `prompts`, an empty one begun with the token that begins a text."""
        if not len(prompts) or int(prompts.lengths.min()) > 0:
            return prompts
        start = self.codec.start_id
        if start is None:
            raise EngineError("an empty prompt, and the tokenizer has no token that a text begins with")
        return Sequences.from_lists([row or [start] for row in prompts.rows()])

    def _check(self, prompts: Sequences, n: int, sampling: Sampling, keys: np.ndarray) -> None:
        count = len(prompts) * n
        if keys.shape != (count,):
            raise EngineError(f"{len(prompts)} prompts with {n} samples need {count} row keys, got {keys.shape}")
        most = int(prompts.lengths.max()) if count else 0
        if most + sampling.max_tokens > self.longest:
            raise EngineError(
                f"a prompt of {most} tokens and up to {sampling.max_tokens} generated ones are more than the "
                f"{self.longest} that a row of this model may have: shorten the prompts or lower max_tokens"
            )

    def _stops(self, sampling: Sampling) -> tuple[int, ...]:
        """Return the tokens that end a row."""
        stops = {*self.eos_ids, *sampling.stop_ids}
        return tuple(sorted(stop for stop in stops if 0 <= stop < self._shape.vocab))

    def _add(self, call: RowCall, rows: Mapping[str, Row]) -> None:
        for name, row in rows.items():
            # Only rows that began with the same weights share keys and values.
            prompt = {"prompt_token_ids": call.prompt(row), "cache_salt": str(self.version)}
            self._engine.add_request(name, prompt, row.request(), lora_request=self._beside and self._beside.request)

    def _drop_cache(self) -> None:
        """Drop the keys and values of old weights, of running rows, too, which are then computed again, unless they are
        kept. Rows without a token have not begun."""
        if self.keeps and self._engine.has_unfinished_requests():
            early = [
                (
                    call,
                    {name: row for name, row in call.waiting.items() if not row.logprobs and name not in call.coming},
                )
                for call in self._calls.values()
            ]
            self._engine.abort_request([name for _, rows in early for name in rows])
            for call, rows in early:
                self._add(call, rows)
            self._engine.set_weight_version(str(self.version))
            return
        assert self._engine.reset_prefix_cache(reset_running_requests=True), "vLLM keeps its key-value cache"
        self._engine.set_weight_version(str(self.version))


def _given_up(
    waiting: Mapping[str, Row], ended: Mapping[int, list[int]], n: int, first: int, limit: int | None
) -> list[str]:
    """Return the requests that can be ended: of prompts of which it is certain which samples end first, and those with
    as many tokens as the limit says. `ended` has the tokens of the rows of each prompt that have."""
    # A row whose tokens are read anew may not have taken its last one.
    least = {name: len(row.logprobs) - 1 for name, row in waiting.items()}
    groups: dict[int, list[str]] = {}
    for name, row in waiting.items():
        if first and len(ended.get(row.index // n, ())) >= first:
            groups.setdefault(row.index // n, []).append(name)
    decided_names = [
        names for group, names in groups.items() if is_decided(ended[group], [least[name] for name in names], first)
    ]
    at_limit = [name for name in waiting if least[name] >= limit] if limit is not None else []
    return list(dict.fromkeys([*chain.from_iterable(decided_names), *at_limit]))


def _sample(row: Row, output: Any) -> Sample:
    """Make a sample from vLLM's record of an output."""
    tokens = [*row.begun, *output.token_ids]
    versions = tuple((int(span.version), span.start, span.end) for span in output.weight_versions)
    return Sample(row.index, tokens, row.logprobs, tokens[-1] in row.batch.stops, versions)
