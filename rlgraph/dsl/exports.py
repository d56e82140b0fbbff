"""Gives the names that a loop's body makes their meaning after the loop."""

from __future__ import annotations

from rlgraph.dsl.context import Block, Context
from rlgraph.dsl.nodes import unique_name
from rlgraph.dsl.scope import (
    KeyValue,
    Meaning,
    NamedValues,
    OptionalValue,
    PairsValue,
    TableValue,
    UnavailableName,
    VocabularyValue,
    map_refs,
)
from rlgraph.errors import Span
from rlgraph.ir.graph import Let, Node, Ref, Value, substitute, tensor_node, used_names
from rlgraph.ir.types import Table, Tensor, axis_of


class LoopExporter:
    """Gives the names of a loop's body their meaning after the loop.

    Values with rows are exported. A single number is computed again from the exported rows, so that it is about all the
    rows of the last pass and not about the last slice.
    """

    def __init__(self, context: Context, inner: Block, region_inputs: set[str], exports: dict[str, Value]) -> None:
        self.context, self.exports = context, exports
        self.region_inputs, self.stops, self.kept = region_inputs, inner.stops, inner.kept
        self.makers = {value.name: node for node in inner.nodes for value in node.outputs}
        self.nodes: list[Node] = []
        self.cloned: dict[str, Ref] = {}

    def export_meaning(self, word: str, meaning: Meaning, span: Span) -> Meaning:
        if self.stops is not None and isinstance(meaning, (TableValue, Ref, OptionalValue, NamedValues, KeyValue)):
            return UnavailableName(
                f"`{word}` is made in a loop that a `stop` may end before it has seen all rows", span
            )
        if isinstance(meaning, TableValue) and meaning.type.axis.key in self.kept:
            return UnavailableName(
                f"`{word}` has rows that a `keep` has left of a slice, and none after the loop", span
            )
        if isinstance(meaning, TableValue) and meaning.name in self.makers:
            value = self.export_value(meaning.name, meaning.type)
            return TableValue(value.name, meaning.type)
        if isinstance(meaning, PairsValue):
            return UnavailableName(f"`{word}` pairs the rows of a loop: write `pairs(...)` below it", span)
        if isinstance(meaning, VocabularyValue):
            return UnavailableName(f"`{word}` is of the weights and rows of a loop: name it again below it", span)
        if isinstance(meaning, KeyValue) and meaning.within is not None and meaning.within.key in self.kept:
            return UnavailableName(f"`{word}` is of rows that a `keep` has left of a slice", span)
        if not isinstance(meaning, (Ref, OptionalValue, NamedValues, KeyValue)):
            return meaning
        try:
            return map_refs(meaning, self.export_ref)
        except LookupError:
            return UnavailableName(f"`{word}` has a value in each turn of the loop, and none after it", span)

    def export_ref(self, ref: Ref) -> Ref:
        """Return the value after the loop. Raises LookupError if it has none."""
        if ref.name in self.region_inputs:
            raise LookupError(ref.name)
        if ref.name not in self.makers:
            return ref
        axis = axis_of(ref.type)
        if axis is not None and any(above.key in self.kept for above in axis.path_to_root()):
            raise LookupError(ref.name)
        if axis is not None:
            return Ref(self.export_value(ref.name, ref.type).name, ref.type, ref.span)
        if ref.name not in self.cloned:
            node = self.makers[ref.name]
            if not node.body:
                raise LookupError(ref.name)
            self.cloned[ref.name] = self.recompute_number(node, ref)
        return self.cloned[ref.name]

    def recompute_number(self, node: Node, ref: Ref) -> Ref:
        """Return a number that is computed again from exported rows."""
        expr = next(let.expr for let in node.body if let.name == ref.name)
        # In the order in which they stand: a program is the same graph in every process.
        expr = substitute(expr, {name: self.export_ref(Ref(name, kind)) for name, kind in used_names(expr).items()})
        name = unique_name(self.context, ref.name)
        self.nodes.append(tensor_node((Let(name, expr),), (name,), node.span))
        return Ref(name, ref.type, ref.span)

    def export_value(self, name: str, kind: Tensor | Table) -> Value:
        if name not in self.exports:
            self.exports[name] = Value(unique_name(self.context, name), kind)
        return self.exports[name]
