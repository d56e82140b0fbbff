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
from collections.abc import Iterable, Iterator, Mapping
from itertools import takewhile
from pathlib import Path

import click

import rlgraph
from rlgraph.cli import rlgraph as commands
from rlgraph.cli.listing import shipped_algorithms
from rlgraph.dsl import tree
from rlgraph.dsl.inline_uses import inline_used_programs
from rlgraph.dsl.parse import parse
from rlgraph.errors import Source

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
CLI, ALGORITHMS, PYTHON = (DOCS / "reference" / name for name in ("cli", "algorithms", "python"))


def generated() -> dict[Path, str]:
    """Return the text of every file that is made here, by its path."""
    made = {CLI / f"{name.replace(' ', '-')}.md": command_page(name) for name in command_names()}
    index = CLI.with_suffix(".md")
    made[index] = between(index.read_text("utf-8"), "commands", command_table(made))
    made |= {ALGORITHMS / f"{name}.md": algorithm_page(name, text) for name, text in shipped_algorithms().items()}
    made |= {PYTHON / f"{name}.md": python_page(name) for name in rlgraph.__all__ if not name.startswith("_")}
    made[DOCS / "llms.txt"] = llms_txt(made)
    return made


def stale() -> dict[Path, str]:
    """Return of the generated files those that are out of date."""
    return {path: now for path, now in generated().items() if not path.exists() or path.read_text("utf-8") != now}


def between(text: str, name: str, made: str) -> str:
    """Return a text with what stands between `<!-- name -->` and `<!-- end -->` replaced."""
    now, count = re.subn(rf"(<!-- {name} -->\n).*?(<!-- end -->)", lambda m: m[1] + made + m[2], text, flags=re.DOTALL)
    assert count == 1, f"a page has `<!-- {name} -->` once"
    return now


def table(*rows: tuple[str, ...]) -> str:
    """Return a table in Markdown; the first row is its head."""
    lines = [rows[0], tuple("---" for _ in rows[0]), *rows[1:]]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def command_names() -> dict[str, click.Command]:
    """Return the commands by their names, `trace check` for one of a group."""
    groups = {name: getattr(command, "commands", {"": command}) for name, command in sorted(commands.commands.items())}
    return {f"{name} {inner}".strip(): command for name, group in groups.items() for inner, command in group.items()}


def command_page(name: str) -> str:
    """Return the page of a command with its usage and its options of now."""
    command = command_names()[name]
    usage = " ".join(["rlgraph", name, *command.collect_usage_pieces(click.Context(command))])
    rows = [option_row(option) for option in command.params if isinstance(option, click.Option)]
    shown = table(("option", "meaning", "if not given"), *rows) if rows else "It has no options.\n"
    page = (CLI / f"{name.replace(' ', '-')}.md").read_text("utf-8")
    return between(page, "options", f"```text\n{usage}\n```\n\n{shown}")


def option_row(option: click.Option) -> tuple[str, str, str]:
    """Return an option with its value, its help, and its default, which the help or the parser says."""
    value = option.metavar or "|".join(getattr(option.type, "choices", [option.type.name.split()[0].upper()]))
    match = re.fullmatch(r"(.*?)(?: \[default: (.*)\])?", " ".join((option.help or "").split()))
    assert match is not None
    about = (
        re.sub(r"(?<![`\w-])--[a-z-]+(?: '.*?'| \w+=\w+)?", r"`\g<0>`", match[1])
        + " May be repeated." * option.multiple
    )
    default = option.default if isinstance(option.default, int | float | str | Path) and not option.is_flag else ""
    default = f"{default:g}" if isinstance(default, float) else f"{default}"
    return f"`{', '.join(option.opts)}{'' if option.is_flag else f' {value}'}`", about, match[2] or default


def command_table(pages: Mapping[Path, str]) -> str:
    """Return the commands with the sentences that their pages begin with."""
    links = {f"[`{page.partition(chr(10))[0][2:]}`](cli/{path.name})": page for path, page in pages.items()}
    return table(("command", "what it does"), *((link, first_sentence(page)) for link, page in links.items()))


def algorithm_page(name: str, text: str) -> str:
    """Return the page of an algorithm that ships."""
    source = inline_used_programs(Source(f"{name}.rlf", text))
    program = parse(source)
    comments = {comment.line: comment.text.lstrip("# ") for comment in program.comments}
    title = " ".join(line.lstrip("# ") for line in takewhile(lambda line: line[0] == "#", text.splitlines()))
    title = re.sub(r"\d{4}\.\d{5}", r"[\g<0>](https://arxiv.org/abs/\g<0>)", title)
    # `--set` replaces every declaration but a buffer.
    declared = [d for d in program.declarations if isinstance(d, tree.Declaration) and d.kind != "buffer"]
    data = [f"--set '{d.name}=jsonl(\"{d.name}.jsonl\", batch=8)'" for d in declared if d.kind == "data"]
    options = [
        (f"`{d.name}`", d.kind, f"`{d.value.span.covered_text}`", comments.get(d.span.line, "")) for d in declared
    ]
    metrics = table(("metric", "value", "when"), *reported(program.declarations, "each step"))
    return (
        f"# {name}\n\n{title}.\n\n```sh\nrlgraph run {name} --steps 100 {' '.join(data)}\n"
        f"rlgraph list {name} > mine.rlf   # to edit\n```\n\n"
        f"<!-- file: rlgraph/algorithms/{name}.rlf -->\n```rlf\n{text}```\n\n"
        f"## Mathematics\n\n{formulas(name)}\n"
        f"## Options\n\n{table(('`--set NAME=`', 'kind', 'if not given', 'meaning'), *options)}\n"
        f"## Metrics\n\n{metrics}\n[How many lines it has](../algorithms.md), beside other systems.\n"
    )


def formulas(name: str) -> str:
    """Return what an algorithm computes as formulas, below what their indices count."""
    comments, blocks = [], []
    for line in rlgraph.compile(name).to_latex().splitlines(keepends=True):
        (comments if line.startswith("% ") else blocks).append(line)
    indices = [line.removeprefix("% ").strip().split(": ") for line in comments]
    told = ", ".join(f"*{letter}* of {names}" for letter, names in indices)
    shown = "".join(blocks).replace("\\end{aligned}\n\\begin", "\\end{aligned}\n```\n\n```math\n\\begin")
    return f"Indices: {told} (`rlgraph compile {name} --emit latex`).\n\n```math\n{shown}```\n"


def reported(body: Iterable[tree.Decl | tree.Stmt], when: str) -> Iterator[tuple[str, str, str]]:
    """Yield every metric that a block reports, with its expression and the steps in which it does."""
    for item in body:
        if isinstance(item, tree.Report):
            yield from ((f"`{metric.name}`", f"`{metric.value.span.covered_text}`", when) for metric in item.items)
        elif isinstance(item, tree.OnSteps):
            yield from reported(item.body, f"{item.word} {item.count.span.covered_text}")
        elif isinstance(item, tree.Phase | tree.Loop):
            yield from reported(item.body, f"phase {item.name}" if getattr(item, "name", "step") != "step" else when)


def python_page(name: str) -> str:
    """Return the page of a public name. Where a forge shows its stub, the site has Sphinx's autodoc."""
    thing = getattr(rlgraph, name)
    kind = "function" if inspect.isfunction(thing) else "exception" if issubclass(thing, BaseException) else "class"
    # What a public class has from one that is not public is its own for users.
    classes = thing.__mro__ if kind == "class" else (thing,)
    stubs = "\n\n\n".join(stub(base) for base in classes if base.__module__.startswith("rlgraph"))
    head = f"# rlgraph.{name}\n\n{first_sentence(inspect.getdoc(thing) or '')}"
    return f"{head}\n\n<!-- auto{kind}: rlgraph.{name} -->\n```python no-run\n{stubs}\n```\n<!-- end -->\n"


def stub(thing: type) -> str:
    """Return the source of a function or a class without its code: signatures, fields and docstrings."""
    source = inspect.getsource(thing)
    lines, [node] = source.splitlines(), ast.parse(source).body
    assert isinstance(node, ast.FunctionDef | ast.ClassDef)
    shown, end = [], 0
    for member in node.body if isinstance(node, ast.ClassDef) else node.body[:1]:
        if not isinstance(member, ast.FunctionDef):
            shown += lines[end : member.end_lineno]
        elif not member.name.startswith("_") and ast.get_docstring(member):
            shown += lines[end : member.body[0].end_lineno]
        end = member.end_lineno or end
    return "\n".join(shown)


def llms_txt(made: Mapping[Path, str]) -> str:
    """Return the table of contents with the first sentence of each page, for language models: https://llmstxt.org."""
    text = f"# rlgraph\n\n> {first_sentence((DOCS / 'index.md').read_text('utf-8'))}\n"
    for caption, paths in contents():
        text += f"\n## {caption}\n\n"
        for path in paths:
            page = made.get(path) or path.read_text("utf-8")
            text += f"- [{page.partition(chr(10))[0][2:]}]({path.relative_to(DOCS)}): {first_sentence(page)}\n"
    return text


def contents() -> Iterator[tuple[str, list[Path]]]:
    """Yield the captions of the table of contents with their pages, as Sphinx resolves them."""
    text = (DOCS / "contents.md").read_text("utf-8")
    for caption, entries in re.findall(r"```{toctree}\n:caption: ([^\n]*)\n(?::glob:\n)?\n(.*?)```", text, re.DOTALL):
        paths = [path for entry in entries.split() for path in sorted(DOCS.glob(f"{entry}.md"))]
        # A page with a folder of its name is followed by the pages in that folder: see `docs/conf.py`.
        nested = [page for path in dict.fromkeys(paths) for page in (path, *sorted(path.with_suffix("").glob("*.md")))]
        yield caption, nested


def first_sentence(text: str) -> str:
    """Return the first sentence of a page's prose, or of a docstring, without links."""
    prose = re.sub(r"^```.*?^```|<!--.*?-->|^#.*?$|^\|.*?$|\*\*|^- ", "", text, flags=re.DOTALL | re.MULTILINE).strip()
    words = re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", " ".join(prose.split("\n\n")[0].split()))
    sentence = re.split(r"(?<=[.?!]) ", words)[0]
    return sentence if sentence.endswith(("?", ".")) else f"{sentence.removesuffix(':')}."


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Writes the reference from what it describes.")
    parser.add_argument("--write", action="store_true", help="write what is out of date")
    write = parser.parse_args().write
    out_of_date = stale()
    for path, now in out_of_date.items():
        print(f"{'wrote' if write else 'out of date:'} {path.relative_to(ROOT)}")
        if write:
            path.write_text(now, "utf-8")
    sys.exit(bool(out_of_date) and not write)
