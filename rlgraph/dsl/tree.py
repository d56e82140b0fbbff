"""The syntax tree: the parser's result, before anything has a meaning.

Every node has the span it was read from. Spans do not take part in comparison: two trees are equal when they say the
same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from rlgraph.errors import Span


def _span() -> Span:
    return field(compare=False, repr=False)  # type: ignore[no-any-return]


# Expressions


@dataclass(frozen=True, slots=True)
class Name:
    """A name."""

    id: str
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Number:
    """A number."""

    value: int | float
    text: str = field(compare=False)
    """The number as it was written: the formatter keeps `1e-6`."""
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class BracedName:
    """A name in braces, in a text in quotes: `{score:.2f}`."""

    value: Expr | None
    """The name, or the column; None for braces that hold none."""
    format: str
    """How a number is written, as in Python."""
    wrong: str
    """What is wrong with braces without a name."""
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class String:
    """A text in quotes."""

    value: str
    span: Span = _span()
    pieces: tuple[str | BracedName, ...] = ()
    """What a text with names in braces is made of, where it is taken as one; nothing for a text without braces."""


@dataclass(frozen=True, slots=True)
class Bool:
    """The word `true` or `false`."""

    value: bool
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class List:
    """A list `[a, b]`."""

    items: tuple[Expr, ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Unary:
    """A sign or `not` before an expression."""

    op: str
    """One of `-`, `+` and `not`."""
    operand: Expr
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Binary:
    """An operator between two expressions."""

    op: str
    """One of `+ - * / // % **`, `< <= > >= == !=`, `and`, `or`."""
    left: Expr
    right: Expr
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Attribute:
    """The expression `base.name`."""

    base: Expr
    name: str
    name_span: Span = _span()
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Index:
    """The expression `base[key]`, for a state that is keyed by a column."""

    base: Expr
    key: Expr
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Option:
    """An option `name=value`, in a call, on a statement, or in `report`."""

    name: str
    value: Expr
    name_span: Span = _span()
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Call:
    """A call `func(args, name=value)`."""

    func: Expr
    args: tuple[Expr, ...]
    options: tuple[Option, ...]
    span: Span = _span()


Expr = Name | Number | String | Bool | List | Unary | Binary | Attribute | Index | Call


# Statements


@dataclass(frozen=True, slots=True)
class Assign:
    """The statement `target = value`."""

    target: str
    value: Expr
    target_span: Span = _span()
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Store:
    """The statement `target := value`, into a `state`; `target` is a Name or an Index."""

    target: Expr
    value: Expr
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Minimize:
    """The statement `minimize value`."""

    value: Expr
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Report:
    """The statement `report name = value, ...`."""

    items: tuple[Option, ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Keep:
    """The statement `keep TABLE where CONDITION`."""

    table: Name
    condition: Expr
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Push:
    """The statement `push BUFFER(ROWS, name=column, ...)`."""

    buffer: Name
    args: tuple[Expr, ...]
    options: tuple[Option, ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Resample:
    """The statement `resample TABLE(256, weight=abs(score))`."""

    table: Name
    args: tuple[Expr, ...]
    options: tuple[Option, ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Update:
    """The statement `update TARGET from SOURCE` or `update TARGET from SOURCE(ema=0.995)`."""

    target: Name
    source: Name
    options: tuple[Option, ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Return:
    """The statement `return value`, the last of a `def`."""

    value: Expr
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Train:
    """The block `train MODEL(options): body`."""

    model: Name
    options: tuple[Option, ...]
    body: tuple[Stmt, ...]
    span: Span = _span()
    """The span of the header line."""


@dataclass(frozen=True, slots=True)
class Minibatch:
    """The block `minibatch TABLE(parts=8, epochs=2): body`."""

    table: Name
    options: tuple[Option, ...]
    body: tuple[Stmt, ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Collect:
    """The block `collect TABLE(512): body`."""

    table: Name
    args: tuple[Expr, ...]
    options: tuple[Option, ...]
    body: tuple[Stmt, ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class OnSteps:
    """The block `every 20: body`."""

    word: str
    count: Expr
    body: tuple[Stmt, ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class If:
    """The block `if CONDITION: body`."""

    condition: Expr
    body: tuple[Stmt, ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Stop:
    """The statement `stop where CONDITION` of a `minibatch`."""

    condition: Expr
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Run:
    """The line `improve(rollout, score)`: a call of a def that holds statements."""

    func: Name
    args: tuple[Expr, ...]
    options: tuple[Option, ...]
    span: Span = _span()


Loop = Train | Minibatch | Collect | OnSteps | If
"""The statements that have a body."""
Stmt = Assign | Store | Minimize | Report | Keep | Resample | Push | Update | Return | Stop | Run | Loop


def all_statements(body: Sequence[Stmt]) -> Iterator[Stmt]:
    """Yield the statements of a body, those of a loop after the loop."""
    for statement in body:
        yield statement
        if isinstance(statement, Loop):
            yield from all_statements(statement.body)


# Declarations


@dataclass(frozen=True, slots=True)
class Algorithm:
    """The line `algorithm NAME`."""

    name: str
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Use:
    """The line `use "grpo.rlf"`: that file's declarations, which this file's replace by name."""

    path: String
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Declaration:
    """A declaration `param|model|data|func|env|buffer NAME = VALUE`."""

    kind: str
    name: str
    value: Expr
    name_span: Span = _span()
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class State:
    """The line `state NAME = VALUE`, or `state NAME[KEY] = VALUE` with a value for each key."""

    name: str
    key: str | None
    """The word in the brackets, which documents what the keys are and means nothing more."""
    value: Expr
    name_span: Span = _span()
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Def:
    """The block `def NAME(PARAMETERS): body`; the body is assignments and one `return`, or statements, which may have
    none."""

    name: str
    parameters: tuple[Name, ...]
    body: tuple[Stmt, ...]
    name_span: Span = _span()
    span: Span = _span()
    """The span of the header line."""

    @property
    def holds_statements(self) -> bool:
        """Whether it is more than an expression: its statements are put where it is called."""
        return not all(isinstance(statement, Assign | Return) for statement in self.body)


@dataclass(frozen=True, slots=True)
class Phase:
    """The block `step:`, `step async(lag=2):` or `phase NAME(steps=100):`."""

    name: str
    """The name, `step` for the main phase."""
    asynchronous: bool
    options: tuple[Option, ...]
    body: tuple[Stmt, ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Addition:
    """The block `after ANCHOR: body` or `before ANCHOR: body` of a `change:`."""

    word: str
    anchor: str
    """The statement that it stands beside, as it begins: `adv`, `minimize`, `train actor`."""
    anchor_span: Span
    body: tuple[Stmt, ...]
    span: Span = _span()
    """The span of the header line."""


@dataclass(frozen=True, slots=True)
class Change:
    """The block `change:`, whose statements replace those with the same target in the used program's step, and whose
    additions stand beside statements of it; of `change NAME:`, in a def or a phase."""

    name: str
    """The def or phase; "": the steps."""
    body: tuple[Stmt | Addition, ...]
    span: Span = _span()
    """The span of the word `change`, or of the name behind it."""


# Schedules: `.rls` files, or a `schedule:` block in a program


@dataclass(frozen=True, slots=True)
class Pool:
    """The line `pool NAME = COUNT devices`, or `... cpus`."""

    name: str
    count: Expr
    unit: Literal["devices", "cpus"]
    name_span: Span = _span()
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Place:
    """The line `place actor.train, critic on POOL(engine=megatron, tp=4)`; `work` are Names and Attributes of Names. A
    Name may be a function or an environment, too."""

    work: tuple[Expr, ...]
    pool: Name
    options: tuple[Option, ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class TableLine:
    """A line about the rows of a table."""

    table: Name
    options: tuple[Option, ...]
    span: Span = _span()


class Stream(TableLine):
    """The line `stream TABLE(block=64)`."""

    __slots__ = ()


class Admit(TableLine):
    """The line `admit TABLE(by=longest)`."""

    __slots__ = ()


class Tail(TableLine):
    """The line `tail TABLE(under=0.2, on=8)`."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Fuse:
    """The line `fuse actor.train, critic.train`; `work` are Names and Attributes of Names."""

    work: tuple[Expr, ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class WeightsLine:
    """A line about the weights of a model that a pool gets."""

    model: Name
    pool: Name
    options: tuple[Option, ...]
    span: Span = _span()


class Send(WeightsLine):
    """The line `send MODEL to POOL(delta=true)`."""

    __slots__ = ()


class Refresh(WeightsLine):
    """The line `refresh MODEL on POOL(by=reread)`."""

    __slots__ = ()


ScheduleLine = Pool | Place | Stream | Admit | Tail | Fuse | Send | Refresh
"""A line of a schedule."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The head `schedule NAME` of an `.rls` file, with the algorithm's name, or the block `schedule:` with an empty
    `name`."""

    name: str
    body: tuple[ScheduleLine, ...]
    span: Span = _span()


Decl = Algorithm | Use | Declaration | State | Def | Phase | Change | Schedule


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment `# text`, kept for the formatter."""

    text: str
    """The text with its `#`, without white space at its end."""
    line: int
    column: int
    alone: bool
    """Whether it has a line of its own."""


@dataclass(frozen=True, slots=True)
class File:
    """A whole `.rlf` or `.rls` file."""

    declarations: tuple[Decl, ...]
    comments: tuple[Comment, ...] = field(default=(), compare=False, repr=False)
