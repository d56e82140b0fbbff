"""Generation with vLLM, for one tensor-parallel rank of one copy of a model."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from rlgraph.engines.base import EngineError, Generation, Rank, Refresh, Sampling, State
from rlgraph.engines.first import decided
from rlgraph.engines.sequences import Sequences
from rlgraph.engines.sources import ModelSpec
from rlgraph.engines.vllm.environment import prepare
from rlgraph.engines.vllm.experts import Experts
from rlgraph.engines.vllm.layout import layout
from rlgraph.engines.vllm.source import Source, read
from rlgraph.engines.vllm.start import Limits, start
from rlgraph.engines.weights import blend, copied, fill, take_over
from rlgraph.ir.layout import Local
from rlgraph.ir.mesh import Mesh, mesh

if TYPE_CHECKING:
    from rlgraph.engines.vllm.sampling import Batch, Row

_ALONE = mesh()


@dataclass(frozen=True)
class Sample:
    """A response, as soon as it ends."""

    row: int
    tokens: list[int]
    """The stop token included."""
    logprobs: list[float]
    finished: bool
    """It ended by itself, not at `max_tokens`."""
    versions: tuple[tuple[int, int, int], ...]
    """Which weights sampled which tokens: a version, its first place and the one after its last."""


def _generation(starts: Sequence[list[int]], samples: Sequence[Sample], known: Mapping[int, int]) -> Generation:
    """known: by the engine's count of its weights the versions that they are, where somebody has told them."""
    logprobs = [logprob for sample in samples for logprob in sample.logprobs]
    versions = [
        known[version] for sample in samples for version, *span in sample.versions for _ in range(*span) if known
    ]
    return Generation(
        Sequences.from_pairs(starts, [sample.tokens for sample in samples]),
        torch.tensor(logprobs, dtype=torch.float32),
        torch.tensor([sample.finished for sample in samples], dtype=torch.bool),
        torch.tensor(versions, dtype=torch.int64) if known else None,
    )


def open_rank(model: ModelSpec, rank: Rank) -> VllmEngine:
    """This rank's part of a copy of a model. Raises EngineError."""
    cache = rank.holding.kv_bytes or None
    opened = VllmEngine.open(model, rank.mesh, rank.number, address=rank.address, cache_bytes=cache)
    opened.keeps = rank.holding.keep
    return opened


class VllmEngine:
    """One rank's part of a language model that generates. Implements `Streams`.

    All tensor-parallel ranks of a copy, each in a process of its own, get the same calls in the same order. Copies
    along dp know nothing of each other.
    """

    def __init__(self, spec: ModelSpec, source: Source, engine: Any, mesh: Mesh, rank: int) -> None:
        """Of a vLLM engine that is started; `open` does it."""
        self.spec, self.codec, self.eos_ids = spec, source.codec, source.eos_ids
        self.version = 0
        """Counts how often somebody wrote into the weights."""
        self.keeps = False
        """Rows that are being generated go on with what was computed of them with older weights."""
        self._waiting: Mapping[str, Row] = {}
        self._prompts: Mapping[str, list[int]] = {}
        """Of the requests that are being generated."""
        self._shape, self._engine, self._mesh, self._rank = source.shape, engine, mesh, rank
        self._experts = Experts(self.model)

    @classmethod
    def open(
        cls, spec: ModelSpec, mesh: Mesh = _ALONE, rank: int = 0, *, address: str | None = None, **limits: Any
    ) -> VllmEngine:
        """Start the engine and load this rank's part of the model of `spec`.

        address: "host:port" where the tensor-parallel ranks of this copy meet: the first one listens there.
        limits: the fields of `rlgraph.engines.vllm.start.Limits`. Raises EngineError where it cannot be done.
        """
        prepare()
        source = read(spec, mesh)
        with TemporaryDirectory() as folder:
            source.describe(folder)
            engine = start(folder, spec, source.shape, mesh, rank, address, Limits(**limits))
        opened = cls(spec, source, engine, mesh, rank)
        fill(opened.tensors(), opened.layout(), source.weights)
        opened._experts.pack()
        opened._forget()
        return opened

    @property
    def model(self) -> nn.Module:
        """vLLM's own module, of this rank."""
        found: nn.Module = self._engine.model_executor.driver_worker.worker.model_runner.model
        return found

    @property
    def longest(self) -> int:
        """Most tokens of a row, prompt and response together."""
        return int(self._engine.model_config.max_model_len)

    def generate(
        self,
        prompts: Sequences,
        n: int,
        sampling: Sampling,
        row_keys: np.ndarray,
        weights: State | None = None,
        refresh: Refresh | None = None,
    ) -> Generation:
        """Sample `n` responses for each prompt, with `weights`, of this rank's tensors, in place of its own if
        given."""
        if weights is not None:
            with self.weights(weights):
                return self.generate(prompts, n, sampling, row_keys)
        [(_, made)] = self.parts(prompts, n, sampling, row_keys, [len(prompts)], refresh)
        return made

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
        starts = self._started(prompts).rows()
        bounds = [(first * n, last * n) for first, last in pairwise(accumulate(sizes, initial=0))]
        part_of = np.repeat(np.arange(len(sizes)), [last - first for first, last in bounds])
        missing = [last - first for first, last in bounds]
        ended: dict[int, Sample] = {}
        known: dict[int, int] = {}
        yield from ((part, _generation([], [], known)) for part, rows in enumerate(missing) if not rows)
        for sample in self.stream(prompts, n, sampling, row_keys, refresh, known):
            ended[sample.row] = sample
            part = int(part_of[sample.row])
            missing[part] -= 1
            if not missing[part]:
                rows = range(*bounds[part])
                yield part, _generation([starts[row // n] for row in rows], [ended.pop(row) for row in rows], known)

    def stream(
        self,
        prompts: Sequences,
        n: int,
        sampling: Sampling,
        row_keys: np.ndarray,
        refresh: Refresh | None = None,
        known: dict[int, int] | None = None,
    ) -> Generator[Sample, None, None]:
        """The samples of `generate`, each as soon as it ends. known: gets the version of each weights that `refresh`
        brings, by this engine's count.

        Between two of them somebody may write into `tensors` and say so: what is being generated goes on with the new
        weights. A stream that is closed gives its other rows up. A row of which it is certain that it is not one of
        `sampling.first` is given up, too: it comes without tokens.
        """
        keys = np.ascontiguousarray(row_keys, dtype=np.uint64)
        prompts = self._started(prompts)
        self._check(prompts, n, sampling, keys)
        if not sampling.max_tokens:
            yield from (Sample(row, [], [], False, ()) for row in range(len(keys)))
            return
        from rlgraph.engines.vllm.sampling import Batch

        batch = Batch(sampling, self._stops(sampling))
        waiting = self._waiting = self._submit(prompts, n, batch, keys)
        ended: dict[int, list[int]] = {}
        known = {} if known is None else known
        if refresh is not None:
            known[self.version] = refresh.version
        try:
            while waiting:
                if refresh is not None and self._all(refresh.waits):
                    new = refresh.take()
                    known[self.version] = new
                outputs = self._engine.step()
                if batch.failure is not None:
                    raise batch.failure
                for output in outputs:
                    sample = _sample(waiting.pop(output.request_id), output.outputs[0])
                    ended.setdefault(sample.row // n, []).append(len(sample.tokens))
                    yield sample
                if sampling.first:
                    given_up = _given_up(waiting, ended, n, sampling.first)
                    self._engine.abort_request(given_up)
                    yield from (Sample(waiting.pop(name).index, [], [], False, ()) for name in given_up)
        finally:
            self._engine.abort_request(list(waiting))

    @property
    def speaks(self) -> bool:
        """Whether this is the first tensor-parallel rank: the others generate the same."""
        return self._mesh.at(self._rank, "tp") == 0

    def layout(self) -> tuple[Local, ...]:
        """The tensors that this rank holds, in global terms."""
        return layout(self._shape, self._mesh, self._rank, self.spec.kind)

    def tensors(self) -> dict[str, Tensor]:
        """The parameters by vLLM's names: live ones, and of experts that vLLM packs what `written` packs."""
        return {name: parameter.data for name, parameter in self.model.named_parameters()} | {**self._experts.tensors}

    def written(self) -> None:
        """The weights are new ones: what was computed with the old ones is computed again, also for rows that are being
        generated, and the next tokens carry the next version."""
        self.version += 1
        self._experts.pack()
        self._forget()

    def state(self) -> State:
        """A copy of this rank's weights."""
        return copied(self.tensors())

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over weights that `state` gave."""
        take_over(self.tensors(), state)
        self.written()

    def blend(self, other: Mapping[str, Tensor], ema: float) -> None:
        """Move towards `other`: weights = ema * weights + (1 - ema) * other."""
        blend(self.tensors(), other, ema)
        self.written()

    @contextmanager
    def weights(self, state: State) -> Iterator[None]:
        """Generate with `state` in place of the weights while the context lasts: they are copied in, and back."""
        own = self.state()
        self.load_state(state)
        try:
            yield
        finally:
            self.load_state(own)

    def _all(self, here: bool) -> bool:
        """Whether something holds at all ranks of this copy, which ask before the same step."""
        if self._mesh.length("tp") == 1:
            return here
        from vllm.distributed.parallel_state import get_tp_group

        least = torch.tensor(here, dtype=torch.int64)
        dist.all_reduce(least, op=dist.ReduceOp.MIN, group=get_tp_group().cpu_group)
        return bool(least)

    def _started(self, prompts: Sequences) -> Sequences:
        """`prompts`, an empty one begun with the token that begins a text."""
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
        if self._engine.has_unfinished_requests():
            raise EngineError("the engine vllm is still generating: end or close the stream of the earlier call first")
        most = int(prompts.lengths.max()) if count else 0
        if most + sampling.max_tokens > self.longest:
            raise EngineError(
                f"a prompt of {most} tokens and up to {sampling.max_tokens} generated ones are more than the "
                f"{self.longest} that a row of this model may have: shorten the prompts or lower max_tokens"
            )

    def _stops(self, sampling: Sampling) -> tuple[int, ...]:
        """The tokens that end a row."""
        known = {*self.eos_ids, *sampling.stop_ids}
        return tuple(sorted(stop for stop in known if 0 <= stop < self._shape.vocab))

    def _submit(self, prompts: Sequences, n: int, batch: Batch, keys: np.ndarray) -> dict[str, Row]:
        """Hand the rows to vLLM: each by the name of its request."""
        from rlgraph.engines.vllm.sampling import Row

        repeated = [prompt for prompt in prompts.rows() for _ in range(n)]
        rows = {str(index): Row(batch, index, key) for index, key in enumerate(keys.tolist())}
        self._prompts = dict(zip(rows, repeated, strict=True))
        self._add(rows)
        return rows

    def _add(self, rows: Mapping[str, Row]) -> None:
        for name, row in rows.items():
            # Keys and values are shared by rows that began with the same weights.
            prompt = {"prompt_token_ids": self._prompts[name], "cache_salt": str(self.version)}
            self._engine.add_request(name, prompt, row.request())

    def _forget(self) -> None:
        """Drop the keys and values of old weights, of running rows, too, which are then computed again, unless they are
        kept. Rows without a token have not begun."""
        if self.keeps and self._engine.has_unfinished_requests():
            early = {name: row for name, row in self._waiting.items() if not row.logprobs}
            self._engine.abort_request([*early])
            self._add(early)
            self._engine.set_weight_version(str(self.version))
            return
        assert self._engine.reset_prefix_cache(reset_running_requests=True), "vLLM keeps its key-value cache"
        self._engine.set_weight_version(str(self.version))


def _given_up(waiting: Mapping[str, Row], ended: Mapping[int, list[int]], n: int, first: int) -> list[str]:
    """The requests that can be ended; `ended` has the tokens of the rows of each prompt that have."""
    groups: dict[int, list[str]] = {}
    for name, row in waiting.items():
        if len(ended.get(row.index // n, ())) >= first:
            groups.setdefault(row.index // n, []).append(name)
    # Of a row whose tokens are read anew, the last one may not have been taken.
    least = {name: len(waiting[name].logprobs) - 1 for names in groups.values() for name in names}
    over = [names for group, names in groups.items() if decided(ended[group], [least[each] for each in names], first)]
    return [name for names in over for name in names]


def _sample(row: Row, output: Any) -> Sample:
    """From vLLM's record of an output."""
    tokens = list(output.token_ids)
    versions = tuple((int(span.version), span.start, span.end) for span in output.weight_versions)
    return Sample(row.index, tokens, row.logprobs, tokens[-1] in row.batch.stops, versions)
