"""Prints a graph as text that a person reads and `rlgraph.ir.text.parse` parses.

    program grpo
    axis prompts
    axis rollout in prompts
    axis rollout.token inside rollout
    model actor = causal_lm("Qwen/Qwen2.5-7B-Instruct")
    ...
    phase step(actor@0: model<actor>, prompts@0: cursor<prompts>):
      prompts: table[prompts], prompts@1: cursor<prompts> <- read(prompts@0) per batch because "..."
      ...
      yield actor@1, prompts@1

`parse_program(program_text(p))` equals `p`: only spans are lost.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from rlgraph.ir.graph import (
    Const,
    Constant,
    ConstructorCall,
    Expr,
    Graph,
    Node,
    Program,
    Ref,
    Staleness,
    Value,
    program_axes,
)
from rlgraph.ir.types import StateHandle, Tensor, Type
from rlgraph.ops.tensor import TENSOR, TensorOp

# Printing


def program_text(program: Program) -> str:
    """Return the text of a program."""
    lines = [f"program {program.name}"]
    for axis in program_axes(program).values():
        place = f" {'inside' if axis.inner else 'in'} {axis.parent.key}" if axis.parent else ""
        shown = f" as {axis.name}" if axis.name != axis.key.rsplit(".", 1)[-1] else ""
        lines.append(f"axis {axis.key}{place}{shown}")
    for model in program.models:
        function, argument = ("copy", model.copy_of) if model.copy_of else (model.kind, model.source)
        source = _call(function, (argument,), model.options)
        lines.append(
            f"model {model.name} = {f'frozen({source})' if model.frozen else source}"
            + (f" : {model.kind}" if model.copy_of else "")
        )
    lines += [f"{outside.kind} {outside.name} = {constant_text(outside.record)}" for outside in program.outside]
    lines += [f"state {state.name}{'[key]' if state.keyed else ''} = {state.initial!r}" for state in program.states]
    for phase in program.phases:
        options = [f"steps={phase.steps}"] if phase.steps is not None else []
        options += [str(phase.staleness)] if phase.staleness != Staleness() else []
        shown = f" {{{', '.join(options)}}}" if options else ""
        given = ", ".join(map(_value, phase.graph.inputs))
        lines += ["", f"phase {phase.name}({given}){shown}:", *graph_lines(phase.graph, "  ")]
    return "\n".join(lines) + "\n"


def graph_lines(graph: Graph, indent: str = "") -> Iterator[str]:
    """Return the lines of a graph's nodes and its outputs."""
    for node in graph.nodes:
        yield from node_lines(node, indent)
    yield f"{indent}yield {', '.join(graph.outputs)}".rstrip()


def node_lines(node: Node, indent: str = "") -> Iterator[str]:
    """Return the lines of one node, with its unit after `per`."""
    outputs = ", ".join(map(_value, node.outputs))
    left = f"{outputs} = " if node.body else f"{outputs} <- " if outputs else ""
    unit = ""
    if node.unit:
        reason = f" because {json.dumps(node.unit.reason)}" if node.unit.reason else ""
        unit = f" per {_unit_axis(node.unit.axis)}{reason}"
    if node.body:
        names = {value.name for value in node.outputs}
        if len(node.body) == 1 and len(names) == 1:
            yield f"{indent}{left}{expr_text(node.body[0].expr)}{unit}"
            return
        yield f"{indent}{left}tensor{unit}:"
        for let in node.body:
            yield f"{indent}  {let.name} = {expr_text(let.expr)}"
        return
    given = ", ".join(node.inputs)
    attrs = ", ".join(f"{name}={constant_text(value)}" for name, value in node.attrs)
    shown = f" {{{attrs}}}" if attrs else ""
    yield f"{indent}{left}{node.op}({given}){shown}{unit}{':' if node.regions else ''}"
    for region in node.regions:
        yield f"{indent}  given {', '.join(map(_value, region.inputs))}".rstrip()
        yield from graph_lines(region, indent + "  ")


def _unit_axis(axis: str | None) -> str:
    return "batch" if axis is None else '"batch"' if axis == "batch" else axis


def expr_text(expr: Expr, above: int = 0) -> str:
    """Return an expression in the language's notation; `above` is the precedence of the enclosing expression."""
    if isinstance(expr, Ref):
        return expr.name
    if isinstance(expr, Const):
        shown_value = constant_text(expr.value)
        return f"({shown_value})" if shown_value.startswith("-") else shown_value
    args, op = expr.args, TENSOR[expr.op]
    if op.sign:
        return f"({_signed(op, args)})" if op.precedence < above else _signed(op, args)
    shown = [expr_text(arg) for arg in args]
    if expr.axis is not None:
        shown.append(f"to={expr.axis}")
    return f"{expr.op}({', '.join(shown)})"


def _signed(op: TensorOp, args: tuple[Expr, ...]) -> str:
    level = op.precedence
    if len(args) == 2:
        return f"{expr_text(args[0], level + op.right)} {op.sign} {expr_text(args[1], level + (not op.right))}"
    inner = expr_text(args[0], level)
    if op.sign.isalpha():
        return f"{op.sign} {inner}"
    # `(-1)` is a constant, `-(1)` the negation of one.
    return f"{op.sign}({inner})" if inner[0].isdigit() else f"{op.sign}{inner}"


def constant_text(value: Constant) -> str:
    """Return a constant in the language's notation."""
    if isinstance(value, ConstructorCall):
        return _call(value.name, value.args, value.options)
    if isinstance(value, tuple):
        return f"[{', '.join(map(constant_text, value))}]"
    if isinstance(value, (bool, type(None), str)):
        return json.dumps(value, ensure_ascii=False)
    return repr(value)


def _call(name: str, args: tuple[Constant, ...], options: tuple[tuple[str, Constant], ...]) -> str:
    shown = [constant_text(arg) for arg in args]
    shown += [f"{name}={constant_text(value)}" for name, value in options]
    return f"{name}({', '.join(shown)})"


def _value(value: Value) -> str:
    return f"{value.name}: {_type(value.type)}"


def _type(kind: Type) -> str:
    if isinstance(kind, Tensor):
        return f"{kind.dtype}[{kind.axis.key}]" if kind.axis else kind.dtype
    if isinstance(kind, StateHandle):
        return str(kind)
    parts = [f"{name}={axis.key}" for name, axis in (("token", kind.token), ("turn", kind.turn)) if axis]
    parts += [f"sampled={kind.temperature!r}"] if kind.sampled else []
    parts += ["version=token"] if kind.spans else []
    parts += [f"start={kind.start}"] if kind.start != "text" else []
    columns = "?" if kind.data is None else "+".join(map(_word, kind.data))
    parts += [f"data={columns}"] if columns else []
    parts += [f"with {_word(name)}={_type(inner)}" for name, inner in kind.extra]
    return f"table[{'; '.join([kind.axis.key, *parts])}]"


def _word(name: str) -> str:
    """Return a column's name, quoted where it is no identifier: data may have any name."""
    return name if re.fullmatch(r"[^\W\d][\w.@]*", name) else json.dumps(name, ensure_ascii=False)
