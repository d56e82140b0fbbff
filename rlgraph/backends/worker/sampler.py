"""Samples responses to lists of tokens, with the engine or from a recording."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from rlgraph.backends.engines.errors import EngineError, NoRoutes
from rlgraph.backends.engines.first_done import select_first_finished, take_rows, with_empty_answers
from rlgraph.backends.engines.records import Admission, Generation, Sampling, State
from rlgraph.backends.engines.roles import StreamsRows, WeightRefresh
from rlgraph.backends.engines.sequences import Sequences
from rlgraph.backends.enginespec.registry import embedded_engine
from rlgraph.backends.frame import Frame
from rlgraph.backends.recording import Replay, Turns
from rlgraph.backends.rows import RowId
from rlgraph.backends.step import Step
from rlgraph.backends.weight_versions import Runs
from rlgraph.backends.worker.session import Session, SessionModel, engine_run_error
from rlgraph.errors import Diagnostic, RunError
from rlgraph.ir.graph import Node
from rlgraph.ir.step_edges import oldest_weights_age_versions
from rlgraph.ops.nodes import attribute_value


def sampling_options(node: Node, model: SessionModel, most: int | None = None) -> Sampling:
    """Return the sampling options of a node. most: tokens of an answer; None: as the node says."""
    codec, texts = model.engine.codec, tuple(node.attr("stop") or ())
    tokens = {text: codec.encode_text(text) for text in texts}
    longest = node.attr("max_tokens") if most is None else most
    try:
        return Sampling(
            longest,
            node.attr("temperature"),
            node.attr("top_p"),
            node.attr("top_k"),
            min(node.attr("min_tokens") or 0, longest),
            tuple(token for each in tokens.values() if len(each) == 1 for token in each),
            codec.stop_texts(texts) if texts else None,
            node.attr("first") or 0,
            attribute_value(node, "min_p"),
            node.attr("routing") == "replay",
            node.attr("support") == "keep",
        )
    except EngineError as error:
        raise engine_run_error(node, f"`{model.model.name}` cannot generate", error) from None


def weights_to_sample_with(node: Node, frame: Frame, session: Session, model: SessionModel) -> tuple[State | None, int]:
    """Return the weights that generate, where they are not the present ones, and their version. In one process the last
    ones are always there when a step samples, which satisfies any bound of their age."""
    chosen = frame.other_versions.get(model.model.name, frame.version)
    version = newest_allowed_version(node, frame, session, model) if chosen is None else chosen
    return model.past.get(version) if oldest_weights_age_versions(node) else None, version


def newest_allowed_version(node: Node, frame: Frame, session: Session, model: SessionModel) -> int:
    """Return the last version that a node may sample with."""
    return session.versions.version_at(model.model.name, frame.step, 1 + node.attr("lag", 0))


def weight_refresh(node: Node, frame: Frame) -> WeightRefresh | None:
    """Return where newer weights come from while a node samples, no more often than the program lets them."""
    return _RefreshAtTurns(frame.refresh) if frame.refresh and node.attr("span") == "turn" else frame.refresh


class _RefreshAtTurns:
    """Newer weights that come before the first token that is asked for with it, and before no other one: a turn is of
    one version."""

    def __init__(self, inner: WeightRefresh) -> None:
        self._inner, self._begun = inner, False

    @property
    def version(self) -> int:
        return self._inner.version

    @property
    def can_take_weights(self) -> bool:
        begun, self._begun = self._begun, True
        return not begun and self._inner.can_take_weights

    def take_weights(self) -> int:
        return self._inner.take_weights()


def _runs(made: Generation, version: int) -> list[Runs]:
    """Return for each row the versions that made its tokens; `version`: where there were no others."""
    counts = made.sequences.scored_counts().tolist()
    if made.versions is None:
        return [((version, tokens),) for tokens in counts]
    runs: list[Runs] = []
    for part in made.versions.split(counts):
        versions, tokens = torch.unique_consecutive(part, return_counts=True)
        runs.append(tuple(zip(versions.tolist(), tokens.tolist(), strict=True)) or ((version, 0),))
    return runs


_NOTHING = Generation(Sequences.from_lists([]), torch.zeros(0), torch.zeros(0, dtype=torch.bool))
"""What is sampled for no row."""


@dataclass(frozen=True)
class Sampler:
    """How rows are sampled, by the recording that is replayed or else by the engine, and which of them are kept."""

    node: Node
    step: Step
    session: Session
    model: SessionModel
    turn: Turns
    count: int
    """Responses to each list of tokens."""
    sampling: Sampling
    weights: State | None
    version: int
    """The version of the weights that the engine samples with."""
    refresh: WeightRefresh | None
    """Where newer weights come from meanwhile."""
    admission: Admission | None = None
    """How the rows come among those of other work."""
    expected: Sequence[float] | None = None
    """For each row that is asked the tokens that its answers are expected to have."""
    mixture: Sequence[tuple[Any, float]] = ()
    """The engines of a mixture and their weights; none: the model alone samples."""
    ended: Sequence[bool] = ()
    """For each row that is asked whether it has ended already, so that its answers are empty; none: no row has."""

    def sample_parts(
        self, ids: tuple[RowId, ...], encoded: list[list[int]], keys: np.ndarray, sizes: Sequence[int]
    ) -> Iterator[tuple[int, tuple[RowId, ...], Generation, list[Runs]]]:
        """Yield the responses to the first `sizes[0]` lists, to the next `sizes[1]`, and so on, each part when it is
        done: its number, the rows that they are, and the versions that made them."""
        starts = list(accumulate(sizes, initial=0))
        try:
            for number, kept, made, runs in self._kept(ids, encoded, keys, sizes):
                places = [starts[number] * self.count + place for place in kept.tolist()]
                rows = tuple(ids[place] for place in places)
                # Nobody chose experts for rows without answers.
                if self.sampling.keeps_routes and made.sequences.routes is None and len(made.logprobs):
                    raise RunError(self._without_routes())
                if self.sampling.keeps_support and made.logprobs.shape[0] and made.support is None:
                    raise RunError(self._without_support())
                if self.session.recorder and self.model.engine.has_results:
                    asked = [encoded[place // self.count] for place in places]
                    self.session.recorder.write_rows(self.node, self.step, self.turn, rows, asked, made, runs)
                yield number, rows, made, runs
        except NoRoutes:
            raise RunError(self._without_routes()) from None
        except EngineError as error:
            raise engine_run_error(self.node, f"`{self.model.model.name}` cannot generate", error) from None

    def _without_routes(self) -> Diagnostic:
        """Return the error for rows whose routers did not say which experts they chose."""
        if self.session.replay:
            return Diagnostic(
                "E0849",
                "the recording has no routes of experts",
                self.node.span,
                "record it anew with `routing=replay`",
            )
        return Diagnostic(
            "E0847",
            f"`{self.model.model.name}` has no routers of experts that could be replayed",
            self.node.span,
            "leave `routing` out",
        )

    def _without_support(self) -> Diagnostic:
        """Return the error for rows of which it is not known from which tokens they were sampled."""
        if self.session.replay:
            message, hint = "the recording has no support of its tokens", "record it anew with `support=keep`"
        else:
            message = f"the engine of `{self.model.model.name}` does not say from which tokens it samples"
            hint = f"place it with `engine={embedded_engine().name}`, or leave `support` out"
        return Diagnostic("E0846", message, self.node.span, hint)

    def _kept(
        self, ids: tuple[RowId, ...], encoded: list[list[int]], keys: np.ndarray, sizes: Sequence[int]
    ) -> Iterator[tuple[int, Tensor, Generation, list[Runs]]]:
        """Yield of each part its number, which responses are kept, int64, and these."""
        if self.session.replay:
            assert len(sizes) == 1, "a recording is there at once"
            yield 0, *self._replayed(self.session.replay, ids, encoded)
            return
        if any(self.ended):
            yield from self._without_ended(ids, encoded, keys, sizes)
            return
        engine, asked = self.model.engine, Sequences.from_lists(encoded)
        # Only an engine that rereads knows `refresh`.
        engine_options: dict[str, Any] = {} if self.refresh is None else {"refresh": self.refresh}
        # Only one that admits knows `admission`.
        engine_options |= {} if self.admission is None else {"admission": self.admission}
        engine_options |= {} if self.expected is None else {"expected": self.expected}
        # Only one that mixes knows `mixture`.
        engine_options |= {"mixture": self.mixture} if self.mixture else {}
        if len(sizes) == 1 and not (self.admission and self.admission.may_be_given_up):
            parts = iter([(0, engine.generate(asked, self.count, self.sampling, keys, self.weights, **engine_options))])
        else:
            parts = cast(StreamsRows, engine).generate_in_parts(
                asked, self.count, self.sampling, keys, sizes, **engine_options
            )
        for number, made in parts:
            all_wanted = self.admission is None or self.admission.token_limit is None
            kept = select_first_finished(made, self.count, self.sampling, all_wanted)
            made = take_rows(made, kept)
            yield number, kept, made, _runs(made, self.version if self.refresh is None else self.refresh.version)

    def _without_ended(
        self, ids: tuple[RowId, ...], encoded: list[list[int]], keys: np.ndarray, sizes: Sequence[int]
    ) -> Iterator[tuple[int, Tensor, Generation, list[Runs]]]:
        """Yield the parts of `_kept` where some rows have ended already: these are not sampled."""
        n = self.count
        all_sampled = replace(self, ended=(), sampling=replace(self.sampling, samples_wanted=0))
        if len(sizes) == 1 and self.admission is None:
            open_rows = [place for place, ended in enumerate(self.ended) if not ended]
            asked = [encoded[place] for place in open_rows]
            chosen = [place * n + sample for place in open_rows for sample in range(n)]
            expected = None if self.expected is None else [self.expected[place] for place in open_rows]
            sampler = replace(all_sampled, expected=expected)
            sampled: Iterable[tuple[int, Generation, list[Runs]]] = [(0, _NOTHING, [])]
            if asked:
                parts = sampler._kept(tuple(ids[place] for place in chosen), asked, keys[chosen], [len(asked)])
                sampled = [(0, made, runs) for _, _, made, runs in parts]
            places = {row: number for number, row in enumerate(open_rows)}
        else:
            # The answers of rows that have ended are dropped: parts keep their sizes.
            asked = [row[:1] if ended else row for row, ended in zip(encoded, self.ended, strict=True)]
            parts = all_sampled._kept(ids, asked, keys, sizes)
            sampled, places = ((number, made, runs) for number, _, made, runs in parts), dict[int, int]()
        starts = list(accumulate(sizes, initial=0))
        for number, made, runs in sampled:
            rows = range(starts[number], starts[number + 1])
            answers = [
                None if self.ended[row] else (places.get(row, row - starts[number])) * n + sample
                for row in rows
                for sample in range(n)
            ]
            prompts = [encoded[row] for row in rows for _ in range(n)]
            whole = with_empty_answers(made, answers, prompts)
            nothing: Runs = ((self.version, 0),)
            all_runs = [nothing if answer is None else runs[answer] for answer in answers]
            kept = select_first_finished(whole, n, self.sampling)
            yield number, kept, take_rows(whole, kept), [all_runs[place] for place in kept.tolist()]

    def _replayed(
        self, replay: Replay, ids: tuple[RowId, ...], encoded: list[list[int]]
    ) -> tuple[Tensor, Generation, list[Runs]]:
        """Return which responses are kept, and these. Of samples that end first the recording has no others."""
        step, kept = self.step.number, torch.arange(len(ids))
        if self.sampling.samples_wanted:
            assert not isinstance(self.turn, Sequence), "an episode's turns are all wanted"
            recorded = torch.tensor([replay.has_row(self.node, step, self.turn, row) for row in ids])
            if bool((recorded.view(-1, self.count).sum(1) == self.sampling.samples_wanted).all()):
                kept = recorded.nonzero()[:, 0]
        places = kept.tolist()
        rows, asked = [ids[place] for place in places], [encoded[place // self.count] for place in places]
        made, runs = replay.read_rows(self.node, step, self.turn, rows, asked)
        if len(rows) < len(ids) or not self.sampling.samples_wanted:
            return kept, made, runs
        chosen = select_first_finished(made, self.count, self.sampling)
        return chosen, take_rows(made, chosen), [runs[place] for place in chosen.tolist()]
