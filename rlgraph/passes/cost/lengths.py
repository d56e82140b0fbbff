"""Describes how long rows are: a distribution of lengths in tokens, and its text form.

1024                  all of this length
mean=350, p99=1500    log-normal with this mean; 1 row of 100 is longer than 1500
p50=300, p99=1500     log-normal with this median
lengths.txt           a file: a number on each line, or a list in JSON

"""

from __future__ import annotations

import json
import math
import os
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from rlgraph.errors import Diagnostic, ProgramError, Source, Span, did_you_mean
from rlgraph.errors.source_files import read_source
from rlgraph.passes.memo import get_or_compute

if TYPE_CHECKING:
    import numpy as np

BAD_TEXT = "E0926"
IMPOSSIBLE = "E0927"
BAD_FILE = "E0928"

STEPS = 256
"""The number of equal shares of the rows that represent a distribution."""

LONGEST = 1_000_000_000

LARGEST_BYTES = 64 << 20
"""The most bytes of a file with a length for each row."""

TAIL = 6.0
"""How many times their median those rows are long that 1 of 100 exceeds, before they are cut: assumed, where a text
says at which length rows are cut and one more number."""

_FORM = (
    "a number, `mean=350, p99=1500`, `p50=300, p99=1500`, `mean=350, max=4096`, or the path of a file with a length on "
    "each line"
)
_PERCENTILE = re.compile(r"p(\d+(?:\.\d+)?)")


@dataclass(frozen=True)
class Lengths:
    """A distribution of lengths: the mean length of each of equal shares of the rows, ascending; one value for a
    constant length."""

    values: tuple[float, ...]
    text: str = field(default="", compare=False)
    """The text as the user would write it, where that is shorter than the values."""

    @classmethod
    def from_lengths(cls, lengths: Iterable[float]) -> Lengths:
        """Return the distribution of given rows. More than `STEPS` rows become `STEPS` equal shares; the mean
        stays."""
        values = [*lengths] or [0.0]
        return cls(_equal_shares(values) if len(values) > STEPS else tuple(sorted(values)))

    @classmethod
    def from_array(cls, lengths: np.ndarray) -> Lengths:
        """Return `from_lengths` of an array [rows]."""
        return cls(_equal_shares(lengths)) if len(lengths) > STEPS else cls.from_lengths(lengths.tolist())

    @classmethod
    def lognormal(cls, **given: float) -> Lengths:
        """Return a log-normal distribution with two of a mean and percentiles: `mean=350, p99=1500`. Raises ValueError
        if none has these."""
        return _lognormal(given)

    @cached_property
    def mean(self) -> float:
        """Return the mean length."""
        return sum(self.values) / len(self.values)

    @cached_property
    def mean_square(self) -> float:
        """Return the mean of the squared lengths."""
        return sum(value * value for value in self.values) / len(self.values)

    @cached_property
    def standard_deviation(self) -> float:
        """Return the standard deviation."""
        return math.sqrt(max(0.0, self.mean_square - self.mean * self.mean))

    @property
    def longest(self) -> float:
        """Return the greatest length."""
        return self.values[-1]

    def quantile(self, share: float) -> float:
        """Return the length that this share of the rows does not exceed, interpolated linearly between the middles of
        the shares."""
        place = share * len(self.values) - 0.5
        low = max(0, min(len(self.values) - 1, int(place)))
        high = min(len(self.values) - 1, low + 1)
        part = max(0.0, min(1.0, place - low))
        return self.values[low] + (self.values[high] - self.values[low]) * part

    def quantile_points(self, points: int) -> tuple[float, ...]:
        """Return so many lengths, ascending, each of which represents as many rows."""
        return get_or_compute(
            self._spread, points, lambda: tuple(self.quantile((index + 0.5) / points) for index in range(points))
        )

    @cached_property
    def _spread(self) -> dict[int, tuple[float, ...]]:
        """Cache the results of `quantile_points` by the number of points."""
        return {}

    def capped(self, limit: float) -> Lengths:
        """Return the distribution with longer rows cut to the limit."""
        return Lengths(tuple(min(value, limit) for value in self.values))

    def longer(self, tokens: float) -> Lengths:
        """Return the distribution with so many tokens more in each row."""
        return Lengths(tuple(value + tokens for value in self.values)) if tokens else self

    def shortest_of_groups(self, count: int, of: int) -> Lengths:
        """Return the lengths of the `count` rows that end first in each group of `of` rows: on average, the lower
        order statistics."""
        return self._mixed(lambda below: sum(min(k, count) * p for k, p in _binomial(of, below)) / count)

    def group_lengths_cut_after(self, count: int, of: int) -> Lengths:
        """Return the lengths of groups of `of` rows, all of which end when `count` of each group have."""

        def fraction_ended(below: float) -> float:
            return sum((min(k, count) + (of - count) * (k >= count)) * p for k, p in _binomial(of, below)) / of

        return self._mixed(fraction_ended)

    def _mixed(self, ended: Callable[[float], float]) -> Lengths:
        """Return the lengths of a reweighted distribution. `ended` maps a share of these rows to the share of the new
        rows that do not exceed the same length."""
        count = len(self.values)
        if count == 1:
            return self
        places = [ended(number / count) * STEPS for number in range(count + 1)]
        values, total, share = [], 0.0, 0.0
        for value, low, high in zip(self.values, places, places[1:], strict=False):
            # A share that spans several values has their mean.
            while low < high:
                part = min(high - low, 1 - share)
                total, share, low = total + part * value, share + part, low + part
                if share > 1 - 1e-9:
                    values.append(total / share)
                    total, share = 0.0, 0.0
        return Lengths(tuple(values + [self.values[-1]] * (STEPS - len(values))))

    def fraction_longer_than(self, length: float) -> float:
        """Return the share of rows that are longer."""
        return 1 - bisect_right(self.values, length) / len(self.values)

    @property
    def tail_is_assumed(self) -> bool:
        """Return whether its text says at which length rows are cut, and nothing of how long they would be."""
        return "max=" in self.text

    @property
    def fraction_cut(self) -> float:
        """Return the share of rows that are as long as the longest."""
        return sum(value == self.values[-1] for value in self.values) / len(self.values)

    def to_text(self) -> str:
        """Return a text without a file from which `parse_lengths` makes the same lengths."""
        return self.text or json.dumps(self.values)


@lru_cache(1024)
def largest_excess(replicas: float) -> float:
    """Return by how many standard deviations the largest of so many normal sums lies above their mean, to 2% (Blom,
    Statistical Estimates and Transformed Beta-Variables, 1958). `replicas` counts those that have as many rows as the
    fullest one, so that more replicas with as many rows each are not slower."""
    return NormalDist().inv_cdf((replicas - 0.375) / (replicas + 0.25))


def parse_lengths(text: str, files: bool = True, unit: str = "tokens", option: str = "--lengths") -> Lengths:
    """Return the lengths that the user's text describes (see above). Raises ProgramError with a caret under what is
    wrong. files: the text may name a file, as the user's own text may, but not one that comes from someone else. unit:
    what is counted, of the rows or of other things. option: where the text is from."""
    source = Source(option, " ".join(text.splitlines()))
    plain = source.text.strip()
    if not plain:
        raise _wrong(BAD_TEXT, "there are no lengths in an empty text", _span(source, 0, 1), _FORM)
    if plain.startswith("["):
        return _of_list(source, unit)
    if "=" in plain and not (files and os.path.isfile(plain)):
        return _of_pair(source, unit)
    try:
        float(plain)
    except ValueError:
        if files:
            return _of_file(plain, unit)
    return Lengths((_length(plain, _span(source, *_inside(source.text)), BAD_TEXT, unit),), plain)


def _of_pair(source: Source, unit: str) -> Lengths:
    """Return the log-normal distribution of a text with two of a mean and percentiles."""
    numbers: dict[str, float] = {}
    words = []
    for part in re.finditer(r"[^,]+", source.text):
        begin, end = (part.start() + place for place in _inside(part[0]))
        name, _, value = (word.strip() for word in part[0].partition("="))
        span = _span(source, begin, end)
        if name not in ("mean", "max") and not _percent(name):
            legal = "there are `mean`, percentiles (`p50`, `p90`, `p99`, `p99.9`), and `max`, at which rows are cut"
            hint = did_you_mean(name, ("mean", "max", "p50", "p90", "p99")) or legal
            raise _wrong(BAD_TEXT, f"`{name}` says nothing of lengths", _span(source, begin, begin + len(name)), hint)
        if name in numbers or _percent(name) in filter(None, map(_percent, numbers)):
            raise _wrong(BAD_TEXT, f"`{name}` is given twice", span, "a distribution has two different numbers")
        numbers[name] = _length(value, span, BAD_TEXT, unit)
        words.append(f"{name}={value}")
    full_span = _span(source, *_inside(source.text))
    if len(numbers) != 2:
        hint = "two numbers make a distribution, as in `mean=350, p99=1500`; a constant length is a number alone"
        raise _wrong(BAD_TEXT, f"a distribution needs two numbers, not {len(numbers)}", full_span, hint)
    try:
        lengths = _cut(numbers) if "max" in numbers else _lognormal(numbers)
    except ValueError as error:
        message, _, hint = str(error).partition(": ")
        raise _wrong(IMPOSSIBLE, message, full_span, hint) from None
    return Lengths(lengths.values, ", ".join(words))


def _of_list(source: Source, unit: str) -> Lengths:
    """Return the lengths of a list in JSON, in a file or in the text itself."""
    try:
        numbers = json.loads(source.text)
    except (ValueError, RecursionError) as error:
        line, column = getattr(error, "lineno", 1), getattr(error, "colno", 1)
        span = Span(source, line, column, line, column + 1)
        raise _wrong(BAD_FILE, f"this is no list in JSON: {getattr(error, 'msg', error)}", span, _FORM) from None
    full_span = Span(source, 0, 0, 0, 0) if "\n" in source.text else _span(source, *_inside(source.text))
    if not isinstance(numbers, list) or not numbers:
        raise _wrong(BAD_FILE, "there are no lengths in the list", full_span, "it has a number for each row")
    return Lengths.from_lengths(
        _length(value, full_span, BAD_FILE, unit, f"number {place}: ") for place, value in enumerate(numbers, 1)
    )


def _of_file(path: str, unit: str) -> Lengths:
    """Return the lengths that a file lists."""
    missing = f"`{path}` is no length, and there is no such file"
    source = read_source(path, BAD_FILE, f"lengths are {_FORM}", missing, LARGEST_BYTES)
    if source.text.lstrip().startswith("["):
        return _of_list(source, unit)
    if source.text.startswith('{"rlgraph_lengths"'):
        message, hint = (
            f"`{path}` has more than one list of lengths",
            f"what `rlgraph lengths` wrote is `--lengths {path}`",
        )
        raise _wrong(BAD_FILE, message, Span(source, 0, 0, 0, 0), hint)
    lengths = []
    for number, line in enumerate(source.text.splitlines(), 1):
        if line.strip():
            begin, end = _inside(line)
            lengths.append(_length(line.strip(), Span(source, number, begin + 1, number, end + 1), BAD_FILE, unit))
    if not lengths:
        raise _wrong(BAD_FILE, f"`{path}` has no lengths", Span(source, 0, 0, 0, 0), "write a number on each line")
    return Lengths.from_lengths(lengths)


def _length(value: Any, span: Span, code: str, unit: str, where: str = "") -> float:
    """Return the value as a number of tokens. Raises ProgramError with the code if it is none."""
    shown = value if isinstance(value, str) else json.dumps(value)
    try:
        tokens = float(shown)
    except ValueError:
        raise _wrong(code, f"{where}`{shown[:40]}` is no number", span, f"this is counted in {unit}") from None
    if not 0 <= tokens <= LONGEST:
        raise _wrong(code, f"{where}`{shown[:40]}` is no length", span, f"it is 0 to {LONGEST:,} {unit}")
    return tokens


def _lognormal(given: dict[str, float]) -> Lengths:
    """Return the distribution with two of a mean and percentiles. Raises ValueError, with a hint behind `: `, where
    none has them.

    With the mean m and deviation s of the logarithm, a percentile x lies z deviations out: ln x = m + z s; the mean is
    exp(m + s^2 / 2).
    """
    if not all(given.values()):
        raise ValueError("a log-normal distribution has no length of 0: a constant length is a number alone")
    percentiles = sorted((_percent(name) / 100, name) for name in given if name != "mean")
    share, name = percentiles[0]
    z, x = NormalDist().inv_cdf(share), given[name]
    if "mean" in given:
        s = _deviation(given["mean"], x, z, name)
    else:
        higher, higher_name = percentiles[1]
        if given[higher_name] < x:
            raise ValueError(f"`{higher_name}` is less than `{name}`: more rows are shorter than the higher percentile")
        s = math.log(given[higher_name] / x) / (NormalDist().inv_cdf(higher) - z)
    logarithm = math.log(given["mean"]) if "mean" in given else math.log(x) - z * s + s * s / 2
    if logarithm > math.log(LONGEST):
        raise ValueError(
            f"the mean of such a distribution is more than {LONGEST:,} tokens: the percentiles lie too far apart"
        )
    mean = given.get("mean", math.exp(logarithm))
    return Lengths(_shares(mean, s)) if s else Lengths((mean,))


def _cut(given: dict[str, float]) -> Lengths:
    """Return the distribution with a mean, or a percentile, after rows are cut at `max`: of log-normal ones with a tail
    of `TAIL`. Raises ValueError, with a hint behind `: `, where none has them."""
    limit = given["max"]
    [(name, told)] = [(name, value) for name, value in given.items() if name != "max"]
    if not told or not limit:
        raise ValueError("a log-normal distribution has no length of 0: a constant length is a number alone")
    if told > limit:
        raise ValueError(f"`{name}` is more than `max`: rows are cut at `max`, which is {limit:g}")
    if told == limit:
        return Lengths((limit,))
    s = math.log(TAIL) / NormalDist().inv_cdf(0.99)
    if name != "mean":
        median = told / math.exp(s * NormalDist().inv_cdf(_percent(name) / 100))
        return _lognormal({"p50": median, "p99": TAIL * median}).capped(limit)
    shares = _lognormal({"p50": 1.0, "p99": TAIL})
    low, high = 0.0, limit / shares.values[0]
    for _ in range(60):
        middle = (low + high) / 2
        short = sum(min(middle * value, limit) for value in shares.values) < told * len(shares.values)
        low, high = (middle, high) if short else (low, middle)
    return Lengths(tuple(min(high * value, limit) for value in shares.values))


def _deviation(mean: float, x: float, z: float, name: str) -> float:
    """Return s from ln(x / mean) = z s - s^2 / 2: the smaller root, with the shorter tail, where there are two."""
    if (x - mean) * z < 0 or (z == 0 and x > mean):
        side = "at least" if z > 0 else "at most"
        raise ValueError(f"`{name}` and `mean` contradict each other: `{name}` is {side} the mean, which is {mean:g}")
    inside = z * z - 2 * math.log(x / mean)
    if inside < 0:
        most = mean * math.exp(z * z / 2)
        raise ValueError(f"no log-normal distribution with this mean has such a tail: `{name}` is at most {most:g}")
    return z - math.sqrt(inside) if z > 0 else z + math.sqrt(inside)


def _shares(mean: float, s: float) -> tuple[float, ...]:
    """Return the mean of each share: that of a log-normal between two bounds is the total mean times the mass of a
    normal that lies s further down."""
    bounds = [-math.inf, *(NormalDist().inv_cdf(number / STEPS) for number in range(1, STEPS)), math.inf]
    below = [0.5 * math.erfc((s - bound) / math.sqrt(2)) for bound in bounds]
    return tuple(sorted(STEPS * mean * (high - low) for low, high in zip(below, below[1:], strict=False)))


def _binomial(count: int, chance: float) -> Iterator[tuple[int, float]]:
    """Yield how many of `count` rows have a property, with the probability; counts that are all but impossible are
    left out."""
    if chance in (0, 1):
        yield round(count * chance), 1.0
        return
    near = 10 * math.sqrt(count * chance * (1 - chance)) + 10
    for k in range(max(0, int(count * chance - near)), min(count, int(count * chance + near)) + 1):
        ways = math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1)
        yield k, math.exp(ways + k * math.log(chance) + (count - k) * math.log1p(-chance))


def _percent(name: str) -> float:
    """Return 99 for `p99`, and 0 for what is no percentile."""
    match = _PERCENTILE.fullmatch(name)
    return float(match[1]) if match and 0 < float(match[1]) < 100 else 0.0


def _equal_shares(values: Sequence[float] | np.ndarray) -> tuple[float, ...]:
    """Return the mean of each of `STEPS` equal shares of more rows. Each row counts as `STEPS` pieces, so that rows
    that lie in two shares are divided."""
    import numpy as np  # What draws a plan loads this module, and needs no numbers.

    ordered, pieces = np.sort(values), len(values)
    bounds, cut = np.divmod(np.arange(STEPS + 1) * pieces, STEPS)
    whole, parts = np.add.reduceat(ordered, bounds[:-1]), cut * ordered[np.minimum(bounds, pieces - 1)]
    return tuple(((STEPS * whole - parts[:-1] + parts[1:]) / pieces).tolist())


def _inside(text: str) -> tuple[int, int]:
    """Return where a text begins and ends without the blanks around it."""
    return len(text) - len(text.lstrip()), len(text.rstrip())


def _span(source: Source, begin: int, end: int) -> Span:
    return Span(source, 1, begin + 1, 1, end + 1)


def _wrong(code: str, message: str, span: Span, hint: str) -> ProgramError:
    return ProgramError(Diagnostic(code, message, span, hint))
