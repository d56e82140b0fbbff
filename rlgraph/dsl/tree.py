"""The syntax tree: what the parser makes of a text, before anything has a meaning.

Every node has the span it was read from. Spans do not take part in comparison: two trees are equal when they say the
same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rlgraph.errors import Span


def _span() -> Span:
    return field(compare=False, repr=False)  # type: ignore[no-any-return]


# Expressions


@dataclass(frozen=True, slots=True)
class Name:
    id: str
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Number:
    value: int | float
    text: str = field(compare=False)
    """As it was written: the formatter keeps `1e-6`."""
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class String:
    value: str
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Bool:
    value: bool
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class List:
    items: tuple[Expr, ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Unary:
    op: str
    """`-`, `+` or `not`."""
    operand: Expr
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Binary:
    op: str
    """`+ - * / // % **`, `< <= > >= == !=`, `and`, `or`."""
    left: Expr
    right: Expr
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Attribute:
    """`base.name`."""

    base: Expr
    name: str
    name_span: Span = _span()
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Index:
    """`base[key]`, for a state that is keyed by a column."""

    base: Expr
    key: Expr
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Option:
    """`name=value`, in a call, on a statement, or in `report`."""

    name: str
    value: Expr
    name_span: Span = _span()
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Call:
    func: Expr
    args: tuple[Expr, ...]
    options: tuple[Option, ...]
    span: Span = _span()


Expr = Name | Number | String | Bool | List | Unary | Binary | Attribute | Index | Call


# Statements


@dataclass(frozen=True, slots=True)
class Assign:
    """`target = value`"""

    target: str
    value: Expr
    target_span: Span = _span()
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Store:
    """`target := value`, into a `state`; `target` is a Name or an Index."""

    target: Expr
    value: Expr
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Minimize:
    value: Expr
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Report:
    items: tuple[Option, ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Keep:
    """`keep TABLE where CONDITION`"""

    table: Name
    condition: Expr
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Push:
    """`push BUFFER(ROWS, name=column, ...)`"""

    buffer: Name
    args: tuple[Expr, ...]
    options: tuple[Option, ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Update:
    """`update TARGET from SOURCE` or `update TARGET from SOURCE(ema=0.995)`"""

    target: Name
    source: Name
    options: tuple[Option, ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Return:
    """`return value`, the last statement of a `def`."""

    value: Expr
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Train:
    """`train MODEL(options): body`"""

    model: Name
    options: tuple[Option, ...]
    body: tuple[Stmt, ...]
    span: Span = _span()
    """Of the header line."""


@dataclass(frozen=True, slots=True)
class Minibatch:
    """`minibatch TABLE(parts=8, epochs=2): body`"""

    table: Name
    options: tuple[Option, ...]
    body: tuple[Stmt, ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Collect:
    """`collect TABLE(512): body`"""

    table: Name
    args: tuple[Expr, ...]
    options: tuple[Option, ...]
    body: tuple[Stmt, ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class OnSteps:
    """`every 20: body`"""

    word: str
    count: Expr
    body: tuple[Stmt, ...]
    span: Span = _span()


Loop = Train | Minibatch | Collect | OnSteps
Stmt = Assign | Store | Minimize | Report | Keep | Push | Update | Return | Loop


# Declarations


@dataclass(frozen=True, slots=True)
class Algorithm:
    name: str
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Use:
    """`use "grpo.rlf"`: that file's declarations, which this file's replace by name."""

    path: String
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Declaration:
    """`param|model|data|func|env|buffer NAME = VALUE`"""

    kind: str
    name: str
    value: Expr
    name_span: Span = _span()
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class State:
    """`state NAME = VALUE`, or `state NAME[KEY] = VALUE` for one value for each key."""

    name: str
    key: str | None
    """The word in the brackets; it documents what the keys are and means nothing more."""
    value: Expr
    name_span: Span = _span()
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Def:
    """`def NAME(PARAMETERS): body`; the body is assignments and one `return`."""

    name: str
    parameters: tuple[Name, ...]
    body: tuple[Stmt, ...]
    name_span: Span = _span()
    span: Span = _span()
    """Of the header line."""


@dataclass(frozen=True, slots=True)
class Phase:
    """`step:`, `step async(lag=2):` or `phase NAME(steps=100):`"""

    name: str
    """`step` for the main one."""
    asynchronous: bool
    options: tuple[Option, ...]
    body: tuple[Stmt, ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Change:
    """`change:` statements that replace those of the used program's step that have the same target."""

    body: tuple[Stmt, ...]
    span: Span = _span()


# Schedules: `.rls` files, or a `schedule:` block in a program


@dataclass(frozen=True, slots=True)
class Pool:
    """`pool NAME = COUNT devices`, or `... cpus`"""

    name: str
    count: Expr
    unit: Literal["devices", "cpus"]
    name_span: Span = _span()
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Place:
    """`place actor.train, critic on POOL(engine=megatron, tp=4)`; `work` are Names and Attributes of Names.
    A name may be a function's or an environment's, too."""

    work: tuple[Expr, ...]
    pool: Name
    options: tuple[Option, ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Stream:
    """`stream TABLE(block=64)`"""

    table: Name
    options: tuple[Option, ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Admit:
    """`admit TABLE(by=longest)`"""

    table: Name
    options: tuple[Option, ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Tail:
    """`tail TABLE(under=0.2, on=8)`"""

    table: Name
    options: tuple[Option, ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Fuse:
    """`fuse actor.train, critic.train`; `work` are Names and Attributes of Names."""

    work: tuple[Expr, ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Send:
    """`send MODEL to POOL(delta=true)`"""

    model: Name
    pool: Name
    options: tuple[Option, ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Refresh:
    """`refresh MODEL on POOL(by=reread)`"""

    model: Name
    pool: Name
    options: tuple[Option, ...]
    span: Span = _span()


Placed = Pool | Place | Stream | Admit | Tail | Fuse | Send | Refresh
"""A line of a schedule."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """`schedule NAME` at the head of an `.rls` file (`name` is the algorithm's), or the block `schedule:` (`name`
    empty)."""

    name: str
    body: tuple[Placed, ...]
    span: Span = _span()


Decl = Algorithm | Use | Declaration | State | Def | Phase | Change | Schedule


@dataclass(frozen=True, slots=True)
class Comment:
    """`# text`, kept for the formatter."""

    text: str
    """With its `#`, without white space at its end."""
    line: int
    column: int
    alone: bool
    """It has a line of its own."""


@dataclass(frozen=True, slots=True)
class File:
    """A whole `.rlf` or `.rls` file."""

    declarations: tuple[Decl, ...]
    comments: tuple[Comment, ...] = field(default=(), compare=False, repr=False)
