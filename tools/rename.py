"""Renames module-level classes and functions wherever they are imported: `python tools/rename.py tools/renames.txt`.

The file has lines `package.module:Old New`. Where a user of a name also has it as a parameter, a variable or a method,
or has the new one already, it is left and reported. Names within f-strings, between backticks in docstrings and in
dotted strings follow; a single word in lower case within a text stays. By hand remain lines that became too long.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import defaultdict
from pathlib import Path

Name = tuple[str, str]
"""A module and a name in it."""


def main() -> None:
    tracked = subprocess.check_output(["git", "ls-files", "*.py"], text=True).split()
    sources = {path: path.read_text("utf-8") for path in map(Path, tracked)}
    trees = {path: ast.parse(source) for path, source in sources.items()}
    modules = {_module(path): path for path in sources}
    passed_on = {_module(path): _imports(tree) for path, tree in trees.items() if path.name == "__init__.py"}
    imports = {path: _origins(_imports(tree), passed_on) for path, tree in trees.items()}
    bound = {path: _bound(tree) for path, tree in trees.items()}
    otherwise = {path: _otherwise(tree) for path, tree in trees.items()}
    users: defaultdict[Name, set[Path]] = defaultdict(set)
    for path, names in imports.items():
        for local, name in names.items():
            if local == name[1]:
                users[name].add(path)
    plain: defaultdict[Path, dict[str, str]] = defaultdict(dict)
    applied: dict[Name, str] = {}
    for line in Path(sys.argv[1]).read_text("utf-8").splitlines():
        match = re.match(r"([\w.]+):(\w+) (\w+)\s*$", line)
        if not match:
            continue
        module, old, new = match.groups()
        if module not in modules or not _defines(trees[modules[module]], old):
            print(f"not there: {module}:{old}")
            continue
        paths = {modules[module], *users[module, old]}
        for path in sorted(paths):
            if new in bound[path] or new in plain[path].values():
                print(f"{module}:{old}: `{new}` is taken in {path}")
                break
            if old in otherwise[path]:
                print(f"{module}:{old} is something else, too, in {path}")
                break
        else:
            applied[module, old] = new
            for path in paths:
                plain[path][old] = new
    for path, source in sources.items():
        changed = _renamed(source, plain[path], imports[path], applied)
        if changed != source:
            path.write_text(changed, "utf-8")
    print(f"{len(applied)} names")


def _module(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def _imports(tree: ast.Module) -> dict[str, Name]:
    """Return what a file imports, by its name there; a module has an empty name."""
    found: dict[str, Name] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.asname or alias.name: (alias.name, "") for alias in node.names}
    return found


def _origins(names: dict[str, Name], passed_on: dict[str, dict[str, Name]]) -> dict[str, Name]:
    """Return the names of a file with the modules that define them, in place of packages that pass them on."""
    found = dict(names)
    for local, name in names.items():
        while (origin := passed_on.get(name[0], {}).get(name[1], name)) != name:  # a package's own module is its own
            name = origin
        found[local] = name
    return found


def _defines(tree: ast.Module, name: str) -> bool:
    return any(isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name for node in tree.body)


def _bound(tree: ast.Module) -> set[str]:
    """Return every name that a file makes or reads without a dot."""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {node.asname or node.name for node in ast.walk(tree) if isinstance(node, ast.alias)}
    names |= {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    return names | {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}


def _otherwise(tree: ast.Module) -> set[str]:
    """Return the names of parameters, variables, methods and inner functions of a file."""
    names = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    inner = {node for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.FunctionDef)} - {*tree.body}
    return names | {node.name for node in inner}


def _renamed(source: str, plain: dict[str, str], imports: dict[str, Name], applied: dict[Name, str]) -> str:
    lines = source.splitlines(keepends=True)
    skipped = (tokenize.NL, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT)
    tokens = [token for token in tokenize.generate_tokens(io.StringIO(source).readline) if token.type not in skipped]
    changes: list[tuple[tokenize.TokenInfo, str]] = []
    depth = 0
    for index, token in enumerate(tokens):
        depth += (token.string in tuple("([{")) - (token.string in tuple(")]}"))
        before, after = (tokens[place].string if 0 <= place < len(tokens) else "" for place in (index - 1, index + 1))
        new = token.string
        if token.type == tokenize.STRING:
            new = _in_string(token.string, plain, applied)
        elif token.type == tokenize.NAME and before == "." and index > 1 and tokens[index - 3].string != ".":
            package, name = imports.get(tokens[index - 2].string, ("", ""))
            new = applied.get((f"{package}.{name}" if name else package, new), new)
        elif token.type == tokenize.NAME and before != ".":
            keyword = after == "=" and depth > 0 and before in ("(", ",")
            field = after == ":" and token.start[1] > 0 and not token.line[: token.start[1]].strip()
            new = new if keyword or field else plain.get(new, new)
        if new != token.string:
            changes.append((token, new))
    for token, new in reversed(changes):
        (first, begin), (last, end) = token.start, token.end
        text = lines[first - 1][:begin] + new + lines[last - 1][end:]
        lines[first - 1 : last] = text.splitlines(keepends=True)
    return "".join(lines)


def _in_string(text: str, plain: dict[str, str], applied: dict[Name, str]) -> str:
    text = re.sub(r"\b(rlgraph[\w.]*)([.:])(\w+)", lambda m: m[1] + m[2] + applied.get((m[1], m[3]), m[3]), text)
    if re.match(r"[rR]?[fF]", text):
        word = re.compile(r"(?<![.\w\"'])(\w+)\b(?!\s*=[^=])")
        return re.sub(r"\{[^{}]+\}", lambda m: word.sub(lambda k: plain.get(k[1], k[1]), m[0]), text)
    if re.fullmatch(r"\"\w+\"", text):
        return f'"{_unmistakable(text[1:-1], plain)}"'  # a type that is made further down, or an entry of `__all__`
    if re.match(r"[rR]?(\"\"\"|''')", text):
        return re.sub(r"`(\w+)`", lambda m: f"`{_unmistakable(m[1], plain)}`", text)
    return text


def _unmistakable(word: str, plain: dict[str, str]) -> str:
    """Return the new name of a word in a text, unless it can be a word of the language, an option or a column."""
    return word if word.islower() and "_" not in word else plain.get(word, word)


if __name__ == "__main__":
    main()
