"""Compares what columns of the data hold with what is computed with their values: numbers, texts, keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rlgraph.dsl.misuses import ColumnUse, comparison_error, key_error, missing_column_error, number_error, prompt_error
from rlgraph.errors import Diagnostic, Span
from rlgraph.ir.graph import Apply, Expr, Program, Ref, operations_in
from rlgraph.ops import TENSOR


@dataclass(slots=True)
class ValueChecks:
    """Checks the values that are known to be columns, and collects diagnostics."""

    program: Program
    columns: dict[str, ColumnUse] = field(default_factory=dict, kw_only=True)
    """The column that each value holds."""
    diagnostics: list[Diagnostic] = field(default_factory=list, kw_only=True)

    def _note(self, diagnostic: Diagnostic | None) -> bool:
        """Add a diagnostic. Returns whether there is one."""
        if diagnostic is not None:
            self.diagnostics.append(diagnostic)
        return diagnostic is not None

    def _number(self, name: str, span: Span) -> None:
        """Check that a value that is calculated with is a number."""
        if name in self.columns:
            # A run calculates in 64 bits if a model does.
            in_double = any(self.program.dtype_of_model(model) == "float64" for model in self.program.models)
            self._note(number_error(self.columns[name], span, in_double))

    def _expr(self, expr: Expr) -> None:
        for part in operations_in(expr):
            if part.type.dtype == "key":
                self._keyed(part)
                continue
            if TENSOR[part.op].kind == "pairing":
                continue
            if TENSOR[part.op].texts:
                self._compared(part)
                continue
            if TENSOR[part.op].reads_text:
                if isinstance(part.args[0], Ref):
                    self._texts(part.args[0].name, part.span, ("text",))
                continue
            for arg in part.args:
                if isinstance(arg, Ref):
                    self._number(arg.name, part.span)

    def _keyed(self, expr: Apply) -> None:
        """Check that a column by which rows are grouped has numbers alone, or texts alone."""
        for use in (self.columns[arg.name] for arg in expr.args if isinstance(arg, Ref) and arg.name in self.columns):
            if not self._note(missing_column_error(use)):
                self._note(key_error(use))

    def _compared(self, expr: Apply) -> None:
        """Check that both sides of `==` or `!=` are texts, or both are numbers."""
        sides = [self._side(arg) for arg in expr.args]
        for arg, side, other in zip(expr.args, sides, reversed(sides), strict=True):
            if not isinstance(arg, Ref) or arg.name not in self.columns:
                continue
            if self._note(comparison_error(self.columns[arg.name], side, other, expr)):
                return
            if side == "numbers":
                self._number(arg.name, expr.span)

    def _side(self, expr: Expr) -> str:
        """Return the kind of a side of a comparison: that of its column, or of its type."""
        if isinstance(expr, Apply) and TENSOR[expr.op].kind == "pairing":
            return self._side(expr.args[0])
        if expr.type.dtype == "any":
            return (
                self.columns[expr.name].comparison_side if isinstance(expr, Ref) and expr.name in self.columns else ""
            )
        return "texts" if expr.type.dtype == "text" else "numbers"

    def _texts(self, name: str, span: Span, wanted: Sequence[str]) -> None:
        if name in self.columns:
            self._note(prompt_error(self.columns[name], wanted, span))
