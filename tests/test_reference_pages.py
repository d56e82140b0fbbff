"""Pages that are made by `tools/reference.py` are those of now, and commands print what their pages show.

Together 5 s of a core: 1 to make the pages, 4 for the commands, of which two search for a plan.
"""

from __future__ import annotations

import io
import math
import re
import runpy
import shlex
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

import click
import pytest

import rlgraph
from rlgraph.cli import run_command
from rlgraph.cli.listing import shipped_algorithms
from tests.documents import ROOT, Fence, fences
from tools import reference

DOCS = ROOT / "docs"
SHOWN = [
    fence
    for page in sorted((DOCS / "reference/cli").glob("*.md"))
    for fence in fences(page)
    if fence.words == ["console", "prints"]
]


def test_made_pages_are_those_of_now(request: pytest.FixtureRequest) -> None:
    stale = reference.stale()
    if request.config.getoption("--update-golden"):
        for path, text in stale.items():
            path.write_text(text, "utf-8")
    else:
        assert not stale, "`python tools/reference.py --write` writes them anew"


@pytest.mark.parametrize(
    ("folder", "names"),
    [
        ("cli", [name.replace(" ", "-") for name in reference.command_names()]),
        ("algorithms", shipped_algorithms()),
        ("python", [name for name in rlgraph.__all__ if name != "__version__"]),
    ],
)
def test_there_is_a_page_for_each_and_for_nothing_else(folder: str, names: list[str]) -> None:
    assert {path.name for path in (DOCS / "reference" / folder).iterdir()} == {f"{name}.md" for name in names}


def test_every_page_is_in_the_contents() -> None:
    """A page that no glob and no folder takes in would be missing on the site, too."""
    pages = [page for _, entries in reference.contents() for page in entries]
    assert len(pages) == len(set(pages))
    assert {*DOCS.rglob("*.md")} - {*pages} == {DOCS / "contents.md", DOCS / "index.md"}


def test_options_are_the_parsers() -> None:
    """Every option of every command stands in the table of its page, with its help."""
    for name, command in reference.command_names().items():
        page = (DOCS / f"reference/cli/{name.replace(' ', '-')}.md").read_text("utf-8")
        rows = re.findall(r"^\| `(-[^ `]*)", page.split("<!-- options -->")[1].split("<!-- end -->")[0], re.MULTILINE)
        options = [option for option in command.params if isinstance(option, click.Option)]
        assert [row.rstrip(",") for row in rows] == [option.opts[0] for option in options], name


def test_a_row_of_an_option() -> None:
    size = click.option("--size", "-s", type=int, default=3, help="Of it,\n  with --all.", multiple=False)
    kind = click.option("--kind", type=click.Choice(["a", "b"]), multiple=True, help="Which.  [default: both]")
    flag = click.option("--all", is_flag=True, help="All of them.")
    command = click.command()(size(kind(flag(lambda: None))))
    rows = [reference.option_row(option) for option in command.params if isinstance(option, click.Option)]
    assert rows == [
        ("`--size, -s INTEGER`", "Of it, with `--all`.", "3"),
        ("`--kind a|b`", "Which. May be repeated.", "both"),
        ("`--all`", "All of them.", ""),
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("# Title\n\nOne [link](a.md) of\ntwo lines. And more.\n", "One link of two lines."),
        ("# Title\n\n```sh\nrlgraph list\n```\n\n<!-- a: b -->\n| a |\n\nShown below:\n\n- x", "Shown below."),
        ("# Title\n\n- **Why?** Because.\n", "Why?"),
    ],
)
def test_what_a_page_begins_with(text: str, sentence: str) -> None:
    assert reference.first_sentence(text) == sentence


def test_a_stub_has_no_code() -> None:
    shown = reference.stub(rlgraph.Diagnostic)
    assert shown.startswith("@dataclass(frozen=True, slots=True)\nclass Diagnostic:\n")
    assert '    hint: str = ""\n    """What the user can do about it."""\n' in shown
    assert "    @property\n    def severity(self) -> Severity:\n" in shown and "return" not in shown


def test_the_site_nests_folders_and_documents_public_names() -> None:
    site = runpy.run_path(str(DOCS / "conf.py"))
    index, page = ["text\n"], [(DOCS / "reference/python/compile.md").read_text("utf-8")]
    site["read"](None, "reference/cli", index)
    site["read"](None, "reference/python/compile", page)
    assert index == ["text\n\n```{toctree}\n:hidden:\n:glob:\n\ncli/*\n```\n"]
    assert (
        page[0].endswith("\n```{eval-rst}\n.. autofunction:: rlgraph.compile\n```\n") and "def compile" not in page[0]
    )


@pytest.mark.parametrize("fence", SHOWN, ids=str)
def test_commands_print_what_is_shown(
    fence: Fence, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """A line `...` stands for any lines."""
    monkeypatch.chdir(tmp_path)
    for name, text in fence.files.items():
        Path(name).write_text(text, "utf-8")
    commands = re.findall(r"^\$ .*\n", fence.text, re.MULTILINE)
    now = "".join(command + printed(command.removeprefix("$ ")) for command in commands)
    pattern = re.escape(fence.text).replace(r"\.\.\." + "\\\n", r"(?:.*\n)*")
    if request.config.getoption("--update-golden") and pattern == re.escape(fence.text):
        fence.page.write_text(fence.page.read_text("utf-8").replace(fence.text, now), "utf-8")
    else:
        assert re.fullmatch(pattern, now), now


def printed(line: str) -> str:
    """What a command prints on a terminal, stdout and stderr; its stdout may go to a file."""
    words, _, file = line.partition(" > ")
    name, *arguments = shlex.split(words)
    if name == "cat":
        return Path(arguments[0]).read_text("utf-8")
    assert name == "rlgraph"
    screen, out = io.StringIO(), io.StringIO()
    # A slow machine shows that it searches.
    quiet = patch("rlgraph.passes.placement.search.progress.QUIET_S", math.inf)
    with quiet, redirect_stderr(screen), redirect_stdout(out if file else screen):
        run_command(arguments)
    if file:
        Path(file.strip()).write_text(out.getvalue(), "utf-8")
    return screen.getvalue()
