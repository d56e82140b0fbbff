"""A model whose layers are split over the ranks of a replica: tensor parallelism (Megatron-LM, arXiv 1909.08053).

Each rank has some heads and some columns of the feed-forward network, and a part of the vocabulary. The inputs of
attention and network are the same on all ranks; their outputs are added up over them. transformers says of each model
which of its matrices are split by rows and which by columns (its `tp_plan`); this module implements these words once,
so that every rank has plain tensors, which any optimizer and any transfer take.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlgraph.backends.engines.adapters import trained_parameters
from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.engines.linear_head import VocabularyPart
from rlgraph.backends.engines.logprobs import logprobs_and_entropy
from rlgraph.backends.engines.transformers.meshes import device_mesh
from rlgraph.backends.enginespec.layout_checks import layout_problems
from rlgraph.catalog.models.config_shape import shape_of
from rlgraph.catalog.models.families import ModelKind
from rlgraph.catalog.models.shape import UnsupportedModel
from rlgraph.ir.layout import even_range
from rlgraph.ir.mesh import Mesh

_PARTS: Mapping[str, tuple[int, int]] = {"colwise": (-2, 1), "rowwise": (-1, 1), "packed_colwise": (-2, 2)}
"""Words of a plan: the dimension of a weight that is split, and how many matrices are stacked in it."""
_SUMMED, _EXPERTS = "replicated_with_grad_allreduce", "moe_tp_experts"
"""Words of a plan: a parameter that all ranks have, each for its own heads; experts that are given tokens and their
weights."""


class TensorParallel:
    """The ranks of this process's replica, and the model that they split. All of them make it and call it together."""

    def __init__(self, mesh: Mesh, rank: int, device: str) -> None:
        """Called after torch's default process group has this mesh's ranks."""
        self.mesh, self.rank = mesh, rank
        self.size, self.index = mesh.axis_size("tp"), mesh.axis_position(rank, "tp")
        self.group = device_mesh(mesh, device)["tp"].get_group()
        """The ranks of this replica; where its parameters are sharded, too, those that have the same shard of them."""
        self.common: set[str] = set()
        """Names of parameters that all ranks have."""
        self._summed_gradients: set[str] = set()
        """Names of those common parameters whose gradients are parts of a sum."""
        self._vocab = self._first = 0
        """Tokens of the vocabulary, and the first one of this rank's."""

    def __deepcopy__(self, memo: object) -> TensorParallel:
        """Return itself: a model's copy has the same ranks."""
        return self

    def split_model(self, model: PreTrainedModel, kind: ModelKind) -> None:
        """Keep this rank's part of the parameters alone. Raises EngineError for a model that cannot be split."""
        try:
            shape = shape_of(model.config.get_text_config().to_dict())
        except UnsupportedModel as error:
            raise EngineError(f"{type(model).__name__} cannot be split by tp: {error}") from error
        for problem in layout_problems(shape, "transformers", self.mesh, kind):
            raise EngineError(f"{type(model).__name__} cannot be split so: {problem}")
        words, owners = _plan_words(model), dict(model.named_modules())
        self._keep_parts(model, words, dict(model.named_parameters(remove_duplicate=False)))
        for name, module in owners.items():
            self._sum_output(module, words.get(name, ""))
            if any(words.get(f"{name}.{child}") == "colwise" for child, _ in module.named_children()):
                module.register_forward_pre_hook(self._enter_split, with_kwargs=True)
        self._split_vocabulary(model)

    def split_trained_parameters(self, model: PreTrainedModel) -> None:
        """Split only what is trained of a model, whose base is that of another one, which was split."""
        self._keep_parts(model, _plan_words(model), trained_parameters(model))
        embedding: Any = model.get_input_embeddings()
        self._vocab, self._first = embedding.ranks._vocab, embedding.first

    def _keep_parts(self, model: PreTrainedModel, words: Mapping[str, str], parameters: Mapping[str, Any]) -> None:
        """Put this rank's part of some parameters in their places."""
        words, owners = {**words, **_adapter_words(words, model)}, dict(model.named_modules())
        parts: dict[int, nn.Parameter] = {}
        for name, parameter in parameters.items():
            if id(parameter) not in parts:
                parts[id(parameter)] = self._part(name, parameter, words)
            owner, _, field = name.rpartition(".")
            setattr(owners[owner], field, parts[id(parameter)])

    def _part(self, name: str, parameter: nn.Parameter, words: Mapping[str, str]) -> nn.Parameter:
        """Return this rank's part of a parameter."""
        module, _, field = name.rpartition(".")
        word = words.get(name) or words.get(module, "")
        if word not in _PARTS or (field == "bias" and word == "rowwise"):
            self.common.add(name)
            if word == _SUMMED:
                self._summed_gradients.add(name)
            return parameter
        dim, stacked = _PARTS[word] if field != "bias" else (-1, 1)
        size = parameter.shape[dim] // stacked
        start, stop = even_range(size, self.size, self.index)
        with torch.no_grad():
            blocks = [block.narrow(dim, start, stop - start) for block in parameter.split(size, dim)]
            return nn.Parameter(torch.cat(blocks, dim).contiguous(), parameter.requires_grad)

    def _sum_output(self, module: nn.Module, word: str) -> None:
        """Add up over the ranks the output of a module that computes a part of the sum."""
        if word == "rowwise":
            if getattr(module, "bias", None) is not None:
                raise EngineError("a matrix that is split by columns has a bias, which each rank would add")
            module.register_forward_hook(lambda module, inputs, output: _summed_over(output, self.group))
        elif word == _EXPERTS:
            module.register_forward_pre_hook(self._to_experts)
            module.register_forward_hook(lambda module, inputs, output: _summed_over(output, self.group))

    def _enter_split(
        self, module: nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Pass the input of attention or a network on: its gradient is the sum of those of the ranks' parts."""
        if inputs:
            return (_identity(inputs[0], self.group), *inputs[1:]), keywords
        return inputs, {**keywords, "hidden_states": _identity(keywords["hidden_states"], self.group)}

    def _to_experts(self, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        hidden, index, weights = inputs
        # Gradients are added up as wide as in one process, before they become as narrow as these weights.
        weights = weights.to(torch.promote_types(weights.dtype, hidden.dtype))
        return _identity(hidden, self.group), index, _identity(weights, self.group)

    # The vocabulary

    def _split_vocabulary(self, model: PreTrainedModel) -> None:
        """Split the embedding by tokens, and a language model's head: one of its own, or tied to the embedding."""
        embedding: Any = model.get_input_embeddings()
        head: Any = model.get_output_embeddings()
        if head is not None and head.weight.shape[0] != embedding.weight.shape[0]:
            head = None
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        assert isinstance(model.get_input_embeddings(), nn.Embedding)
        self._vocab = embedding.num_embeddings
        self._first, stop = even_range(self._vocab, self.size, self.index)
        if stop == self._first:
            raise EngineError(f"{self.size} ranks cannot share {self._vocab} tokens out")
        parts: dict[int, nn.Parameter] = {}
        for module in (embedding, head):
            if module is not None and id(module.weight) not in parts:
                self.common.discard(names[id(module.weight)])
                part = module.weight.detach()[self._first : stop].clone()
                parts[id(module.weight)] = nn.Parameter(part, module.weight.requires_grad)
        if head is not None:
            if not isinstance(head, nn.Linear) or head.bias is not None:
                raise EngineError(f"the head of {type(model).__name__} is no plain matrix")
            head.weight, head.out_features = parts[id(head.weight)], stop - self._first
            head.register_forward_pre_hook(lambda module, inputs: (self.enter_head(inputs[0]),))
        embedding.weight, embedding.num_embeddings = parts[id(embedding.weight)], stop - self._first
        pad = embedding.padding_idx
        embedding.padding_idx = None if pad is None or not self._first <= pad < stop else pad - self._first
        embedding.__class__ = type(type(embedding).__name__, (_PartialEmbedding, type(embedding)), {})
        embedding.first, embedding.ranks = self._first, self

    @property
    def vocabulary_part(self) -> VocabularyPart:
        """The part of the vocabulary that this rank has."""
        return VocabularyPart(self._first, self.group)

    def enter_head(self, hidden: Tensor) -> Tensor:
        """Return the input of the head's parts, whose gradient is the sum of theirs."""
        return _identity(hidden, self.group)

    def logprobs_and_entropies(self, logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities of tokens, and entropies, from this rank's part of the logits; float [M] each."""
        return logprobs_and_entropy(logits, tokens, self._first, self.group)

    def gather_logits(self, logits: Tensor) -> Tensor:
        """Return the logits of the whole vocabulary from this rank's part; [..., V], the same bits on each rank."""
        sizes = [stop - start for start, stop in (even_range(self._vocab, self.size, at) for at in range(self.size))]
        parts = [logits.new_empty(*logits.shape[:-1], max(sizes)) for _ in sizes]
        dist.all_gather(parts, nn.functional.pad(logits, (0, max(sizes) - logits.shape[-1])), group=self.group)
        return torch.cat([part[..., :size] for part, size in zip(parts, sizes, strict=True)], -1)

    def are_all_ranks_ready(self, ready: bool) -> bool:
        """Return whether all ranks are ready."""
        ready_ranks = torch.tensor(int(ready))
        dist.all_reduce(ready_ranks, dist.ReduceOp.MIN, group=self.group)
        return bool(ready_ranks)

    # Gradients

    def sum_partial_gradients(self, gradients: Mapping[str, Tensor | None]) -> None:
        """Add up in place the gradients of parameters of which each rank has a part of the sum."""
        parts = [part for name, part in gradients.items() if name in self._summed_gradients and part is not None]
        if parts:
            flat = torch.cat([part.reshape(-1) for part in parts])
            dist.all_reduce(flat, group=self.group)
            for part, summed in zip(parts, flat.split([part.numel() for part in parts]), strict=True):
                part.copy_(summed.view(part.shape))


def _plan_words(model: PreTrainedModel) -> dict[str, str]:
    """Return what transformers' plan says of modules and parameters, by their names. Raises EngineError where there is
    no plan, or one with words that are not supported here."""
    name, plan = type(model).__name__, model.config.get_text_config().base_model_tp_plan or {}
    supported = (*_PARTS, _SUMMED, _EXPERTS)
    modules = dict(model.named_modules())
    words = {}
    for pattern, word in plan.items():
        matches = re.compile(re.escape(f"{model.base_model_prefix}.{pattern}").replace(r"\*", r"\d+")).fullmatch
        names = [
            candidate
            for candidate in (*modules, *dict(model.named_parameters(remove_duplicate=False)))
            if matches(candidate)
        ]
        if word == "embedding_rowwise":
            continue  # The embedding is split with the head, in the same way.
        if names and word not in supported:
            raise EngineError(f"{name} cannot be split by tp: its plan says `{word}` of {names[0]}")
        words.update(dict.fromkeys(names, word))
    if not words:
        raise EngineError(f"{name} cannot be split by tp: transformers has no plan of how")
    return words


def _adapter_words(words: Mapping[str, str], model: nn.Module) -> dict[str, str]:
    """Return the words for the adapters of a model's matrices: what lies between A and B is whole on each rank, which
    has the columns of A or the rows of B that belong to its part of the matrix."""
    words_of: dict[str, str] = {}
    for name, module in model.named_modules():
        word = words.get(name, "")
        if word in _PARTS and hasattr(module, "lora_A"):
            rows = word != "rowwise"
            words_of |= {f"{name}.lora_A": _SUMMED if rows else word, f"{name}.lora_B": word if rows else _SUMMED}
    return words_of


def _identity(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    entered: Tensor = _CopyToParallelRegion.apply(x, group)  # type: ignore[no-untyped-call]
    return entered


def _summed_over(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    joined: Tensor = _ReduceFromParallelRegion.apply(x, group)  # type: ignore[no-untyped-call]
    return joined


class _PartialEmbedding(nn.Module):
    """An embedding of some tokens of the vocabulary."""

    first: int
    ranks: TensorParallel
    num_embeddings: int

    def forward(self, input: Tensor) -> Tensor:
        index = input - self.first
        missing = (index < 0) | (index >= self.num_embeddings)
        embedded: Tensor = super().forward(index.masked_fill(missing, 0))
        return _summed_over(embedded.masked_fill(missing[..., None], 0), self.ranks.group)


class _CopyToParallelRegion(torch.autograd.Function):
    """Passes on what all ranks have and each works on with its part: the gradient is the sum over them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        gradient = gradients[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class _ReduceFromParallelRegion(torch.autograd.Function):
    """Sums what each rank has a part of; all of them have the sum's gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        if x.is_contiguous():
            ctx.mark_dirty(x)
        else:
            x = x.contiguous()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None
