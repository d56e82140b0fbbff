"""Axes and types of the values in a program.

All axes are of one kind: the rows of an axis are inside the rows of its parent. Prompts have no parent, rollouts are in
prompts, tokens are in rollouts. So a broadcast is a gather from a parent, a reduction is a sum into a parent, and
planning, splitting and streaming all ask the same question: which axis is inside which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeGuard

DType = Literal["float", "int", "bool", "number", "text", "any", "row", "key"]
"""`any` is a data column whose type is only known when it is read, and `number` what is computed from one: an integer
if the column is. `row` refers to one row of a table. A `key` says which rows are equal, inside an expression alone."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A named dimension of values, whose rows are inside the rows of its parent."""

    key: str
    """Unique in the program: `rollout`, `rollout.token`, `prompts.2` (the prompts that a `keep` left)."""
    name: str
    """Its name in the program: `rollout`, `token`, `prompts`."""
    parent: Axis | None = None
    """The axis whose rows contain these rows."""
    inner: bool = False
    """Whether it runs along the inside of a row (`token`, `turn`): such an axis is ordered and never split between
    devices."""

    def path_to_root(self) -> Iterator[Axis]:
        """Return this axis, its parent, and so on to the root."""
        axis: Axis | None = self
        while axis is not None:
            yield axis
            axis = axis.parent

    def is_within(self, other: Axis | None) -> bool:
        """Return whether rows of this axis are in rows of `other`, or are these; all are in the whole batch, None."""
        if other is None:
            return True
        # Called for every block: a loop takes half the time of a generator.
        axis: Axis | None = self
        while axis is not None and axis.key != other.key:
            axis = axis.parent
        return axis is not None

    @property
    def depth(self) -> int:
        """The number of axes on its path, 1 for a root: sorting by it puts outer axes first."""
        return sum(1 for _ in self.path_to_root())

    @property
    def row_axis(self) -> Axis:
        """The innermost axis at or above this one whose rows can be split and sent."""
        return next(axis for axis in self.path_to_root() if not axis.inner)

    @property
    def root_axis(self) -> Axis:
        """The outermost axis: the rows of the data, or of another source."""
        *_, last = self.path_to_root()
        return last

    @property
    def label(self) -> str:
        """Its name in types that the user reads: `rollout, token`, or `episode, turn, token`."""
        return f"{self.parent.label}, {self.name}" if self.inner and self.parent else self.name


def inner_of_two_axes(a: Axis | None, b: Axis | None) -> Axis | None:
    """Return the inner one of two nested axes; raises ValueError if they do not nest."""
    if a is None or (b is not None and b.is_within(a)):
        return b
    if b is None or a.is_within(b):
        return a
    raise ValueError(f"{a.key} and {b.key} do not nest")


@dataclass(frozen=True, slots=True)
class Tensor:
    """The type of a value with an entry for each row of an axis, or with a single entry."""

    dtype: DType
    axis: Axis | None = None

    def __str__(self) -> str:
        return f"{self.dtype}[{self.axis.label}]" if self.axis else self.dtype


OLDEST = "_version"
"""The column of each row's oldest version, where each token has a version: the checker uses it, programs do not. A row
without tokens has the version with which it ended."""

TURN_TOKENS = "_turn_tokens"
"""The column of how many tokens with loss each turn has: it says which tokens lie in which turn, programs do not name
it."""

SAID = "_said"
"""The column of what was said in each episode, as messages and calls of tools: functions are given it, programs do not
name it."""

MIXED = "_mixed"
"""The column of rows that a mixture of models has sampled: their log-probabilities are of no single model."""

SUPPORT = "support"
"""The column of the tokens that each token was sampled from, with their probabilities, where a sampler keeps them."""

SUPPORT_SHARE = "_support"
"""The column of how probable these are together; programs do not name it."""

PLAYER = "_player_"
"""How the columns of players' parts of episodes begin, which programs do not name: `_player_black@rival` is what
`rival` does as `black`."""

BRANCH = "branch"
"""The name of the axis of the lines of an agent's episodes, and of the table that has them."""

BRANCHES = "_branches@"
"""How the column of all lines of agents' episodes begins, of which that table is made; programs do not name it:
`_branches@actor` is what `actor` was asked."""


COMPUTED_PROMPTS = ("prompt",)
"""The columns of rows whose prompts are texts that the program has computed: nothing else is known of these."""


@dataclass(frozen=True, slots=True)
class Table:
    """The type of rows with columns. Models read and write tables with tokens."""

    axis: Axis
    token: Axis | None = None
    """The axis of the tokens with loss: those that a model generated, or an encoded answer."""
    turn: Axis | None = None
    """The axis of the turns with an environment, in which the tokens lie."""
    sampled: bool = False
    """Whether a model of this program sampled it, so that it has the sampler's log-probabilities, versions and ages."""
    spans: bool = False
    """Whether tokens of a row may have different versions, so that `version` and `age` have an entry for each."""
    temperature: float = 1.0
    """The temperature at which it was sampled, and at which log-probabilities of its tokens are computed."""
    data: tuple[str, ...] | None = ()
    """The columns of the data that its rows come from; None where the data cannot be read yet, so that any name may
    exist."""
    extra: tuple[tuple[str, Tensor], ...] = ()
    """Columns that the program itself added."""
    start: Literal["text", "tokens", "row"] = "text"
    """What `generate` goes on from: the texts of its prompts; the tokens before those with loss, which no text gives;
    or all tokens of the row."""

    def __str__(self) -> str:
        return f"table[{self.axis.label}]"

    def column_types(self) -> dict[str, Tensor]:
        """Return every column that certainly exists, with its type."""
        columns = {name: Tensor("any", self.axis) for name in self.data or ()}
        if self.token:
            columns |= {
                "tokens": Tensor("int", self.token),
                "end": Tensor("bool", self.token),
                "length": Tensor("int", self.axis),
                "text": Tensor("text", self.axis),
            }
        if self.sampled:
            versions = Tensor("int", self.token if self.spans else self.axis)
            columns |= {
                "logprobs": Tensor("float", self.token),
                "version": versions,
                "age": versions,
                "finished": Tensor("bool", self.axis),
            }
            if self.spans:
                columns[OLDEST] = Tensor("int", self.axis)
        if self.turn:
            columns |= {"reward": Tensor("float", self.turn), "turns": Tensor("int", self.axis)}
            columns |= {name: Tensor("int", self.turn) for name in ("turn", "calls", "failed", TURN_TOKENS)}
            columns["observation"] = Tensor("text", self.turn)
            columns[SAID] = Tensor("any", self.axis)
        return columns | dict(self.extra)


def player_column(player: str, model: str) -> str:
    """Return the name of the column of a player's part of episodes."""
    return f"{PLAYER}{player}@{model}"


def players_of(kind: Table) -> dict[str, str]:
    """Return the players of a table of episodes, each with its model; none where one model plays."""
    names = [name.removeprefix(PLAYER) for name, _ in kind.extra if name.startswith(PLAYER)]
    return dict((player, model) for player, _, model in (name.partition("@") for name in names))


def branches_of(kind: Table) -> str:
    """Return the model whose lines a table of episodes has all; "" where it has one line of each episode."""
    return next((name.removeprefix(BRANCHES) for name, _ in kind.extra if name.startswith(BRANCHES)), "")


def has_parts(column: str) -> bool:
    """Return whether other tables are made of a column: of players, or of all lines of episodes."""
    return column.startswith((PLAYER, BRANCHES))


@dataclass(frozen=True, slots=True)
class StateHandle:
    """The type of something that lives across steps and is threaded through the graph as a value, so that edges express
    order and versions."""

    kind: Literal["model", "cursor", "keyed", "buffer"]
    name: str

    def __str__(self) -> str:
        return f"{self.kind}<{self.name}>"


Type = Tensor | Table | StateHandle

Infer = Callable[[str, tuple[Tensor, ...], Axis | None], Tensor]
"""The signature of `rlgraph.ops.infer_type`, which returns the type of a tensor operation's result."""


def is_model(kind: Type) -> TypeGuard[StateHandle]:
    """Return whether this is the type of a model's weights."""
    return isinstance(kind, StateHandle) and kind.kind == "model"


def axis_of(kind: Type) -> Axis | None:
    """Return the axis of a value's rows; None for a single value or a handle."""
    return None if isinstance(kind, StateHandle) else kind.axis


def axes_of(kind: Type) -> tuple[Axis, ...]:
    """Return every axis along which a value has entries: for a table also those of its turns and tokens, outer ones
    first."""
    if isinstance(kind, Table):
        return tuple(axis for axis in (kind.axis, kind.turn, kind.token) if axis)
    axis = axis_of(kind)
    return (axis,) if axis else ()


def axes_in_rows(kind: Type) -> tuple[Axis, ...]:
    """Return the axes of a value's entries, and those inside of its rows in which these lie, outer ones first."""
    axes: dict[Axis, None] = {}
    for entries in axes_of(kind):
        for axis in reversed([*entries.path_to_root()]):
            if axis.inner or axis == entries:
                axes[axis] = None
    return tuple(axes)
