"""What pages show of a command is what it prints: `<!-- printed: COMMAND -->`, `<!-- takes SECONDS: COMMAND -->`, see
`documents.py`.

Each command is run once for all pages that show it: 6 s of a core for those that `make test` has, some 60 s for all.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import rlgraph
from rlgraph.cli import run_command
from tests.documents import PAGES, PRINTED, ROOT, TAKES, excerpt, with_printed, with_seconds
from tests.suites import few

ALGORITHMS = Path(rlgraph.__file__).parent / "algorithms"
SHOWN = {
    page: {found[1] for marks in (PRINTED, TAKES) for found in marks.findall(page.read_text("utf-8"))} for page in PAGES
}
COMMANDS = sorted(set().union(*SHOWN.values()))
QUICK = [
    command
    for command in COMMANDS
    if any(words in command for words in ("simulate", "ppo.rls", "ppo.rlf --cluster 16x8:a100-80gb"))
]
"""Those that `make test` has, too."""
PICTURES = {"step.svg": "simulate.svg", "out/ppo.explain.svg": "explain.svg", "out/ppo.what-if.svg": "what-if.svg"}
"""Those that commands write, and their names in docs/img."""
OVERLAPS = ROOT / "docs/reference/schedules/overlap.md"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One that has the programs that ship, and the schedule that the page of overlapping steps shows."""
    for name in ("rlgraph", "benchmarks"):
        (tmp_path / name).symlink_to(ROOT / name)
    for path in ALGORITHMS.glob("*.rl[fs]"):
        (tmp_path / path.name).write_text(path.read_text("utf-8"), "utf-8")
    [apart] = re.findall(r"```text\n(schedule async_grpo\n.*?)```", OVERLAPS.read_text("utf-8"), re.DOTALL)
    (tmp_path / "async_grpo.rls").write_text(apart, "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def printed(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What a command writes to stdout, or says where it finds no plan."""
    words = shlex.split(command)
    assert words[0] == "rlgraph"
    code = run_command(words[1:])
    out, err = capsys.readouterr()
    assert code == 0 or err.startswith("error["), err
    return (out if code == 0 else err).rstrip() + "\n"


@pytest.mark.parametrize("command", few(COMMANDS, *QUICK))
def test_a_page_shows_what_is_printed(
    command: str, folder: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    out = printed(command, capsys)
    update = request.config.getoption("--update-golden")
    for page in [page for page, commands in SHOWN.items() if command in commands]:
        text = page.read_text("utf-8")
        now = with_seconds(with_printed(text, command, out), command, out)
        if update:
            page.write_text(now, "utf-8")
        assert update or now == text, f"{page}: `pytest --update-golden {Path(__file__).name}` writes it anew"
    for made in [folder / name for name in PICTURES if (folder / name).exists()]:
        picture = ROOT / "docs/img" / PICTURES[made.relative_to(folder).as_posix()]
        if update:
            picture.write_text(made.read_text("utf-8"), "utf-8")
        assert picture.read_text("utf-8") == made.read_text("utf-8")


def test_an_excerpt_is_found_again() -> None:
    """Parts between `...` begin where a line is most like what was shown, in the order of what is printed."""
    now = ["ppo: 23 nodes", "8 devices in `a`", "  actor  5 s", "", "8 devices in `b`", "  critic  6 s", "total 11 s"]
    shown = ["...", "8 devices in `b`", "  critic  7 s", "..."]
    assert excerpt(shown, now) == "...\n8 devices in `b`\n  critic  6 s\n...\n"
    assert excerpt(["ppo: 22 nodes", "...", "total 9 s"], now) == "ppo: 23 nodes\n...\ntotal 11 s\n"
    assert excerpt(["..."], now) == "...\n"
    assert excerpt(["nothing of this"], now) == "".join(f"{line}\n" for line in now), "no `...`: all of it"


def test_seconds_in_a_sentence_are_found_again() -> None:
    page = "Of 9.3 s.\n\n<!-- takes 9.3 s: rlgraph compile a -->\nIt takes 9.3 s a step, not 19.3 s.\n"
    now = with_seconds(page, "rlgraph compile a", "2x8:a: 9.1 s a step by the search, on 16 devices\n")
    assert now == page.replace("takes 9.3 s", "takes 9.1 s")
    with pytest.raises(AssertionError, match="9.3 s"):
        with_seconds("<!-- takes 9.3 s: rlgraph compile a -->\nIt takes 9.4 s a step.", "rlgraph compile a", "")
