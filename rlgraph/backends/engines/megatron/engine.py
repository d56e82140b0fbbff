"""The engine of models that are split over the ranks of a mesh: log-probabilities, values, scores and training with
Megatron-core."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_model import GPTModel
from torch import Tensor

from rlgraph.backends.engines.errors import EngineError, NoRows
from rlgraph.backends.engines.likeliest import KeptTokens, LikeliestTokens, put_numbers
from rlgraph.backends.engines.megatron.adapters import InitialAdapters, attach_adapters
from rlgraph.backends.engines.megatron.batches import Head, merge_calls
from rlgraph.backends.engines.megatron.groups import Stages, initialize_groups
from rlgraph.backends.engines.megatron.layout import layout
from rlgraph.backends.engines.megatron.model import build, is_shared
from rlgraph.backends.engines.megatron.moments import moments, resume_optimizer
from rlgraph.backends.engines.megatron.pipeline import Pipeline, accumulate_gradients
from rlgraph.backends.engines.megatron.shared_results import SharedResults
from rlgraph.backends.engines.megatron.shim import model_device, redirect_cuda_to_cpu
from rlgraph.backends.engines.megatron.source import read_model_source
from rlgraph.backends.engines.megatron.spec import SPEC
from rlgraph.backends.engines.megatron.training import Trainer
from rlgraph.backends.engines.micro_batches import plan_micro_batches
from rlgraph.backends.engines.moments import Moments
from rlgraph.backends.engines.offload import Offloader, OffloadRecord
from rlgraph.backends.engines.rank_weights import RankWeights
from rlgraph.backends.engines.records import MicroBatch, ModelCall, TrainOptions
from rlgraph.backends.engines.roles import PipelineNeighbours, Training
from rlgraph.backends.engines.scoring import ScoringMixin
from rlgraph.backends.engines.sequences import Sequences, ragged_index
from rlgraph.backends.engines.sources import ModelSpec, dtype_of, load_codec
from rlgraph.backends.engines.tokenizers import Codec
from rlgraph.backends.engines.vocabulary_sums import OtherModel, VocabularySum
from rlgraph.backends.engines.weights import fill_tensors, layout_by_layer
from rlgraph.catalog.clusters.cluster import DeviceKind
from rlgraph.catalog.models.shape import Shape
from rlgraph.ir.layout import LocalTensor
from rlgraph.ir.mesh import Mesh


@dataclass(frozen=True)
class MegatronOptions:
    """How an engine computes, and trains."""

    distributed_optimizer: bool = True
    """Shard the optimizer's state over the replicas, too."""
    block_tokens: int = 2048
    """Tokens in a micro-batch."""
    logit_numbers: int = 1 << 25
    """The most logits that are computed at a time."""
    recompute: bool = False
    """Training keeps each layer's input only, and computes the rest again."""
    turned: bool = False
    """The ranks have the stages in reverse, the last one the first stage."""
    later: bool | None = None
    """Where replicas shard the optimizer, new weights come from the others while the next pass is computed; None: on
    the devices that the spec says."""


class MegatronEngine(RankWeights, ScoringMixin):
    """One rank's part of a model. It implements `Scores` and `FusesPipelines`.

    All ranks of a replica get the same calls with the same rows, in the same order; those along ep shard the blocks of
    rows, and those along cp the tokens of each row. Ranks of different replicas (dp) have rows of their own, and call
    `open`, `copy`, `train_step`, `clear_gradients` and `apply_gradients` together. Nothing but training keeps
    gradients. All ranks of the last stage have results, not the one alone that `has_results`.
    """

    def __init__(
        self,
        spec: ModelSpec,
        codec: Codec,
        shape: Shape,
        mesh: Mesh,
        rank: int,
        options: MegatronOptions,
        base: MegatronEngine | None = None,
    ) -> None:
        """Build the model with weights that are all zeros; `open` reads them. shape: with its adapters. base: an engine
        with the same base and stages, which is not copied."""
        self.spec, self.codec, self._options, stages = spec, codec, options, Stages(options.turned)
        self._shape, self._mesh, self._rank = shape, mesh, mesh.mirrored_rank(rank, "pp") if options.turned else rank
        self._model: GPTModel = build(
            shape, mesh, spec.kind, dtype_of(spec), options.recompute, stages, base._model if base else None
        )
        if shape.adapters is not None:
            attach_adapters(self._model, shape, mesh, self._rank, spec.kind)
        self._pipeline = Pipeline(
            self._model, shape, spec.kind, codec.pad_id, options.logit_numbers, stages, mesh.axis_size("chunks")
        )
        self._trainer: Trainer | None = None
        self.offloader = Offloader()
        self._has_gradients = False
        """There are gradients of an update that has not been made."""
        self._loss, self._has_rows = 0.0, False
        """The loss of the gradients that were added up, and whether there were rows."""

    @classmethod
    @redirect_cuda_to_cpu()
    def open(
        cls, spec: ModelSpec, mesh: Mesh, *, beside: MegatronEngine | None = None, **options: Any
    ) -> MegatronEngine:
        """Load this rank's part of the model of `spec`; `process_groups.join_process_group` comes first.

        beside: an engine that has the same base, which neither changes: where its stages lie as this one's the base is
        not copied. options: the fields of `MegatronOptions`. Raises EngineError for a source that cannot be used, a
        family that is not known, and a mesh that does not fit the model or this process.
        """
        rank, chosen = initialize_groups(mesh), MegatronOptions(**options)
        codec = load_codec(spec)
        shape, weights = read_model_source(spec)
        base = beside if beside is not None and beside._options.turned == chosen.turned else None
        engine = cls(spec, codec, replace(shape, adapters=spec.adapters), mesh, rank, chosen, base)
        layouts = [*layout(shape, mesh, engine._rank, spec.kind)]
        if spec.adapters is not None:
            layouts += engine.layout()
            weights = InitialAdapters(engine._shape, spec.kind, weights)
        missing = [local for local in layouts if base is None or not is_shared(local.name, spec.kind)]
        fill_tensors(dict(engine._model.named_parameters()), missing, weights)
        return engine

    def train_step(
        self, blocks: Sequence[Any], micro: Callable[[Any], MicroBatch], options: TrainOptions, step: int
    ) -> dict[str, float]:
        """Make one update with the gradient of the sum of the losses of `micro(block)` over the blocks of all replicas,
        and return its `loss`, its `grad_norm` before clipping, and `lr`, the same on every rank. A replica may have no
        blocks."""
        self.clear_gradients()
        add_joint_gradients([(self, blocks, micro)], last=True)
        return self.apply_gradients(options, step)

    @redirect_cuda_to_cpu()
    @torch.enable_grad()
    def clear_gradients(self) -> None:
        """Forget the gradients that were added up."""
        if self._trainer is None:
            self._trainer = self._new_trainer()
            self.offloader.mark_changed()
        self._trainer.clear_gradients()
        self._loss, self._has_rows, self._has_gradients = 0.0, False, False

    def add_gradients(self, blocks: Sequence[Any], micro: Callable[[Any], MicroBatch]) -> None:
        """Add the gradient of the sum of the losses of `micro(block)` to the accumulated ones, after `clear_gradients`.
        Only the ranks of this replica take part."""
        add_joint_gradients([(self, blocks, micro)])

    def add_gradients_jointly(self, trainings: Sequence[Training], beside: PipelineNeighbours | None = None) -> None:
        """Add the gradients of several models of this process, or of others beside it, in one pipeline."""
        add_joint_gradients(trainings, beside=beside)

    @redirect_cuda_to_cpu()
    @torch.enable_grad()
    def apply_gradients(self, options: TrainOptions, step: int, scale: float = 1.0) -> dict[str, float]:
        """Make one update with `scale` times the gradients of all replicas."""
        assert self._trainer is not None
        reports = (
            self._is_last_stage
            and self._mesh.axis_position(self._rank, "tp") == self._mesh.axis_position(self._rank, "cp") == 0
        )
        report = [self._loss, float(self._has_rows)] if reports else [0.0, 0.0]
        total = torch.tensor(report, dtype=torch.float64, device=model_device())
        dist.all_reduce(total)
        loss, rows = total.tolist()
        self._has_gradients = False
        if not rows:
            # Zero gradients that are already travelling to other ranks have to arrive.
            self._trainer.sum_gradients()
            raise NoRows
        self.offloader.mark_changed()
        return {"loss": scale * loss, **self._trainer.step(options, step, scale)}

    def plan_micro_batches(self, lengths: Tensor, token_budget: int | None = None) -> list[Tensor]:
        """Return blocks for `train_step`: row indices; at least one for each stage of each rank along ep, where there
        are as many rows."""
        side = self._mesh.axis_size("pp") * self._mesh.axis_size("ep")
        return plan_micro_batches(lengths, token_budget or self._options.block_tokens, side, packed=True)

    @property
    def model(self) -> GPTModel:
        """The model with the weights of the last update: the caller waits until they have arrived. Only a pass over the
        model, whose layers wait by themselves, begins before."""
        if self._trainer is not None:
            self._trainer.wait_for_weights()
        return self._model

    @property
    def max_row_tokens(self) -> int:
        """The most tokens of a row."""
        return self._shape.positions

    @property
    def has_results(self) -> bool:
        """Whether this is its replica's last stage, and the first rank there along tp, cp and ep."""
        return self._is_last_stage and not any(
            self._mesh.axis_position(self._rank, axis) for axis in ("tp", "cp", "ep")
        )

    def layout(self) -> tuple[LocalTensor, ...]:
        """Return the tensors that this rank holds."""
        return layout(self._shape, self._mesh, self._rank, self.spec.kind)

    def tensors(self) -> dict[str, Tensor]:
        """Return the live parameters by the names of `layout`, those of the last update; for a model with adapters only
        what is trained. A view of one does not outlive the first `train_step`."""
        return self.offloader.on_device_or_host(self._held)

    @redirect_cuda_to_cpu()
    def note_weights_written(self) -> None:
        """Copy the weights into the optimizer's wide copies."""
        if self.offloader.mark_changed() and self._trainer is not None:
            self._trainer.refresh_master_weights()

    def sleep(self, keep: bool = True) -> OffloadRecord:
        """Give the memory of weights, moments and gradients back. Gradients are kept only of an update that has not
        been made."""
        weights, trainer = list(self.model.parameters()), self._trainer
        if trainer is None:
            return self.offloader.sleep(weights, lost=() if keep else weights)
        lost = [*(() if keep else weights), *(() if self._has_gradients else trainer.gradient_buffers())]
        return self.offloader.sleep(
            [*weights, *trainer.optimizer_tensors()], once=trainer.gradient_buffers(), lost=lost
        )

    def moments(self) -> Moments:
        """Return what this rank's optimizer keeps, live; nothing before the first update."""
        if self._trainer is None:
            return Moments()
        held = self._held
        return moments(self._trainer.adam, held, layout_by_layer(self.layout(), held), self.offloader)

    @redirect_cuda_to_cpu()
    @torch.enable_grad()
    def allocate_moments(self, kinds: Collection[str], steps: float) -> Moments:
        """Continue after so many updates, with what is written into what this returns."""
        if self._trainer is None:
            self._trainer = self._new_trainer()
        resume_optimizer(self._trainer.adam, kinds, steps)
        self.offloader.mark_changed()
        return self.moments()

    @redirect_cuda_to_cpu()
    def copy(self) -> MegatronEngine:
        """Return the same model with weights of its own, except a base that adapters share, and no optimizer."""
        base = self if self.spec.adapters is not None else None
        duplicate = MegatronEngine(self.spec, self.codec, self._shape, self._mesh, dist.get_rank(), self._options, base)
        duplicate.load_weights(self.tensors())
        return duplicate

    def _new_trainer(self) -> Trainer:
        kind: DeviceKind = "gpu" if model_device().type == "cuda" else "cpu"
        later = kind in SPEC.gathers_later if self._options.later is None else self._options.later
        return Trainer(self._model, self._options.distributed_optimizer, later)

    @property
    def _held(self) -> dict[str, Tensor]:
        """The parameters by name; of a model with adapters only those that are trained."""
        adapted = self.spec.adapters is not None
        return {name: weight for name, weight in self.model.named_parameters() if weight.requires_grad or not adapted}

    @property
    def _is_last_stage(self) -> bool:
        return self._mesh.axis_position(self._rank, "pp") == self._mesh.axis_size("pp") - 1

    @redirect_cuda_to_cpu()
    def _answer(self, sequences: Sequences, ops: Sequence[Any], temperature: float = 1.0) -> list[Any]:
        """Return the answers of some operations for the same rows, from one pass."""
        for op in ops:
            self._require(op)
        counts = torch.ones_like(sequences.lengths) if "score" in ops else sequences.scored_counts()
        used = counts.nonzero()[:, 0]
        plan = self._own_blocks([used[rows] for rows in self.plan_micro_batches(sequences.lengths[used])])
        calls = [
            []
            if rows is None
            else [_call(op, part, temperature, rows) for part in [sequences.take(rows)] for op in ops]
            for rows in plan
        ]
        outputs = self._pipeline.compute_results([merge_calls(batch_calls, self.codec.pad_id) for batch_calls in calls])
        wide = torch.promote_types(dtype_of(self.spec), torch.float32)
        order, starts, total = used[:0], counts.cumsum(0) - counts, int(counts.sum())
        if outputs:
            order = torch.cat([order, *(rows for rows in plan if rows is not None)])
        places = ragged_index(starts[order], counts[order])

        def put(values: Tensor, at: Tensor, of_all: int) -> Tensor:
            result = put_numbers(values.to(model_device()), at.to(model_device()), of_all)
            if outputs and self._mesh.axis_size("ep") > 1:
                # Each rank has the answers to its own rows.
                dist.all_reduce(result, group=parallel_state.get_expert_model_parallel_group())
            return result

        results: list[Any] = []
        for index, op in enumerate(ops):
            parts = [answers[index] for answers in outputs if answers]
            if isinstance(op, LikeliestTokens):
                kept = KeptTokens.nothing(wide).concat(parts)
                results.append(kept.spread(places, total, lambda *numbers: put(*numbers).cpu()))
            else:
                own = torch.zeros(0, dtype=wide, device=model_device())
                results.append(put(torch.cat([own, *parts]), places, total))
        return results

    def head_and_states(self, sequences: Sequences) -> tuple[Head, Tensor]:
        """Return the head, and what it is given before each scored token, where this model is read beside another one.
        Raises EngineError where it has several stages, or shares rows out."""
        if set(self._mesh.split_axes) - {"dp", "tp"}:
            raise EngineError("models in one sum over the vocabulary are split by `tp` alone")
        return self._pipeline.head_and_states(sequences)

    def _checked_micro(self, micro: Callable[[Any], MicroBatch]) -> Callable[[Any], MicroBatch]:
        def checked_micro_batch(block: Any) -> MicroBatch:
            if block is None:
                return MicroBatch((), lambda answers: torch.zeros((), device=model_device()))
            part = micro(block)
            for call in part.calls:
                self._require(call.op)
            self._has_rows = self._has_rows or part.has_rows
            return part

        return checked_micro_batch

    def _own_blocks(self, blocks: Sequence[Any]) -> list[Any]:
        """Return this rank's part of the blocks, which all ranks along ep get. All of them have experts that each one
        needs, so each has as many blocks: None where there is none left."""
        ep, at = self._mesh.axis_size("ep"), self._mesh.axis_position(self._rank, "ep")
        blocks_here = list(blocks[at::ep])
        return blocks_here + [None] * (-(-len(blocks) // ep) - len(blocks_here))


def _call(
    op: str | VocabularySum | LikeliestTokens, sequences: Sequences, temperature: float, rows: Tensor
) -> ModelCall:
    """Return what is asked of some rows, `sequences`, which are these of all."""
    if isinstance(op, VocabularySum):
        others = tuple(OtherModel(other.engine, other.sequences.take(rows)) for other in op.others)
        return ModelCall("distribution", sequences, temperature, op.formula, others, reduce=op.reduce)
    if isinstance(op, LikeliestTokens):
        return ModelCall("likeliest", sequences, temperature, likeliest=op)
    return ModelCall(op, sequences, temperature)  # type: ignore[arg-type]


@redirect_cuda_to_cpu()
def add_joint_gradients(
    trainings: Sequence[Training], *, last: bool = False, beside: PipelineNeighbours | None = None
) -> None:
    """Do what `MegatronEngine.add_gradients` does, for several models of one process that do not depend on each other:
    as micro-batches of one pipeline, in which each works while the others would wait.

    last: no more gradients come before the step, so that replicas add them up as they are made; for one model, since
    replicas may come to the ends of several in different orders. beside: the processes that have other models of the
    pipeline.
    """
    assert not last or (len(trainings) == 1 and beside is None)
    shared = [
        SharedResults(engine._mesh, engine._rank, blocks, engine._checked_micro(micro))
        for engine, blocks, micro in trainings
    ]
    parts = [
        (engine._pipeline, engine._own_blocks(blocks), shared_answers.micro_batch_keeping_results)
        for (engine, blocks, _), shared_answers in zip(trainings, shared, strict=True)
    ]
    trainers = [engine._trainer for engine, _, _ in trainings]
    assert all(trainers)
    losses = accumulate_gradients(parts, trainers[0].expect_last_gradients if last and trainers[0] else None, beside)
    for (engine, _, _), shared_answers, loss in zip(trainings, shared, losses, strict=True):
        shared_answers.exchange_results(torch.promote_types(dtype_of(engine.spec), torch.float32))
        engine._has_gradients = True
        engine._loss += loss
