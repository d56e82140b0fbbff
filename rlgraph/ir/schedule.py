"""The schedule: what the user says about where a program runs. It changes no result; the compiler chooses the rest."""

from __future__ import annotations

from dataclasses import dataclass, field

from rlgraph.errors import NO_SPAN, Span
from rlgraph.ir.plan import HOST, By


@dataclass(frozen=True, slots=True)
class PoolLine:
    """A pool of devices, or of cpus on which functions and environments run."""

    name: str
    devices: int
    cpus: int = 0
    span: Span = field(default=NO_SPAN, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class PlacedWork:
    """Work to place: `actor.train`, or `actor` for all of a model's work that is not placed separately. A function of
    the user's has its name in place of a model's."""

    model: str
    operation: str | None = None
    span: Span = field(default=NO_SPAN, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.model}.{self.operation}" if self.operation else self.model


@dataclass(frozen=True, slots=True)
class PlacementLine:
    """Work that runs on a pool; the compiler chooses what is None."""

    work: tuple[PlacedWork, ...]
    pool: str
    engine: str | None = None
    sizes: tuple[tuple[str, int], ...] = ()
    """The given sizes of mesh axes."""
    recompute: bool | None = None
    """Whether training recomputes activations, keeping only each layer's input."""
    attention: str | None = None
    """The way attention is computed."""
    adapters: str | None = None
    """The way adapters are held."""
    gather: str | None = None
    """How long sharded parameters stay gathered in training."""
    optimizer: str | None = None
    """Where training keeps the optimizer's state."""
    sleep: bool | None = None
    """Whether models are in the host's memory while they are not used."""
    share: float | None = None
    """The share of a device's memory for weights and cache of a model that samples."""
    cache: float | None = None
    """Bytes of each rank's cache of keys and values."""
    max_len: int | None = None
    """The most tokens of a sampled row."""
    span: Span = field(default=NO_SPAN, compare=False, repr=False)
    spans: tuple[tuple[str, Span], ...] = field(default=(), compare=False, repr=False)
    """The place of each option."""

    def axis_sizes(self) -> dict[str, int]:
        """Return the given sizes of mesh axes by name."""
        return dict(self.sizes)

    def option_span(self, option: str) -> Span:
        """Return the place of an option, or of the whole line if it is not given."""
        return dict(self.spans).get(option, self.span)


@dataclass(frozen=True, slots=True)
class StreamLine:
    """A table whose rows are handed on in blocks, before the batch is complete."""

    table: str
    block: int | None = None
    """Rows of a block; None: the plan chooses."""
    free: bool = False
    """Whether a replica takes a block when it is free; otherwise each has a fixed share of the rows."""
    span: Span = field(default=NO_SPAN, compare=False, repr=False)

    @property
    def is_undecided(self) -> bool:
        """Whether the plan chooses the block."""
        return self.block is None


@dataclass(frozen=True, slots=True)
class AdmitLine:
    """Starts the sampled rows that are expected to be the longest first."""

    table: str
    by: By = "longest"
    name: str = ""
    """The name of the column or the function."""
    span: Span = field(default=NO_SPAN, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class TailLine:
    """Moves the last rows of a table to few replicas of the model that samples them, so that the others' devices can do
    what comes next."""

    table: str
    under: float | None = None
    """The tail begins when fewer rows than this are unfinished; below 1, a share of the sampled rows. None: the plan
    chooses."""
    on: int | None = None
    """The number of replicas that go on; None: the plan chooses."""
    span: Span = field(default=NO_SPAN, compare=False, repr=False)

    @property
    def is_undecided(self) -> bool:
        """Whether the plan chooses a part of it."""
        return self.under is None or self.on is None


@dataclass(frozen=True, slots=True)
class FuseLine:
    """Models whose trainings fill each other's bubbles in one pipeline."""

    models: tuple[str, ...]
    span: Span = field(default=NO_SPAN, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class SendLine:
    """How a model's weights are sent to the groups on a pool that need them."""

    model: str
    pool: str
    delta: bool = False
    """Whether only changed elements are sent."""
    span: Span = field(default=NO_SPAN, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class RefreshLine:
    """How a pool that samples with a model takes new weights of it."""

    model: str
    pool: str
    by: str = "drain"
    """Whether unfinished rows end first (`drain`), are read again with the new weights (`reread`), or go on as they are
    (`keep`)."""
    replica: bool = False
    """Whether data-parallel replicas take them one by one, and not together."""
    span: Span = field(default=NO_SPAN, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Schedule:
    """All lines of a schedule, by kind."""

    pools: tuple[PoolLine, ...] = ()
    placements: tuple[PlacementLine, ...] = ()
    streams: tuple[StreamLine, ...] = ()
    sends: tuple[SendLine, ...] = ()
    refreshes: tuple[RefreshLine, ...] = ()
    tails: tuple[TailLine, ...] = ()
    fuses: tuple[FuseLine, ...] = ()
    admits: tuple[AdmitLine, ...] = ()
    span: Span = field(default=NO_SPAN, compare=False, repr=False)
    """The place of its head; `NO_SPAN` if the user gave no schedule."""

    @property
    def host_processes(self) -> int:
        """Return the processes of the host, which share mathematics between models."""
        return next((pool.cpus for pool in self.pools if pool.name == HOST), 1)
