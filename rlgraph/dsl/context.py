"""The state of checking a program: one object, which every function of the checker takes first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from rlgraph.columns import Column
from rlgraph.dsl import tree
from rlgraph.dsl.scope import Meaning, Reporter, TableValue
from rlgraph.errors import Diagnostic, Span
from rlgraph.ir.graph import Constant, ConstructorCall, Expr, Node, Ref, Staleness, Value
from rlgraph.ir.types import Axis, Table

Columns = Callable[[ConstructorCall], Mapping[str, Column] | None]
"""Returns the columns of a data source and what they hold, as far as it can be known without running anything."""
Faults = Callable[[str, ConstructorCall, Collection[str]], list[Diagnostic]]
"""Returns what is wrong with data, a function or an environment, as far as it can be seen without running anything:
from the word of its declaration (`func`), its record, and the names of the options that the language itself defines."""


@dataclass
class Block:
    """The nodes of one graph while it is being written."""

    scope: dict[str, Meaning]
    versions: dict[str, Value]
    """The newest value of each thing that lives across steps."""
    nodes: list[Node] = field(default_factory=list)
    training: str = ""
    """The model whose `train` body this is."""
    live: set[str] = field(default_factory=set)
    """Values through which a gradient flows to that model."""
    defers: bool = False
    """Whether this is a loop's body, whose reports are about all the rows of the loop."""
    sliced: bool = False
    """Whether the body sees a slice of the rows."""
    slices: bool = False
    """Whether this is the body of a `minibatch` itself."""
    scope_before: Mapping[str, Meaning] = field(default_factory=dict)
    """What names mean at the beginning of the body."""
    kept: set[str] = field(default_factory=set)
    """The axes that a `keep` in a slice has left."""
    whole_again: dict[str, Meaning] = field(default_factory=dict)
    """What such a `keep` made of names that have all their rows again after the loop."""
    collects: bool = False
    """Whether this is the body of a `collect` itself."""
    conditional: bool = False
    """Whether the body runs only where a condition holds."""
    stops: Span | None = None
    """The `stop` that may end the loop whose body this is."""
    later: dict[str, Span] = field(default_factory=dict)
    """Names that are assigned further down, for a better message."""
    minimized: list[tuple[Expr, Span]] = field(default_factory=list)
    reports: list[tree.Report] = field(default_factory=list)
    """Reports that wait for the end of the loop."""


@dataclass(frozen=True, slots=True)
class ColumnSource:
    """A column of a table."""

    table: str
    kind: Table
    name: str


@dataclass(frozen=True, slots=True)
class DistributionSource:
    """Of what a distribution over the vocabulary is."""

    model: str
    weights: str
    """The value of the model's weights."""
    table: str
    """The value of the rows."""
    temperature: Constant
    span: Span
    kept: str = ""
    """The value that has the probabilities, of the likeliest tokens alone; "": none has, they are computed."""
    kept_sum: str = ""
    """The value that has their sum at each token."""


@dataclass
class PhaseContext:
    """The state of the phase whose graph is being written."""

    staleness: Staleness = Staleness()
    collected: frozenset[str] = frozenset()
    """The data sources that a `collect` of the phase reads."""
    taken: dict[str, int] = field(default_factory=dict)
    """How many values have each name."""
    axis_keys: set[str] = field(default_factory=set)
    columns: dict[tuple[str, str], str] = field(default_factory=dict)
    """The value that holds a column, by table and column."""
    part_tables: dict[str, TableValue] = field(default_factory=dict)
    """The parts of players in episodes, and all lines of episodes, by the names of their values."""
    column_sources: dict[str, ColumnSource] = field(default_factory=dict)
    """For each value that holds a column of a table, which it is."""
    answers_to_texts: set[str] = field(default_factory=set)
    """Tables of answers to texts that a function wrote, of which no data are known."""
    distributions: dict[str, DistributionSource] = field(default_factory=dict)
    """Of what each distribution is, by the name that stands for it in expressions."""
    chosen: dict[str, Axis] = field(default_factory=dict)
    """The axis from which a value chooses rows."""
    levels: dict[int, tuple[Expr, int]] = field(default_factory=dict)
    """How deep an expression is, by its identity."""
    assigned: dict[str, Span] = field(default_factory=dict)
    reported: dict[str, Span] = field(default_factory=dict)
    """The metrics of the phase."""


@dataclass(kw_only=True)
class Context(Reporter):
    """The state of checking one program."""

    evaluator: Callable[[Context, tree.Expr, str], Meaning]
    """The function `expressions.evaluate`: calls and defs are expressions, and made of expressions."""
    writer: Callable[[Context, Sequence[tree.Stmt]], None]
    """The function `bodies.emit_body`: loops are statements, and made of statements."""
    columns: Columns = lambda record: None
    faults: Faults = lambda word, record, options: []
    groups: Callable[[Context, Ref, Span], Axis | None] = lambda context, value, span: None
    """The axis of groups in which Python says that the rows of a value lie: a def by itself has such groups."""

    scope: dict[str, Meaning] = field(default_factory=dict)
    """The meanings of the declarations."""
    declared: dict[str, Span] = field(default_factory=dict)
    """The names of the declarations."""
    used: set[str] = field(default_factory=set)
    """The names that expressions use."""
    axes: dict[str, Axis] = field(default_factory=dict)
    """The axes of all phases, by key."""
    buffers: dict[str, Table] = field(default_factory=dict)
    """The type of the rows in each buffer."""
    buffers_read_early: dict[str, list[Diagnostic]] = field(default_factory=dict)
    """The buffers that the phase has read before it was known what they hold, with what was said of it."""
    wrong_pushes: set[str] = field(default_factory=set)
    """The buffers into which a wrong `push` would have put rows."""
    parts: set[str] = field(default_factory=set)
    """The data sources that are mixed with others."""
    data_columns: dict[str, Mapping[str, Column] | None] = field(default_factory=dict)
    """The columns of the data sources that were inspected."""
    collected: set[str] = field(default_factory=set)
    """The data sources that a `collect` of some phase reads."""

    phase: PhaseContext = field(default_factory=PhaseContext)
    block: Block = field(default_factory=lambda: Block({}, {}))

    active: list[tree.Def] = field(default_factory=list)
    """Defs that are being written out, the outermost first."""
    outside: dict[str, Meaning] = field(default_factory=dict)
    """The meanings of names outside of them."""
    written: int = 0
    """How many calls of defs have been written out."""

    def evaluate(self, expr: tree.Expr, hint: str = "") -> Meaning:
        """Return the meaning of an expression; `hint` is the name that its value is going to have."""
        return self.evaluator(self, expr, hint)

    def refuse_in_train(self, what: str, span: Span, hint: str = "move it above `train`") -> None:
        """Raise StatementError for what stands in a `train` body and cannot."""
        if self.block.training:
            raise self.statement_error("E0505", f"`{what}` cannot stand in a `train` body", span, hint)

    def emit_body(self, body: Sequence[tree.Stmt]) -> None:
        """Write the nodes of a body into the current block."""
        self.writer(self, body)
