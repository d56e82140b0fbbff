"""Writes the reference from what it describes: options of commands, algorithms, the Python API, and `docs/llms.txt`.

    python tools/reference.py            # names the files that are out of date; exits with 1 if there are any
    python tools/reference.py --write    # writes them

A page of a command is written by hand, but for what stands between `<!-- options -->` and `<!-- end -->`. A page of an
algorithm or of a name of the API is made as a whole. `tests/test_reference_pages.py` compares all of them.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from itertools import pairwise, takewhile
from pathlib import Path

import click

import rlgraph
from rlgraph.cli import rlgraph as commands
from rlgraph.cli.listing import algorithms
from rlgraph.dsl import tree
from rlgraph.dsl.parse import parse
from rlgraph.errors import Source

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
SETTABLE = ("param", "model", "data", "func", "env")
"""The declarations that `--set` replaces."""


def generated() -> dict[Path, str]:
    """Return the text of every file that is made here, by its path."""
    reference = DOCS / "reference"
    made = {path: command_page(path) for path in sorted((reference / "cli").glob("*.md"))}
    index = reference / "cli.md"
    made[index] = between(index.read_text("utf-8"), "commands", command_table(made))
    made |= {reference / f"algorithms/{name}.md": algorithm_page(name, text) for name, text in algorithms().items()}
    public = [name for name in rlgraph.__all__ if not name.startswith("_")]
    made |= {reference / f"python/{name}.md": python_page(name) for name in public}
    made[DOCS / "llms.txt"] = llms_txt(made)
    return made


def between(text: str, name: str, made: str) -> str:
    """Return a text with what stands between `<!-- name -->` and `<!-- end -->` replaced."""
    now, found = re.subn(rf"(<!-- {name} -->\n).*?(<!-- end -->)", lambda m: m[1] + made + m[2], text, flags=re.DOTALL)
    assert found == 1, f"`<!-- {name} -->` stands once on a page"
    return now


def table(*rows: tuple[str, ...]) -> str:
    """Return a table in Markdown; the first row is its head."""
    lines = [rows[0], tuple("---" for _ in rows[0]), *rows[1:]]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


# The command line


def command_names(group: click.Group = commands, prefix: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield every command by its name, `trace check` for one of a group."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from command_names(command, f"{prefix}{name} ")
        else:
            yield prefix + name, command


def command_page(path: Path) -> str:
    """Return the page of a command, whose file has its name, with the usage and the options of now."""
    name = path.stem.replace("-", " ")
    command = dict(command_names())[name]
    usage = " ".join(["rlgraph", name, *command.collect_usage_pieces(click.Context(command))])
    rows = [option_row(option) for option in command.params if isinstance(option, click.Option)]
    shown = table(("option", "meaning", "if it is not given"), *rows) if rows else "It has no options.\n"
    return between(path.read_text("utf-8"), "options", f"```text\n{usage}\n```\n\n{shown}")


def option_row(option: click.Option) -> tuple[str, str, str]:
    """Return an option with its value, its help, and its default, which the help or the parser says."""
    kinds = "|".join(option.type.choices) if isinstance(option.type, click.Choice) else "N"
    names = f"{', '.join(option.opts)} {'' if option.is_flag else option.metavar or kinds}".strip()
    said = re.fullmatch(r"(.*?)(?: \[default: (.*)\])?", " ".join((option.help or "").split()))
    assert said is not None
    about = re.sub(r"(?<![`\w-])--[a-z-]+", r"`\g<0>`", said[1]) + " May be repeated." * option.multiple
    known = isinstance(option.default, int | float | str | Path) and not option.is_flag
    value = f"{option.default:g}" if isinstance(option.default, float) else f"{option.default}"
    return f"`{names}`", about, said[2] or (f"`{value}`" if known else "")


def command_table(pages: Mapping[Path, str]) -> str:
    """Return the commands, in the order in which `rlgraph --help` names them, with what their pages begin with."""
    rows = []
    for name, _ in sorted(command_names()):
        file = f"cli/{name.replace(' ', '-')}.md"
        rows.append((f"[`rlgraph {name}`]({file})", first_sentence(pages[DOCS / "reference" / file])))
    return table(("command", "what it does"), *rows)


# Algorithms


def algorithm_page(name: str, text: str) -> str:
    """Return the page of an algorithm that ships."""
    program = parse(Source(f"{name}.rlf", text))
    comments = {comment.line: comment.text.lstrip("# ") for comment in program.comments}
    title = " ".join(line.lstrip("# ") for line in takewhile(lambda line: line[0] == "#", text.splitlines()))
    title = re.sub(r"\d{4}\.\d{5}", r"[\g<0>](https://arxiv.org/abs/\g<0>)", title)
    declared = [item for item in program.declarations if isinstance(item, tree.Declaration) and item.kind in SETTABLE]
    options = [
        (f"`{item.name}`", item.kind, f"`{item.value.span.text}`", comments.get(item.span.line, ""))
        for item in declared
    ]
    data = [f"--set '{item.name}=jsonl(\"{item.name}.jsonl\", batch=8)'" for item in declared if item.kind == "data"]
    reports = [
        (f"`{metric.name}`", f"`{metric.value.span.text}`", "each step" if block == "step" else block)
        for phase in program.declarations
        if isinstance(phase, tree.Phase)
        for block, metric in reported(phase.body, phase.name)
    ]
    schedule = f"rlgraph/algorithms/{name}.rls"
    parts = [
        f"# {name}",
        f"{title}.",
        f"```sh\nrlgraph run {name} --steps 100 {' '.join(data)}\nrlgraph list {name} > mine.rlf   # to edit\n```",
        fence(f"rlgraph/algorithms/{name}.rlf", "rlf"),
        f"## Options\n\n{table(('`--set NAME=`', 'kind', 'if it is not given', 'meaning'), *options)}".rstrip(),
        f"## Metrics\n\n{table(('metric', 'value', 'when'), *reports)}".rstrip(),
    ]
    if (ROOT / schedule).exists():
        parts += ["## Schedule", fence(schedule, "text")]
    parts.append("[How many lines it has](../algorithms.md), beside other systems.")
    return "\n\n".join(parts) + "\n"


def fence(file: str, language: str) -> str:
    """Return a file of the repository as a fence that the tests compare with it."""
    return f"<!-- file: {file} -->\n```{language}\n{(ROOT / file).read_text('utf-8')}```"


def reported(body: tuple[tree.Stmt, ...], when: str) -> Iterator[tuple[str, tree.Option]]:
    """Yield every metric that a block reports, with the phase or the steps in which it does."""
    for statement in body:
        if isinstance(statement, tree.Report):
            yield from ((when, metric) for metric in statement.items)
        elif isinstance(statement, tree.Loop):
            counted = isinstance(statement, tree.OnSteps)
            yield from reported(statement.body, f"{statement.word} {statement.count.span.text}" if counted else when)


# Python


def python_page(name: str) -> str:
    """Return the page of a public name. Where a forge shows its stub, the site has Sphinx's autodoc."""
    thing = getattr(rlgraph, name)
    kind = "function" if inspect.isfunction(thing) else "exception" if issubclass(thing, BaseException) else "class"
    # What a public class has from one that is not public is its own for users.
    bases = thing.__mro__[1:] if kind == "class" else ()
    stubs = [stub(base) for base in (thing, *bases) if base.__module__.startswith("rlgraph")]
    shown = "\n\n\n".join(stubs)
    return (
        f"# rlgraph.{name}\n\n{first_sentence(inspect.getdoc(thing) or '')}\n\n"
        f"<!-- auto{kind}: rlgraph.{name} -->\n```python no-run\n{shown}\n```\n<!-- end -->\n"
    )


def stub(thing: type) -> str:
    """Return the source of a function or a class without its code: signatures, fields and docstrings."""
    source = inspect.getsource(thing)
    lines, [node] = source.splitlines(), ast.parse(source).body
    assert isinstance(node, ast.FunctionDef | ast.ClassDef)
    shown = lines[: node.body[0].end_lineno]
    fields = [""]
    members = [*node.body[1:], None] if isinstance(node, ast.ClassDef) else []
    for member, following in pairwise(members):
        if isinstance(member, ast.FunctionDef) and not member.name.startswith("_") and ast.get_docstring(member):
            first = min([member.lineno, *(decorator.lineno for decorator in member.decorator_list)])
            shown += ["", *lines[first - 1 : member.body[0].end_lineno]]
        elif isinstance(member, ast.AnnAssign):
            # The text below a field is its docstring.
            last = following if isinstance(following, ast.Expr) else member
            shown += [*fields, *lines[member.lineno - 1 : last.end_lineno]]
            fields = []
    return "\n".join(shown)


# llms.txt (https://llmstxt.org)


def llms_txt(made: Mapping[Path, str]) -> str:
    """Return the table of contents with a line for each page: its title, and the sentence that it begins with."""

    def read(path: Path) -> str:
        return made.get(path) or path.read_text("utf-8")

    parts = [f"# rlgraph\n\n> {first_sentence(read(DOCS / 'index.md'))}\n"]
    for caption, entries in contents():
        lines = []
        for path in entries:
            title = read(path).partition("\n")[0].lstrip("# ")
            lines.append(f"- [{title}]({path.relative_to(DOCS)}): {first_sentence(read(path))}\n")
        parts.append(f"\n## {caption}\n\n{''.join(lines)}")
    return "".join(parts)


def contents() -> Iterator[tuple[str, list[Path]]]:
    """Yield the captions of the table of contents with their pages, as Sphinx resolves them."""
    for block in re.findall(r"```{toctree}\n(.*?)```", (DOCS / "contents.md").read_text("utf-8"), re.DOTALL):
        options, _, entries = block.partition("\n\n")
        caption = re.search(r":caption: (.*)", options)
        pages: list[Path] = []
        for entry in entries.split():
            pages += (path for path in sorted(DOCS.glob(f"{entry}.md")) if path not in pages)
        if caption:
            # A page with a folder of its name is followed by the pages in that folder: see `docs/conf.py`.
            yield caption[1], [each for page in pages for each in (page, *sorted(page.with_suffix("").glob("*.md")))]


def first_sentence(text: str) -> str:
    """Return the first sentence of a page's prose, or of a docstring, without links."""
    prose = re.sub(r"^```.*?^```|<!--.*?-->|^#.*?$|^\|.*?$|\*\*|^- ", "", text, flags=re.DOTALL | re.MULTILINE).strip()
    words = re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", " ".join(prose.split("\n\n")[0].split()))
    sentence = re.split(r"(?<=[.?!]) ", words)[0]
    return sentence if sentence.endswith(("?", ".")) else f"{sentence.removesuffix(':')}."


def main() -> int:
    parser = argparse.ArgumentParser(description="Writes the reference from what it describes.")
    parser.add_argument("--write", action="store_true", help="write what is out of date")
    write = parser.parse_args().write
    made = generated()
    stale = [path for path, text in made.items() if not path.exists() or path.read_text("utf-8") != text]
    for path in stale:
        if write:
            path.write_text(made[path], "utf-8")
        print(f"{'wrote' if write else 'out of date:'} {path.relative_to(ROOT)}")
    return int(bool(stale) and not write)


if __name__ == "__main__":
    sys.exit(main())
