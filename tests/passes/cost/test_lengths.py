"""Distributions of lengths, against rows that are sampled."""

from __future__ import annotations

import json
import math
import random
import re
from pathlib import Path
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlgraph.errors import ProgramError
from rlgraph.passes.cost.lengths import STEPS, Lengths, parse_lengths
from rlgraph.passes.cost.workload import Workload

ROWS = st.lists(st.integers(0, 100_000), min_size=1, max_size=1000)


def sampled(mean: float, p99: float, rows: int) -> tuple[list[float], float]:
    """Rows of the log-normal distribution, and the deviation of their logarithm. It is found by bisection here."""
    z = NormalDist().inv_cdf(0.99)
    low, high = 0.0, z
    for _ in range(100):
        s = (low + high) / 2
        low, high = (s, high) if mean * math.exp(z * s - s * s / 2) < p99 else (low, s)
    generator = random.Random(5)
    return sorted(generator.lognormvariate(math.log(mean) - s * s / 2, s) for _ in range(rows)), s


@pytest.mark.parametrize(("mean", "p99"), [(350, 1500), (100, 130), (2000, 20_000)])
def test_a_log_normal_is_that_of_sampled_rows(mean: float, p99: float) -> None:
    rows, s = sampled(mean, p99, 200_000)
    lengths = parse_lengths(f"mean={mean}, p99={p99}")
    count = len(rows)
    assert lengths.mean == pytest.approx(mean, rel=1e-9)
    # The standard error of a mean; five of them.
    spread = mean * math.sqrt(math.exp(s * s) - 1)
    assert lengths.mean == pytest.approx(sum(rows) / count, abs=5 * spread / math.sqrt(count))
    for share in (0.05, 0.25, 0.5, 0.75, 0.9, 0.99):
        own = math.log(mean) - s * s / 2 + s * NormalDist().inv_cdf(share)
        # The standard error of a quantile is sqrt(q (1 - q) / n) over the density there; and between shares lies a
        # line.
        density = NormalDist(math.log(mean) - s * s / 2, s).pdf(own) / math.exp(own)
        error = 5 * math.sqrt(share * (1 - share) / count) / density
        assert lengths.quantile(share) == pytest.approx(rows[round(share * count)], abs=error, rel=0.006), share
    for length in (mean / 2, mean, p99):
        beyond = sum(row > length for row in rows) / count
        assert lengths.fraction_longer_than(length) == pytest.approx(
            beyond, abs=1 / STEPS + 5 * math.sqrt(0.25 / count)
        )


def test_the_squares_of_a_log_normal() -> None:
    """The mean of the squares is that of the mean, times exp(s^2); what is lost is the spread inside the last share."""
    _, s = sampled(350, 1500, 1)
    found = parse_lengths("mean=350, p99=1500").mean_square
    assert 0.98 * 350**2 * math.exp(s * s) < found < 350**2 * math.exp(s * s)


@given(ROWS)
def test_shares_of_rows_keep_their_mean(rows: list[int]) -> None:
    lengths = Lengths.from_lengths(rows)
    assert len(lengths.values) <= STEPS
    assert lengths.mean == pytest.approx(sum(rows) / len(rows))
    assert list(lengths.values) == sorted(lengths.values)
    assert min(rows) <= lengths.values[0] <= lengths.longest <= max(rows)


@pytest.mark.parametrize("count", [257, 300, 512, 1000])
def test_rows_that_lie_in_two_shares_are_divided(count: int) -> None:
    generator = random.Random(count)
    rows = [generator.randrange(10_000) for _ in range(count)]
    assert sum(Lengths.from_lengths(rows).values) * count == pytest.approx(sum(rows) * STEPS, rel=1e-12)


@given(ROWS)
def test_few_rows_are_kept_as_they_are(rows: list[int]) -> None:
    few = rows[:STEPS]
    assert Lengths.from_lengths(few).values == tuple(sorted(few))


@given(ROWS, st.integers(0, 100_000))
def test_a_cap_and_what_lies_over_it(rows: list[int], limit: int) -> None:
    lengths = Lengths.from_lengths(rows[:STEPS])
    assert lengths.fraction_longer_than(limit) == pytest.approx(
        sum(row > limit for row in rows[:STEPS]) / len(rows[:STEPS])
    )
    assert lengths.capped(limit).fraction_longer_than(limit) == 0
    assert lengths.capped(limit).mean == pytest.approx(sum(min(row, limit) for row in rows[:STEPS]) / len(rows[:STEPS]))


@given(ROWS, st.lists(st.floats(0, 1), min_size=2))
def test_quantiles_ascend_between_shortest_and_longest(rows: list[int], shares: list[float]) -> None:
    lengths = Lengths.from_lengths(rows)
    found = [lengths.quantile(share) for share in sorted(shares)]
    assert all(low <= high + 1e-9 for low, high in zip(found, found[1:], strict=False))
    assert (lengths.quantile(0), lengths.quantile(1)) == (lengths.values[0], lengths.longest)


def test_the_mean_is_the_area_below_what_is_over() -> None:
    lengths = Lengths.from_lengths([3, 1, 4, 1, 5])
    assert sum(lengths.fraction_longer_than(length) for length in range(6)) == pytest.approx(lengths.mean)


@pytest.mark.parametrize("limit", [0, 1, 256, 1 << 14, 1 << 20, 10**12, 1 << 62])
def test_answers_of_which_nothing_is_known_have_lengths_whatever_the_limit(limit: int) -> None:
    found = Workload().answer_lengths(limit)
    assert 0 <= found.longest <= limit and found.mean < 1 << 20


def test_a_constant_length() -> None:
    lengths = parse_lengths(" 1024 ")
    assert (
        lengths.values,
        lengths.quantile(0.3),
        lengths.fraction_longer_than(1023),
        lengths.fraction_longer_than(1024),
    ) == (
        (1024.0,),
        1024.0,
        1.0,
        0.0,
    )
    assert parse_lengths("mean=80, p99=80").values == (80.0,)


@pytest.mark.parametrize(
    ("text", "shares"),
    [
        ("p50=300, p99=1500", {0.5: 300, 0.99: 1500}),
        ("p99=1500, p50=300", {0.5: 300, 0.99: 1500}),
        ("p10=30, p90=800", {0.1: 30, 0.9: 800}),
        ("p50=300, mean=350", {0.5: 300}),
        ("p25=100, mean=350", {0.25: 100}),
    ],
)
def test_other_pairs(text: str, shares: dict[float, float]) -> None:
    lengths = parse_lengths(text)
    for share, length in shares.items():
        assert lengths.quantile(share) == pytest.approx(length, rel=0.006)
    if "mean" in text:
        assert lengths.mean == pytest.approx(350)


@pytest.mark.parametrize(
    "content",
    ["3\n1\n2\n", "3\r\n\r\n1.0\r\n2", "[3, 1,\n 2]", "\ufeff3\n1\n2"],
    ids=["lines", "windows", "json", "mark"],
)
def test_a_file(content: str, tmp_path: Path) -> None:
    file = tmp_path / "a=b.txt"
    file.write_text(content, "utf-8", newline="")
    assert parse_lengths(str(file)) == Lengths((1.0, 2.0, 3.0))


@given(ROWS)
def test_lengths_are_read_again_from_their_text(rows: list[int]) -> None:
    lengths = Lengths.from_lengths(rows)
    assert parse_lengths(lengths.to_text()) == lengths
    assert lengths.capped(5).to_text() == json.dumps(lengths.capped(5).values)


@pytest.mark.parametrize("text", ["1024", "mean=350,p99=1500.5", "p50 = 300 ,  p99.9=1e4"])
def test_what_was_said_is_kept(text: str) -> None:
    lengths = parse_lengths(text)
    assert len(lengths.to_text()) < 30
    assert parse_lengths(lengths.to_text()) == lengths


@pytest.mark.parametrize(
    ("text", "code", "under", "said"),
    [
        ("", "E0926", "", "empty text"),
        ("-5", "E0926", "-5", "`-5` is no length"),
        ("inf", "E0926", "inf", "`inf` is no length"),
        ("mean=350", "E0926", "mean=350", "needs two numbers, not 1"),
        ("mean=1, p50=2, p99=3", "E0926", "mean=1, p50=2, p99=3", "not 3"),
        ("mean=1, mean=2", "E0926", "mean=2", "given twice"),
        ("p99=1, p99.0=2", "E0926", "p99.0=2", "given twice"),
        ("men=350, p99=1500", "E0926", "men", "did you mean `mean`?"),
        ("mean=350, p100=1500", "E0926", "p100", "`p99.9`"),
        ("mean=350, p99=long", "E0926", "p99=long", "`long` is no number"),
        ("mean=350, p99=-1", "E0926", "p99=-1", "`-1` is no length"),
        ("mean=350, p99=100", "E0927", "mean=350, p99=100", "at least the mean, which is 350"),
        ("mean=350, p10=400", "E0927", "mean=350, p10=400", "at most the mean, which is 350"),
        ("mean=350, p99=6000", "E0927", "mean=350, p99=6000", "at most 5238.97"),
        ("p50=9, p99=3", "E0927", "p50=9, p99=3", "`p99` is less than `p50`"),
        ("p50=0, p99=3", "E0927", "p50=0, p99=3", "no length of 0"),
        ("p50=1e-9, p51=1e9", "E0927", "p50=1e-9, p51=1e9", "more than 1,000,000,000 tokens"),
        ("[1, 2", "E0928", "", "no list in JSON"),
        ("[]", "E0928", "[]", "no lengths in the list"),
        ('[1, "a"]', "E0928", '[1, "a"]', "number 2: `a` is no number"),
        ("[true]", "E0928", "[true]", "`true` is no number"),
        ("[NaN]", "E0928", "[NaN]", "`NaN` is no length"),
        ("missing.txt", "E0928", "", "there is no such file"),
        ("[" * 100_000, "E0928", "[", "no list"),
    ],
)
def test_wrong_lengths(text: str, code: str, under: str, said: str) -> None:
    with pytest.raises(ProgramError) as error:
        parse_lengths(text)
    (found,) = error.value.diagnostics
    assert (found.code, found.span.covered_text) == (code, under), str(error.value)[:500]
    assert said in found.render()
    assert found.hint


@pytest.mark.parametrize(
    ("content", "line", "said"),
    [
        ("", 0, "has no lengths"),
        ("\n \n", 0, "has no lengths"),
        ("1\n\nx7\n", 3, "`x7` is no number"),
        ("1\n  -2\n", 2, "`-2` is no length"),
        ("[1,\n 2,\n", 3, "no list in JSON"),
        ("[1,\n -2]\n", 0, "number 2: `-2` is no length"),
        ('{"length": 3}\n', 1, "is no number"),
    ],
)
def test_wrong_files(content: str, line: int, said: str, tmp_path: Path) -> None:
    file = tmp_path / "lengths.txt"
    file.write_text(content, "utf-8")
    with pytest.raises(ProgramError) as error:
        parse_lengths(str(file))
    (found,) = error.value.diagnostics
    assert (found.code, found.span.line, found.span.source.path) == ("E0928", line, str(file)), str(error.value)
    assert re.search(re.escape(said), found.message)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe1")
    for path, said in ((tmp_path / "bytes", "no text in UTF-8"), (tmp_path, "cannot be read")):
        with pytest.raises(ProgramError, match=said):
            parse_lengths(str(path))


GROUPS = [(12, 16), (1, 4), (3, 4), (16, 16), (700, 1000)]


@pytest.mark.parametrize(("count", "of"), GROUPS)
@pytest.mark.parametrize("text", ["mean=350, p99=1500", "[1, 2, 5]", "[7]"])
def test_the_rows_of_groups_that_end_first(text: str, count: int, of: int) -> None:
    """Against groups that are drawn and sorted: the rows that are kept, and all rows if the others end with them."""
    lengths, generator = parse_lengths(text), random.Random(3)
    kept: list[float] = []
    until: list[float] = []
    for _ in range(40_000 // of):
        group = sorted(generator.choices(lengths.values, k=of))[:count]
        kept += group
        until += group + [group[-1]] * (of - count)
    for found, rows in (
        (lengths.shortest_of_groups(count, of), kept),
        (lengths.group_lengths_cut_after(count, of), until),
    ):
        # Rows of a group depend on each other: the standard error is at most that of as many groups. Five of them.
        groups = len(rows) // (count if rows is kept else of)
        mean, spread = sum(rows) / len(rows), math.sqrt(found.mean_square - found.mean**2)
        assert found.mean == pytest.approx(mean, abs=5 * spread / math.sqrt(groups) + 1e-9)
        assert list(found.values) == sorted(found.values)
        rows.sort()
        for length in sorted(set(lengths.values))[:: max(1, len(set(lengths.values)) // 8)]:
            beyond = sum(row > length for row in rows) / len(rows)
            assert found.fraction_longer_than(length) == pytest.approx(
                beyond, abs=2 / STEPS + 5 * math.sqrt(0.25 / groups)
            )


def test_all_of_a_group_are_all_rows() -> None:
    lengths = parse_lengths("mean=350, p99=1500")
    for found in (
        lengths.shortest_of_groups(16, 16),
        lengths.group_lengths_cut_after(16, 16),
        lengths.shortest_of_groups(1, 1),
    ):
        assert found.values == pytest.approx(lengths.values)


@pytest.mark.parametrize(("limit", "longest"), [(2, 2), (256, 2), (1024, 4), (16_384, 16)])
def test_where_nothing_is_said_one_of_a_hundred_is_cut(limit: int, longest: float) -> None:
    """The table of docs/reference/clusters.md."""
    answers = Workload().answer_lengths(limit)
    assert answers.longest == limit
    # One share of 256 either way.
    assert answers.fraction_longer_than(limit * 0.999) == pytest.approx(0.01, abs=1 / STEPS)
    assert answers.longest / answers.quantile(0.5) == pytest.approx(longest, rel=1e-3)
    page = (Path(__file__).parents[3] / "docs" / "reference" / "clusters.md").read_text("utf-8")
    shown = f"| {limit:,} | {answers.quantile(0.5):,.0f} | {answers.mean:,.0f} | {longest} |"
    assert shown in page or limit == 2


def test_prompts_are_spread_out() -> None:
    prompts = Workload().prompt
    assert prompts.mean == pytest.approx(256) and prompts.fraction_longer_than(1024) == pytest.approx(
        0.01, abs=1 / STEPS
    )


@pytest.mark.parametrize("text", ["mean=1060, max=4096", "mean=3200,max=4096", "p50=300,max=1000", "max=2000,p90=1999"])
def test_rows_are_cut_and_keep_what_is_told_of_them(text: str) -> None:
    lengths = parse_lengths(text)
    told = {name.strip(): float(value) for name, value in (part.split("=") for part in text.split(","))}
    assert lengths.longest == told["max"] and lengths.tail_is_assumed
    if "mean" in told:
        assert lengths.mean == pytest.approx(told["mean"], rel=1e-6)
        assert 0 < lengths.fraction_cut < 0.8
    else:
        [(name, value)] = [each for each in told.items() if each[0] != "max"]
        assert lengths.quantile(float(name[1:]) / 100) == pytest.approx(value, rel=0.01)
    assert parse_lengths(lengths.to_text()) == lengths


def test_a_cut_at_the_mean_is_a_constant_and_below_it_there_is_none() -> None:
    assert parse_lengths("mean=512,max=512").values == (512.0,)
    for text, code in (("mean=600,max=512", "E0927"), ("mean=0,max=512", "E0927"), ("max=512,max=600", "E0926")):
        with pytest.raises(ProgramError) as error:
            parse_lengths(text)
        assert [each.code for each in error.value.diagnostics] == [code]
    for text in ("max=512", "mean=1,p99=3,max=4"):
        with pytest.raises(ProgramError) as error:
            parse_lengths(text)
        assert "two numbers" in str(error.value)
    assert not parse_lengths("mean=350, p99=1500").tail_is_assumed
