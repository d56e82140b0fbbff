"""Builds the syntax tree from lark's parse tree."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from lark import Token, Transformer_NonRecursive
from lark.tree import Tree

from rlgraph.dsl import tree, words
from rlgraph.dsl.braces import Sign, split_braced_text
from rlgraph.dsl.logical_lines import LogicalLines, token_position
from rlgraph.errors import Diagnostic, Related, Span

_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)")
_CHARACTER = re.compile(_ESCAPE.pattern + "|.")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\", '"': '"', "'": "'"}


@dataclass(frozen=True, slots=True)
class _Arguments:
    """The contents of the brackets of a call or of a statement."""

    args: tuple[tree.Expr, ...]
    options: tuple[tree.Option, ...]
    span: Span


class TreeBuilder(Transformer_NonRecursive[Token, Any]):
    """Builds the node of every rule of the grammar from its children: tokens, and nodes already built."""

    def __init__(self, logical: LogicalLines) -> None:
        super().__init__()
        self.logical = logical
        self.diagnostics: list[Diagnostic] = []

    def build(self, found: Tree[Token]) -> Any:
        """Return the node of the whole tree; note mistakes that the grammar lets through."""
        return self.transform(found)

    def _fail(self, code: str, message: str, where: Span, hint: str = "", *related: Related) -> None:
        self.diagnostics.append(Diagnostic(code, message, where, hint, related=related))

    # Spans

    def _at(self, child: Any) -> Span:
        return self.logical.span(child) if isinstance(child, Token) else child.span

    def _span(self, children: list[Any]) -> Span:
        return self._at(children[0]).span_to(self._at(children[-1]))

    def _line(self, children: list[Any]) -> Span:
        """Return the span of a statement's children, the last of which is its NEWLINE."""
        return self._span(children[:-1])

    def _name(self, token: Token) -> tree.Name:
        return tree.Name(str(token), self._at(token))

    # Files and declarations

    def file(self, c: list[Any]) -> tree.File:
        return tree.File(tuple(c))

    def expression(self, c: list[Any]) -> Any:
        return c[0]

    word = expression

    def algorithm(self, c: list[Any]) -> tree.Algorithm:
        return tree.Algorithm(str(c[1]), self._line(c))

    def use(self, c: list[Any]) -> tree.Use:
        return tree.Use(self.string(c[1:2]), self._line(c))

    def declaration(self, c: list[Any]) -> tree.Declaration:
        return tree.Declaration(str(c[0]), str(c[1]), c[3], self._at(c[1]), self._line(c))

    def state(self, c: list[Any]) -> tree.State:
        key = str(c[3]) if c[2].type == "LSQB" else None
        return tree.State(str(c[1]), key, c[-2], self._at(c[1]), self._line(c))

    def function(self, c: list[Any]) -> tree.Def:
        _, name, parameters, _, body = c
        header = self._span(c[:3])
        for statement in body[:-1]:
            if isinstance(statement, tree.Return):
                self._fail(
                    "E0123",
                    "nothing can follow this `return`",
                    statement.span,
                    "a `def` ends in its one `return`",
                )
        only_computes = all(isinstance(statement, tree.Assign | tree.Return) for statement in body)
        if only_computes and not isinstance(body[-1], tree.Return):
            self._fail("E0123", f"`{name}` returns nothing", header, "end its block with `return` and the value")
        names: dict[str, tree.Name] = {}
        for parameter in parameters.names:
            if parameter.id in names:
                first = Related(names[parameter.id].span, "first named here")
                self._fail("E0119", f"the parameter `{parameter.id}` is named twice", parameter.span, "", first)
            names[parameter.id] = parameter
        return tree.Def(str(name), parameters.names, body, self._at(name), header)

    def parameters(self, c: list[Any]) -> _Parameters:
        return _Parameters(tuple(self._name(t) for t in c if t.type == "NAME"), self._span(c))

    def result(self, c: list[Any]) -> tree.Return:
        return tree.Return(c[1], self._line(c))

    def step(self, c: list[Any]) -> tree.Phase:
        options = self._options("step async", c[2])
        return tree.Phase("step", len(c) > 3, options, c[-1], self._span(c[:-2]))

    def phase(self, c: list[Any]) -> tree.Phase:
        return tree.Phase(str(c[1]), False, self._options("phase", c[2]), c[-1], self._span(c[:-2]))

    def change(self, c: list[Any]) -> tree.Change:
        named = c[1] if c[1].type == "NAME" else None
        return tree.Change(str(named or ""), tuple(c[4 + (named is not None) : -1]), self._at(named or c[0]))

    def addition(self, c: list[Any]) -> tree.Addition:
        return tree.Addition(str(c[0]), c[1].id, c[1].span, c[-1], self._span(c[:-2]))

    def anchor(self, c: list[Any]) -> tree.Name:
        return tree.Name(" ".join(map(str, c)), self._span(c))

    # Statements

    def block(self, c: list[Any]) -> tuple[tree.Stmt, ...]:
        return tuple(c[2:-1])

    recipe = block

    def assign(self, c: list[Any]) -> tree.Assign:
        return tree.Assign(str(c[0]), c[2], self._at(c[0]), self._line(c))

    def store(self, c: list[Any]) -> tree.Store:
        target: tree.Expr = self._name(c[0])
        if c[1].type == "LSQB":
            target = tree.Index(target, c[2], self._span(c[:4]))
        return tree.Store(target, c[-2], self._line(c))

    def minimize(self, c: list[Any]) -> tree.Minimize:
        return tree.Minimize(c[1], self._line(c))

    def report(self, c: list[Any]) -> tree.Report:
        items = tuple(child for child in c if isinstance(child, tree.Option))
        self._no_repeats(items)
        return tree.Report(items, self._line(c))

    def bare(self, c: list[Any]) -> tree.Option:
        where = self._at(c[0])
        return tree.Option(str(c[0]), self._name(c[0]), where, where)

    def keep(self, c: list[Any]) -> tree.Keep:
        return tree.Keep(self._name(c[1]), c[3], self._line(c))

    def resample(self, c: list[Any]) -> tree.Resample:
        return tree.Resample(self._name(c[1]), c[2].args, c[2].options, self._line(c))

    def push(self, c: list[Any]) -> tree.Push:
        return tree.Push(self._name(c[1]), c[2].args, c[2].options, self._line(c))

    def update(self, c: list[Any]) -> tree.Update:
        return tree.Update(self._name(c[1]), self._name(c[3]), self._options("update", c[4]), self._line(c))

    def train(self, c: list[Any]) -> tree.Train:
        return tree.Train(self._name(c[1]), self._options("train", c[2]), c[-1], self._span(c[:-2]))

    def minibatch(self, c: list[Any]) -> tree.Minibatch:
        return tree.Minibatch(self._name(c[1]), self._options("minibatch", c[2]), c[-1], self._span(c[:-2]))

    def collect(self, c: list[Any]) -> tree.Collect:
        args, options = (c[2].args, c[2].options) if isinstance(c[2], _Arguments) else ((), ())
        return tree.Collect(self._name(c[1]), args, options, c[-1], self._span(c[:-2]))

    def on_steps(self, c: list[Any]) -> tree.OnSteps:
        return tree.OnSteps(str(c[0]), c[1], c[-1], self._span(c[:-2]))

    def condition(self, c: list[Any]) -> tree.If:
        return tree.If(c[1], c[-1], self._span(c[:-2]))

    def stop(self, c: list[Any]) -> tree.Stop:
        return tree.Stop(c[2], self._line(c))

    def run(self, c: list[Any]) -> tree.Run:
        if c[0] in words.PYTHON:
            self._fail("E0113", words.PYTHON[c[0]], self._at(c[0]))
        return tree.Run(self._name(c[0]), c[1].args, c[1].options, self._line(c))

    # Schedules

    def schedule(self, c: list[Any]) -> tree.Schedule:
        body = tuple(child for child in c if not isinstance(child, Token))
        if c[1].type == "NAME":
            return tree.Schedule(str(c[1]), body, self._span(c[:2]))
        return tree.Schedule("", body, self._at(c[0]))

    def pool(self, c: list[Any]) -> tree.Pool:
        unit: Literal["devices", "cpus"] = "cpus" if c[4].type == "CPUS" else "devices"
        return tree.Pool(str(c[1]), c[3], unit, self._at(c[1]), self._line(c))

    def place(self, c: list[Any]) -> tree.Place:
        on = next(at for at, child in enumerate(c) if isinstance(child, Token) and child.type == "ON")
        work = tuple(child for child in c[:on] if not isinstance(child, Token))
        return tree.Place(work, self._name(c[on + 1]), self._options("place", c[on + 2]), self._line(c))

    def work(self, c: list[Any]) -> tree.Expr:
        name = self._name(c[0])
        return name if len(c) == 1 else tree.Attribute(name, str(c[2]), self._at(c[2]), self._span(c))

    def stream(self, c: list[Any]) -> tree.Stream:
        return tree.Stream(self._name(c[1]), self._options("stream", c[2]), self._line(c))

    def admit(self, c: list[Any]) -> tree.Admit:
        return tree.Admit(self._name(c[1]), self._options("admit", c[2]), self._line(c))

    def tail(self, c: list[Any]) -> tree.Tail:
        return tree.Tail(self._name(c[1]), self._options("tail", c[2]), self._line(c))

    def fuse(self, c: list[Any]) -> tree.Fuse:
        return tree.Fuse(tuple(child for child in c if not isinstance(child, Token)), self._line(c))

    def send(self, c: list[Any]) -> tree.Send:
        return tree.Send(self._name(c[1]), self._name(c[3]), self._options("send", c[4]), self._line(c))

    def refresh(self, c: list[Any]) -> tree.Refresh:
        return tree.Refresh(self._name(c[1]), self._name(c[3]), self._options("refresh", c[4]), self._line(c))

    # Expressions

    def _binary(self, c: list[Any]) -> tree.Binary:
        return tree.Binary(str(c[1]), c[0], c[2], self._span(c))

    disjunction = conjunction = comparison = sum = product = power = _binary

    def _unary(self, c: list[Any]) -> tree.Unary:
        return tree.Unary(str(c[0]), c[1], self._span(c))

    negation = sign = _unary

    def name(self, c: list[Any]) -> tree.Name:
        return self._name(c[0])

    choice = name
    """A word of the language as the value of an option."""

    def attribute(self, c: list[Any]) -> tree.Attribute:
        return tree.Attribute(c[0], str(c[2]), self._at(c[2]), self._span(c))

    def index(self, c: list[Any]) -> tree.Index:
        return tree.Index(c[0], c[2], self._span(c))

    def call(self, c: list[Any]) -> tree.Call:
        return tree.Call(c[0], c[1].args, c[1].options, self._span(c))

    def parentheses(self, c: list[Any]) -> Any:
        # The brackets belong to the span: a caret under a part of an expression covers whole brackets.
        return replace(c[1], span=self._span(c))

    def items(self, c: list[Any]) -> tree.List:
        return tree.List(tuple(child for child in c if not isinstance(child, Token)), self._span(c))

    def number(self, c: list[Any]) -> tree.Number:
        text = str(c[0])
        plain = text.replace("_", "")
        return tree.Number(int(plain) if plain.isdecimal() else float(plain), text, self._at(c[0]))

    def string(self, c: list[Any]) -> tree.String:
        token = c[0]
        text = _ESCAPE.sub(lambda match: self._escape(token, match), token[1:-1])
        if "{" not in text and "}" not in text:
            return tree.String(text, self._at(token))
        return tree.String(text, self._at(token), split_braced_text([*_signs(token)], partial(self._within, token)))

    def _within(self, token: Token, start: int, end: int) -> Span:
        """Return the place of a part of a token."""
        line, column = token_position(token)
        return Span(self.logical.source, line, column + start, line, column + end)

    def _escape(self, token: Token, match: re.Match[str]) -> str:
        if character := _escaped(match[1]):
            return character
        where = self._within(token, 1 + match.start(), 1 + match.end())
        self._fail("E0122", f"`{match[0]}` stands for no character", where, "write `\\\\` for a backslash")
        return ""

    def truth(self, c: list[Any]) -> tree.Bool:
        return tree.Bool(c[0] in ("true", "True"), self._at(c[0]))

    # Arguments

    def option(self, c: list[Any]) -> tree.Option:
        return tree.Option(str(c[0]), c[2], self._at(c[0]), self._span(c))

    def arguments(self, c: list[Any]) -> _Arguments:
        inner = [child for child in c if not isinstance(child, Token)]
        options = tuple(child for child in inner if isinstance(child, tree.Option))
        args = tuple(child for child in inner if not isinstance(child, tree.Option))
        self._no_repeats(options)
        first = next((at for at, child in enumerate(inner) if isinstance(child, tree.Option)), len(inner))
        for item in inner[first:]:
            if not isinstance(item, tree.Option):
                related = Related(inner[first].span, "the first option")
                hint = "values come first, then `name=value`"
                self._fail("E0118", "this value stands after an option", item.span, hint, related)
        return _Arguments(args, options, self._span(c))

    def _no_repeats(self, options: tuple[tree.Option, ...]) -> None:
        seen: dict[str, tree.Option] = {}
        for option in options:
            if option.name in seen:
                first = Related(seen[option.name].name_span, "first given here")
                self._fail("E0119", f"`{option.name}` is given twice", option.name_span, "keep one of them", first)
            seen.setdefault(option.name, option)

    def _options(self, statement: str, child: Any) -> tuple[tree.Option, ...]:
        """Return the options of a statement that takes only options."""
        if not isinstance(child, _Arguments):
            return ()
        for arg in child.args:
            hint = f"write `{arg.id}=...`" if isinstance(arg, tree.Name) else "write it as `name=value`"
            self._fail("E0118", f"`{statement}` takes options by name only", arg.span, hint)
        return child.options


def _signs(token: Token) -> Iterator[Sign]:
    """Yield the characters of a text in quotes."""
    for part in _CHARACTER.finditer(token, 1, len(token) - 1):
        yield _escaped(part[1]) if part[1] else part[0], part.start(), part.end(), part[1] is None


def _escaped(code: str) -> str:
    """Return the character that stands behind a backslash; an empty text for none."""
    if len(code) > 1 and not 0xD800 <= int(code[1:], 16) <= 0xDFFF:
        return chr(int(code[1:], 16))
    return _ESCAPES.get(code, "")


@dataclass(frozen=True, slots=True)
class _Parameters:
    """The parameters of a `def`."""

    names: tuple[tree.Name, ...]
    span: Span
