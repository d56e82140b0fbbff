"""benchmarks/accuracy.py reads anybody's rows, and says of each that it leaves out why."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.accuracy import MEASURED, Compared, all_groups, all_rows, compare, grouped, page, split_by_fit
from benchmarks.measured import BadRows, Inexpressible, Row, express, read_rows
from tests.documents import ROOT

HEAD = "id,model,gpu,gpus,tp,phase,engine,prompt_len,response_len,batch,value,unit"
GOOD = "A,Qwen/Qwen3-32B,H100-80GB SXM,2,2,generate (per token),vllm 0.12.0,1024,1024,8,15.9,ms a token (TPOT)"


def rows(folder: Path, *lines: str) -> list[Row]:
    file = folder / "rows.csv"
    file.write_text("\n".join(lines) + "\n", "utf-8")
    return read_rows(file)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ((), "is empty"),
        ((HEAD,), "has no row"),
        ((HEAD.replace("value,", ""), GOOD), "has no column `value`"),
    ],
)
def test_a_file_without_measurements_is_refused(tmp_path: Path, lines: tuple[str, ...], message: str) -> None:
    with pytest.raises(BadRows, match=message):
        rows(tmp_path, *lines)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRows, match="No such file"):
        read_rows(tmp_path / "none.csv")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("H100-80GB SXM", "H101-80GB", "no device of the table; did it mean `h100-80gb`"),
        ("Qwen/Qwen3-32B", "Qwen/Qwen3-33B", "not known here; did it mean `Qwen/Qwen3-32B`"),
        ("generate (per token)", "dreaming", "phase `dreaming`"),
        ("Qwen/Qwen3-32B", '"GPT (2 layers, hidden 0)"', "a whole number from 1"),
        ("vllm 0.12.0", "abacus", "has no engine here"),
        (",1024,1024,8,", ",1024,1024,,", "how many rows"),
        (",1024,1024,8,", ",,,8,", "how long prompts"),
        (",2,2,", ",3,2,", "are not its 3 devices"),
        ("15.9", "fast", "no number"),
        ("15.9", "-1", "above 0"),
        ("ms a token (TPOT)", "bananas", "unit `bananas`"),
    ],
)
def test_a_row_that_says_nothing_here_is_named_with_the_reason(tmp_path: Path, old: str, new: str, reason: str) -> None:
    found, left = compare(rows(tmp_path, HEAD, GOOD, GOOD.replace("A,", "B,", 1).replace(old, new, 1)))
    assert [each.row.id for each in found] == ["A"]
    assert [(row.id, reason in why) for row, why in left] == [("B", True)]
    assert "- B: " in page(found, left)


def test_rates_are_the_seconds_that_their_sources_derive() -> None:
    """Where the notes of a row say how long an iteration takes, by its source's own formula."""
    derived = 0
    for row in read_rows(MEASURED):
        if found := re.search(r"about ([\d.]+) s an iteration", row.cells["notes"]):
            derived += 1
            assert express(row).measured == pytest.approx(float(found[1]), rel=0.005)
    assert derived == 7


def test_every_row_that_is_measured_against_has_a_source_and_is_predicted_or_left_out_by_name() -> None:
    for row in read_rows(MEASURED):
        assert row.cells["source"].startswith("https://")
        if row.cells["phase"] == "sync" or "interleaved" in row.cells["notes"]:
            with pytest.raises(Inexpressible):
                express(row)
        else:
            assert express(row).measured > 0


# What is predicted

WHY = ROOT / "docs" / "why"
MOST = 0.10
"""Of the median error of a group's rows that constants were fitted to."""

HELD_OUT = {
    "train experts, automodel, h100-80gb": 0.15,
    "generate long prompts, vllm, h100-80gb": 0.40,
    "generate long prompts, vllm, a100-80gb": 0.25,
    "generate long prompts, vllm, rtx4090-24gb": 0.22,
    "generate, vllm, h200-141gb": 0.20,
    "generate whole, trtllm, a100-80gb": 0.25,
    "prefill, trtllm, a100-80gb": 0.15,
}
"""The same of rows that none was fitted to, where it is more; docs/why/accuracy.md says what is not known of them."""


@pytest.fixture(scope="module")
def results() -> tuple[list[Compared], list[tuple[Row, str]]]:
    return compare(read_rows(MEASURED))


def test_no_group_leaves_its_band(results: tuple[list[Compared], list[tuple[Row, str]]]) -> None:
    fitted, _, _ = split_by_fit(results[0])
    *groups, whole = grouped(fitted)
    assert {group.name: round(group.median, 3) for group in groups if group.median > MOST} == {}
    assert len(groups) == 12
    assert whole.median <= 0.05
    assert whole.near >= 0.9


def test_no_group_that_nothing_was_fitted_to_leaves_its_band(
    results: tuple[list[Compared], list[tuple[Row, str]]],
) -> None:
    _, seen, unseen = split_by_fit(results[0])
    assert {row.row.series for row in unseen} == {"ME", "VD"}
    *groups, whole = grouped([*seen, *unseen])
    bands = {group.name: (round(group.median, 3), HELD_OUT.get(group.name, MOST)) for group in groups}
    assert {name: each for name, each in bands.items() if each[0] > each[1]} == {}
    assert len(groups) == 15
    assert whole.median <= 0.08
    assert whole.near >= 0.8


@pytest.mark.parametrize(("name", "mark"), [("accuracy.md", "accuracy"), ("accuracy-rows.md", "accuracy: rows")])
def test_the_page_has_what_is_printed(
    results: tuple[list[Compared], list[tuple[Row, str]]], request: pytest.FixtureRequest, name: str, mark: str
) -> None:
    printed = all_groups(results[0]) if mark == "accuracy" else all_rows(*results)
    path = WHY / name
    now, times = re.subn(
        rf"(<!-- {mark} -->\n).*(<!-- end -->)",
        lambda found: f"{found[1]}{printed}\n{found[2]}",
        path.read_text("utf-8"),
        flags=re.DOTALL,
    )
    assert times == 1
    if request.config.getoption("--update-golden"):
        path.write_text(now, "utf-8")
    assert path.read_text("utf-8") == now, "`pytest --update-golden tests/explain/test_accuracy.py` writes it anew"
