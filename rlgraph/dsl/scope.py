"""The meanings that a name can have while a program is checked, and the errors where it has none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rlgraph.dsl import tree
from rlgraph.errors import Diagnostic, ProgramError, Related, Span, sorted_diagnostics
from rlgraph.ir.graph import Apply, Const, Constant, ConstructorCall, Expr, External, Model, Ref, ScalarState
from rlgraph.ir.types import Axis, Table, Tensor

MAX_ERRORS = 100
"""The most errors reported for a program, so that no text can be checked for ever."""


class StatementError(Exception):
    """Raised when the statement being checked is wrong, after the user has been told."""


@dataclass(frozen=True, slots=True)
class OptionalValue:
    """A value with an axis that some rows lack: `float?[rollout]`. There the expression holds a number that means
    nothing."""

    expr: Expr
    given: tuple[Ref, ...]
    """Columns of rows, bool, whose rows have the value where all of them are true. Each has a name of its own."""

    @property
    def type(self) -> Tensor:
        """The type that it has on the rows that are not lacking."""
        return self.expr.type

    def __str__(self) -> str:
        return str(self.type).replace("[", "?[", 1)


@dataclass(frozen=True, slots=True)
class NamedValues:
    """What a function returns for each row under several names. In mathematics it is the first of them."""

    values: tuple[tuple[str, Ref | OptionalValue], ...]

    @property
    def first(self) -> Ref | OptionalValue:
        """The value that it is without a name."""
        return self.values[0][1]


@dataclass(frozen=True, slots=True)
class KeyValue:
    """What rows are grouped by: they are a group where all values are equal, and they lie in one row of the axis."""

    within: Axis | None
    """The rows of this axis have no group in common; None: any rows may."""
    values: tuple[Ref, ...] = ()
    """On axes of which each lies in the one before or the other way round; without any the groups are the rows of
    `within`."""


@dataclass(frozen=True, slots=True)
class PairsValue:
    """Ordered pairs of rows, which lie in their first row."""

    offset: Ref
    """For each pair by how many rows its second row is behind its first one."""
    group: Axis
    """The rows in which both rows of a pair lie."""


VOCABULARY = "vocab"
"""The axis of all tokens that a model knows, inside each token of a row."""


@dataclass(frozen=True, slots=True)
class VocabularyValue:
    """A value with an entry for each token that a model knows. It stays an expression: only what it is reduced to is
    computed."""

    expr: Ref | Apply

    @property
    def type(self) -> Tensor:
        """The type that it would have."""
        return self.expr.type


def is_over_vocabulary(expr: Expr) -> bool:
    """Return whether an expression has an entry for each token that a model knows."""
    axis = expr.type.axis
    return axis is not None and axis.inner and axis.name == VOCABULARY


@dataclass(frozen=True, slots=True)
class LiteralConstant:
    """A constant that is not a number: a text, a record, a list."""

    value: Constant


@dataclass(frozen=True, slots=True)
class TableValue:
    """A table of rows."""

    name: str
    type: Table


@dataclass(frozen=True, slots=True)
class ModelName:
    """The name of a model."""

    model: Model


@dataclass(frozen=True, slots=True)
class MixtureValue:
    """A geometric mixture of models: the product of their distributions raised to weights, scaled to 1."""

    weights: tuple[tuple[Model, float], ...]


@dataclass(frozen=True, slots=True)
class ExternalName:
    """The name of something outside the program: data, a function, an environment, a buffer."""

    outside: External


@dataclass(frozen=True, slots=True)
class StateName:
    """The name of a state."""

    state: ScalarState


@dataclass(frozen=True, slots=True)
class DefName:
    """The name of a def, with the scope in which it was defined."""

    definition: tree.Def
    scope: dict[str, Meaning]


@dataclass(frozen=True, slots=True)
class UnavailableName:
    """A name that had a meaning inside a loop and has none after it."""

    reason: str
    span: Span


@dataclass(frozen=True, slots=True)
class InvalidName:
    """A name whose statement was wrong: its uses are passed over in silence."""


Meaning = (
    Const
    | Ref
    | Apply
    | OptionalValue
    | NamedValues
    | KeyValue
    | PairsValue
    | VocabularyValue
    | LiteralConstant
    | TableValue
    | ModelName
    | MixtureValue
    | ExternalName
    | StateName
    | DefName
    | UnavailableName
    | InvalidName
)


def meaning_of(scope: Mapping[str, Meaning], name: str) -> Meaning | None:
    """Return what a name means, None for nothing. Raises StatementError if its statement was wrong."""
    meaning = scope.get(name)
    if isinstance(meaning, InvalidName):
        raise StatementError
    return meaning


def map_refs(value: Ref | OptionalValue | NamedValues | KeyValue, change: Callable[[Ref], Ref]) -> Meaning:
    """Return a value that is made of named values with each of these changed."""
    if isinstance(value, KeyValue):
        return KeyValue(value.within, tuple(map(change, value.values)))
    if isinstance(value, NamedValues):
        changed = tuple((name, map_refs(inner, change)) for name, inner in value.values)
        return NamedValues(changed)  # type: ignore[arg-type]
    if isinstance(value, Ref):
        return change(value)
    assert isinstance(value.expr, Ref), "what has a name in a program is a value with a name in the graph"
    return OptionalValue(change(value.expr), tuple(map(change, value.given)))


def refs_of(value: Ref | OptionalValue | NamedValues | KeyValue) -> list[Ref]:
    """Return the named values that a value is made of."""
    refs: list[Ref] = []

    def collect_ref(ref: Ref) -> Ref:
        refs.append(ref)
        return ref

    map_refs(value, collect_ref)
    return refs


def describe_meaning(meaning: Meaning) -> str:
    """Return a meaning in the user's words: `a model`."""
    if isinstance(meaning, NamedValues):
        return describe_meaning(meaning.first)
    if isinstance(meaning, OptionalValue):
        return f"{meaning}, which some rows lack"
    if isinstance(meaning, KeyValue):
        return "a key"
    if isinstance(meaning, PairsValue):
        return "an axis of pairs"
    if isinstance(meaning, VocabularyValue):
        return str(meaning.type)
    if isinstance(meaning, TableValue):
        return f"a table of [{meaning.type.axis.label}]"
    if isinstance(meaning, ModelName):
        return "a model"
    if isinstance(meaning, MixtureValue):
        return "a mixture of models"
    if isinstance(meaning, ExternalName):
        return {"data": "a data source", "func": "a function", "env": "an environment", "buffer": "a buffer"}[
            meaning.outside.kind
        ]
    if isinstance(meaning, StateName):
        return "a state"
    if isinstance(meaning, DefName):
        return "a def"
    if isinstance(meaning, LiteralConstant):
        value = meaning.value
        return (
            f"`{value.name}(...)`"
            if isinstance(value, ConstructorCall)
            else "a text"
            if isinstance(value, str)
            else "a list"
        )
    if not isinstance(meaning, (Const, Ref, Apply)):
        return "nothing"
    kind = meaning.type
    if kind.dtype == "any":
        return "a column of the data"
    if kind.dtype == "row":
        return "a choice of rows"
    if kind.axis is None:
        return {"bool": "true or false", "text": "a text"}.get(kind.dtype, "a number")
    return str(kind)


@dataclass
class Reporter:
    """Collects diagnostics."""

    diagnostics: list[Diagnostic] = field(default_factory=list)
    below: dict[str, Span] = field(default_factory=dict)
    """Names that are declared further down."""
    error_count: int = 0
    """How many of the diagnostics are errors; after MAX_ERRORS checking ends."""
    calls: dict[int, tuple[tree.Stmt, tuple[Span, ...]]] = field(default_factory=dict)
    """For a statement of a def, by its identity, where it is called: the innermost call first."""
    call_site: Span | None = None
    """The place where the user called the def whose body is being checked."""

    def report(self, code: str, message: str, span: Span, hint: str = "", related: tuple[Related, ...] = ()) -> None:
        """Add a diagnostic. Raises ProgramError at the last error allowed."""
        self.diagnostics.append(Diagnostic(code, message, span, hint, related))
        if not code.startswith("W"):
            self.error_count += 1
            if self.error_count == MAX_ERRORS:
                raise ProgramError(sorted_diagnostics(self.diagnostics))

    def statement_error(
        self, code: str, message: str, span: Span, hint: str = "", related: tuple[Related, ...] = ()
    ) -> StatementError:
        """Add an error after which the statement cannot be understood: `raise context.stop(...)`.

        One in a def is shown where the user called it.
        """
        if self.call_site:
            related, span = (*related, Related(span, "it arises in this def")), self.call_site
        self.report(code, message, span, hint, related)
        return StatementError()

    def too_early_error(
        self, name: tree.Name, place: Span, done: str = "declared", hint: str = "move its line up"
    ) -> StatementError:
        """Add the error that a name is used above the line that gives it a meaning: `raise context.too_early(...)`."""
        related = (Related(place, f"it is {done} here"),)
        return self.statement_error("E0202", f"`{name.id}` is used before it is {done}", name.span, hint, related)
