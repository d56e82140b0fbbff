"""What the user says about where a program runs; the compiler chooses the rest. It changes no result."""

from __future__ import annotations

from dataclasses import dataclass, field

from rlgraph.errors import NO_SPAN, Span
from rlgraph.ir.plan import By


@dataclass(frozen=True, slots=True)
class Pool:
    """Devices, or cpus on which functions and environments run."""

    name: str
    devices: int
    cpus: int = 0
    span: Span = field(default=NO_SPAN, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Work:
    """`actor.train`, or `actor`: all work of the model that is not placed by itself. A function of the user's is
    known by its name, which stands for a model's."""

    model: str
    operation: str | None = None
    span: Span = field(default=NO_SPAN, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.model}.{self.operation}" if self.operation else self.model


@dataclass(frozen=True, slots=True)
class Placement:
    """Work that runs on a pool; what is None the compiler chooses."""

    work: tuple[Work, ...]
    pool: str
    engine: str | None = None
    sizes: tuple[tuple[str, int], ...] = ()
    """Of the mesh's axes, as far as they are said."""
    recompute: bool | None = None
    """Training keeps each layer's input only, and computes what is inside again."""
    attention: str | None = None
    """How attention is computed."""
    adapters: str | None = None
    """How adapters are held."""
    gather: str | None = None
    """For how long what is shared out stays gathered in training."""
    span: Span = field(default=NO_SPAN, compare=False, repr=False)
    spans: tuple[tuple[str, Span], ...] = field(default=(), compare=False, repr=False)
    """Where each option stands."""

    def splits(self) -> dict[str, int]:
        """How its models are split, as far as that is said."""
        return dict(self.sizes)

    def at(self, option: str) -> Span:
        """Where an option stands; the whole line if it is not there."""
        return dict(self.spans).get(option, self.span)


@dataclass(frozen=True, slots=True)
class Stream:
    """A table whose rows travel in blocks, before the batch is complete."""

    table: str
    block: int | None = None
    """Rows. None: as many as are best."""
    free: bool = False
    """A data-parallel copy takes a block when it is free; otherwise each has a fixed share of the rows."""
    span: Span = field(default=NO_SPAN, compare=False, repr=False)

    @property
    def open(self) -> bool:
        """Whether it leaves something to the plan."""
        return self.block is None


@dataclass(frozen=True, slots=True)
class Admit:
    """Of the rows that are sampled those begin first that are expected to be the longest."""

    table: str
    by: By = "longest"
    name: str = ""
    """Of the column, or the function."""
    span: Span = field(default=NO_SPAN, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Tail:
    """The last rows of a table go on on few copies of the model that samples them; the others' devices serve what comes
    next."""

    table: str
    under: float | None = None
    """When fewer rows than this have not ended; below 1 a share of those that are sampled. None: whatever is best."""
    on: int | None = None
    """Copies. None: as many as are best."""
    span: Span = field(default=NO_SPAN, compare=False, repr=False)

    @property
    def open(self) -> bool:
        """Whether it leaves something to the plan."""
        return self.under is None or self.on is None


@dataclass(frozen=True, slots=True)
class Fuse:
    """Trainings that fill each other's bubbles in one pipeline."""

    models: tuple[str, ...]
    span: Span = field(default=NO_SPAN, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Send:
    """How a model's weights travel to those who need them on a pool."""

    model: str
    pool: str
    delta: bool = False
    """Only what changed."""
    span: Span = field(default=NO_SPAN, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Refresh:
    """How new weights of a model come to a pool that samples with it."""

    model: str
    pool: str
    by: str = "drain"
    """Rows that have not ended end first (`drain`), are read again with them (`reread`), or go on as they are (`keep`).
    """
    replica: bool = False
    """Data-parallel copies take them one after the other, not together."""
    span: Span = field(default=NO_SPAN, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Schedule:
    pools: tuple[Pool, ...] = ()
    placements: tuple[Placement, ...] = ()
    streams: tuple[Stream, ...] = ()
    sends: tuple[Send, ...] = ()
    refreshes: tuple[Refresh, ...] = ()
    tails: tuple[Tail, ...] = ()
    fuses: tuple[Fuse, ...] = ()
    admits: tuple[Admit, ...] = ()
    span: Span = field(default=NO_SPAN, compare=False, repr=False)
    """Of its head; that of no text if the user gave none."""
