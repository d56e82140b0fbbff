"""How long rows are: a distribution of lengths in tokens, and how it is said.

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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from statistics import NormalDist
from typing import Any

from rlgraph.errors import Diagnostic, ProgramError, Source, Span, nearest
from rlgraph.files import read_bytes, reason

BAD_TEXT = "E0926"
IMPOSSIBLE = "E0927"
BAD_FILE = "E0928"

STEPS = 256
"""Equal shares of the rows that stand for a distribution."""

LONGEST = 1_000_000_000

LARGEST_BYTES = 64 << 20
"""Of a file with a length for each row."""

_FORM = "a number, `mean=350, p99=1500`, `p50=300, p99=1500`, or the path of a file with a length on each line"
_PERCENTILE = re.compile(r"p(\d+(?:\.\d+)?)")


@dataclass(frozen=True)
class Lengths:
    """The mean length of each of equal shares of the rows, ascending: one value for a constant length."""

    values: tuple[float, ...]
    text: str = field(default="", compare=False)
    """As the user would write it, where that is shorter than the values."""

    @classmethod
    def of(cls, lengths: Iterable[float]) -> Lengths:
        """Of rows that are there. Of more than `STEPS` rows, so many equal shares; the mean stays."""
        found = sorted(lengths) or [0.0]
        if len(found) > STEPS:
            found = [_share(found, number) for number in range(STEPS)]
        return cls(tuple(found))

    @classmethod
    def lognormal(cls, **given: float) -> Lengths:
        """Log-normal, with two of a mean and percentiles: `mean=350, p99=1500`. Raises ValueError where none is so."""
        return _lognormal(given)

    @cached_property
    def mean(self) -> float:
        return sum(self.values) / len(self.values)

    @cached_property
    def square(self) -> float:
        """Mean of the squares."""
        return sum(value * value for value in self.values) / len(self.values)

    @cached_property
    def deviation(self) -> float:
        """The standard deviation."""
        return math.sqrt(max(0.0, self.square - self.mean * self.mean))

    @property
    def longest(self) -> float:
        return self.values[-1]

    def at(self, share: float) -> float:
        """The length that this share of the rows does not exceed, linear between the middles of the shares."""
        place = share * len(self.values) - 0.5
        low = max(0, min(len(self.values) - 1, int(place)))
        high = min(len(self.values) - 1, low + 1)
        part = max(0.0, min(1.0, place - low))
        return self.values[low] + (self.values[high] - self.values[low]) * part

    def spread(self, points: int) -> tuple[float, ...]:
        """So many lengths that stand for as many rows each, the shortest first."""
        if points not in self._spread:
            self._spread[points] = tuple(self.at((index + 0.5) / points) for index in range(points))
        return self._spread[points]

    @cached_property
    def _spread(self) -> dict[int, tuple[float, ...]]:
        """By their number."""
        return {}

    def capped(self, limit: float) -> Lengths:
        """What is longer ends at the limit."""
        return Lengths(tuple(min(value, limit) for value in self.values))

    def first(self, count: int, of: int) -> Lengths:
        """Of groups of `of` rows those that end first, `count` of each: on average, the lower ones of the order
        statistics."""
        return self._mixed(lambda below: sum(min(k, count) * p for k, p in _binomial(of, below)) / count)

    def until(self, count: int, of: int) -> Lengths:
        """Of groups of `of` rows, all of which end when `count` of each have."""

        def ended(below: float) -> float:
            return sum((min(k, count) + (of - count) * (k >= count)) * p for k, p in _binomial(of, below)) / of

        return self._mixed(ended)

    def _mixed(self, ended: Callable[[float], float]) -> Lengths:
        """Lengths that other shares of rows have; `ended`: which share has at most the length that a share of these
        rows does not exceed."""
        count = len(self.values)
        if count == 1:
            return self
        places = [ended(number / count) * STEPS for number in range(count + 1)]
        found, total, share = [], 0.0, 0.0
        for value, low, high in zip(self.values, places, places[1:], strict=False):
            # Shares that lie in several values' have their mean.
            while low < high:
                part = min(high - low, 1 - share)
                total, share, low = total + part * value, share + part, low + part
                if share > 1 - 1e-9:
                    found.append(total / share)
                    total, share = 0.0, 0.0
        return Lengths(tuple(found + [self.values[-1]] * (STEPS - len(found))))

    def over(self, length: float) -> float:
        """The share of rows that are longer."""
        return 1 - bisect_right(self.values, length) / len(self.values)

    def to_text(self) -> str:
        """What `read_lengths` gives the same lengths for, without a file."""
        return self.text or json.dumps(self.values)


def read_lengths(text: str, files: bool = True) -> Lengths:
    """Lengths from what the user says; see above. Raises ProgramError with a caret under what is wrong. files: the text
    may name one, as one of the user's own does, and that of a file of others does not."""
    source = Source("--lengths", " ".join(text.splitlines()))
    plain = source.text.strip()
    if not plain:
        raise _wrong(BAD_TEXT, "there are no lengths in an empty text", _span(source, 0, 1), _FORM)
    if plain.startswith("["):
        return _of_list(source)
    if "=" in plain and not (files and os.path.isfile(plain)):
        return _of_pair(source)
    try:
        float(plain)
    except ValueError:
        if files:
            return _of_file(plain)
    return Lengths((_length(plain, _span(source, *_inside(source.text)), BAD_TEXT),), plain)


def _of_pair(source: Source) -> Lengths:
    given: dict[str, float] = {}
    said = []
    for part in re.finditer(r"[^,]+", source.text):
        begin, end = (part.start() + place for place in _inside(part[0]))
        name, _, value = (word.strip() for word in part[0].partition("="))
        span = _span(source, begin, end)
        if name != "mean" and not _percent(name):
            legal = "there are `mean` and percentiles: `p50`, `p90`, `p99`, `p99.9`"
            hint = nearest(name, ("mean", "p50", "p90", "p99")) or legal
            raise _wrong(BAD_TEXT, f"`{name}` says nothing of lengths", _span(source, begin, begin + len(name)), hint)
        if _percent(name) in map(_percent, given):
            raise _wrong(BAD_TEXT, f"`{name}` is given twice", span, "a distribution has two different numbers")
        given[name] = _length(value, span, BAD_TEXT)
        said.append(f"{name}={value}")
    whole = _span(source, *_inside(source.text))
    if len(given) != 2:
        hint = "two numbers make a distribution, as in `mean=350, p99=1500`; a constant length is a number alone"
        raise _wrong(BAD_TEXT, f"a distribution needs two numbers, not {len(given)}", whole, hint)
    try:
        made = _lognormal(given)
    except ValueError as error:
        message, _, hint = str(error).partition(": ")
        raise _wrong(IMPOSSIBLE, message, whole, hint) from None
    return Lengths(made.values, ", ".join(said))


def _of_list(source: Source) -> Lengths:
    """A list in JSON, in a file or in the text itself."""
    try:
        found = json.loads(source.text)
    except (ValueError, RecursionError) as error:
        line, column = getattr(error, "lineno", 1), getattr(error, "colno", 1)
        span = Span(source, line, column, line, column + 1)
        raise _wrong(BAD_FILE, f"this is no list in JSON: {getattr(error, 'msg', error)}", span, _FORM) from None
    whole = Span(source, 0, 0, 0, 0) if "\n" in source.text else _span(source, *_inside(source.text))
    if not isinstance(found, list) or not found:
        raise _wrong(BAD_FILE, "there are no lengths in the list", whole, "it has a number for each row")
    return Lengths.of(_length(value, whole, BAD_FILE, f"number {place}: ") for place, value in enumerate(found, 1))


def _of_file(path: str) -> Lengths:
    source = _source(path)
    if source.text.lstrip().startswith("["):
        return _of_list(source)
    if source.text.startswith('{"rlgraph_lengths"'):
        message, hint = (
            f"`{path}` has more than one list of lengths",
            f"what `rlgraph lengths` wrote is `--lengths {path}`",
        )
        raise _wrong(BAD_FILE, message, Span(source, 0, 0, 0, 0), hint)
    found = []
    for number, line in enumerate(source.text.splitlines(), 1):
        if line.strip():
            begin, end = _inside(line)
            found.append(_length(line.strip(), Span(source, number, begin + 1, number, end + 1), BAD_FILE))
    if not found:
        raise _wrong(BAD_FILE, f"`{path}` has no lengths", Span(source, 0, 0, 0, 0), "write a number on each line")
    return Lengths.of(found)


def _source(path: str) -> Source:
    try:
        return Source(path, read_bytes(path, LARGEST_BYTES).decode("utf-8-sig"))
    except FileNotFoundError:
        message = f"`{path}` is no length, and there is no such file"
    except UnicodeDecodeError:
        message = f"`{path}` is no text in UTF-8"
    except (OSError, ValueError) as error:
        message = f"`{path}` cannot be read: {reason(error)}"
    raise _wrong(BAD_FILE, message, Span(Source(path, ""), 0, 0, 0, 0), f"lengths are {_FORM}")


def _length(value: Any, span: Span, code: str, where: str = "") -> float:
    shown = value if isinstance(value, str) else json.dumps(value)
    try:
        found = float(shown)
    except ValueError:
        raise _wrong(code, f"{where}`{shown[:40]}` is no number", span, "lengths are counted in tokens") from None
    if not 0 <= found <= LONGEST:
        raise _wrong(code, f"{where}`{shown[:40]}` is no length", span, f"it is 0 to {LONGEST:,} tokens")
    return found


def _lognormal(given: dict[str, float]) -> Lengths:
    """Of two of a mean and percentiles. Raises ValueError, with a hint behind `: `, where no distribution has them.

    With the logarithm's mean m and deviation s, a percentile x lies z deviations out: ln x = m + z s; the mean is
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
        higher, other = percentiles[1]
        if given[other] < x:
            raise ValueError(f"`{other}` is less than `{name}`: more rows are shorter than the higher percentile")
        s = math.log(given[other] / x) / (NormalDist().inv_cdf(higher) - z)
    logarithm = math.log(given["mean"]) if "mean" in given else math.log(x) - z * s + s * s / 2
    if logarithm > math.log(LONGEST):
        raise ValueError(
            f"the mean of such a distribution is more than {LONGEST:,} tokens: the percentiles lie too far apart"
        )
    mean = given.get("mean", math.exp(logarithm))
    return Lengths(_shares(mean, s)) if s else Lengths((mean,))


def _deviation(mean: float, x: float, z: float, name: str) -> float:
    """s from ln(x / mean) = z s - s^2 / 2: the smaller root, with the shorter tail, where there are two."""
    if (x - mean) * z < 0 or (z == 0 and x > mean):
        side = "at least" if z > 0 else "at most"
        raise ValueError(f"`{name}` and `mean` contradict each other: `{name}` is {side} the mean, which is {mean:g}")
    inside = z * z - 2 * math.log(x / mean)
    if inside < 0:
        most = mean * math.exp(z * z / 2)
        raise ValueError(f"no log-normal distribution with this mean has such a tail: `{name}` is at most {most:g}")
    return z - math.sqrt(inside) if z > 0 else z + math.sqrt(inside)


def _shares(mean: float, s: float) -> tuple[float, ...]:
    """Mean of each share: that of a log-normal between two bounds is the whole mean times a piece of a normal one that
    lies s further down."""
    bounds = [-math.inf, *(NormalDist().inv_cdf(number / STEPS) for number in range(1, STEPS)), math.inf]
    below = [0.5 * math.erfc((s - bound) / math.sqrt(2)) for bound in bounds]
    return tuple(sorted(STEPS * mean * (high - low) for low, high in zip(below, below[1:], strict=False)))


def _binomial(count: int, chance: float) -> Iterator[tuple[int, float]]:
    """How many of so many rows something is true of, with its probability; what is all but impossible is left out."""
    if chance in (0, 1):
        yield round(count * chance), 1.0
        return
    near = 10 * math.sqrt(count * chance * (1 - chance)) + 10
    for k in range(max(0, int(count * chance - near)), min(count, int(count * chance + near)) + 1):
        ways = math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1)
        yield k, math.exp(ways + k * math.log(chance) + (count - k) * math.log1p(-chance))


def _percent(name: str) -> float:
    """Of `p99` 99; 0 for what is no percentile."""
    found = _PERCENTILE.fullmatch(name)
    return float(found[1]) if found and 0 < float(found[1]) < 100 else 0.0


def _share(ordered: list[float], number: int) -> float:
    """Mean of one of `STEPS` equal shares. Rows that lie in two are divided: counted in pieces, each row has
    `STEPS`."""
    pieces = len(ordered)
    first, begins = divmod(number * pieces, STEPS)
    last, ends = divmod((number + 1) * pieces, STEPS)
    inside = STEPS * sum(ordered[first:last]) - begins * ordered[first]
    return (inside + (ends * ordered[last] if ends else 0.0)) / pieces


def _inside(text: str) -> tuple[int, int]:
    """Where a text begins and ends without the blanks around it."""
    return len(text) - len(text.lstrip()), len(text.rstrip())


def _span(source: Source, begin: int, end: int) -> Span:
    return Span(source, 1, begin + 1, 1, end + 1)


def _wrong(code: str, message: str, span: Span, hint: str) -> ProgramError:
    return ProgramError(Diagnostic(code, message, span, hint))
