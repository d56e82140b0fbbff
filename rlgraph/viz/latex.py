r"""Writes what a program computes as formulas in LaTeX.

Rows are indices, one for each axis that a value lies in: $\mathrm{adv}_{i,j}$ is a number for each answer $j$ of each
prompt $i$. A reduction has below it the indices that it runs over. Operations declare how they are written (`latex` of
their records in `rlgraph/ops`); one that declares nothing is a function of its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import count

from rlgraph.ir.graph import Const, Expr, Graph, Node, Program, Ref, program_axes
from rlgraph.ir.text.line_reader import LineReader
from rlgraph.ir.types import Axis, StateHandle, Tensor, Type, axis_of
from rlgraph.ops import NODES, attribute_value
from rlgraph.ops.nodes import kept_probabilities, numbers_beside, pairs_beside
from rlgraph.ops.tensor import TENSOR
from rlgraph.viz.captions import changed_options, loop_captions, phase_text

ROWS = "ijlmn"
"""The index of rows, by the number of axes that they lie in."""
INSIDE = {"token": "t", "turn": "k"}
SCANS = {
    "next": ("{t}+1", "{x}"),
    "prev": ("{t}-1", "{x}"),
    "cumsum": ("s", r"\sum_{{s \le {t}}} {x}"),
    "discount": ("s", r"\sum_{{s \ge {t}}} {{{decay}}}^{{s-{t}}} {x}"),
    "accumulate": ("s", r"\sum_{{s \le {t}}} {{{decay}}}^{{{t}-s}} {x}"),
}
"""Of a scan over a value `x` with a name: the index that takes the place of `t`, and what is written."""
GREEK = {"alpha", "beta", "gamma", "delta", "epsilon", "eta", "kappa", "lambda", "mu", "rho", "sigma", "tau", "theta"}
SHORT = {"eps": "epsilon", "lam": "lambda"}
BECOMES = r"\leftarrow"


def latex(program: Program) -> str:
    """Return the formulas of a program that no pass has changed yet: an `aligned` block for each phase, below comments
    that say what each index counts."""
    return "".join(_Formulas(program).text())


class _Formulas:
    """The formulas of one program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.axes = program_axes(program)
        self.along: dict[str, Axis | None] = {}
        """The axis of every value of the phase."""
        self.unnamed: dict[str, str] = {}
        """What is written for a value that the program does not name, by the value."""
        self.written: set[str] = set()

    def text(self) -> Iterator[str]:
        """Yield the comments and the blocks."""
        counted: dict[str, dict[str, None]] = {}
        for axis in self.axes.values():
            counted.setdefault(_letter(axis), {})[axis.name] = None
        for letter in sorted(counted, key=lambda letter: (letter not in ROWS, letter)):
            yield f"% {letter}: {', '.join(counted[letter])}\n"
        for phase in self.program.phases:
            title = " ".join(filter(None, [phase.name, phase_text(phase)]))
            self.along = {name: axis_of(kind) for name, kind in phase.graph.value_types().items()}
            self.written.clear()
            lines = [] if title == "step" else [_bold(title)]
            lines += self.lines_of(phase.graph, "")
            yield "\\begin{aligned}\n" + " \\\\\n".join(f"& {line}" for line in lines) + "\n\\end{aligned}\n"

    def lines_of(self, graph: Graph, loss: str) -> Iterator[str]:
        """Yield a line for each statement of a graph; `loss` is the value that is minimized."""
        for node in graph.nodes:
            if node.body:
                yield from self.mathematics(node, loss)
            elif node.regions:
                yield _bold(self.caption(node))
                for region in node.regions:
                    minimized = region.outputs[0] if NODES[node.op].trains else ""
                    yield from (rf"\quad {line}" for line in self.lines_of(region, minimized))
            else:
                yield from self.operation(node)

    def mathematics(self, node: Node, loss: str) -> Iterator[str]:
        """Yield the lines of a tensor node, but for what is only reported."""
        for let in node.body:
            value = self.expression(let.expr)
            if let.name == loss:
                yield rf"\text{{minimize}}\ \ {value}"
            elif not let.name.startswith("report."):
                # A new version of what lives across steps is not equal to the old one.
                sign = BECOMES if "@" in let.name else "="
                line = f"{_indexed(let.name, let.expr.type.axis)} {sign} {value}"
                # A value of a loop that is reported stands behind the loop once more.
                if line not in self.written:
                    yield line
                self.written.add(line)

    def caption(self, node: Node) -> str:
        """Return the title of a loop or a training step."""
        if NODES[node.op].trains:
            return f"train {_plain(node.inputs[0])} ({changed_options(node)})"
        title, note = loop_captions(node, {axis.key: axis.name for axis in self.axes.values()})
        return f"{title} ({note})" if note else title

    def operation(self, node: Node) -> Iterator[str]:
        """Yield the line of what is no mathematics; none for a column, which has its name, and for reports."""
        declared = NODES[node.op]
        inputs = [self.value(name) for name in node.inputs]
        function = str(node.attr(declared.foreign)) if declared.foreign else node.op
        written = _filled(declared.latex, inputs) if declared.latex else _call(function, inputs)
        if formula := node.attr("formula"):
            written = self.over_vocabulary(node, formula, inputs)
        made = [value.name for value in node.outputs if not isinstance(value.type, StateHandle)]
        if not made:
            if node.outputs:
                yield written
        elif all("." in _plain(name) for name in made):
            if not declared.selects:
                self.unnamed |= dict.fromkeys(made, written)
        else:
            left = ", ".join(_indexed(name, self.along[name]) for name in made)
            yield f"{left} {written}" if written.startswith(r"\sim") else f"{left} = {written}"

    def over_vocabulary(self, node: Node, formula: str, inputs: Sequence[str]) -> str:
        """Return what a formula of models' probabilities of a token `v` is reduced to, each given the rows that it
        reads where these are not those of the first."""
        pairs = inputs[: 2 + len(pairs_beside(node))]
        probabilities: dict[str, str] = {}
        for at, (model, table) in enumerate(zip(pairs[::2], pairs[1::2], strict=True)):
            given = "" if table == pairs[1] else rf" \mid {table}"
            probabilities[f"p{at}"] = rf"\pi_{{{model}}}\left(v{given}\right)"
        beside = (*(("p", name) for name in kept_probabilities(node)), *(("x", name) for name in numbers_beside(node)))
        for at, (letter, name) in enumerate(beside, len(probabilities)):
            probabilities[f"{letter}{at}"] = self.value(name) + (r"\left(v\right)" if letter == "p" else "")
        outside, self.unnamed = self.unnamed, probabilities
        names: dict[str, Type] = {name: Tensor("float") for name in probabilities}
        summand = self.expression(LineReader(formula, {}, names).read_expression())
        word = attribute_value(node, "reduce")
        operator = TENSOR[word].latex if word in TENSOR and TENSOR[word].latex else rf"\operatorname*{{{word}}}"
        written = rf"{operator}_{{v}} {_bracketed(summand)}"
        self.unnamed = outside
        return written

    def value(self, name: str) -> str:
        """Return a value with its indices, or how it is made where the program has no name for it."""
        return self.unnamed.get(name) or _indexed(name, self.along.get(name))

    def expression(self, expr: Expr, above: int = 0) -> str:
        """Return an expression; `above` is the precedence of the operator that it is an argument of."""
        if isinstance(expr, Ref):
            return self.value(expr.name)
        if isinstance(expr, Const):
            return _constant(expr.value, above)
        declared = TENSOR[expr.op]
        if declared.is_grouped and declared.kind != "pairing":
            written = self.grouped(expr.op, expr.args, expr.axis)
            # What follows a large operator belongs to it.
            return _bracketed(written) if above else written
        if expr.op in SCANS and isinstance(expr.args[0], Ref) and expr.args[0].name not in self.unnamed:
            written = self.scan(expr.args[0], *SCANS[expr.op], [self.expression(arg, 100) for arg in expr.args[1:]])
            return _bracketed(written) if above and written.startswith(r"\sum") else written
        if declared.latex:
            return self.filled(declared.latex, expr.args)
        if not declared.sign:
            return _call(expr.op, [self.expression(arg) for arg in expr.args])
        level = declared.precedence
        if len(expr.args) == 1:
            written = f"{_SIGNS.get(declared.sign, declared.sign)} {self.expression(expr.args[0], level)}"
        else:
            left = self.expression(expr.args[0], level + declared.right)
            right = self.expression(expr.args[1], level + (not declared.right))
            written = f"{left} {_SIGNS.get(declared.sign, declared.sign)} {right}"
        return _bracketed(written) if level < above else written

    def scan(self, value: Ref, index: str, form: str, rest: Sequence[str]) -> str:
        """Return a scan of a value that has a name, with another index in the place of the last."""
        axis = value.type.axis
        if axis is None:
            return self.value(value.name)
        letter = _letter(axis)
        moved = _indexed(value.name, axis, index.format(t=letter))
        return form.format(t=letter, x=moved, decay=rest[0] if rest else "")

    def filled(self, template: str, args: Sequence[Expr]) -> str:
        """Return a declared form with its arguments: `#1` stands alone, `##1` is put in brackets if it is no symbol."""
        loose = _filled(template.replace("##", "\0"), [self.expression(arg) for arg in args])
        return _filled(loose.replace("\0", "#"), [self.expression(arg, 100) for arg in args])

    def grouped(self, op: str, args: Sequence[Expr], left: str | None) -> str:
        """Return a reduction or a ranking, with the indices below that it runs over, its condition and its key."""
        rest = list(args)
        source = rest[0].type.axis
        key = rest.pop() if rest[-1].type.dtype == "key" else None
        condition = rest.pop() if len(rest) == TENSOR[op].args + 1 else None
        over = []
        if source is not None:
            within = {axis.key for axis in self.axes[left].path_to_root()} if left else set()
            over = [_letter(axis) for axis in source.path_to_root() if axis.key not in within][::-1]
        below = ",".join(over or ([_letter(source)] if source else []))
        if key is not None:
            below += rf"\,\mid\,{self.expression(key)}"
        if condition is not None:
            below += rf"\,:\,{self.expression(condition)}"
        shown = [self.expression(arg) for arg in rest]
        inner = _bracketed(", ".join(shown)) if rest[1:] else self.expression(rest[0], 9)
        return rf"{TENSOR[op].latex or _operator(op, '*')}_{{{below}}} {inner}"


_SIGNS = {
    "*": r"\cdot",
    "<=": r"\le",
    ">=": r"\ge",
    "==": "=",
    "!=": r"\ne",
    "and": r"\land",
    "or": r"\lor",
    "not": r"\lnot",
    "%": r"\bmod",
}
"""What is written for an operator that is not written as it is."""


def _letter(axis: Axis) -> str:
    """Return the index of an axis."""
    if axis.inner:
        return INSIDE.get(axis.name, axis.name[0])
    return ROWS[min(axis.depth, len(ROWS)) - 1]


def _indexed(name: str, axis: Axis | None, last: str = "") -> str:
    """Return a name with an index for each axis that its value lies in; `last` replaces the last one."""
    if axis is None:
        return _symbol(name)
    *outer, inner = [_letter(above) for above in reversed(list(axis.path_to_root()))]
    return f"{_symbol(name)}_{{{','.join([*outer, last or inner])}}}"


def _plain(name: str) -> str:
    """Return the name that the program has for a value, of which the graph may have several."""
    return re.sub(r"@\d+|\.\d+(?=\.|$)", "", name)


def _symbol(name: str) -> str:
    plain = SHORT.get(_plain(name), _plain(name))
    return f"\\{plain}" if plain in GREEK else rf"\mathrm{{{_escaped(plain)}}}"


def _escaped(text: str) -> str:
    return re.sub(r"([_%&#${}])", r"\\\1", text)


def _bold(text: str) -> str:
    return rf"\textbf{{{_escaped(text)}}}"


def _operator(name: str, star: str = "") -> str:
    return rf"\operatorname{star}{{{_escaped(name)}}}"


def _call(function: str, args: Sequence[str]) -> str:
    return rf"{_operator(function)}\left({', '.join(args)}\right)"


def _bracketed(text: str) -> str:
    return rf"\left({text}\right)"


def _filled(template: str, args: Sequence[str]) -> str:
    """Return a declared form with `#1` replaced by the first argument, and so on; `#*` is all from the second on."""
    numbered = dict(zip(map(str, count(1)), args, strict=False)) | {"*": ", ".join(args[1:])}
    return re.sub(r"#([\d*])", lambda found: numbered.get(found[1], ""), template)


def _constant(value: float | bool | str, above: int) -> str:
    if isinstance(value, bool | str):
        return rf"\text{{{_escaped(str(value).lower() if isinstance(value, bool) else value)}}}"
    text = repr(value)
    digits, _, power = text.partition("e")
    written = rf"{digits} \cdot 10^{{{int(power)}}}" if power else text
    if power and digits == "1":
        written = f"10^{{{int(power)}}}"
    return _bracketed(written) if above and (value < 0 or above >= 9 and power) else written
