"""What is known while a program is being checked: one object, which every function of the checker takes first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from rlgraph.columns import Column
from rlgraph.dsl import tree
from rlgraph.dsl.scope import Meaning, Reporter
from rlgraph.errors import Diagnostic, Span
from rlgraph.ir.graph import Expr, Node, Record, Ref, Staleness, Value
from rlgraph.ir.types import Axis, Table

Columns = Callable[[Record], Mapping[str, Column] | None]
"""The columns of a data source, and what they hold, as far as that can be known without running anything."""
Faults = Callable[[str, Record, Collection[str]], list[Diagnostic]]
"""What is wrong with data, a function or an environment, as far as that can be seen without running anything: from the
word of its declaration (`func`), what stands there, and the names of the options that are the language's own."""


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
    """Values through which a gradient goes to that model."""
    defers: bool = False
    """A loop's body: what it reports is about all the loop's rows."""
    sliced: bool = False
    """A body that sees a slice of the rows."""
    later: dict[str, Span] = field(default_factory=dict)
    """Names that are assigned further down, for a better message."""
    minimized: list[tuple[Expr, Span]] = field(default_factory=list)
    reports: list[tree.Report] = field(default_factory=list)
    """Those that wait for the end of the loop."""


@dataclass
class PhaseContext:
    """What is known of the phase whose graph is being written."""

    staleness: Staleness = Staleness()
    collected: frozenset[str] = frozenset()
    """Data that some `collect` of it reads."""
    taken: dict[str, int] = field(default_factory=dict)
    """How many values have a name."""
    axis_keys: set[str] = field(default_factory=set)
    columns: dict[tuple[str, str], str] = field(default_factory=dict)
    """Values that hold a column, by table and column."""
    chosen: dict[str, Axis] = field(default_factory=dict)
    """For a value that chooses rows: the axis it chooses from."""
    levels: dict[int, tuple[Expr, int]] = field(default_factory=dict)
    """How deep an expression is, by its identity."""
    assigned: dict[str, Span] = field(default_factory=dict)
    reported: dict[str, Span] = field(default_factory=dict)
    """Its metrics."""


@dataclass(kw_only=True)
class Context(Reporter):
    """All that is known while one program is checked."""

    evaluator: Callable[[Context, tree.Expr, str], Meaning]
    """`expressions.evaluate`: calls and defs are expressions, and made of expressions."""
    writer: Callable[[Context, Sequence[tree.Stmt]], None]
    """`bodies.write`: loops are statements, and made of statements."""
    columns: Columns = lambda record: None
    faults: Faults = lambda word, record, options: []
    groups: Callable[[Context, Ref, Span], Axis | None] = lambda context, value, span: None
    """Rows in which those of a value lie because Python says so: a def by itself has them."""

    scope: dict[str, Meaning] = field(default_factory=dict)
    """What the declarations mean."""
    declared: dict[str, Span] = field(default_factory=dict)
    """Names of declarations."""
    used: set[str] = field(default_factory=set)
    """Names that some expression uses."""
    axes: dict[str, Axis] = field(default_factory=dict)
    """Of all phases, by key."""
    buffers: dict[str, Table] = field(default_factory=dict)
    """What was pushed into each buffer."""
    data_columns: dict[str, Mapping[str, Column] | None] = field(default_factory=dict)
    """Of the data sources that were looked into."""
    collected: set[str] = field(default_factory=set)
    """Data that some `collect` of some phase reads."""

    phase: PhaseContext = field(default_factory=PhaseContext)
    block: Block = field(default_factory=lambda: Block({}, {}))

    active: list[tree.Def] = field(default_factory=list)
    """Defs that are being written out, the outermost first."""
    outside: dict[str, Meaning] = field(default_factory=dict)
    """What names mean outside of them."""
    written: int = 0
    """Calls of defs so far."""

    def evaluate(self, expr: tree.Expr, hint: str = "") -> Meaning:
        """What an expression means; `hint` is the name that its value is going to have."""
        return self.evaluator(self, expr, hint)

    def write(self, body: Sequence[tree.Stmt]) -> None:
        """The nodes of a body, in the present block."""
        self.writer(self, body)
