"""What a name can mean while a program is being checked, and what is said where it means nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

from rlgraph.dsl import tree
from rlgraph.errors import Diagnostic, ProgramError, Related, Span, ordered
from rlgraph.ir.graph import Apply, Const, Constant, Model, Outside, Record, Ref, State
from rlgraph.ir.types import Table

MAX_ERRORS = 100
"""That are told of a program: a text that was made to be checked for ever has more."""


class Stop(Exception):
    """The statement being checked is wrong, and the user has been told."""


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant that is no number: a text, a record, a list."""

    value: Constant


@dataclass(frozen=True, slots=True)
class TableValue:
    name: str
    type: Table


@dataclass(frozen=True, slots=True)
class ModelName:
    model: Model


@dataclass(frozen=True, slots=True)
class OutsideName:
    outside: Outside


@dataclass(frozen=True, slots=True)
class StateName:
    state: State


@dataclass(frozen=True, slots=True)
class DefName:
    definition: tree.Def
    scope: dict[str, Meaning]


@dataclass(frozen=True, slots=True)
class Unknowable:
    """A name that had a meaning inside a loop and has none after it."""

    reason: str
    span: Span


@dataclass(frozen=True, slots=True)
class Wrong:
    """Its statement was wrong: every use of it is passed over in silence."""


Meaning = (
    Const | Ref | Apply | Literal | TableValue | ModelName | OutsideName | StateName | DefName | Unknowable | Wrong
)


def describe(meaning: Meaning) -> str:
    """A meaning in the user's words: `a model`."""
    if isinstance(meaning, TableValue):
        return f"a table of [{meaning.type.axis.label}]"
    if isinstance(meaning, ModelName):
        return "a model"
    if isinstance(meaning, OutsideName):
        return {"data": "a data source", "func": "a function", "env": "an environment", "buffer": "a buffer"}[
            meaning.outside.kind
        ]
    if isinstance(meaning, StateName):
        return "a state"
    if isinstance(meaning, DefName):
        return "a def"
    if isinstance(meaning, Literal):
        value = meaning.value
        return f"`{value.name}(...)`" if isinstance(value, Record) else "a text" if isinstance(value, str) else "a list"
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
    """Collects what is wrong."""

    diagnostics: list[Diagnostic] = field(default_factory=list)
    below: dict[str, Span] = field(default_factory=dict)
    """Names that are declared further down."""
    errors: int = 0
    """How many of them; after so many nothing more is looked at."""
    call_site: Span | None = None
    """Where the user called the def whose body is being checked."""

    def say(self, code: str, message: str, span: Span, hint: str = "", related: tuple[Related, ...] = ()) -> None:
        self.diagnostics.append(Diagnostic(code, message, span, hint, related))
        if not code.startswith("W"):
            self.errors += 1
            if self.errors == MAX_ERRORS:
                raise ProgramError(ordered(self.diagnostics))

    def stop(self, code: str, message: str, span: Span, hint: str = "", related: tuple[Related, ...] = ()) -> Stop:
        """An error after which the statement cannot be understood: `raise context.stop(...)`.

        One in a def is shown where the user called it.
        """
        if self.call_site:
            related, span = (*related, Related(span, "it arises in this def")), self.call_site
        self.say(code, message, span, hint, related)
        return Stop()
