"""`mix(a, b, weights=[0.8, 0.2], batch=64)`: the rows of several sources, in these shares.

Each source has its own epochs: one that ends begins again, in another order, while the others go on. Without weights
a source has as many rows in the mixture as it has rows, so that all are read equally often.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import accumulate
from math import isfinite
from pathlib import Path
from typing import Any

from rlgraph.columns import Column, EmptyValues
from rlgraph.data import sources
from rlgraph.data.base import DataSource, Rows, make_source, require_full_batch, rows_with_defaults
from rlgraph.data.concatenated import concatenate_rows
from rlgraph.data.mixture import Mixture, Turns
from rlgraph.data.streamed_mixture import StreamedMixture
from rlgraph.errors import Diagnostic, ProgramError, count_phrase
from rlgraph.user_code.files import SearchFolders
from rlgraph.user_code.spec import BAD_ARGUMENT, CallSpec, refuse_unknown_options
from rlgraph.user_code.worker import Workers

BAD_WEIGHTS = "E0766"
NOT_MIXED = "E0767"
OPTIONS = ("batch", "shuffle", "max_prompt", "overlong", "defaults", "weights")
_OF_THE_MIXTURE = ("max_prompt", "overlong")
_NEARLY = 1e-6
"""By how much the sum of weights may miss 1: a third has no end."""


def check_arguments(spec: CallSpec) -> None:
    """Raise an error for wrong arguments, those of its sources too."""
    if len(spec.args) < 2 or not all(isinstance(part, Mapping) for part in spec.args):
        hint = "as in `mix(a, b, weights=[0.8, 0.2], batch=64)`, where `a` and `b` are `data`"
        raise ProgramError(Diagnostic(BAD_ARGUMENT, "`mix` takes two or more data sources", spec.span, hint))
    refuse_unknown_options(spec, OPTIONS)
    _weights(spec)
    for part in _parts(spec):
        place = part.span if part.span.line else spec.span
        if part.kind == "mix":
            hint = "name the sources of the inner one, each with its weight times that of the mixture"
            raise ProgramError(Diagnostic(NOT_MIXED, "a mixture cannot be mixed once more", place, hint))
        option = next((name for name in _OF_THE_MIXTURE if name in part.options), None)
        if option is not None:
            message = f"`{option}` of {_shown(part)} is not looked at where it is mixed"
            hint = f"say it of all rows: `mix(..., {option}=...)`"
            raise ProgramError(Diagnostic(NOT_MIXED, message, part.argument_span(option), hint))
        sources.check_source(part)


def open_source(spec: CallSpec, folders: SearchFolders, workers: Workers | None = None) -> DataSource:
    """Open the sources, and put their rows one behind the other."""
    parts = [sources.open_source(part, folders, workers) for part in _parts(spec)]
    rows = [part.rows for part in parts if isinstance(part.rows, Rows)]
    if len(rows) < len(parts):
        return _streamed(spec, parts)
    ends = [*accumulate(map(len, rows))]
    kept = [
        end - len(all_rows) + n
        for end, all_rows, part in zip(ends, rows, parts, strict=True)
        for n in part.row_numbers or ()
    ]
    columns = merged_columns([(_shown(part.spec), part.columns or {}) for part in parts])
    name = " and ".join(_shown(part.spec) for part in parts)
    made = make_source(spec, concatenate_rows(rows), name, columns)
    counts = [part.row_count or 0 for part in parts]
    weights = _weights(spec) or [Fraction(count, sum(counts)) for count in counts]
    mixture = Mixture(ends, weights, [part.shuffle for part in parts])
    return require_full_batch(replace(made, kept=kept if len(kept) < ends[-1] else None, mixture=mixture), name)


def _streamed(spec: CallSpec, parts: Sequence[DataSource]) -> DataSource:
    """Return a mixture of sources of which some are streams. Raises ProgramError."""
    stream = next(_shown(part.spec) for part in parts if not isinstance(part.rows, Rows))
    weights, one_by_one = _weights(spec), f"{stream} yields its rows one after the other"
    if weights is None:
        share = f"{1 / len(parts):.4g}"
        hint = f"say its share: `weights=[{', '.join([share] * len(parts))}]` for example"
        message = f"{one_by_one}, so nobody knows beforehand how many it has"
        raise ProgramError(Diagnostic(BAD_WEIGHTS, message, spec.span, hint))
    if spec.options.get("shuffle"):
        hint = "leave `shuffle` out: sources that have all their rows are shuffled"
        message = f"{one_by_one}, so they cannot be shuffled"
        raise ProgramError(Diagnostic(BAD_ARGUMENT, message, spec.argument_span("shuffle"), hint))
    if spec.options.get("defaults"):
        parts = [replace(part, rows=rows_with_defaults(spec, part.rows)) for part in parts]
    rows = StreamedMixture(parts, Turns(weights), spec.options.get("shuffle", True))
    plain = {name: value for name, value in spec.options.items() if name not in ("shuffle", "defaults")}
    name = f"what is mixed with {stream}"
    return replace(make_source(replace(spec, options=plain), rows, name), spec=spec)


def columns(spec: CallSpec, folders: SearchFolders) -> Mapping[str, Column] | None:
    """Return what the columns of all sources hold; None where one of them is not known yet."""
    known = [(_shown(part), sources.source_columns(part, folders)) for part in _parts(spec)]
    found = [(name, columns) for name, columns in known if columns is not None]
    return merged_columns(found) if len(found) == len(known) else None


def files(spec: CallSpec, folders: SearchFolders) -> list[Path]:
    """Return the files of all sources."""
    return [file for part in _parts(spec) for file in sources.source_files(part, folders)]


def merged_columns(parts: Sequence[tuple[str, Mapping[str, Column]]]) -> dict[str, Column]:
    """Return what columns hold in all parts together: a column that a part does not have is missing in its rows."""
    names = dict.fromkeys(name for _, columns in parts for name in columns)
    return {name: _merged([(part, columns.get(name)) for part, columns in parts]) for name in names}


def _merged(parts: Sequence[tuple[str, Column | None]]) -> Column:
    first: dict[str, str] = {}
    for part, column in parts:
        for kind, place in ({"missing": f"every row of {part}"} if column is None else column.first).items():
            first.setdefault(kind, place)
    there = [column for _, column in parts if column is not None]
    sizes = [column.longest for column in there if "text" in column.first or column.longest is not None]
    longest = None if None in sizes or not sizes else max(size for size in sizes if size is not None)
    objects = [(part, column.fields) for part, column in parts if column is not None and "object" in column.first]
    known = [(part, fields) for part, fields in objects if fields is not None]
    fields = merged_columns(known) if objects and len(known) == len(objects) else None
    return Column(first, longest, fields, _all_empty([column.empty for column in there]))


def _all_empty(parts: Sequence[Mapping[str, EmptyValues]]) -> dict[str, EmptyValues]:
    """Return what says nothing in all parts together."""
    kinds = dict.fromkeys(kind for part in parts for kind in part)
    found = {kind: [part[kind] for part in parts if kind in part] for kind in kinds}
    return {kind: EmptyValues(sum(each.count for each in held), held[0].first) for kind, held in found.items()}


def _parts(spec: CallSpec) -> list[CallSpec]:
    """Return the sources. How many rows of one are read at a time is said by the mixture."""
    parts = [CallSpec(**part) for part in spec.args]
    return [replace(part, options={**part.options, "batch": 1}) for part in parts]


def _shown(part: CallSpec) -> str:
    return f"'{part.args[0]}'" if part.args and isinstance(part.args[0], str) else f"`{part.kind}`"


def _weights(spec: CallSpec) -> list[Fraction] | None:
    """Return the weights; None where there are none. Raises ProgramError."""
    given: Any = spec.options.get("weights")
    if given is None:
        return None
    example = f"one number above 0 for each source, together 1: `weights=[{', '.join(['...'] * len(spec.args))}]`"
    if not isinstance(given, list) or not all(_number(weight) for weight in given):
        raise _wrong(spec, "`weights` is a list of numbers", example)
    if len(given) != len(spec.args):
        count = f"{count_phrase(len(given), 'weight')} for {count_phrase(len(spec.args), 'source')}"
        raise _wrong(spec, count, example)
    low = next((weight for weight in given if weight <= 0), None)
    if low is not None:
        hint = "leave the source out" if low == 0 else example
        raise _wrong(spec, f"a weight is above 0, and one of these is {low}", hint)
    exact = [Fraction(str(weight)) for weight in given]
    total = sum(exact, Fraction(0))
    if abs(float(total) - 1) > _NEARLY:
        shares = ", ".join(f"{float(weight / total):.4g}" for weight in exact)
        raise _wrong(spec, f"the weights come to {float(total):g}, and not to 1", f"the same shares are `[{shares}]`")
    return [weight / total for weight in exact]


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _wrong(spec: CallSpec, message: str, hint: str) -> ProgramError:
    return ProgramError(Diagnostic(BAD_WEIGHTS, message, spec.argument_span("weights"), hint))
