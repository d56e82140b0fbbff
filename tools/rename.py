"""Renames members, functions and classes by mypy's resolution: `python tools/rename.py tools/renames.txt [--apply]`.

A line `old new Class` renames a member of a class (or of several, with commas; the end of a full name is enough), in
its subclasses and in the Protocols that it implements, too. A line `rlgraph.module:old new` renames a function or a
class of a module. All lines are resolved on one build of the tree as it is, so they name classes and modules as they
are now. What is left is printed: NOT THERE, AMBIGUOUS (the first line of a family of classes holds), TAKEN, BY HAND,
and ANY (a value without a type, with a name that is renamed elsewhere). Without `--apply` no file changes.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mypy import build, nodes, types
from mypy.main import process_options
from mypy.modulefinder import BuildSource
from mypy.state import state
from mypy.subtypes import is_subtype
from mypy.typevars import fill_typevars

LINKS = {"node", "info", "analyzed", "type", "unanalyzed_type", "names", "imports", "mro", "original_def", "def_var"}
"""Attributes of mypy's nodes that lead out of the tree."""

TORCH = re.compile(
    "shape|dtype|to|sum|view|tensor|where|device|type|get|mean|clone|update|add|split|state|item|write|all|wait|copy|"
    "read|next"
)
"""Names that a value without a type usually has from torch or from a container."""

BY_STRING = {"hasattr", "getattr", "setattr", "delattr", "object"}
"""Functions, and methods of `monkeypatch` and `patch`, that take an object and the name of its attribute."""


@dataclass
class File:
    """A file of the tree: its text, its syntax, and what mypy knows of its expressions."""

    path: Path
    module: str
    lines: list[bytes]
    tree: ast.Module
    expressions: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    classes: dict[tuple[int, str], nodes.TypeInfo] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    """The full names of what the file imports or defines, by its name in the file."""
    edits: dict[tuple[int, int], tuple[str, str]] = field(default_factory=dict)
    """The old name and the full name of what is renamed, by line and column (in bytes)."""


class Renaming:
    """The new names, by the full name of a function, a class or a member, and where they go."""

    def __init__(self) -> None:
        self.files, self.types = _build()
        self.modules = {file.module: file for file in self.files}
        self.classes = {info.fullname: info for file in self.files for info in file.classes.values()}
        self.news: dict[str, str] = {}

    def read(self, path: str) -> None:
        """Read the lines of a list, and print those that name nothing."""
        for line in Path(path).read_text("utf-8").splitlines():
            entry = line.split("#")[0].strip()
            if match := re.fullmatch(r"([\w.]+):(\w+) (\w+)", entry):
                full = f"{match[1]}.{match[2]}"
                if match[1] not in self.modules or self.modules[match[1]].names.get(match[2]) != full:
                    print("NOT THERE", entry)
                self.news[full] = match[3]
            elif entry:
                old, new, names = entry.split()
                for name in names.split(","):
                    self._read_member(old, new, name.removeprefix("rlgraph."))
        while taken := {*self._taken_members()}:
            self.news = {full: new for full, new in self.news.items() if (full.rpartition(".")[2], new) not in taken}

    def _read_member(self, old: str, new: str, name: str) -> None:
        """Add a member of a class, of its subclasses and base classes, of Protocols and what implements them."""
        seeds = [full for full, info in self.classes.items() if old in info.names and _ends(full, name)]
        seeds = [full for full in seeds if full.startswith("rlgraph.") or "." in name]
        if len(seeds) != 1:
            print("AMBIGUOUS" if seeds else "NOT THERE", old, new, name, *seeds)
            return
        if self.news.get(f"{seeds[0]}.{old}", new) != new:
            print("AMBIGUOUS", old, new, name, self.news[f"{seeds[0]}.{old}"])
        others = [name for name, info in self.classes.items() if any(old in base.names for base in info.mro)]
        visited: set[str] = set()
        while seeds:
            full = seeds.pop()
            if full not in visited:
                visited.add(full)
                (member,) = self.members([self.classes[full]], old)
                if member.rpartition(".")[0] in self.classes:
                    self.news.setdefault(member, new)
                seeds += [other for other in others if self._related(self.classes[full], self.classes[other])]

    def _related(self, one: nodes.TypeInfo, other: nodes.TypeInfo) -> bool:
        """Return whether one class is derived from the other, or has all that it asks for as a Protocol."""
        if one in other.mro or other in one.mro:
            return True
        pairs = [(a, b) for a, b in ((one, other), (other, one)) if a.is_protocol]
        pairs = [(a, b) for a, b in pairs if self._public(a) <= self._public(b)]
        return any(len(self._public(a)) > 1 or is_subtype(fill_typevars(b), fill_typevars(a)) for a, b in pairs)

    def _public(self, info: nodes.TypeInfo) -> set[str]:
        names = {name for base in info.mro if base.fullname in self.classes for name in base.names}
        return {name for name in names if not name.startswith("_")}

    def _taken_members(self) -> Iterator[tuple[str, str]]:
        """Yield old and new names of members that would meet another of a class, or part from what they override."""
        for info in self.classes.values():
            pairs = {(name, self.news.get(f"{base.fullname}.{name}", name)) for base in info.mro for name in base.names}
            olds, news = [old for old, _ in pairs], [new for _, new in pairs]
            for old, new in pairs:
                if old != new and (olds.count(old) > 1 or news.count(new) > 1):
                    print("TAKEN", info.fullname, old, new)
                    yield old, new

    def origin(self, full: str) -> str:
        """Return the full name where a thing is defined, in place of a module or a subclass that passes it on."""
        for _ in range(10):
            owner, _, name = full.rpartition(".")
            if owner in self.classes:
                bases = (base for base in self.classes[owner].mro if name in base.names)
                return f"{next(bases, self.classes[owner]).fullname}.{name}"
            if owner not in self.modules or self.modules[owner].names.get(name, full) == full:
                break
            full = self.modules[owner].names[name]
        return full

    def full(self, file: File, node: ast.expr) -> str:
        """Return the full name that an expression is, or nothing; annotations are no expressions for mypy."""
        if isinstance(node, ast.Attribute):
            owner = self.full(file, node.value)
            return self.origin(f"{owner}.{node.attr}") if owner else ""
        if not isinstance(node, ast.Name):
            return ""
        imported = self.origin(file.names.get(node.id, ""))
        known = file.expressions.get(_span(node))
        if not isinstance(known, nodes.NameExpr) or not known.node:
            return imported
        full = self.origin(known.node.fullname)
        local = known.kind == nodes.LDEF and not isinstance(known.node, nodes.TypeInfo)
        return "" if local and full != imported else full  # mypy puts a local function into the class

    def owners(self, file: File, node: ast.expr) -> list[nodes.TypeInfo] | None:
        """Return the classes whose members an expression has, or None for Any."""
        known = file.expressions.get(_span(node))
        info = self.classes.get(self.full(file, node))
        return [info] if info else _classes_of(self.types.get(known))

    def members(self, owners: Iterable[nodes.TypeInfo] | None, name: str) -> list[str]:
        bases = (next((base for base in info.mro if name in base.names), info) for info in owners or [])
        return [f"{base.fullname}.{name}" for base in bases]

    def edit(
        self, file: File, line: int, start: int, old: str, fulls: list[str], text: Any = None, before: str = r"(?<!\.)"
    ) -> bool:
        """Note a new name; `text` is the f-string around it, in which Python 3.11 does not know positions: a name is
        where `before` stands before it."""
        full = next((full for full in fulls if full in self.news and full.endswith(f".{old}")), "")
        places = [(line, start)] if full and not text else []
        for at in range(text.lineno, text.end_lineno + 1) if full and text else []:
            pattern = rf"{before}\b({old})\b(?=[^{{}}]*\}})".encode()
            places += [(at, match.start(1)) for match in re.finditer(pattern, file.lines[at - 1])]
        places = [(at, start) for at, start in places if re.match(rb"%s\b" % old.encode(), file.lines[at - 1][start:])]
        file.edits = {place: (old, full) for place in places} | file.edits
        if full and not places:
            print("BY HAND", f"{file.path}:{line}", old, self.news[full])
        return bool(full)

    def follow(self, file: File) -> None:
        """Note all places of a file where something is renamed."""
        olds = {full.rpartition(".")[2] for full in self.news}
        outer = [node for node in ast.walk(file.tree) if isinstance(node, ast.JoinedStr)]
        texts = {part: text for text in reversed(outer) for part in ast.walk(text)}
        for node in ast.walk(file.tree):
            if isinstance(node, ast.Name) and node.id in olds:
                self.edit(file, *_start(node), node.id, [self.full(file, node)], texts.get(node))
            elif isinstance(node, ast.Attribute) and node.attr in olds:
                self._attribute(file, node, texts.get(node))
            elif isinstance(node, ast.Call):
                self._call(file, node, olds)
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    full = self.origin(f"{node.module}.{alias.name}")
                    self.edit(file, *_start(alias), alias.name, [full])
                    if alias.asname == alias.name:
                        start = (alias.end_col_offset or 0) - len(alias.name)
                        self.edit(file, alias.end_lineno or 0, start, alias.name, [full])
            elif isinstance(node, ast.MatchClass):
                for name, pattern in zip(node.kwd_attrs, node.kwd_patterns, strict=True):
                    start = pattern.col_offset - len(name) - 1
                    self.edit(file, pattern.lineno, start, name, self.members(self.owners(file, node.cls), name))
            elif isinstance(node, ast.Module | ast.ClassDef):
                info = file.classes.get((node.lineno, node.name)) if isinstance(node, ast.ClassDef) else None
                owner = info.fullname if info else file.module
                for line, start, name in (place for part in node.body for place in _defined(part)):
                    self.edit(file, line, start, name, [self.origin(f"{owner}.{name}")])
            for typed in (getattr(node, "annotation", None), getattr(node, "returns", None)):
                for part in ast.walk(typed) if isinstance(typed, ast.expr) else []:
                    self._text(file, part)
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
                for part in ast.walk(node.value):
                    self._text(file, part)
        self._texts(file)

    def _attribute(self, file: File, node: ast.Attribute, text: Any) -> None:
        line, start = node.end_lineno or 0, (node.end_col_offset or 0) - len(node.attr.encode())
        owner = self.full(file, node.value)
        known = file.expressions.get(_span(node))
        within = known.info if isinstance(known, nodes.SuperExpr) else None
        owners = within.mro[1:] if within else self.owners(file, node.value)
        fulls = [self.full(file, node), *self.members(owners, node.attr)]
        foreign = owner and owner.split(".")[0] != "rlgraph" or file.path.parts[0] != "rlgraph"
        told = owners is None and not foreign and owner not in self.modules and not TORCH.fullmatch(node.attr)
        before = rf"(?<![\w.]){re.escape(ast.unparse(node.value))}\."
        if not self.edit(file, line, start, node.attr, fulls, text, before) and told:
            print("ANY", f"{file.path}:{line}", node.attr)

    def _call(self, file: File, node: ast.Call, olds: set[str]) -> None:
        """Follow keywords that are fields, and names in strings."""
        called = self.full(file, node.func)
        name = getattr(node.func, "attr", called.rpartition(".")[2] or getattr(node.func, "id", ""))
        if name == "cast" and node.args:
            self._text(file, node.args[0])
        if name in BY_STRING and len(node.args) > 1 and isinstance(node.args[1], ast.Constant):
            old, (line, start) = str(node.args[1].value), _start(node.args[1])
            fulls = [self.origin(f"{self.full(file, node.args[0])}.{old}")]
            self.edit(file, line, start + 1, old, fulls + self.members(self.owners(file, node.args[0]), old))
        made = getattr(node.func, "value", node.func) if name == "_replace" else node.func
        made = made.value if isinstance(made, ast.Subscript) else made
        made = node.args[0] if called in ("dataclasses.replace", "copy.replace") and node.args else made
        for keyword in (keyword for keyword in node.keywords if keyword.arg in olds):
            owners = [info for info in self.owners(file, made) or [] if _has_fields(info)]
            self.edit(file, *_start(keyword), keyword.arg or "", self.members(owners, keyword.arg or ""))

    def _text(self, file: File, node: ast.AST) -> None:
        """Follow the names of the file within a string that is a type or an entry of `__all__`."""
        for match in re.finditer(r"\w+", str(node.value)) if isinstance(node, ast.Constant) else []:
            full = self.origin(file.names.get(match[0], ""))
            self.edit(file, node.lineno, node.col_offset + 1 + match.start(), match[0], [full])

    def _texts(self, file: File) -> None:
        """Follow `rlgraph.module.name`, `rlgraph.module:name`, `Class.member` and `Name` in docstrings and comments."""
        for number, line in enumerate(file.lines, 1):
            for match in re.finditer(rb"(?<![\w./])[A-Za-z_]\w*(?:[.:]\w+)+|(?<=`)[A-Za-z_]+(?=`)", line):
                parts = [(part[0].decode(), match.start() + part.start()) for part in re.finditer(rb"\w+", match[0])]
                full = ""
                for name, start in parts:
                    full = f"{full}.{name}" if full else file.names.get(name, name)
                    full = full if full in self.modules else self.origin(full)
                    word = len(parts) == 1 and name.islower() and "_" not in name  # of the language, or a column
                    if full not in self.modules and not word and (len(parts) == 1 or start > match.start()):
                        self.edit(file, number, start, name, [full])

    def taken(self, file: File) -> Iterator[str]:
        """Yield functions and classes whose new name a file has already, or gets from two lines."""
        users: defaultdict[str, set[str]] = defaultdict(set)
        edits = {place: edit for place, edit in file.edits.items() if edit[1] in self.news}
        before = {place: b" " + file.lines[place[0] - 1][: place[1]] for place in edits}
        plain = [edit for place, edit in edits.items() if before[place][-1] not in b'.:"`']
        for _, full in plain:
            if full.rpartition(".")[0] in self.modules:
                users[self.news[full]].add(full)
        olds = {old for old, _ in plain}
        for node in ast.walk(file.tree):
            names = {node.id} if isinstance(node, ast.Name) and _start(node) not in edits else set()
            names |= {node.arg} if isinstance(node, ast.arg) else set()
            names |= {node.asname or node.name} - olds if isinstance(node, ast.alias) else set()
            names |= {name for _, _, name in _defined(node)} - olds if node in file.tree.body else set()
            for name in names & users.keys():
                users[name].add("")
        for new, full in ((new, full) for new, fulls in users.items() if len(fulls) > 1 for full in fulls - {""}):
            print("TAKEN", full, new, file.path)
            yield full


def _build() -> tuple[list[File], dict[nodes.Expression, types.Type]]:
    """Return all files of the tree and the types of their expressions."""
    sources, options = process_options(["--config-file", "pyproject.toml", "-p", "rlgraph"])
    tracked = subprocess.check_output(["git", "ls-files", "*.py"], text=True).split()
    for path in tracked:
        if not path.startswith(("rlgraph/", "examples/engine/")):  # the latter is a package that knows only rlgraph
            module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".").replace("-", "_")
            sources.append(BuildSource(path, module, None))
    options.follow_imports, options.mypy_path, options.cache_dir = "skip", ["."], os.devnull
    options.export_types = options.preserve_asts = options.check_untyped_defs = True
    options.explicit_package_bases, options.namespace_packages, options.incremental = True, True, False
    result = build.build(sources, options)
    files = []
    for module, source in result.graph.items():
        path = os.path.relpath(source.path or os.devnull)
        if source.tree and path in tracked:
            text = Path(path).read_text("utf-8")
            files.append(File(Path(path), module, text.encode().split(b"\n"), ast.parse(text)))
            _index(files[-1], source.tree)
    return files, result.types


def _index(file: File, tree: nodes.MypyFile) -> None:
    """Note the expressions, classes and names of a file (mypy's own visitors cannot be derived from)."""
    queue: list[Any] = [tree]
    seen: set[int] = set()
    while queue:
        node = queue.pop()
        if isinstance(node, list | tuple):
            queue += node
        elif isinstance(node, nodes.Node) and id(node) not in seen:
            seen.add(id(node))
            if isinstance(node, nodes.ClassDef):
                file.classes[node.line, node.name] = node.info
            elif isinstance(node, nodes.Expression):
                span = (node.line, node.column, node.end_line, node.end_column, getattr(node, "name", ""))
                file.expressions.setdefault(span, node)
            names = {name for base in type(node).__mro__ for name in getattr(base, "__mypyc_attrs__", ())}
            queue += [getattr(node, name, None) for name in names - LINKS]
    for part in ast.walk(file.tree):
        for alias in part.names if isinstance(part, ast.Import | ast.ImportFrom) else []:
            module = f"{part.module}." if isinstance(part, ast.ImportFrom) else ""
            local = alias.asname or (alias.name if module else alias.name.split(".")[0])
            file.names[local] = module + alias.name if module or alias.asname else local
    file.names |= {name: f"{file.module}.{name}" for part in file.tree.body for _, _, name in _defined(part)}


def _classes_of(kind: types.Type | None) -> list[nodes.TypeInfo] | None:
    kind = types.get_proper_type(kind)
    if kind is None or isinstance(kind, types.AnyType):
        return None
    if isinstance(kind, types.UnionType):
        return [info for item in kind.items for info in _classes_of(item) or []]
    if isinstance(kind, types.TypeType | types.TypeVarType):
        return _classes_of(kind.item if isinstance(kind, types.TypeType) else kind.upper_bound)
    if isinstance(kind, types.FunctionLike):
        return [kind.type_object()] if kind.is_type_obj() else []
    fallback = getattr(kind, "partial_fallback", getattr(kind, "fallback", kind))
    return [fallback.type] if isinstance(fallback, types.Instance) else []


def _start(node: Any) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _span(node: ast.expr) -> tuple[Any, ...]:
    name = getattr(node, "id", "") or getattr(node, "attr", "")
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset, name


def _defined(node: ast.AST) -> list[tuple[int, int, str]]:
    """Return the names that a statement of a module or a class defines, with the places where they stand."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        word = "class" if isinstance(node, ast.ClassDef) else "def"
        start = node.col_offset + len("async ") * isinstance(node, ast.AsyncFunctionDef) + len(word) + 1
        setters = [part for part in node.decorator_list if isinstance(part, ast.Attribute)]
        return [(node.lineno, start, node.name)] + [
            (*_start(part), node.name) for part in setters if part.attr == "setter"
        ]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [(*_start(target), target.id) for target in targets if isinstance(target, ast.Name)]


def _ends(full: str, name: str) -> bool:
    """Return whether a name is the end of a class's, to whose own mypy adds the line if it is within a function."""
    return f".{re.sub(r'@[0-9]+', '', full)}".endswith(f".{name}")


def _has_fields(info: nodes.TypeInfo) -> bool:
    """Return whether the parameters of a class are its fields."""
    init = next((base.names["__init__"] for base in info.mro if "__init__" in base.names), None)
    return info.is_named_tuple or bool(init and init.plugin_generated)


def main() -> None:
    renaming = Renaming()
    with state.strict_optional_set(True):
        renaming.read(sys.argv[1])
    for file in renaming.files:
        if not file.path.is_relative_to("examples/engine"):
            renaming.follow(file)
    while taken := {full for file in renaming.files for full in renaming.taken(file)}:
        renaming.news = {full: new for full, new in renaming.news.items() if full not in taken}
    for file in renaming.files:
        edits = {place: edit for place, edit in file.edits.items() if edit[1] in renaming.news}
        for (line, start), (old, full) in sorted(edits.items(), reverse=True):
            text = file.lines[line - 1]
            file.lines[line - 1] = text[:start] + renaming.news[full].encode() + text[start + len(old) :]
        if "--apply" in sys.argv and edits:
            file.path.write_bytes(b"\n".join(file.lines))
    print(sum(edit[1] in renaming.news for file in renaming.files for edit in file.edits.values()), "places")


if __name__ == "__main__":
    main()
