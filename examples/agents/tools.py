"""What the model may call."""

import ast
import operator

OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
}


def calculate(expression: str) -> str:
    """Calculate the value of an expression.

    Args:
        expression: Numbers with +, -, *, / and brackets, such as "2+3*4".
    """
    value = value_of(ast.parse(expression, mode="eval").body)
    return f"{value:g}" if isinstance(value, float) else str(value)


def value_of(node: ast.expr) -> int | float:
    """Return the value of a part of an expression: nothing else of Python is run."""
    match node:
        case ast.Constant(int() | float() as value):
            return value
        case ast.UnaryOp(sign, part) if type(sign) in OPERATORS:
            return OPERATORS[type(sign)](value_of(part))
        case ast.BinOp(left, sign, right) if type(sign) in OPERATORS:
            return OPERATORS[type(sign)](value_of(left), value_of(right))
    raise ValueError("an expression has numbers, +, -, *, / and brackets")
