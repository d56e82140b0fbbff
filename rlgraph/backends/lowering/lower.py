"""This module lowers tensor mathematics to torch code: the body of a `tensor` node becomes one `torch.fx.GraphModule`.

Broadcasts are written out as gathers, reductions as sums over an index, and an expression that occurs twice is computed
once. The code can be read (`lowered.module.code`), run alone, differentiated and compiled.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, fx

from rlgraph.ir.graph import Apply, Const, Expr, Node, Ref, Value
from rlgraph.ir.types import Axis, DType
from rlgraph.ir.types import Tensor as Type
from rlgraph.ops import reference
from rlgraph.ops.tensor import TENSOR, key_of
from rlgraph.ops.whole_numbers import OF_COLUMNS

_CONSTANTS = (bool, int, float, str)
_TEXT = {"eq": reference.texts_equal, "ne": reference.texts_differ}


class AxisRows(Protocol):
    """The rows of the axes of a batch, or of a part of it."""

    @property
    def dtype(self) -> torch.dtype:
        """The float dtype of the run."""
        ...

    def ancestor_rows(self, child: str, ancestor: str) -> Tensor:
        """Return the row of `ancestor` in which each row of `child` lies: int64 [rows of child], ascending."""
        ...

    def row_count(self, axis: str) -> int:
        """Return how many rows an axis has, the empty ones too."""
        ...


@dataclass(frozen=True)
class LoweredNode:
    """The torch code of a tensor node; calling it returns the node's outputs by name."""

    module: fx.GraphModule
    """Takes the `inputs`, an index for each of `gather_pairs`, a row count for each of `sizes`, the float dtype."""
    inputs: tuple[str, ...]
    """Names of the values it needs."""
    gather_pairs: tuple[tuple[str, str], ...]
    """(child, ancestor): keys of axes between which it gathers or reduces."""
    counted_axes: tuple[str, ...]
    """Keys of the axes whose number of rows it needs."""
    outputs: tuple[str, ...]

    def __call__(self, values: Mapping[str, Any], rows: AxisRows) -> dict[str, Tensor]:
        """values: 1-D tensors, 0-d ones, or lists of texts."""
        arguments = [values[name] for name in self.inputs]
        arguments += [rows.ancestor_rows(child, ancestor) for child, ancestor in self.gather_pairs]
        arguments += [rows.row_count(axis) for axis in self.counted_axes]
        return dict(zip(self.outputs, self.module(*arguments, rows.dtype), strict=True))


def lower(node: Node) -> LoweredNode:
    """Lower the body of a `tensor` node to torch code."""
    assert node.body, node.op
    return _Lowering(node).lower_body()


class _Lowering:
    """The lowering of one body: an fx graph with a node for each expression that differs from all others.

    An intermediate value is an fx node, or a Python constant where an expression depends on nothing.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.graph = fx.Graph()
        self.inputs = {name: self.add_input(name) for name in node.inputs}
        self.indices: dict[tuple[str, str], fx.Node] = {}
        self.sizes: dict[str, fx.Node] = {}
        self.dtype = self.add_input("dtype")
        self.values: dict[str, Any] = dict(self.inputs)
        self.seen: dict[int, Any] = {}
        """The values of expressions by their identity: passes share sub-expressions, and walking each use of one would
        be exponential."""
        self.calls: dict[tuple[Any, ...], fx.Node] = {}

    def lower_body(self) -> LoweredNode:
        """Return the torch code of the whole body."""
        for let in self.node.body:
            self.values[let.name] = self.lower_expression(let.expr, _identifier(let.name))
        self.graph.output(tuple(self.lower_output(value) for value in self.node.outputs))
        # Placeholders lie in the order of their first use; they have to be in front, in the order of a call.
        first = next(iter(self.graph.nodes))
        for placeholder in (*self.inputs.values(), *self.indices.values(), *self.sizes.values(), self.dtype):
            if placeholder is first:
                first = first.next
            else:
                first.prepend(placeholder)
        module = fx.GraphModule(torch.nn.Module(), self.graph, "TensorMath")
        outputs = tuple(value.name for value in self.node.outputs)
        return LoweredNode(module, self.node.inputs, tuple(self.indices), tuple(self.sizes), outputs)

    def lower_output(self, value: Value) -> Any:
        """Return the fx node of an output."""
        result = self.values[value.name]
        if isinstance(result, (fx.Node, str)):
            return result
        assert isinstance(value.type, Type)
        return self.add_call(reference.constant_tensor, (result, self.dtype if value.type.dtype == "float" else None))

    def lower_expression(self, expr: Expr, hint: str | None = None) -> Any:
        """Return the value of an expression."""
        if isinstance(expr, Const):
            return expr.value
        if isinstance(expr, Ref):
            return self.values[expr.name]
        if id(expr) not in self.seen:
            args = tuple(self.lower_expression(arg) for arg in expr.args)
            self.seen[id(expr)] = self.lower_operation(expr, args, hint)
        return self.seen[id(expr)]

    def lower_operation(self, expr: Apply, args: tuple[Any, ...], hint: str | None) -> Any:
        """Return the value of an operation on values."""
        kind, chosen, key = TENSOR[expr.op].kind, None, None
        if kind != "elementwise" and key_of([arg.type for arg in expr.args]):
            key, args = args[-1], args[:-1]
        if len(args) > TENSOR[expr.op].args:
            assert expr.args[0].type.axis is not None
            chosen = self.broadcast(args[-1], expr.args[len(args) - 1].type.axis, expr.args[0].type.axis)
            args = args[:-1]
        if kind == "elementwise" and all(isinstance(arg, _CONSTANTS) for arg in args):
            return _fold(expr, args)
        function = reference.REFERENCE[expr.op]
        if expr.op in _TEXT and any(arg.type.dtype in ("text", "any") for arg in expr.args):
            function = _TEXT[expr.op]
        else:
            args = self.in_result_dtype(expr, args)
            if expr.type.dtype == "number":
                function = OF_COLUMNS.get(expr.op, function)
        if kind == "elementwise":
            operands = [
                self.broadcast(arg, of.type.axis, expr.type.axis) for arg, of in zip(args, expr.args, strict=True)
            ]
            if TENSOR[expr.op].reads_text and expr.type.dtype == "float":
                # Texts have no dtype that the result could take.
                return self.add_call("to", (self.add_call(function, tuple(operands)), self.dtype), hint)
            return self.add_call(function, tuple(operands), hint)
        source = expr.args[0].type.axis
        assert source is not None
        if key is not None:
            return self.lower_by_key(expr, args, chosen, key, hint)
        if kind == "pairing":
            pairs = expr.args[1].type.axis
            assert pairs is not None and pairs.parent is not None
            entries = self.broadcast(args[0], source, pairs.parent)
            return self.add_call(function, (entries, args[1], self.ancestor_rows(pairs, pairs.parent)), hint)
        if kind == "ranking":
            return self.lower_ranking(expr, args, chosen, hint)
        if kind == "scan":
            # The decay of `discount` and `accumulate` is broadcast to the entries along which it runs.
            rest = [self.broadcast(arg, of.type.axis, source) for arg, of in zip(args[1:], expr.args[1:], strict=True)]
            return self.add_call(function, (args[0], *rest, self.ancestor_rows(source, source.row_axis)), hint)
        target = expr.type.axis
        # The share of `quantile` is broadcast to what the reduction leaves.
        rest = [self.broadcast(arg, of.type.axis, target) for arg, of in zip(args[1:], expr.args[1:], strict=False)]
        entries = args[0] if chosen is None else self.add_call(reference.select_chosen, (args[0], chosen))
        if target is None:
            return self.add_call(function, (entries, *rest, None, 1), hint)
        same_axis = source.key == target.key
        index = self.add_call(reference.identity_index, args[:1]) if same_axis else self.ancestor_rows(source, target)
        if chosen is None:
            return self.add_call(function, (entries, *rest, index, self.row_count(target)), hint)
        index = self.add_call(reference.select_chosen, (index, chosen))
        if TENSOR[expr.op].dtype != "row":
            return self.add_call(function, (entries, *rest, index, self.row_count(target)), hint)
        place = self.add_call(function, (entries, *rest, index, self.row_count(target)))
        return self.add_call(reference.original_positions, (place, chosen), hint)

    def lower_ranking(self, expr: Apply, args: tuple[Any, ...], chosen: fx.Node | None, hint: str | None) -> fx.Node:
        """Return the value of an operation that compares the entries of each row of an axis, or all entries."""
        function, source = reference.REFERENCE[expr.op], expr.args[0].type.axis
        assert source is not None
        target = next((axis for axis in source.path_to_root() if axis.key == expr.axis), None)
        meets = source if TENSOR[expr.op].by_entry else target
        rest = [self.broadcast(arg, of.type.axis, meets) for arg, of in zip(args[1:], expr.args[1:], strict=False)]
        index: fx.Node | None = None
        size: fx.Node | int = 1
        if target is not None:
            same_axis = source.key == target.key
            index = (
                self.add_call(reference.identity_index, args[:1]) if same_axis else self.ancestor_rows(source, target)
            )
            size = self.row_count(target)
        if chosen is None:
            return self.add_call(function, (args[0], *rest, index, size), hint)
        entries = self.add_call(reference.select_chosen, (args[0], chosen))
        if TENSOR[expr.op].by_entry:
            rest = [self.add_call(reference.select_chosen, (arg, chosen)) for arg in rest]
        index = None if index is None else self.add_call(reference.select_chosen, (index, chosen))
        return self.add_call(
            reference.scatter_chosen, (self.add_call(function, (entries, *rest, index, size)), chosen), hint
        )

    def lower_by_key(
        self, expr: Apply, args: tuple[Any, ...], chosen: fx.Node | None, key: fx.Node, hint: str | None
    ) -> fx.Node:
        """Return the value of an operation on the entries of each group of rows with equal keys. A group is counted as
        its first row: that of a block is another one than that of the batch, and has the same rows after it."""
        source, keyed = expr.args[0].type.axis, expr.args[-1].type.axis
        assert source is not None and keyed is not None
        outer = next((axis for axis in keyed.path_to_root() if axis.key == expr.axis), None)
        above = None if outer is None else self.index_to(keyed, outer, key)
        first = self.add_call(reference.first_of_equals, (key, above))
        meets = source if TENSOR[expr.op].by_entry else keyed
        rest = [self.broadcast(arg, of.type.axis, meets) for arg, of in zip(args[1:], expr.args[1:], strict=False)]
        index, entries = self.broadcast(first, keyed, source), args[0]
        if chosen is not None:
            entries, index = (self.add_call(reference.select_chosen, (part, chosen)) for part in (entries, index))
            if TENSOR[expr.op].by_entry:
                rest = [self.add_call(reference.select_chosen, (arg, chosen)) for arg in rest]
        operands = (entries, *rest, index, self.row_count(keyed))
        is_ranking = TENSOR[expr.op].kind == "ranking"
        result = self.add_call(reference.REFERENCE[expr.op], operands, hint if is_ranking and chosen is None else None)
        if not is_ranking:
            return self.add_call(reference.broadcast_to_entries, (result, first), hint)
        return result if chosen is None else self.add_call(reference.scatter_chosen, (result, chosen), hint)

    def index_to(self, axis: Axis, outer: Axis, entries: fx.Node) -> fx.Node:
        """Return the row of an outer axis in which each entry of a value lies, which is of `axis`."""
        if axis.key == outer.key:
            return self.add_call(reference.identity_index, (entries,))
        return self.ancestor_rows(axis, outer)

    def in_result_dtype(self, expr: Apply, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments in the dtype of the result: torch would make 32-bit floats of ints, and keep bools."""
        kinds = [arg.type.dtype for arg in expr.args]
        if TENSOR[expr.op].numbers == "widest":
            return self.in_common_dtype(args, kinds)
        wanted = _number_kind(expr)
        if wanted is None:
            return args
        converted = list(args)
        if wanted == "number":
            for place in range(TENSOR[expr.op].conditions, len(args)):
                if isinstance(args[place], fx.Node) and kinds[place] in ("any", "number", "bool"):
                    converted[place] = self.add_call(reference.as_number, (args[place],))
                elif isinstance(args[place], bool):
                    converted[place] = int(args[place])
            return tuple(converted)
        target = self.dtype if wanted == "float" else torch.int64
        smaller = ("int", "bool", "any", "number") if wanted == "float" else ("bool",)
        numeric = range(TENSOR[expr.op].conditions, len(args))
        for place in numeric:
            if isinstance(args[place], bool):
                converted[place] = int(args[place])
            elif isinstance(args[place], fx.Node) and kinds[place] in smaller:
                converted[place] = self.add_call("to", (args[place], target))
        if not any(isinstance(args[place], fx.Node) for place in numeric):
            # `where(mask, 1, 0.5)`: of Python numbers alone torch would make its default dtype.
            converted[1] = self.add_call(reference.constant_tensor, (converted[1], target))
        return tuple(converted)

    def in_common_dtype(self, args: tuple[Any, ...], kinds: list[DType]) -> tuple[Any, ...]:
        """Return two numbers to be compared: an int beside a float in double precision."""
        if "any" in kinds or "number" in kinds:
            # Which of them is an int is known when they are computed.
            return tuple(
                self.add_call(reference.widen_for_comparison, (arg, partner)) if isinstance(arg, fx.Node) else arg
                for arg, partner in zip(args, reversed(args), strict=True)
            )
        if "float" not in kinds:
            return args
        return tuple(
            self.add_call("to", (arg, torch.float64)) if isinstance(arg, fx.Node) and kind != "float" else arg
            for arg, kind in zip(args, kinds, strict=True)
        )

    def broadcast(self, value: Any, source: Axis | None, target: Axis | None) -> Any:
        """Return a value of one axis on the rows of another, which lies within it."""
        if source is None or not isinstance(value, fx.Node):
            return value
        assert target is not None and target.is_within(source), f"{source.key} cannot reach {target and target.key}"
        if source.key == target.key:
            return value
        return self.add_call(reference.broadcast_to_entries, (value, self.ancestor_rows(target, source)))

    def ancestor_rows(self, child: Axis, ancestor: Axis) -> fx.Node:
        """Return the input with the row of `ancestor` in which each row of `child` lies."""
        pair = child.key, ancestor.key
        if pair not in self.indices:
            self.indices[pair] = self.add_input(f"index_{child.key}_to_{ancestor.key}")
        return self.indices[pair]

    def row_count(self, axis: Axis) -> fx.Node:
        """Return the input with the number of rows of an axis."""
        if axis.key not in self.sizes:
            self.sizes[axis.key] = self.add_input(f"rows_of_{axis.key}")
        return self.sizes[axis.key]

    def add_input(self, name: str) -> fx.Node:
        """Return a new input of the graph."""
        node = self.graph.placeholder(_identifier(name))
        node.target = node.name  # fx may have chosen another name; it is the one that the code should show
        return node

    def add_call(self, function: Any, args: tuple[Any, ...], hint: str | None = None) -> fx.Node:
        """Return the node of this call; a method where `function` is a name. An equal call is made once."""
        # 1, 1.0 and True are equal to Python and differ to torch.
        key = (function, *((type(arg), repr(arg) if isinstance(arg, float) else arg) for arg in args))
        if key not in self.calls:
            kind = "call_method" if isinstance(function, str) else "call_function"
            self.calls[key] = self.graph.create_node(kind, function, args, name=hint)
        return self.calls[key]


def _number_kind(expr: Apply) -> DType | None:
    """Return the dtype to which an operation converts its numbers; None where it takes them as they are."""
    if TENSOR[expr.op].numbers == "own" or expr.type.dtype not in ("float", "int", "number"):
        return None
    return expr.type.dtype


def _fold(expr: Apply, args: tuple[Any, ...]) -> bool | int | float:
    """Return the value of an operation on constants, in double precision."""
    compare = TENSOR[expr.op].python
    if compare and any(isinstance(arg, str) for arg in args):
        return bool(compare(*args))
    tensors = [torch.tensor(arg, dtype=torch.float64 if isinstance(arg, float) else None) for arg in args]
    kind = {"float": torch.float64, "int": torch.int64}.get(expr.type.dtype)
    if kind is not None:
        numeric = TENSOR[expr.op].conditions
        tensors = tensors[:numeric] + [tensor.to(kind) for tensor in tensors[numeric:]]
    result: bool | int | float = reference.REFERENCE[expr.op](*tensors).item()
    return result


def _identifier(name: str) -> str:
    return re.sub(r"\W", "_", name)
