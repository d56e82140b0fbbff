"""A model that is split over the ranks of a mesh: log-probabilities, values, scores and training with Megatron-core."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_model import GPTModel
from torch import Tensor

from rlgraph.backends.engines.base import (
    Beside,
    Call,
    EngineError,
    Micro,
    NoHead,
    NoRows,
    State,
    Training,
    TrainOptions,
)
from rlgraph.backends.engines.blocks import plan_blocks
from rlgraph.backends.engines.megatron.answered import Answered
from rlgraph.backends.engines.megatron.batches import batch_of
from rlgraph.backends.engines.megatron.groups import Stages, settle
from rlgraph.backends.engines.megatron.layout import layout
from rlgraph.backends.engines.megatron.model import build, dtype_of
from rlgraph.backends.engines.megatron.moments import begin, moments
from rlgraph.backends.engines.megatron.pipeline import Pipeline, gradients
from rlgraph.backends.engines.megatron.shim import device, on_cpu
from rlgraph.backends.engines.megatron.spec import SPEC
from rlgraph.backends.engines.megatron.training import Trainer
from rlgraph.backends.engines.moments import Moments
from rlgraph.backends.engines.offload import Sleeper, Switched
from rlgraph.backends.engines.sequences import Sequences, ragged_index
from rlgraph.backends.engines.sources import ModelSpec, load, load_codec
from rlgraph.backends.engines.tokenizers import Codec
from rlgraph.backends.engines.weights import (
    FolderWeights,
    ModelWeights,
    Weights,
    blend,
    copied,
    fill,
    locals_of,
    same_names,
    take_over,
)
from rlgraph.backends.enginespec.legal import held
from rlgraph.catalog.clusters.cluster import DeviceKind
from rlgraph.catalog.models.configs import find_config
from rlgraph.catalog.models.shape import Shape, UnsupportedModel, shape_of
from rlgraph.ir.layout import Local
from rlgraph.ir.mesh import Mesh


class MegatronEngine:
    """One rank's part of a model. Implements `Scores` and `Fuses`.

    All ranks of a copy get the same calls with the same rows, in the same order; those along ep share the blocks of
    rows out, and those along cp the tokens of each row. Ranks of different copies (dp) have rows of their own, and call
    `open`, `copy`, `train_step`, `clear_gradients` and `apply_gradients` together. Nothing but training keeps
    gradients. All ranks of the last stage have results, not the one alone that `speaks`.
    """

    def __init__(
        self,
        spec: ModelSpec,
        codec: Codec,
        shape: Shape,
        mesh: Mesh,
        rank: int,
        *,
        distributed_optimizer: bool,
        block_tokens: int,
        logit_numbers: int,
        recompute: bool,
        turned: bool,
        later: bool | None,
    ) -> None:
        """With weights that are all zeros; `open` reads them."""
        self.spec, self.codec, self._stages = spec, codec, Stages(turned)
        self._model: GPTModel = build(shape, mesh, spec.kind, dtype_of(spec), recompute, self._stages)
        self._shape, self._mesh, self._rank = shape, mesh, mesh.turned(rank, "pp") if turned else rank
        self._distributed, self._block_tokens, self._recompute = distributed_optimizer, block_tokens, recompute
        self._logit_numbers = logit_numbers
        self._later = later
        self._pipeline = Pipeline(
            self._model, shape, spec.kind, codec.pad_id, logit_numbers, self._stages, mesh.length("chunks")
        )
        self._trainer: Trainer | None = None
        self.rest = Sleeper()
        self._adds = False
        """There are gradients of an update that has not been made."""
        self._loss, self._has_rows = 0.0, False
        """Of the gradients that were added up: the loss, and whether there were rows."""

    @classmethod
    @on_cpu()
    def open(
        cls,
        spec: ModelSpec,
        mesh: Mesh,
        *,
        distributed_optimizer: bool = True,
        block_tokens: int = 2048,
        logit_numbers: int = 1 << 25,
        recompute: bool = False,
        turned: bool = False,
        later: bool | None = None,
    ) -> MegatronEngine:
        """Load this rank's part of the model of `spec`, after `rlgraph.backends.engines.process_groups.join`.

        distributed_optimizer: split the optimizer's state over the copies, too. block_tokens: tokens in a
        micro-batch. recompute: training keeps each layer's input only, and computes what is inside again. turned:
        the ranks have the stages the other way round, the last one the first stage. later: where copies share the
        optimizer out, new weights come from the others while the next pass is computed; None: on the devices that the
        spec says. Raises EngineError for a source that cannot be used, a family that is not known, and a mesh that does
        not fit the model or this process.
        """
        rank = settle(mesh)
        codec = load_codec(spec)
        shape, weights = _source(spec)
        engine = cls(
            spec,
            codec,
            shape,
            mesh,
            rank,
            distributed_optimizer=distributed_optimizer,
            block_tokens=block_tokens,
            logit_numbers=logit_numbers,
            recompute=recompute,
            turned=turned,
            later=later,
        )
        fill(engine.tensors(), engine.layout(), weights)
        return engine

    def logprobs(self, sequences: Sequences, temperature: float = 1.0) -> Tensor:
        """log softmax(logits / temperature) of each scored token, float [total scored]."""
        return self._ask(sequences, ["logprobs"], temperature)[0]

    def entropy(self, sequences: Sequences, temperature: float = 1.0) -> Tensor:
        """Entropy in nats of the distribution of each scored token, float [total scored]."""
        return self._ask(sequences, ["entropy"], temperature)[0]

    def logprobs_and_entropy(self, sequences: Sequences, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
        """Both from one pass, float [total scored] each."""
        logprobs, entropy = self._ask(sequences, ["logprobs", "entropy"], temperature)
        return logprobs, entropy

    def values(self, sequences: Sequences) -> Tensor:
        """The value of the state before each scored token, float [total scored]."""
        return self._ask(sequences, ["values"])[0]

    def score(self, sequences: Sequences) -> Tensor:
        """The scalar at each row's last token, float [N]."""
        return self._ask(sequences, ["score"])[0]

    def train_step(
        self, blocks: Sequence[Any], micro: Callable[[Any], Micro], options: TrainOptions, step: int
    ) -> dict[str, float]:
        """One update with the gradient of the sum of the losses of `micro(block)` over the blocks of all copies: its
        `loss`, its `grad_norm` before clipping, and `lr`, the same on every rank. A copy may have no blocks."""
        self.clear_gradients()
        add_gradients([(self, blocks, micro)], last=True)
        return self.apply_gradients(options, step)

    @on_cpu()
    @torch.enable_grad()
    def clear_gradients(self) -> None:
        """Forget what was added up."""
        if self._trainer is None:
            self._trainer = self._new_trainer()
            self.rest.changed()
        self._trainer.clear()
        self._loss, self._has_rows, self._adds = 0.0, False, False

    def add_gradients(self, blocks: Sequence[Any], micro: Callable[[Any], Micro]) -> None:
        """Add the gradient of the sum of the losses of `micro(block)` to what is there, after `clear_gradients`. Only
        the ranks of this copy take part."""
        add_gradients([(self, blocks, micro)])

    def add_together(self, trainings: Sequence[Training], beside: Beside | None = None) -> None:
        """The same for several models of this process, or of others beside it, in one pipeline."""
        add_gradients(trainings, beside=beside)

    @on_cpu()
    @torch.enable_grad()
    def apply_gradients(self, options: TrainOptions, step: int, scale: float = 1.0) -> dict[str, float]:
        """One update with `scale` times the gradients of all copies."""
        assert self._trainer is not None
        first = self._last and self._mesh.at(self._rank, "tp") == self._mesh.at(self._rank, "cp") == 0
        said = [self._loss, float(self._has_rows)] if first else [0.0, 0.0]
        total = torch.tensor(said, dtype=torch.float64, device=device())
        dist.all_reduce(total)
        loss, rows = total.tolist()
        self._adds = False
        if not rows:
            # Gradients of zeros that are on their way to others have to arrive.
            self._trainer.sum()
            raise NoRows
        self.rest.changed()
        return {"loss": scale * loss, **self._trainer.step(options, step, scale)}

    def plan_blocks(self, lengths: Tensor, token_budget: int | None = None) -> list[Tensor]:
        """Blocks for `train_step`: row indices; at least one for each stage of each rank along ep, where there are as
        many rows."""
        side = self._mesh.length("pp") * self._mesh.length("ep")
        return plan_blocks(lengths, token_budget or self._block_tokens, side, packed=True)

    def state(self) -> State:
        """A copy of this rank's weights."""
        return copied(self.tensors())

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over these weights, of a model with the same split; the optimizer's moments stay."""
        take_over(self.tensors(), state)
        self.written()

    def blend(self, other: Mapping[str, Tensor], ema: float) -> None:
        """Move towards `other`: weights = ema * weights + (1 - ema) * other."""
        blend(self.tensors(), other, ema)
        self.written()

    @contextmanager
    def weights(self, state: State) -> Iterator[None]:
        """Compute with the tensors of `state` while the context lasts; nothing is copied."""
        own = self.tensors()
        same_names(own, state)
        before = {name: tensor.data for name, tensor in own.items()}
        try:
            for name, tensor in own.items():
                tensor.data = state[name]
            yield
        finally:
            for name, tensor in own.items():
                tensor.data = before[name]

    @property
    def model(self) -> GPTModel:
        """With the weights of the last update: whoever asks waits until they are there. Only a pass over the model,
        whose layers wait by themselves, begins before."""
        if self._trainer is not None:
            self._trainer.arrived()
        return self._model

    @property
    def longest(self) -> int:
        """Most tokens of a row."""
        return self._shape.positions

    @property
    def speaks(self) -> bool:
        """Whether this is its copy's last stage, and the first rank there along tp, cp and ep."""
        return self._last and not any(self._mesh.at(self._rank, axis) for axis in ("tp", "cp", "ep"))

    def layout(self) -> tuple[Local, ...]:
        """The tensors that this rank holds."""
        return layout(self._shape, self._mesh, self._rank, self.spec.kind)

    def tensors(self) -> dict[str, Tensor]:
        """The live parameters by the names of `layout`, those of the last update. A view of one does not outlive the
        first `train_step`."""
        return self.rest.here(dict(self.model.named_parameters()))

    @on_cpu()
    def written(self) -> None:
        """Takes the weights over into the optimizer's wide copies."""
        if self.rest.changed() and self._trainer is not None:
            self._trainer.reread()

    def sleep(self, keep: bool = True) -> Switched:
        """Gives the memory of weights, moments and gradients back. Gradients are kept only of an update that has not
        been made."""
        weights, trainer = list(self.model.parameters()), self._trainer
        if trainer is None:
            return self.rest.sleep(weights, lost=() if keep else weights)
        lost = [*(() if keep else weights), *(() if self._adds else trainer.gradients())]
        return self.rest.sleep([*weights, *trainer.tensors()], once=trainer.gradients(), lost=lost)

    def wake(self) -> Switched:
        """Takes it again."""
        return self.rest.wake(self.written)

    def moments(self) -> Moments:
        """What this rank's optimizer keeps, live; nothing before the first update."""
        if self._trainer is None:
            return Moments()
        own = dict(self.model.named_parameters())
        return moments(self._trainer.adam, own, locals_of(self.layout(), own), self.rest)

    @on_cpu()
    @torch.enable_grad()
    def begin_moments(self, kinds: Collection[str], steps: float) -> Moments:
        """Continue after so many updates, with what is written into these."""
        if self._trainer is None:
            self._trainer = self._new_trainer()
        begin(self._trainer.adam, kinds, steps)
        self.rest.changed()
        return self.moments()

    @on_cpu()
    def copy(self) -> MegatronEngine:
        """The same model with weights of its own and no optimizer."""
        other = MegatronEngine(
            self.spec,
            self.codec,
            self._shape,
            self._mesh,
            dist.get_rank(),
            distributed_optimizer=self._distributed,
            block_tokens=self._block_tokens,
            logit_numbers=self._logit_numbers,
            recompute=self._recompute,
            turned=self._stages.turned,
            later=self._later,
        )
        other.load_state(self.tensors())
        return other

    def _new_trainer(self) -> Trainer:
        here: DeviceKind = "gpu" if device().type == "cuda" else "cpu"
        later = here in SPEC.gathers_later if self._later is None else self._later
        return Trainer(self._model, self._distributed, later)

    @property
    def _last(self) -> bool:
        return self._mesh.at(self._rank, "pp") == self._mesh.length("pp") - 1

    @on_cpu()
    def _ask(self, sequences: Sequences, ops: Sequence[Any], temperature: float = 1.0) -> list[Tensor]:
        """The answers of some operations for the same rows, from one pass."""
        for op in ops:
            self._require(op)
        counts = torch.ones_like(sequences.lengths) if "score" in ops else sequences.counts()
        busy = counts.nonzero()[:, 0]
        plan = self._own([busy[rows] for rows in self.plan_blocks(sequences.lengths[busy])])
        calls = [
            [] if rows is None else [Call(op, part, temperature) for part in [sequences.take(rows)] for op in ops]
            for rows in plan
        ]
        done = self._pipeline.answers([batch_of(each, self.codec.pad_id) for each in calls])
        wide = torch.promote_types(dtype_of(self.spec), torch.float32)
        found = [torch.zeros(int(counts.sum()), dtype=wide, device=device()) for _ in ops]
        if done:
            order, starts = (
                torch.cat([busy[:0], *(rows for rows in plan if rows is not None)]),
                counts.cumsum(0) - counts,
            )
            back = ragged_index(starts[order], counts[order]).to(device())
            for index, place in enumerate(found):
                place[back] = torch.cat([place[:0], *(answers[index] for answers in done if answers)])
                if self._mesh.length("ep") > 1:
                    # Each has the answers to its own rows.
                    dist.all_reduce(place, group=parallel_state.get_expert_model_parallel_group())
        return found

    def _checked(self, micro: Callable[[Any], Micro]) -> Callable[[Any], Micro]:
        def checked(block: Any) -> Micro:
            if block is None:
                return Micro((), lambda answers: torch.zeros((), device=device()))
            part = micro(block)
            for call in part.calls:
                self._require(call.op)
            self._has_rows = self._has_rows or part.has_rows
            return part

        return checked

    def _own(self, blocks: Sequence[Any]) -> list[Any]:
        """Ranks along ep get the same blocks, and each works on its part of them; with as many for each, since all of
        them have experts that each one needs: None where there is none."""
        ep, at = self._mesh.length("ep"), self._mesh.at(self._rank, "ep")
        own = list(blocks[at::ep])
        return own + [None] * (-(-len(blocks) // ep) - len(own))

    def _require(self, op: str) -> None:
        kind, what = _GIVES[op]
        if self.spec.kind != kind:
            raise EngineError(f"a {self.spec.kind} does not give {what}: that needs a {kind}")


@on_cpu()
def add_gradients(trainings: Sequence[Training], *, last: bool = False, beside: Beside | None = None) -> None:
    """What `MegatronEngine.add_gradients` does, for several models of one process that do not depend on each other: as
    micro-batches of one pipeline, in which each works while the others would wait.

    last: no more gradients come before the step, so that copies add them up as they are made; for one model, since
    copies may come to the ends of several in different orders. beside: who has other models of the pipeline.
    """
    assert not last or (len(trainings) == 1 and beside is None)
    shared = [Answered(each._mesh, each._rank, blocks, each._checked(micro)) for each, blocks, micro in trainings]
    parts = [
        (each._pipeline, each._own(blocks), said.micro)
        for (each, blocks, _), said in zip(trainings, shared, strict=True)
    ]
    trainers = [each._trainer for each, _, _ in trainings]
    assert all(trainers)
    losses = gradients(parts, trainers[0].complete if last and trainers[0] else None, beside)
    for (engine, _, _), said, loss in zip(trainings, shared, losses, strict=True):
        said.tell(torch.promote_types(dtype_of(engine.spec), torch.float32))
        engine._adds = True
        engine._loss += loss


_GIVES = {
    "logprobs": ("causal_lm", "log-probabilities"),
    "entropy": ("causal_lm", "an entropy"),
    "values": ("value_lm", "values"),
    "score": ("reward_lm", "a score"),
}
"""What kind of model answers an operation."""


def _source(spec: ModelSpec) -> tuple[Shape, Weights]:
    """Of a local folder only what is asked for is read; what transformers has to make or find is made whole."""
    try:
        if isinstance(spec.source, str) and Path(spec.source).is_dir():
            weights = FolderWeights(spec.source)
            if spec.begins_with_head and not weights.has_head:
                raise NoHead(spec.kind, spec.source)
            return shape_of(find_config(spec.source) or {}), weights
        model = load(spec).model
        return shape_of(model.config.get_text_config().to_dict()), ModelWeights(model)
    except UnsupportedModel as error:
        raise EngineError(str(held(error, "megatron"))) from error
