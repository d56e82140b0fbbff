"""This module has samples: rows of a finished step as a person reads them, with the numbers that they were given.

Which tables have them, and which numbers are their scores, is read off the graph. A score is a float of each row that
the user's code or a reward model gives (`call`, `score`, what an environment gives for turns), or that is computed of
such numbers row by row; so is one that is read in what a model says of the row. Numbers that depend on other rows, as
advantages do, are none. Of several scores the last one that is computed of others is the reward, and where none is, the
first one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from rlgraph.backends.frame import Frame
from rlgraph.backends.rows import RemoteEntries, RowId, TableData
from rlgraph.ir.graph import Expr, Graph, Node, operations_in, used_names
from rlgraph.ir.types import OLDEST, Axis, Table, Tensor, Type
from rlgraph.ops.nodes import NODES, table_of


@dataclass(frozen=True)
class Sample:
    """One sampled row."""

    table: str
    """The name of the table in the program."""
    row: RowId
    prompt: Any
    """A text, or messages."""
    answer: str
    """Its text without special tokens; of an episode with all that the environment said."""
    reward: float | None
    """The score by which rows are better or worse; None where the program gives none."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """By name, in the order of the program."""
    length: int = 0
    """Tokens that the model wrote."""
    version: int = 0
    """The version of the weights that wrote them; where there are several, the oldest."""


@dataclass(frozen=True)
class SampledTable:
    """A table of a phase whose rows can be shown."""

    name: str
    value: str
    """The name of its value in the phase's graph."""
    axis: str
    """The key of its axis."""
    scores: tuple[tuple[str, str], ...]
    """The names of scores in the program, and of their values."""
    reward: str | None
    """The name of the score by which rows are better or worse; None where there is none."""


@dataclass(frozen=True)
class RowTexts:
    """What a person reads of a row of a table."""

    prompt: Any
    answer: str
    length: int
    version: int
    reward: float | None = None
    """What an environment gave for all its turns."""


class RowReader(Protocol):
    """Reads the values of a frame, wherever these are."""

    def fetch_values(self, values: Sequence[Any]) -> list[Any]:
        """Return values with all that other processes have of them."""
        ...

    def fetch_texts(self, table: Any) -> list[RowTexts]:
        """Return what a person reads of the rows of a table."""
        ...

    def values_and_texts(self, values: Sequence[Any], table: Any) -> tuple[list[Any], list[RowTexts]]:
        """Return both, read together."""
        ...


Decode = Callable[[str, Sequence[Sequence[int]]], list[str]]
"""Returns the texts of rows of tokens, given the name of the model whose tokens they are."""


def sampled_tables(graph: Graph) -> list[SampledTable]:
    """Return the tables of a phase that a model samples, once each, with their scores."""
    collected = _SampledValues(graph.value_types())
    collected.collect_graph(graph)
    types = {value.name: value.type for node in graph.nodes for value in node.outputs}
    listed: dict[str, SampledTable] = {}
    for value, key in collected.tables.items():
        kind = types.get(value)
        if isinstance(kind, Table) and key not in listed:
            scores = [
                name for name, of in collected.scores.items() if of == key and _lies_on(types.get(name), kind.axis)
            ]
            total = next((name for name in reversed(scores) if name in collected.computed), next(iter(scores), None))
            named = tuple((_name_in_program(name), name) for name in scores)
            reward = None if total is None else _name_in_program(total)
            listed[key] = SampledTable(_name_in_program(value), value, kind.axis.key, named, reward)
    return [*listed.values()]


def _lies_on(kind: Type | None, axis: Axis) -> bool:
    """Return whether a value has a number for each row of an axis."""
    return isinstance(kind, Tensor) and kind.axis is not None and kind.axis.key == axis.key


class _SampledValues:
    """The sampled tables and the scores of a graph, each with what sampled its rows."""

    def __init__(self, types: Mapping[str, Type]) -> None:
        self.types = types
        self.tables: dict[str, str] = {}
        self.scores: dict[str, str] = {}
        self.computed: set[str] = set()
        """The scores that are computed of others."""
        self.written: dict[str, str] = {}
        """Texts of sampled rows, and texts that name them."""
        self.judged: dict[str, str] = {}
        """For what is sampled for such a text, whose rows it judges."""
        self.verdicts: dict[str, str] = {}
        """Texts of what judges rows."""

    def collect_graph(self, graph: Graph) -> None:
        """Collect those of a graph and of its regions."""
        for node in graph.nodes:
            op = NODES[node.op]
            if op.generates:
                self.tables[node.outputs[0].name] = key = str(node.attr("key"))
                if node.inputs[1] in self.written:
                    self.judged[key] = self.written[node.inputs[1]]
            elif node.op in ("compose", "joined"):
                named = [self.written[name] for name in node.inputs if name in self.written]
                self.written.update({node.name: named[-1]} if named else {})
            elif op.scores or op.is_column or op.foreign and not op.part_of:
                self.collect_given_scores(node)
            elif op.chooses == 0:
                for source, value in zip(node.inputs[1:], node.outputs, strict=False):
                    self.track_alias(source, value.name)
            elif op.has_body:
                self.collect_computed_scores(node)
            for region in node.regions:
                self.collect_graph(region)
            if node.regions:
                for inside, value in node.exported_values:
                    self.track_alias(inside, value.name)

    def track_alias(self, source: str, name: str) -> None:
        """Note that a value is the same table or score as its source."""
        for collected in (self.tables, self.scores):
            if source in collected:
                collected[name] = collected[source]
        if source in self.computed:
            self.computed.add(name)

    def collect_given_scores(self, node: Node) -> None:
        """Collect the floats that the user's code or a reward model gives for rows, or an environment for turns."""
        source = table_of(node)
        table = self.types.get(source)
        if node.attr("name") == "text" and source in self.tables:
            key = self.tables[source]
            (self.verdicts if key in self.judged else self.written)[node.name] = self.judged.get(key, key)
        for value in node.outputs:
            kind = value.type
            if source not in self.tables or not isinstance(kind, Tensor) or kind.dtype != "float" or kind.axis is None:
                continue
            turn = table.turn if isinstance(table, Table) else None
            if (turn is not None and turn.key == kind.axis.key) if NODES[node.op].selects else not kind.axis.inner:
                self.scores[value.name] = self.tables[source]

    def collect_computed_scores(self, node: Node) -> None:
        """Collect the outputs of a tensor node that are computed of scores row by row."""
        of = {**self.verdicts, **self.scores}
        outputs = {value.name for value in node.outputs}
        for let in node.body:
            kind = let.expr.type
            sampled_by = {of[name] for name in used_names(let.expr) if name in of}
            if kind.axis is None or kind.axis.inner or kind.dtype != "float" or len(sampled_by) != 1:
                continue
            if _stays_in_rows(let.expr, kind.axis):
                [of[let.name]] = sampled_by
                if let.name in outputs:
                    self.scores[let.name] = of[let.name]
                    self.computed.add(let.name)


def _stays_in_rows(expr: Expr, axis: Axis) -> bool:
    """Return whether an expression looks at nothing but a row of an axis and what lies in it."""
    if any(kind.axis is not None and not kind.axis.is_within(axis) for kind in used_names(expr).values()):
        return False
    return all(
        operation.type.axis.is_within(axis)
        if operation.type.axis is not None
        else all(arg.type.axis is None for arg in operation.args)
        for operation in operations_in(expr)
    )


def _name_in_program(value: str) -> str:
    """Return the name that a value has in the program: the compiler numbers those that stand for the same name."""
    return ".".join(part for part in value.split(".") if not part.isdigit())


# Gathering


@dataclass(frozen=True)
class ShownSamples:
    """What is shown of a step's rows."""

    samples: tuple[Sample, ...] = ()
    """Some of them, in the order of the rows."""
    spreads: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """For each score how those of all rows spread: see `quantiles`. Two tables' scores of one name are told apart by
    the table's."""


def read_shown_samples(tables: Iterable[SampledTable], frame: Frame, most: int, read: RowReader) -> ShownSamples:
    """Return what is shown of a finished step's frame, of at most so many rows. Of the rows that are not shown only the
    scores are read."""
    here = [table for table in tables if table.value in frame.values and frame.rows[table.axis].ids is not None]
    samples: list[Sample] = []
    spreads: dict[str, list[float]] = {}
    for table in here:
        rows, scores = _rows_of(table, frame, max(1, most // len(here)), read)
        samples += rows
        for name, values in scores.items():
            spreads[f"{table.name}.{name}" if name in spreads else name] = quantiles(values)
    return ShownSamples(tuple(samples), {name: spread for name, spread in spreads.items() if spread})


QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
"""The shares of rows that lie at or below the numbers of a spread."""


def quantiles(values: Any) -> list[float]:
    """Return how numbers spread, by `QUANTILES`: the least, the middle one, the greatest among them; what is no number
    is left out. Empty where nothing is left."""
    numbers = np.asarray(values, dtype=np.float64)
    numbers = numbers[np.isfinite(numbers)]
    return [round(float(number), 6) for number in np.quantile(numbers, QUANTILES)] if len(numbers) else []


FEW = 4
"""Texts of all rows are read with their scores where there are at most so many times those that are shown."""


def _rows_of(table: SampledTable, frame: Frame, most: int, read: RowReader) -> tuple[list[Sample], dict[str, Any]]:
    named = {name: value for name, value in table.scores if value in frame.values}
    wanted = [frame.rows[table.axis].ids, *(frame.values[value] for value in named.values())]
    count, texts = frame.row_count(table.axis), list[RowTexts]()
    if count <= FEW * most:
        # What is sent in vain costs less than to ask twice.
        (ids, *numbers), texts = read.values_and_texts(wanted, frame.values[table.value])
    else:
        ids, *numbers = read.fetch_values(wanted)
    scores = dict(zip(named, numbers, strict=True))
    reward = None if table.reward not in scores else scores[table.reward].tolist()
    places = choose_shown_rows(ids, reward, most)
    if texts:
        rows = [texts[place] for place in places]
    else:
        rows = read.fetch_texts(_picked(table, frame, np.array(places, dtype=np.int64)))
    samples = []
    for place, row in zip(places, rows, strict=True):
        given = {name: float(values[place]) for name, values in scores.items()}
        total = row.reward if reward is None else float(reward[place])
        if reward is None and total is not None:
            given = {**given, "reward": total}
        samples.append(Sample(table.name, ids[place], row.prompt, row.answer, total, given, row.length, row.version))
    return samples, scores


def _picked(table: SampledTable, frame: Frame, places: np.ndarray) -> Any:
    """Return some rows of a table, wherever these are."""
    value = frame.values[table.value]
    if isinstance(value, RemoteEntries):
        return value.pick(places)
    return frame.slice_rows(table.axis, places, [table.value])[0].values[table.value]


def row_texts(table: TableData, decode: Decode) -> list[RowTexts]:
    """Return what a person reads of the rows of a table that is in this process."""
    sequences = table.sequences
    assert sequences is not None
    answers = [tokens[start:] for tokens, start in zip(sequences.rows(), sequences.first_scored(), strict=True)]
    texts = decode(table.owner, answers)
    versions = table.columns[OLDEST if OLDEST in table.columns else "version"].tolist()
    counts = sequences.scored_counts().tolist()
    rows = zip(
        _prompts_with_openings(table), texts, counts, versions, _rewards_of_episodes(table, len(texts)), strict=True
    )
    return [RowTexts(*row) for row in rows]


def _prompts_with_openings(table: TableData) -> Sequence[Any]:
    """Return what each row begins with; of an episode with what its environment says before the first turn."""
    if "turns" not in table.columns:
        return table.prompts
    said, shown, start = table.columns["observation"], list[Any](), 0
    for prompt, turns in zip(table.prompts, table.columns["turns"].tolist(), strict=True):
        opening = said[start] if turns else ""
        start += turns
        if opening and isinstance(prompt, str):
            shown.append(prompt + opening)
        elif opening and all(isinstance(message, Mapping) for message in prompt):
            shown.append([*prompt, {"role": "user", "content": opening}])
        else:
            shown.append(prompt)
    return shown


def _rewards_of_episodes(table: TableData, count: int) -> list[float | None]:
    """Return the sum of the rewards of each row's turns; None of rows without turns."""
    if "turns" not in table.columns:
        return [None] * count
    parts = table.columns["reward"].split(table.columns["turns"].tolist())
    return [float(part.sum()) for part in parts]


# Choosing


def choose_shown_rows(ids: Sequence[RowId], reward: Sequence[float] | None, most: int) -> list[int]:
    """Return the places of at most so many rows, ascending: a quarter of them are the best, a quarter the worst, and
    the rest are those of prompts that depend on nothing but the prompt, so that they come again when it does."""
    count = len(ids)
    if count <= most:
        return list(range(count))
    kept: dict[int, None] = {}
    if reward is not None:
        ranked = ranking(reward)
        share = max(1, most // 4)
        kept = dict.fromkeys([*ranked[:share], *ranked[::-1][:share]][:most])
    groups: dict[tuple[Any, ...], list[int]] = {}
    for place, row in enumerate(ids):
        groups.setdefault((row[0], row[2]), []).append(place)
    marks = {prompt: hashlib.blake2b(repr(prompt).encode(), digest_size=8).digest() for prompt in groups}
    for place in (place for prompt in sorted(groups, key=marks.__getitem__) for place in groups[prompt]):
        if len(kept) >= most:
            break
        kept[place] = None
    return sorted(kept)


def ranking(reward: Sequence[float | None]) -> list[int]:
    """Return the places of rewards, the best first; what is no number comes last. Equal ones stay in order."""

    # An array of numbers and None has None as NaN.
    numbers = np.asarray(reward, dtype=np.float64)
    order: list[int] = np.argsort(-np.where(np.isnan(numbers), -np.inf, numbers), kind="stable").tolist()
    return order
