"""Sums over the vocabulary of a formula of one or several models' probabilities, such as a divergence: from logits that
exist for some places at a time, whole or split by vocabulary over ranks.

Formulas are computed with the logarithms of probabilities. That of a product is a sum, and that of a sum of positive
numbers is taken without exponentials that could be 0: `p * log(p / (p + q))` is a number where both are too small for
one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rlgraph.backends.engines.errors import EngineError
from rlgraph.backends.engines.likeliest import NO_LOG, kept_logprobs
from rlgraph.backends.engines.logprobs import logprobs_and_entropy, token_logprobs
from rlgraph.ir.graph import Apply, Const, Expr, Ref
from rlgraph.ir.text.line_reader import LineReader
from rlgraph.ir.types import Tensor as TensorType
from rlgraph.ir.types import Type
from rlgraph.ops.reference import REFERENCE

_COLUMNS, _GPU_COLUMNS = 2048, 16384
"""So many columns are worked on until they are done, as many whatever the rows, so that a row's sums are the same
beside others."""
_CACHED = 1 << 16
"""On a CPU so many logits of a model: with all that is computed of them they fit a core's cache."""


@dataclass(frozen=True, eq=False)
class OtherModel:
    """Another model of this process and its rows, each with as many scored tokens as the row that it is read beside; or
    likeliest tokens of these, which come behind the models."""

    engine: Any
    """None: of likeliest tokens."""
    sequences: Any
    """Sequences, or KeptRows."""

    @property
    def identity(self) -> tuple[int, int]:
        """Equal where model and rows are the same."""
        return id(self.engine), id(self.sequences)


@dataclass(frozen=True)
class VocabularySum:
    """What an engine is asked at each scored token: the sum over the vocabulary of a formula of `p0`, its own model's
    probabilities, and `p1`, `p2`, ..., those of others, through which no gradient goes; or the mean, or the largest."""

    formula: str
    others: tuple[OtherModel, ...] = ()
    reduce: str = "sum"


def reduce_vocabulary(
    formulas: Sequence[tuple[str, str]],
    logits: Sequence[Tensor],
    group: dist.ProcessGroup | None = None,
    kept: Sequence[Tensor] = (),
    first: int = 0,
) -> list[Tensor]:
    """Return for each formula its `sum`, `mean`, `max` or `logsumexp` over the vocabulary, float [M], as the word
    beside it says; the other arguments are those of `vocabulary_sums`."""
    if any(word == "logsumexp" for _, word in formulas):
        return [
            _log_sum_of_exponentials(formula, logits, group, kept, first)
            if word == "logsumexp"
            else reduce_vocabulary([(formula, word)], logits, group, kept, first)[0]
            for formula, word in formulas
        ]
    words = [word for _, word in formulas]
    added = [formula for formula, word in formulas if word != "max"]
    largest = [formula for formula, word in formulas if word == "max"]
    sums = iter(vocabulary_sums(added, logits, group, kept, first) if added else ())
    maxima = iter(_maxima(tuple(map(read_formula, largest)), logits, group, kept, first) if largest else ())
    results = [next(maxima if word == "max" else sums) for word in words]
    if "mean" not in words:
        return results
    columns = torch.tensor(float(logits[0].shape[1]), device=logits[0].device)
    if group is not None:
        dist.all_reduce(columns, group=group)
    return [result / columns if word == "mean" else result for result, word in zip(results, words, strict=True)]


def _log_sum_of_exponentials(
    formula: str, logits: Sequence[Tensor], group: dist.ProcessGroup | None, kept: Sequence[Tensor], first: int
) -> Tensor:
    """Return log sum exp of a formula over the vocabulary, float [M]; its largest value is taken off first."""
    with torch.no_grad():
        [largest] = _maxima([read_formula(formula)], logits, group, kept, first)
    taken_off = f"exp({formula} - x{len(logits) + len(kept)})"
    [total] = vocabulary_sums([taken_off], logits, group, [*kept, largest[:, None]], first)
    return total.log() + largest


def vocabulary_sums(
    formulas: Sequence[str],
    logits: Sequence[Tensor],
    group: dist.ProcessGroup | None = None,
    kept: Sequence[Tensor] = (),
    first: int = 0,
) -> tuple[Tensor, ...]:
    """Return for each formula its sum over the vocabulary, float [M].

    logits: of each model, [M, V], divided by the temperature; or of a group of ranks the part of the vocabulary that
    this one has, from token number `first` on, and each has all results. kept: likeliest tokens, [M, 2 K], as
    `KeptRows` has them, which come behind the models, and numbers of the places, [M, 1]. Raises EngineError where the
    models' vocabularies differ in size.
    """
    trees = tuple(map(read_formula, formulas))
    others = _beside(logits, kept, first)
    sums: tuple[Tensor, ...] = _VocabularySums.apply(  # type: ignore[no-untyped-call]
        trees, group, len(logits), *logits, *others
    )
    return sums


def _beside(logits: Sequence[Tensor], kept: Sequence[Tensor], first: int) -> list[Tensor]:
    """Return what comes behind the models: logarithms of probabilities, [M, V], and numbers, [M, 1]."""
    sizes = [part.shape[1] for part in logits]
    if len(set(sizes)) > 1:
        heads = " and ".join(map(str, sizes))
        raise EngineError(f"a sum over the vocabulary is of models with as many outputs, and these have {heads}")
    return [numbers if numbers.shape[1] == 1 else kept_logprobs(numbers, sizes[0], first) for numbers in kept]


def _maxima(
    formulas: Sequence[Expr],
    logits: Sequence[Tensor],
    group: dist.ProcessGroup | None,
    kept: Sequence[Tensor],
    first: int,
) -> list[Tensor]:
    """Return for each formula its largest value over the vocabulary, float [M]; the gradient goes to the first of
    equals. It is computed again of the probabilities of the token where it is found."""
    others = _beside(logits, kept, first)
    parts = [*(part.detach() for part in logits), *others]
    log_s = [_log_sum_exp(part, group) for part in parts[: len(logits)]]
    log_s += [torch.zeros_like(log_s[0])] * len(others)
    largest = parts[0].new_full((len(formulas), parts[0].shape[0]), -torch.inf)
    found = torch.zeros(largest.shape, dtype=torch.long, device=largest.device)
    with torch.no_grad():
        for rows, columns in _tiles(parts[0]):
            terms = _Terms(_tile(parts, log_s, rows, columns))
            for place, formula in enumerate(formulas):
                value, at = terms.value(formula).expand_as(terms.logprobs[0]).max(1)
                better = value > largest[place, rows]
                largest[place, rows] = torch.where(better, value, largest[place, rows])
                found[place, rows] = torch.where(better, first + columns.start + at, found[place, rows])
        if group is not None:
            own = largest.clone()
            dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
            found.masked_fill_(own < largest, torch.iinfo(found.dtype).max)
            dist.all_reduce(found, dist.ReduceOp.MIN, group=group)
    return [_at_token(*pair, logits, others, first, group) for pair in zip(formulas, found, strict=True)]


def _at_token(
    formula: Expr,
    tokens: Tensor,
    logits: Sequence[Tensor],
    others: Sequence[Tensor],
    first: int,
    group: dist.ProcessGroup | None,
) -> Tensor:
    """Return the value of a formula at a token of each row, float [M]. tokens: int64 [M]."""
    logprobs = [
        token_logprobs(part, tokens) if group is None else logprobs_and_entropy(part, tokens, first, group)[0]
        for part in logits
    ]
    columns = (tokens - first).clamp(0, logits[0].shape[1] - 1)
    is_here = tokens == columns + first
    for part in others:
        value = part[:, 0]
        if part.shape[1] > 1:
            value = part.gather(1, columns[:, None])[:, 0].where(is_here, NO_LOG)
            if group is not None:
                dist.all_reduce(value, dist.ReduceOp.MAX, group=group)
        logprobs.append(value)
    terms = _Terms([part[:, None] for part in logprobs])
    return terms.value(formula).expand_as(terms.logprobs[0])[:, 0]


@cache
def read_formula(text: str) -> Expr:
    """Return a formula as an expression of `p0`, `p1`, ... and numbers, `x2` for example: its constants are computed,
    and equal parts of it are one object."""
    names: dict[str, Type] = {name: TensorType("float") for name in re.findall(r"\b[px]\d+", text)}
    parts: dict[Expr, Expr] = {}

    def unify(part: Expr) -> Expr:
        if isinstance(part, Apply):
            args = tuple(map(unify, part.args))
            constants = [arg.value for arg in args if isinstance(arg, Const)]
            if len(constants) == len(args):
                wide = [torch.tensor(value, dtype=torch.float64) for value in constants]
                return parts.setdefault(folded := Const(float(REFERENCE[part.op](*wide)), part.type), folded)
            part = Apply(part.op, args, part.type, part.axis)
        return parts.setdefault(part, part)

    return unify(LineReader(text, {}, names).read_expression())


class _VocabularySums(torch.autograd.Function):
    """Keeps the logits and the logarithm of each row's sum of exponentials."""

    @staticmethod
    def forward(
        ctx: Any, formulas: tuple[Expr, ...], group: dist.ProcessGroup | None, models: int, *logits: Tensor
    ) -> tuple[Tensor, ...]:
        """Behind the logits of so many models come logarithms of probabilities and numbers, which are what they are."""
        log_s = [_log_sum_exp(part, group) for part in logits[:models]]
        log_s += [torch.zeros_like(log_s[0])] * (len(logits) - models)
        sums = logits[0].new_zeros(len(formulas), logits[0].shape[0])
        for rows, columns in _tiles(logits[0]):
            terms = _Terms(_tile(logits, log_s, rows, columns))
            for place, formula in enumerate(formulas):
                sums[place, rows] += terms.value(formula).expand_as(terms.logprobs[0]).sum(1)
        if group is not None:
            dist.all_reduce(sums, group=group)
        ctx.save_for_backward(*logits, *log_s)
        ctx.formulas, ctx.group = formulas, group
        return tuple(sums)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Use d f / dx_j = f'_j - p_j sum f', where f' is the derivative by the logarithm of a probability."""
        # Where chunks are computed again they can be asked for once.
        saved = ctx.saved_tensors
        count = len(saved) // 2
        logits, log_s = saved[:count], saved[count:]
        wanted = [place for place in range(count) if ctx.needs_input_grad[3 + place]]
        to_logits = {place: torch.empty_like(logits[place]) for place in wanted}
        for rows, columns in _tiles(logits[0]):
            with torch.enable_grad():
                tile = enumerate(_tile(logits, log_s, rows, columns))
                logprobs = [part.requires_grad_(place in to_logits) for place, part in tile]
                terms = _Terms(logprobs)
                values = [terms.value(formula).expand_as(logprobs[0]) for formula in ctx.formulas]
                parts = [logprobs[place] for place in wanted]
                pairs = [(value, of[rows, None].expand_as(value)) for value, of in zip(values, gradients, strict=True)]
                pairs = [(value, of) for value, of in pairs if value.requires_grad]
                slopes: Sequence[Tensor | None] = [None] * len(parts)
                if pairs:
                    heads, weights = zip(*pairs, strict=True)
                    slopes = torch.autograd.grad(heads, parts, weights, allow_unused=True)
            for place, slope in zip(wanted, slopes, strict=True):
                to_logits[place][rows, columns] = 0 if slope is None else slope
        for place, slope in to_logits.items():
            total = slope.sum(1)
            if ctx.group is not None:
                dist.all_reduce(total, group=ctx.group)
            for rows, columns in _tiles(slope):
                p = (logits[place][rows, columns] - log_s[place][rows, None]).exp_()
                slope[rows, columns] -= p.mul_(total[rows, None])
        return None, None, None, *(to_logits.get(place) for place in range(count))


def _tile(parts: Sequence[Tensor], log_s: Sequence[Tensor], rows: slice, columns: slice) -> list[Tensor]:
    """Return logarithms of probabilities in a tile, and the numbers of its rows."""
    return [
        (part[rows, columns] if part.shape[1] > 1 else part[rows]) - row[rows, None]
        for part, row in zip(parts, log_s, strict=True)
    ]


def _log_sum_exp(logits: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Return log sum exp of each row, [M], over all ranks of a group."""
    largest = logits.amax(1)
    if group is not None:
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    s = torch.zeros_like(largest)
    for rows, columns in _tiles(logits):
        s[rows] += (logits[rows, columns] - largest[rows, None]).exp_().sum(1)
    if group is not None:
        dist.all_reduce(s, group=group)
    return s.log_().add_(largest)


def _tiles(logits: Tensor) -> list[tuple[slice, slice]]:
    """Return the rows and columns of tiles that are worked on one after the other."""
    (rows, vocab), on_cpu = logits.shape, logits.device.type == "cpu"
    wide = min(vocab, _COLUMNS if on_cpu else _GPU_COLUMNS)
    high = max(1, _CACHED // wide) if on_cpu else max(1, rows)
    return [
        (slice(row, min(row + high, rows)), slice(column, min(column + wide, vocab)))
        for row in range(0, rows, high)
        for column in range(0, vocab, wide)
    ]


class _Terms:
    """The values of formulas, from the logarithms of probabilities, and numbers."""

    def __init__(self, logprobs: Sequence[Tensor]) -> None:
        self.logprobs = logprobs
        self._values: dict[int, Tensor] = {}
        self._logs: dict[int, Tensor] = {}

    def value(self, expr: Expr) -> Tensor:
        """Return the value of an expression, [M, n] or one number."""
        if id(expr) not in self._values:
            self._values[id(expr)] = self._compute(expr)
        return self._values[id(expr)]

    def log(self, expr: Expr) -> Tensor:
        """Return the logarithm of an expression."""
        if id(expr) not in self._logs:
            self._logs[id(expr)] = self._compute_log(expr)
        return self._logs[id(expr)]

    def _compute(self, expr: Expr) -> Tensor:
        if isinstance(expr, Const):
            return self._constant(expr)
        if isinstance(expr, Ref):
            return self.log(expr).exp() if _is_positive(expr) else self._given(expr)
        if expr.op == "log":
            return self.log(expr.args[0])
        if expr.op in ("div", "pow", "sqrt") and _is_positive(expr):
            # Of probabilities that are too small for a number there is still a quotient, and a root has a slope.
            return self.log(expr).exp()
        value: Tensor = REFERENCE[expr.op](*map(self.value, expr.args))
        return value

    def _compute_log(self, expr: Expr) -> Tensor:
        if isinstance(expr, Ref) and _is_positive(expr):
            return self._given(expr)
        if isinstance(expr, Apply) and expr.op == "exp":
            return self.value(expr.args[0])
        if not isinstance(expr, Apply) or not _is_positive(expr):
            return self.value(expr).log()
        first, *rest = expr.args
        if expr.op in ("detach", "float"):
            return self.log(first).detach() if expr.op == "detach" else self.log(first)
        if expr.op == "sqrt":
            return self.log(first) / 2
        if expr.op == "pow":
            return self.log(first) * self.value(rest[0])
        other = self.log(rest[0])
        if expr.op == "add":
            return torch.logaddexp(*torch.broadcast_tensors(self.log(first), other))
        return self.log(first) + other if expr.op == "mul" else self.log(first) - other

    def _given(self, expr: Ref) -> Tensor:
        return self.logprobs[int(expr.name[1:])]

    def _constant(self, expr: Const) -> Tensor:
        return self.logprobs[0].new_tensor(float(expr.value))


@cache
def _is_positive(expr: Expr) -> bool:
    """Return whether an expression is a positive number whatever the probabilities are, and its logarithm is known."""
    if isinstance(expr, Const):
        return not isinstance(expr.value, str) and math.isfinite(expr.value) and expr.value > 0
    if isinstance(expr, Ref):
        return expr.name.startswith("p")
    if expr.op == "exp":
        return True
    if expr.op == "pow":
        return _is_positive(expr.args[0])
    return expr.op in ("mul", "div", "add", "sqrt", "detach", "float") and all(map(_is_positive, expr.args))
