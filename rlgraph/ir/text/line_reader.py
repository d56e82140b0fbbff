"""Reads types, constants and expressions in a line of the text of a graph."""

from __future__ import annotations

import json
import re
from dataclasses import replace

from rlgraph.ir.graph import Apply, Const, Constant, ConstructorCall, Expr, Ref, RowUnit, Value
from rlgraph.ir.types import Axis, DType, StateHandle, Table, Tensor, Type
from rlgraph.ops.tensor import INFIX, PREFIX, infer_type

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
    def token_text(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) else ""

    def next_token(self) -> str:
        """Consume a token, and return its text."""
        self.at += 1
        return self.tokens[self.at - 1][1]

    def read_name(self) -> str:
        """Consume a name, which is quoted where it is no identifier."""
        self.at += 1
        kind, text = self.tokens[self.at - 1]
        return str(json.loads(text)) if kind == "string" else text

    def accept(self, *signs: str) -> bool:
        """Consume the next token if it is one of these, and return whether it was."""
        if self.at < len(self.tokens) and self.tokens[self.at][0] != "string" and self.token_text in signs:
            self.at += 1
            return True
        return False

    def expect(self, sign: str) -> None:
        if not self.accept(sign):
            raise ValueError(f"expected {sign!r}, found {self.token_text!r}")

    def read_constant(self) -> Constant:
        if self.accept("["):
            items: list[Constant] = []
            while not self.accept("]"):
                items.append(self.read_constant())
                self.accept(",")
            return tuple(items)
        sign = -1 if self.accept("-") else 1
        kind, text = self.tokens[self.at]
        self.at += 1
        if kind == "string":
            return str(json.loads(text))
        if kind == "number":
            return sign * _number(text)
        if text in ("true", "false", "null"):
            return {"true": True, "false": False}.get(text)
        return self.read_record(text)

    def read_record(self, name: str) -> ConstructorCall:
        args: list[Constant] = []
        self.expect("(")
        options: list[tuple[str, Constant]] = []
        while not self.accept(")"):
            if self.tokens[self.at + 1][1] == "=":
                key = self.next_token()
                self.expect("=")
                options.append((key, self.read_constant()))
            else:
                args.append(self.read_constant())
            self.accept(",")
        return ConstructorCall(name, tuple(args), tuple(options))

    def read_options(self) -> tuple[tuple[str, Constant], ...]:
        options: list[tuple[str, Constant]] = []
        if self.accept("{"):
            while not self.accept("}"):
                name = self.next_token()
                self.expect("=")
                options.append((name, self.read_constant()))
                self.accept(",")
        return tuple(options)

    def read_value(self) -> Value:
        name = self.next_token()
        self.expect(":")
        return Value(name, self.read_type())

    def read_type(self) -> Type:
        word = self.next_token()
        if word == "table":
            return self.read_table()
        if self.accept("<"):
            handle = StateHandle(word, self.next_token())  # type: ignore[arg-type]
            self.expect(">")
            return handle
        dtype: DType = word  # type: ignore[assignment]
        if not self.accept("["):
            return Tensor(dtype)
        axis = self.axes[self.next_token()]
        self.expect("]")
        return Tensor(dtype, axis)

    def read_table(self) -> Table:
        self.expect("[")
        table = Table(self.axes[self.next_token()])
        fields: dict[str, object] = {}
        extra: list[tuple[str, Tensor]] = []
        while self.accept(";"):
            word = self.next_token()
            if word == "with":
                name = self.read_name()
                self.expect("=")
                kind = self.read_type()
                assert isinstance(kind, Tensor)
                extra.append((name, kind))
                continue
            self.expect("=")
            if word == "sampled":
                fields |= {"sampled": True, "temperature": self.read_constant()}
            elif word == "version":
                self.expect("token")
                fields["spans"] = True
            elif word == "start":
                fields["start"] = self.next_token()
            elif word == "data" and self.accept("?"):
                fields["data"] = None
            elif word == "data":
                names = [self.read_name()]
                while self.accept("+"):
                    names.append(self.read_name())
                fields["data"] = tuple(names)
            else:
                fields[word] = self.axes[self.next_token()]
        self.expect("]")
        return replace(table, extra=tuple(extra), **fields)  # type: ignore[arg-type]

    def read_unit(self) -> RowUnit | None:
        if not self.accept("per"):
            return None
        axis = None if self.accept("batch") else self.read_name()
        reason = self.read_name() if self.accept("because") else ""
        return RowUnit(axis, reason)

    def read_expression(self, level: int = 0) -> Expr:
        """Parse an expression by precedence climbing over infix operators."""
        left = self.read_prefix()
        while self.at < len(self.tokens) and self.tokens[self.at][0] != "string":
            op = INFIX.get(self.token_text)
            if op is None or op.precedence < level:
                return left
            self.at += 1
            left = self.make_apply(op.name, (left, self.read_expression(op.precedence + (not op.right))))
        return left

    def read_prefix(self) -> Expr:
        op = PREFIX.get(self.token_text)
        if op and self.accept(op.sign):
            return self.make_apply(op.name, (self.read_expression(op.precedence),))
        if self.accept("("):
            # A negative constant is printed in parentheses; the negation of a constant is not.
            ahead = self.tokens[self.at : self.at + 3]
            if [text for _, text in ahead[::2]] == ["-", ")"] and ahead[1][0] == "number":
                self.at += 3
                value = -_number(self.tokens[self.at - 2][1])
                return Const(value, Tensor("float" if isinstance(value, float) else "int"))
            inner = self.read_expression()
            self.expect(")")
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
        if self.accept("("):
            return self.read_call(text)
        tensor = self.values[text]
        assert isinstance(tensor, Tensor), f"{text} is no tensor"
        return Ref(text, tensor)

    def read_call(self, op: str) -> Expr:
        args: list[Expr] = []
        axis: str | None = None
        while not self.accept(")"):
            if self.token_text == "to" and self.tokens[self.at + 1][1] == "=":
                self.at += 2
                axis = self.next_token()
            else:
                args.append(self.read_expression())
            self.accept(",")
        return self.make_apply(op, tuple(args), axis)

    def make_apply(self, op: str, args: tuple[Expr, ...], axis: str | None = None) -> Apply:
        kind = infer_type(op, tuple(arg.type for arg in args), self.axes[axis] if axis else None)
        return Apply(op, args, kind, axis)


def _number(text: str) -> int | float:
    if text.isdigit():
        if len(text) > LONGEST:
            raise ValueError(f"a number of {len(text)} digits is more than a program can compute with")
        return int(text)
    return float(text)
