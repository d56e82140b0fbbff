"""Samples the rows of several calls together, a token for all of them at a time."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, count
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from rlgraph.backends.engines.first_done import is_decided
from rlgraph.backends.engines.rank_weights import RankWeights
from rlgraph.backends.engines.records import Admission
from rlgraph.backends.engines.vllm.calls import GenerateCall, NumberedCalls, Sample, request_ended
from rlgraph.backends.engines.vllm.layout import split_size_and_rank
from rlgraph.ir.mesh import Mesh

if TYPE_CHECKING:
    from rlgraph.backends.engines.vllm.sampled_row import SampledRow

_NO_CALL = 1 << 62
"""More than the number of any call."""


class CallSampler(RankWeights):
    """Samples with vLLM's engine, one rank's part of it. Whoever takes a step takes it for the rows of all calls."""

    def __init__(self, engine: Any, mesh: Mesh, rank: int) -> None:
        self._engine, self._mesh, self._rank = engine, mesh, rank
        self.version = 0
        """Counts how often somebody wrote into the weights."""
        self.keeps = False
        """Rows that are being generated go on with what was computed of them with older weights."""
        self._calls: dict[int, GenerateCall] = {}
        """The calls whose rows are being generated, in the order in which they began."""
        self._numbers = count()
        self._desk = NumberedCalls()
        self._lora_request: Any = None
        """vLLM's name for the adapters, where they are apart from the weights."""

    def _sampled(self, call: GenerateCall) -> Iterator[Sample]:
        """Yield the samples of a call that samples by itself, each as soon as it ends."""
        self._admit(call)
        try:
            for _ in call.keys:
                while call.samples.empty():
                    self._step()
                # Whoever gets a row may write weights.
                self._end_step_ahead()
                yield call.next_sample()
        finally:
            self._drop(call)

    def sample_until_call_done(self, number: int) -> None:
        """Sample until nothing more comes of the call of this number, once its rows are handed over; rows of calls that
        join come in between two tokens."""
        call = self._desk.wait_for_call(number)
        try:
            if call is not None:
                self._drive(number, call)
        except BaseException as error:
            calls = [*self._calls.values(), *self._desk.calls_of(number)]
            for open_call in calls:
                open_call.samples.put(error)
            for open_call in calls:
                self._drop(open_call)
            raise
        finally:
            for late_call in self._desk.note_driven_to_end(number):
                late_call.samples.put(request_ended())

    def _drive(self, number: int, call: GenerateCall) -> None:
        if call.weights is not None:
            with self.temporary_weights(call.weights):
                self._finish(number)
        else:
            self._finish(number)

    def _finish(self, number: int) -> None:
        while not self._admit_next(number):
            if self._calls:
                self._step()
            else:
                self._end_step_ahead()
                self._desk.wait_for_startable(number)
        self._end_step_ahead()

    def give_up_rows(self, number: int) -> None:
        """Make the call of this number give up its unfinished rows."""
        self._desk.request_give_up(number)

    def give_up_longer_rows(self, number: int, tokens: int) -> None:
        """Make the call of this number give up the unfinished rows that have so many tokens."""
        self._desk.set_token_limit(number, tokens)

    def dismiss_call(self, number: int) -> None:
        """Note that the caller of the call of this number is done with it, or failed to make it."""
        self._desk.dismiss_call(number)

    def _admit_next(self, driven: int) -> bool:
        """Admit the rows of the next call that may begin, once all ranks have them; return whether the driven call is
        over at all of them."""
        number = self._desk.next_startable(driven)
        number = _NO_CALL if number is None else number
        leaving = self._desk.first_call_giving_up()
        leaving = _NO_CALL if leaving is None else leaving
        limited, tokens = self._desk.first_limited_call() or (_NO_CALL, 0)
        local = [number, -number, leaving, -leaving, limited, -limited, tokens, -tokens]
        first, last, least, most, *limits, over = self._least([*local, int(self._desk.is_call_over(driven))])
        if limits[0] == -limits[1] < _NO_CALL and limits[2] == -limits[3]:
            admission = self._desk.note_limit_agreed(limits[0], limits[2]).admission
            assert admission is not None
            admission.token_limit = limits[2]
        if least == -most < _NO_CALL:
            for call in self._desk.note_given_up(least):
                self._give_up(call)
            return bool(over)
        if first == -last < _NO_CALL:
            self._admit(self._desk.first_waiting_call(first))
        return bool(over)

    def _admit(self, call: GenerateCall) -> None:
        """Begin a call: its rows come behind those of earlier ones."""
        from rlgraph.backends.engines.vllm.sampled_row import SampledRow

        number = next(self._numbers)
        call.unfinished_by_request = {
            f"{number}/{index}": SampledRow(
                call.batch, index, key, [*before.tokens], [*before.logprobs], [*before.support], before.tokens
            )
            for index, key in enumerate(call.keys)
            if not (before := call.partial_row(index)).needs_no_more
        }
        if call.unfinished_by_request:
            self._calls[number] = call
        call.pending_samples.extend(call.ordered_requests())
        # Another thread takes a call that has begun, and has no unfinished rows, for one that has ended.
        call.begun = True

    def _give_up(self, call: GenerateCall) -> None:
        """Give up a call's unfinished rows, with which somebody else goes on."""
        if call.unfinished_by_request:
            given_up = call.unfinished_rows()
            self._drop(call)
            call.samples.put(given_up)

    def _feed(self) -> None:
        """Hand rows to vLLM, no more than the largest request has at a time: those of a later one take the places of
        rows that have ended, and do not slow the others down. Rows that others have begun come beside them."""
        rows_of_requests: Counter[Admission | GenerateCall] = Counter()
        for call in self._calls.values():
            rows_of_requests[call.admission or call] += len(call.keys)
        width = max(rows_of_requests.values(), default=0)
        width += sum(len(call.keys) for call in self._calls.values() if call.has_begun_parts)
        in_vllm = sum(len(call.unfinished_by_request) - len(call.pending_samples) for call in self._calls.values())
        for call in self._calls.values():
            names = [call.pending_samples.popleft() for _ in range(min(len(call.pending_samples), width - in_vllm))]
            self._add(call, {name: call.unfinished_by_request[name] for name in names})
            in_vllm += len(names)

    def _step(self) -> None:
        """Sample a token for all rows that are being generated."""
        refresh = next((call.refresh for call in self._calls.values() if call.refresh is not None), None)
        if refresh is not None and self._all_ranks(refresh.can_take_weights):
            self._end_step_ahead()
            refresh.take_weights()
        for call in self._calls.values():
            # Somebody may have brought new weights since the last step, too.
            if call.refresh is not None:
                call.version_by_count[self.version] = call.refresh.version
        self._feed()
        self._take(self._engine.step())

    def _end_step_ahead(self) -> None:
        """Have vLLM end the step that it has begun ahead, where it does so, and begin no other: the next one has other
        weights, or comes much later."""
        core = self._engine.engine_core.engine_core
        if not core.batch_queue:
            return
        from vllm.v1.core.sched.interface import PauseState

        core.scheduler.set_pause_state(PauseState.PAUSED_ALL)
        try:
            while core.batch_queue:
                self._take(self._engine.step())
        finally:
            core.scheduler.set_pause_state(PauseState.UNPAUSED)

    def _take(self, outputs: Sequence[Any]) -> None:
        """Take what a step has brought: rows that have ended, and calls that have failed."""
        for call in [call for call in self._calls.values() if call.batch.failure is not None or call.is_abandoned]:
            if call.batch.failure is not None:
                call.samples.put(call.batch.failure)
            self._drop(call)
        for output in outputs:
            owner = self._calls.get(int(output.request_id.partition("/")[0]))
            if owner is not None:
                sample = _sample(owner.unfinished_by_request.pop(output.request_id), output.outputs[0])
                owner.ended_lengths.setdefault(sample.row // owner.n, []).append(len(sample.tokens))
                owner.samples.put(sample)
        for number, call in list(self._calls.items()):
            limit = None if call.admission is None else call.admission.token_limit
            if call.batch.sampling.samples_wanted or limit is not None:
                given_up = _given_up(
                    call.unfinished_by_request, call.ended_lengths, call.n, call.batch.sampling.samples_wanted, limit
                )
                self._engine.abort_request(given_up)
                call.pending_samples = deque(name for name in call.pending_samples if name not in given_up)
                for name in given_up:
                    call.samples.put(Sample(call.unfinished_by_request.pop(name).index, [], [], False, ()))
            if not call.unfinished_by_request:
                del self._calls[number]

    def _drop(self, call: GenerateCall) -> None:
        """Give up the unfinished rows of a call."""
        self._calls = {number: other for number, other in self._calls.items() if other is not call}
        self._engine.abort_request(list(call.unfinished_by_request))
        call.unfinished_by_request = {}
        call.pending_samples.clear()

    def _all_ranks(self, holds: bool) -> bool:
        """Return whether something holds at all ranks of this replica, which ask before the same step."""
        return bool(self._least([int(holds)])[0])

    def _least(self, local: list[int]) -> list[int]:
        """Return for each number the least that any rank of this replica has; all ask before the same step."""
        if split_size_and_rank(self._mesh, self._rank)[0] == 1:
            return local
        from vllm.distributed.parallel_state import get_tp_group

        least = torch.tensor(local, dtype=torch.int64)
        dist.all_reduce(least, op=dist.ReduceOp.MIN, group=get_tp_group().cpu_group)
        return [int(number) for number in least]

    def _add(self, call: GenerateCall, rows: Mapping[str, SampledRow]) -> None:
        for name, row in rows.items():
            # Only rows that began with the same weights share keys and values.
            prompt = {"prompt_token_ids": call.prompt_and_begun_tokens(row), "cache_salt": str(self.version)}
            self._engine.add_request(name, prompt, row.sampling_params(), lora_request=self._lora_request)

    def _drop_cache(self) -> None:
        """Drop the keys and values of old weights, of running rows, too, which are then computed again, unless they are
        kept. Rows without a token have not begun."""
        if self.keeps and self._engine.has_unfinished_requests():
            early = [
                (
                    call,
                    {
                        name: row
                        for name, row in call.unfinished_by_request.items()
                        if not row.logprobs and name not in call.pending_samples
                    },
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
    waiting: Mapping[str, SampledRow], ended: Mapping[int, list[int]], n: int, first: int, limit: int | None
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


def _sample(row: SampledRow, output: Any) -> Sample:
    """Make a sample from vLLM's record of an output. Behind the row's last token one may be noted that a step ahead has
    drawn."""
    tokens = [*row.begun_tokens, *output.token_ids]
    versions = tuple((int(span.version), span.start, span.end) for span in output.weight_versions)
    support = row.support[: len(tokens)]
    finished = row.ended or tokens[-1] in row.batch.stops
    return Sample(row.index, tokens, row.logprobs[: len(tokens)], finished, versions, row.routes, support)
