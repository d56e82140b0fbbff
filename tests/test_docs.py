"""The documents say what is so: every example is checked and run, every table is the compiler's own.

See `documents.py` for what the fences mean.
"""

from __future__ import annotations

import ast
import json
import math
import re
import runpy
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

import rlgraph
from rlgraph.backends.local.backend import LocalBackend
from rlgraph.backends.worker.session import Settings
from rlgraph.cli import run_command
from rlgraph.errors import ProgramError
from rlgraph.errors.codes import all_codes
from rlgraph.passes.rewrites.pipeline import PIPELINE, run_passes
from tests.documents import (
    MODEL,
    PAGES,
    ROOT,
    TEMPLATE,
    TINY,
    Fence,
    examples,
    fences,
    generated,
    page_id,
    program,
    small,
    tables,
    used,
    with_files,
    with_tables,
)
from tests.suites import few

PLAIN = tuple(each for each in PIPELINE if each.name in ("split", "granularity"))
"""The least that a run needs: what nobody uses is computed too."""

RIGHT = [fence for fence in examples() if fence.words[1:2] != ["error"] and not fence.lead.startswith("<!-- file:")]
RUN = [fence for number, fence in enumerate(RIGHT) if fence.page.name == "README.md" or not number % 2]
"""Those that the fast suite runs, too."""
WRONG = [fence for fence in examples() if fence.words[1:2] == ["error"]]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads cost tiny models more than they give."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def brought(fence: Fence, folder: Path) -> None:
    """The files of the page, in a folder."""
    for name, text in fence.files.items():
        (folder / name).write_text(text, "utf-8")
    (folder / "tiny.py").write_text(TINY, "utf-8")
    (folder / "tiny.jinja").write_text(TEMPLATE, "utf-8")


@pytest.mark.parametrize("fence", RIGHT, ids=str)
def test_every_example_is_a_program(fence: Fence, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    brought(fence, tmp_path)
    text = program(fence)
    # A piece may make a value that the rest of its program would use; and a change may leave a value without use.
    partial = fence.words != ["rlf"] or "change:" in text
    # No model lies beside a page.
    said = [d for d in rlgraph.check(text) if d.code != "W0790" and (d.code != "W0201" or not partial)]
    assert not said, "\n\n".join(d.render() for d in said)
    assert rlgraph.compile(small(text, fence.files)).after("check")


@pytest.mark.parametrize("fence", few(RIGHT, *RUN), ids=str)
def test_every_example_runs(fence: Fence, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    brought(fence, tmp_path)
    text = program(fence)
    for name, other in used(text).items():
        (tmp_path / name).write_text(other, "utf-8")
    compiled = rlgraph.compile(small(text, fence.files))
    whole = fence.words == ["rlf"]
    last = compiled.program if whole else run_passes(compiled.after("check"), PLAIN)[-1].program
    backend = LocalBackend(last, Settings(folder=tmp_path))
    try:
        steps = [step.metrics for step in backend.run_steps(2 if whole else 1)]
    finally:
        backend.session.close()
    assert all(math.isfinite(value) for step in steps for value in step.values()), steps


@pytest.mark.parametrize("fence", WRONG, ids=str)
def test_every_wrong_example_is_refused(
    fence: Fence, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    brought(fence, tmp_path)
    shown = shown_below(fence)
    found = rlgraph.check(program(fence), name=re.search(r"--> ([\w.]+):", shown)[1] if shown else "a.rlf")
    assert [d.code for d in found if d.severity == "error"] == [fence.words[2]], [d.render() for d in found]
    now = "\n\n".join(d.render() for d in found if d.severity == "error") + "\n"
    if shown and request.config.getoption("--update-golden"):
        fence.page.write_text(fence.page.read_text("utf-8").replace(shown, now), "utf-8")
    elif shown:
        assert now == shown


def shown_below(fence: Fence) -> str:
    """The diagnostic that the page shows for a wrong program."""
    later = [other for other in fences(fence.page) if other.line > fence.line]
    if later and later[0].info == "text" and later[0].text.startswith("error["):
        return later[0].text
    return ""


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_tables_and_files_are_what_the_compiler_reads(page: Path, request: pytest.FixtureRequest) -> None:
    now = with_files(with_tables(page, generated()))
    if request.config.getoption("--update-golden"):
        page.write_text(now, "utf-8")
    assert page.read_text("utf-8") == now, "`pytest --update-golden tests/test_docs.py` writes them anew"


def test_the_reference_has_every_signature() -> None:
    shown = {name for page in PAGES for name, _ in tables(page)}
    silent = {"statement.async", "statement.phase", "statement.sample", "statement.send"}
    """Those with a single option: the text says it."""
    empty = {name for name in generated() if name.startswith("method.") and "`" not in generated()[name]}
    assert set(generated()) - shown - silent - empty == set()


def test_the_reference_names_every_column_and_word() -> None:
    from rlgraph.dsl.words import KEYWORDS, RESERVED
    from rlgraph.ir.types import Axis, Table

    index = (ROOT / "docs/reference/language.md").read_text("utf-8")
    text = "\n".join(page.read_text("utf-8") for page in (ROOT / "docs/reference/language").glob("*.md"))
    row = Axis("r", "r")
    full = Table(row, Axis("r.t", "token", row, True), Axis("r.n", "turn", row, True), True)
    named = {name for name in full.column_types() if name[0] != "_"}
    assert {name for name in named if f"`{name}`" not in text} == set()
    assert KEYWORDS - {word for code in re.findall(r"`([^`\n]+)`", index) for word in re.findall(r"\w+", code)} == set()
    listed = index.split("No name can be")[1].split(".")[0]
    assert set(re.findall(r"`(\w+)`", listed)) == RESERVED - {"True", "False"}


@pytest.mark.parametrize("family", ["language", "schedules"])
def test_the_reference_links_to_every_page_of_a_family(family: str) -> None:
    text = (ROOT / f"docs/reference/{family}.md").read_text("utf-8")
    pages = {page.name for page in (ROOT / f"docs/reference/{family}").glob("*.md")}
    assert pages and pages == set(re.findall(rf"^\| \[[^]]+\]\({family}/(\w+\.md)\) \|", text, flags=re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page: Path) -> None:
    anchors = {page: _anchors(page) for page in PAGES}
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)):
        if target.startswith(("http:", "https:")):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), target
        if anchor and found in anchors:
            assert anchor in anchors[found], target


def test_on_the_site_no_link_is_dead_text() -> None:
    """Of what lies outside of the documents, the site has pages' files and no folders."""
    site = runpy.run_path(str(ROOT / "docs/conf.py"))
    assert site["suppress_warnings"] == ["misc.highlighting_failure"] and "sphinx-build --quiet -W" in (
        ROOT / "Makefile"
    ).read_text("utf-8")
    changed = 0
    for page in (ROOT / "docs").rglob("*.md"):
        text = page.read_text("utf-8")
        shown = site["for_the_site"](text, page.parent)
        changed += shown != text
        for target in re.findall(r"\]\((\.\./[^)\s]+)\)", shown):
            path = (page.parent / target.partition("#")[0]).resolve()
            if path.is_relative_to(ROOT / "docs"):
                continue
            assert path.is_file() and path.suffix != ".md", f"{page.name}: {target}"
    assert changed > 5
    link = site["for_the_site"](
        "[the `ir`](../rlgraph/ir), [how](../CONTRIBUTING.md#style), [x](index.md), ![y](../img/x.png)"
    )
    assert link == "the `ir`, [how](path:../CONTRIBUTING.md), [x](index.md), ![y](../img/x.png)"


@cache
def _anchors(page: Path) -> set[str]:
    """Headings as forges make links of them."""
    heads = re.findall(
        r"^#+ (.*)", re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL), flags=re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", [page for page in PAGES if "```python" in page.read_text("utf-8")], ids=page_id)
def test_python_on_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = [fence for fence in fences(page) if fence.words[:1] == ["python"]]
    brought(found[0], tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    for fence in found:
        code = ast.parse(fence.text, str(page))
        if len(fence.words) == 1:
            ast.increment_lineno(code, fence.line)
            exec(compile(code, str(page), "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_commands_exist(page: Path) -> None:
    """Subcommands and options of `rlgraph`, and targets of `make`."""
    cli = pytest.importorskip("rlgraph.cli").rlgraph
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), flags=re.MULTILINE)
    for fence in fences(page):
        if fence.words[:1] not in (["console"], ["sh"]):
            continue
        for line in re.sub(r"\\\n", " ", fence.text).splitlines():
            words = line.removeprefix("$ ").split(" #")[0].split()
            if fence.words[0] == "console" and not line.startswith("$ "):
                continue
            if words[:1] == ["make"]:
                assert words[1] in targets, line
            if words[:1] == ["rlgraph"] and not words[1].startswith("-"):
                command = cli.commands[words[1]]
                options = {name for option in command.params for name in option.opts + option.secondary_opts}
                used = {word.split("=")[0] for word in words[2:] if word.startswith("-")}
                assert used <= options | {"--help"}, line


def test_every_group_of_codes_is_told() -> None:
    text = (ROOT / "docs/reference/errors.md").read_text("utf-8")
    assert {code[:3] for code in all_codes() if code[0] == "E"} == set(re.findall(r"`(E\d\d)\.\.`", text))


def test_nothing_of_a_workplace_is_named() -> None:
    for page in PAGES:
        assert not re.search(r"/work\b|\.\./shared|\bissue #?\d", page.read_text("utf-8")), page


def test_the_commands_for_data_of_ones_own_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of the page on it, in a folder that has what it says, with a model that is small, for one step."""
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"{i}+{i}=", "answer": str(2 * i)} for i in range(16)]
    Path("grpo.rlf").write_text((ROOT / "rlgraph/algorithms/grpo.rlf").read_text("utf-8"))
    Path("mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = (ROOT / "docs/how-to/data.md").read_text("utf-8").split("## Run it on your data")[1]
    shown = re.search(r"```sh\n(.*?)```", text, re.DOTALL)
    assert shown
    smaller = {"base=Qwen/Qwen2.5-0.5B-Instruct": f"base={MODEL}", "100": "1"}
    commands = [
        [smaller.get(word, word) for word in shlex.split(line, comments=True)]
        for line in shown[1].replace("\\\n", " ").splitlines()
    ]
    words = ("check", "compile", "doctor", "run")
    assert [command[:2] for command in commands] == [["rlgraph", word] for word in words]
    monkeypatch.setattr("rlgraph.hub.hub_failure", lambda: "no hub is asked in a test")
    for command in commands:
        assert run_command(command[1:]) == 0, capsys.readouterr().err
    assert len(Path("runs/grpo-1/metrics.jsonl").read_text().splitlines()) == 1


def test_wrong_programs_raise() -> None:
    with pytest.raises(ProgramError):
        rlgraph.compile("step:\n    x = \n")


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=page_id)
def test_a_page_has_one_title(page: Path) -> None:
    """A second one would be another page in the sidebar."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert len(re.findall(r"^# ", text, flags=re.MULTILINE)) == 1


def test_every_page_is_on_its_shelf_of_the_first_page() -> None:
    first = (ROOT / "docs/index.md").read_text("utf-8")
    for page in (ROOT / "docs").glob("*/*.md"):
        name = page.relative_to(ROOT / "docs").as_posix()
        assert f"]({name})" in first, name
