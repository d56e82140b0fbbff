"""A program that uses others, written as one text: it means what it meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlgraph.dsl.check import check
from rlgraph.dsl.format import format_source
from rlgraph.dsl.inline_uses import inline_used_programs
from rlgraph.errors import Source
from rlgraph.ir.text.program_text import program_text

ALGORITHMS = Path(__file__).parents[2] / "rlgraph" / "algorithms"
USING = sorted(path for path in ALGORITHMS.glob("*.rlf") if "\nuse " in path.read_text("utf-8"))


@pytest.mark.parametrize("path", USING, ids=lambda path: path.stem)
def test_a_used_program_written_out_is_the_same_program(path: Path) -> None:
    source = Source(str(path), path.read_text("utf-8"))
    flat = inline_used_programs(source)
    assert "\nuse " not in flat.text and "\nchange:" not in flat.text
    assert program_text(check(flat)[0]) == program_text(check(source)[0])
    assert flat.text == format_source(flat)
    assert inline_used_programs(flat) is flat


def test_comments_blank_lines_and_replaced_metrics_stay(tmp_path: Path) -> None:
    (tmp_path / "mine.rlf").write_text(
        '# Mine\nuse "grpo.rlf"\nalgorithm mine\nparam n = 2  # few\n\n'
        "change:\n    adv = score  # as it is\n    report kl = mean(k1(logp, ref_logp)), good = mean(score > 0)\n"
    )
    source = Source(str(tmp_path / "mine.rlf"), (tmp_path / "mine.rlf").read_text())
    text = inline_used_programs(source).text
    assert text.startswith("# Mine\nalgorithm mine\n")
    assert "param n" in text and "# few" in text and "# as it is" in text and "# clip range" in text
    assert "    report reward = mean(score), length = mean(rollout.length)\n" in text
    assert "report kl = mean(k1(logp, ref_logp)), good = mean(score > 0)" in text
    assert program_text(check(Source("p.rlf", text))[0]) == program_text(check(source)[0])
