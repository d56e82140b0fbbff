"""This module calls functions of the language on padded tensors, from Python: `gae(reward, value, 1.0, 0.95,
mask=mask)`.

  Python number, 0-d tensor    a single value
  1-D tensor [rows]            an entry for each row
  2-D tensor [rows, tokens]    an entry for each token that the mask keeps, in order; the mask may have holes

A parameter that the function groups by (`by=group`) is an int tensor [rows]: rows with one number are one group. A
result with an entry for each group has them in ascending order of these numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from rlgraph.backends.lowering.lower import lower
from rlgraph.ir.graph import Node
from rlgraph.ir.types import Axis, DType
from rlgraph.ir.types import Tensor as Type

GROUP = Axis("group", "group")
ROW = Axis("row", "row", GROUP)
TOKEN = Axis("row.token", "token", ROW, inner=True)
_AXES = (None, ROW, TOKEN)

Argument: TypeAlias = "Tensor | float"
"""A tensor or a Python number (int and bool too)."""


def argument_types(arguments: Mapping[str, Argument]) -> dict[str, Type]:
    """Return what the checker needs to know of each argument; raises ValueError for more than two dimensions."""
    return {name: _type(name, argument) for name, argument in arguments.items()}


def compute_padded(
    node: Node, arguments: Mapping[str, Argument], mask: Tensor | None = None, group: str | None = None
) -> Tensor:
    """Compute the one output of a `tensor` node typed by `argument_types`, padded as the arguments are, with 0.

    mask: [rows, tokens], true or not 0 where a token counts; None for all. group: the argument with a number for each
    row that says in which group it lies. Gradients go through. Raises ValueError for shapes that do not fit.
    """
    assert len(node.outputs) == 1, "a function returns one value"
    tensors = [tensor for tensor in arguments.values() if isinstance(tensor, Tensor)]
    floats = [tensor.dtype for tensor in tensors if tensor.is_floating_point()]
    device = tensors[0].device if tensors else None
    dtype = floats[0] if floats else torch.get_default_dtype()
    for float_dtype in floats:
        dtype = torch.promote_types(dtype, float_dtype)
    mask = _mask(arguments, mask)
    rows = _PaddedRows(mask, dtype, _groups(arguments[group]) if group else None)
    flat: dict[str, Tensor] = {}
    for name in node.inputs:
        argument = arguments[name]
        if not isinstance(argument, Tensor):
            argument = torch.tensor(argument, dtype=dtype if isinstance(argument, float) else None, device=device)
        argument = argument.to(dtype) if argument.is_floating_point() else argument
        flat[name] = argument[mask] if argument.dim() == 2 else argument
    (value,) = node.outputs
    result = lower(node)(flat, rows)[value.name]
    if isinstance(value.type, Type) and value.type.axis == TOKEN:
        return result.new_zeros(mask.shape).masked_scatter(mask, result)
    return result


@dataclass(frozen=True)
class _PaddedRows:
    """The rows of padded tensors, for a lowered node."""

    mask: Tensor
    """bool [rows, tokens]."""
    dtype: torch.dtype
    groups: Tensor | None = None
    """int64 [rows]: the group of each row, counted from 0."""

    def ancestor_rows(self, child: str, ancestor: str) -> Tensor:
        if (child, ancestor) == (TOKEN.key, ROW.key):
            return self.mask.nonzero()[:, 0]
        assert self.groups is not None and ancestor == GROUP.key, (child, ancestor)
        return self.groups if child == ROW.key else self.groups[self.mask.nonzero()[:, 0]]

    def row_count(self, axis: str) -> int:
        if axis == GROUP.key:
            assert self.groups is not None
            return int(self.groups.max()) + 1 if len(self.groups) else 0
        return self.mask.shape[0] if axis == ROW.key else int(self.mask.sum())


def _groups(numbers: Argument) -> Tensor:
    """Number the groups of rows from 0."""
    assert isinstance(numbers, Tensor)
    inverse: Tensor = torch.unique(numbers, return_inverse=True)[1]
    return inverse


def _type(name: str, argument: Argument) -> Type:
    """Return the type of an argument."""
    if not isinstance(argument, Tensor):
        kind: DType = "bool" if isinstance(argument, bool) else "int" if isinstance(argument, int) else "float"
        return Type(kind)
    if argument.dim() > 2:
        raise ValueError(f"{name} has {argument.dim()} dimensions: give [rows], [rows, tokens] or a single value")
    kind = "bool" if argument.dtype == torch.bool else "float" if argument.is_floating_point() else "int"
    return Type(kind, _AXES[argument.dim()])


def _mask(arguments: Mapping[str, Argument], mask: Tensor | None) -> Tensor:
    """Return the mask, or one that keeps all; raises ValueError where an argument does not fit it."""
    shapes = {name: tuple(argument.shape) for name, argument in arguments.items() if isinstance(argument, Tensor)}
    if mask is not None and mask.dim() != 2:
        raise ValueError(f"mask is {list(mask.shape)}, must be [rows, tokens]")
    device = next((argument.device for argument in arguments.values() if isinstance(argument, Tensor)), None)
    if mask is None:
        widest = max(shapes.values(), key=len, default=())
        mask = torch.ones((*widest, *(0,) * (2 - len(widest))), dtype=torch.bool, device=device)
    for name, shape in shapes.items():
        if shape != tuple(mask.shape)[: len(shape)]:
            raise ValueError(f"{name} is {list(shape)}, which does not fit {list(mask.shape)} [rows, tokens]")
    return mask.bool()
