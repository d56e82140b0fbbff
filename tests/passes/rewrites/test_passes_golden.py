"""What each pass makes of small programs, as text: a program, `---`, the graph after the pass that the file is named
after.

`split.2.txt` and the like are more cases of the same pass.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rlgraph.dsl.check import check
from rlgraph.errors import Source
from rlgraph.ir.text.parse import parse_program
from rlgraph.ir.text.program_text import program_text
from rlgraph.passes.rewrites.pipeline import run_passes
from tests import golden

HEADER = """\
algorithm a
model actor = causal_lm("m")
model ref = frozen(actor)
data prompts = jsonl("p.jsonl", batch=8)
func correct = python("f.py:f")
step:
"""
FILES = sorted(Path(__file__).parent.glob("*.txt"))


def after(name: str, text: str) -> str:
    """The steps of a program after a pass; a text without a header is the body of a step."""
    if not text.startswith("algorithm"):
        text = HEADER + "".join(f"    {line}\n" for line in text.splitlines())
    program, _ = check(Source("a.rlf", text))
    stage = next(stage for stage in run_passes(program) if stage.name == name)
    shown = program_text(stage.program)
    assert parse_program(shown) == stage.program
    return shown.split("\n\n", 1)[1]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_a_pass_makes(path: Path, request: pytest.FixtureRequest) -> None:
    name = path.stem.split(".")[0]
    golden.check(path, lambda text: after(name, text), update=request.config.getoption("--update-golden"))
