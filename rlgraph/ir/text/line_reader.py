"""Reads types, constants and expressions in a line of the text of a graph."""

from __future__ import annotations

import json
import re
from dataclasses import replace

from rlgraph.ir.graph import Apply, Const, Constant, Expr, Record, Ref, Unit, Value
from rlgraph.ir.types import Axis, DType, Handle, Table, Tensor, Type
from rlgraph.ops.tensor import INFIX, PREFIX, infer

LONGEST = 40
"""The limit of digits of an integer: programs compute with 64 bits, but floats may have 300 digits."""

_TOKEN = re.compile(
    r"""\s*(?:(?P<string>"(?:[^"\\]|\\.)*")|(?P<number>(?:\d+\.?\d*(?:[eE][+-]?\d+)?|inf|nan)(?![\w.@]))"""
    r"""|(?P<name>[^\W\d][\w.@]*)|(?P<sign><-|\*\*|//|<=|>=|==|!=|[-+*/%<>=(){}\[\],:;?]))"""
)


class LineReader:
    """A parser of the types, constants and expressions in one line."""

    def __init__(self, line: str, axes: dict[str, Axis], values: dict[str, Type]) -> None:
        self.tokens: list[tuple[str, str]] = []
        self.at, self.axes, self.values = 0, axes, values
        place, line = 0, line.rstrip()
        while place < len(line):
            match = _TOKEN.match(line, place)
            if not match:
                raise ValueError(f"cannot read {line[place:]!r}")
            self.tokens.append((match.lastgroup or "", match[match.lastgroup or 0]))
            place = match.end()

    @property
    def text(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) else ""

    def next(self) -> str:
        """Consume a token, and return its text."""
        self.at += 1
        return self.tokens[self.at - 1][1]

    def word(self) -> str:
        """Consume a name, which is quoted where it is no identifier."""
        self.at += 1
        kind, text = self.tokens[self.at - 1]
        return str(json.loads(text)) if kind == "string" else text

    def take(self, *signs: str) -> bool:
        """Consume the next token if it is one of these, and return whether it was."""
        if self.at < len(self.tokens) and self.tokens[self.at][0] != "string" and self.text in signs:
            self.at += 1
            return True
        return False

    def want(self, sign: str) -> None:
        if not self.take(sign):
            raise ValueError(f"expected {sign!r}, found {self.text!r}")

    def constant(self) -> Constant:
        if self.take("["):
            items: list[Constant] = []
            while not self.take("]"):
                items.append(self.constant())
                self.take(",")
            return tuple(items)
        sign = -1 if self.take("-") else 1
        kind, text = self.tokens[self.at]
        self.at += 1
        if kind == "string":
            return str(json.loads(text))
        if kind == "number":
            return sign * _number(text)
        if text in ("true", "false", "null"):
            return {"true": True, "false": False}.get(text)
        return self.record(text)

    def record(self, name: str) -> Record:
        args: list[Constant] = []
        self.want("(")
        options: list[tuple[str, Constant]] = []
        while not self.take(")"):
            if self.tokens[self.at + 1][1] == "=":
                key = self.next()
                self.want("=")
                options.append((key, self.constant()))
            else:
                args.append(self.constant())
            self.take(",")
        return Record(name, tuple(args), tuple(options))

    def options(self) -> tuple[tuple[str, Constant], ...]:
        options: list[tuple[str, Constant]] = []
        if self.take("{"):
            while not self.take("}"):
                name = self.next()
                self.want("=")
                options.append((name, self.constant()))
                self.take(",")
        return tuple(options)

    def value(self) -> Value:
        name = self.next()
        self.want(":")
        return Value(name, self.type())

    def type(self) -> Type:
        word = self.next()
        if word == "table":
            return self.table()
        if self.take("<"):
            handle = Handle(word, self.next())  # type: ignore[arg-type]
            self.want(">")
            return handle
        dtype: DType = word  # type: ignore[assignment]
        if not self.take("["):
            return Tensor(dtype)
        axis = self.axes[self.next()]
        self.want("]")
        return Tensor(dtype, axis)

    def table(self) -> Table:
        self.want("[")
        table = Table(self.axes[self.next()])
        fields: dict[str, object] = {}
        extra: list[tuple[str, Tensor]] = []
        while self.take(";"):
            word = self.next()
            if word == "with":
                name = self.word()
                self.want("=")
                kind = self.type()
                assert isinstance(kind, Tensor)
                extra.append((name, kind))
                continue
            self.want("=")
            if word == "sampled":
                fields |= {"sampled": True, "temperature": self.constant()}
            elif word == "version":
                self.want("token")
                fields["spans"] = True
            elif word == "data" and self.take("?"):
                fields["data"] = None
            elif word == "data":
                names = [self.word()]
                while self.take("+"):
                    names.append(self.word())
                fields["data"] = tuple(names)
            else:
                fields[word] = self.axes[self.next()]
        self.want("]")
        return replace(table, extra=tuple(extra), **fields)  # type: ignore[arg-type]

    def unit(self) -> Unit | None:
        if not self.take("per"):
            return None
        axis = None if self.take("batch") else self.word()
        reason = self.word() if self.take("because") else ""
        return Unit(axis, reason)

    def expression(self, level: int = 0) -> Expr:
        """Parse an expression by precedence climbing over infix operators."""
        left = self.prefix()
        while self.at < len(self.tokens) and self.tokens[self.at][0] != "string":
            op = INFIX.get(self.text)
            if op is None or op.precedence < level:
                return left
            self.at += 1
            left = self.apply(op.name, (left, self.expression(op.precedence + (not op.right))))
        return left

    def prefix(self) -> Expr:
        op = PREFIX.get(self.text)
        if op and self.take(op.sign):
            return self.apply(op.name, (self.expression(op.precedence),))
        if self.take("("):
            # A negative constant is printed in parentheses; the negation of a constant is not.
            ahead = self.tokens[self.at : self.at + 3]
            if [text for _, text in ahead[::2]] == ["-", ")"] and ahead[1][0] == "number":
                self.at += 3
                value = -_number(self.tokens[self.at - 2][1])
                return Const(value, Tensor("float" if isinstance(value, float) else "int"))
            inner = self.expression()
            self.want(")")
            return inner
        kind, text = self.tokens[self.at]
        self.at += 1
        if kind == "string":
            return Const(str(json.loads(text)), Tensor("text"))
        if kind == "number":
            number = _number(text)
            return Const(number, Tensor("float" if isinstance(number, float) else "int"))
        if text in ("true", "false"):
            return Const(text == "true", Tensor("bool"))
        if self.take("("):
            return self.call(text)
        tensor = self.values[text]
        assert isinstance(tensor, Tensor), f"{text} is no tensor"
        return Ref(text, tensor)

    def call(self, op: str) -> Expr:
        args: list[Expr] = []
        axis: str | None = None
        while not self.take(")"):
            if self.text == "to" and self.tokens[self.at + 1][1] == "=":
                self.at += 2
                axis = self.next()
            else:
                args.append(self.expression())
            self.take(",")
        return self.apply(op, tuple(args), axis)

    def apply(self, op: str, args: tuple[Expr, ...], axis: str | None = None) -> Apply:
        kind = infer(op, tuple(arg.type for arg in args), self.axes[axis] if axis else None)
        return Apply(op, args, kind, axis)


def _number(text: str) -> int | float:
    if text.isdigit():
        if len(text) > LONGEST:
            raise ValueError(f"a number of {len(text)} digits is more than a program can compute with")
        return int(text)
    return float(text)
